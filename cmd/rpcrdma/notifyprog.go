package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
	"github.com/rpcrdma/rpcrdma/transport"
)

// The notification program tells clients what changes in a directory of the export, by
// calls from the server to the client, over the connection that the client has made
// (RFC 8167). Its numbers are from the range that RFC 5531 section 13.1 leaves to users.
// In the language of RFC 5531 section 12:
//
//	typedef opaque token[16];
//	typedef string path<4096>;       /* names parted by "/" */
//
//	enum status {
//		OK = 0,
//		NOENT = 1,                   /* there is no such directory */
//		NOTDIR = 2,                  /* it is something else */
//		ACCES = 3,                   /* the server may not read it */
//		FULL = 4,                    /* too many subscriptions */
//		TOOMUCH = 5,                 /* too many directories or names below it */
//		SYSTEM = 6,                  /* the server's system cannot watch it */
//		UNKNOWN = 7,                 /* UNSUBSCRIBE: there is no such subscription */
//		GONE = 8                     /* ENDED: removed or renamed, or something above it */
//	};
//
//	struct subscribe_args {
//		path dir;                    /* of the export, which is "" */
//		bool recursive;              /* everything below, too */
//		token *old;                  /* what was given before, on a connection that is lost */
//	};
//
//	struct subscription {
//		token id;
//		bool again;                  /* it is the old one: nothing is lost */
//		unsigned int grace;          /* for so many seconds it outlives its connection */
//	};
//
//	union subscribe_res switch (status stat) {
//	case OK:
//		subscription ok;
//	default:
//		void;
//	};
//
//	program RPCRDMA_NOTIFY {         /* the server's */
//		version RPCRDMA_NOTIFY_V1 {
//			void          NULL(void)                = 0;
//			subscribe_res SUBSCRIBE(subscribe_args) = 1;
//			status        UNSUBSCRIBE(token)        = 2;
//		} = 1;
//	} = 0x2052444e;
//
//	enum kind {
//		CREATED = 1,
//		REMOVED = 2,                 /* or renamed to where the client does not look */
//		MODIFIED = 3,                /* perhaps said once more than it happens */
//		ATTRIBUTES = 4,              /* mode, owner, times, links */
//		OVERFLOW = 5,                /* more than can be told: look for yourself */
//		RENAMED = 6,
//		ENDED = 7                    /* the last one of the subscription */
//	};
//
//	struct change {
//		bool directory;
//		path name;                   /* below the directory of the subscription */
//	};
//
//	struct renaming {
//		change to;
//		path from;
//	};
//
//	union event switch (kind what) {
//	case CREATED:
//	case REMOVED:
//	case MODIFIED:
//	case ATTRIBUTES:
//	case OVERFLOW:                   /* whatever is below name, or everything if it is "" */
//		change what;
//	case RENAMED:
//		renaming renamed;
//	case ENDED:
//		status why;
//	};
//
//	struct notify_args {
//		token id;
//		unsigned hyper number;       /* 1, 2, 3 and so on for each subscription */
//		event events<256>;
//	};
//
//	program RPCRDMA_NOTIFIED {       /* the client's */
//		version RPCRDMA_NOTIFIED_V1 {
//			void NULL(void)          = 0;
//			void NOTIFY(notify_args) = 1;
//		} = 1;
//	} = 0x2052444f;
//
// A client that subscribes must have the second program, and calls may come before the
// answer does. Each subscription has one NOTIFY in flight at a time. What changes
// meanwhile is collected: several changes of a file's contents become one event, and
// when too much comes together a single OVERFLOW stands for all of it. So a slow client
// costs memory for a bounded number of events, and learns when it has to look for itself.
//
// When its connection is lost the client makes another one, and subscribes again with
// its token. Whoever has the token is the client. The NOTIFY that has no answer is sent
// again, and what has been collected follows. A client that is gone for longer than the
// grace period, or does not answer for so long, is not a client any more: when it comes
// back its token is not known, it gets a new subscription, and has to look for itself.
const (
	notifyProgram = 0x2052444e
	notifyVersion = 1

	notifySubscribe   = 1
	notifyUnsubscribe = 2

	notifiedProgram = 0x2052444f
	notifiedVersion = 1

	notifiedNotify = 1
)

// notifyGrace is how long a subscription outlives its connection, and how long a client
// may take for an answer.
const notifyGrace = time.Minute

