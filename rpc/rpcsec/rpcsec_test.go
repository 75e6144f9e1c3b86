package rpcsec_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"path"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/internal/testing/leak"
	"github.com/rpcrdma/rpcrdma/internal/testing/rdmatest"
	"github.com/rpcrdma/rpcrdma/iwarp"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/rpc/rpcsec"
	"github.com/rpcrdma/rpcrdma/shm"
	"github.com/rpcrdma/rpcrdma/transport"
)

const (
	prog     = 0x20000777
	procEcho = 1 // opaque<> to opaque<>, which may be in chunks
	procWho  = 2 // void to string<>: the principal
	procBack = 3 // void to opaque<>: calls procWho of the client
	procTwo  = 4 // two opaque<> to the same
)

var (
	bg     = context.Background()
	secret = []byte("known to both")
	alice  = psk{secret: secret, name: "alice", steps: 1}
	host   = psk{secret: secret, name: "host", steps: 1}
)

// A service is the program of the tests.
type service struct {
	executed atomic.Int32
	back     func(conn rpc.Conn) rpc.Caller
	broken   func(req *rpc.Request, n int32)
}

func (s *service) ServeRPC(ctx context.Context, req *rpc.Request, res *rpc.Response) {
	n := s.executed.Add(1)
	if s.broken != nil {
		s.broken(req, n)
	}
	d := req.Decoder()
	switch req.Proc {
	case procEcho:
		data := d.Opaque(1 << 24)
		if d.End() != nil {
			res.Fail(oncrpc.GarbageArgs)
			return
		}
		b := res.Alloc(len(data))
		copy(b, data)
		res.AddItem(b, nil)
	case procTwo:
		one, two := d.Opaque(1<<24), d.Opaque(1<<24)
		if d.End() != nil {
			res.Fail(oncrpc.GarbageArgs)
			return
		}
		for _, data := range [][]byte{one, two} {
			b := res.Alloc(len(data))
			copy(b, data)
			res.AddItem(b, nil)
		}
	case procWho:
		if p := req.Peer().Principal; p != nil && p.Mechanism == "psk" && (p.Service == rpc.Service(req.Cred.Body[15]) || req.Cred.Sealed()) {
			res.Results = xdr.AppendString(res.Results, p.Name)
		} else {
			res.Results = xdr.AppendString(res.Results, fmt.Sprintf("%+v", p))
		}
	case procBack:
		req.Conn().AllowBackward(0)
		call := rpc.Call{Prog: prog, Vers: 1, Proc: procWho, MaxResults: 100}
		if err := s.back(req.Conn()).Call(ctx, &call); err != nil {
			res.Results = xdr.AppendString(res.Results, err.Error())
			return
		}
		res.Results = append(res.Results, call.Results...)
	default:
		res.Fail(oncrpc.ProcUnavail)
	}
}

func programOf(svc rpc.Handler, sec *rpcsec.Server) rpc.Program {
	return rpc.Program{Number: prog, Low: 1, High: 1, Null: true, Handler: rpc.Chain(svc, sec.Wrap)}
}

// eachProvider runs f over RDMA in software, over shared memory and over TCP.
func eachProvider(t *testing.T, f func(t *testing.T, p fabric.Provider)) {
	for name, p := range map[string]func() fabric.Provider{
		"iwarp": func() fabric.Provider { return iwarp.New(iwarp.Config{}) },
		"TCP":   func() fabric.Provider { return transport.TCP{} },
		"shm":   func() fabric.Provider { return shm.New(shm.Config{}) },
	} {
		if name == "shm" && runtime.GOOS != "linux" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			leak.Check(t)
			f(t, p())
		})
	}
}

// listen serves a program until the test ends, and returns the address.
func listen(t testing.TB, p fabric.Provider, program rpc.Program) string {
	t.Helper()
	server, err := transport.NewServer(&transport.ServerConfig{Config: transport.Config{ReplyCache: transport.ReplyCache{Entries: 200}}})
	if err != nil {
		t.Fatal(err)
	}
	if err := server.Register(program); err != nil {
		t.Fatal(err)
	}
	addr := "127.0.0.1:0"
	switch p.Name() {
	case "shm":
		addr = "@"
	case "rdma":
		addr = rdmatest.Device(t, path.Base(t.Name())) + ":0"
	}
	l, err := server.Listen(bg, p, addr)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() { server.Serve(l) })
	t.Cleanup(func() { server.Close(); wg.Wait() })
	return l.Addr().String()
}

