package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"runtime"
	"runtime/metrics"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/iwarp"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
	"github.com/rpcrdma/rpcrdma/rdmacm"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/rpc/middleware"
	"github.com/rpcrdma/rpcrdma/transport"
)

// role is passed to a process in its environment.
type role struct {
	Server bool
	RDMA   bool
	Addrs  []string // where to listen, or which server to call
	Every  time.Duration
	Seed   uint64
}

const roleVariable = "RPCRDMA_SOAK_ROLE"

// sample is the report of a process about itself, as a line of JSON.
type sample struct {
	Addrs []string `json:",omitempty"` // of a server, in its first report

	Resident, Heap, Mapped  int64 // bytes: resident memory, heap after the last collection, address space
	Descriptors, Goroutines int64

	Right    map[string]int64 // correct replies, by kind
	GivenUp  int64            // calls that ended with their context, as intended
	Lost     int64            // calls and connections that ended because of faults of peers
	Wrong    []string         `json:",omitempty"` // incorrect replies since the last sample; at most a few
	NumWrong int64
}

// The program of servers, and the one that clients serve.
const (
	program  = 0x20000cec
	versions = 2

	procNull = 0
	procEcho = 1
	procGet  = 2 // a write chunk
	procPut  = 3 // a read chunk
	procLong = 4 // a reply chunk
	procBack = 5 // a callback, within which the client may make a call
	procSlow = 6 // takes until it is canceled, or for a while
	procOnce = 7 // must not be executed twice, although its connection may be cut meanwhile
	procDies = 8 // the handler panics or ends its goroutine

	procs = 9
)

// Handlers of version 1 run on the goroutine that leads the connection, unless they wait.
const inlineVersion = 1

// slow is how long procSlow takes.
const slow = 20 * time.Millisecond

// patience is how long a call that is not canceled may take: peers are stopped, and are absent for a while.
const patience = 30 * time.Second

// fill fills b with bytes derived from a seed.
func fill(b []byte, seed uint64) {
	x := seed | 1
	for len(b) >= 8 {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		binary.LittleEndian.PutUint64(b, x)
		b = b[8:]
	}
	for i := range b {
		b[i] = byte(x >> (8 * i))
	}
}

// filled reports whether b was filled from a seed.
func filled(b []byte, seed uint64) bool {
	want := make([]byte, len(b))
	fill(want, seed)
	return bytes.Equal(b, want)
}

// play is the main function of a participating process. It ends with its standard input.
func play(text string) error {
	var r role
	if err := json.Unmarshal([]byte(text), &r); err != nil {
		return err
	}
	var provider fabric.Provider = iwarp.New(iwarp.Config{})
	if r.RDMA {
		p, err := rdmacm.New(rdmacm.Config{Wait: rdmacm.WaitEvent})
		if err != nil {
			return err
		}
		provider = p
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	p := &player{role: r, provider: provider, out: json.NewEncoder(os.Stdout)}
	for i := range p.right {
		p.right[i].name = [...]string{"NULL", "inline", "write chunk", "read chunk", "long reply", "call back", "slow", "once", "failing handler", "connection"}[i]
	}
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	var wg sync.WaitGroup
	if r.Server {
		addrs, err := p.serve(ctx, &wg)
		if err != nil {
			return err
		}
		if err := p.out.Encode(sample{Addrs: addrs}); err != nil {
			return err
		}
	} else {
		p.call(ctx, &wg)
	}
	tick := time.NewTicker(r.Every)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			if err := p.tell(); err != nil {
				return err
			}
			continue
		case <-ctx.Done():
		}
		break
	}
	wg.Wait()
	if text := p.watcher.open(); text != "" {
		p.fault("after the end: %s", text)
	}
	return p.tell()
}

type player struct {
	role
	provider fabric.Provider
	out      *json.Encoder

	watcher  watcher
	executed once

	right [procs + 1]struct { // the last one counts connections
		name string
		n    atomic.Int64
	}
	givenUp, lost, numWrong atomic.Int64

	mu    sync.Mutex
	wrong []string
}

func (p *player) fault(format string, args ...any) {
	p.numWrong.Add(1)
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.wrong) < 5 {
		p.wrong = append(p.wrong, fmt.Sprintf(format, args...))
	}
}

