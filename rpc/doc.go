// Package rpc defines the types of ONC RPC programs (RFC 5531) over RDMA and TCP: the calls of clients, the requests
// and responses of handlers, and their wrappers. It does no I/O: package transport does. Code that declares programs,
// handlers, middleware or observers, such as the output of command xdrgen, needs only this package.
//
//   - A [Call] is made with a [Caller].
//   - A [Program] is executed by a server. Its [Handler] gets a [Request] and fills in a [Response]; a [Binding]
//     determines which data may travel as chunks; a [Middleware] wraps handlers.
//   - A [Conn] is the connection of a call, and the way back to the client.
//   - An [Observer] is notified when connections and calls begin and end.
//   - Errors are typed, with details in their fields.
//
// Arrived, Answering, PeerOf and StateOf are for transports.
package rpc
