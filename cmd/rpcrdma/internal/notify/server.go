package notify

import (
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/transport"
)

// Limits of a [Server].
const (
	// Grace is how long a subscription outlives its connection, and how long a client
	// may take to answer a call.
	Grace = time.Minute
	// MaxSubscriptions is how many subscriptions a server keeps.
	MaxSubscriptions = 128
	// MaxPerHost is how many of them the clients of one host may have: see [transport.Conn.Host].
	MaxPerHost = 32
)

// A Source knows what changes in a tree of directories.
type Source interface {
	// Watch calls tell for each change in directory dir, and with recursive also below
	// it, until stop is called or an event of kind [Ended] has been reported. dir is a
	// slash-separated path below the root of the source, not cleaned; "" is the root.
	// tell returns at once and calls nothing back; it may be called before Watch
	// returns, but not after stop has returned. The client sees the error as the
	// [Status] that [StatusOf] finds for it.
	Watch(dir string, recursive bool, tell func(Event)) (stop func(), err error)
}

// A Server is the server's side of the notification program. Its methods may be called by
// many goroutines at once.
type Server struct {
	source Source
	log    *slog.Logger
	grace  time.Duration // after which a silent client is pinged
	answer time.Duration // that a client may take to answer a call

	mu      sync.Mutex
	closed  bool
	subs    map[token]*subscription
	hosts   map[netip.Prefix]int // subscriptions by host; a provider may have no addresses
	running sync.WaitGroup
}

// NewServer returns a server of the changes that source reports. The source remains the
// caller's, and must not be closed before the server. log may be nil.
func NewServer(source Source, log *slog.Logger) *Server {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Server{
		source: source, log: log, grace: Grace, answer: Grace,
		subs: make(map[token]*subscription), hosts: make(map[netip.Prefix]int),
	}
}

// Program returns the program, for a [transport.Server] to register.
func (s *Server) Program() rpc.Program {
	return rpc.Program{
		Number: ServerProgram, Low: ServerVersion, High: ServerVersion,
		Handler: rpc.HandlerFunc(s.serve),
	}
}

// Close ends all subscriptions, and refuses new ones. It returns when the source is no
// longer in use.
func (s *Server) Close() error {
	s.mu.Lock()
	s.closed = true
	for _, sub := range s.subs {
		sub.cancel()
	}
	s.mu.Unlock()
	s.running.Wait()
	return nil
}

func (s *Server) serve(_ context.Context, req *rpc.Request, res *rpc.Response) {
	d := xdr.NewDecoder(req.Args)
	switch req.Proc {
	case ProcSubscribe:
		var a subscribeArgs
		a.Decode(&d)
		if d.End() != nil {
			res.Fail(oncrpc.GarbageArgs)
			return
		}
		r := s.subscribe(&a, req.Conn())
		res.Results = r.Append(res.Results)
	case ProcUnsubscribe:
		var id token
		id.Decode(&d)
		if d.End() != nil {
			res.Fail(oncrpc.GarbageArgs)
			return
		}
		status := StatusUnknown
		if sub := s.find(id); sub != nil {
			sub.cancel()
			status = StatusOK
		}
		res.Results = status.Append(res.Results)
	default:
		res.Fail(oncrpc.ProcUnavail)
	}
}

func (s *Server) find(id token) *subscription {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.subs[id]
}

// subscribe finds or makes a subscription, with callbacks over conn.
func (s *Server) subscribe(a *subscribeArgs, conn rpc.Conn) (r subscribeRes) {
	r.ok.grace = uint32(s.grace / time.Second)
	if a.old.again {
		sub := s.find(a.old.id)
		if sub != nil && sub.dir == a.dir && sub.recursive == a.recursive && sub.bind(conn) {
			r.ok.id, r.ok.again = sub.id, true
			return r
		}
	}
	sub, status := s.add(a, conn)
	if status != StatusOK {
		r.status = status
		return r
	}
	var err error
	if sub.stop, err = s.source.Watch(a.dir, a.recursive, sub.tell); err != nil {
		sub.cancel()
		s.remove(sub)
		r.status = StatusOf(err)
		return r
	}
	sub.bind(conn)
	r.ok.id = sub.id
	go sub.run()
	return r
}

// add makes a subscription within the limits. Unless the status says why not, the caller
// runs or removes it.
func (s *Server) add(a *subscribeArgs, conn rpc.Conn) (*subscription, Status) {
	host := conn.Host()
	sub := &subscription{
		server: s, host: host, dir: a.dir, recursive: a.recursive,
		back: transport.NewBackchannel(), kick: make(chan struct{}, 1),
	}
	rand.Read(sub.id[:]) // never fails
	sub.ctx, sub.cancel = context.WithCancel(context.Background())
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || len(s.subs) >= MaxSubscriptions || s.hosts[host] >= MaxPerHost {
		sub.cancel()
		return nil, StatusFull
	}
	s.subs[sub.id] = sub
	s.hosts[host]++
	s.running.Add(1)
	return sub, StatusOK
}

