package transport

import (
	"context"
	"errors"
	"time"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/transport/internal/expose"
)

// How a Group makes its connections: the first, and those required by load or by a loss.

const (
	// growAfter is how long all connections must have been overloaded before another is added: while credits grow on a
	// fresh connection, callers wait for a few round trips.
	growAfter = 20 * time.Millisecond

	// longCall is the average time that a call must hold its credit for another connection to help calls that wait for
	// one.
	longCall = 2 * time.Millisecond

	// tryNext is how long to wait for one connection attempt before starting the next.
	tryNext = 250 * time.Millisecond
)

// A place is an address of a Group's server. Guarded by Group.mu.
type place struct {
	addr    string
	members int
	pause   time.Duration // after the latest attempt, if it failed
	until   time.Time     // end of the pause
}

// DialGroup connects to a server at addrs, each of them "host:port", with provider p, which may be [TCP]. A nil cfg is
// the default configuration. All addresses must be of one server, with one reply cache and one set of data: the Group
// assumes that a call means the same on all of them.
//
// DialGroup returns when there is one connection. It tries the addresses in order, starting the next attempt when the
// previous one has failed or has not answered within a quarter of a second. When one has connected, the other attempts
// are canceled. If none connects, the error is a *DialError or, with several addresses, unwraps to one for each.
func DialGroup(ctx context.Context, p fabric.Provider, addrs []string, cfg *ClientConfig) (*Group, error) {
	g, err := newGroup(p, addrs, cfg)
	if err != nil {
		return nil, err
	}
	m, at, err := g.connectAny(ctx)
	if err != nil {
		g.cancel()
		return nil, err
	}
	g.admit(m, at)
	return g, nil
}

func newGroup(p fabric.Provider, addrs []string, cfg *ClientConfig) (*Group, error) {
	c, err := cfg.settleGroup(len(addrs))
	if err != nil {
		return nil, err
	}
	if c.VersionCache == nil {
		c.VersionCache = NewVersionCache(0)
	}
	first, others := c, c
	others.Callbacks, others.OnReconnect, others.streams, others.Streams = nil, nil, nil, false
	if cfg == nil || cfg.KeepAlive == 0 {
		others.KeepAlive = 0 // a default for Callbacks
	}
	if c.NoReconnect {
		others.IdleTimeout = 0 // a closed connection is not made again
	} else {
		setDefault(&others.IdleTimeout, defaultGroupIdle)
	}
	g := &Group{
		provider: p, cfg: c, first: &first, others: &others, most: max(c.Connections, len(addrs)),
		regions: expose.NewRegions(), xids: newXIDs(&c.Config), turn: make(chan struct{}), done: make(chan struct{}),
	}
	g.mu.Init(rankGroup)
	g.members.Store(new([]*member))
	for _, addr := range addrs {
		g.places = append(g.places, place{addr: addr})
	}
	g.ctx, g.cancel = context.WithCancel(context.Background())
	return g, nil
}

// connect makes a member that is not in the group yet.
func (g *Group) connect(ctx context.Context, addr string, cfg *ClientConfig) (*member, error) {
	cl, err := newClientOver(g.provider, addr, cfg)
	if err != nil {
		return nil, err
	}
	m := &member{cl: cl}
	cl.regions, cl.connCfg.xids = g.regions, g.xids
	cl.link.moves = g.moves
	cl.changed = func() { g.look(m) }
	if _, err := cl.start(ctx); err != nil {
		return nil, err
	}
	return m, nil
}

// connectAny opens the first connection, to any of the addresses.
func (g *Group) connectAny(ctx context.Context) (won *member, at int, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type outcome struct {
		m   *member
		at  int
		err error
	}
	outcomes := make(chan outcome)
	next, under := 0, 0
	begin := func() {
		i := next
		next++
		under++
		go func() {
			m, err := g.connect(ctx, g.places[i].addr, g.first)
			outcomes <- outcome{m, i, err}
		}()
	}
	begin()
	var errs []error
	tick := time.NewTicker(tryNext)
	defer tick.Stop()
	for under > 0 {
		more := false
		select {
		case o := <-outcomes:
			under--
			switch {
			case o.err != nil:
				errs = append(errs, o.err)
				more = true
			case won == nil:
				won, at = o.m, o.at
				cancel()
			default: // too late
				o.m.cl.Close()
			}
		case <-tick.C:
			more = true
		}
		if more && won == nil && next < len(g.places) && ctx.Err() == nil {
			begin()
		}
	}
	switch {
	case won != nil:
		return won, at, nil
	case len(errs) == 1:
		return nil, 0, errs[0]
	}
	return nil, 0, errors.Join(errs...)
}

