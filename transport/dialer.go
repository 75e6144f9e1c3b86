package transport

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"syscall"
	"time"

	"github.com/rpcrdma/rpcrdma/proto/rpcrdma"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/transport/internal/budget"
)

// How a client makes its connections: the first, and those that replace a lost one.

// Pauses between attempts to connect. The first follows the loss of a connection that was good. Each further pause is
// twice as long, up to ClientConfig.MaxPause, until a connection has lived for a while: see rest.
const (
	minPause        = 50 * time.Millisecond
	defaultMaxPause = 10 * time.Second

	// steady is how long a connection must live for the next one to follow at once. Replies alone do not vouch for a
	// server that ends each connection after the first reply.
	steady = 2 * time.Second
)

// A dialer makes a client's connections again, one attempt at a time.
type dialer struct {
	cl      *Client
	busy    bool           // a goroutine is connecting; link.mu
	running sync.WaitGroup // waits for that goroutine
	pause   time.Duration  // before the next attempt; used by the goroutine only
	spared  bool           // a good, short connection has already been exempt from a pause; used by the goroutine only

	// For OnReconnect; link.mu.
	telling int  // calls in progress
	untold  bool // it must be called once more

	// As of when the latest connection was made; used by the goroutine only.
	made    time.Time
	givenUp uint64 // the client's calls that their callers have abandoned
}

// want starts an attempt unless one is in progress. link.mu is held.
func (d *dialer) want() {
	if d.busy || d.cl.link.err != nil || d.cl.cfg.NoReconnect {
		return
	}
	if c := d.cl.latest(); c != nil && c.lives() && !c.leaves() {
		return
	}
	d.busy = true
	d.running.Go(d.run)
}

// run makes a connection, however long it takes.
func (d *dialer) run() {
	cl := d.cl
	old := cl.latest()
	if old != nil {
		d.rest(old)
	}
	for {
		if d.pause > 0 {
			select {
			case <-time.After(d.pause/2 + time.Duration(d.cl.cfg.rand()%uint64(d.pause))):
			case <-cl.ctx.Done():
			}
		}
		if cl.ctx.Err() != nil {
			return // the link has been closed
		}
		cn, err := d.connect(old)
		var version *rpc.VersionError
		if errors.As(err, &version) {
			cl.link.close(&rpc.ClosedError{Addr: cl.addr, Reason: version}) // for good
			cl.over()
			cl.tellGroup()
			return
		}
		if err == nil {
			d.use(cn)
			return
		}
		cl.link.mu.Lock()
		cl.link.why = err
		cl.link.mu.Unlock()
		d.slower()
	}
}

// rest sets the pause after the loss of old. After a connection that has lived for a while it is zero. After a short
// one the pause grows, whatever was answered on it, except for the first good one: cables are pulled and servers
// restarted while calls are in flight. A connection lost for a canceled call of this end does not show that the server
// is in trouble, unless the server ended it.
func (d *dialer) rest(old connection) {
	end := old.endErr()
	enough := steady
	if !old.good() {
		enough = max(steady, d.longer())
	}
	switch {
	case old.leaves():
		d.pause = 0
	case broke(end):
		d.slower()
	case time.Since(d.made) >= enough:
		d.pause, d.spared = 0, false
	case d.cl.stats.sum().Canceled != d.givenUp && !dropped(old):
		// A fence that ended the connection, or a late reply that invalidated memory which was already closed: the
		// adapter ends the connection before it delivers the message.
		d.pause = min(minPause, d.cl.cfg.MaxPause)
	case old.good() && !d.spared:
		d.pause, d.spared = 0, true
	default:
		d.slower()
	}
}

// longer returns the pause that follows the current one.
func (d *dialer) longer() time.Duration {
	return min(max(2*d.pause, minPause), d.cl.cfg.MaxPause)
}

func (d *dialer) slower() { d.pause = d.longer() }

