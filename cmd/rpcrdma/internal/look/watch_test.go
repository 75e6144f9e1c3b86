package look

import (
	"bytes"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/connect"
)

// A connection that comes and goes is reported a few times a minute, and the last report is true.
func TestWatchFlood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var stderr bytes.Buffer
		w := &watcher{Options: &connect.Options{}, name: "watch", stderr: &stderr}
		w.report(false)
		if stderr.Len() > 0 {
			t.Errorf("before the watch has begun it says %q", &stderr)
		}
		w.ready.Store(true)
		for range time.Hour / (200 * time.Millisecond) {
			w.report(false)
			time.Sleep(100 * time.Millisecond)
			w.report(true)
			time.Sleep(100 * time.Millisecond)
		}
		n := strings.Count(stderr.String(), "\n")
		if n < 60 || n > 2*(60*connect.PaceBurst+connect.PaceBurst) {
			t.Errorf("%d lines in an hour", n)
		}
		for _, up := range []bool{false, true} {
			for range 2 * connect.PaceInterval / (100 * time.Millisecond) {
				w.report(up)
				time.Sleep(100 * time.Millisecond)
			}
			want := "rpcrdma: watch: connection lost, trying to get it back\n"
			if up {
				want = "rpcrdma: watch: connected again: changes may have been missed\n"
			}
			if !strings.HasSuffix(stderr.String(), want) {
				t.Errorf("in the end it does not say %q", want)
			}
		}
	})
}
