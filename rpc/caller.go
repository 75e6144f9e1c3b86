package rpc

import "context"

// A Caller makes calls to one peer: a transport.Client, over RDMA or TCP, a transport.Group of them,
// a [Conn] or a transport.Backchannel. Code that makes the calls of a program, such as generated
// code, has a Caller as a parameter and runs over any of them.
//
// Call makes one call and waits for its reply. For all Callers:
//
//   - the Call and all that it points to belong to the Caller until Call returns, for
//     whatever reason, and to the goroutine that has made it from then on. Results and Reply
//     are valid until the Call is used again. A Call is used by one goroutine at a time; Call
//     itself may be called by many, with different ones;
//   - the data of ReadItems is sent from where it is;
//   - the data of WriteItems may come back in their Buf, if Chunked is set, or inline in
//     Results, as it does over TCP: [ResultDecoder.Item] finds it in either place and leaves it
//     in Buf. MaxResults and the lengths of the Bufs bound the reply;
//   - the end of ctx ends the wait: then the call may have been executed. Whether its
//     connection lives on is the Caller's to say;
//   - a handler that is Inline gets an error: see [Program].Inline;
//   - an *oncrpc.RPCError is the peer's answer that it did not execute the call. After the end
//     of the connection errors are net.ErrClosed; a *LostError reports whether the call may have
//     been executed.
//
// transport.Client.Call has the whole list of errors.
type Caller interface {
	Call(ctx context.Context, call *Call) error
}

// A CallerFunc is a Caller that consists of one function. A client's middleware is a func(Caller)
// Caller: it returns one that does something before and after it calls the other, and replaces it for
// code with a Caller as a parameter, such as generated clients. It may make another Call of the one
// that it gets, if it then keeps the promises of Call for the one that it got.
type CallerFunc func(ctx context.Context, call *Call) error

// Call calls f.
func (f CallerFunc) Call(ctx context.Context, call *Call) error { return f(ctx, call) }
