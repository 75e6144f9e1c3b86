package connect

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rpcrdma/rpcrdma/rpc"
)

// A connection is given up when calls are outstanding and nothing arrives for the limit, and not
// before.
func TestWatchLimit(t *testing.T) {
	s := func(calls, replies, canceled uint64) rpc.Stats {
		return rpc.Stats{Calls: calls, Replies: replies, Canceled: canceled}
	}
	other := s(5, 1, 0)
	other.Dropped = 1
	for _, tt := range []struct {
		name  string
		stats []rpc.Stats // at each second
		want  int         // the second at which it is given up, -1: never
	}{
		{"no answer at all", []rpc.Stats{s(1, 0, 0), s(1, 0, 0), s(1, 0, 0), s(1, 0, 0), s(1, 0, 0)}, 3},
		{"nothing is asked", []rpc.Stats{s(1, 1, 0), s(1, 1, 0), s(1, 1, 0), s(1, 1, 0), s(1, 1, 0)}, -1},
		{"what was asked is not wanted any more", []rpc.Stats{s(3, 1, 2), s(3, 1, 2), s(3, 1, 2), s(3, 1, 2), s(3, 1, 2)}, -1},
		{"an answer now and then", []rpc.Stats{s(5, 1, 0), s(5, 1, 0), s(5, 2, 0), s(5, 2, 0), s(5, 3, 0), s(5, 3, 0)}, -1},
		{"other messages", []rpc.Stats{s(5, 1, 0), s(5, 1, 0), s(5, 1, 0), other, other, other}, -1},
		{"the last answer", []rpc.Stats{s(5, 1, 0), s(5, 2, 0), s(5, 2, 0), s(5, 2, 0), s(5, 2, 0)}, 4},
		{"a call after a rest", []rpc.Stats{s(1, 1, 0), s(1, 1, 0), s(1, 1, 0), s(1, 1, 0), s(2, 1, 0), s(2, 1, 0), s(2, 1, 0)}, 6},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				ticks, got := make(chan time.Time), make(chan bool, 1)
				var now atomic.Int64
				go func() {
					got <- AwaitSilence(ctx, ticks, 3*time.Second, func() rpc.Stats { return tt.stats[now.Load()] })
				}()
				ended := -1
				for i := range tt.stats {
					now.Store(int64(i))
					ticks <- time.Unix(int64(i), 0)
					synctest.Wait() // it has looked
					if len(got) > 0 {
						ended = i
						break
					}
				}
				cancel()
				if silent := <-got; silent != (ended >= 0) || ended != tt.want {
					t.Errorf("given up at second %d, want %d; %v", ended, tt.want, silent)
				}
			})
		})
	}
}

// A limit of 0 or none is no limit, and not one that has passed.
func TestNoLimit(t *testing.T) {
	for text, want := range map[string]time.Duration{"0": 0, "none": 0, "0s": 0, "90s": 90 * time.Second} {
		d := time.Hour
		if err := (limitValue{&d}).Set(text); err != nil || d != want {
			t.Errorf("--timeout %s: %v, %v", text, d, err)
		}
	}
	for _, text := range []string{"-1s", "fast", "", "5"} {
		d := time.Hour
		if err := (limitValue{&d}).Set(text); err == nil {
			t.Errorf("--timeout %q: %v", text, d)
		}
	}
	ctx, cancel := Within(t.Context(), 0, func() error { return errors.New("late") })
	if _, ok := ctx.Deadline(); ok || ctx.Err() != nil {
		t.Errorf("no limit: %v", ctx.Err())
	}
	cancel()
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("the end without a limit: %v", err)
	}
}