// serve serves a program until the test ends, and returns a client of it.
func serve(t testing.TB, p fabric.Provider, program rpc.Program, backward ...rpc.Program) *transport.Client {
	t.Helper()
	cl, err := transport.Dial(bg, p, listen(t, p, program), &transport.ClientConfig{Callbacks: backward})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cl.Close() })
	return cl
}

// echo makes a call of procEcho.
func echo(c rpc.Caller, call *rpc.Call, data, buf []byte) error {
	call.Prog, call.Vers, call.Proc = prog, 1, procEcho
	call.Args = append(call.Args[:0], number(uint32(len(data)))...)
	call.ReadItems = append(call.ReadItems[:0], rpc.ReadItem{Offset: 4, Data: data})
	call.WriteItems, call.MaxResults = call.WriteItems[:0], 4
	call.Receive(buf[:len(data)])
	if err := c.Call(bg, call); err != nil {
		return err
	}
	d := call.Decoder()
	if got := d.Item(); d.End() != nil || !bytes.Equal(got, data) {
		return fmt.Errorf("%d bytes came back differently: %v", len(data), d.Err())
	}
	return nil
}

// caller returns the name of the caller, as the server sees it.
func caller(c rpc.Caller) (string, error) {
	call := rpc.Call{Prog: prog, Vers: 1, Proc: procWho, MaxResults: 100}
	if err := c.Call(bg, &call); err != nil {
		return "", err
	}
	d := call.Decoder()
	return d.String(100), d.End()
}

// TestServices: V1-11-1 wrappers of both ends are enough for a flavor that proves both, and
// encrypts what they say. Nothing that is protected goes to a chunk of its own.
func TestServices(t *testing.T) {
	data := make([]byte, 1<<20)
	for i := range data {
		data[i] = byte(i * i >> 3)
	}
	for _, tt := range []struct {
		svc  rpc.Service
		seal rpcsec.Sealing
	}{{rpc.ServiceNone, 0}, {rpc.ServiceIntegrity, 0}, {rpc.ServicePrivacy, 0}, {rpc.ServicePrivacy, rpcsec.SealRequired}} {
		for _, steps := range []int{1, 3} {
			svc := tt.svc
			t.Run(fmt.Sprintf("%v, sealing %d, in %d steps", svc, tt.seal, steps), func(t *testing.T) {
				eachProvider(t, func(t *testing.T, p fabric.Provider) {
					alice, host := alice, host
					alice.steps, host.steps = steps, steps
					sec := rpcsec.NewServer(rpcsec.ServerConfig{Acceptor: host, Required: true, Seal: true})
					cl := serve(t, p, programOf(&service{}, sec))
					c := rpcsec.NewClient(cl, rpcsec.ClientConfig{Initiator: alice, Service: svc, Seal: tt.seal})
					if name, err := caller(c); name != "alice" || err != nil {
						t.Errorf("%q calls, %v", name, err)
					}
					var call rpc.Call
					buf := make([]byte, len(data))
					for _, n := range []int{0, 1, 64, 3900, 3960, 4000, 4096, 65536, 65537, 65552, 70000, 1<<20 - 1} {
						clear(buf)
						if err := echo(c, &call, data[:n], buf); err != nil {
							t.Errorf("%d bytes: %v", n, err)
						}
					}
					st := cl.Stats()
					if chunks := st.ReadChunk+st.WriteChunk > 0; p != fabric.Provider(transport.TCP{}) && chunks != (svc == rpc.ServiceNone || tt.seal != 0) {
						t.Errorf("%v: %+v", svc, st)
					}
					parallel(t, c)
					if n := sec.Contexts(); n != 1 {
						t.Errorf("%d contexts", n)
					}
					if err := cl.Null(bg, prog, 1); err != nil {
						t.Errorf("procedure 0 without a context: %v", err)
					}
					if err := c.Call(bg, &rpc.Call{Prog: prog, Vers: 1}); err != nil {
						t.Errorf("procedure 0 in a context: %v", err)
					}
					if err := c.Call(bg, &rpc.Call{Prog: prog, Vers: 1, Proc: 99}); !unavailable(err) {
						t.Errorf("a procedure that there is not: %v", err)
					}
					if err := c.Close(bg); err != nil || sec.Contexts() != 0 {
						t.Errorf("closed: %v, %d contexts", err, sec.Contexts())
					}
					if _, err := caller(c); err == nil {
						t.Error("a call after Close")
					}
				})
			})
		}
	}
}

