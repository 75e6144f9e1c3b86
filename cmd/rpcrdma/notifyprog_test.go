package main

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rpcrdma/rpcrdma/internal/leak"
	"github.com/rpcrdma/rpcrdma/internal/testkit"
	"github.com/rpcrdma/rpcrdma/iwarp"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
	"github.com/rpcrdma/rpcrdma/transport"
)

var notifyExample = notifyArgs{
	id: notifyToken{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, number: 7,
	events: []event{
		{kind: eventCreated, isDir: true, path: "ab"},
		{kind: eventRenamed, path: "a/bcd", from: "xy"},
		{kind: eventOverflow, isDir: true},
		{kind: eventEnded, status: notifyGone},
	},
}

// Written by hand from the description in notifyprog.go.
const notifyGolden = `
	00010203 04050607 08090a0b 0c0d0e0f  00000000 00000007  00000004
	00000001 00000001 00000002 61620000
	00000006 00000000 00000005 612f6263 64000000 00000002 78790000
	00000005 00000001 00000000
	00000007 00000008`

func unhex(t testing.TB, text string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.Join(strings.Fields(text), ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestNotifyCodec(t *testing.T) {
	golden := unhex(t, notifyGolden)
	if b := notifyExample.append(nil); !bytes.Equal(b, golden) {
		t.Errorf("NOTIFY is\n%x, want\n%x", b, golden)
	}
	size := notifyHead
	for _, e := range notifyExample.events {
		size += e.size()
	}
	if size != len(golden) {
		t.Errorf("NOTIFY has %d bytes, counted %d", len(golden), size)
	}
	var a notifyArgs
	d := xdr.NewDecoder(golden)
	if a.decode(&d); d.End() != nil || !reflect.DeepEqual(a, notifyExample) {
		t.Errorf("decoded %+v, %v", a, d.End())
	}
	// Memory is taken for the paths alone.
	if n := testing.AllocsPerRun(100, func() {
		d := xdr.NewDecoder(golden)
		a.decode(&d)
	}); n != 3 {
		t.Errorf("%v allocations for 3 names", n)
	}
	for n := range golden {
		d := xdr.NewDecoder(golden[:n])
		if a.decode(&d); d.Err() == nil {
			t.Errorf("%d of %d bytes decode", n, len(golden))
		}
	}

	for _, tt := range []struct {
		args subscribeArgs
		hex  string
	}{
		{subscribeArgs{dir: "in", recursive: true}, "00000002 696e0000 00000001 00000000"},
		{
			subscribeArgs{again: true, old: notifyExample.id},
			"00000000 00000000 00000001 00010203 04050607 08090a0b 0c0d0e0f",
		},
	} {
		want := unhex(t, tt.hex)
		if b := tt.args.append(nil); !bytes.Equal(b, want) {
			t.Errorf("SUBSCRIBE is %x, want %x", b, want)
		}
		var a subscribeArgs
		d := xdr.NewDecoder(want)
		if a.decode(&d); d.End() != nil || a != tt.args {
			t.Errorf("decoded %+v, %v", a, d.End())
		}
	}
	for _, tt := range []struct {
		res subscribeRes
		hex string
	}{
		{subscribeRes{status: notifyTooMuch}, "00000005"},
		{subscribeRes{id: notifyExample.id, again: true, grace: 60}, "00000000 00010203 04050607 08090a0b 0c0d0e0f 00000001 0000003c"},
	} {
		want := unhex(t, tt.hex)
		if b := tt.res.append(nil); !bytes.Equal(b, want) {
			t.Errorf("results are %x, want %x", b, want)
		}
		var r subscribeRes
		d := xdr.NewDecoder(want)
		if r.decode(&d); d.End() != nil || r != tt.res {
			t.Errorf("decoded %+v, %v", r, d.End())
		}
	}
}

func FuzzNotify(f *testing.F) {
	f.Add(unhex(f, notifyGolden))
	f.Add(unhex(f, "00000002 696e0000 00000001 00000000"))
	f.Add(unhex(f, "00000000 00010203 04050607 08090a0b 0c0d0e0f 00000001 0000003c"))
	f.Fuzz(func(t *testing.T, b []byte) {
		again := func(d *xdr.Decoder, v any, encode func([]byte) []byte) {
			if d.End() != nil {
				return
			}
			// Padding may have been anything.
			if out := encode(nil); len(out) != len(b) {
				t.Errorf("%x decodes to %+v, which is %x", b, v, out)
			}
		}
		var n notifyArgs
		d := xdr.NewDecoder(b)
		n.decode(&d)
		again(&d, n, n.append)
		if len(n.events) > maxEvents {
			t.Errorf("%d events", len(n.events))
		}
		for _, e := range n.events {
			_ = e.kind.String() + e.text() + e.status.Error()
		}
		var a subscribeArgs
		d = xdr.NewDecoder(b)
		a.decode(&d)
		again(&d, a, a.append)
		var r subscribeRes
		d = xdr.NewDecoder(b)
		r.decode(&d)
		again(&d, r, r.append)
	})
}

// What waits for a client says everything, as far as there is room, and nothing that has
// been said already.
func TestPending(t *testing.T) {
	ev := func(kind eventKind, path string) event { return event{kind: kind, path: path} }
	all := func(p *pending) (got []string) {
		for {
			events := p.take(4000)
			if len(events) == 0 {
				return got
			}
			for _, e := range events {
				got = append(got, e.kind.String()+" "+e.path)
			}
		}
	}
	for _, tt := range []struct {
		name string
		in   []event
		want string
	}{
		{"contents", []event{ev(eventModified, "a"), ev(eventModified, "b"), ev(eventModified, "a"), ev(eventAttributes, "a"), ev(eventAttributes, "a")},
			"modified a, modified b, attributes a"},
		{"of a new file", []event{ev(eventCreated, "a"), ev(eventModified, "a"), ev(eventAttributes, "a"), ev(eventRemoved, "a"), ev(eventCreated, "a"), ev(eventModified, "a")},
			"created a, removed a, created a"},
		{"of a file that was renamed", []event{ev(eventCreated, "a"), {kind: eventRenamed, path: "b", from: "a"}, ev(eventModified, "b"), ev(eventModified, "a")},
			"created a, renamed b, modified b, modified a"},
		{"the end", []event{ev(eventCreated, "a"), {kind: eventEnded, status: notifyGone}}, "created a, ended "},
		{"more than can be told", []event{ev(eventCreated, "a"), ev(eventOverflow, ""), ev(eventCreated, "b"), {kind: eventEnded}}, "created a, overflow , ended "},
	} {
		var p pending
		for _, e := range tt.in {
			p.add(e)
		}
		if got := strings.Join(all(&p), ", "); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
		if p.size != 0 || p.events != nil || p.told != nil {
			t.Errorf("%s: something is left: %+v", tt.name, p)
		}
	}

	// What has been taken is said again.
	var p pending
	p.add(ev(eventCreated, "a"))
	p.take(4000)
	p.add(ev(eventModified, "a"))
	if got := all(&p); !slices.Equal(got, []string{"modified a"}) {
		t.Errorf("after what was taken: %q", got)
	}

	// It is bounded, by number and by size.
	for _, long := range []int{1, 3000} {
		p = pending{}
		for i := range 3 * maxPending {
			p.add(ev(eventCreated, fmt.Sprintf("%0*d", long, i)))
			if len(p.events) > maxPending || p.size > maxPendingSize || len(p.told) > maxPending {
				t.Fatalf("%d events of %d bytes wait", len(p.events), p.size)
			}
		}
		if got := all(&p); !slices.Equal(got, []string{"overflow "}) {
			t.Errorf("after too many: %.100q", got)
		}
	}

	// What fits into no message becomes a directory to look in.
	deep := strings.Repeat("dir/", 300)
	p.add(ev(eventCreated, deep+"x"))
	p.add(event{kind: eventRenamed, path: "y", from: deep})
	p.add(ev(eventCreated, strings.Repeat("z", 1000)))
	for _, want := range []event{
		{kind: eventOverflow, isDir: true, path: strings.TrimSuffix(deep[:888], "/")},
		{kind: eventOverflow, isDir: true, path: "y"},
		{kind: eventOverflow, isDir: true},
	} {
		if got := p.take(900); len(got) != 1 || got[0] != want {
			t.Errorf("%+v, want %+v", got, want)
		}
	}
	if p.size != 0 {
		t.Errorf("%d bytes are left", p.size)
	}
}

// A notifyBed is a server with the notification program in this process.
type notifyBed struct {
	n    *notifier
	dir  string
	addr string
}

// newNotifyBed runs a server until the test ends, which must leave nothing behind.
func newNotifyBed(t *testing.T, grace, answer time.Duration) *notifyBed {
	t.Helper()
	leak.Check(t)
	b := &notifyBed{dir: t.TempDir()}
	e, err := newExport(b.dir, false)
	testkit.Must(t, err)
	b.n, err = newNotifier(e, slog.New(slog.DiscardHandler))
	testkit.Must(t, err)
	b.n.grace, b.n.answer = grace, answer
	server, err := transport.NewServer(nil)
	testkit.Must(t, err, server.Register(b.n.program()))
	l, err := server.Listen(t.Context(), iwarp.New(iwarp.Config{}), "127.0.0.1:0")
	testkit.Must(t, err)
	b.addr = l.Addr().String()
	var serving sync.WaitGroup
	serving.Go(func() { server.Serve(l) })
	t.Cleanup(func() {
		b.n.Close()
		server.Close()
		serving.Wait()
		e.Close()
		if s := b.state(); s != (notifyState{}) {
			t.Errorf("left behind: %+v", s)
		}
	})
	return b
}

// A notifyState is what the program keeps for its clients.
type notifyState struct{ subs, hosts, watched, names int }

func (b *notifyBed) state() (s notifyState) {
	b.n.mu.Lock()
	s.subs, s.hosts = len(b.n.subs), len(b.n.hosts)
	b.n.mu.Unlock()
	c := b.n.changes
	c.mu.Lock()
	s.watched, s.names = len(c.watched), c.names
	c.mu.Unlock()
	return s
}

// idle waits until nothing is kept any more.
func (b *notifyBed) idle(t *testing.T) {
	t.Helper()
	testkit.Eventually(t, "nothing is kept", func() bool { return b.state() == notifyState{} })
}

// A notified is a client. What it has been told comes in order, without gaps.
type notified struct {
	t  *testing.T
	cl *transport.Client

	mu      sync.Mutex // held by NOTIFY
	hold    sync.Mutex // held: NOTIFY is not answered
	refuse  bool
	numbers map[notifyToken]uint64
	listener
}

func (b *notifyBed) dial(t *testing.T, cfg transport.Config) *notified {
	t.Helper()
	c := &notified{t: t, numbers: make(map[notifyToken]uint64)}
	b.redial(t, c, cfg)
	return c
}

// redial gives a client a new connection.
func (b *notifyBed) redial(t *testing.T, c *notified, cfg transport.Config) {
	t.Helper()
	if cfg.Callbacks == nil {
		cfg.Callbacks = []transport.Program{{
			Number: notifiedProgram, Low: notifiedVersion, High: notifiedVersion, Handler: transport.HandlerFunc(c.serve),
		}}
	}
	cfg.NoReconnect = true
	cl, err := transport.Dial(t.Context(), iwarp.New(iwarp.Config{}), b.addr, &cfg)
	testkit.Must(t, err)
	t.Cleanup(func() { cl.Close() })
	c.cl = cl
}

func (c *notified) serve(_ context.Context, req *transport.Request, res *transport.Response) {
	c.hold.Lock()
	defer c.hold.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	var a notifyArgs
	d := xdr.NewDecoder(req.Args)
	a.decode(&d)
	switch {
	case d.End() != nil || req.Proc != notifiedNotify || len(a.events) == 0:
		c.t.Errorf("procedure %d with %d bytes: %v", req.Proc, len(req.Args), d.End())
	case c.refuse:
		res.Fail(oncrpc.SystemErr)
		return
	case a.number <= c.numbers[a.id]:
		return // it came before, and the answer was lost
	case a.number != c.numbers[a.id]+1:
		c.t.Errorf("number %d, want %d", a.number, c.numbers[a.id]+1)
	}
	c.numbers[a.id] = a.number
	for _, e := range a.events {
		c.tell(e)
	}
}

func (c *notified) subscribe(a subscribeArgs) (r subscribeRes, err error) {
	call := transport.Call{Prog: notifyProgram, Vers: notifyVersion, Proc: notifySubscribe, Args: a.append(nil)}
	if err = c.cl.Call(c.t.Context(), &call); err != nil {
		return r, err
	}
	d := xdr.NewDecoder(call.Results)
	r.decode(&d)
	return r, d.End()
}

func (c *notified) unsubscribe(id notifyToken) notifyStatus {
	c.t.Helper()
	call := transport.Call{Prog: notifyProgram, Vers: notifyVersion, Proc: notifyUnsubscribe, Args: xdr.AppendFixedOpaque(nil, id[:])}
	testkit.Must(c.t, c.cl.Call(c.t.Context(), &call))
	d := xdr.NewDecoder(call.Results)
	status := notifyStatus(d.Uint32())
	testkit.Must(c.t, d.End())
	return status
}

func (c *notified) mustSubscribe(a subscribeArgs) subscribeRes {
	c.t.Helper()
	r, err := c.subscribe(a)
	if err != nil || r.status != notifyOK {
		c.t.Fatalf("SUBSCRIBE: %+v, %v", r, err)
	}
	return r
}

// A client that comes back with its token is told everything, once and in order; with
// anything else it is somebody new.
func TestSubscribeAgain(t *testing.T) {
	b := newNotifyBed(t, time.Minute, time.Minute)
	c := b.dial(t, transport.Config{})
	file := func(i int) string { return fmt.Sprintf("file%d", i) }
	r := c.mustSubscribe(subscribeArgs{recursive: true})
	if r.again || r.grace != 60 || r.id == (notifyToken{}) {
		t.Errorf("first answer: %+v", r)
	}
	n := 0
	var got []string
	for range 5 {
		for range 10 {
			testkit.Must(t, os.WriteFile(filepath.Join(b.dir, file(n)), nil, 0o644))
			n++
		}
		got = append(got, c.wait(t, "created "+file(n-1))...)
		// The connection goes with a call under way or without.
		c.hold.Lock()
		for range 10 {
			testkit.Must(t, os.WriteFile(filepath.Join(b.dir, file(n)), nil, 0o644))
			n++
		}
		c.cl.Close()
		c.hold.Unlock()
		b.redial(t, c, transport.Config{})
		if again := c.mustSubscribe(subscribeArgs{recursive: true, again: true, old: r.id}); !again.again || again.id != r.id {
			t.Fatalf("SUBSCRIBE again: %+v", again)
		}
		got = append(got, c.wait(t, "created "+file(n-1))...)
	}
	var want []string
	for i := range n {
		want = append(want, "created "+file(i))
	}
	wantLines(t, got, want...)
	for _, a := range []subscribeArgs{
		{recursive: true, again: true, old: notifyToken{1}},
		{recursive: false, again: true, old: r.id},
	} {
		if other := c.mustSubscribe(a); other.again || other.id == r.id {
			t.Errorf("SUBSCRIBE with %+v: %+v", a, other)
		} else if got := c.unsubscribe(other.id); got != notifyOK {
			t.Errorf("UNSUBSCRIBE: %v", got)
		}
	}
	if got := c.unsubscribe(r.id); got != notifyOK {
		t.Errorf("UNSUBSCRIBE: %v", got)
	}
	b.idle(t)
	if got := c.unsubscribe(r.id); got != notifyUnknown {
		t.Errorf("UNSUBSCRIBE again: %v", got)
	}
	if other := c.mustSubscribe(subscribeArgs{recursive: true, again: true, old: r.id}); other.again || other.id == r.id {
		t.Errorf("SUBSCRIBE with a token that is over: %+v", other)
	}
}

// Whatever clients do, nothing is kept for those that are gone, and not much for the
// others.
func TestSubscribeHostile(t *testing.T) {
	b := newNotifyBed(t, time.Minute, time.Minute)
	testkit.WriteFiles(t, b.dir, map[string]string{"dir/file": "", "link": "-> dir", "out": "-> /"})
	c := b.dial(t, transport.Config{})
	garbage := func(proc uint32, args []byte) {
		t.Helper()
		err := c.cl.Call(t.Context(), &transport.Call{Prog: notifyProgram, Vers: notifyVersion, Proc: proc, Args: args})
		want := oncrpc.GarbageArgs
		if proc > notifyUnsubscribe {
			want = oncrpc.ProcUnavail
		}
		var rpc *oncrpc.RPCError
		if !errors.As(err, &rpc) || rpc.AcceptStat != want {
			t.Errorf("procedure %d with %x: %v, want %v", proc, args, err, want)
		}
	}
	whole := (&subscribeArgs{dir: "dir", again: true}).append(nil)
	for n := range len(whole) / 4 {
		garbage(notifySubscribe, whole[:4*n])
	}
	garbage(notifySubscribe, append(slices.Clone(whole), 0, 0, 0, 0))
	garbage(notifySubscribe, []byte{0xff, 0xff, 0xff, 0xff})
	garbage(notifySubscribe, (&subscribeArgs{dir: strings.Repeat("x", maxEventPath+1)}).append(nil))
	garbage(notifyUnsubscribe, nil)
	garbage(notifyUnsubscribe, make([]byte, 12))
	garbage(notifyUnsubscribe, make([]byte, 20))
	garbage(3, nil)

	for dir, want := range map[string]notifyStatus{
		"nope": notifyNoEnt, "dir/file": notifyNotDir, "link": notifyNotDir, "out": notifyNotDir, "out/etc": notifyNotDir,
		"../" + filepath.Base(b.dir): notifyNoEnt, "dir/../../..": notifyOK, "a\x00b": notifyNoEnt,
		strings.Repeat("x", maxEventPath): notifyTooMuch, strings.Repeat("x/", maxEventPath/2): notifyNoEnt,
	} {
		r, err := c.subscribe(subscribeArgs{dir: dir, recursive: true})
		if err != nil || r.status != want {
			t.Errorf("SUBSCRIBE %.40q: %v, %v, want %v", dir, r.status, err, want)
		}
		if r.status == notifyOK {
			c.unsubscribe(r.id)
		}
	}
	b.idle(t)

	// One address does not take all that there is, and what it has taken is free again
	// when it lets go.
	var ids []notifyToken
	for range maxPerHost {
		ids = append(ids, c.mustSubscribe(subscribeArgs{dir: "dir"}).id)
	}
	other := b.dial(t, transport.Config{})
	if r, err := other.subscribe(subscribeArgs{dir: "dir"}); err != nil || r.status != notifyFull {
		t.Errorf("one subscription too many: %+v, %v", r, err)
	}
	for _, id := range ids {
		c.unsubscribe(id)
	}
	b.idle(t)
	other.mustSubscribe(subscribeArgs{dir: "dir"})
	other.cl.Close() // the end of the test does not wait for it
}

// A client that is gone, does not answer, or refuses to be told is not kept.
func TestSubscriptionEnds(t *testing.T) {
	const short = 200 * time.Millisecond
	for _, tt := range []struct {
		name   string
		answer time.Duration // long where the client has to answer, however slow it is
		do     func(b *notifyBed, c *notified, id notifyToken)
	}{
		{"gone", short, func(_ *notifyBed, c *notified, _ notifyToken) { c.cl.Close() }},
		{"gone with a call under way", short, func(b *notifyBed, c *notified, _ notifyToken) {
			c.hold.Lock()
			testkit.Must(c.t, os.WriteFile(filepath.Join(b.dir, "x"), nil, 0o644))
			c.cl.Close()
			c.hold.Unlock()
		}},
		{"silent", short, func(b *notifyBed, c *notified, _ notifyToken) {
			c.hold.Lock()
			c.t.Cleanup(c.hold.Unlock)
			testkit.Must(c.t, os.WriteFile(filepath.Join(b.dir, "x"), nil, 0o644))
			// It learns that it is not told any more.
			select {
			case <-c.cl.Done():
			case <-time.After(testkit.Patience):
				c.t.Error("the connection lives")
			}
		}},
		{"refusing", testkit.Patience, func(b *notifyBed, c *notified, _ notifyToken) {
			c.mu.Lock()
			c.refuse = true
			c.mu.Unlock()
			testkit.Must(c.t, os.WriteFile(filepath.Join(b.dir, "x"), nil, 0o644))
		}},
		{"with a directory that goes", testkit.Patience, func(b *notifyBed, c *notified, id notifyToken) {
			r := c.mustSubscribe(subscribeArgs{dir: "dir", recursive: true})
			testkit.Must(c.t, os.Remove(filepath.Join(b.dir, "dir")))
			testkit.Eventually(c.t, "the end is told", func() bool {
				c.listener.mu.Lock()
				defer c.listener.mu.Unlock()
				return c.ended == notifyGone
			})
			testkit.Eventually(c.t, "it is forgotten", func() bool { return b.n.find(r.id) == nil })
			c.unsubscribe(id)
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := newNotifyBed(t, short, tt.answer)
			testkit.Must(t, os.Mkdir(filepath.Join(b.dir, "dir"), 0o755))
			c := b.dial(t, transport.Config{})
			tt.do(b, c, c.mustSubscribe(subscribeArgs{recursive: true}).id)
			b.idle(t)
		})
	}
	t.Run("without the program", func(t *testing.T) {
		b := newNotifyBed(t, short, testkit.Patience)
		c := b.dial(t, transport.Config{Callbacks: []transport.Program{{
			Number: notifiedProgram + 1, Low: 1, High: 1, Handler: transport.HandlerFunc(func(context.Context, *transport.Request, *transport.Response) {}),
		}}})
		// The server asks at once whether the program is there, and may have ended the
		// connection before the reply has left.
		r, err := c.subscribe(subscribeArgs{recursive: true})
		if err == nil && r.status != notifyOK || err != nil && !errors.Is(err, net.ErrClosed) {
			t.Errorf("SUBSCRIBE: %+v, %v", r, err)
		}
		select {
		case <-c.cl.Done():
		case <-time.After(testkit.Patience):
			t.Error("the connection lives")
		}
		b.idle(t)
	})
	t.Run("idle and there", func(t *testing.T) {
		b := newNotifyBed(t, 50*time.Millisecond, testkit.Patience)
		c := b.dial(t, transport.Config{})
		c.mustSubscribe(subscribeArgs{recursive: true})
		testkit.Eventually(t, "the server asks", func() bool { return c.cl.Stats().Calls > 3 })
		testkit.Must(t, os.WriteFile(filepath.Join(b.dir, "x"), nil, 0o644))
		c.wait(t, "created x")
	})
}

// A storm of changes costs a bounded amount of memory for a client that is slow, which
// learns that it has to look for itself and is told on.
func TestNotifyStorm(t *testing.T) {
	b := newNotifyBed(t, time.Minute, time.Minute)
	slow, quick := b.dial(t, transport.Config{}), b.dial(t, transport.Config{})
	id := slow.mustSubscribe(subscribeArgs{recursive: true}).id
	quick.mustSubscribe(subscribeArgs{recursive: true})
	s := b.n.find(id)
	slow.hold.Lock()
	const files = 10_000
	for i := range files {
		testkit.Must(t, os.WriteFile(filepath.Join(b.dir, fmt.Sprintf("%0100d", i)), []byte("x"), 0o644))
		if i%100 == 0 {
			s.mu.Lock()
			if n := len(s.queue.events); n > maxPending || s.queue.size > maxPendingSize || len(s.queue.told) > maxPending {
				t.Fatalf("%d events of %d bytes wait", n, s.queue.size)
			}
			s.mu.Unlock()
		}
	}
	testkit.Eventually(t, "there is too much", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.queue.overflowed() && len(s.queue.events) == 1
	})
	slow.hold.Unlock()
	slow.wait(t, "look for yourself")
	testkit.Must(t, os.WriteFile(filepath.Join(b.dir, "last"), nil, 0o644))
	slow.wait(t, "created last")
	quick.wait(t, "created last")
}
