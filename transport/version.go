package transport

import (
	"fmt"
	"sync"
	"time"

	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/rpcrdma"
)

// Which version of the protocol a connection speaks (version two section 5).
//
// A client that wants version 2 begins with a call in version 2: one that announces its properties, or NULL if it has
// none to announce. The message is short enough for servers of version 1, and if the answer is lost it does not matter
// whether the call was executed. A server of version 2 answers in version 2. A server of version 1 answers ERR_VERS,
// and the connection continues in version 1; or it does not answer, or closes the connection, and a new connection
// begins with version 1. The client remembers for some time that a server speaks only version 1. A server that has
// spoken version 2 before and closes the connection may be starting: the client tries again.
//
// A server speaks the version of the first call on a connection. It answers calls in another version, which a client
// should not make, in their version.
//
// A Send in version 2 has up to 4096 bytes, or the size agreed on by private data if that is more. Receives have that
// size from the start, so thresholds can change without loss. Version 2 has no Send with Invalidate. The properties of
// docs/protocol.md add it, as well as sizes that do not fit in private data.

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

// A VersionCache remembers for some time which servers support only version 1. Clients may share it.
type VersionCache struct {
	lifetime time.Duration
	mu       sync.Mutex
	until    map[string]time.Time
}

// NewVersionCache returns an empty cache that keeps entries for the given time; zero means an hour. An upgraded server
// may be used in version 1 for that long.
func NewVersionCache(lifetime time.Duration) *VersionCache {
	if lifetime == 0 {
		lifetime = time.Hour
	}
	return &VersionCache{lifetime: lifetime, until: make(map[string]time.Time)}
}

// maxVersions is the maximum number of entries of a cache. Each dropped entry costs a round trip.
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

// An unheardError says why the first message of version 2 got no answer.
type unheardError struct {
	err   error
	brief bool // the wait was short, which says little about the server
}

func (e *unheardError) Error() string { return "no answer to version 2: " + e.err.Error() }
func (e *unheardError) Unwrap() error { return e.err }

const (
	// versionPatience is how long a client waits for the answer to its first message of
	// version 2.
	versionPatience = 5 * time.Second

	// versionTrust is the number of consecutive connections that may be lost after that message before a server that
	// has spoken version 2 is treated as one of version 1. Until then it is assumed to be starting.
	versionTrust = 3

	// versionAsks is how often the version is negotiated again for one call that is refused because of its version.
	// Each negotiation may need versionTrust connections or more.
	versionAsks = 2
)

// lateProperties reports whether a message that belongs to no offer is an answer. It is then dropped; a message that is
// neither an answer nor an offer is rejected.
func lateProperties(info []byte) bool {
	p, _ := rpcrdma.ConsumeProperties(info)
	return p.Dir == rpcrdma.PropAccept || p.Dir == rpcrdma.PropReject
}

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

// takeOffer answers an offer that arrived as an optional operation. more reports that an RPC message follows the
// properties, which is an error.
func (l *leader) takeOffer(x *exch, more bool) {
	offer, own := l.judge(x, x.hdr.OptInfo, more)
	x.answerOperation(Optional{Type: rpcrdma.OptProperties, Info: rpcrdma.AppendProperties(nil, own)})
	l.accepted(own, offer)
}

// exchange answers a call of the properties program with arguments args.
func (l *leader) exchange(x *exch, args []byte) {
	if !x.asks(rpcrdma.PropVersion, rpcrdma.ProcPropExchange) {
		return
	}
	offer, own := l.judge(x, args, false)
	x.answer(oncrpc.ReplyHeader{}, rpcrdma.AppendProperties(x.results(), own))
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

// accepted applies an offer after its answer has been sent, if that was an acceptance: it applies from the next message
// on.
func (l *leader) accepted(answer, offer rpcrdma.Properties) {
	if answer.Dir == rpcrdma.PropAccept {
		l.offered = true
		l.c.useProperties(answer, offer)
	}
}
