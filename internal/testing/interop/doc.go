// Package interop tests the module against other implementations: packet decoders and peers.
// It has only tests; package rping in it reimplements the protocol of rping(1).
package interop
