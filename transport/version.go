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
// A client that wants version 2 begins with a call in it: one that tells its properties, or
// NULL if there is nothing to tell. The message is short enough for servers of version 1, and
// whether it has been executed does not matter should the answer be lost. A server of version 2
// answers in kind. One of version 1 answers ERR_VERS, and the connection goes on in version 1; or
// says nothing, or hangs up, and a new connection begins with version 1. That a server speaks
// version 1 alone is remembered for a while. One that has spoken version 2 before may be starting
// when it hangs up, and is asked again.
//
// A server speaks the version of the first call that comes, and answers others, should there
// be such, in theirs.
//
// Version 2 takes 4096 bytes in one Send, or what private data has agreed on if that is
// more. Receives are that long from the start: thresholds change without a loss. Send with
// Invalidate is not in version 2. It comes back, as do sizes that private data could not
// tell, with the properties of docs/extensions.md.

// A Version is what versions of RPC-over-RDMA one end speaks.
type Version uint8

const (
	// VersionAuto is version 2 if the peer speaks it, else version 1.
	VersionAuto Version = iota
	// Version1 is version 1 alone.
	Version1
	// Version2 is version 2 alone: with other peers there are no connections.
	Version2
)

// String returns what the command's options call it.
func (v Version) String() string {
	switch v {
	case Version1:
		return "1"
	case Version2:
		return "2"
	}
	return "auto"
}

