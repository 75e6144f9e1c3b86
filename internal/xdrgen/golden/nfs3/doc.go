// Package nfs3 is what xdrgen makes of a part of NFS version 3. Its test compares the binding with
// that of package nfs.
package nfs3

//go:generate go run ../../../../cmd/xdrgen nfs3.x