// admit adds m to the members, at a place, unless the group has ended.
func (g *Group) admit(m *member, at int) {
	g.mu.Lock()
	ended := g.err != nil
	if !ended {
		p := &g.places[at]
		p.members++
		p.pause = 0
		g.why = nil
		all := g.list()
		all = append(all[:len(all):len(all)], m)
		g.members.Store(&all)
	}
	g.mu.Unlock()
	if ended {
		m.cl.Close()
		return
	}
	g.look(m)
}

// grow starts adding a connection, if the limit permits: for load, if all existing ones are overloaded for a while, or
// else at once, to an address that has none.
func (g *Group) grow(forLoad bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.err != nil || !g.growing.CompareAndSwap(false, true) {
		return
	}
	g.running.Go(func() {
		g.add(forLoad)
		g.growing.Store(false)
	})
}

// add adds a connection.
func (g *Group) add(forLoad bool) {
	for {
		if forLoad && (!g.loaded() || g.revive()) {
			return
		}
		at, wait := g.nextPlace(forLoad)
		if at < 0 {
			if wait == 0 || !g.sleep(wait) || !forLoad && !g.needed() {
				return
			}
			continue
		}
		ctx, cancel := context.WithTimeout(g.ctx, g.cfg.SetupTimeout)
		m, err := g.connect(ctx, g.places[at].addr, g.others)
		cancel()
		if err == nil {
			g.admit(m, at)
			return
		}
		g.failed(at, err)
		if g.ctx.Err() != nil {
			return
		}
	}
}

// sleep returns false when the group ends first.
func (g *Group) sleep(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-g.ctx.Done():
		return false
	}
}

// loaded waits a while, and then reports whether there are too few connections: all have been busy, or callers wait
// because the group has no connection.
func (g *Group) loaded() bool {
	for _, m := range g.list() {
		m.mark()
	}
	if !g.sleep(growAfter) {
		return false
	}
	up := 0
	for _, m := range g.list() {
		if m.up.Load() {
			if !m.busy() {
				return false
			}
			up++
		}
	}
	return up > 0 || g.needed()
}

// needed reports whether callers wait for any connection.
func (g *Group) needed() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.stuck > 0
}

// revive makes connections again that were closed when idle or lost. It returns false if no connection can accept
// calls.
func (g *Group) revive() bool {
	for _, m := range g.list() {
		if m.up.Load() {
			continue
		}
		m.cl.link.wake()
		if m.cl.latest().leaves() && m.cl.Err() == nil {
			return true
		}
	}
	return false
}

// nextPlace returns the place for another connection: the one with the fewest, among those without a recent failed
// attempt. Otherwise at is negative, and wait is how long to wait for a place, 0 if the maximum number of connections
// has been reached.
func (g *Group) nextPlace(forLoad bool) (at int, wait time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if forLoad && len(g.list()) >= g.most {
		return -1, 0
	}
	at = -1
	now := time.Now()
	for i := range g.places {
		p := &g.places[i]
		if !forLoad && p.members > 0 {
			continue // it is being made again
		}
		if left := p.until.Sub(now); left > 0 {
			if wait == 0 || left < wait {
				wait = left
			}
		} else if at < 0 || p.members < g.places[at].members {
			at = i
		}
	}
	return at, wait
}

// failed records that no connection could be made to a place.
func (g *Group) failed(at int, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	p := &g.places[at]
	p.pause = min(max(2*p.pause, minPause), g.cfg.MaxPause)
	p.until = time.Now().Add(p.pause)
	g.why = err
}
