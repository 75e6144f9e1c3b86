package status

import (
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
)

// A history has the complete seconds of the last minute, and nothing older.
func TestHistory(t *testing.T) {
	const now = 1_800_000_000
	var h history
	var adding sync.WaitGroup
	for range 8 {
		adding.Go(func() {
			for range 1000 {
				h.add(now-minute, 1)
				h.add(now-1, 2)
				h.add(now, 1)
			}
		})
	}
	adding.Wait()
	want := make([]uint64, minute)
	want[minute-1] = 16000 // what was added a minute before now is where now is
	if got := h.list(now); !slices.Equal(got[1:], want[1:]) {
		t.Errorf("%v", got)
	}
	if got := rate(h.list(now), 100); got != 1600 {
		t.Errorf("%v a second", got)
	}
	new(history).add(-62135596800-1, 1) // of a time that is not set
	want[minute-2], want[minute-1] = 16000, 8000
	if got := h.list(now + 1); !slices.Equal(got, want) {
		t.Errorf("a second later: %v", got)
	}
	if got := h.list(now + 1 + minute); slices.Max(got) != 0 {
		t.Errorf("a minute later: %v", got)
	}
}

// The headings sort the tables, and slow calls lead to their connections.
func TestPageOrders(t *testing.T) {
	r := newRig(t)
	for range 3 {
		testutil.Must(t, r.call(t, echo, nil))
	}
	if r.call(t, fail, nil) == nil {
		t.Fatal("FAIL succeeds")
	}
	for sort, first := range map[string]string{"calls": "ECHO", "failed": "FAIL", "name": "ECHO"} {
		body := get(t, r.server, "/?refresh=2&sort="+sort).Body.String()
		_, latencies, _ := strings.Cut(body, `<table id="latency">`)
		latencies, _, _ = strings.Cut(latencies, "</table>")
		other := map[string]string{"ECHO": "TEST 1 FAIL", "FAIL": "TEST 1 ECHO"}[first]
		if a, b := strings.Index(latencies, "TEST 1 "+first), strings.Index(latencies, other); a < 0 || b < a {
			t.Errorf("by %s: %s", sort, latencies)
		}
		if !strings.Contains(latencies, `<a href="?refresh=2&amp;sort=mean">mean</a>`) || !strings.Contains(latencies, " ▾</th>") {
			t.Errorf("the headings are %s", latencies)
		}
		if !strings.Contains(body, `<tr id="c1">`) || !strings.Contains(body, `<a href="#c1" title="connection 1">`) ||
			!strings.Contains(body, "<dt>calls sent, or received and valid</dt>") || !strings.Contains(body, "<dt>FPDUs sent</dt>") {
			t.Errorf("the page lacks something: %s", body)
		}
	}
	for sort := range orders {
		if w := get(t, r.server, "/?sort="+sort); w.Code != 200 {
			t.Errorf("by %s: %s", sort, w.Body)
		}
	}
	if w := get(t, r.server, "/?sort=color"); w.Code != 400 {
		t.Errorf("by color: %d", w.Code)
	}
}
