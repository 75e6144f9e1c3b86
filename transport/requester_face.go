package transport

import "context"

// A Requester is a client's end, with all of its connections to a server: a [Client], which has
// one, or a [Group], which has several. [Client] says what the methods do.
type Requester interface {
	Caller

	// As those of [Client].
	Null(ctx context.Context, prog, vers uint32) error
	RegisterMemory(mem []byte) (*Memory, error)
	Info() ConnInfo
	Stats() Stats
	Shutdown(ctx context.Context) error
	Close() error
	Done() <-chan struct{}
	Err() error
}

var (
	_ Requester = (*Client)(nil)
	_ Requester = (*Group)(nil)

	_ Caller = (*Conn)(nil)
	_ Caller = (*Backchannel)(nil)
)
