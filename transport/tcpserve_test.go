package transport

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/transport/internal/records"
)

// Conversations over TCP, on net.Pipe and in fake time, with a server of which the other end
// is played.

// A tcpPeer is the end of a connection that the test plays.
type tcpPeer struct {
	net.Conn
	t       *testing.T
	records <-chan []byte // once it listens
}

// listen begins to read.
func (p *tcpPeer) listen() *tcpPeer {
	p.records = take(p.Conn)
	return p
}

// send sends messages, each as a record, unless the connection ends.
func (p *tcpPeer) send(msgs ...[]byte) {
	for _, msg := range msgs {
		if _, err := p.Write(append(marked(len(msg)), msg...)); err != nil {
			return
		}
	}
}

// call sends a call.
func (p *tcpPeer) call(xid, proc uint32, args ...byte) { p.send(appendCall(nil, xid, proc, args...)) }

// message returns the next message, which must have arrived.
func (p *tcpPeer) message(what string) []byte {
	p.t.Helper()
	synctest.Wait()
	select {
	case msg, ok := <-p.records:
		if !ok {
			p.t.Fatalf("%s: the connection has ended", what)
		}
		return msg
	default:
		p.t.Fatalf("%s: nothing comes", what)
	}
	return nil
}

// results returns the results of the next reply.
func (p *tcpPeer) results(what string, xid uint32) []byte {
	p.t.Helper()
	return accepted(p.t, p.message(what), xid)
}

// quiet checks that nothing comes.
func (p *tcpPeer) quiet(what string) {
	p.t.Helper()
	synctest.Wait()
	select {
	case msg, ok := <-p.records:
		p.t.Errorf("%s: a message of %d bytes (open: %v)", what, len(msg), ok)
	default:
	}
}

// ended checks that the connection has ended.
func (p *tcpPeer) ended(what string) {
	p.t.Helper()
	synctest.Wait()
	select {
	case msg, ok := <-p.records:
		if ok {
			p.t.Errorf("%s: a message of %d bytes", what, len(msg))
		}
	default:
		p.t.Errorf("%s: the connection lives", what)
	}
}

// A tcpStage is a server over TCP under test.
type tcpStage struct {
	t *testing.T
	*Server
	l     *pipeListener
	peers []*tcpPeer
	log   *lineLog
}

// arrive makes a connection from host.
func (st *tcpStage) arrive(host string) *tcpPeer {
	a, b := net.Pipe()
	p := &tcpPeer{Conn: b, t: st.t}
	st.peers = append(st.peers, p)
	st.l.conns <- hostConn{a, host}
	synctest.Wait()
	return p
}

// A lineLog collects what a server logs.
type lineLog struct {
	slog.Handler
	lines chan string
}

func (l *lineLog) Handle(_ context.Context, r slog.Record) error {
	text := r.Message
	r.Attrs(func(a slog.Attr) bool {
		text += " " + a.String()
		return true
	})
	l.lines <- text
	return nil
}

// says checks that the last end of a connection was logged with this reason.
func (st *tcpStage) says(text string) {
	st.t.Helper()
	synctest.Wait()
	var last string
	for len(st.log.lines) > 0 {
		last = <-st.log.lines
	}
	if text == "" && last != "" || !strings.Contains(last, text) {
		st.t.Errorf("logged: %q, want %q", last, text)
	}
}

// tcpServer runs a conversation with a server. In the end nothing is left.
func tcpServer(t *testing.T, cfg *Settings, progs []rpc.Program, script func(st *tcpStage)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		var c Settings
		if cfg != nil {
			c = *cfg
		}
		log := &lineLog{slog.DiscardHandler, make(chan string, 10_000)}
		c.Logger = slog.New(struct{ *lineLog }{log})
		log.Handler = slog.NewTextHandler(io.Discard, nil)
		s, err := NewServer(c.Server())
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range progs {
			if err := s.Register(p); err != nil {
				t.Fatal(err)
			}
		}
		l := &pipeListener{conns: make(chan net.Conn)}
		served := make(chan error, 1)
		go func() { served <- s.ServeTCP(l) }()
		st := &tcpStage{t: t, Server: s, l: l, log: log}
		defer func() { // also when the script ends early
			for _, p := range st.peers {
				p.Close()
			}
			s.Close()
		}()
		script(st)
		for _, p := range st.peers {
			p.Close()
		}
		synctest.Wait()
		if n := s.reserved(); n != 0 {
			t.Errorf("in the end %d bytes are reserved", n)
		}
		s.mu.Lock()
		if s.guests.Len() != 0 || len(s.conns) != 0 {
			t.Errorf("in the end there are %d connections", s.guests.Len())
		}
		s.mu.Unlock()
		s.Close()
		if err := <-served; !errors.Is(err, net.ErrClosed) {
			t.Errorf("ServeTCP returned %v", err)
		}
		if m := s.memory.Stats(); m.Base+m.Idle+m.Held != 0 || m.Tenants != 0 {
			t.Errorf("in the end there is memory: %+v", m)
		}
	})
}

