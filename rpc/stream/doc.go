// Package stream carries the results of a procedure that streams them: one that is marked with the comment
// stream in its .x file.
//
// The client's method returns an iterator, and the server's has a [Sender]. Between them are calls in both
// directions on one connection: the procedure itself opens the stream and returns at once, and the server
// calls the client with results as they come, several in one call. So a stream costs a server a goroutine,
// the handler's, and the connection none of its credits while nothing happens on it.
//
// A stream has a window: results that the client has room for. A server that has more to send waits, or
// drops what it does not want to wait for; then the client learns how many were dropped. A client that
// does not read delays no other stream.
//
// When the connection is lost, the iterator opens the stream again on the next one, and returns a
// [GapError]: what happened meanwhile has to be found out in another way.
//
// A transport.Client has streams if ClientConfig.Streams is set.
package stream
