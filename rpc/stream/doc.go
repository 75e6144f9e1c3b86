// Package stream carries the results of streaming procedures: those marked with the comment stream in their .x file.
//
// The client's method returns an iterator, and the server's method gets a [Sender]. A stream uses calls in both
// directions on one connection: the procedure itself opens the stream and returns at once, and the server calls the
// client with results as they become available, several in one call. So a stream costs the server one goroutine, the
// handler's. While it is idle it uses none of the connection's credits.
//
// A stream has a window: the number of results that the client has room for. A server with more results waits, or drops
// results; the client then learns how many were dropped. A client that does not read one stream delays no other stream.
//
// When the connection is lost, the iterator opens the stream again on the next one, and returns a [GapError]. The
// program has to find out in another way what it missed.
//
// A transport.Client has streams if ClientConfig.Streams is set.
package stream
