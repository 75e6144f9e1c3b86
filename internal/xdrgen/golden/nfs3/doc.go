// Package nfs3 is what xdrgen makes of the .x file of package nfs, with clients, servers and bindings.
// Its test compares the binding with that of package nfs.
package nfs3

import "github.com/rpcrdma/rpcrdma/proto/xdr"

//go:generate go run ../../../../cmd/xdrgen -o nfs3.go ../../../../nfs/nfs3.x

// FileHandle is typedef nfs_fh3, which the .x file leaves to be written by hand.
type FileHandle []byte

// Append appends the encoding of v to b.
func (v *FileHandle) Append(b []byte) []byte { return xdr.AppendOpaque(b, *v) }

// Decode decodes v, a view, and leaves its error in d.
func (v *FileHandle) Decode(d *xdr.Decoder) { *v = d.Opaque(MaxHandle) }

// Check returns an [*xdr.CheckError] if v is too long.
func (v *FileHandle) Check() error { return xdr.CheckLen(len(*v), MaxHandle) }