// connect makes one attempt.
func (d *dialer) connect(old connection) (*Conn, error) {
	cl := d.cl
	cl.link.mu.Lock()
	pending := cl.link.need
	cl.link.mu.Unlock()
	ctx, cancel := context.WithTimeout(cl.ctx, cl.cfg.SetupTimeout)
	defer cancel()
	return cl.connect(ctx, pending, old)
}

// use passes a new connection to the callers that wait for it, and ends the attempt at the same moment: a caller in
// between would otherwise start another.
func (d *dialer) use(cn *Conn) {
	cl := d.cl
	if cl.link.put(cn, func(connection) { d.busy = false }) != nil {
		cn.c.close() // Close was called first
		return
	}
	cn.c.whenEnded(cl.lost)
	cl.tellGroup()
	if cl.cfg.OnReconnect != nil {
		d.tell()
	}
}

// maxTelling bounds the concurrent calls of OnReconnect: one that makes a call may wait for its reply over any number
// of connections.
const maxTelling = 4

// tell calls OnReconnect, or arranges for it to be called again when a current call has returned.
func (d *dialer) tell() {
	mu := &d.cl.link.mu
	mu.Lock()
	defer mu.Unlock()
	if d.telling == maxTelling {
		d.untold = true
		return
	}
	d.telling++
	go func() {
		for more := true; more; {
			d.cl.cfg.OnReconnect(d.cl)
			mu.Lock()
			if more = d.untold; !more {
				d.telling--
			}
			d.untold = false
			mu.Unlock()
		}
	}()
}

// connect makes a connection that continues where old, if not nil, has ended.
func (cl *Client) connect(ctx context.Context, pending int, old connection) (*Conn, error) {
	for try := 1; ; try++ {
		cn, err := cl.connectOnce(ctx, pending, old)
		if err == nil {
			cl.conns.Add(1)
			cn.begun()
			d := &cl.dialer
			d.made, d.givenUp = time.Now(), cl.stats.sum().Canceled
			return cn, nil
		}
		// A provider that picks local ports and has the kernel open TCP connections
		// from them, as siw's does, may pick one that TCP uses already, or, with
		// EADDRNOTAVAIL, from which a connection to this server ended a moment ago.
		if try == pickTries || !errors.Is(err, syscall.EADDRINUSE) && !errors.Is(err, syscall.EADDRNOTAVAIL) {
			return nil, &DialError{Provider: cl.via, Addr: cl.addr, Err: busy(cl.addr, err)}
		}
	}
}

// pickTries is how often a connection is attempted if its local port is taken.
const pickTries = 4

func (cl *Client) connectOnce(ctx context.Context, pending int, old connection) (*Conn, error) {
	if cl.dialTCP != nil {
		return cl.connectTCP(ctx)
	}
	vers := cl.firstVersion()
	c, err := cl.connectAs(ctx, vers, pending, old)
	var unheard *unheardError
	if vers == rpcrdma.Version2 && errors.As(err, &unheard) {
		if cl.trust.Load() > 0 {
			cl.trust.Add(-1)
			return nil, err
		}
		// The server drops messages that it does not know, or ends the connection (version two section 5.2).
		if cl.cfg.Version == Version2 {
			return nil, &rpc.VersionError{Addr: cl.addr, Reason: unheard.err}
		}
		if c, err = cl.connectAs(ctx, rpcrdma.Version1, pending, old); err == nil && !unheard.brief {
			cl.versions.note(cl.versionKey()) // the server was not just away
		}
	}
	if err != nil {
		return nil, err
	}
	return &c.public, nil
}

// connectAs makes a connection with a first message of the given version.
func (cl *Client) connectAs(ctx context.Context, vers uint32, pending int, old connection) (*conn, error) {
	fc, err := cl.provider.Resolve(ctx, cl.addr, cl.connCfg.connAttr(roleClient))
	if err != nil {
		return nil, err
	}
	c, l := newConn(fc, cl.provider.Name(), cl.connCfg, roleClient, nil)
	c.stats = cl.stats.join()
	c.exposes.Regions = cl.regions
	c.agreed.version.Store(vers)
	if old != nil {
		c.inherit(old)
	}
	c.execute(cl.callbacks, budget.New(totalMemory(&cl.cfg.Config)))
	if err := l.connect(ctx, pending); err != nil {
		l.discard()
		return nil, err
	}
	l.release()
	if err = cl.negotiate(ctx, c); err == nil {
		err = c.configure(ctx)
	}
	c.unproven()
	if err != nil {
		c.close()
		return nil, err
	}
	return c, nil
}

