package transport

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/rpcrdma"
)

// Which version of the protocol a connection speaks (version two section 5).
//
// A client that wants version 2 begins with a call of version 2: one that states its
// properties, or NULL if it has none to state. The message is short enough for servers of
// version 1, and if the answer is lost it does not matter whether the call was executed. A
// server of version 2 answers in version 2. A server of version 1 answers ERR_VERS, and the
// connection continues in version 1; or it does not answer, or closes the connection, and a new
// connection begins with version 1. The client remembers for some time that a server speaks only
// version 1. A server that has spoken version 2 before and closes the connection may be
// starting: it is asked again.
//
// A server speaks the version of the first call on a connection. It answers calls of another
// version, which a client should not make, in their version.
//
// A Send of version 2 has up to 4096 bytes, or what private data has agreed on if that is
// more. Receives have that size from the start, so thresholds can change without loss. Version
// 2 has no Send with Invalidate. The properties of docs/extensions.md add it, as well as sizes
// that do not fit private data.

// A Version says which versions of RPC-over-RDMA one end speaks.
type Version uint8

const (
	// VersionAuto is version 2 if the peer speaks it, else version 1.
	VersionAuto Version = iota
	// Version1 is only version 1.
	Version1
	// Version2 is only version 2: connections to other peers fail.
	Version2
)

// String returns the name that the command's options use: "auto", "1" or "2".
func (v Version) String() string {
	switch v {
	case Version1:
		return "1"
	case Version2:
		return "2"
	}
	return "auto"
}

// settleVersions derives and checks the settings that depend on the version.
func (c *config) settleVersions(owner string) error {
	c.sendSize, c.recvSize = c.InlineSend, c.InlineRecv
	if c.RFC5666 != nil {
		if c.Version == Version2 {
			return fmt.Errorf("transport: %s.RFC5666 is about version 1, and Version is Version2", owner)
		}
	}
	r := rpcrdma.Range{Low: rpcrdma.Version1, High: rpcrdma.Version2}
	switch c.Version {
	case Version1:
		r.High = rpcrdma.Version1
	case Version2:
		r.Low = rpcrdma.Version2
	case VersionAuto:
	default:
		return fmt.Errorf("transport: %s.Version is %d, want VersionAuto, Version1 or Version2", owner, c.Version)
	}
	c.Limits.Versions = r
	if c.Version != Version1 {
		c.sendSize, c.recvSize = max(c.sendSize, rpcrdma.DefaultInline2), max(c.recvSize, rpcrdma.DefaultInline2)
	}
	for i := range c.Operations {
		o := &c.Operations[i]
		if o.IsAnswer == nil || o.Type == rpcrdma.OptProperties {
			return fmt.Errorf("transport: operation %#x has no IsAnswer, or is the transport's own", o.Type)
		}
	}
	return nil
}

// A VersionCache remembers for some time which servers speak only version 1. Clients may
// share it.
type VersionCache struct {
	lifetime time.Duration
	mu       sync.Mutex
	until    map[string]time.Time
}

// NewVersionCache returns an empty cache that keeps entries for the given time; zero means an
// hour. A server that has been upgraded may be used in version 1 for that long.
func NewVersionCache(lifetime time.Duration) *VersionCache {
	if lifetime == 0 {
		lifetime = time.Hour
	}
	return &VersionCache{lifetime: lifetime, until: make(map[string]time.Time)}
}

// maxVersions is the most entries of a cache. Each one that is dropped costs a round trip.
const maxVersions = 4096

func (v *VersionCache) note(key string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if len(v.until) >= maxVersions {
		clear(v.until)
	}
	v.until[key] = time.Now().Add(v.lifetime)
}

func (v *VersionCache) has(key string) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	until, ok := v.until[key]
	if ok && time.Now().After(until) {
		delete(v.until, key)
		ok = false
	}
	return ok
}

func (v *VersionCache) forget(key string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	delete(v.until, key)
}

// A VersionError says that a client and its server have no version in common. Another
// attempt would not help.
type VersionError struct {
	Addr      string
	Low, High uint32 // what the server says it speaks
	Reason    error  // what it did instead of answering; nil: it did answer
}

func (e *VersionError) Error() string {
	if e.Reason != nil {
		return fmt.Sprintf("%s does not answer version 2 of RPC-over-RDMA: %v", e.Addr, e.Reason)
	}
	return fmt.Sprintf("%s refuses our versions of RPC-over-RDMA, and speaks versions %d to %d", e.Addr, e.Low, e.High)
}

func (e *VersionError) Unwrap() error { return e.Reason }