// settleVersions derives what depends on the version.
func (c *Config) settleVersions() error {
	c.sendSize, c.recvSize = c.InlineSend, c.InlineRecv
	if c.RFC5666 != nil {
		if c.Version == Version2 {
			return errors.New("transport: Config.RFC5666 is about version 1, and Version is Version2")
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
		return fmt.Errorf("transport: Config.Version is %d, want VersionAuto, Version1 or Version2", c.Version)
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

// A VersionCache remembers for a time which servers speak version 1 alone. Clients may
// share it.
type VersionCache struct {
	lifetime time.Duration
	mu       sync.Mutex
	until    map[string]time.Time
}

// NewVersionCache returns an empty cache. Zero lifetime is an hour: so long may it take until
// a server that has been upgraded is asked again.
func NewVersionCache(lifetime time.Duration) *VersionCache {
	if lifetime == 0 {
		lifetime = time.Hour
	}
	return &VersionCache{lifetime: lifetime, until: make(map[string]time.Time)}
}

// maxVersions bounds a cache; what it forgets costs a round trip.
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

// A VersionError says that a client and its server have no version in common. It is
// permanent.
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

// An unheardError is why the first message of version 2 got no answer.
type unheardError struct {
	err   error
	brief bool // it was not waited for long: that says little about the server
}

func (e *unheardError) Error() string { return "no answer to version 2: " + e.err.Error() }
func (e *unheardError) Unwrap() error { return e.err }

// ---- client

const (
	// versionPatience is how long the answer to the first message of version 2 may take.
	versionPatience = 5 * time.Second

	// versionTrust is how many connections in a row may be lost over that message before a
	// server that has spoken version 2 counts as one that does not: rather it is starting.
	versionTrust = 3

	// versionAsks is how often a call that is refused for its version has the server asked for
	// its version anew. Each time may take versionTrust connections and more.
	versionAsks = 2
)

func (cl *Client) versionKey() string { return cl.provider.Name() + " " + cl.addr }

// firstVersion is what the first message of a new connection is to be.
func (cl *Client) firstVersion() uint32 {
	switch v := cl.cfg.Version; {
	case v == Version2:
		return rpcrdma.Version2
	case v == Version1 || cl.cfg.RFC5666 != nil || cl.versions.has(cl.versionKey()):
		return rpcrdma.Version1
	}
	return rpcrdma.Version2
}

// negotiate finds out which version the server speaks. Nobody else uses the connection.
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
		// An error of version 2 is one of the call, for want of memory, say: the server speaks
		// version 2 all the same.
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
		// It takes the message for one of version 1 that is malformed.
		return cl.version1(c, rpcrdma.Version1, rpcrdma.Version1)
	case errors.Is(err, net.ErrClosed):
		return &unheardError{err: err}
	case errors.Is(err, context.DeadlineExceeded):
		return &unheardError{err: err, brief: patience < versionPatience/2}
	}
	return err
}

// version1 goes on with version 1, if the server speaks it, and we do.
func (cl *Client) version1(c *conn, low, high uint32) error {
	if low > rpcrdma.Version1 || high < rpcrdma.Version1 || cl.cfg.Version == Version2 {
		return &VersionError{Addr: cl.addr, Low: low, High: high}
	}
	cl.versions.note(cl.versionKey())
	c.agreed.version.Store(rpcrdma.Version1)
	return nil
}

// outdated tells whether a server that refuses a call for its version, 1, speaks version 2:
// it was away, or starting, when it was asked. The connection then ends, and the next one
// begins with version 2, as with a server that has spoken it: some connections more may be lost
// over the first message before version 1 is tried again. The call has not been executed.
func (cl *Client) outdated(old connection, err error) bool {
	var refused *RDMAError
	if !errors.As(err, &refused) || refused.Code != rpcrdma.ErrVers || refused.Vers != rpcrdma.Version1 ||
		refused.VersLow > rpcrdma.Version2 || refused.VersHigh < rpcrdma.Version2 ||
		cl.cfg.Version != VersionAuto || cl.cfg.RFC5666 != nil || cl.cfg.NoReconnect {
		return false
	}
	c, ok := old.(*conn)
	if !ok {
		return false
	}
	cl.versions.forget(cl.versionKey())
	cl.trust.Store(versionTrust)
	// Not as closed by the client: if this goes on, the next connections take their time.
	c.breakOff(errOutdated)
	c.await(context.Background(), newWaiter())
	<-c.done
	return true
}

// offerProperties tells a server of version 2 that does not know the procedure what private
// data could not, with the operation: it may be older. See docs/extensions.md.
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

// takeProperties takes the answer to our offer. Whatever it is but an acceptance, everything
// stays as it is.
func (c *conn) takeProperties(own rpcrdma.Properties, info []byte) {
	if p, err := rpcrdma.ConsumeProperties(info); err == nil && p.Dir == rpcrdma.PropAccept {
		c.useProperties(own, p)
	}
}

// isPropertiesAnswer takes what is no offer for the answer to one that is under way.
func isPropertiesAnswer(info []byte) bool {
	p, _ := rpcrdma.ConsumeProperties(info)
	return p.Dir != rpcrdma.PropOffer
}

// lateProperties tells whether a message that answers no offer is an answer all the same,
// which is not answered. What is neither that nor an offer is rejected.
func lateProperties(info []byte) bool {
	p, _ := rpcrdma.ConsumeProperties(info)
	return p.Dir == rpcrdma.PropAccept || p.Dir == rpcrdma.PropReject
}

// ---- server

// settleVersion makes the version of the first message from a client that of the
// connection.
func (l *leader) settleVersion(h *rpcrdma.Header) {
	switch {
	case h.Proc == rpcrdma.ProcError: // an answer to nothing
	case h.Vers == rpcrdma.Version2:
		l.c.useVersion2()
	default:
		l.c.agreed.version.Store(rpcrdma.Version1)
	}
}

// takeOffer answers the properties of a client that come as an operation. more says that
// there is something behind them, which must not be.
func (l *leader) takeOffer(x *exch, more bool) {
	offer, own := l.judge(x, x.hdr.OptInfo, more)
	x.answerOperation(l, Optional{Type: rpcrdma.OptProperties, Info: rpcrdma.AppendProperties(nil, own)})
	l.accepted(own, offer)
}

// exchange answers a call to the properties program, with arguments args.
func (l *leader) exchange(x *exch, args []byte) {
	if !x.asks(l, rpcrdma.PropVersion, rpcrdma.ProcPropExchange) {
		return
	}
	offer, own := l.judge(x, args, false)
	x.reply(l, rpcrdma.AppendProperties(x.results(), own))
	l.accepted(own, offer)
}

// judge reads an offer and says what the answer is.
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

// accepted makes an offer that has been answered hold, from the next message on, if it was
// accepted.
func (l *leader) accepted(answer, offer rpcrdma.Properties) {
	if answer.Dir == rpcrdma.PropAccept {
		l.offered = true
		l.c.useProperties(answer, offer)
	}
}
