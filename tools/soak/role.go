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
	"github.com/rpcrdma/rpcrdma/transport"
)

// A role is what a process is told in its environment.
type role struct {
	Server bool
	RDMA   bool
	Addrs  []string // where to listen, or whom to call
	Every  time.Duration
	Seed   uint64
}

const roleVariable = "RPCRDMA_SOAK_ROLE"

// A sample is what a process tells of itself, as a line of JSON.
type sample struct {
	Addrs []string `json:",omitempty"` // a server's, once

	Resident, Heap, Mapped  int64 // bytes: in memory, live after the last collection, address space
	Descriptors, Goroutines int64

	Right    map[string]int64 // replies that were as they had to be, by kind
	GivenUp  int64            // calls whose context ended, as it was to
	Lost     int64            // calls and connections that ended because of what happens to peers
	Wrong    []string         `json:",omitempty"` // since the last sample; at most a few
	NumWrong int64
}

// The program, and the one that clients serve.
const (
	program = 0x20000cec
	version = 1

	procNull = 0
	procEcho = 1
	procGet  = 2 // a write chunk
	procPut  = 3 // a read chunk
	procLong = 4 // a reply chunk
	procBack = 5 // a call back
	procSlow = 6 // until it is given up, or for a while
)

// slow is how long procSlow takes.
const slow = 20 * time.Millisecond

// patience is how long a call may take that nobody gives up: peers are stopped, and are
// away for a while.
const patience = 30 * time.Second

// fill makes bytes that follow from a seed.
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

// filled tells whether bytes are those of a seed.
func filled(b []byte, seed uint64) bool {
	want := make([]byte, len(b))
	fill(want, seed)
	return bytes.Equal(b, want)
}

// play is the whole of a process that takes part. It ends with its standard input.
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
		p.right[i].name = [...]string{"NULL", "inline", "write chunk", "read chunk", "long reply", "call back", "slow", "connection"}[i]
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
	return p.tell()
}

const procs = 8 // procedures, and connections

type player struct {
	role
	provider fabric.Provider
	out      *json.Encoder

	right [procs]struct {
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

// tell looks at the process.
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

// handle executes calls, at servers and, for calls back, at clients.
func (p *player) handle(ctx context.Context, req *transport.Request, res *transport.Response) {
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
		cn := req.Conn()
		cn.AllowBackward(0)
		args := make([]byte, 256)
		fill(args, seed)
		back := transport.Call{Prog: program, Vers: version, Proc: procEcho, Args: args, MaxResults: len(args)}
		ctx, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		err := cn.Call(ctx, &back)
		if err == nil && !bytes.Equal(back.Results, args) {
			p.fault("the reply to a call back is wrong")
		}
		res.Results = xdr.AppendBool(res.Results, err == nil)
	case procSlow:
		select {
		case <-ctx.Done():
		case <-time.After(slow):
		}
	default:
		res.Fail(oncrpc.ProcUnavail)
		return
	}
	if int(req.Proc) < procs && p.Server {
		p.right[req.Proc].n.Add(1)
	}
}

func (p *player) program() transport.Program {
	return transport.Program{
		Number: program, Low: version, High: version, Idempotent: transport.Every, Handler: transport.HandlerFunc(p.handle),
		Inline: func(_, proc uint32) bool { return proc != procBack && proc != procSlow },
	}
}

func quiet() transport.Config { return transport.Config{Logger: slog.New(slog.DiscardHandler)} }

// serve listens at all addresses, again when a device has gone and come back.
func (p *player) serve(ctx context.Context, wg *sync.WaitGroup) ([]string, error) {
	cfg := transport.ServerConfig{Config: quiet()}
	server, err := transport.NewServer(&cfg)
	if err != nil {
		return nil, err
	}
	if err := server.Register(p.program()); err != nil {
		return nil, err
	}
	var addrs []string
	for _, addr := range p.Addrs {
		l, err := server.Listen(ctx, p.provider, addr)
		if err != nil {
			return nil, err
		}
		addr := l.Addr().String()
		addrs = append(addrs, addr)
		wg.Go(func() {
			for {
				_ = server.Serve(l)
				for {
					if !rest(ctx) {
						return
					}
					if l, err = server.Listen(ctx, p.provider, addr); err == nil {
						break
					}
					p.lost.Add(1)
				}
			}
		})
	}
	wg.Go(func() {
		<-ctx.Done()
		if err := server.Close(); err != nil {
			p.fault("closing the server: %v", err)
		}
	})
	return addrs, nil
}

// rest waits a moment before something is tried again that has failed.
func rest(ctx context.Context) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(50 * time.Millisecond):
		return true
	}
}

