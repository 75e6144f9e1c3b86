// Package rpcgen tests the services that cmd/xdrgen generates against C programs that rpcgen
// generates from the same file, echo.x, with libtirpc, over TCP. Go serves clients in C, and calls
// a server in C.
//
// Quadruple-precision numbers are missing: rpcgen does not have them.
package rpcgen
