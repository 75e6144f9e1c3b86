// Package notify is an RPC program that reports changes in a directory to clients, by
// calls from the server to the client over the connection that the client has made
// (RFC 8167). A [Server] takes the changes from a [Source], a [Client] receives them, and
// no change is lost silently: an overflow event replaces those that could not be delivered.
//
// The numbers of the programs are from the range that RFC 5531 section 13.1 leaves to
// users. The file notify.x has the programs in the language of RFC 5531 section 12: the
// server's RPCRDMA_NOTIFY with SUBSCRIBE and UNSUBSCRIBE, and the client's
// RPCRDMA_NOTIFIED with NOTIFY.
//
// A client must have the second program before it subscribes, and calls may arrive before
// the reply to SUBSCRIBE. Each subscription has at most one NOTIFY in flight. Changes are
// queued meanwhile: several changes of a file's contents become one event, and a single
// OVERFLOW replaces a queue that has become too long. So a slow client costs the server a
// bounded amount of memory, and learns that it has to look for itself.
//
// A client that loses its connection makes another one and subscribes again with its
// token; the holder of the token is the client. A NOTIFY without a reply is sent again, and
// the queue follows. The server forgets a client that is away for longer than the grace
// period, or that leaves a call unanswered for so long. Its token is then unknown, it gets
// a new subscription, and has to look for itself.
package notify