// lost is called when a connection has ended.
func (cl *Client) lost() {
	defer cl.tellGroup()
	cl.link.mu.Lock()
	defer cl.link.mu.Unlock()
	switch {
	case cl.cfg.NoReconnect:
		cl.link.end(cl.latest().endErr())
		cl.over()
	case cl.link.err != nil:
	case len(cl.cfg.Callbacks) > 0:
		// As long as the server may have calls for this client, there is a connection (RFC 8167 section 5.4).
		cl.dialer.want()
	}
}

// tellGroup notifies the client's Group that a connection was made or lost. link.mu is not held.
func (cl *Client) tellGroup() {
	if cl.changed != nil {
		cl.changed()
	}
}

// ---- idle connections

// watch checks the connection periodically: it closes an idle one, or pings the server.
func (cl *Client) watch() {
	cfg := cl.cfg
	if cfg.IdleTimeout > 0 && len(cfg.Callbacks) == 0 {
		go cl.every(cfg.IdleTimeout, cl.closeIdle)
	}
	if cfg.KeepAlive > 0 {
		go cl.every(cfg.KeepAlive, cl.ask)
	}
}

// every calls f with the connection each time it has shown no activity for d.
func (cl *Client) every(d time.Duration, f func(c connection)) {
	t := time.NewTicker(d)
	defer t.Stop()
	var last connection
	var heard uint64
	for {
		select {
		case <-t.C:
		case <-cl.ctx.Done():
			return
		}
		c := cl.latest()
		if c == nil {
			continue
		}
		n := c.activity()
		if c == last && n == heard && c.lives() {
			f(c)
		}
		last, heard = c, c.activity()
	}
}

// closeIdle ends a connection that no call uses.
func (cl *Client) closeIdle(c connection) {
	if c.leaveIdle() {
		ctx, cancel := context.WithTimeout(cl.ctx, cl.cfg.SetupTimeout)
		defer cancel()
		_ = c.shutdown(ctx)
	}
}

// ask checks that the server is alive.
func (cl *Client) ask(c connection) {
	l := c.load()
	last := cl.last.Load()
	switch {
	case !l.room && l.dead:
		// The server cannot be asked, and the caller has left.
		c.breakOff(errSilent)
		return
	case !l.room || last == 0:
		return // the calls that use all credits are not answered, which may be legitimate
	case l.used == 0 && cl.cfg.IdleTimeout > 0 && len(cl.cfg.Callbacks) == 0:
		return // no caller needs the server, and asking would keep the connection
	}
	ctx, cancel := context.WithTimeout(cl.ctx, cl.cfg.KeepAlive)
	defer cancel()
	call := pendingOf(&rpc.Call{Prog: uint32(last >> 32), Vers: uint32(last)})
	if err := c.call(ctx, call); errors.Is(err, context.DeadlineExceeded) && call.sent {
		c.breakOff(errSilent)
	}
}

// Pauses of Dial between attempts while the server has no room.
const (
	minBusyPause = 100 * time.Millisecond
	maxBusyPause = time.Second
)

// connectPatiently makes the first connection.
func (cl *Client) connectPatiently(ctx context.Context) (*Conn, error) {
	for pause := minBusyPause; ; pause = min(2*pause, maxBusyPause) {
		cn, err := cl.connect(ctx, 0, nil)
		var full *BusyError
		end, ok := ctx.Deadline()
		if !errors.As(err, &full) || !ok || time.Until(end) < pause {
			return cn, err
		}
		select {
		case <-time.After(pause/2 + rand.N(pause/2)):
		case <-ctx.Done():
			return nil, err
		}
	}
}
