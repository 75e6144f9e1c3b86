package middleware

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/transport"
)

// records are the logged records.
type records struct {
	mu    sync.Mutex
	lines []string
}

func (r *records) Write(b []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lines = append(r.lines, string(b))
	return len(b), nil
}

func (r *records) len() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.lines)
}

func (r *records) logger() *slog.Logger { return slog.New(slog.NewJSONHandler(r, nil)) }

// take returns the records so far, and forgets them.
func (r *records) take(t *testing.T) []map[string]any {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	var all []map[string]any
	for _, line := range r.lines {
		var m map[string]any
		if err := json.Unmarshal([]byte(line), &m); err != nil {
			t.Error(err)
		}
		delete(m, "time")
		all = append(all, m)
	}
	r.lines = nil
	return all
}

func TestLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log, panics records
		var level slog.LevelVar
		p := program(func(_ context.Context, req *rpc.Request, res *rpc.Response) {
			time.Sleep(3 * time.Millisecond)
			res.Results = append(res.Results, 1, 2, 3, 4)
			res.AddItem([]byte("hello"), nil)
			switch req.Proc {
			case 2:
				res.Fail(oncrpc.GarbageArgs)
			case 3:
				res.Deny(oncrpc.AuthTooWeak)
			case 4:
				res.Reject(&oncrpc.RPCError{Stat: oncrpc.MsgDenied, RejectStat: oncrpc.RPCMismatch})
			case 5:
				panic("a defect")
			}
		})
		p.Handler = rpc.Chain(p.Handler, Log(LogConfig{Logger: log.logger(), Level: &level}))
		r, stop := newRig(t, &transport.ServerConfig{Config: transport.Config{Logger: panics.logger()}}, p)
		cl := r.from("10.0.0.1:5")
		for _, tt := range []struct {
			proc uint32
			cred oncrpc.Auth
			want map[string]any // what differs from the first
		}{
			{1, user(7, 8), nil},
			{2, user(7, 8), map[string]any{"level": "WARN", "status": "GARBAGE_ARGS", "out": 0.0}},
			{3, user(7, 8), map[string]any{"level": "WARN", "status": "AUTH_TOOWEAK", "out": 0.0}},
			{4, user(7, 8), map[string]any{"level": "WARN", "status": "RPC_MISMATCH", "out": 0.0}},
			{5, user(7, 8), map[string]any{"level": "WARN", "status": "SYSTEM_ERR", "out": 0.0, "panic": true}},
			{1, oncrpc.Auth{}, map[string]any{"flavor": "AUTH_NONE", "uid": nil, "gid": nil}},
		} {
			c := rpc.Call{Prog: prog, Vers: 1, Proc: tt.proc, Cred: tt.cred, Args: make([]byte, 12), MaxResults: 100}
			cl.Call(bg, &c)
			got := log.take(t)
			if len(got) != 1 {
				t.Fatalf("procedure %d: %d records", tt.proc, len(got))
			}
			want := map[string]any{
				"level": "INFO", "msg": "rpc", "prog": float64(prog), "vers": 1.0, "proc": float64(tt.proc), "peer": "10.0.0.1:5",
				"xid": got[0]["xid"], "flavor": "AUTH_SYS", "uid": 7.0, "gid": 8.0, "status": "SUCCESS", "took": 3e6, "in": 12.0, "out": 13.0,
			}
			maps.Copy(want, tt.want)
			maps.DeleteFunc(want, func(_ string, v any) bool { return v == nil })
			if !maps.Equal(got[0], want) || got[0]["xid"] == 0.0 {
				t.Errorf("procedure %d: %v, want %v", tt.proc, got[0], want)
			}
		}
		if panics.len() != 1 {
			t.Errorf("the transport has logged %d panics", panics.len())
		}
		level.Set(slog.LevelDebug)
		call(cl, 1, oncrpc.Auth{})
		if n := log.len(); n > 0 {
			t.Errorf("%d records of a level that is off", n)
		}
		cl.Close()
		stop()
	})
}

// TestLogFailures: a client that has calls refused does not fill the log.
func TestLogFailures(t *testing.T) {
	for _, tt := range []struct {
		most int
		want string
	}{{0, "10 of 1000, omitted 990"}, {3, "3 of 1000, omitted 997"}, {-1, "1000 of 1000, omitted 0"}} {
		synctest.Test(t, func(t *testing.T) {
			var log records
			p := program(func(_ context.Context, _ *rpc.Request, res *rpc.Response) { res.Fail(oncrpc.ProcUnavail) })
			p.Handler = rpc.Chain(p.Handler, Log(LogConfig{Logger: log.logger(), MaxFailures: tt.most}))
			r, stop := newRig(t, nil, p)
			cl := r.from("10.0.0.1:5")
			for range 1000 {
				call(cl, 1, oncrpc.Auth{})
			}
			n := len(log.take(t))
			time.Sleep(time.Second)
			call(cl, 1, oncrpc.Auth{})
			omitted := 0.0
			if last := log.take(t); len(last) != 1 {
				t.Fatalf("%d records after a second", len(last))
			} else if v, ok := last[0]["omitted"]; ok {
				omitted = v.(float64)
			}
			if got := fmt.Sprintf("%d of 1000, omitted %v", n, omitted); got != tt.want {
				t.Errorf("at most %d: %s", tt.most, got)
			}
			time.Sleep(time.Second)
			call(cl, 1, oncrpc.Auth{})
			if last := log.take(t); len(last) != 1 || last[0]["omitted"] != nil {
				t.Errorf("at most %d: none was omitted since, and the record is %v", tt.most, last)
			}
			cl.Close()
			stop()
		})
	}
}

// TestLogOrder: a Log sees what wrappers within refuse.
func TestLogOrder(t *testing.T) {
	var log records
	deny := Require(func(*rpc.Request) oncrpc.AuthStat { return oncrpc.AuthRejectedCred })
	cfg := &transport.ServerConfig{Config: transport.Config{Middleware: []rpc.Middleware{Log(LogConfig{Logger: log.logger()}), deny}}}
	r, stop := newRig(t, cfg, program(nothing))
	cl := r.from("10.0.0.1:5")
	call(cl, 1, oncrpc.Auth{})
	cl.Close()
	stop()
	if got := log.take(t); len(got) != 1 || got[0]["status"] != "AUTH_REJECTEDCRED" {
		t.Errorf("%v", got)
	}
	names := []string{}
	for _, h := range []oncrpc.ReplyHeader{{Stat: 9}, {AcceptStat: 99}, {Stat: oncrpc.MsgDenied, RejectStat: 9}} {
		names = append(names, statusName(&h))
	}
	if !slices.Equal(names, []string{"REPLY_STAT(9)", "ACCEPT_STAT(99)", "REJECT_STAT(9)"}) {
		t.Error(strings.Join(names, " "))
	}
}
