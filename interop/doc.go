// Package interop tests the module against programs that it did not write: as a
// decoder of what it sends, and as peers. It has no code of its own; package
// rping below it is a program that others have written, written again.
package interop