// tell reports the state of the process.
func (p *player) tell() error {
	s := sample{Goroutines: int64(runtime.NumGoroutine()), Right: make(map[string]int64), GivenUp: p.givenUp.Load(), Lost: p.lost.Load(), NumWrong: p.numWrong.Load()}
	for i := range p.right {
		s.Right[p.right[i].name] = p.right[i].n.Load()
	}
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(live)
	s.Heap = int64(live[0].Value.Uint64())
	statm, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return err
	}
	if _, err := fmt.Sscan(string(statm), &s.Mapped, &s.Resident); err != nil {
		return err
	}
	page := int64(os.Getpagesize())
	s.Mapped, s.Resident = s.Mapped*page, s.Resident*page
	files, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return err
	}
	s.Descriptors = int64(len(files))
	p.mu.Lock()
	s.Wrong, p.wrong = p.wrong, nil
	p.mu.Unlock()
	return p.out.Encode(s)
}

// handle executes calls on servers and callbacks on clients.
func (p *player) handle(ctx context.Context, req *rpc.Request, res *rpc.Response) {
	d := xdr.NewDecoder(req.Args)
	switch req.Proc {
	case procNull:
	case procEcho:
		res.Results = append(res.Results, req.Args...)
	case procGet:
		seed, n := d.Uint64(), d.Uint32()
		data := res.Alloc(int(n))
		if data == nil {
			res.Fail(oncrpc.SystemErr)
			return
		}
		fill(data, seed)
		res.AddItem(data, nil)
	case procPut:
		seed := d.Uint64()
		data := d.Opaque(1 << 22)
		res.Results = xdr.AppendBool(res.Results, d.Err() == nil && filled(data, seed))
	case procLong:
		seed, n := d.Uint64(), d.Uint32()
		data := make([]byte, n)
		fill(data, seed)
		res.Results = xdr.AppendOpaque(res.Results, data)
	case procBack:
		seed := d.Uint64()
		res.Results = xdr.AppendBool(res.Results, p.callBack(ctx, req.Conn(), seed))
	case procSlow:
		select {
		case <-ctx.Done():
		case <-time.After(slow):
		}
	case procOnce:
		seed := d.Uint64()
		if !p.executed.first(seed) {
			p.fault("a call was executed twice")
		}
		if seed%16 == 0 {
			_ = req.Conn().Close() // the client resends it and gets the cached reply
		}
		res.Results = xdr.AppendUint64(res.Results, ^seed)
	case procDies:
		if d.Uint64()%2 == 0 {
			panic("as it was told")
		}
		runtime.Goexit()
	default:
		res.Fail(oncrpc.ProcUnavail)
		return
	}
	if p.Server {
		p.right[req.Proc].n.Add(1)
	}
}

// callBack calls the other end of a call that is being executed, and reports whether there was a reply. Within half of
// the callbacks the client makes another call.
func (p *player) callBack(ctx context.Context, cn rpc.Conn, seed uint64) bool {
	args := make([]byte, 256)
	fill(args, seed)
	call := rpc.Call{Prog: program, Vers: versions, Proc: procEcho, Args: args, MaxResults: len(args)}
	nested := p.Server && seed%2 == 0
	if nested {
		call.Proc, call.Args, call.MaxResults = procBack, xdr.AppendUint64(nil, seed), 4
	}
	if p.Server {
		cn.AllowBackward(0)
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if err := cn.Call(ctx, &call); err != nil {
		return false
	}
	d := xdr.NewDecoder(call.Results)
	if nested {
		return d.Bool()
	}
	if !bytes.Equal(call.Results, args) {
		p.fault("the reply to a call back is wrong")
	}
	return true
}

func (p *player) program() rpc.Program {
	return rpc.Program{
		Number: program, Low: 1, High: versions, Handler: rpc.HandlerFunc(p.handle),
		Idempotent: func(_, proc uint32) bool { return proc != procOnce },
		Inline:     func(vers, proc uint32) bool { return vers == inlineVersion && proc != procBack && proc != procSlow },
	}
}

// config returns the configuration of all connections, with all features enabled that observe calls.
func (p *player) config() (transport.Config, error) {
	limiter, err := middleware.NewLimiter(middleware.Limits{InFlight: 1000, Wait: patience})
	if err != nil {
		return transport.Config{}, err
	}
	quiet := slog.New(slog.DiscardHandler)
	return transport.Config{
		Logger: quiet, Observer: &p.watcher,
		Middleware: []rpc.Middleware{middleware.Log(middleware.LogConfig{Logger: quiet}), limiter.Wrap},
	}, nil
}

// overTCP is the prefix of addresses for records over TCP.
const overTCP = "tcp:"

// at returns the provider for an address, and the address without its prefix.
func (p *player) at(addr string) (fabric.Provider, string) {
	if rest, ok := strings.CutPrefix(addr, overTCP); ok {
		return transport.TCP{}, rest
	}
	return p.provider, addr
}

// serve listens on all addresses, and listens again after a device has been removed and added.
func (p *player) serve(ctx context.Context, wg *sync.WaitGroup) ([]string, error) {
	common, err := p.config()
	if err != nil {
		return nil, err
	}
	// Little memory, so that long calls wait for it.
	common.MaxMemory = 32 << 20
	server, err := transport.NewServer(&transport.ServerConfig{Config: common, MaxTotalMemory: 64 << 20})
	if err != nil {
		return nil, err
	}
	if err := server.Register(p.program()); err != nil {
		return nil, err
	}
	var addrs []string
	for _, addr := range p.Addrs {
		provider, addr := p.at(addr)
		l, err := server.Listen(ctx, provider, addr)
		if err != nil {
			return nil, err
		}
		addr = l.Addr().String()
		if provider == (transport.TCP{}) {
			addrs = append(addrs, overTCP+addr)
		} else {
			addrs = append(addrs, addr)
		}
		wg.Go(func() {
			for {
				_ = server.Serve(l)
				for {
					if !rest(ctx) {
						return
					}
					if l, err = server.Listen(ctx, provider, addr); err == nil {
						break
					}
					p.lost.Add(1)
				}
			}
		})
	}
	wg.Go(func() {
		<-ctx.Done()
		p.closeTwice("the server", server)
	})
	return addrs, nil
}

// rest waits a moment before a failed attempt is repeated.
func rest(ctx context.Context) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(50 * time.Millisecond):
		return true
	}
}

