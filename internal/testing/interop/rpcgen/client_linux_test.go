//go:build generated

package rpcgen

import (
	"context"
	"errors"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/rpcrdma/rpcrdma/internal/testing/cprog"
	"github.com/rpcrdma/rpcrdma/internal/testing/leak"
	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/transport"
)

func TestMain(m *testing.M) { os.Exit(leak.Main(m)) }

// dial starts the server in C, and connects to it. The end of the test stops the server.
func dial(t *testing.T, path, buffer string) (*transport.Client, *cprog.Program) {
	t.Helper()
	server := cprog.Start(t, nil, path, buffer)
	first := server.Out.Wait(t, "")[0] // whatever it is
	port, ok := strings.CutPrefix(first, "port ")
	if !ok {
		t.Fatalf("the server begins with %q", first)
	}
	c, err := transport.DialTCP(t.Context(), net.JoinHostPort("127.0.0.1", port), nil)
	testutil.Must(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), cprog.Patience)
		defer cancel()
		if err := NewEchoV2Client(c).End(ctx); err != nil {
			t.Error("the server does not end: ", err)
		}
		c.Close()
		server.WantSuccess()
		if rest := server.Out.All(); !slices.Equal(rest, []string{"end"}) {
			t.Errorf("the server ends with the lines %q", rest)
		}
	})
	return c, server
}

// TestServerInC: our client calls a server in C.
func TestServerInC(t *testing.T) {
	path := cprog.Build(t, ".", "server")
	for _, tt := range []struct{ name, buffer string }{
		{"fragments of libtirpc's choice", "0"},
		{"fragments of some 100 bytes", "100"},
		{"fragments of 4000 bytes", "4000"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Run("values", func(t *testing.T) { callEach(t, path, tt.buffer) })
			t.Run("at once", func(t *testing.T) { callAtOnce(t, path, tt.buffer) })
			t.Run("errors", func(t *testing.T) { callWrongly(t, path, tt.buffer) })
		})
	}
}

// callEach makes a call with each sample. Both ends see the values.
func callEach(t *testing.T, path, buffer string) {
	ctx := t.Context()
	c, server := dial(t, path, buffer)
	v2, v3 := NewEchoV2Client(c), NewEchoV3Client(c)
	v2.Cred = (&oncrpc.AuthSys{Machine: "machine", UID: 1234, GID: 5678}).Auth()
	testutil.Must(t, v2.Null(ctx))
	list := samples()
	for _, s := range list {
		got, err := s.echo(ctx, v2)
		if d := diff(s.value, got); err != nil || d != "" {
			t.Errorf("%s: %v, differences\n%s", s.text, err, d)
		}
	}
	if user, err := v2.User(ctx); user != 1234 || err != nil {
		t.Errorf("user %d, %v", user, err)
	}
	if n, err := v3.Number(ctx, -1<<63); n != -1<<63 || err != nil {
		t.Errorf("number %d, %v", n, err)
	}
	const last = "number -9223372036854775808"
	testutil.WantLines(t, server.Out.Wait(t, last), append(texts(list), last)...)
}

// callAtOnce makes calls from many goroutines on one connection: the server finds several records
// in what it reads.
func callAtOnce(t *testing.T, path, buffer string) {
	const callers, rounds = 8, 3
	c, server := dial(t, path, buffer)
	v2 := NewEchoV2Client(c)
	list := samples()
	var want []string
	for range callers * rounds {
		want = append(want, texts(list)...)
	}
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			for range rounds {
				for _, s := range list {
					got, err := s.echo(t.Context(), v2)
					if d := diff(s.value, got); err != nil || d != "" {
						t.Errorf("%s: %v, differences\n%s", s.text, err, d)
						return
					}
				}
			}
		})
	}
	wg.Wait()
	if t.Failed() {
		return
	}
	if hue, err := v2.Color(t.Context(), Green); hue != Green || err != nil {
		t.Fatal(hue, err)
	}
	got := server.Out.Wait(t, "color 5")
	got = got[:len(got)-1]
	slices.Sort(got)
	slices.Sort(want)
	testutil.WantLines(t, got, want...)
}

// callWrongly: the server in C refuses calls, and answers the next one.
func callWrongly(t *testing.T, path, buffer string) {
	ctx := t.Context()
	c, server := dial(t, path, buffer)
	v2 := NewEchoV2Client(c)
	for _, tt := range []struct {
		name string
		call rpc.Call
		want oncrpc.RPCError
	}{
		{"program", rpc.Call{Prog: EchoProg + 1, Vers: EchoV2}, oncrpc.RPCError{AcceptStat: oncrpc.ProgUnavail}},
		{"version", rpc.Call{Prog: EchoProg, Vers: 9}, oncrpc.RPCError{AcceptStat: oncrpc.ProgMismatch, Low: EchoV2, High: EchoV3}},
		{"procedure", rpc.Call{Prog: EchoProg, Vers: EchoV2, Proc: 99}, oncrpc.RPCError{AcceptStat: oncrpc.ProcUnavail}},
		{"no arguments", rpc.Call{Prog: EchoProg, Vers: EchoV2, Proc: EchoBasic}, oncrpc.RPCError{AcceptStat: oncrpc.GarbageArgs}},
		{"label too long", rpc.Call{Prog: EchoProg, Vers: EchoV2, Proc: EchoBulk,
			Args: xdr.AppendBool(xdr.AppendOpaque(xdr.AppendString(nil, "one more than 16."), nil), true)},
			oncrpc.RPCError{AcceptStat: oncrpc.GarbageArgs}},
		{"failure", rpc.Call{Prog: EchoProg, Vers: EchoV2, Proc: EchoFail}, oncrpc.RPCError{AcceptStat: oncrpc.SystemErr}},
		{"no credentials", rpc.Call{Prog: EchoProg, Vers: EchoV2, Proc: EchoUser},
			oncrpc.RPCError{Stat: oncrpc.MsgDenied, RejectStat: oncrpc.AuthError, AuthStat: oncrpc.AuthTooWeak}},
	} {
		tt.want.Prog, tt.want.Vers, tt.want.Proc = tt.call.Prog, tt.call.Vers, tt.call.Proc
		err := c.Call(ctx, &tt.call)
		var got *oncrpc.RPCError
		if !errors.As(err, &got) || *got != tt.want {
			t.Errorf("%s: %v, want %v", tt.name, err, &tt.want)
		}
		testutil.Must(t, v2.Null(ctx))
	}
	var refused *xdr.CheckError
	if _, err := v2.Color(ctx, 77); !errors.As(err, &refused) {
		t.Errorf("color 77: %v, want a CheckError", err)
	}
	// rpcgen's code does not look at enumerators; ours does, in results as well.
	odd := NewEchoV2Client(oddColor{c})
	var wrong *xdr.DecodeError
	if hue, err := odd.Color(ctx, Red); !errors.As(err, &wrong) {
		t.Errorf("color 77 is returned as %v, %v; want a DecodeError", hue, err)
	}
	testutil.WantLines(t, server.Out.Wait(t, "color 77"), "color 77")
}

// An oddColor is a client that sends 77 as the arguments of every call.
type oddColor struct{ rpc.Caller }

func (o oddColor) Call(ctx context.Context, call *rpc.Call) error {
	call.Args = xdr.AppendInt32(call.Args[:0], 77)
	return o.Caller.Call(ctx, call)
}
