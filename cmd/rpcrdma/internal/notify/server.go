package notify

import (
	"context"
	"log/slog"
	"net/netip"
	"sync"

	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/rpc/stream"
)

// Limits of a [Server].
const (
	// MaxWatches is how many watches a server permits.
	MaxWatches = 128
	// MaxPerHost is how many of them the clients of one host may have: see [rpc.Conn.Host].
	MaxPerHost = 32
)

// A Source reports changes in a tree of directories.
type Source interface {
	// Watch calls tell for each change in directory dir, and with recursive also below it, if the caller of req may see
	// it. It does so until stop is called or an event of kind [Ended] has been reported. dir is a slash-separated path
	// below the root of the source, not cleaned; "" is the root. tell returns at once and does not call back; it may be
	// called before Watch returns, but not after stop has returned. The client receives an error as its [StatusOf].
	Watch(req *rpc.Request, dir string, recursive bool, tell func(Event)) (stop func(), err error)
}

// A Server executes the program. Its methods are safe for concurrent use.
type Server struct {
	source Source
	log    *slog.Logger

	mu      sync.Mutex
	closed  bool
	watches map[*watch]rpc.Conn
	hosts   map[netip.Prefix]int // watches by host; a provider may have no addresses
	running sync.WaitGroup
}

var _ NotifyV1Server = (*Server)(nil)

// NewServer returns a server of the changes that source reports. The caller keeps owning source, which must not be
// closed before the server. log may be nil.
func NewServer(source Source, log *slog.Logger) *Server {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Server{source: source, log: log, watches: make(map[*watch]rpc.Conn), hosts: make(map[netip.Prefix]int)}
}

// Close ends all watches by closing their connections, so that clients watch again over another one, and rejects new
// ones. It returns when the source is no longer in use.
func (s *Server) Close() error {
	s.mu.Lock()
	s.closed = true
	for _, conn := range s.watches {
		conn.Close()
	}
	s.mu.Unlock()
	s.running.Wait()
	return nil
}

// Watch streams the changes in a directory.
func (s *Server) Watch(ctx context.Context, req *rpc.Request, args *WatchArgs, out *stream.Sender[Event]) error {
	conn := req.Conn()
	w := &watch{kick: make(chan struct{}, 1)}
	if !s.add(w, conn) {
		return out.Send(Event{Kind: Ended, Status: StatusFull})
	}
	defer s.remove(w)
	stop, err := s.source.Watch(req, args.Dir, args.Recursive, w.tell)
	if err != nil {
		return out.Send(Event{Kind: Ended, Status: StatusOf(err)})
	}
	defer stop()
	if err := out.Send(Event{Kind: Watching}); err != nil {
		return err
	}
	limit := eventLimit(conn.Info())
	for {
		select {
		case <-w.kick:
		case <-ctx.Done():
			s.log.Debug("a watch has ended", "host", conn.Host(), "dir", args.Dir, "why", context.Cause(ctx))
			return context.Cause(ctx)
		}
		for e, ok := w.next(limit); ok; e, ok = w.next(limit) {
			if err := out.Send(e); err != nil || e.Kind == Ended {
				return err
			}
		}
	}
}

// add counts a watch of a client. It returns false if that exceeds the limits.
func (s *Server) add(w *watch, conn rpc.Conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	host := conn.Host()
	if s.closed || len(s.watches) >= MaxWatches || s.hosts[host] >= MaxPerHost {
		return false
	}
	s.watches[w] = conn
	s.hosts[host]++
	s.running.Add(1)
	return true
}

// remove undoes add.
func (s *Server) remove(w *watch) {
	s.mu.Lock()
	defer s.mu.Unlock()
	host := s.watches[w].Host()
	delete(s.watches, w)
	if s.hosts[host]--; s.hosts[host] == 0 {
		delete(s.hosts, host)
	}
	s.running.Done()
}

// watch holds the events that wait for a client.
type watch struct {
	kick chan struct{} // capacity 1: there are events

	mu    sync.Mutex
	queue pending
}

// tell accepts an event from the source.
func (w *watch) tell(e Event) {
	w.mu.Lock()
	w.queue.add(e)
	w.mu.Unlock()
	select {
	case w.kick <- struct{}{}:
	default:
	}
}

// next removes and returns the first event, shortened to limit bytes.
func (w *watch) next(limit int) (e Event, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.queue.take(limit)
}

// tcpEvent is the longest event over TCP, in bytes.
const tcpEvent = 4096

// eventLimit returns the longest event on a connection, in bytes: it must fit inline.
func eventLimit(info rpc.ConnInfo) int {
	const heads = 256         // more than those of transport, RPC and stream together
	if info.InlineSend == 0 { // TCP, which has no such limit
		return tcpEvent
	}
	return info.InlineSend - heads
}
