package bench

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/transport"
)

// The program of the workloads of this module. Its number is in the user-defined range of RFC
// 5531 section 8.3.
const (
	benchProgram = 0x20000bec
	benchVersion = 1

	procNull = 0
	procEcho = 1 // returns the opaque argument
	procGet  = 2 // returns the number of bytes in the argument
	procPut  = 3 // discards the opaque argument
	procDial = 4 // the server may call back on this connection
	procMove = 5 // returns the opaque argument, placed both ways
)

// Ends configure the two ends of a workload.
type Ends struct {
	Version1  bool `json:"version1,omitempty"`  // without private data: 1024 bytes inline
	LocalInv  bool `json:"local_inv,omitempty"` // no remote invalidation
	Credits   int  `json:"credits,omitempty"`   // maximum granted by the server
	Register  bool `json:"register,omitempty"`  // the server registers bulk data for each call
	Large     bool `json:"large,omitempty"`     // messages of up to 9 MiB
	Kept      bool `json:"kept,omitempty"`      // the client's memory stays registered
	Group     int  `json:"group,omitempty"`     // the client is a group of up to this many connections
	Conns     int  `json:"conns,omitempty"`     // maximum accepted by the server
	callbacks bool // the client serves calls of the server
	backward  bool // the server makes the calls
}

func (e Ends) config() transport.Config {
	cfg := transport.Config{Credits: e.Credits, NoRemoteInvalidation: e.LocalInv}
	if e.Large {
		cfg.MaxMessage = 9 << 20
	}
	if e.Version1 {
		cfg.Version, cfg.NoPrivateData = transport.Version1, true
	}
	return cfg
}

// suffix names the options that differ from the defaults.
func (e Ends) suffix() string {
	s := ""
	if e.Version1 {
		s += "/vers=1"
	}
	if e.LocalInv {
		s += "/inv=local"
	}
	if e.Register {
		s += "/reg=mr"
	}
	if e.Kept {
		s += "/reg=kept"
	}
	if e.Group != 0 {
		s += fmt.Sprintf("/group=%d", e.Group)
	}
	if e.Credits != 0 {
		s += fmt.Sprintf("/credits=%d", e.Credits)
	}
	return s
}

// calls returns a workload with calls of one procedure, prepared by prepare, on one connection.
func calls(at Site, e Ends, name string, depth, bytes int, proc uint32, prepare func(*rpc.Call)) Workload {
	return Workload{
		Name:   name + e.suffix(),
		Depth:  depth,
		Bytes:  bytes,
		Server: &Server{Kind: "rpc", Site: at, Ends: e},
		Client: func(addr string) (*Instance, error) {
			return dialRPC(at, e, addr, 1, depth, proc, prepare)
		},
	}
}

// Null calls procedure 0, which has no data: the round trip that every call includes.
func Null(at Site, depth int) Workload {
	return NullWith(at, Ends{}, depth)
}

// NullWith is Null with the given ends.
func NullWith(at Site, e Ends, depth int) Workload {
	return calls(at, e, fmt.Sprintf("Null/prov=%s/depth=%d", at.Name, depth), depth, 0, procNull, nil)
}

// NullConns is Null over several connections, with depth outstanding calls in total. Callers
// cycle through the connections.
func NullConns(at Site, conns, depth int) Workload {
	w := Null(at, depth)
	w.Name = fmt.Sprintf("Conns/prov=%s/conns=%d/depth=%d", at.Name, conns, depth)
	w.Client = func(addr string) (*Instance, error) {
		return dialRPC(at, Ends{}, addr, conns, depth, procNull, nil)
	}
	return w
}

// OverCommit is Null with depth callers on a connection with the given credits.
func OverCommit(at Site, credits, depth int) Workload {
	return calls(at, Ends{Credits: credits}, fmt.Sprintf("OverCommit/prov=%s/depth=%d", at.Name, depth), depth, 0, procNull, nil)
}

// Echo sends size bytes and receives them back, inline if they fit.
func Echo(at Site, size, depth int) Workload { return echoWith(at, Ends{}, size, depth) }

// EchoV1 is Echo in version 1 without private data: messages longer than 1024 bytes use
// chunks.
func EchoV1(at Site, size, depth int) Workload {
	return echoWith(at, Ends{Version1: true}, size, depth)
}