const (
	clients = 6 // at a time
	callers = 2 // of each
)

// call keeps clients busy, each with a number of calls before another takes its place.
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

// connection makes a client, some hundred calls with it, and closes it.
func (p *player) connection(ctx context.Context, rng *rand.Rand, addr string) {
	cfg := transport.ClientConfig{Config: quiet()}
	withBack := rng.IntN(3) == 0
	if withBack {
		cfg.Callbacks = []transport.Program{p.program()}
	}
	if rng.IntN(4) == 0 {
		cfg.Version = transport.Version1
	}
	dial, cancel := context.WithTimeout(ctx, patience)
	cl, err := transport.Dial(dial, p.provider, addr, &cfg)
	cancel()
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
				p.one(ctx, cl, rng, withBack)
			}
		})
	}
	wg.Wait()
	if err := cl.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		p.fault("closing a client: %v", err)
	}
	p.right[procs-1].n.Add(1)
}

// ended judges an error: whether it may be what happens to a peer.
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

// one makes a call and looks at what comes back.
func (p *player) one(ctx context.Context, cl *transport.Client, rng *rand.Rand, withBack bool) {
	seed := rng.Uint64()
	sizes := [...]int{0, 1, 100, 4000, 5000, 65_536, 300_001, 1 << 20}
	n := sizes[rng.IntN(len(sizes))]
	proc := uint32(rng.IntN(procs - 1))
	if proc == procBack && !withBack {
		proc = procNull
	}
	call := transport.Call{Prog: program, Vers: version, Proc: proc}
	args := xdr.AppendUint64(nil, seed)
	switch proc {
	case procEcho:
		call.Args = make([]byte, 4*(1+rng.IntN(200)))
		fill(call.Args, seed)
		call.MaxResults = len(call.Args)
	case procGet:
		n = max(n, 1) // memory of nothing is a caller's mistake
		call.Args = xdr.AppendUint32(args, uint32(n))
		call.WriteItems = []transport.WriteItem{{Buf: make([]byte, n)}}
		call.MaxResults = 64
	case procPut:
		data := make([]byte, n)
		fill(data, seed)
		call.Args = xdr.AppendUint32(args, uint32(n))
		call.ReadItems = []transport.ReadItem{{Offset: len(call.Args), Data: data}}
		call.MaxResults = 4
	case procLong:
		n = min(n, 300_001)
		call.Args = xdr.AppendUint32(args, uint32(n))
		call.MaxResults = 4 + n + 3
	case procBack, procSlow:
		call.Args = args
		call.MaxResults = 4
	}
	limit, hurried := patience, rng.IntN(12) == 0
	if hurried {
		limit = time.Duration(rng.IntN(3_000_000))
	}
	one, cancel := context.WithTimeout(ctx, limit)
	err := cl.Call(one, &call)
	cancel()
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
			p.lost.Add(1) // the connection ended under the call back
			return
		}
	}
	if !right || d.Err() != nil {
		p.fault("%s of %d bytes: the reply is wrong (%v): %s", p.right[proc].name, n, d.Err(), head(call.Results))
		return
	}
	p.right[proc].n.Add(1)
}

func head(b []byte) string { return strings.TrimSpace(fmt.Sprintf("% x", b[:min(len(b), 32)])) }