// A pipeListener hands out connections of net.Pipe, which have no buffers.
type pipeListener struct {
	conns chan net.Conn
	once  sync.Once
}

func (l *pipeListener) Accept() (net.Conn, error) {
	c, ok := <-l.conns
	if !ok {
		return nil, net.ErrClosed
	}
	return c, nil
}
func (l *pipeListener) Close() error   { l.once.Do(func() { close(l.conns) }); return nil }
func (l *pipeListener) Addr() net.Addr { return peerAddr("script:1") }

type hostConn struct {
	net.Conn
	host string
}

func (c hostConn) RemoteAddr() net.Addr { return peerAddr(c.host) }

// take reads records from c into a channel.
func take(c net.Conn) <-chan []byte {
	records := make(chan []byte, 100)
	go func() {
		defer close(records)
		for {
			var mark [4]byte
			if _, err := io.ReadFull(c, mark[:]); err != nil {
				return
			}
			n, _, _ := oncrpc.ConsumeRecordMark(mark[:])
			b := make([]byte, n)
			if _, err := io.ReadFull(c, b); err != nil {
				return
			}
			records <- b
		}
	}()
	return records
}

// testTCPServer is tcpServer with the service of the tests over RDMA.
func testTCPServer(t *testing.T, cfg *Settings, script func(st *tcpStage, svc *testService)) {
	t.Helper()
	svc := &testService{}
	tcpServer(t, cfg, []rpc.Program{svc.program()}, func(st *tcpStage) {
		svc.gate = make(chan struct{})
		script(st, svc)
	})
}

func TestServeTCP(t *testing.T) {
	t.Run("calls and their replies, in any order", func(t *testing.T) {
		testTCPServer(t, nil, func(st *tcpStage, svc *testService) {
			p := st.arrive("a:1").listen()
			p.call(1, procHold)
			p.call(2, procEcho, opaque("hello")...)
			if got := p.results("a quick one", 2); !bytes.Equal(got, opaque("hello")) {
				t.Errorf("results are %x", got)
			}
			p.call(3, procArgs, 1, 2, 3, 4)
			if got := p.results("another", 3); !bytes.Equal(got, []byte{1, 2, 3, 4}) {
				t.Errorf("results are %x", got)
			}
			p.call(4, procTwo, 0, 0, 0, 5, 0, 0, 0, 0)
			want := append(opaque("aaaaa"), 0, 0, 0, 0x77, 0, 0, 0, 0)
			if got := p.results("one with two items", 4); !bytes.Equal(got, want) {
				t.Errorf("results are %x", got)
			}
			p.call(5, 0)
			if got := p.results("procedure 0", 5); len(got) != 0 {
				t.Errorf("results are %x", got)
			}
			close(svc.gate)
			p.results("the first", 1)
			if n := svc.released.Load(); n != 1 {
				t.Errorf("%d items released", n)
			}
			if s := st.Stats(); s.Calls != 5 || s.Replies != 5 || s.Conns != 1 || s.OpenConns != 1 {
				t.Errorf("counters are %+v", s)
			}
		})
	})
	t.Run("refusals", func(t *testing.T) {
		testTCPServer(t, nil, func(st *tcpStage, svc *testService) {
			p := st.arrive("a:1").listen()
			for i, tt := range []struct {
				h    oncrpc.CallHeader
				want oncrpc.ReplyHeader
			}{
				{oncrpc.CallHeader{RPCVers: 3, Prog: testProg, Vers: 1}, oncrpc.ReplyHeader{Stat: oncrpc.MsgDenied, Low: 2, High: 2}},
				{oncrpc.CallHeader{RPCVers: 2, Prog: 1, Vers: 1}, oncrpc.ReplyHeader{AcceptStat: oncrpc.ProgUnavail}},
				{oncrpc.CallHeader{RPCVers: 2, Prog: testProg, Vers: 2}, oncrpc.ReplyHeader{AcceptStat: oncrpc.ProgMismatch, Low: 1, High: 1}},
				{oncrpc.CallHeader{RPCVers: 2, Prog: testProg, Vers: 1, Proc: 99}, oncrpc.ReplyHeader{AcceptStat: oncrpc.ProcUnavail}},
				{oncrpc.CallHeader{RPCVers: 2, Prog: testProg, Vers: 1, Proc: procFail}, oncrpc.ReplyHeader{AcceptStat: oncrpc.GarbageArgs}},
			} {
				tt.h.XID, tt.want.XID = uint32(i), uint32(i)
				p.send(oncrpc.AppendCall(nil, &tt.h))
				if got, want := p.message("a refusal"), oncrpc.AppendReply(nil, &tt.want); !bytes.Equal(got, want) {
					t.Errorf("%+v: %x, want %x", tt.h, got, want)
				}
			}
			if n := svc.released.Load(); n != 1 {
				t.Errorf("%d items released", n)
			}
		})
	})
	t.Run("answers made of the arguments, which are read late", func(t *testing.T) {
		padding := make([]byte, 8000) // makes the answers too long to be copied
		prog := rpc.Program{Number: testProg, Low: 1, High: 1, Inline: rpc.Every, Idempotent: rpc.Every,
			Handler: rpc.HandlerFunc(func(_ context.Context, req *rpc.Request, res *rpc.Response) {
				res.AddItem(req.Args, nil)
				res.AddItem(padding, nil)
			})}
		tcpServer(t, nil, []rpc.Program{prog}, func(st *tcpStage) {
			p := st.arrive("a:1")
			args := func(xid uint32) []byte { return bytes.Repeat([]byte{byte(xid)}, 1000*int(xid)) }
			for xid := range uint32(4) { // all are executed before the first answer is read
				p.call(xid, 1, args(xid)...)
			}
			synctest.Wait()
			p.listen()
			for range 4 {
				msg := p.message("an answer")
				xid := word(msg, 0)
				if got := accepted(t, msg, xid); !bytes.Equal(got, xdr.AppendOpaque(xdr.AppendOpaque(nil, args(xid)), padding)) {
					t.Errorf("the answer to call %d is spoiled", xid)
				}
			}
		})
	})
	t.Run("a call in two fragments, and a long one", func(t *testing.T) {
		testTCPServer(t, nil, func(st *tcpStage, svc *testService) {
			p := st.arrive("a:1").listen()
			for xid, n := range []int{8, 30_000, 1 << 20} {
				data := bytes.Repeat([]byte{7}, n)
				msg := appendCall(nil, uint32(xid), procEcho, xdr.AppendOpaque(nil, data)...)
				p.Write(append(oncrpc.AppendRecordMark(nil, 6, false), msg[:6]...))
				p.Write(append(oncrpc.AppendRecordMark(nil, len(msg)-6, true), msg[6:]...))
				if got := p.results("a reply", uint32(xid)); !bytes.Equal(got, xdr.AppendOpaque(nil, data)) {
					t.Errorf("%d bytes came back", len(got))
				}
			}
		})
	})
}

