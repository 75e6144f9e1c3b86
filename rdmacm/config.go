package rdmacm

import (
	"errors"
	"fmt"
	"log/slog"
	"time"
)

// ErrNotBuilt is returned by New if the program was built without cgo, or for a system without rdma-core.
var ErrNotBuilt = errors.New("rdmacm: this program was built without rdma-core, which needs cgo and Linux: use the iwarp provider")

// A WaitMode is how a connection's Wait waits for completions.
type WaitMode uint8

const (
	// WaitAdaptive either polls for up to 200 microseconds before it waits for an event, or waits for an event at once,
	// whichever has recently taken less time on this connection. From time to time it tries the other way. Between
	// polls it yields to other goroutines and processes.
	WaitAdaptive WaitMode = iota
	// WaitEvent waits for an event of the device at once.
	WaitEvent
	// WaitPoll polls all the time. It occupies one processor for each waiting connection.
	WaitPoll
)

// String returns the name of the mode, as used in command options.
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

// Config configures a provider. The zero value suits most programs.
type Config struct {
	// Wait selects how connections wait for completions.
	Wait WaitMode

	// SharedCQ, if not 0, makes the connections of a device share completion queues of
	// this many entries each. A connection that polls or waits then makes progress for
	// all connections of its queue.
	SharedCQ int

	// MaxInline is the maximum size in bytes of messages that are copied into the work request instead of being fetched
	// by the device. The device may have a lower limit. Default 220; negative means no limit.
	MaxInline int

	// UnsafeWindows enables memory windows on rxe, where they do not protect memory. An access in progress continues
	// after the invalidation. In Linux 6.1, moreover, accesses are not confined to the window, the peer of another
	// connection can invalidate it, and a second invalidation crashes the kernel. Without windows memory is registered
	// for each call.
	UnsafeWindows bool

	// RetryCount is how often the device retransmits packets that the peer does not acknowledge, 1 to 7, default 7.
	// RNRRetryCount is how often it retransmits when the peer has no receive posted; 7, the default, means no limit.
	// iWARP has neither.
	RetryCount, RNRRetryCount int

	// AckTimeout is the exponent of the time that the device waits for an
	// acknowledgement, 4.096 us * 2^AckTimeout. 0 lets the connection manager
	// choose.
	AckTimeout uint8

	// TOS is the type of service (RFC 2474) of outgoing connections.
	TOS uint8

	// Backlog is the maximum number of connection requests that the kernel queues. Default 128.
	Backlog int

	// ResolveTimeout bounds the kernel's resolution of the peer's address, and of the
	// route to it. Default 2 seconds.
	ResolveTimeout time.Duration

	// Logger logs problems that no call returns, such as a connection request that could not be served. Default:
	// slog.Default().
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
		return c, fmt.Errorf("rdmacm: Config.RetryCount is %d, want 1 to 7", c.RetryCount)
	case c.RNRRetryCount < 0 || c.RNRRetryCount > 7:
		return c, fmt.Errorf("rdmacm: Config.RNRRetryCount is %d, want 1 to 7", c.RNRRetryCount)
	case c.AckTimeout > 31:
		return c, fmt.Errorf("rdmacm: Config.AckTimeout is %d, want at most 31", c.AckTimeout)
	case c.SharedCQ < 0:
		return c, fmt.Errorf("rdmacm: Config.SharedCQ is %d, want at least 0", c.SharedCQ)
	}
	return c, nil
}
