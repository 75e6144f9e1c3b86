// Package rpcrdma2 is what an XDR compiler makes of the XDR of version 2 and of this
// project's extension of it. It is here to be compared with proto/rpcrdma, which is
// written by hand, and for nothing else.
//
// The XDR of version 2 is proto/rpcrdma/testdata/rpcrdma_corev2.x, that of the
// extension is extracted from docs/extensions.md. After a change in either
//
//	go test ./tools/rpcrdma2 -update
//
// writes rpcrdma2.go anew.
package rpcrdma2