// TestTCPHostilePeers checks how the connection of a peer that violates the protocol ends.
func TestTCPHostilePeers(t *testing.T) {
	half := appendCall(nil, 1, procArgs, make([]byte, 100)...)
	for _, tt := range []struct {
		name   string
		stream []byte
		ends   bool          // the connection
		after  time.Duration // if it does
		why    string
	}{
		{"a record of more than MaxMessage", []byte{0x80, 0x40, 0, 1}, true, 0, "more than MaxMessage"},
		{"a record of 2 GiB", []byte{0xff, 0xff, 0xff, 0xff}, true, 0, "more than MaxMessage"},
		{"fragments that come to more than MaxMessage", append(append(oncrpc.AppendRecordMark(nil, 100, false), half[:100]...), 0, 0x40, 0, 0), true, 0, "more than MaxMessage"},
		{"an empty fragment", []byte{0, 0, 0, 0}, true, 0, "empty fragment"},
		{"an empty fragment within", append(append(oncrpc.AppendRecordMark(nil, 20, false), half[:20]...), 0, 0, 0, 0), true, 0, "empty fragment"},
		{"half a mark", []byte{0x80, 0}, true, 30 * time.Second, "rest of a message has not come within 30s"},
		{"half a call", append(oncrpc.AppendRecordMark(nil, 140, true), half[:70]...), true, 30 * time.Second, "rest of a message has not come within 30s"},
		{"half a long call", append(oncrpc.AppendRecordMark(nil, 1<<20, true), half...), true, 30 * time.Second, "rest of a message has not come within 30s"},
		{"a fragment, and no more", append(oncrpc.AppendRecordMark(nil, 140, false), half...), true, 30 * time.Second, "rest of a message has not come within 30s"},
		{"a call that ends in its header", append(oncrpc.AppendRecordMark(nil, 20, true), half[:20]...), true, 0, "cannot be decoded"},
		{"a credential that is too long", append(oncrpc.AppendRecordMark(nil, 40, true), append(half[:28:28], 0, 0, 1, 0x91, 0, 0, 0, 0, 0, 0, 0, 0)...), true, 0, "cannot be decoded"},
		{"a record without bytes", []byte{0x80, 0, 0, 0}, false, 0, ""},
		{"a record of 7 bytes", []byte{0x80, 0, 0, 7, 1, 2, 3, 4, 5, 6, 7}, false, 0, ""},
		{"a record of 7 bytes in fragments", []byte{0, 0, 0, 3, 1, 2, 3, 0x80, 0, 0, 4, 4, 5, 6, 7}, false, 0, ""},
		{"a message of another type", []byte{0x80, 0, 0, 8, 0, 0, 0, 1, 0, 0, 0, 2}, false, 0, ""},
		{"a long message of another type", append([]byte{0x80, 1, 0, 8, 0, 0, 0, 1, 0, 0, 0, 2}, make([]byte, 1<<16)...), false, 0, ""},
		{"a reply to nothing", []byte{0x80, 0, 0, 8, 0, 0, 0, 1, 0, 0, 0, 1}, false, 0, ""},
		{"a long reply to nothing", append([]byte{0x80, 1, 0, 8, 0, 0, 0, 1, 0, 0, 0, 1}, make([]byte, 1<<16)...), false, 0, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			testTCPServer(t, nil, func(st *tcpStage, svc *testService) {
				p := st.arrive("a:1").listen()
				p.call(1, procEcho, opaque("")...)
				p.results("a call before", 1)
				go p.Write(tt.stream)
				if !tt.ends {
					synctest.Wait()
					time.Sleep(time.Hour)
					p.call(2, procEcho, opaque("")...)
					p.results("a call behind", 2)
					if n := st.Stats().Dropped; n != 1 {
						t.Errorf("%d messages dropped", n)
					}
					return
				}
				if tt.after > 0 {
					time.Sleep(tt.after - time.Second)
					p.quiet("before its time is up")
					time.Sleep(time.Second)
				}
				p.ended("then")
				st.says(tt.why)
				if n := st.reserved(); n != 0 {
					t.Errorf("%d bytes are reserved", n)
				}
			})
		})
	}

	t.Run("one that reads nothing", func(t *testing.T) {
		for _, proc := range []uint32{procEcho, procArgs} {
			testTCPServer(t, &Settings{Credits: 8}, func(st *tcpStage, svc *testService) {
				p := st.arrive("a:1")
				sent := make(chan int)
				go func() {
					n := 0
					for ; n < 1000; n++ {
						msg := appendCall(nil, uint32(n), proc, xdr.AppendOpaque(nil, make([]byte, 3000))...)
						if _, err := p.Write(append(marked(len(msg)), msg...)); err != nil {
							break
						}
					}
					sent <- n
				}()
				// Calls read before there is a credit for them are in the reader's buffer.
				if n := <-sent; n < 8 || n > 8+records.BufferSize/3000+1 {
					t.Errorf("%d calls were taken", n)
				}
				st.says("peer has taken nothing for 30s")
			})
		}
	})

	t.Run("one that reads nothing, and asks for much", func(t *testing.T) {
		testTCPServer(t, &Settings{MaxMessage: 1 << 20, MaxMemory: 4 << 20}, func(st *tcpStage, svc *testService) {
			p := st.arrive("a:1")
			go func() {
				for n := range uint32(100) {
					p.call(n, procAlloc, xdr.AppendUint32(nil, 1<<20-100)...)
				}
			}()
			most := int64(0)
			for range 200 {
				time.Sleep(100 * time.Millisecond)
				most = max(most, st.reserved())
			}
			if most == 0 || most > 4<<20 {
				t.Errorf("%d bytes were reserved at once", most)
			}
			time.Sleep(20 * time.Second)
			st.says("peer has taken nothing")
		})
	})

	t.Run("one that goes while its calls wait for memory, and for credits", func(t *testing.T) {
		testTCPServer(t, &Settings{MaxMessage: 1 << 20, MaxMemory: 4 << 20, Credits: 10}, func(st *tcpStage, svc *testService) {
			for _, tt := range []struct{ size, want int }{{4, 4}, {30_000, 3}} {
				p := st.arrive("a:1")
				go func() {
					for n := range uint32(100) {
						p.call(n, procHold, make([]byte, tt.size)...)
					}
				}()
				time.Sleep(time.Second)
				if n := svc.running.Load(); int(n) != tt.want {
					t.Errorf("%d calls of %d bytes are executed, want %d", n, tt.size, tt.want)
				}
				p.Close()
				// The short calls have filled the credits, and the reader waits for one: the
				// first reply that cannot be written shows the end.
				for range tt.want {
					svc.gate <- struct{}{}
				}
				time.Sleep(3 * time.Second)
				if n := svc.running.Load(); n != 0 {
					t.Errorf("%d calls are executed still", n)
				}
			}
		})
	})
}