func unavailable(err error) bool {
	var e *oncrpc.RPCError
	return errors.As(err, &e) && e.Stat == oncrpc.MsgAccepted && e.AcceptStat == oncrpc.ProcUnavail
}

// parallel makes calls at once, more than there are credits at first.
func parallel(t *testing.T, c rpc.Caller) {
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			var call rpc.Call
			data, buf := []byte("some bytes that are secret"), make([]byte, 100)
			for range 20 {
				if err := echo(c, &call, data, buf); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
}

// TestBackward: a server calls its client in a context of its own, over the client's connection.
func TestBackward(t *testing.T) {
	for _, svc := range []rpc.Service{rpc.ServiceNone, rpc.ServiceIntegrity, rpc.ServicePrivacy} {
		eachProvider(t, func(t *testing.T, p fabric.Provider) {
			sec := rpcsec.NewServer(rpcsec.ServerConfig{Acceptor: host, Required: true})
			handler := &service{back: func(conn rpc.Conn) rpc.Caller {
				return rpcsec.NewClient(conn, rpcsec.ClientConfig{Initiator: host, Service: svc})
			}}
			back := rpcsec.NewServer(rpcsec.ServerConfig{Acceptor: alice, Required: true, Services: []rpc.Service{svc}})
			c := rpcsec.NewClient(serve(t, p, programOf(handler, sec), programOf(&service{}, back)), rpcsec.ClientConfig{Initiator: alice})
			call := rpc.Call{Prog: prog, Vers: 1, Proc: procBack, MaxResults: 200}
			if err := c.Call(bg, &call); err != nil || !bytes.Equal(call.Results, xdr.AppendString(nil, "host")) {
				t.Errorf("%v: %v, %q", svc, err, call.Results)
			}
		})
	}
}

// TestResent: a call that is sent again has the xid that was signed, and its reply comes from
// the reply cache, though the Server would not execute it twice.
func TestResent(t *testing.T) {
	eachProvider(t, func(t *testing.T, p fabric.Provider) {
		svc := &service{broken: func(req *rpc.Request, n int32) {
			if n == 3 || n == 8 {
				req.Conn().Close() // the reply gets lost: the second is sealed
				<-req.Conn().Done()
			}
		}}
		sec := rpcsec.NewServer(rpcsec.ServerConfig{Acceptor: host, Seal: true})
		cl := serve(t, p, programOf(svc, sec))
		c := rpcsec.NewClient(cl, rpcsec.ClientConfig{Initiator: alice, Seal: rpcsec.SealRequired})
		for range 5 {
			if name, err := caller(c); name != "alice" || err != nil {
				t.Errorf("%q, %v", name, err)
			}
			if err := newPair('a').do(c); err != nil {
				t.Error(err)
			}
		}
		if st := cl.Stats(); st.Conns != 3 || st.Resent != 2 || svc.executed.Load() != 10 || sec.Contexts() != 1 {
			t.Errorf("%d connections, %d calls sent again, %d executed, %d contexts", st.Conns, st.Resent, svc.executed.Load(), sec.Contexts())
		}
	})
}

// TestResentIdempotent: calls that are not in the reply cache are made with another number.
func TestResentIdempotent(t *testing.T) {
	svc := &service{broken: func(req *rpc.Request, n int32) {
		if n%2 == 1 {
			req.Conn().Close()
			<-req.Conn().Done()
		}
	}}
	program := programOf(svc, rpcsec.NewServer(rpcsec.ServerConfig{Acceptor: host, Seal: true}))
	program.Idempotent = rpc.Every
	c := rpcsec.NewClient(serve(t, transport.TCP{}, program), rpcsec.ClientConfig{Initiator: alice, Seal: rpcsec.SealRequired})
	if name, err := caller(c); name != "alice" || err != nil || svc.executed.Load() != 2 {
		t.Errorf("%q, %v, %d executed", name, err, svc.executed.Load())
	}
	if err := newPair('a').do(c); err != nil || svc.executed.Load() != 4 {
		t.Errorf("sealed: %v, %d executed", err, svc.executed.Load())
	}
}

// TestContextsEnd: a context that has expired, or that the server has forgotten, is replaced.
func TestContextsEnd(t *testing.T) {
	inits := atomic.Int32{}
	counted := func(next rpc.Caller) rpc.Caller {
		return rpc.CallerFunc(func(ctx context.Context, call *rpc.Call) error {
			if call.Proc == 0 {
				inits.Add(1)
			}
			return next.Call(ctx, call)
		})
	}
	for _, tt := range []struct {
		name         string
		alice, host  func(*psk)
		config       rpcsec.ServerConfig
		between      func(sec *rpcsec.Server, cl rpc.Caller)
		calls, inits int32
	}{
		{"", func(*psk) {}, func(*psk) {}, rpcsec.ServerConfig{}, func(*rpcsec.Server, rpc.Caller) {}, 3, 1},
		{"the client's expires", func(p *psk) { p.expires = func() time.Time { return time.Now().Add(time.Second) } }, func(*psk) {},
			rpcsec.ServerConfig{}, func(*rpcsec.Server, rpc.Caller) {}, 3, 3},
		{"the server's expires", func(*psk) {}, func(p *psk) {
			first := true
			p.expires = func() time.Time {
				if first {
					first = false
					return time.Now().Add(-time.Second)
				}
				return time.Time{}
			}
		}, rpcsec.ServerConfig{}, func(*rpcsec.Server, rpc.Caller) {}, 3, 2},
		{"no room", func(*psk) {}, func(*psk) {}, rpcsec.ServerConfig{MaxContexts: 16}, func(_ *rpcsec.Server, cl rpc.Caller) {
			for range 4 {
				rpcsec.NewClient(cl, rpcsec.ClientConfig{Initiator: alice}).Call(bg, &rpc.Call{Prog: prog, Vers: 1})
			}
		}, 3, 3},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a, h := alice, host
			tt.alice(&a)
			tt.host(&h)
			tt.config.Acceptor = h
			sec := rpcsec.NewServer(tt.config)
			svc := &service{}
			cl := serve(t, transport.TCP{}, programOf(svc, sec))
			inits.Store(0)
			c := rpcsec.NewClient(counted(cl), rpcsec.ClientConfig{Initiator: a, Service: rpc.ServiceIntegrity})
			for range tt.calls {
				if name, err := caller(c); name != "alice" || err != nil {
					t.Errorf("%q, %v", name, err)
				}
				tt.between(sec, cl)
			}
			if inits.Load() != tt.inits || svc.executed.Load() != tt.calls {
				t.Errorf("%d contexts made, want %d; %d calls executed", inits.Load(), tt.inits, svc.executed.Load())
			}
			if n := sec.Contexts(); n > 4 {
				t.Errorf("%d contexts", n)
			}
		})
	}
}

