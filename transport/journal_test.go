package transport

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/rpc"
)

// failing serves two programs with handlers that fail, of which the first has names, and returns a
// function that calls them.
func failing(t *testing.T, cfg *ServerConfig) (call func(prog, proc uint32)) {
	s, err := NewServer(cfg)
	if err != nil {
		t.Fatal(err)
	}
	for _, number := range []uint32{0x20000077, 0x20000078} {
		p := rpc.Program{
			Number: number, Low: 1, High: 1,
			Handler: rpc.HandlerFunc(func(_ context.Context, req *rpc.Request, res *rpc.Response) {
				if req.Proc == 2 {
					panic("a defect")
				}
				res.FailWith(req, errors.New("disk full"))
			}),
		}
		if number&1 != 0 {
			p.Names = []*oncrpc.Program{{Number: number, Vers: 2, Name: "LATER"}, {Number: number, Vers: 1, Name: "STORE", Procedures: []string{"NULL", "PUT"}}}
		}
		if err := s.Register(p); err != nil {
			t.Fatal(err)
		}
	}
	l := &pipeListener{conns: make(chan net.Conn)}
	served := make(chan error, 1)
	go func() { served <- s.ServeTCP(l) }()
	cl, err := DialTCPWith(t.Context(), "server:1", nil, func(context.Context, string) (net.Conn, error) {
		a, b := net.Pipe()
		l.conns <- hostConn{a, "10.0.0.1:5"}
		return b, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cl.Close(); s.Close(); <-served })
	return func(prog, proc uint32) {
		t.Helper()
		err := cl.Call(t.Context(), &rpc.Call{Prog: prog, Vers: 1, Proc: proc})
		if refused := (*oncrpc.RPCError)(nil); !errors.As(err, &refused) || refused.AcceptStat != oncrpc.SystemErr {
			t.Errorf("procedure %d: %v", proc, err)
		}
	}
}

// TestDefaultLogger checks that without a Logger, slog.Default() receives the errors and panics of handlers, with the
// procedure names that the program defines.
func TestDefaultLogger(t *testing.T) {
	var log bytes.Buffer
	before := slog.Default()
	defer slog.SetDefault(before)
	slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
	synctest.Test(t, func(t *testing.T) {
		call := failing(t, nil)
		for _, tt := range []struct {
			prog, proc uint32
			want       string
		}{
			{0x20000077, 1, `level=ERROR msg="handler failed" proc="PUT of STORE v1" peer=10.0.0.1:5 err="disk full"`},
			{0x20000077, 2, `level=ERROR msg="handler panicked" proc="procedure 2 of STORE v1" peer=10.0.0.1:5 panic="a defect" stack=`},
			{0x20000078, 1, `level=ERROR msg="handler failed" proc="procedure 1 of program 0x20000078 v1" peer=10.0.0.1:5 err="disk full"`},
		} {
			log.Reset()
			call(tt.prog, tt.proc)
			if got := log.String(); !strings.Contains(got, tt.want) || strings.Count(got, "\n") != 1 {
				t.Errorf("the log has\n%swant\n%s", got, tt.want)
			}
		}
	})
	log.Reset()
	synctest.Test(t, func(t *testing.T) {
		call := failing(t, &ServerConfig{Config: Config{Logger: slog.New(slog.DiscardHandler)}})
		call(0x20000077, 1)
		call(0x20000077, 2)
	})
	if log.Len() != 0 {
		t.Errorf("a Logger that discards everything: %s", log.String())
	}
}

// TestRecordRate checks that a handler that always fails neither fills the log nor displaces panics. Omitted records
// must be counted.
func TestRecordRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		call := failing(t, &ServerConfig{Config: Config{Logger: slog.New(slog.NewTextHandler(&log, nil))}})
		for range 100 {
			call(0x20000077, 1)
		}
		if n := strings.Count(log.String(), "handler failed"); n != recordBurst {
			t.Errorf("%d records of 100 errors at once", n)
		}
		log.Reset()
		call(0x20000077, 2)
		if got := log.String(); !strings.Contains(got, "handler panicked") {
			t.Errorf("the log has %q of a panic", got)
		}
		log.Reset()
		time.Sleep(time.Second)
		for range 100 {
			call(0x20000077, 1)
		}
		lines := strings.Split(strings.TrimSpace(log.String()), "\n")
		if omitted := fmt.Sprintf("omitted=%d", 100-recordBurst); len(lines) != recordsInSecond || !strings.HasSuffix(lines[0], omitted) {
			t.Errorf("a second later: %d records, first %q, which should end with %s", len(lines), lines[0], omitted)
		}
	})
}