// TestTCPMemory checks that calls wait for memory in order, and reserve as much as the program specifies.
func TestTCPMemory(t *testing.T) {
	t.Run("without a binding, 1 MiB for results", func(t *testing.T) {
		for _, tt := range []struct {
			cfg  *Settings
			size int
			want int32
		}{
			{&Settings{Credits: 3}, 100, 3},
			{&Settings{MaxMessage: 1 << 20, MaxMemory: 4 << 20}, 100, 4},
			{&Settings{MaxMessage: 1 << 20, MaxMemory: 4 << 20}, 1<<20 - 100, 2},
		} {
			testTCPServer(t, tt.cfg, func(st *tcpStage, svc *testService) {
				p := st.arrive("a:1").listen()
				const all = 10
				go func() {
					for xid := range uint32(all) {
						p.call(xid, procHold, make([]byte, tt.size)...)
					}
				}()
				synctest.Wait()
				if n := svc.running.Load(); n != tt.want {
					t.Errorf("%d calls of %d bytes are executed, want %d", n, tt.size, tt.want)
				}
				for xid := range uint32(all) {
					svc.gate <- struct{}{}
					_ = xid
					p.message("a reply")
				}
			})
		}
	})
	t.Run("more after replies that are short", func(t *testing.T) {
		testTCPServer(t, &Settings{MaxMessage: 1 << 20, MaxMemory: 16 << 20}, func(st *tcpStage, svc *testService) {
			p := st.arrive("a:1").listen()
			const all = 20
			go func() {
				for xid := range uint32(all) {
					p.call(xid, procHold)
				}
			}()
			for replied := range all {
				synctest.Wait()
				want, known := map[int]int32{0: startMessages, startMessages: 2 * startMessages}[replied]
				if n := svc.running.Load(); known && n != want {
					t.Errorf("%d calls are executed after %d replies, want %d", n, replied, want)
				}
				svc.gate <- struct{}{}
				p.message("a reply")
			}
		})
	})
	t.Run("with one, what it says", func(t *testing.T) {
		for _, tt := range []struct {
			bounds rpc.ReplyBounds
			want   int64
		}{
			{rpc.ReplyBounds{}, 0},
			{rpc.ReplyBounds{MaxResults: 4096}, 0},
			{rpc.ReplyBounds{MaxResults: 5000}, 5000},
			{rpc.ReplyBounds{MaxResults: 100, Items: [4]int{10_000, 20_000, 1}, NumItems: 2}, 16<<10 + 32<<10 + 100},
			{rpc.ReplyBounds{MaxResults: 1 << 20, Items: [4]int{math.MaxInt, math.MaxInt}, NumItems: 2}, 2 * DefaultMaxMessage},
			{rpc.ReplyBounds{MaxResults: math.MaxInt}, DefaultMaxMessage},
			{rpc.ReplyBounds{MaxResults: -1, Items: [4]int{-1}, NumItems: 1}, 0},
		} {
			svc := &testService{}
			prog := svc.program()
			prog.Binding = boundBinding(tt.bounds)
			tcpServer(t, nil, []rpc.Program{prog}, func(st *tcpStage) {
				svc.gate = make(chan struct{})
				p := st.arrive("a:1").listen()
				p.call(1, procHold)
				if n := st.reserved(); n != tt.want {
					t.Errorf("%+v: %d bytes are reserved, want %d", tt.bounds, n, tt.want)
				}
				svc.gate <- struct{}{}
				p.results("the reply", 1)
			})
		}
	})
	t.Run("replies to calls of the server pass calls that wait", func(t *testing.T) {
		var executed atomic.Int32
		prog := rpc.Program{Number: testProg, Low: 1, High: 1, Handler: rpc.HandlerFunc(func(ctx context.Context, req *rpc.Request, res *rpc.Response) {
			cn := req.Conn()
			cn.AllowBackward(0)
			if err := cn.Call(ctx, testCall()); err != nil {
				t.Error(err)
			}
			executed.Add(1)
		})}
		tcpServer(t, &Settings{MaxMessage: 1 << 20, MaxMemory: 4 << 20}, []rpc.Program{prog}, func(st *tcpStage) {
			p := st.arrive("a:1").listen()
			const all = 40
			out := make(chan []byte, 2*all) // what is sent, by one goroutine
			defer close(out)
			go func() {
				for msg := range out {
					p.send(msg)
				}
			}()
			for xid := range uint32(all) {
				out <- appendCall(nil, xid, 1)
			}
			for executed.Load() < all {
				switch msg := p.message("a call or a reply"); word(msg, 1) {
				case uint32(oncrpc.Call):
					out <- oncrpc.AppendReply(nil, &oncrpc.ReplyHeader{XID: word(msg, 0)})
				}
				synctest.Wait()
			}
		})
	})
}

