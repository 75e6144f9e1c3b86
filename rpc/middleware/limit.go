package middleware

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/rpcrdma/rpcrdma/internal/rate"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/rpc"
)

// By selects what counts as one caller.
type By uint8

const (
	// ByHost: a host, as returned by Conn.Host: an IPv4 address, or an IPv6 network, by default a /64.
	ByHost By = iota
	// ByConn: a connection. A caller that makes a new connection gets a new limit; ServerConfig.MaxConns bounds the
	// connections.
	ByConn
	// ByUser: an AUTH_SYS user at a host. Calls with other credentials count together as one user of their host.
	ByUser
	// ByProof: the identity that the caller has proved, wherever it calls from: the principal, else the first name of
	// the certificate, else the user of the process. The callers of a host that prove nothing count together as one
	// caller.
	ByProof
)

// String returns the name, such as "host".
func (b By) String() string {
	switch b {
	case ByHost:
		return "host"
	case ByConn:
		return "connection"
	case ByUser:
		return "user"
	case ByProof:
		return "proof"
	}
	return fmt.Sprintf("By(%d)", uint8(b))
}

// Limits are the limits that a Limiter sets for each caller.
type Limits struct {
	By By

	// InFlight is the maximum number of a caller's calls that are executed at a time. Zero: no limit.
	InFlight int

	// Rate is the maximum number of a caller's calls that are started per second, and Burst the maximum number started
	// at once after a pause. A Burst of zero is as many as Rate allows in a second, at least one. A Rate of zero means
	// no limit.
	Rate  float64
	Burst int

	// Wait is the longest time that a call beyond these limits waits for its turn. Calls of one caller
	// are served in order. A call to an Inline procedure cannot wait. Zero: no call waits.
	Wait time.Duration

	// Refuse answers a call that has waited in vain for its turn, for example with NFS3ERR_JUKEBOX. Nil: SYSTEM_ERR.
	// The reply cache remembers the answer like any other.
	Refuse rpc.HandlerFunc

	// Callers is the maximum number of callers that are tracked separately. One host may have an eighth of them. A
	// caller without calls is forgotten if its rate has recovered and another needs its place. Callers without a place
	// share one limit, that of their host or of all. One that gets a place later has its own limit from then on, and
	// the calls that it has under the shared limit do not count in it. Zero is 4096; each takes about 250 bytes.
	Callers int
}

const (
	defaultCallers = 4096
	hostPart       = 8 // one host may have 1/hostPart of the callers
	looks          = 8 // callers examined to find one that can be forgotten
)

// A Limiter keeps callers within Limits. Its Wrap method is an rpc.Middleware. Several programs may share one Limiter,
// and with it the limits of their callers.
type Limiter struct {
	limits Limits
	rate   rate.Rate
	start  time.Time

	mu      sync.Mutex
	callers map[callerID]*caller
	hosts   map[netip.Prefix]*host
	rest    *caller // all callers without a place
	stats   LimiterStats
}

// LimiterStats are a Limiter's counters.
type LimiterStats struct {
	Callers int    // callers currently tracked
	Waited  uint64 // calls that had to wait
	Refused uint64 // calls that waited in vain, or could not wait
}

// A callerID identifies a caller.
type callerID struct {
	host netip.Prefix
	conn netip.AddrPort // ByConn
	kind callerKind
	uid  uint32 // of a user or a process
	name string // of a principal or certificate
	by   string // the mechanism of the principal
}

type callerKind uint8

const (
	kindKnown     callerKind = iota
	kindUser                 // of AUTH_SYS
	kindRest                 // the callers of a host without a place
	kindPrincipal            // this kind and those after it are proved, and have no host
	kindCertificate
	kindProcess
)

// A caller has or had calls. Guarded by Limiter.mu.
type caller struct {
	id          callerID
	refs        int           // calls that are executed or wait
	running     int           // calls that have a place
	due         time.Duration // see rate.Rate
	first, last *turn         // calls that wait for a turn

	host         *host // nil for Limiter.rest
	older, newer *caller
}