// Bounds of what clients can make the server keep.
const (
	maxSubscriptions = 128
	// maxPerHost is how many of them clients at one address may have.
	maxPerHost = 32
	// maxPending and maxPendingSize are how many events wait for a client, and their
	// size as they are sent, in bytes: some 2 MB of memory for a client at most.
	maxPending     = 8192
	maxPendingSize = 512 << 10
	// maxEvents is how many are in one NOTIFY.
	maxEvents = 256
)

// A notifyToken names a subscription.
type notifyToken [16]byte

// A notifyStatus is a status.
type notifyStatus uint32

const (
	notifyOK notifyStatus = iota
	notifyNoEnt
	notifyNotDir
	notifyAcces
	notifyFull
	notifyTooMuch
	notifySystem
	notifyUnknown
	notifyGone
)

// notifyNames and notifyTexts say what a status is called and what it means. Immutable.
var (
	notifyNames = []string{"OK", "NOENT", "NOTDIR", "ACCES", "FULL", "TOOMUCH", "SYSTEM", "UNKNOWN", "GONE"}
	notifyTexts = []string{
		notifyNoEnt:   "no such directory",
		notifyNotDir:  "not a directory",
		notifyAcces:   "the server may not read it",
		notifyFull:    "the server has too many subscriptions",
		notifyTooMuch: "too many directories or files to watch",
		notifySystem:  "the server's system cannot watch it",
		notifyUnknown: "the server does not know the subscription",
		notifyGone:    "the directory has been removed or renamed",
	}
)

func (s notifyStatus) String() string {
	if uint64(s) < uint64(len(notifyNames)) {
		return notifyNames[s]
	}
	return fmt.Sprintf("status %d", uint32(s))
}

// Error is the status for people.
func (s notifyStatus) Error() string {
	if s != notifyOK && uint64(s) < uint64(len(notifyTexts)) {
		return notifyTexts[s] + " (" + s.String() + ")"
	}
	return s.String()
}

// notifyStatusOf is the status for what watch has failed with.
func notifyStatusOf(err error) notifyStatus {
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, errNotAlone), errors.Is(err, syscall.EINVAL):
		return notifyNoEnt
	case errors.Is(err, syscall.ENOTDIR):
		return notifyNotDir
	case errors.Is(err, fs.ErrPermission):
		return notifyAcces
	case errors.Is(err, errTooMuch), errors.Is(err, syscall.ENAMETOOLONG):
		return notifyTooMuch
	}
	return notifySystem
}

// An eventKind is what has happened.
type eventKind uint32

const (
	eventCreated eventKind = iota + 1
	eventRemoved
	eventModified
	eventAttributes
	eventOverflow
	eventRenamed
	eventEnded
)

// eventNames are how kinds are printed. Immutable.
var eventNames = []string{
	eventCreated: "created", eventRemoved: "removed", eventModified: "modified", eventAttributes: "attributes",
	eventOverflow: "overflow", eventRenamed: "renamed", eventEnded: "ended",
}

func (k eventKind) String() string {
	if k != 0 && uint64(k) < uint64(len(eventNames)) {
		return eventNames[k]
	}
	return fmt.Sprintf("kind %d", uint32(k))
}

// An event is something that has happened.
type event struct {
	kind   eventKind
	isDir  bool
	path   string       // now, below the directory of the subscription
	from   string       // eventRenamed: before
	status notifyStatus // eventEnded
}

// size is how long it is when it is sent, in bytes.
func (e *event) size() int {
	switch e.kind {
	case eventEnded:
		return 2 * xdr.Unit
	case eventRenamed:
		return 2*xdr.Unit + stringSize(e.path) + stringSize(e.from)
	}
	return 2*xdr.Unit + stringSize(e.path)
}

func stringSize(s string) int { return xdr.Unit + (len(s)+xdr.Unit-1)&^(xdr.Unit-1) }

func (e *event) append(b []byte) []byte {
	b = xdr.AppendUint32(b, uint32(e.kind))
	if e.kind == eventEnded {
		return xdr.AppendUint32(b, uint32(e.status))
	}
	b = xdr.AppendBool(b, e.isDir)
	b = xdr.AppendString(b, e.path)
	if e.kind == eventRenamed {
		b = xdr.AppendString(b, e.from)
	}
	return b
}

func (e *event) decode(d *xdr.Decoder) {
	*e = event{kind: eventKind(d.Uint32())}
	switch e.kind {
	case eventCreated, eventRemoved, eventModified, eventAttributes, eventOverflow, eventRenamed:
		e.isDir = d.Bool()
		e.path = d.String(maxEventPath)
		if e.kind == eventRenamed {
			e.from = d.String(maxEventPath)
		}
	case eventEnded:
		e.status = notifyStatus(d.Uint32())
	default:
		d.Fail("no such kind of event")
	}
}