// An unheardError says why the first message of version 2 got no answer.
type unheardError struct {
	err   error
	brief bool // it was not waited for long: that says little about the server
}

func (e *unheardError) Error() string { return "no answer to version 2: " + e.err.Error() }
func (e *unheardError) Unwrap() error { return e.err }

// ---- client

const (
	// versionPatience is how long a client waits for the answer to its first message of
	// version 2.
	versionPatience = 5 * time.Second

	// versionTrust is how many connections in a row may be lost after that message before a
	// server that has spoken version 2 counts as one of version 1. Until then it is assumed
	// to be starting.
	versionTrust = 3

	// versionAsks is how often the version is negotiated anew for one call that is refused
	// for its version. Each negotiation may take versionTrust connections or more.
	versionAsks = 2
)

func (cl *Client) versionKey() string { return cl.provider.Name() + " " + cl.addr }

// firstVersion is the version of the first message on a new connection.
func (cl *Client) firstVersion() uint32 {
	switch v := cl.cfg.Version; {
	case v == Version2:
		return rpcrdma.Version2
	case v == Version1 || cl.cfg.RFC5666 != nil || cl.versions.has(cl.versionKey()):
		return rpcrdma.Version1
	}
	return rpcrdma.Version2
}

// negotiate finds out which version the server speaks. Nobody else uses the connection yet.
func (cl *Client) negotiate(ctx context.Context, c *conn) error {
	if c.version() == rpcrdma.Version1 {
		return nil
	}
	patience := versionPatience
	if end, ok := ctx.Deadline(); ok {
		patience = min(patience, time.Until(end)/2) // leaves time for version 1
	}
	short, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	own := c.properties(rpcrdma.PropOffer)
	tells := own.RemoteInvalidation || own.SendSize > rpcrdma.DefaultInline2 || own.RecvSize > rpcrdma.DefaultInline2
	call := Call{Prog: rpcrdma.ConfigProgram, Vers: rpcrdma.ConfigVersion} // any will do
	if tells {
		call = Call{
			Prog: rpcrdma.PropProgram, Vers: rpcrdma.PropVersion, Proc: rpcrdma.ProcPropExchange,
			Args: rpcrdma.AppendProperties(nil, own), MaxResults: rpcrdma.PropertiesSize,
		}
	}
	err := c.call(short, &call)
	var rpc *oncrpc.RPCError
	var refused *RDMAError
	var senseless *BadReplyError
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err == nil || errors.As(err, &rpc),
		errors.As(err, &refused) && refused.Code != rpcrdma.ErrVers && call.replied == rpcrdma.Version2:
		// An error in version 2 is about the call, lack of memory for example: the server
		// speaks version 2.
		if call.replied != rpcrdma.Version2 {
			return cl.version1(c, rpcrdma.Version1, rpcrdma.Version1)
		}
		cl.trust.Store(versionTrust)
		c.useVersion2()
		switch {
		case !tells:
			return nil
		case err == nil:
			c.takeProperties(own, call.Results)
			return nil
		}
		offer, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		err = c.offerProperties(offer, own)
		if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
			cl.trust.Store(0) // version 2 demands an answer, if only an error
			return &unheardError{err: err}
		}
		return err
	case errors.As(err, &refused) && refused.Code == rpcrdma.ErrVers:
		return cl.version1(c, refused.VersLow, refused.VersHigh)
	case errors.As(err, &refused), errors.As(err, &senseless):
		// The server takes the message for a malformed one of version 1.
		return cl.version1(c, rpcrdma.Version1, rpcrdma.Version1)
	case errors.Is(err, net.ErrClosed):
		return &unheardError{err: err}
	case errors.Is(err, context.DeadlineExceeded):
		return &unheardError{err: err, brief: patience < versionPatience/2}
	}
	return err
}

// version1 continues with version 1, if both ends speak it.
func (cl *Client) version1(c *conn, low, high uint32) error {
	if low > rpcrdma.Version1 || high < rpcrdma.Version1 || cl.cfg.Version == Version2 {
		return &VersionError{Addr: cl.addr, Low: low, High: high}
	}
	cl.versions.note(cl.versionKey())
	c.agreed.version.Store(rpcrdma.Version1)
	return nil
}