// A resender makes all calls with one xid, on a new connection each, as a client does that has lost its connection.
type resender struct {
	addr string
	xid  uint32
	last []byte // the record of the last call
}

func (r *resender) Call(ctx context.Context, call *rpc.Call) error {
	h := oncrpc.CallHeader{XID: r.xid, RPCVers: oncrpc.Version, Prog: call.Prog, Vers: call.Vers, Proc: call.Proc, Cred: call.Cred}
	if call.Sign != nil {
		const verf = 8 // bytes of an empty one
		b := oncrpc.AppendCall(nil, &h)
		h.Verf = call.Sign(b[:len(b)-verf])
	}
	msg := call.AppendArgs(oncrpc.AppendCall(make([]byte, 4), &h))
	binary.BigEndian.PutUint32(msg, 1<<31|uint32(len(msg)-4))
	r.last = msg
	return r.send(call)
}

func (r *resender) send(call *rpc.Call) error {
	conn, err := net.Dial("tcp", r.addr)
	if err != nil {
		return err
	}
	defer conn.Close()
	if _, err := conn.Write(r.last); err != nil {
		return err
	}
	var mark [4]byte
	if _, err := io.ReadFull(conn, mark[:]); err != nil {
		return err
	}
	reply := make([]byte, binary.BigEndian.Uint32(mark[:])&^(1<<31))
	if _, err := io.ReadFull(conn, reply); err != nil {
		return err
	}
	n, err := oncrpc.ConsumeReply(reply, &call.Reply)
	if err != nil {
		return err
	}
	call.Results = reply[n:]
	return call.Reply.Err()
}

