// Package rpcrdma2 compares proto/rpcrdma, which is written by hand, with what an XDR compiler makes of
// the XDR of version 2 and of this project's extension of it.
//
// The XDR of version 2 is proto/rpcrdma/testdata/rpcrdma_corev2.x, that of the
// extension is extracted from docs/protocol.md.
package rpcrdma2