// A boundBinding is a binding that bounds replies.
type boundBinding rpc.ReplyBounds

func (b boundBinding) Call(_ rpc.Procedure, _ []byte, items []rpc.Range) ([]rpc.Range, rpc.ReplyBounds) {
	return items, rpc.ReplyBounds(b)
}
func (b boundBinding) Reply(_ rpc.Procedure, _ []byte, _ bool, items []rpc.Range) []rpc.Range {
	return items
}

// TestTCPRoom checks that a full server makes room over TCP as it does over RDMA.
func TestTCPRoom(t *testing.T) {
	testTCPServer(t, &Settings{MaxConns: 2}, func(st *tcpStage, svc *testService) {
		p1, p2 := st.arrive("a:1").listen(), st.arrive("a:2").listen()
		for i, p := range []*tcpPeer{p1, p2} {
			p.call(uint32(11+i), procEcho, opaque("")...)
			p.results("a call", uint32(11+i))
			time.Sleep(2 * time.Second)
		}
		st.arrive("a:3").listen().ended("the host that has all")
		p1.call(1, procEcho, opaque("")...)
		p1.results("the first", 1)
		time.Sleep(1500 * time.Millisecond)
		p3 := st.arrive("b:1").listen()
		p3.call(3, procEcho, opaque("")...)
		p3.results("another host", 3)
		p2.ended("the longest silent one")
		st.says("closed to make room")
		p1.quiet("the other one")
	})
}