// TestResentAnew: a call that comes again with another sequence number, as Linux sends it, is the same call. The reply
// is protected for the number that it came with.
func TestResentAnew(t *testing.T) {
	for _, sv := range []rpc.Service{rpc.ServiceNone, rpc.ServiceIntegrity, rpc.ServicePrivacy} {
		t.Run(sv.String(), func(t *testing.T) {
			leak.Check(t)
			svc := &service{}
			began, gate := make(chan struct{}, 1), make(chan struct{})
			svc.broken = func(req *rpc.Request, n int32) {
				if n == 4 {
					began <- struct{}{}
					<-gate
				}
			}
			raw := &resender{addr: listen(t, transport.TCP{}, programOf(svc, rpcsec.NewServer(rpcsec.ServerConfig{Acceptor: host})))}
			mallory := alice
			mallory.name = "mallory"
			as := func(p psk, next rpc.Caller) *rpcsec.Client {
				return rpcsec.NewClient(next, rpcsec.ClientConfig{Initiator: p, Service: sv})
			}
			a, m := as(alice, raw), as(mallory, raw)
			var reply rpc.Call
			for i, tt := range []struct {
				client   *rpcsec.Client
				xid      uint32
				name     string
				executed int32
			}{
				{a, 7, "alice", 1},
				{a, 7, "alice", 1},              // another number
				{as(alice, raw), 7, "alice", 1}, // another context
				{m, 7, "mallory", 2},            // another caller
				{a, 8, "alice", 3},              // another call
			} {
				raw.xid = tt.xid
				if name, err := caller(tt.client); err != nil || name != tt.name || svc.executed.Load() != tt.executed {
					t.Errorf("%d: %q, %v; %d executed", i, name, err, svc.executed.Load())
				}
			}
			if err := raw.send(&reply); err != nil || svc.executed.Load() != 3 {
				t.Errorf("the same message: %v; %d executed", err, svc.executed.Load())
			}
			raw.xid = 9
			var wg sync.WaitGroup
			var lost *resender
			for i := range 3 { // the others wait for the reply to the first
				next := &resender{addr: raw.addr, xid: 9}
				wg.Go(func() {
					if name, err := caller(as(alice, next)); err != nil || name != "alice" {
						t.Errorf("at once: %q, %v", name, err)
					}
				})
				if i == 0 {
					<-began
					lost = next
				}
			}
			goroutines := runtime.NumGoroutine()
			for range 20 { // and leave when their connections end
				conn, err := net.Dial("tcp", raw.addr)
				if err != nil {
					t.Fatal(err)
				}
				conn.Write(lost.last)
				conn.Close()
			}
			for deadline := time.Now().Add(10 * time.Second); runtime.NumGoroutine() > goroutines+10; time.Sleep(time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatalf("%d goroutines, before were %d", runtime.NumGoroutine(), goroutines)
				}
			}
			close(gate)
			wg.Wait()
			if n := svc.executed.Load(); n != 4 {
				t.Errorf("%d executed", n)
			}
		})
	}
}

// TestCloseDuringSetUp: Close destroys a context that is being set up, too.
func TestCloseDuringSetUp(t *testing.T) {
	sec := rpcsec.NewServer(rpcsec.ServerConfig{Acceptor: host})
	cl := serve(t, transport.TCP{}, programOf(&service{}, sec))
	made, closed := make(chan struct{}), make(chan error)
	c := rpcsec.NewClient(&between{next: cl, null: func(call *rpc.Call) {
		if sec.Contexts() == 1 && made != nil {
			close(made) // the server has made it, the client not yet
			made = nil
			select {
			case err := <-closed:
				t.Errorf("Close has not waited: %v", err)
			case <-time.After(50 * time.Millisecond):
			}
		}
	}}, rpcsec.ClientConfig{Initiator: alice})
	was := made
	go func() {
		<-was
		closed <- c.Close(bg)
	}()
	_, _ = caller(c)
	if err := <-closed; err != nil || sec.Contexts() != 0 {
		t.Errorf("%v, %d contexts", err, sec.Contexts())
	}
}