// outdated reports whether a server that refuses a call of version 1 speaks version 2, and was
// away or starting when it was asked. It then ends the connection, and the next one begins with
// version 2, as with any server that has spoken it: versionTrust more connections may be lost
// after the first message before version 1 is tried again. The call has not been executed.
func (cl *Client) outdated(c *conn, err error) bool {
	var refused *RDMAError
	if !errors.As(err, &refused) || refused.Code != rpcrdma.ErrVers || refused.Vers != rpcrdma.Version1 ||
		refused.VersLow > rpcrdma.Version2 || refused.VersHigh < rpcrdma.Version2 ||
		cl.cfg.Version != VersionAuto || cl.cfg.RFC5666 != nil || cl.cfg.NoReconnect {
		return false
	}
	cl.versions.forget(cl.versionKey())
	cl.trust.Store(versionTrust)
	// This end breaks off instead of closing in order, so that pauses grow if it happens again.
	c.breakOff(errOutdated)
	c.await(context.Background(), newWaiter())
	<-c.done
	return true
}

// offerProperties offers properties by the optional operation, to a server of version 2 that
// does not know the procedure and may be older. See docs/extensions.md.
func (c *conn) offerProperties(ctx context.Context, own rpcrdma.Properties) error {
	op := operation{Optional: Optional{Type: rpcrdma.OptProperties, Info: rpcrdma.AppendProperties(nil, own)}, answers: isPropertiesAnswer}
	err := c.call(ctx, &Call{op: &op})
	var refused *RDMAError
	if errors.As(err, &refused) {
		return nil // nor does it know the operation
	}
	if err != nil {
		return err
	}
	if len(op.answer.Payload) == 0 {
		c.takeProperties(own, op.answer.Info)
	}
	return nil
}

// takeProperties applies the answer to this end's offer. Anything but an acceptance changes
// nothing.
func (c *conn) takeProperties(own rpcrdma.Properties, info []byte) {
	if p, err := rpcrdma.ConsumeProperties(info); err == nil && p.Dir == rpcrdma.PropAccept {
		c.useProperties(own, p)
	}
}

// isPropertiesAnswer reports whether info may answer an offer: anything that is no offer does.
func isPropertiesAnswer(info []byte) bool {
	p, _ := rpcrdma.ConsumeProperties(info)
	return p.Dir != rpcrdma.PropOffer
}

// lateProperties reports whether a message that belongs to no offer is an answer. It is then
// dropped; a message that is neither an answer nor an offer is rejected.
func lateProperties(info []byte) bool {
	p, _ := rpcrdma.ConsumeProperties(info)
	return p.Dir == rpcrdma.PropAccept || p.Dir == rpcrdma.PropReject
}

// ---- server

// settleVersion sets the version of the connection to that of the client's first message.
func (l *leader) settleVersion(h *rpcrdma.Header) {
	switch {
	case h.Proc == rpcrdma.ProcError: // an answer to nothing
	case h.Vers == rpcrdma.Version2:
		l.c.useVersion2()
	default:
		l.c.agreed.version.Store(rpcrdma.Version1)
	}
}

// takeOffer answers an offer that came as an optional operation. more says that an RPC message
// follows the properties, which is an error.
func (l *leader) takeOffer(x *exch, more bool) {
	offer, own := l.judge(x, x.hdr.OptInfo, more)
	x.answerOperation(l, Optional{Type: rpcrdma.OptProperties, Info: rpcrdma.AppendProperties(nil, own)})
	l.accepted(own, offer)
}

// exchange answers a call of the properties program with arguments args.
func (l *leader) exchange(x *exch, args []byte) {
	if !x.asks(l, rpcrdma.PropVersion, rpcrdma.ProcPropExchange) {
		return
	}
	offer, own := l.judge(x, args, false)
	x.reply(l, rpcrdma.AppendProperties(x.results(), own))
	l.accepted(own, offer)
}

// judge decodes an offer and decides on the answer.
func (l *leader) judge(x *exch, info []byte, more bool) (offer, answer rpcrdma.Properties) {
	c := l.c
	offer, err := rpcrdma.ConsumeProperties(info)
	switch {
	case err != nil || more || offer.Dir != rpcrdma.PropOffer:
		return offer, rpcrdma.Properties{Dir: rpcrdma.PropReject, Reason: rpcrdma.PropMalformed}
	case c.role == roleClient || l.offered || !l.alone(x):
		return offer, rpcrdma.Properties{Dir: rpcrdma.PropReject, Reason: rpcrdma.PropNotNow}
	}
	return offer, c.properties(rpcrdma.PropAccept)
}

// accepted applies an offer after its answer has been sent, if that was an acceptance: it holds
// from the next message on.
func (l *leader) accepted(answer, offer rpcrdma.Properties) {
	if answer.Dir == rpcrdma.PropAccept {
		l.offered = true
		l.c.useProperties(answer, offer)
	}
}
