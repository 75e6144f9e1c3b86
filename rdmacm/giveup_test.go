//go:build linux && cgo

package rdmacm_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/internal/testing/rdmatest"
	"github.com/rpcrdma/rpcrdma/rdmacm"
)

// A journal is a captured log.
type journal struct {
	mu    sync.Mutex
	lines []string
}

func (j *journal) Enabled(context.Context, slog.Level) bool { return true }
func (j *journal) WithAttrs([]slog.Attr) slog.Handler       { return j }
func (j *journal) WithGroup(string) slog.Handler            { return j }

func (j *journal) Handle(_ context.Context, r slog.Record) error {
	line := r.Level.String() + " " + r.Message
	r.Attrs(func(a slog.Attr) bool { line += " " + a.String(); return true })
	j.mu.Lock()
	j.lines = append(j.lines, line)
	j.mu.Unlock()
	return nil
}

func (j *journal) take() []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	lines := j.lines
	j.lines = nil
	return lines
}

// TestRDMAGivenUp: a peer that gives up its request, before Accept of the listener or between that
// and Accept of the connection, is a peer that has left, not an invalid argument of ours; the next
// one is served.
func TestRDMAGivenUp(t *testing.T) {
	addr := rdmatest.Device(t, "rxe") // siw's kernel lets such a request be accepted
	var log journal
	p := provider(t, rdmacm.Config{Logger: slog.New(&log)})
	l, err := p.Listen(soon(t), addr+":0", fabric.ConnAttr{})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	request := func() (giveUp func(), connecting <-chan error) {
		c, err := p.Resolve(soon(t), l.Addr().String(), fabric.ConnAttr{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		ctx, cancel := context.WithCancel(soon(t))
		connecting = later(func() error { return c.Connect(ctx, nil) })
		return func() {
			cancel()
			if err := arrives(t, "Connect", connecting); !errors.Is(err, context.Canceled) {
				t.Errorf("a Connect that is given up: %v", err)
			}
			c.Close()
		}, connecting
	}
	early, late := 0, 0 // how often it was noticed in either Accept
	for i := 0; i < times(20) || early == 0 || late == 0; i++ {
		if i == 1000 {
			t.Fatalf("of %d requests that were given up %d were noticed in the listener's Accept, %d in the connection's", i, early, late)
		}
		giveUp, _ := request()
		var served <-chan error
		var accepted fabric.Conn // open until its peer has seen that it is connected
		serve := func(s fabric.Conn, err error) error {
			for ; err == nil; s, err = l.Accept(soon(t)) {
				err := s.Accept(soon(t), nil)
				if err == nil {
					accepted = s
					return nil
				}
				s.Close()
				switch {
				case errors.Is(err, rdmacm.ErrWithdrawn):
					late++
				case strings.Contains(err.Error(), "invalid argument"):
					t.Errorf("Accept of a connection whose peer has gone: %v", err)
				}
			}
			return err
		}
		comes(t, "a request", func() bool { return rdmacm.Requests(l) > 0 })
		if i%2 == 0 {
			giveUp()
			served = later(func() error { return serve(l.Accept(soon(t))) })
		} else {
			s, err := l.Accept(soon(t))
			giveUp()
			served = later(func() error { return serve(s, err) })
		}
		_, connecting := request()
		if err := arrives(t, "Connect", connecting); err != nil {
			t.Fatalf("a Connect after one that was given up: %v", err)
		}
		if err := arrives(t, "the listener's side", served); err != nil {
			t.Fatal(err)
		}
		accepted.Close()
		for _, line := range log.take() {
			if strings.HasPrefix(line, "ERROR") {
				t.Fatalf("given up %d: logged %q", i, line)
			}
			if strings.Contains(line, "withdrawn") {
				early++
			}
		}
	}
	t.Logf("noticed in the listener's Accept %d times, in the connection's %d times", early, late)
}
