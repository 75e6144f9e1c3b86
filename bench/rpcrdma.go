package bench

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/transport"
)

// The program that the workloads of this module call. Its number is of the range
// that RFC 5531 section 8.3 leaves to users.
const (
	benchProgram = 0x20000bec
	benchVersion = 1

	procNull = 0
	procEcho = 1 // an opaque argument comes back as the result
	procGet  = 2 // the result is as many bytes as the argument, a number, says
	procPut  = 3 // an opaque argument, and nothing comes back
	procDial = 4 // the server may call back on this connection
)

// A Site is where a workload of this module runs: both ends in this process, over
// a provider, at an address of this machine.
type Site struct {
	Name     string // of the provider and how it is set up: siw/mode=event
	Provider fabric.Provider
	Host     string
}

// Loopback is the site of a provider that needs no device.
func Loopback(p fabric.Provider) Site {
	return Site{Name: p.Name(), Provider: p, Host: "127.0.0.1"}
}

// Null calls procedure 0, with nothing in it: the round trip that every call has
// in it.
func Null(at Site, depth int) Workload {
	return Workload{
		Name:  fmt.Sprintf("Null/prov=%s/depth=%d", at.Name, depth),
		Depth: depth,
		Setup: func() (*Instance, error) {
			return startRPC(at, depth, func(*transport.Call) {}, procNull)
		},
	}
}

// Echo sends size bytes and gets them back, inside the messages.
func Echo(at Site, size, depth int) Workload {
	return Workload{
		Name:  fmt.Sprintf("Echo/prov=%s/size=%d/depth=%d", at.Name, size, depth),
		Depth: depth,
		Setup: func() (*Instance, error) {
			return startRPC(at, depth, echoing(size), procEcho)
		},
	}
}

func echoing(size int) func(c *transport.Call) {
	return func(c *transport.Call) {
		c.Args = binary.BigEndian.AppendUint32(nil, uint32(size))
		c.Args = append(c.Args, make([]byte, size)...)
		c.MaxResults = 4 + size
	}
}

// EchoV1 is Echo in version 1 without private data: what is longer than 1024 bytes goes
// through chunks.
func EchoV1(at Site, size, depth int) Workload {
	w := Echo(at, size, depth)
	w.Name += "/vers=1"
	w.Setup = func() (*Instance, error) {
		return ends{cfg: transport.Config{Version: transport.Version1, NoPrivateData: true}}.start(at, depth, echoing(size), procEcho)
	}
	return w
}

// NullWithCallbacks is Null for a client that serves calls from the server, which says
// that it may make some and makes none.
func NullWithCallbacks(at Site, depth int) Workload {
	w := Null(at, depth)
	w.Name += "/callbacks=idle"
	w.Setup = func() (*Instance, error) {
		return ends{callbacks: true}.start(at, depth, func(*transport.Call) {}, procNull)
	}
	return w
}

// BackwardNull is Null from the server to the client.
func BackwardNull(at Site, depth int) Workload {
	w := Null(at, depth)
	w.Name += "/way=backward"
	w.Setup = func() (*Instance, error) {
		return ends{callbacks: true, backward: true}.start(at, depth, func(*transport.Call) {}, procNull)
	}
	return w
}

// Push gets size bytes with each call: the server writes them to the caller's
// memory, a write chunk.
func Push(at Site, size, depth int) Workload {
	return Workload{
		Name:  fmt.Sprintf("Push/prov=%s/size=%s/depth=%d", at.Name, binaryPrefix(size), depth),
		Depth: depth,
		Bytes: size,
		Setup: func() (*Instance, error) {
			return startRPC(at, depth, func(c *transport.Call) {
				c.Args = binary.BigEndian.AppendUint32(nil, uint32(size))
				c.WriteItems = []transport.WriteItem{{Buf: make([]byte, size)}}
				c.MaxResults = 64
			}, procGet)
		},
	}
}

// Pull sends size bytes with each call: the server reads them from the caller's
// memory, a read chunk.
func Pull(at Site, size, depth int) Workload {
	return Workload{
		Name:  fmt.Sprintf("Pull/prov=%s/size=%s/depth=%d", at.Name, binaryPrefix(size), depth),
		Depth: depth,
		Bytes: size,
		Setup: func() (*Instance, error) {
			return startRPC(at, depth, func(c *transport.Call) {
				c.Args = binary.BigEndian.AppendUint32(nil, uint32(size))
				c.ReadItems = []transport.ReadItem{{Offset: 4, Data: make([]byte, size)}}
			}, procPut)
		},
	}
}

// startRPC serves, connects, and makes calls of one procedure that prepare fills.
func startRPC(at Site, depth int, prepare func(*transport.Call), proc uint32) (*Instance, error) {
	return ends{}.start(at, depth, prepare, proc)
}

// ends says what a workload wants of its two ends.
type ends struct {
	cfg       transport.Config // of both
	callbacks bool             // the client serves the server's calls, and is ready for them
	backward  bool             // the server calls
}

func (e ends) start(at Site, depth int, prepare func(*transport.Call), proc uint32) (*Instance, error) {
	bulk := make([]byte, 8<<20)
	server, err := transport.NewServer(&e.cfg)
	if err != nil {
		return nil, err
	}
	ready := make(chan *transport.Conn, 1)
	program := transport.Program{
		Number: benchProgram, Low: benchVersion, High: benchVersion,
		Idempotent: transport.Every,
		Handler: transport.HandlerFunc(func(_ context.Context, req *transport.Request, res *transport.Response) {
			switch req.Proc {
			case procEcho:
				res.Results = append(res.Results, req.Args...)
			case procGet:
				if len(req.Args) != 4 || binary.BigEndian.Uint32(req.Args) > uint32(len(bulk)) {
					res.Fail(oncrpc.GarbageArgs)
					return
				}
				res.AddItem(bulk[:binary.BigEndian.Uint32(req.Args)], nil)
			case procPut:
			case procDial:
				req.Conn().AllowBackward(0)
				ready <- req.Conn()
			default:
				res.Fail(oncrpc.ProcUnavail)
			}
		}),
	}
	// What is kept beyond its call is not of a handler that runs on the connection.
	program.Inline = func(_, proc uint32) bool { return proc != procDial }
	if err := server.Register(program); err != nil {
		return nil, err
	}
	ctx := context.Background()
	l, err := server.Listen(ctx, at.Provider, net.JoinHostPort(at.Host, "0"))
	if err != nil {
		return nil, err
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	cfg := e.cfg
	if e.callbacks {
		cfg.Callbacks = []transport.Program{program}
	}
	client, err := transport.Dial(ctx, at.Provider, l.Addr().String(), &cfg)
	if err != nil {
		return nil, errors.Join(err, server.Close())
	}
	do := client.Call
	if e.callbacks {
		if err := client.Call(ctx, &transport.Call{Prog: benchProgram, Vers: benchVersion, Proc: procDial}); err != nil {
			return nil, errors.Join(err, client.Close(), server.Close())
		}
		if conn := <-ready; e.backward {
			do = conn.Call
		}
	}
	calls := make([]transport.Call, depth)
	for i := range calls {
		calls[i] = transport.Call{Prog: benchProgram, Vers: benchVersion, Proc: proc}
		prepare(&calls[i])
	}
	return &Instance{
		Call: func(worker int) error {
			if err := do(ctx, &calls[worker]); err != nil {
				return err
			}
			return calls[worker].Reply.Err()
		},
		Close: func() error {
			err := errors.Join(client.Close(), server.Close())
			<-served
			return err
		},
	}, nil
}
