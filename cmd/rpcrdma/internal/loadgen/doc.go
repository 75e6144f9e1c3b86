// Package loadgen measures an RPC-over-RDMA connection: it makes calls of one kind, any number at a time, checks every
// answer, and returns rates and a histogram of latencies.
//
// The calls are those of a small benchmark program that moves bytes and does nothing else; a server registers the
// result of [Program]. [Run] measures one [Step] on a connection that the caller has made, so everything about the
// connection, from the provider to its credits, is the caller's choice.
package loadgen
