// Package gen generates Go code for a checked specification: its constants and types, clients, servers and bindings of
// its programs, which use package rpc, and the codecs, which use package proto/xdr.
//
// # Names
//
// A name of the source becomes a Go name word by word. A word ends at an underscore or after digits. The first letter
// of each word is capitalized. The other letters stay as they are, but all-capital words become lower case.
//
//   - put_args: PutArgs
//   - nfs_fh3: NfsFh3
//   - READ3resok: Read3Resok
//   - NFS3ERR_PERM: Nfs3ErrPerm
//   - clientOwner: ClientOwner
//
// Of two equal Go names the second one gets a suffix for its kind, and then a number if that does not suffice. Types
// come first, then constants, enumerators, programs, versions and procedures, each in the order of the source. The
// suffixes are Type, Const, Value, Program, Version and Proc. Members get the suffix Field if there is a method or
// another member with the name.
//
// A comment /* go: Name */ at a declaration or a member sets its name instead. The name may begin with a lower-case
// letter.
//
// # Types
//
//   - int, unsigned int, hyper, unsigned hyper: int32, uint32, int64, uint64
//   - float, double, quadruple: float32, float64, [16]byte
//   - bool, string: bool, string
//   - opaque x[8], opaque x<8>: [8]byte, []byte
//   - T x[3], T x<3>, T *x: [3]T, []T, *T
//   - T *x of a linked list: []T
//   - enum: an int32 type with constants
//   - struct: a struct
//   - union: a struct with the discriminant and a field for each arm, *T where that is recursive
//   - typedef of opaque, an array or a list: a type with methods
//   - typedef with the comment /* distinct */, of a number, a bool or a string: a type with methods
//   - any other typedef: an alias
//   - typedef with the comment /* extern */: a hand-written type
//
// A member with the comment /* flat */ has no field: the fields of its type take its place. Arms of a union share a
// field if name and type are the same. Decode zeroes the fields that the current arm does not have, one by one; slices
// of elements keep their memory. Types that occur only in flat members are not declared.
//
// # Methods
//
// Every type except an alias has these methods, with a pointer receiver:
//
//   - Append(b []byte) []byte
//   - Decode(d *xdr.Decoder)
//   - Check() error
//
// A type with the comment /* head */ also has AppendHead and DecodeHead, which omit the item at its end.
//
// Append encodes whatever is in the value. Check reports values that a peer would reject (too many elements, a
// discriminant without an arm).
//
// # Clients, servers and bindings
//
// Where items, which may be placed directly, are taken out of the stream, types that contain them are not encoded by
// their methods. Instead, the statements for their members, and their own members, down to the items, are written
// out in the method of the client or server, and in the binding. A type without items is encoded by Append and Decode,
// or, in bindings, skipped by a function for the type. Bindings skip adjacent parts of fixed size together; of their
// values they check only bools.
package gen
