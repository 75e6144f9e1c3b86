// Package xdr compares the codecs that cmd/xdrgen writes with those of two other compilers:
// goxdr and buildbarn/go-xdr. All three compile the same file, compare.x. The tests compare what
// they accept and encode, the benchmarks how long they take.
//
// The benchmarks have the same messages in Protocol Buffers as well, from compare.proto, by
// google.golang.org/protobuf and by vtprotobuf.
//
// The code is generated when the tests run. Benchmarks run with code that has been kept:
//
//	go test ./bench/xdr -run=Generated -keep="$PWD/.bin/xdr"
//	go test -tags=generated -overlay=.bin/xdr/overlay.json -run='^$' -bench=. ./bench/xdr
package xdr
