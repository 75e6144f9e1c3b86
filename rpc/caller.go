package rpc

import "context"

// A Caller makes calls to one peer: a transport.Client, over RDMA or TCP, a transport.Group of them, a [Conn] or a
// transport.Backchannel. Code that makes the calls of a program, such as generated code, accepts a Caller and runs over
// any of them.
//
// Call makes one call and waits for its reply. For all Callers:
//
//   - the Call and everything it points to belong to the Caller until Call returns, for whatever reason, and to the
//     calling goroutine afterwards. Results and Reply are valid until the Call is used again. A Call is used by one
//     goroutine at a time; Call itself may be called by many goroutines, each with a different Call;
//   - the data of ReadItems is sent in place;
//   - the data of WriteItems may be returned in their Buf, if Chunked is set, or inline in Results, as over TCP.
//     [ResultDecoder.Item] finds it in either place and leaves it in Buf. MaxResults and the lengths of the Bufs bound
//     the reply;
//   - when ctx ends, so does the wait, and the call may have been executed. Whether its connection survives depends on
//     the Caller;
//   - in an Inline handler, Call returns an error: see [Program].Inline;
//   - an *oncrpc.RPCError is the peer's answer that it did not execute the call. After the connection has ended, errors
//     are net.ErrClosed; a *LostError reports whether the call may have been executed.
//
// transport.Client.Call lists all errors.
type Caller interface {
	Call(ctx context.Context, call *Call) error
}

// A CallerFunc is a Caller that consists of one function. Client middleware is a func(Caller) Caller. It returns a
// Caller that does something before and after it calls the inner one, and is passed to code that accepts a Caller, such
// as generated clients. It may make a different Call than the one it received, as long as it keeps the promises of Call
// for the one it received.
type CallerFunc func(ctx context.Context, call *Call) error

// Call calls f.
func (f CallerFunc) Call(ctx context.Context, call *Call) error { return f(ctx, call) }
