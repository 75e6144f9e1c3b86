// Package rpcrdma2 compares proto/rpcrdma, which is hand-written, with the output of an XDR compiler for the XDR of
// version 2 and of this project's extension of it.
//
// The XDR of version 2 is proto/rpcrdma/testdata/rpcrdma_corev2.x. That of the extension is extracted from
// docs/protocol.md.
package rpcrdma2