// TestTCPShutdown checks that Shutdown answers calls that have arrived, and accepts no further ones.
func TestTCPShutdown(t *testing.T) {
	t.Run("calls under way are answered", func(t *testing.T) {
		testTCPServer(t, nil, func(st *tcpStage, svc *testService) {
			p, idle := st.arrive("a:1").listen(), st.arrive("a:2").listen()
			for xid := range uint32(3) {
				p.call(xid, procHold)
			}
			synctest.Wait()
			down := make(chan error, 1)
			go func() { down <- st.Shutdown(bg) }()
			idle.ended("an idle connection")
			p.call(10, procEcho, opaque("")...)
			p.quiet("a call that comes later")
			close(svc.gate)
			for range 3 {
				p.message("a reply")
			}
			p.ended("then")
			if err := <-down; err != nil {
				t.Error(err)
			}
			st.says("")
		})
	})
	t.Run("calls in the reader's buffer are answered", func(t *testing.T) {
		testTCPServer(t, &Settings{Credits: 1}, func(st *tcpStage, svc *testService) {
			p := st.arrive("a:1").listen()
			var b []byte
			for xid := range uint32(5) {
				msg := appendCall(nil, xid, procHold)
				b = append(append(b, marked(len(msg))...), msg...)
			}
			p.Write(b)
			synctest.Wait()
			down := make(chan error, 1)
			go func() { down <- st.Shutdown(bg) }()
			synctest.Wait()
			close(svc.gate)
			for xid := range uint32(5) {
				p.results("a reply", xid)
			}
			p.ended("then")
			if err := <-down; err != nil {
				t.Error(err)
			}
		})
	})
	t.Run("its context ends the wait", func(t *testing.T) {
		testTCPServer(t, nil, func(st *tcpStage, svc *testService) {
			p := st.arrive("a:1").listen()
			p.call(1, procHold)
			synctest.Wait()
			ctx, cancel := context.WithTimeout(bg, time.Second)
			defer cancel()
			start := time.Now()
			if err := st.Shutdown(ctx); !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != time.Second {
				t.Errorf("after %v: %v", time.Since(start), err)
			}
			p.ended("then")
		})
	})
	t.Run("nothing is served behind Close", func(t *testing.T) {
		s, err := NewServer(nil)
		if err != nil {
			t.Fatal(err)
		}
		s.Close()
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		if err := s.ServeTCP(l); !errors.Is(err, net.ErrClosed) {
			t.Error(err)
		}
		if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
			t.Error("the listener is open")
		}
	})
}

// TestTCPReplyCache checks that a call that is repeated over TCP is not executed again, nor is one that moves from RDMA
// to TCP.
func TestTCPReplyCache(t *testing.T) {
	data := xdr.AppendOpaque(nil, bytes.Repeat([]byte{3}, 9000))
	stage := func(t *testing.T, script func(st *tcpStage, svc *onceService)) {
		svc := &onceService{}
		tcpServer(t, nil, []rpc.Program{svc.program()}, func(st *tcpStage) {
			svc.gate = make(chan struct{})
			script(st, svc)
		})
	}
	t.Run("on the same connection, and on the next", func(t *testing.T) {
		stage(t, func(st *tcpStage, svc *onceService) {
			p := st.arrive("a:1").listen()
			p.call(5, procEcho, data...)
			first := p.message("the first time")
			p.call(5, procEcho, data...)
			if got := p.message("the second time"); !bytes.Equal(got, first) {
				t.Error("another reply")
			}
			p.Close()
			p = st.arrive("a:2").listen()
			p.call(5, procEcho, data...)
			if got := p.message("the third time"); !bytes.Equal(got, first) {
				t.Error("another reply")
			}
			svc.ran(t, 1)
			p.call(5, procEcho, opaque("else")...)
			p.results("another call", 5)
			st.arrive("b:1").listen().call(5, procEcho, data...)
			svc.ran(t, 3)
			if n := st.Stats().Replayed; n != 2 {
				t.Errorf("%d replayed", n)
			}
		})
	})
	t.Run("while it is being executed", func(t *testing.T) {
		stage(t, func(st *tcpStage, svc *onceService) {
			p := st.arrive("a:1").listen()
			p.call(5, procHold, data...)
			svc.ran(t, 1)
			p.Close()
			p2 := st.arrive("a:2").listen()
			gone := st.arrive("a:3").listen()
			p2.call(5, procHold, data...)
			gone.call(5, procHold, data...)
			p2.quiet("before it is done")
			gone.Close()
			synctest.Wait()
			close(svc.gate)
			if got := p2.results("then", 5); !bytes.Equal(got, data) {
				t.Errorf("%d bytes of results", len(got))
			}
			svc.ran(t, 1)
			if n := svc.ended.Load(); n != 0 {
				t.Error("the context has ended with the connection")
			}
		})
	})
}