// A host has callers, ordered by the time that their latest call ended. Guarded by Limiter.mu.
type host struct {
	n              int
	oldest, newest *caller
}

func (h *host) add(c *caller) {
	h.n++
	c.host, c.older, c.newer = h, h.newest, nil
	if h.newest == nil {
		h.oldest = c
	} else {
		h.newest.newer = c
	}
	h.newest = c
}

func (h *host) remove(c *caller) {
	h.n--
	if c.older == nil {
		h.oldest = c.newer
	} else {
		c.older.newer = c.newer
	}
	if c.newer == nil {
		h.newest = c.older
	} else {
		c.newer.older = c.older
	}
}

// A turn is a call waiting to be executed.
type turn struct {
	ready chan struct{} // closed when its turn has come
	next  *turn
}

// NewLimiter returns a Limiter. The error names the invalid limit.
func NewLimiter(limits Limits) (*Limiter, error) {
	if limits.By > ByProof || limits.InFlight < 0 || limits.Wait < 0 || limits.Callers < 0 {
		return nil, errors.New("middleware: a field of Limits is negative or unknown")
	}
	r, err := rate.New(limits.Rate, limits.Burst)
	if err != nil {
		return nil, fmt.Errorf("middleware: %w", err)
	}
	if limits.Callers == 0 {
		limits.Callers = defaultCallers
	}
	return &Limiter{
		limits: limits, rate: r, start: time.Now(),
		callers: make(map[callerID]*caller), hosts: make(map[netip.Prefix]*host), rest: new(caller),
	}, nil
}

// Wrap is an rpc.Middleware: it calls next for calls within the limits.
func (l *Limiter) Wrap(next rpc.Handler) rpc.Handler {
	return rpc.HandlerFunc(func(ctx context.Context, req *rpc.Request, res *rpc.Response) {
		c := l.enter(ctx, l.identify(req))
		if c == nil {
			if f := l.limits.Refuse; f != nil {
				f(ctx, req, res)
			} else {
				res.Fail(oncrpc.SystemErr)
			}
			return
		}
		defer l.leave(c, true)
		next.ServeRPC(ctx, req, res)
	})
}

// Stats returns the counters.
func (l *Limiter) Stats() LimiterStats {
	l.mu.Lock()
	defer l.mu.Unlock()
	st := l.stats
	st.Callers = len(l.callers)
	return st
}

// now returns the time on the clock of rates.
func (l *Limiter) now() time.Duration { return time.Since(l.start) }

// enter waits for the turn of a call. It returns nil if the call is refused.
func (l *Limiter) enter(ctx context.Context, id callerID) *caller {
	patience := l.limits.Wait
	if patience > 0 && rpc.IsInline(ctx) {
		patience = 0
	}
	l.mu.Lock()
	now := l.now()
	c := l.find(id, now)
	c.refs++
	waited := false
	if most := l.limits.InFlight; most > 0 && c.running >= most {
		if patience == 0 || !l.await(ctx, c, patience) {
			return l.refuse(c, false)
		}
		waited = true
		then := l.now()
		patience, now = patience-(then-now), then
	} else {
		c.running++
	}
	var pause time.Duration
	if l.rate.Limits() {
		var due time.Duration
		if pause, due = l.rate.Next(c.due, now); pause > max(patience, 0) {
			return l.refuse(c, true)
		}
		c.due = due
	}
	if waited || pause > 0 {
		l.stats.Waited++
	}
	l.mu.Unlock()
	if pause > 0 && !sleep(ctx, pause) {
		l.leave(c, true)
		return nil // the caller will not see the answer
	}
	return c
}

// refuse counts a refused call. It is called with mu held and unlocks it.
func (l *Limiter) refuse(c *caller, placed bool) *caller {
	l.stats.Refused++
	l.mu.Unlock()
	l.leave(c, placed)
	return nil
}

