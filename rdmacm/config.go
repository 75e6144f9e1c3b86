package rdmacm

import (
	"errors"
	"fmt"
	"log/slog"
	"time"
)

// ErrNotBuilt is returned by New in a program that was built without cgo, or for a
// system without rdma-core.
var ErrNotBuilt = errors.New("rdmacm: this program was built without rdma-core (cgo on Linux): only the iwarp provider is there")

// A WaitMode is how Wait of a connection waits for completions.
type WaitMode uint8

const (
	// WaitAdaptive polls, at most 200 microseconds for each wait, or waits for an event
	// at once: what has taken less time lately, on this connection. Now and then it
	// tries the other one. It gives way to other goroutines and other processes
	// between polls.
	WaitAdaptive WaitMode = iota
	// WaitEvent waits for an event from the device at once.
	WaitEvent
	// WaitPoll polls without end, one processor for each connection that is waited on.
	WaitPoll
)

// String is the mode's name, as in a command line's option.
func (m WaitMode) String() string {
	switch m {
	case WaitAdaptive:
		return "adaptive"
	case WaitEvent:
		return "event"
	case WaitPoll:
		return "poll"
	}
	return fmt.Sprintf("mode %d", uint8(m))
}

// Config sets up a provider. The zero value is what most programs want.
type Config struct {
	// Wait is how connections wait for completions.
	Wait WaitMode

	// SharedCQ has connections of a device share completion queues of this many
	// entries each; 0 gives each connection its own. With one queue for many
	// connections whoever waits moves all of them.
	SharedCQ int

	// MaxInline is how many bytes of a message are copied into the work request
	// instead of being fetched by the device, as far as it can. Default 220,
	// negative for none.
	MaxInline int

	// UnsafeWindows uses memory windows also on a device whose windows are known
	// not to protect memory: rxe, where an access under way goes on behind the
	// invalidation and, in Linux 6.1, a window does not hold its bounds, another
	// connection's peer can invalidate it, and a second invalidation crashes the
	// kernel. Without them memory is registered for each call.
	UnsafeWindows bool

	// RetryCount is how often the device sends again what the peer does not
	// acknowledge, 1 to 7. Default 7. RNRRetryCount likewise for a peer that has
	// no receive posted; 7, the default, is for ever. iWARP has neither.
	RetryCount, RNRRetryCount int

	// AckTimeout is the exponent of the time that the device waits for an
	// acknowledgement, 4.096 us * 2^AckTimeout. 0 lets the connection manager
	// choose.
	AckTimeout uint8

	// TOS is the type of service (RFC 2474) of outgoing connections.
	TOS uint8

	// Backlog is how many connection requests wait in the kernel. Default 128.
	Backlog int

	// ResolveTimeout bounds the kernel's search for the peer's address and route,
	// each. Default 2 seconds.
	ResolveTimeout time.Duration

	// Logger gets what concerns no caller, such as a connection request that
	// could not be served. Default: slog.Default().
	Logger *slog.Logger
}

func (c Config) withDefaults() (Config, error) {
	if c.MaxInline == 0 {
		c.MaxInline = 220
	}
	c.MaxInline = max(c.MaxInline, 0)
	if c.RetryCount == 0 {
		c.RetryCount = 7
	}
	if c.RNRRetryCount == 0 {
		c.RNRRetryCount = 7
	}
	if c.Backlog == 0 {
		c.Backlog = 128
	}
	if c.ResolveTimeout == 0 {
		c.ResolveTimeout = 2 * time.Second
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	switch {
	case c.RetryCount < 0 || c.RetryCount > 7:
		return c, fmt.Errorf("rdmacm: Config.RetryCount is %d, it goes from 1 to 7", c.RetryCount)
	case c.RNRRetryCount < 0 || c.RNRRetryCount > 7:
		return c, fmt.Errorf("rdmacm: Config.RNRRetryCount is %d, it goes from 1 to 7", c.RNRRetryCount)
	case c.AckTimeout > 31:
		return c, fmt.Errorf("rdmacm: Config.AckTimeout is %d, it goes up to 31", c.AckTimeout)
	case c.SharedCQ < 0:
		return c, fmt.Errorf("rdmacm: Config.SharedCQ is %d", c.SharedCQ)
	}
	return c, nil
}