func echoWith(at Site, e Ends, size, depth int) Workload {
	return calls(at, e, fmt.Sprintf("Echo/prov=%s/size=%s/depth=%d", at.Name, binaryPrefix(size), depth), depth, 0, procEcho, func(c *rpc.Call) {
		c.Args = binary.BigEndian.AppendUint32(nil, uint32(size))
		c.Args = append(c.Args, make([]byte, size+(4-size%4)%4)...)
		c.MaxResults = len(c.Args)
	})
}

// Push receives size bytes with each call: the server writes them to the caller's memory, a
// write chunk.
func Push(at Site, size, depth int) Workload { return PushWith(at, Ends{}, size, depth) }

// PushWith is Push with the given ends.
func PushWith(at Site, e Ends, size, depth int) Workload {
	return calls(at, e, fmt.Sprintf("Push/prov=%s/size=%s/depth=%d", at.Name, binaryPrefix(size), depth), depth, size, procGet, func(c *rpc.Call) {
		c.Args = binary.BigEndian.AppendUint32(nil, uint32(size))
		c.WriteItems = []rpc.WriteItem{{Buf: make([]byte, size)}}
		c.MaxResults = 64
	})
}

// Pull sends size bytes with each call: the server reads them from the caller's
// memory, a read chunk.
func Pull(at Site, size, depth int) Workload { return PullWith(at, Ends{}, size, depth) }

// Move sends size bytes with each call and gets them back, each way in a chunk that is placed.
func Move(at Site, size, depth int) Workload {
	return calls(at, Ends{}, fmt.Sprintf("Move/prov=%s/size=%s/depth=%d", at.Name, binaryPrefix(size), depth), depth, 2*size, procMove, func(c *rpc.Call) {
		c.Args = binary.BigEndian.AppendUint32(nil, uint32(size))
		c.ReadItems = []rpc.ReadItem{{Offset: 4, Data: make([]byte, size)}}
		c.WriteItems = []rpc.WriteItem{{Buf: make([]byte, size)}}
		c.MaxResults = 64
	})
}

// PullWith is Pull with the given ends.
func PullWith(at Site, e Ends, size, depth int) Workload {
	return calls(at, e, fmt.Sprintf("Pull/prov=%s/size=%s/depth=%d", at.Name, binaryPrefix(size), depth), depth, size, procPut, func(c *rpc.Call) {
		c.Args = binary.BigEndian.AppendUint32(nil, uint32(size))
		c.ReadItems = []rpc.ReadItem{{Offset: 4, Data: make([]byte, size)}}
	})
}

// NullWithCallbacks is Null for a client with an idle backchannel.
func NullWithCallbacks(at Site, depth int) Workload {
	w := Null(at, depth)
	w.Name += "/callbacks=idle"
	w.Server, w.Client = nil, nil
	w.Setup = func() (*Instance, error) { return bothWays(at, Ends{callbacks: true}, depth) }
	return w
}

// BackwardNull is Null from the server to the client.
func BackwardNull(at Site, depth int) Workload {
	w := Null(at, depth)
	w.Name += "/way=backward"
	w.Server, w.Client = nil, nil
	w.Setup = func() (*Instance, error) { return bothWays(at, Ends{callbacks: true, backward: true}, depth) }
	return w
}

// Connect makes a connection and one call on it, and closes it.
func Connect(at Site) Workload { return ConnectWith(at, Ends{}) }

// ConnectWith is Connect with the given ends.
func ConnectWith(at Site, e Ends) Workload {
	name := "Connect/prov=" + at.Name
	if e.Version1 {
		name += "/version=1"
	}
	cfg := transport.ClientConfig{Config: e.config()}
	return Workload{
		Name:   name,
		Server: &Server{Kind: "rpc", Site: at},
		Client: func(addr string) (*Instance, error) {
			p, err := at.tap()
			if err != nil {
				return nil, err
			}
			closed := false
			ctx := context.Background()
			return &Instance{
				Call: func(int) error {
					if closed {
						return net.ErrClosed
					}
					p.forget()
					c, err := transport.Dial(ctx, p.through(), addr, &cfg)
					if err != nil {
						return err
					}
					return errors.Join(c.Null(ctx, benchProgram, benchVersion), c.Close())
				},
				Close: func() error { closed = true; return nil },
			}, nil
		},
	}
}

// NullContext is Null with a cancelable context that is not canceled.
func NullContext(at Site) Workload {
	w := Null(at, 1)
	w.Name += "/ctx=cancellable"
	w.Client = func(addr string) (*Instance, error) {
		return dialRPCWith(at, Ends{}, addr, 1, 1, procNull, nil, func() (context.Context, context.CancelFunc) {
			return context.WithCancel(context.Background())
		})
	}
	return w
}