// sleep returns false if ctx ends first.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// await waits for a turn, after the calls already waiting. It is called with mu held and releases it during the wait.
func (l *Limiter) await(ctx context.Context, c *caller, patience time.Duration) bool {
	w := &turn{ready: make(chan struct{})}
	if c.last == nil {
		c.first = w
	} else {
		c.last.next = w
	}
	c.last = w
	l.mu.Unlock()
	t := time.NewTimer(patience)
	select {
	case <-w.ready:
	case <-t.C:
	case <-ctx.Done():
	}
	t.Stop()
	l.mu.Lock()
	return !c.remove(w)
}

// remove removes a call from the queue. It returns false if the call is no longer there because its turn has come.
func (c *caller) remove(w *turn) bool {
	var before *turn
	for at := c.first; at != nil; before, at = at, at.next {
		if at != w {
			continue
		}
		if before == nil {
			c.first = w.next
		} else {
			before.next = w.next
		}
		if c.last == w {
			c.last = before
		}
		return true
	}
	return false
}

// leave ends a call. placed reports whether it counts as running; if so, the next in the queue takes its turn.
func (l *Limiter) leave(c *caller, placed bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if placed {
		if w := c.first; w != nil {
			if c.first = w.next; c.first == nil {
				c.last = nil
			}
			close(w.ready)
		} else {
			c.running--
		}
	}
	c.refs--
	if h := c.host; h != nil && h.newest != c {
		h.remove(c)
		h.add(c)
	}
}

// rests reports whether the caller can be forgotten.
func (c *caller) rests(now time.Duration) bool { return c.refs == 0 && c.due <= now }

// identify returns the caller that makes a call.
func (l *Limiter) identify(req *rpc.Request) callerID {
	id := callerID{host: req.Conn().Host()}
	switch l.limits.By {
	case ByConn:
		id.conn = req.Conn().RemoteAddrPort()
	case ByUser:
		if sys, ok := req.AuthSys(); ok {
			id.kind, id.uid = kindUser, sys.UID
		}
	case ByProof:
		switch peer := req.Peer(); {
		case peer.Principal != nil:
			return callerID{kind: kindPrincipal, name: peer.Principal.Name, by: peer.Principal.Mechanism}
		case len(peer.Certificate) > 0:
			return callerID{kind: kindCertificate, name: peer.Certificate[0]}
		case peer.Process != nil:
			return callerID{kind: kindProcess, uid: peer.Process.UID}
		}
	}
	return id
}

// find returns a caller, or the caller that it shares limits with. mu is held.
func (l *Limiter) find(id callerID, now time.Duration) *caller {
	if c := l.callers[id]; c != nil {
		return c
	}
	if h := l.hosts[id.host]; h != nil && id.kind < kindRest && h.n >= max(l.limits.Callers/hostPart, 1) && !l.shrink(h, now) {
		return l.find(callerID{host: id.host, kind: kindRest}, now)
	}
	if len(l.callers) >= l.limits.Callers && !l.makeRoom(now) {
		return l.rest
	}
	h := l.hosts[id.host]
	if h == nil {
		h = new(host)
		l.hosts[id.host] = h
	}
	c := &caller{id: id}
	l.callers[id] = c
	h.add(c)
	return c
}

// shrink forgets a caller of a host, if one of the oldest can be forgotten. mu is held.
func (l *Limiter) shrink(h *host, now time.Duration) bool {
	c := h.oldest
	for range looks {
		if c == nil {
			break
		}
		if c.rests(now) {
			l.forget(c)
			return true
		}
		c = c.newer
	}
	return false
}

// makeRoom examines some callers and forgets one that can be forgotten. mu is held.
func (l *Limiter) makeRoom(now time.Duration) bool {
	n := 0
	for _, c := range l.callers { // in random order
		if c.rests(now) {
			l.forget(c)
			return true
		}
		if n++; n == looks {
			break
		}
	}
	return false
}

// forget forgets a caller. mu is held.
func (l *Limiter) forget(c *caller) {
	delete(l.callers, c.id)
	if c.host.remove(c); c.host.n == 0 {
		delete(l.hosts, c.id.host)
	}
}
