package shm

import (
	"fmt"
	"time"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/iwarp"
)

const name = "shm"

// Defaults of Config.
const (
	DefaultRing           = 1 << 20
	DefaultArena          = 4 << 20
	DefaultRequestTimeout = 10 * time.Second
	DefaultReplyTimeout   = 5 * time.Second
	DefaultBacklog        = 128

	// MinRing and MaxRing bound the rings of both ends, in bytes.
	MinRing = 64 << 10
	MaxRing = 64 << 20

	// MaxArena bounds their arenas.
	MaxArena = 1 << 30
)

// Config configures a Provider. The zero value is valid.
type Config struct {
	// Ring is the maximum number of bytes that have been sent and not yet been taken by the peer: a power of two.
	// Memory of that size becomes resident as it is used, for each connection and direction.
	Ring int

	// Arena is the number of bytes of bulk results, per connection, that a server keeps where its client can copy them
	// from: memory from Response.Alloc of package rpc is there while there is room. That client can read it at all
	// times. Memory that has been used stays resident until the connection ends. With a negative value there is no
	// arena, and results go through the ring.
	Arena int

	// RequestTimeout bounds the time in which a program that has connected must send its request.
	RequestTimeout time.Duration

	// ReplyTimeout bounds how long Connect waits for the peer to accept.
	ReplyTimeout time.Duration

	// Backlog bounds the connection requests of a Listener that wait for Accept, and the connections that have not sent
	// a request. Further requests are rejected; a further connection replaces the oldest.
	Backlog int
}

func (c Config) withDefaults() Config {
	if c.Ring == 0 {
		c.Ring = DefaultRing
	}
	if c.Arena == 0 {
		c.Arena = DefaultArena
	}
	if c.RequestTimeout <= 0 {
		c.RequestTimeout = DefaultRequestTimeout
	}
	if c.ReplyTimeout <= 0 {
		c.ReplyTimeout = DefaultReplyTimeout
	}
	if c.Backlog <= 0 {
		c.Backlog = DefaultBacklog
	}
	return c
}

// A Provider makes connections over shared memory. It must not be copied. Use New to make one.
type Provider struct {
	cfg    Config
	engine *iwarp.Engine
	state
}

var _ fabric.Provider = (*Provider)(nil)

// setupError is a failure that concerns addr.
func setupError(addr, reason string, err error) error {
	return &iwarp.SetupError{Provider: name, Addr: addr, Reason: reason, Err: err}
}

// New returns a Provider. It opens nothing until it is used.
func New(cfg Config) *Provider {
	return &Provider{cfg: cfg.withDefaults(), engine: iwarp.NewEngine(name)}
}

// Name implements fabric.Provider.
func (p *Provider) Name() string { return name }

// Private implements fabric.Private: connections do not leave the machine.
func (p *Provider) Private() bool { return true }

// checkMemory refuses other sizes than Config allows.
func (p *Provider) checkMemory() error {
	lacks := ""
	if n := p.cfg.Ring; n < MinRing || n > MaxRing || n&(n-1) != 0 {
		lacks = fmt.Sprintf("ring of %d bytes (a power of two from %d to %d)", n, MinRing, MaxRing)
	} else if n := p.cfg.Arena; n > MaxArena {
		lacks = fmt.Sprintf("arena of %d bytes (up to %d)", n, MaxArena)
	}
	if lacks != "" {
		return &fabric.CapabilityError{Provider: name, Capability: lacks}
	}
	return nil
}

// OpenObjects counts the objects of a Provider that have not been closed.
type OpenObjects struct {
	Conns      int // connections, including those being set up
	Listeners  int
	MRs        int // memory regions
	MWs        int // memory windows
	Handshakes int // programs that have connected and not sent a request
}

// An Addr is the address of one end. For the peer's address, the kernel vouches for everything except the name
// (SO_PEERCRED in unix(7)): it describes the process that connected, or that began to listen.
type Addr struct {
	Name string // the address that it listens on, if it does
	PID  int    // 0: not a process in this PID namespace
	UID  uint32 // 4294967295, which is no user: not reported by the system; the same for GID
	GID  uint32
}

// Network implements net.Addr. It returns "unix".
func (a Addr) Network() string { return "unix" }

// Process implements fabric.ProcessAddr.
func (a Addr) Process() (p fabric.Process, ok bool) {
	return fabric.Process{PID: a.PID, UID: a.UID, GID: a.GID}, a.UID != noID
}

const noID = 1<<32 - 1

// String implements net.Addr. It returns the name, or else the process.
func (a Addr) String() string {
	if a.Name != "" && a.Name != "@" {
		return a.Name
	}
	return fmt.Sprintf("pid %d of uid %d", a.PID, a.UID)
}