// Cancelled makes calls with size bytes in the caller's memory, a read chunk, and cancels each
// while its procedure runs. An operation is the call, its cancellation, the fence that revokes
// its memory, and the late reply. With adapters other than the software adapter, a late reply
// that remotely invalidates revoked memory may end the connection, so size must be small enough
// to go inline, or invalidation local.
func Cancelled(at Site, e Ends, size int) Workload {
	return Workload{
		Name:  fmt.Sprintf("Cancelled/prov=%s/size=%s", at.Name, binaryPrefix(size)) + e.suffix(),
		Setup: func() (*Instance, error) { return startCancelled(at, e, size) },
	}
}

func startCancelled(at Site, e Ends, size int) (*Instance, error) {
	begun, returned := make(chan struct{}), make(chan struct{})
	program := rpc.Program{
		Number: benchProgram, Low: benchVersion, High: benchVersion, Idempotent: rpc.Every,
		Handler: rpc.HandlerFunc(func(context.Context, *rpc.Request, *rpc.Response) {
			begun <- struct{}{}
			<-returned
		}),
	}
	server, err := startServer(at, e, program)
	if err != nil {
		return nil, err
	}
	p, err := at.tap()
	if err != nil {
		return nil, errors.Join(err, server.close())
	}
	cfg := transport.ClientConfig{Config: e.config()}
	client, err := transport.Dial(context.Background(), p.through(), server.addr, &cfg)
	if err != nil {
		return nil, errors.Join(err, server.close())
	}
	call := rpc.Call{Prog: benchProgram, Vers: benchVersion, Proc: procPut}
	call.Args = binary.BigEndian.AppendUint32(nil, uint32(size))
	call.ReadItems = []rpc.ReadItem{{Offset: 4, Data: make([]byte, size)}}
	return &Instance{
		Call: func(int) error {
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			ended := make(chan error, 1)
			go func() { ended <- client.Call(ctx, &call) }()
			select {
			case <-begun:
			case err := <-ended:
				return fmt.Errorf("the call ended before it was given up: %w", err)
			}
			cancel()
			err := <-ended
			returned <- struct{}{}
			if !errors.Is(err, context.Canceled) {
				return fmt.Errorf("a call that was given up: %w", err)
			}
			return nil
		},
		Close: func() error { return errors.Join(client.Close(), server.close()) },
	}, nil
}

// program returns the server's program. ready receives connections on which the server may call.
//
// Bulk data comes from one buffer for all calls, as in the TCP copy loops. On a device, and over shared memory, the
// buffer is memory of the transport, which is registered, or mapped, unless each call registers it.
func (e Ends) program(at Site, ready chan<- rpc.Conn) rpc.Program {
	alloc := (at.Adapter.Device || at.Adapter.Shared) && !e.Register
	bulk := make([]byte, 8<<20) // shared by all servers, so that they collect garbage equally often
	return rpc.Program{
		Number: benchProgram, Low: benchVersion, High: benchVersion,
		Idempotent: rpc.Every,
		Handler: rpc.HandlerFunc(func(_ context.Context, req *rpc.Request, res *rpc.Response) {
			switch req.Proc {
			case procEcho:
				res.Results = append(res.Results, req.Args...)
			case procGet:
				if len(req.Args) != 4 {
					res.Fail(oncrpc.GarbageArgs)
					return
				}
				n := int(binary.BigEndian.Uint32(req.Args))
				var data []byte
				if alloc {
					data = res.Alloc(n)
				} else if n <= len(bulk) {
					data = bulk[:n]
				}
				if data == nil {
					res.Fail(oncrpc.SystemErr)
					return
				}
				res.AddItem(data, nil)
			case procMove:
				d := req.Decoder()
				args := d.Opaque(uint32(len(bulk)))
				data := res.Alloc(len(args))
				if d.End() != nil || data == nil {
					res.Fail(oncrpc.GarbageArgs)
					return
				}
				copy(data, args)
				res.AddItem(data, nil)
			case procPut:
			case procDial:
				req.Conn().AllowBackward(0)
				ready <- req.Conn()
			default:
				res.Fail(oncrpc.ProcUnavail)
			}
		}),
		// A handler that runs inline must not keep anything beyond its call.
		Inline: func(_, proc uint32) bool { return proc != procDial },
	}
}