const (
	clients = 6 // concurrent
	callers = 2 // per client
)

// call keeps clients busy. Each makes a number of calls before another takes its place.
func (p *player) call(ctx context.Context, wg *sync.WaitGroup) {
	for i := range clients {
		rng := rand.New(rand.NewPCG(p.Seed, uint64(i)))
		wg.Go(func() {
			for ctx.Err() == nil {
				p.connection(ctx, rng, p.Addrs[rng.IntN(len(p.Addrs))])
			}
		})
	}
}

// ender is a Client, a Group or a Server.
type ender interface {
	Close() error
	Shutdown(ctx context.Context) error
}

// closeTwice closes e in both ways, each twice, concurrently.
func (p *player) closeTwice(what string, e ender) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var wg sync.WaitGroup
	shutdown := func() error { return e.Shutdown(ctx) }
	for _, end := range []func() error{e.Close, e.Close, shutdown, shutdown} {
		wg.Go(func() {
			if err := end(); err != nil && !errors.Is(err, net.ErrClosed) {
				p.fault("closing %s: %v", what, err)
			}
		})
	}
	wg.Wait()
}

// dial connects, with a Client or a Group.
func (p *player) dial(ctx context.Context, rng *rand.Rand, addr string, cfg *transport.ClientConfig, group bool) (interface {
	rpc.Caller
	ender
}, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	provider, addr := p.at(addr)
	if group {
		several := *cfg
		several.Connections = 1 + rng.IntN(3)
		return transport.DialGroup(ctx, provider, []string{addr}, &several)
	}
	return transport.Dial(ctx, provider, addr, cfg)
}

// connection makes a client, makes some hundred calls with it, and closes it.
func (p *player) connection(ctx context.Context, rng *rand.Rand, addr string) {
	common, err := p.config()
	if err != nil {
		p.fault("%v", err)
		return
	}
	cfg := transport.ClientConfig{Config: common, MaxPause: 200 * time.Millisecond}
	withBack := rng.IntN(3) == 0
	if withBack {
		cfg.Callbacks = []rpc.Program{p.program()}
	}
	if rng.IntN(4) == 0 {
		cfg.Version = transport.Version1
	}
	if rng.IntN(4) == 0 {
		cfg.MaxSegment = 64 << 10
	}
	if rng.IntN(4) == 0 {
		cfg.KeepAlive = 2 * pause
	}
	cl, err := p.dial(ctx, rng, addr, &cfg, !withBack && rng.IntN(3) == 0)
	if err != nil {
		p.ended(ctx, "connecting", err)
		rest(ctx)
		return
	}
	var wg sync.WaitGroup
	for range callers {
		rng := rand.New(rand.NewPCG(rng.Uint64(), 0))
		wg.Go(func() {
			for range 20 + rng.IntN(400) {
				if ctx.Err() != nil {
					return
				}
				if rng.IntN(16) == 0 {
					p.several(ctx, cl, rng)
				} else {
					p.one(ctx, cl, rng, withBack)
				}
			}
		})
	}
	wg.Wait()
	p.closeTwice("a client", cl)
	p.right[procs].n.Add(1)
}

