// Package notify is an RPC program that streams changes in a directory: see package rpc/stream. A [Server] gets the
// changes from a [Source].
//
// No change is lost silently. Several changes of a file's contents that wait for the client become one event, and a
// single event of kind [Overflow] replaces a queue that has become too long. A slow client therefore costs the server a
// bounded amount of memory, and learns that it has to read the directory again. The same applies after a [stream.GapError]: a
// client that loses its connection watches again over the next one, and must read again.
package notify
