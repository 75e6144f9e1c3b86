// Package released replays what released versions of the module said on the wire, against today's:
// either end of a recorded conversation, with today's other end.
//
// Below testdata is a directory for each series of versions, such as v0.1, and it never changes. A
// file is one conversation of a client and a server over iwarp, as hexadecimal: the start-up
// frames of MPA, and then every FPDU, in the order in which a relay between the two saw them. Each
// is one way that a call can go, in version 1 or 2 of RPC-over-RDMA: a NULL call, an inline one, one
// with a read chunk, a write chunk or a reply chunk, a long call, an error of the program, an error of
// the transport, and a call that the server makes while it executes one.
//
// # What a replay shows
//
// A replay has the recorded bytes of one end. It changes in them what the other end has chosen
// anew: the xids of its calls, the STags and offsets of its memory. Everything else goes out as
// it was recorded, framing included, except that RDMA Reads of a recorded client's memory are
// answered from what it answered then, however today's server divides them.
//
// Of today's end is wanted: that it accepts the connection; the same messages, byte for byte,
// except for what it chooses anew, and for credits and buffer sizes, which need only be enough; the
// same bytes in each chunk; at a client, the results and errors that its caller had then.
//
// It does not show what happens beyond one call at a time, nor how connections end.
//
// # A new set
//
// Before the first version of a series is tagged,
//
//	go test ./internal/testing/interop/released -run TestRecord -record v0.2
//
// records the conversations that the tests have.
package released
