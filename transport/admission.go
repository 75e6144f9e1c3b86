package transport

import (
	"context"
	"math"
	"net"
	"time"
)

// Admission: which connections a server keeps when it has no room for all. See
// ServerConfig.MaxConns.

// guests are the connections of a server, and those being set up. Guarded by Server.mu.
type guests struct {
	hosts            map[string]*guestHost
	n, setups        int
	looked           time.Time // when all connections were searched for one to throw out
	strangers        []*guest  // that were found then, and may have called since
	most, mostSetups int
}

type guestHost struct {
	guests map[*guest]struct{}
	setups int
}

// A guest is a connection, from the moment that its request was taken.
type guest struct {
	host   string
	ctx    context.Context // of the set-up
	cancel context.CancelFunc
	since  time.Time
	c      served // nil: it is being set up
	gone   bool
}

// idleTime is how long a connection without calls in flight must have been silent before it makes
// room for one of a host that has no fewer. It is longer than the default KeepAlive of clients with
// Callbacks.
const idleTime = 90 * time.Second

// strangerTime is how long a connection must have been silent on which nothing has been called yet.
// Clients call at once after they have connected.
const strangerTime = 2 * time.Second

// idleLook is how often all connections are searched for one that has been idle, at most.
const idleLook = time.Second

// crowdShare is how many connections a host may have while the server has no memory to spare.
const crowdShare = 16

// admit accepts a connection, in place of another one if need be. It returns nil when there is no
// room for it. mu is held.
func (s *Server) admit(from net.Addr) *guest {
	host := "peer"
	if from != nil {
		host = hostOf(from.String(), s.connCfg.HostBits)
	}
	gs := &s.guests
	if s.closing {
		return nil
	}
	if gs.setups >= gs.mostSetups && !gs.makeRoom(host, true) {
		return nil
	}
	crowded := s.memory.Crowded() && gs.hosts[host] != nil && len(gs.hosts[host].guests) >= crowdShare
	if (gs.n >= gs.most || crowded) && !gs.makeRoom(host, false) && (crowded || !gs.endIdle()) {
		return nil
	}
	return gs.add(host)
}

func (gs *guests) add(host string) *guest {
	h := gs.hosts[host]
	if h == nil {
		h = &guestHost{guests: make(map[*guest]struct{})}
		gs.hosts[host] = h
	}
	g := &guest{host: host, since: time.Now()}
	g.ctx, g.cancel = context.WithCancel(context.Background())
	h.guests[g] = struct{}{}
	h.setups++
	gs.n++
	gs.setups++
	return g
}

// settle notes that the connection has been set up.
func (gs *guests) settle(g *guest, c served) {
	g.c = c
	gs.hosts[g.host].setups--
	gs.setups--
}

// cancelSetups ends the connections that are being set up.
func (gs *guests) cancelSetups() {
	for _, h := range gs.hosts {
		for g := range h.guests {
			if g.c == nil {
				g.cancel()
			}
		}
	}
}

func (gs *guests) remove(g *guest) {
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
	g.c = nil // strangers may still have g, and must not keep the memory of its connection
}

// makeRoom throws out a connection of the host that has the most, for one of host. With setups it counts,
// and throws out, only connections that are being set up.
func (gs *guests) makeRoom(host string, setups bool) bool {
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
	var victim *guest
	var silence time.Duration
	var busy bool
	for g := range most.guests {
		d, b := now.Sub(g.since), false
		switch {
		case setups && g.c != nil || !setups && g.c == nil:
			continue
		case !setups:
			d, b = g.c.silence(now)
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

// endIdle throws out a connection that has called nothing for strangerTime, or else the one that has been
// silent for longest, if that is idleTime. One at a time: a crowd that is thrown out is back at once.
func (gs *guests) endIdle() bool {
	now := time.Now()
	for len(gs.strangers) > 0 {
		g := gs.strangers[0]
		gs.strangers = gs.strangers[1:]
		if !g.gone && g.strange(now) {
			gs.throwOut(g)
			return true
		}
	}
	if now.Sub(gs.looked) < idleLook {
		return false
	}
	var oldest *guest
	longest := idleTime
	for _, h := range gs.hosts {
		for g := range h.guests {
			if g.c == nil {
				continue
			}
			if g.strange(now) {
				gs.strangers = append(gs.strangers, g)
			}
			if d, busy := g.c.silence(now); !busy && d >= longest {
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

// strange reports whether a connection has called nothing for strangerTime.
func (g *guest) strange(now time.Time) bool {
	d, busy := g.c.silence(now)
	return !busy && d >= strangerTime && !g.c.hasCalled()
}

func (gs *guests) throwOut(g *guest) {
	c := g.c
	gs.remove(g)
	if c != nil {
		go c.breakOff(errMakesRoom)
	}
}

// defaultMaxConns is how many connections there may be by default in a process that can
// have so many descriptors. See ServerConfig.MaxConns.
func defaultMaxConns(descriptors int) int { return min(4096, max(descriptors/4, 16)) }

// manyDescriptors stands for any number of them.
const manyDescriptors = math.MaxInt32
