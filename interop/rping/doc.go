// Package rping speaks the protocol of rping(1), the ping-pong program that
// comes with rdma-core, on any fabric.Provider. It is the smallest peer that
// others have written which uses Send, RDMA Read and RDMA Write together, on
// every kind of RDMA device, so it is what an adapter is tried with first.
//
// A ping is a line of text in a buffer of the client, which the server fetches
// and puts back into another buffer of the client:
//
//	client                                      server
//	   | -- Send: here is a text ----------------> |
//	   | <------------------ RDMA Read of the text |
//	   | <-------------------------- Send: go on - |
//	   | -- Send: here is room for the echo -----> |
//	   | <----------------- RDMA Write of the echo |
//	   | <-------------------------- Send: go on - |
//
// Every message is 16 bytes long, the server's without meaning. There is no
// private data and no flow control: each side has one receive posted, posts the
// next before it sends, and is sent nothing before it has sent itself. The
// client disconnects when it has had enough.
//
// A [Client] pings, a [Server] answers one client. Both return errors that wrap
// the *fabric.ConnError of a connection that ended too early.
package rping