// startServer serves a program.
func startServer(at Site, e Ends, program rpc.Program) (*far, error) {
	cfg := transport.ServerConfig{Config: e.config(), MaxConns: e.Conns}
	if e.Conns > 0 {
		cfg.MaxTotalMemory = e.Conns << 20 // otherwise their receive buffers alone exceed the server's memory
	}
	server, err := transport.NewServer(&cfg)
	if err != nil {
		return nil, err
	}
	if err := server.Register(program); err != nil {
		return nil, err
	}
	p, err := at.tap()
	if err != nil {
		return nil, err
	}
	l, err := server.Listen(context.Background(), p.through(), at.listen())
	if err != nil {
		return nil, err
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	return &far{addr: l.Addr().String(), counters: p.counters, close: func() error {
		err := server.Close()
		<-served
		return err
	}}, nil
}

func (s *Server) serveRPC() (*far, error) {
	return startServer(s.Site, s.Ends, s.Ends.program(s.Site, make(chan rpc.Conn, 1)))
}

func dialRPC(at Site, e Ends, addr string, conns, depth int, proc uint32, prepare func(*rpc.Call)) (*Instance, error) {
	return dialRPCWith(at, e, addr, conns, depth, proc, prepare, nil)
}

// dialRPCWith connects and makes calls of one procedure. If with is not nil, it provides a common context.
func dialRPCWith(at Site, e Ends, addr string, conns, depth int, proc uint32, prepare func(*rpc.Call), with func() (context.Context, context.CancelFunc)) (*Instance, error) {
	p, err := at.tap()
	if err != nil {
		return nil, err
	}
	cfg := transport.ClientConfig{Config: e.config()}
	ctx, cancel := context.Background(), func() {}
	if with != nil {
		ctx, cancel = with()
	}
	clients := make([]transport.Requester, 0, conns)
	end := func() error {
		defer cancel()
		var errs []error
		for _, c := range clients {
			errs = append(errs, c.Close())
		}
		return errors.Join(errs...)
	}
	for range conns {
		c, err := e.dial(p.through(), addr, &cfg)
		if err != nil {
			return nil, errors.Join(err, end())
		}
		clients = append(clients, c)
	}
	if e.Kept {
		prepare = keep(prepare, clients, &err)
	}
	in := caller(depth, proc, prepare, func(worker, n int, call *rpc.Call) error {
		return clients[(worker+n*depth)%conns].Call(ctx, call)
	})
	if err != nil {
		return nil, errors.Join(err, end())
	}
	in.Counters = func() (client, _ Counters) { return p.counters(), Counters{} }
	in.Close = end
	return in, nil
}

// dial connects as configured by the ends.
func (e Ends) dial(p fabric.Provider, addr string, cfg *transport.ClientConfig) (transport.Requester, error) {
	if e.Group == 0 {
		return transport.Dial(context.Background(), p, addr, cfg)
	}
	several := *cfg
	several.Connections = e.Group
	return transport.DialGroup(context.Background(), p, []string{addr}, &several)
}

// keep registers the memory of a call's items with all clients.
func keep(prepare func(*rpc.Call), clients []transport.Requester, failed *error) func(*rpc.Call) {
	return func(call *rpc.Call) {
		prepare(call)
		for _, c := range clients {
			for _, it := range call.ReadItems {
				_, err := c.RegisterMemory(it.Data)
				*failed = errors.Join(*failed, err)
			}
			for _, it := range call.WriteItems {
				_, err := c.RegisterMemory(it.Buf)
				*failed = errors.Join(*failed, err)
			}
		}
	}
}

// caller makes calls of one procedure, prepared by prepare. do gets the worker and the number
// of its previous calls.
func caller(depth int, proc uint32, prepare func(*rpc.Call), do func(worker, n int, call *rpc.Call) error) *Instance {
	type worker struct {
		call rpc.Call
		n    int
		_    [64]byte // workers do not share cache lines
	}
	workers := make([]worker, depth)
	for i := range workers {
		workers[i].call = rpc.Call{Prog: benchProgram, Vers: benchVersion, Proc: proc}
		if prepare != nil {
			prepare(&workers[i].call)
		}
	}
	return &Instance{Call: func(i int) error {
		w := &workers[i]
		n := w.n
		w.n++
		if err := do(i, n, &w.call); err != nil {
			return err
		}
		return w.call.Reply.Err()
	}}
}

// bothWays connects ends that both serve calls.
func bothWays(at Site, e Ends, depth int) (*Instance, error) {
	ready := make(chan rpc.Conn, 1)
	program := e.program(at, ready)
	server, err := startServer(at, e, program)
	if err != nil {
		return nil, err
	}
	p, err := at.tap()
	if err != nil {
		return nil, errors.Join(err, server.close())
	}
	cfg := transport.ClientConfig{Config: e.config()}
	cfg.Callbacks = []rpc.Program{program}
	ctx := context.Background()
	client, err := transport.Dial(ctx, p.through(), server.addr, &cfg)
	if err != nil {
		return nil, errors.Join(err, server.close())
	}
	end := func() error { return errors.Join(client.Close(), server.close()) }
	do := client.Call
	if err := client.Call(ctx, &rpc.Call{Prog: benchProgram, Vers: benchVersion, Proc: procDial}); err != nil {
		return nil, errors.Join(err, end())
	}
	if conn := <-ready; e.backward {
		do = conn.Call
	}
	in := caller(depth, procNull, nil, func(_, _ int, call *rpc.Call) error { return do(ctx, call) })
	in.Close = end
	return in, nil
}

// An Idle is the cost of idle connections at each end.
type Idle struct {
	Conns          int
	ClientResident float64 // bytes of memory per connection
	ServerResident float64
	ClientRoutines float64 // goroutines per connection
	ServerRoutines float64
	CPU            float64 // of both ends and all connections, in CPUs
}

// MeasureIdle opens connections between two processes, makes some calls on each, and measures
// the memory of both processes, and then their CPU time.
func MeasureIdle(at Site, conns int, watch time.Duration) (idle Idle, err error) {
	const warm = 2 // connections that bear the shared costs
	var ends Ends
	if conns > 1000 { // the default depends on the process's descriptor limit
		ends.Conns = conns + warm
	}
	server, err := (&Server{Kind: "rpc", Site: at, Ends: ends}).apart()
	if err != nil {
		return idle, err
	}
	client, err := (&Server{Kind: "idle", Site: at, Addr: server.addr}).apart()
	if err != nil {
		return idle, errors.Join(err, server.close())
	}
	defer func() { err = errors.Join(err, client.close(), server.close()) }()
	var before, after, begin, later [2]Usage
	look := func(u *[2]Usage) error {
		for i, f := range []*far{client, server} {
			var err error
			if u[i], err = f.settle(); err != nil {
				return err
			}
		}
		return nil
	}
	if err := errors.Join(client.open(warm), look(&before), client.open(conns), look(&after)); err != nil {
		return idle, err
	}
	// Collect garbage first, so that from now on only the connections use CPU time.
	used := func(u *[2]Usage) error {
		for i, f := range []*far{client, server} {
			var err error
			if u[i], err = f.usage(); err != nil {
				return err
			}
		}
		return nil
	}
	time.Sleep(200 * time.Millisecond) // for background work of the garbage collector
	if err := used(&begin); err != nil {
		return idle, err
	}
	start := time.Now()
	time.Sleep(watch)
	if err := used(&later); err != nil {
		return idle, err
	}
	took := time.Since(start)
	per := func(a, b int) float64 { return float64(a-b) / float64(conns) }
	return Idle{
		Conns:          conns,
		ClientResident: per(after[0].Resident, before[0].Resident),
		ServerResident: per(after[1].Resident, before[1].Resident),
		ClientRoutines: per(after[0].Goroutines, before[0].Goroutines),
		ServerRoutines: per(after[1].Goroutines, before[1].Goroutines),
		CPU:            float64(later[0].CPU-begin[0].CPU+later[1].CPU-begin[1].CPU) / float64(took),
	}, nil
}

// idleClients opens connections to a server in another process on request.
func (s *Server) idleClients() (*far, error) {
	p, err := s.Site.tap()
	if err != nil {
		return nil, err
	}
	var mu sync.Mutex
	var clients []*transport.Client
	ctx := context.Background()
	return &far{
		open: func(n int) error {
			mu.Lock()
			defer mu.Unlock()
			for range n {
				c, err := transport.Dial(ctx, p.through(), s.Addr, nil)
				if err != nil {
					return err
				}
				clients = append(clients, c)
				for range 50 {
					if err := c.Null(ctx, benchProgram, benchVersion); err != nil {
						return err
					}
				}
			}
			return nil
		},
		close: func() error {
			var errs []error
			for _, c := range clients {
				errs = append(errs, c.Close())
			}
			return errors.Join(errs...)
		},
	}, nil
}