// notifyArgs are the arguments of NOTIFY.
type notifyArgs struct {
	id     notifyToken
	number uint64
	events []event
}

// notifyHead is the size of notifyArgs without any event, in bytes.
const notifyHead = 16 + 8 + 4

func (a *notifyArgs) append(b []byte) []byte {
	b = xdr.AppendFixedOpaque(b, a.id[:])
	b = xdr.AppendUint64(b, a.number)
	b = xdr.AppendUint32(b, uint32(len(a.events)))
	for i := range a.events {
		b = a.events[i].append(b)
	}
	return b
}

// decode uses the memory of a.events again.
func (a *notifyArgs) decode(d *xdr.Decoder) {
	copy(a.id[:], d.FixedOpaque(len(a.id)))
	a.number = d.Uint64()
	a.events = a.events[:0]
	for range d.Count(maxEvents, 2*xdr.Unit) {
		var e event
		e.decode(d)
		a.events = append(a.events, e)
	}
}

// subscribeArgs are the arguments of SUBSCRIBE.
type subscribeArgs struct {
	dir       string
	recursive bool
	again     bool // old is there
	old       notifyToken
}

func (a *subscribeArgs) append(b []byte) []byte {
	b = xdr.AppendString(b, a.dir)
	b = xdr.AppendBool(b, a.recursive)
	b = xdr.AppendBool(b, a.again)
	if a.again {
		b = xdr.AppendFixedOpaque(b, a.old[:])
	}
	return b
}

func (a *subscribeArgs) decode(d *xdr.Decoder) {
	a.dir = d.String(maxEventPath)
	a.recursive = d.Bool()
	if a.again = d.Bool(); a.again {
		copy(a.old[:], d.FixedOpaque(len(a.old)))
	}
}

// subscribeRes are the results of SUBSCRIBE.
type subscribeRes struct {
	status notifyStatus
	id     notifyToken
	again  bool
	grace  uint32 // seconds
}

func (r *subscribeRes) append(b []byte) []byte {
	b = xdr.AppendUint32(b, uint32(r.status))
	if r.status == notifyOK {
		b = xdr.AppendFixedOpaque(b, r.id[:])
		b = xdr.AppendBool(b, r.again)
		b = xdr.AppendUint32(b, r.grace)
	}
	return b
}

func (r *subscribeRes) decode(d *xdr.Decoder) {
	*r = subscribeRes{status: notifyStatus(d.Uint32())}
	if r.status == notifyOK {
		copy(r.id[:], d.FixedOpaque(len(r.id)))
		r.again = d.Bool()
		r.grace = d.Uint32()
	}
}

// ---- the server's side

// A notifier is the notification program of a server.
type notifier struct {
	changes *changes
	log     *slog.Logger
	grace   time.Duration // that a subscription outlives its connection; then it is asked whether it is there
	answer  time.Duration // that a client may take for an answer

	mu      sync.Mutex
	closed  bool
	subs    map[notifyToken]*subscription
	hosts   map[string]int // how many of them clients at an address have
	running sync.WaitGroup
}

// A subscription is a client that is told what changes.
type subscription struct {
	n         *notifier
	id        notifyToken
	host      string
	dir       string
	recursive bool
	interest  *interest
	back      *transport.Backchannel
	ctx       context.Context // ends with it
	cancel    context.CancelFunc
	kick      chan struct{} // capacity 1: look at what is below

	mu     sync.Mutex
	conn   *transport.Conn
	number uint64 // of the latest NOTIFY
	queue  pending
}

// newNotifier returns the program for an export. Close must be called before that of
// the export.
func newNotifier(e *export, log *slog.Logger) (*notifier, error) {
	c, err := newChanges(e.root, log)
	if err != nil {
		return nil, err
	}
	return &notifier{
		changes: c, log: log, grace: notifyGrace, answer: notifyGrace,
		subs: make(map[notifyToken]*subscription), hosts: make(map[string]int),
	}, nil
}

func (n *notifier) program() transport.Program {
	return transport.Program{
		Number: notifyProgram, Low: notifyVersion, High: notifyVersion,
		Handler: transport.HandlerFunc(n.serve),
	}
}

// Close ends all subscriptions and what they take.
func (n *notifier) Close() error {
	n.mu.Lock()
	n.closed = true
	for _, s := range n.subs {
		s.cancel()
	}
	n.mu.Unlock()
	n.running.Wait()
	return n.changes.Close()
}