// several makes calls at once, through a Pipeline.
func (p *player) several(ctx context.Context, cl rpc.Caller, rng *rand.Rand) {
	calls := make([]*rpc.Call, 1+rng.IntN(40))
	for i := range calls {
		args := make([]byte, 256)
		fill(args, rng.Uint64())
		calls[i] = &rpc.Call{Prog: program, Vers: 1 + rng.Uint32N(versions), Proc: procEcho, Args: args, MaxResults: len(args)}
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	errs := transport.CallAll(ctx, cl, calls...)
	for i, call := range calls {
		switch {
		case errs != nil && errs[i] != nil:
			p.ended(ctx, "several", errs[i])
		case !bytes.Equal(call.Results, call.Args):
			p.fault("the reply to one of several calls is wrong: %s", head(call.Results))
		default:
			p.right[procEcho].n.Add(1)
		}
	}
}

// ended checks whether an error may be the result of a fault of a peer.
func (p *player) ended(ctx context.Context, what string, err error) {
	var dial *transport.DialError
	switch {
	case ctx.Err() != nil:
	case errors.Is(err, net.ErrClosed), errors.As(err, &dial), errors.Is(err, context.DeadlineExceeded), errors.Is(err, syscall.ENODEV), errors.Is(err, syscall.ENOMEM):
		p.lost.Add(1)
	default:
		p.fault("%s: %v", what, err)
	}
}

// one makes a call and checks its result.
func (p *player) one(ctx context.Context, cl rpc.Caller, rng *rand.Rand, withBack bool) {
	seed := rng.Uint64()
	sizes := [...]int{0, 1, 100, 4000, 5000, 65_536, 300_001, 1 << 20}
	n := sizes[rng.IntN(len(sizes))]
	proc := rng.Uint32N(procs)
	if proc == procBack && !withBack {
		proc = procNull
	}
	call := rpc.Call{Prog: program, Vers: 1 + rng.Uint32N(versions), Proc: proc}
	args := xdr.AppendUint64(nil, seed)
	switch proc {
	case procEcho:
		call.Args = make([]byte, 4*(1+rng.IntN(200)))
		fill(call.Args, seed)
		call.MaxResults = len(call.Args)
	case procGet:
		n = max(n, 1) // registering empty memory is a caller's mistake
		call.Args = xdr.AppendUint32(args, uint32(n))
		call.WriteItems = []rpc.WriteItem{{Buf: make([]byte, n)}}
		call.MaxResults = 64
	case procPut:
		data := make([]byte, n)
		fill(data, seed)
		call.Args = xdr.AppendUint32(args, uint32(n))
		call.ReadItems = []rpc.ReadItem{{Offset: len(call.Args), Data: data}}
		call.MaxResults = 4
	case procLong:
		n = min(n, 300_001)
		call.Args = xdr.AppendUint32(args, uint32(n))
		call.MaxResults = 4 + n + 3
	case procBack, procSlow, procOnce, procDies:
		call.Args = args
		call.MaxResults = 8
	}
	limit, hurried := patience, rng.IntN(12) == 0
	if hurried {
		limit = time.Duration(rng.IntN(3_000_000))
	}
	one, cancel := context.WithTimeout(ctx, limit)
	err := cl.Call(one, &call)
	cancel()
	var refused *oncrpc.RPCError
	if proc == procDies && errors.As(err, &refused) && refused.Stat == oncrpc.MsgAccepted && refused.AcceptStat == oncrpc.SystemErr {
		p.right[proc].n.Add(1)
		return
	}
	if err != nil {
		if hurried && errors.Is(err, context.DeadlineExceeded) {
			p.givenUp.Add(1)
			return
		}
		p.ended(ctx, p.right[proc].name, err)
		return
	}
	right := true
	d := xdr.NewDecoder(call.Results)
	switch proc {
	case procEcho:
		right = bytes.Equal(call.Results, call.Args)
	case procGet:
		it := call.WriteItems[0]
		data := it.Buf[:it.N]
		if !it.Chunked {
			data = d.Opaque(1 << 22)
		}
		right = len(data) == n && filled(data, seed)
	case procPut:
		right = d.Bool()
	case procLong:
		data := d.Opaque(1 << 22)
		right = len(data) == n && filled(data, seed)
	case procBack:
		if !d.Bool() {
			p.lost.Add(1) // the connection ended during the callback
			return
		}
	case procOnce:
		right = d.Uint64() == ^seed
	case procDies:
		right = false
	}
	if !right || d.Err() != nil {
		p.fault("%s of %d bytes: the reply is wrong (%v): %s", p.right[proc].name, n, d.Err(), head(call.Results))
		return
	}
	p.right[proc].n.Add(1)
}

func head(b []byte) string { return strings.TrimSpace(fmt.Sprintf("% x", b[:min(len(b), 32)])) }
