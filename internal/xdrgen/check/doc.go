// Package check gives the names of a syntax tree their meaning. It resolves constants and types, rejects what RFC 4506
// section 6.4 and RFC 5531 section 12.3 forbid, and computes the sizes of encodings and which types are recursive. In
// its result, a [Spec], all names are resolved.
//
// # Linked lists
//
// The structure "struct entry { string name<>; entry *next; };" is an element of a linked list: an optional entry is
// encoded as a 1 and the other members for each element, and then a 0. If every use of the structure is optional, each
// use becomes a type of kind [List], and the link is no longer a member. The encoding is the same. Such lists need
// neither recursion nor a limit on it.
//
// # Recursion
//
// Other types that contain themselves are not changed, but have [Type.Recursive] set. A structure of a list that is
// also used by value is [Type.Chained]. A structure that always contains itself has no finite value, which is an error.
// If an arm of a union closes the cycle, [Arm.Pointer] is set, because Go needs a pointer there.
package check
