// Package rping implements the protocol of rping(1), the ping-pong program of rdma-core, on
// any fabric.Provider. rping is the smallest independent peer that uses Send, RDMA Read and
// RDMA Write on every kind of RDMA device, so it is the first interoperability test of an
// adapter.
//
// A ping is a text in a buffer of the client, which the server reads and writes back to
// another buffer of the client:
//
//	client                                      server
//	   | -- Send: here is a text ----------------> |
//	   | <------------------ RDMA Read of the text |
//	   | <-------------------------- Send: go on - |
//	   | -- Send: here is room for the echo -----> |
//	   | <----------------- RDMA Write of the echo |
//	   | <-------------------------- Send: go on - |
//
// Every message is 16 bytes long; the content of the server's messages is undefined. There is
// no private data and no flow control: each side has one receive posted, posts the next before
// it sends, and the sides send in turn. The client disconnects at the end.
//
// A [Client] pings, a [Server] answers one client. Both return errors that wrap
// the *fabric.ConnError of a connection that ended too early.
package rping
