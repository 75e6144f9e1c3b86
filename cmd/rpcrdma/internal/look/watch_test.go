package look

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/connect"
	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/notify"
)

// A connection that comes and goes is reported three times a minute, and the last report is
// true.
func TestWatchFlood(t *testing.T) {
	for _, same := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			var out, stderr bytes.Buffer
			w := &watcher{Options: &connect.Options{}, name: "watch", out: &out, stderr: &stderr, over: make(chan struct{})}
			lines := func() int { return strings.Count(stderr.String(), "\n") }
			last := func() string {
				said := strings.Split(strings.TrimSuffix(stderr.String(), "\n"), "\n")
				return said[len(said)-1]
			}
			flaps := func(d, pause time.Duration) {
				for end := time.Now().Add(d); time.Now().Before(end); {
					w.lost()
					time.Sleep(pause)
					w.catchUp()
					w.back(same)
					time.Sleep(pause)
					w.catchUp()
				}
			}
			tick := func(d time.Duration) {
				for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
					w.catchUp()
				}
			}
			flaps(5*time.Second, time.Millisecond)
			if n := lines(); n != 2*connect.PaceBurst {
				t.Errorf("%d lines in five seconds", n)
			}
			flaps(55*time.Second, 50*time.Millisecond)
			if n := lines(); n > 4*connect.PaceBurst {
				t.Errorf("%d lines in a minute", n)
			}
			before := lines()
			flaps(time.Hour, 5*time.Second)
			if n := lines() - before; n < 60 || n > 2*60*connect.PaceBurst {
				t.Errorf("%d lines in the hour after", n)
			}
			if n := strings.Count(out.String(), "overflow"); (n == 0) != same || n > 60*connect.PaceBurst+2*connect.PaceBurst {
				t.Errorf("%d overflows are printed", n)
			}

			// The final state is reported.
			w.lost()
			flaps(time.Second, time.Millisecond)
			w.lost()
			tick(2 * connect.PaceInterval)
			if s := last(); !strings.HasSuffix(s, "trying to get it back") {
				t.Errorf("in the end it says %q", s)
			}
			out.Reset()
			w.back(same)
			tick(2 * connect.PaceInterval)
			if s := last(); !strings.Contains(s, "connected again") || strings.HasSuffix(s, "nothing is lost") != same || (out.Len() == 0) != same {
				t.Errorf("in the end it says %q, and prints %q", s, &out)
			}
			before = lines()
			tick(time.Hour)
			if n := lines() - before; n != 0 {
				t.Errorf("%d lines in an hour in which nothing happens\n%s", n, &stderr)
			}

			// A gap that was not reported is reported with the next connection that is.
			flaps(5*time.Second, time.Millisecond)
			for i := 0; w.hushed == 0 && i < 10; i++ {
				flaps(time.Millisecond, time.Millisecond)
			}
			out.Reset()
			time.Sleep(connect.PaceInterval)
			w.lost()
			w.back(true)
			if strings.HasSuffix(last(), "nothing is lost") != same || (out.Len() == 0) != same {
				t.Errorf("then it says %q, and prints %q", last(), &out)
			}
		})
	}
}

// Events are printed up to the last one that is wanted.
func TestWatchPrints(t *testing.T) {
	created := func(path string) notify.Event { return notify.Event{Kind: notify.Created, Path: path} }
	ended := notify.Event{Kind: notify.Ended, Status: notify.StatusGone}
	for _, tt := range []struct {
		left   int // 0: no limit
		events []notify.Event
		want   string
		err    error
		over   bool
	}{
		{0, []notify.Event{created("a"), {Kind: notify.Removed, Path: "a"}}, "created     a\nremoved     a\n", nil, false},
		{0, []notify.Event{created("a"), ended, created("b")}, "created     a\n", notify.StatusGone, true},
		{2, []notify.Event{created("a")}, "created     a\n", nil, false},
		{2, []notify.Event{created("a"), created("b"), created("c")}, "created     a\ncreated     b\n", nil, true},
	} {
		var out strings.Builder
		w := &watcher{Options: &connect.Options{}, out: &out, over: make(chan struct{}), left: tt.left, counts: tt.left > 0}
		w.events(1, tt.events)
		if out.String() != tt.want || w.ended != tt.over || !errors.Is(w.err, tt.err) {
			t.Errorf("%v: prints %q, ended %v with %v", tt.events, &out, w.ended, w.err)
		}
		w.end(nil)
		out.Reset()
		if w.events(2, []notify.Event{created("d")}); out.Len() > 0 {
			t.Errorf("after the end it prints %q", &out)
		}
	}
}