// remove undoes add.
func (s *Server) remove(sub *subscription) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.subs, sub.id)
	if s.hosts[sub.host]--; s.hosts[sub.host] == 0 {
		delete(s.hosts, sub.host)
	}
	s.running.Done()
}

// A subscription sends events to one client.
type subscription struct {
	server    *Server
	id        token
	host      netip.Prefix // of the client
	dir       string
	recursive bool
	stop      func() // of the source
	back      *transport.Backchannel
	ctx       context.Context // ends with the subscription
	cancel    context.CancelFunc
	kick      chan struct{} // capacity 1: conn or queue has changed

	mu     sync.Mutex
	conn   rpc.Conn
	number uint64 // of the latest NOTIFY
	queue  pending
}

// bind has the client called over conn from now on. It returns false if the subscription
// has ended.
func (s *subscription) bind(conn rpc.Conn) bool {
	s.mu.Lock()
	old := s.conn
	ok := s.ctx.Err() == nil && s.back.Bind(conn, 0) == nil
	if ok {
		s.conn = conn
	}
	s.mu.Unlock()
	s.wake()
	if ok && old != nil && old.Done() != conn.Done() {
		// The client has lost it, which this end may not have noticed.
		old.Close()
	}
	return ok
}

func (s *subscription) wake() {
	select {
	case s.kick <- struct{}{}:
	default:
	}
}

// tell accepts an event from the source.
func (s *subscription) tell(e Event) {
	s.mu.Lock()
	s.queue.add(e)
	s.mu.Unlock()
	s.wake()
}

// run sends events until the subscription ends.
func (s *subscription) run() {
	why := s.notify()
	s.server.log.Debug("subscription ended", "host", s.host, "dir", s.dir, "why", why)
	s.cancel()
	s.back.Close()
	s.stop()
	s.server.remove(s)
}

// notify sends events, and returns why the subscription ends.
func (s *subscription) notify() (why error) {
	// Only a client that has answered a call may lose its connection: see
	// transport.Backchannel.
	if why := s.ask(); why != nil {
		return why
	}
	timer := time.NewTimer(s.server.grace)
	defer timer.Stop()
	for {
		s.mu.Lock()
		conn := s.conn
		s.mu.Unlock()
		lost := conn.Done()
		if conn.Err() != nil {
			lost = nil // the grace period has begun
		}
		timer.Reset(s.server.grace)
		select {
		case <-s.ctx.Done():
			return s.ctx.Err()
		case <-lost:
		case <-s.kick:
			for more := true; more; {
				if more, why = s.send(); why != nil {
					return why
				}
			}
		case <-timer.C:
			if conn.Err() != nil {
				return conn.Err()
			}
			if why := s.ask(); why != nil {
				return why
			}
		}
	}
}

// ask finds out whether the client is there.
func (s *subscription) ask() error {
	ctx, cancel := context.WithTimeout(s.ctx, s.server.answer)
	defer cancel()
	if err := s.back.Null(ctx, ClientProgram, ClientVersion); err != nil {
		return s.silent(err)
	}
	return nil
}

// send makes the next NOTIFY if there are events. It returns whether there may be more.
func (s *subscription) send() (more bool, err error) {
	s.mu.Lock()
	events := s.queue.take(s.limit())
	if len(events) > 0 {
		s.number++
	}
	a := notifyArgs{id: s.id, number: s.number, events: events}
	s.mu.Unlock()
	if len(events) == 0 {
		return false, nil
	}
	ctx, cancel := context.WithTimeout(s.ctx, s.server.answer)
	defer cancel()
	call := rpc.Call{Prog: ClientProgram, Vers: ClientVersion, Proc: ProcNotify, Args: a.Append(nil)}
	err = s.back.Call(ctx, &call)
	var size *rpc.SizeError
	if errors.As(err, &size) {
		// The connection that came next takes less than the one it was made for.
		a.events = []Event{overflow()}
		call.Args = a.Append(nil)
		err = s.back.Call(ctx, &call)
	}
	if err != nil {
		return false, s.silent(err)
	}
	if last := events[len(events)-1]; last.Kind == Ended {
		return false, last.Status
	}
	return true, nil
}

// tcpNotify is how long a NOTIFY over TCP is at most, in bytes.
const tcpNotify = 4096

// limit is how many bytes of events a NOTIFY takes on the connection in use. mu is held.
func (s *subscription) limit() int {
	// The headers of transport and RPC, and some to spare.
	const heads = 28 + 40 + 28
	inline := s.conn.Info().InlineSend
	if inline == 0 { // over TCP, which has no such limit
		inline = tcpNotify
	}
	return inline - heads - notifyHead
}

// silent ends the connection of a client that has not answered, for the reason err, which
// it returns. A client that is there after all learns so that its subscription has ended.
func (s *subscription) silent(err error) error {
	s.mu.Lock()
	conn := s.conn
	s.mu.Unlock()
	if s.ctx.Err() == nil {
		conn.Close()
	}
	return err
}