// TestTCPThousand checks many connections from many hosts, some silent, each with an occasional call.
func TestTCPThousand(t *testing.T) {
	testTCPServer(t, &Settings{MaxConns: 1000}, func(st *tcpStage, svc *testService) {
		var peers []*tcpPeer
		for i := range 1000 {
			peers = append(peers, st.arrive(fmt.Sprintf("h%d:1", i%50)).listen())
		}
		for round := range uint32(3) {
			for i, p := range peers {
				if i%10 > 0 {
					p.call(round, procArgs, byte(i), 0, 0, byte(round))
				}
			}
			for i, p := range peers {
				if i%10 > 0 {
					p.results("a reply", round)
				}
			}
		}
		if s := st.Stats(); s.OpenConns != 1000 || s.Calls != 2700 {
			t.Errorf("counters are %+v", s)
		}
		if m := st.memory.Stats(); m.Base+m.Idle+m.Held > 1000*(records.BufferSize+exchSize) {
			t.Errorf("a thousand connections hold %+v", m)
		}
	})
}

// TestTCPHalfCalls checks that incomplete calls hold no more than twice the memory that they have sent, once half of
// the memory is in use, and that they end even if bytes trickle in.
func TestTCPHalfCalls(t *testing.T) {
	cfg := &Settings{MaxMessage: 1 << 20, MaxMemory: 4 << 20, MaxTotalMemory: 32 << 20}
	testTCPServer(t, cfg, func(st *tcpStage, svc *testService) {
		msg := appendCall(nil, 1, procArgs, make([]byte, 1<<20-200)...)
		call := append(marked(len(msg)), msg...)
		var peers []*tcpPeer
		for i := range 160 {
			p := st.arrive(fmt.Sprintf("h%d:1", i)).listen()
			peers = append(peers, p)
			go func() {
				_, _ = p.Write(call[:20_000])
				for at := 20_000; ; at++ {
					time.Sleep(25 * time.Second)
					if _, err := p.Write(call[at : at+1]); err != nil {
						return
					}
				}
			}()
		}
		synctest.Wait()
		if n := st.reserved(); n > 16<<20+160*32<<10 {
			t.Errorf("half calls hold %d bytes", n)
		}
		honest := st.arrive("honest:1").listen()
		for range 3 {
			go honest.Write(call)
			if got := honest.results("a call of 1 MiB", 1); len(got) != 1<<20-200 {
				t.Errorf("%d bytes came back", len(got))
			}
			time.Sleep(9 * time.Second)
		}
		time.Sleep(5 * time.Second)
		for _, p := range peers {
			p.ended("a call that is half sent for more than 30 s")
		}
		go honest.Write(call) // after a pause
		honest.results("another", 1)
		time.Sleep(30 * time.Second) // the peers notice
	})
}

// TestTCPReadAhead checks that calls are read ahead of their turn while a call of the server waits for its reply. At a
// limit the connection is closed.
func TestTCPReadAhead(t *testing.T) {
	prog := rpc.Program{Number: testProg, Low: 1, High: 1, Idempotent: rpc.Every,
		Handler: rpc.HandlerFunc(func(ctx context.Context, req *rpc.Request, res *rpc.Response) {
			req.Conn().AllowBackward(0)
			_ = req.Conn().Call(ctx, testCall())
		})}
	cfg := &Settings{MaxMessage: 1 << 20, MaxMemory: 4 << 20, MaxTotalMemory: 64 << 20, Credits: 2}
	for _, size := range []int{100, 30_000, 1 << 19} {
		tcpServer(t, cfg, []rpc.Program{prog}, func(st *tcpStage) {
			p := st.arrive("a:1").listen()
			sent := 0
			go func() {
				for ; ; sent++ {
					msg := appendCall(nil, uint32(sent), 1, make([]byte, size)...)
					if _, err := p.Write(append(marked(len(msg)), msg...)); err != nil {
						return
					}
				}
			}()
			synctest.Wait()
			if n := st.reserved(); n < 4<<20 || n > 2*4<<20 {
				t.Errorf("calls of %d bytes: %d bytes are reserved for %d of them", size, n, sent)
			}
			for range 2 {
				if word(p.message("a call back"), 1) != uint32(oncrpc.Call) {
					t.Error("a reply")
				}
			}
			time.Sleep(31 * time.Second)
			p.ended("at the bound")
			st.says("the replies to 2 calls may be behind others")
		})
	}
}

