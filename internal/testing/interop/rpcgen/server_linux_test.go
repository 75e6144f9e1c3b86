//go:build generated

package rpcgen

import (
	"context"
	"errors"
	"fmt"
	"net"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/rpcrdma/rpcrdma/internal/testing/cprog"
	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/transport"
)

// An echo is our server.
type echo struct {
	samples []sample

	mu     sync.Mutex
	counts []int    // how often each sample has arrived
	others []string // arguments that match no sample
	ends   int      // calls of ECHO_END
}

// saw counts a value that is the argument of a call.
func (e *echo) saw(v any) {
	i := slices.IndexFunc(e.samples, func(s sample) bool { return same(reflect.ValueOf(s.value), reflect.ValueOf(v)) })
	e.mu.Lock()
	defer e.mu.Unlock()
	if i < 0 {
		e.others = append(e.others, fmt.Sprintf("%.500s", fmt.Sprintf("%+v", v)))
		return
	}
	e.counts[i]++
}

func (e *echo) Basic(_ context.Context, _ *rpc.Request, args, res *Basic) error {
	e.saw(*args)
	*res = *args
	return nil
}

func (e *echo) Arrays(_ context.Context, _ *rpc.Request, args, res *Arrays) error {
	e.saw(*args)
	*res = *args
	return nil
}

func (e *echo) Unions(_ context.Context, _ *rpc.Request, args, res *Unions) error {
	e.saw(*args)
	*res = *args
	return nil
}

func (e *echo) Nodes(_ context.Context, _ *rpc.Request, args Nodes, res *Nodes) error {
	e.saw(args)
	*res = args
	return nil
}

func (e *echo) Options(_ context.Context, _ *rpc.Request, args, res *Options) error {
	e.saw(*args)
	*res = *args
	return nil
}

func (e *echo) Bulk(_ context.Context, _ *rpc.Request, args, res *Bulk) error {
	e.saw(*args)
	*res = *args
	return nil
}

func (e *echo) Color(_ context.Context, _ *rpc.Request, args Color, res *Color) error {
	e.saw(args)
	*res = args
	return nil
}

func (e *echo) Text(_ context.Context, _ *rpc.Request, text string, res *string) error {
	e.saw(text)
	*res = text
	return nil
}

func (e *echo) Several(_ context.Context, _ *rpc.Request, number int32, text Label, hue Color, data Payload, res *Arrays) error {
	e.saw(several{number, text, hue, string(data)})
	*res = Arrays{Ints: [3]int32{2: number}, Named: text, Hues: []Color{hue}, Rest: data}
	return nil
}

func (e *echo) User(_ context.Context, req *rpc.Request, res *uint32) error {
	var user oncrpc.AuthSys
	if _, err := oncrpc.ConsumeAuthSys(req.Cred.Body, &user); err != nil || req.Cred.Flavor != oncrpc.FlavorSys || user.Machine != "machine" || user.GID != 5678 {
		return errors.New("credentials of another user")
	}
	*res = user.UID
	return nil
}

func (e *echo) Fail(context.Context, *rpc.Request) error { return errors.New("as it is to") }

func (e *echo) End(context.Context, *rpc.Request) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.ends++
	return nil
}

// An echo3 is our server of the other version.
type echo3 struct{}

func (echo3) Number(_ context.Context, _ *rpc.Request, args int64, res *int64) error {
	*res = args
	return nil
}

// serve starts our server. It returns its port.
func serve(t *testing.T, e *echo) (port string) {
	t.Helper()
	s, err := transport.NewServer(nil)
	testutil.Must(t, err)
	both, err := rpc.Versions(EchoV2Program(e), EchoV3Program(echo3{}))
	testutil.Must(t, err, s.Register(both))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	testutil.Must(t, err)
	served := make(chan error, 1)
	go func() { served <- s.ServeTCP(l) }()
	t.Cleanup(func() {
		s.Close()
		if err := <-served; !errors.Is(err, net.ErrClosed) {
			t.Error("the server ends with ", err)
		}
	})
	return strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
}

// TestClientInC: clients in C call our server, one after another and several at once. Fragments
// are as long as their buffers.
func TestClientInC(t *testing.T) {
	path := cprog.Build(t, ".", "client")
	for _, tt := range []struct {
		name, buffer string
		clients      int
	}{
		{"fragments of libtirpc's choice", "0", 1},
		{"fragments of some 100 bytes", "100", 1},
		{"fragments of 4000 bytes", "4000", 1},
		{"several at once", "9000", 4},
	} {
		t.Run(tt.name, func(t *testing.T) {
			e := &echo{samples: samples()}
			e.counts = make([]int, len(e.samples))
			port := serve(t, e)
			var clients []*cprog.Program
			for range tt.clients {
				clients = append(clients, cprog.Start(t, nil, path, port, tt.buffer))
			}
			want := append(texts(e.samples), "user 1234", "number -9223372036854775808",
				"program: RPC: Program unavailable",
				"version: RPC: Program/version mismatch 2 to 3",
				"procedure: RPC: Procedure unavailable",
				"no arguments: RPC: Server can't decode arguments",
				"color 77: RPC: Server can't decode arguments",
				"failure: RPC: Remote system error")
			for _, c := range clients {
				c.WantSuccess()
				testutil.WantLines(t, c.Out.All(), want...)
			}
			e.mu.Lock()
			defer e.mu.Unlock()
			for i, n := range e.counts {
				if n != tt.clients {
					t.Errorf("%d calls with %s, want %d", n, e.samples[i].text, tt.clients)
				}
			}
			if len(e.others) > 0 || e.ends != tt.clients {
				t.Errorf("%d clients ended; other values:\n%s", e.ends, strings.Join(e.others, "\n"))
			}
		})
	}
}
