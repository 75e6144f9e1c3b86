// Package rpc is the vocabulary of ONC RPC programs (RFC 5531) over RDMA and TCP: what a client calls
// with, what a server's handlers see, and what wraps either. It moves nothing itself: package transport
// does. Code that declares programs, handlers, middleware or observers, such as what command xdrgen
// generates, needs this package alone.
//
//   - A [Call] is made with a [Caller].
//   - A [Program] is executed by a server. Its [Handler] gets a [Request] and fills a [Response]; a
//     [Binding] says which data may travel as chunks; a [Middleware] wraps handlers.
//   - A [Conn] is the connection of a call, and the way back to the client.
//   - An [Observer] sees connections and calls begin and end.
//   - Errors have types, with what is known as their fields.
//
// Arrived, Answering, PeerOf and StateOf are for transports.
package rpc
