// Package xdr compares the codecs that cmd/xdrgen writes with those of two other compilers:
// goxdr and buildbarn/go-xdr. All three compile the same file, compare.x. The tests compare what
// they accept and encode, the benchmarks how long they take.
package xdr

//go:generate go run ./gen