func (n *notifier) serve(_ context.Context, req *transport.Request, res *transport.Response) {
	d := xdr.NewDecoder(req.Args)
	switch req.Proc {
	case notifySubscribe:
		var a subscribeArgs
		a.decode(&d)
		if d.End() != nil {
			res.Fail(oncrpc.GarbageArgs)
			return
		}
		r := n.subscribe(&a, req.Conn())
		res.Results = r.append(res.Results)
	case notifyUnsubscribe:
		var id notifyToken
		copy(id[:], d.FixedOpaque(len(id)))
		if d.End() != nil {
			res.Fail(oncrpc.GarbageArgs)
			return
		}
		status := notifyUnknown
		if s := n.find(id); s != nil {
			s.cancel()
			status = notifyOK
		}
		res.Results = xdr.AppendUint32(res.Results, uint32(status))
	default:
		res.Fail(oncrpc.ProcUnavail)
	}
}

func (n *notifier) find(id notifyToken) *subscription {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.subs[id]
}

// subscribe finds or makes a subscription, for calls over conn.
func (n *notifier) subscribe(a *subscribeArgs, conn *transport.Conn) (r subscribeRes) {
	r.grace = uint32(n.grace / time.Second)
	if a.again {
		s := n.find(a.old)
		if s != nil && s.dir == a.dir && s.recursive == a.recursive && s.bind(conn) {
			r.id, r.again = s.id, true
			return r
		}
	}
	s, status := n.add(a, conn)
	if status != notifyOK {
		r.status = status
		return r
	}
	var err error
	if s.interest, err = n.changes.watch(a.dir, a.recursive, s.tell); err != nil {
		s.cancel()
		n.remove(s)
		r.status = notifyStatusOf(err)
		return r
	}
	s.bind(conn)
	r.id = s.id
	go s.run()
	return r
}

// add makes room for a subscription. If that fails it says why, otherwise run or remove
// must follow.
func (n *notifier) add(a *subscribeArgs, conn *transport.Conn) (*subscription, notifyStatus) {
	host := conn.RemoteAddr().String()
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	s := &subscription{n: n, host: host, dir: a.dir, recursive: a.recursive, back: transport.NewBackchannel(), kick: make(chan struct{}, 1)}
	rand.Read(s.id[:]) // never fails
	s.ctx, s.cancel = context.WithCancel(context.Background())
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed || len(n.subs) >= maxSubscriptions || n.hosts[host] >= maxPerHost {
		s.cancel()
		return nil, notifyFull
	}
	n.subs[s.id] = s
	n.hosts[host]++
	n.running.Add(1)
	return s, notifyOK
}

// remove undoes add.
func (n *notifier) remove(s *subscription) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.subs, s.id)
	if n.hosts[s.host]--; n.hosts[s.host] == 0 {
		delete(n.hosts, s.host)
	}
	n.running.Done()
}

