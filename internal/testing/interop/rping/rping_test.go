//go:build linux

package rping_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/internal/testing/interop/rping"
	"github.com/rpcrdma/rpcrdma/iwarp"
)

func testContext(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// A result has the results of Run or Serve.
type result struct {
	pings int
	err   error
}

// serve starts Serve at addr, and returns the address and a channel for the result.
func serve(t *testing.T, ctx context.Context, s *rping.Server, addr string) (string, <-chan result) {
	t.Helper()
	l, err := s.Listen(ctx, addr)
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan result, 1)
	go func() {
		n, err := s.Serve(ctx, l)
		l.Close()
		served <- result{n, err}
	}()
	return l.Addr().String(), served
}

func TestPing(t *testing.T) {
	configs := []iwarp.Config{{}, {CRC: true}, {RequireCRC: true}, {MaxFPDU: 1448}, {PeerToPeer: true}}
	for _, addr := range []string{"127.0.0.1:0", "[::1]:0"} {
		if l, err := net.Listen("tcp", addr); err != nil {
			t.Logf("leaving %s out: %v", addr, err)
			continue
		} else {
			l.Close()
		}
		for _, cfg := range configs {
			for _, size := range []int{0, rping.MinSize, 4096, rping.DefaultMaxSize} {
				for _, count := range []int{1, 100} {
					t.Run(fmt.Sprintf("%s %+v size=%d count=%d", addr, cfg, size, count), func(t *testing.T) {
						p := iwarp.New(cfg)
						ctx := testContext(t)
						var texts, echoes strings.Builder
						s := &rping.Server{Provider: p, Validate: true, OnPing: func(b []byte) { texts.Write(b) }}
						at, served := serve(t, ctx, s, addr)
						c := &rping.Client{Provider: p, Count: count, Size: size, Validate: true, OnPing: func(b []byte) { echoes.Write(b) }}
						if n, err := c.Run(ctx, at); n != count || err != nil {
							t.Errorf("the client had %d pings and %v", n, err)
						}
						if r := <-served; r.pings != count || r.err != nil {
							t.Errorf("the server had %d pings and %v", r.pings, r.err)
						}
						if size == 0 {
							size = rping.DefaultSize
						}
						if texts.String() != echoes.String() || texts.Len() != count*size {
							t.Errorf("the server has seen %d bytes, the client %d, of %d", texts.Len(), echoes.Len(), count*size)
						}
						// A handshake may end after its connection.
						for ctx.Err() == nil && p.OpenObjects() != (iwarp.OpenObjects{}) {
							runtime.Gosched()
						}
						if live := p.OpenObjects(); live != (iwarp.OpenObjects{}) {
							t.Errorf("left behind: %+v", live)
						}
					})
				}
			}
		}
	}
}

// Wrong texts are detected by the side that validates.
func TestMismatch(t *testing.T) {
	p := iwarp.New(iwarp.Config{})
	for _, validate := range []bool{true, false} {
		ctx := testContext(t)
		seen := 0
		at, served := serve(t, ctx, &rping.Server{Provider: p, OnPing: func(b []byte) {
			if seen++; seen == 3 {
				b[20] ^= 1
			}
		}}, "127.0.0.1:0")
		n, err := (&rping.Client{Provider: p, Count: 5, Validate: validate}).Run(ctx, at)
		<-served
		var me *rping.MismatchError
		switch {
		case !validate && (n != 5 || err != nil):
			t.Errorf("who does not look has %d pings and %v", n, err)
		case validate && (!errors.As(err, &me) || me.Ping != 2 || me.At != 20 || n != 2):
			t.Errorf("who looks has %d pings and %v", n, err)
		}
	}
}

// wantEnded wants the error of a connection that ended too early.
func wantEnded(t *testing.T, who string, r result) {
	t.Helper()
	var ce *fabric.ConnError
	if !errors.Is(r.err, net.ErrClosed) || !errors.As(r.err, &ce) {
		t.Errorf("%s ends with %v, which is no *fabric.ConnError", who, r.err)
	}
}

func TestTextTooLong(t *testing.T) {
	p := iwarp.New(iwarp.Config{})
	ctx := testContext(t)
	at, served := serve(t, ctx, &rping.Server{Provider: p, MaxSize: 100}, "127.0.0.1:0")
	n, err := (&rping.Client{Provider: p, Count: 1, Size: 101}).Run(ctx, at)
	wantEnded(t, "the client", result{n, err})
	var pe *rping.PeerError
	if r := <-served; !errors.As(r.err, &pe) {
		t.Errorf("the server ends with %v", r.err)
	}
	if _, err := (&rping.Client{Provider: p, Size: rping.MinSize - 1}).Run(ctx, at); err == nil {
		t.Error("a text that has no room for its number is sent")
	}
}

// A side that stops in the middle of a ping ends the other.
func TestStop(t *testing.T) {
	p := iwarp.New(iwarp.Config{})
	for _, stopper := range []string{"client", "server"} {
		t.Run(stopper, func(t *testing.T) {
			ctx := testContext(t)
			sctx, stop := context.WithCancel(ctx)
			seen := 0
			onPing := func([]byte) {
				if seen++; seen == 10 {
					stop()
				}
			}
			s := &rping.Server{Provider: p}
			c := &rping.Client{Provider: p}
			clientCtx, serverCtx := ctx, ctx
			if stopper == "client" {
				clientCtx, s.OnPing = sctx, onPing // the client stops while the server has its text
			} else {
				serverCtx, s.OnPing = sctx, onPing
			}
			at, served := serve(t, serverCtx, s, "127.0.0.1:0")
			n, err := c.Run(clientCtx, at)
			client, server := result{n, err}, <-served
			if stopper == "server" {
				client, server = server, client
			}
			if !errors.Is(client.err, context.Canceled) {
				t.Errorf("who stops has %v", client.err)
			}
			wantEnded(t, "the other", server)
			if live := p.OpenObjects(); live != (iwarp.OpenObjects{}) {
				t.Errorf("left behind: %+v", live)
			}
		})
	}
}

func TestNobodyThere(t *testing.T) {
	ctx := testContext(t)
	p := iwarp.New(iwarp.Config{})
	l, err := p.Listen(ctx, "127.0.0.1:0", fabric.ConnAttr{})
	if err != nil {
		t.Fatal(err)
	}
	at := l.Addr().String()
	l.Close()
	var se *rping.SetupError
	if _, err := (&rping.Client{Provider: p}).Run(ctx, at); !errors.As(err, &se) {
		t.Errorf("Run returned %v, want a *SetupError", err)
	}
	if _, err := (&rping.Server{Provider: p}).Serve(ctx, l); !errors.As(err, &se) || !errors.Is(err, net.ErrClosed) {
		t.Errorf("Serve returned %v, want a *SetupError with net.ErrClosed", err)
	}
}
