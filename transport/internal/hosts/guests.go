package hosts

import (
	"context"
	"time"
)

// Guests are the connections of a server, and those being set up. A lock of the server guards them.
type Guests struct {
	Most, MostSetups int // limits; connections being set up count in both

	hosts     map[string]*guestHost
	n, setups int
	looked    time.Time // when all connections were last searched for one to close
	strangers []*Guest  // found in that search; they may have called since
}

// A Conn is a connection that has been set up. The server's lock is held while Silence and HasCalled are called.
type Conn interface {
	// Silence returns how long the peer has been silent, and whether it has calls in flight.
	Silence(now time.Time) (d time.Duration, inFlight bool)
	HasCalled() bool // a valid call of the peer has arrived
	MakeRoom()       // ends the connection in favor of another one
}

type guestHost struct {
	guests map[*Guest]struct{}
	setups int
}

// A Guest is a connection, from the moment its request was accepted.
type Guest struct {
	Ctx context.Context // for the setup: it ends when the connection makes room for another, or is removed

	host   string
	cancel context.CancelFunc
	since  time.Time
	c      Conn // nil: it is being set up
	gone   bool
}

// IdleTime is how long a connection without calls in flight must have been silent before it makes room for one of a
// host that has at least as many. It is longer than the default KeepAlive of clients with Callbacks.
const IdleTime = 90 * time.Second

// StrangerTime is how long a connection that has made no call yet must have been silent. Clients call as soon as they
// have connected.
const StrangerTime = 2 * time.Second

// IdleLook is the minimum interval between searches of all connections for an idle one.
const IdleLook = time.Second

// CrowdShare is the maximum number of connections of a host while the server has no memory to spare.
const CrowdShare = 16

// Admit accepts a connection of host, in place of another one if necessary. It returns nil if there is no room for it.
// crowded reports that the server has no memory to spare.
func (gs *Guests) Admit(host string, crowded bool) *Guest {
	if gs.setups >= gs.MostSetups && !gs.makeRoom(host, true) {
		return nil
	}
	crowded = crowded && gs.hosts[host] != nil && len(gs.hosts[host].guests) >= CrowdShare
	if (gs.n >= gs.Most || crowded) && !gs.makeRoom(host, false) && (crowded || !gs.endIdle()) {
		return nil
	}
	return gs.add(host)
}

// Len returns the number of connections, including those being set up.
func (gs *Guests) Len() int { return gs.n }

func (gs *Guests) add(host string) *Guest {
	h := gs.hosts[host]
	if h == nil {
		if gs.hosts == nil {
			gs.hosts = make(map[string]*guestHost)
		}
		h = &guestHost{guests: make(map[*Guest]struct{})}
		gs.hosts[host] = h
	}
	g := &Guest{host: host, since: time.Now()}
	g.Ctx, g.cancel = context.WithCancel(context.Background())
	h.guests[g] = struct{}{}
	h.setups++
	gs.n++
	gs.setups++
	return g
}

// Settle records that the connection has been set up.
func (gs *Guests) Settle(g *Guest, c Conn) {
	g.c = c
	gs.hosts[g.host].setups--
	gs.setups--
}

// CancelSetups ends the connections that are being set up.
func (gs *Guests) CancelSetups() {
	for _, h := range gs.hosts {
		for g := range h.guests {
			if g.c == nil {
				g.cancel()
			}
		}
	}
}

// Remove forgets a connection.
func (gs *Guests) Remove(g *Guest) {
	g.cancel()
	if g.gone {
		return
	}
	g.gone = true
	h := gs.hosts[g.host]
	delete(h.guests, g)
	gs.n--
	if g.c == nil {
		h.setups--
		gs.setups--
	}
	if len(h.guests) == 0 {
		delete(gs.hosts, g.host)
	}
	g.c = nil // strangers may still refer to g, and must not retain the memory of its connection
}

// makeRoom closes a connection of the host that has the most, for one of host. With setups it only counts and closes
// connections that are being set up.
func (gs *Guests) makeRoom(host string, setups bool) bool {
	count := func(h *guestHost) int {
		switch {
		case h == nil:
			return 0
		case setups:
			return h.setups
		}
		return len(h.guests)
	}
	var most *guestHost
	for _, h := range gs.hosts {
		if count(h) > count(most) {
			most = h
		}
	}
	if count(most) <= count(gs.hosts[host])+1 {
		return false
	}
	now := time.Now()
	var victim *Guest
	var silence time.Duration
	var busy bool
	for g := range most.guests {
		d, b := now.Sub(g.since), false
		switch {
		case setups && g.c != nil || !setups && g.c == nil:
			continue
		case !setups:
			d, b = g.c.Silence(now)
		}
		if victim == nil || busy && !b || busy == b && d > silence {
			victim, silence, busy = g, d, b
		}
	}
	if victim == nil {
		return false
	}
	gs.throwOut(victim)
	return true
}

// endIdle closes a connection that has made no call for StrangerTime, or else the one that has been silent longest, if
// that is at least IdleTime. It closes only one: many closed clients would be back at once.
func (gs *Guests) endIdle() bool {
	now := time.Now()
	for len(gs.strangers) > 0 {
		g := gs.strangers[0]
		gs.strangers = gs.strangers[1:]
		if !g.gone && g.strange(now) {
			gs.throwOut(g)
			return true
		}
	}
	if now.Sub(gs.looked) < IdleLook {
		return false
	}
	var oldest *Guest
	longest := IdleTime
	for _, h := range gs.hosts {
		for g := range h.guests {
			if g.c == nil {
				continue
			}
			if g.strange(now) {
				gs.strangers = append(gs.strangers, g)
			}
			if d, busy := g.c.Silence(now); !busy && d >= longest {
				oldest, longest = g, d
			}
		}
	}
	if len(gs.strangers) > 0 {
		oldest, gs.strangers = gs.strangers[0], gs.strangers[1:]
		gs.looked = now
	}
	if oldest == nil {
		gs.looked = now
		return false
	}
	gs.throwOut(oldest)
	return true
}

// strange reports whether a connection has made no call for StrangerTime.
func (g *Guest) strange(now time.Time) bool {
	d, busy := g.c.Silence(now)
	return !busy && d >= StrangerTime && !g.c.HasCalled()
}

func (gs *Guests) throwOut(g *Guest) {
	c := g.c
	gs.Remove(g)
	if c != nil {
		go c.MakeRoom()
	}
}