// TestTCPNotices checks that an Observer gets the same notices over TCP as over RDMA, and that calls count as inline.
func TestTCPNotices(t *testing.T) {
	memory := &Settings{MaxMessage: 1 << 20, MaxMemory: 4 << 20}
	calls := func(size, n int) (b []byte) {
		for xid := range uint32(n) {
			msg := appendCall(nil, xid+7, procHold, make([]byte, size)...)
			b = append(append(b, marked(len(msg))...), msg...)
		}
		return b
	}
	for _, tt := range []struct {
		name   string
		cfg    *Settings
		stream []byte
		kind   rpc.NoticeKind
		xid    uint32
		why    string
		inline uint64 // calls
	}{
		{"a short call that waits for memory", memory, calls(100, 5), rpc.NoticeMemoryStall, 7 + 4, "", 5},
		{"a long call that waits for memory", memory, calls(1<<20-100, 3), rpc.NoticeMemoryStall, 7 + 2, "", 3},
		{"a message of more than MaxMessage", nil, []byte{0xff, 0xff, 0xff, 0xff}, rpc.NoticeRefused, 0, "more than MaxMessage", 0},
		{"an empty fragment", nil, []byte{0, 0, 0, 0}, rpc.NoticeRefused, 0, "empty fragment", 0},
		{"a call that ends in its header", nil, append(marked(20), appendCall(nil, 1, procEcho)[:20]...), rpc.NoticeRefused, 0, "cannot be decoded", 0},
		{"a message too short for a type", nil, append(marked(7), 1, 2, 3, 4, 5, 6, 7), rpc.NoticeRefused, 0, errNoRPC.Error(), 0},
		{"a message of another type", nil, append(marked(8), 0, 0, 0, 9, 0, 0, 0, 2), rpc.NoticeRefused, 9, errNoRPC.Error(), 0},
		{"a long message of another type", nil, append(append(marked(1<<16+8), 0, 0, 0, 9, 0, 0, 0, 2), make([]byte, 1<<16)...), rpc.NoticeRefused, 9, errNoRPC.Error(), 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o := newNoticeLog()
			cfg := Settings{Observer: o}
			if tt.cfg != nil {
				cfg = *tt.cfg
				cfg.Observer = o
			}
			testTCPServer(t, &cfg, func(st *tcpStage, svc *testService) {
				p := st.arrive("a:1").listen()
				go p.Write(tt.stream)
				synctest.Wait()
				close(svc.gate)
				synctest.Wait()
				if n := st.Stats().Inline; n != tt.inline {
					t.Errorf("%d calls were inline, want %d", n, tt.inline)
				}
				if len(o.notices) != 1 {
					t.Fatalf("%d notices", len(o.notices))
				}
				n := <-o.notices
				if n.Kind != tt.kind || n.XID != tt.xid || n.Peer != "a:1" || n.Conn == nil {
					t.Errorf("noticed %+v", n)
				}
				if got := fmt.Sprint(n.Err); tt.why != "" && !strings.Contains(got, tt.why) {
					t.Errorf("the reason is %q, want %q", got, tt.why)
				}
				if tt.kind == rpc.NoticeMemoryStall && n.Bytes == 0 {
					t.Error("the call waits for no bytes")
				}
			})
		})
	}
	t.Run("a call that is read ahead", func(t *testing.T) {
		prog := rpc.Program{Number: testProg, Low: 1, High: 1,
			Handler: rpc.HandlerFunc(func(ctx context.Context, req *rpc.Request, res *rpc.Response) {
				req.Conn().AllowBackward(0)
				_ = req.Conn().Call(ctx, testCall())
			})}
		o := newNoticeLog()
		tcpServer(t, &Settings{Credits: 1, Observer: o}, []rpc.Program{prog}, func(st *tcpStage) {
			p := st.arrive("a:1").listen()
			p.call(1, 1)
			back := word(p.message("a call back"), 0)
			p.send(appendCall(nil, 2, 1)[:20])
			synctest.Wait()
			p.send(oncrpc.AppendReply(nil, &oncrpc.ReplyHeader{XID: back}))
			synctest.Wait()
			if len(o.notices) != 1 {
				t.Fatalf("%d notices", len(o.notices))
			}
			if n := <-o.notices; n.Kind != rpc.NoticeRefused {
				t.Errorf("noticed %+v", n)
			}
		})
	})
	t.Run("calls that a client makes", func(t *testing.T) {
		tcpClient(t, nil, func(sc *tcpScene, p *tcpPeer) {
			done := async(sc.cl, bg, &rpc.Call{Prog: testProg, Vers: 1, Proc: 1})
			xid, _ := p.received("a call", 1)
			p.answer(xid)
			if err := outcome(t, done); err != nil {
				t.Error(err)
			}
			if s := sc.cl.Stats(); s.Inline != 1 {
				t.Errorf("%d calls were inline", s.Inline)
			}
		})
	})
}

// A noticeLog collects notices.
type noticeLog struct {
	rpc.NoObserver
	notices chan rpc.Notice
}

func newNoticeLog() *noticeLog { return &noticeLog{notices: make(chan rpc.Notice, 10)} }

func (l *noticeLog) Noticed(n rpc.Notice) { l.notices <- n }