// bind has the client called over conn from now on. It returns false when the
// subscription has ended.
func (s *subscription) bind(conn *transport.Conn) bool {
	s.mu.Lock()
	old := s.conn
	ok := s.ctx.Err() == nil && s.back.Bind(conn, 0) == nil
	if ok {
		s.conn = conn
	}
	s.mu.Unlock()
	s.wake()
	if ok && old != nil && old.Done() != conn.Done() {
		// The client says that it is lost, which need not have been noticed here.
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

// tell is how the subscription learns what has changed.
func (s *subscription) tell(e event) {
	s.mu.Lock()
	s.queue.add(e)
	s.mu.Unlock()
	s.wake()
}

// run tells the client, until one of the two wants no more.
func (s *subscription) run() {
	why := s.notify()
	s.n.log.Debug("subscription ended", "host", s.host, "dir", s.dir, "why", why)
	s.cancel()
	s.back.Close()
	s.n.changes.unwatch(s.interest)
	s.n.remove(s)
}

// notify returns why there is nothing more to tell.
func (s *subscription) notify() (why error) {
	// A client that has answered once is known to be ready for calls, and may lose its
	// connection from then on: see transport.Backchannel.
	if why := s.ask(); why != nil {
		return why
	}
	timer := time.NewTimer(s.n.grace)
	defer timer.Stop()
	for {
		s.mu.Lock()
		conn := s.conn
		s.mu.Unlock()
		ended := conn.Done()
		if conn.Err() != nil {
			ended = nil // and has been seen
		}
		timer.Reset(s.n.grace)
		select {
		case <-s.ctx.Done():
			return s.ctx.Err()
		case <-ended:
		case <-s.kick:
			for more := true; more; {
				if more, why = s.send(); why != nil {
					return why
				}
			}
		case <-timer.C:
			// The client has been gone for so long, or silent, and it has to be
			// seen whether it is there.
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
	ctx, cancel := context.WithTimeout(s.ctx, s.n.answer)
	defer cancel()
	if err := s.back.Null(ctx, notifiedProgram, notifiedVersion); err != nil {
		return s.silent(err)
	}
	return nil
}

// send makes the next NOTIFY, if there is something to tell.
func (s *subscription) send() (more bool, err error) {
	s.mu.Lock()
	events := s.queue.take(s.room())
	if len(events) > 0 {
		s.number++
	}
	a := notifyArgs{id: s.id, number: s.number, events: events}
	s.mu.Unlock()
	if len(events) == 0 {
		return false, nil
	}
	ctx, cancel := context.WithTimeout(s.ctx, s.n.answer)
	defer cancel()
	call := transport.Call{Prog: notifiedProgram, Vers: notifiedVersion, Proc: notifiedNotify, Args: a.append(nil)}
	err = s.back.Call(ctx, &call)
	var size *transport.SizeError
	if errors.As(err, &size) {
		// The next connection takes less than the one it was meant for.
		a.events = []event{{kind: eventOverflow, isDir: true}}
		call.Args = a.append(nil)
		err = s.back.Call(ctx, &call)
	}
	if err != nil {
		return false, s.silent(err)
	}
	if last := events[len(events)-1]; last.kind == eventEnded {
		return false, last.status
	}
	return true, nil
}

// room is how many bytes of events fit into a NOTIFY on the connection in use. mu is
// held.
func (s *subscription) room() int {
	// The headers of transport and RPC, and some to spare.
	const heads = 28 + 40 + 28
	return s.conn.Info().InlineSend - heads - notifyHead
}

// silent is for a client that has failed with err to answer. If it is there all the
// same it has to learn that it is told nothing any more: it will, when it comes back.
func (s *subscription) silent(err error) error {
	s.mu.Lock()
	conn := s.conn
	s.mu.Unlock()
	if s.ctx.Err() == nil {
		conn.Close()
	}
	return err
}

// A pending is what a client has not been told yet.
type pending struct {
	events []event
	size   int
	// told is what need not be said of a path any more: it is among the events, and
	// who hears of it will find the later change as well.
	told map[string]told
}

type told struct{ modified, attributes bool }

// add adds an event.
func (p *pending) add(e event) {
	if p.overflowed() && e.kind != eventEnded {
		return
	}
	t := p.told[e.path]
	switch {
	case e.kind == eventModified && t.modified, e.kind == eventAttributes && t.attributes:
		return
	case e.kind == eventCreated:
		t = told{true, true}
	case e.kind == eventModified:
		t.modified = true
	case e.kind == eventAttributes:
		t.attributes = true
	default:
		t = told{}
	}
	if p.size += e.size(); (len(p.events) >= maxPending || p.size > maxPendingSize) && e.kind != eventEnded {
		e = event{kind: eventOverflow, isDir: true}
		*p = pending{size: e.size()}
	}
	p.events = append(p.events, e)
	if e.kind == eventRenamed {
		delete(p.told, e.from)
	}
	if t == (told{}) {
		delete(p.told, e.path)
		return
	}
	if p.told == nil {
		p.told = make(map[string]told)
	}
	p.told[e.path] = t
}

// overflowed tells whether nothing else needs to be said.
func (p *pending) overflowed() bool {
	if len(p.events) == 0 {
		return false
	}
	last := &p.events[len(p.events)-1]
	return last.kind == eventOverflow && last.path == ""
}

// take takes out the first events, as many as fit into room bytes.
func (p *pending) take(room int) []event {
	n, size := 0, 0
	for ; n < min(len(p.events), maxEvents); n++ {
		e := &p.events[n]
		more := e.size()
		if size+more > room {
			if n > 0 {
				break
			}
			p.size -= more
			e.shorten(room)
			more = e.size()
			p.size += more
		}
		size += more
		delete(p.told, e.path)
	}
	events := p.events[:n:n]
	p.size -= size
	if p.events = p.events[n:]; len(p.events) == 0 {
		*p = pending{}
	}
	return events
}

// shorten makes it an event that fits into room bytes: a directory above, where the
// client is to look.
func (e *event) shorten(room int) {
	*e = event{kind: eventOverflow, isDir: true, path: e.path}
	for e.path != "" && e.size() > room {
		e.path = e.path[:max(strings.LastIndexByte(e.path, '/'), 0)]
	}
}
