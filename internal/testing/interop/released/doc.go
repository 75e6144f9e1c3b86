// Package released replays what released versions of the module sent, against today's version: either end of a recorded
// conversation, with today's other end.
//
// Below testdata is a directory for each series of versions, such as v0.1, which never changes. A file is one
// conversation of a client and a server over iwarp, in hexadecimal: the start-up frames of MPA, and then every FPDU, in
// the order in which a relay between the two saw them. Each covers one form of a call, in version 1 or 2 of
// RPC-over-RDMA: a NULL call, an inline one, one with a read chunk, a write chunk or a reply chunk, a long call, an
// error of the program, an error of the transport, and a call that the server makes while it executes one.
//
// # What a replay shows
//
// A replay sends the recorded bytes of one end. It changes only values that the other end has chosen anew: the xids of
// its calls, the STags and offsets of its memory. Everything else is sent as it was recorded, including the framing.
// The exception is RDMA Reads of a recorded client's memory: they are answered with the data of that time, however
// today's server divides them.
//
// Today's end must accept the connection and send the same messages, byte for byte, except for values that it chooses
// anew, and for credits and buffer sizes, which need only suffice. It must transfer the same bytes in each chunk. A
// client must return the same results and errors to its caller.
//
// A replay does not show what happens with several concurrent calls, nor how connections end.
//
// # A new set
//
// Before the first version of a series is tagged,
//
//	go test ./internal/testing/interop/released -run TestRecord -record v0.2
//
// records the conversations of the tests.
package released
