package serving

import (
	"bufio"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/cmdtest"
	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
)

func listenLocal(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// While the server ends, and only then, its health is bad.
func TestHealth(t *testing.T) {
	m, err := newMetrics(listenLocal(t), "127.0.0.1:0", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	m.start()
	page := "http://" + m.listener.Addr().String() + "/"
	url := page + "healthz"
	if status, _ := cmdtest.Fetch(t, "GET", url, ""); status != 200 {
		t.Errorf("%d while serving", status)
	}
	for m.budget.take(m.budget.of("127.0.0.1:1")) {
	}
	if status, _ := cmdtest.Fetch(t, "GET", page, ""); status != 429 {
		t.Errorf("%d with all requests used up", status)
	}
	if status, _ := cmdtest.Fetch(t, "GET", url, ""); status != 200 {
		t.Errorf("%d with the requests of others used up", status)
	}
	m.stopping()
	if status, _ := cmdtest.Fetch(t, "GET", url, ""); status != 503 {
		t.Errorf("%d while stopping", status)
	}
	testutil.Must(t, m.Close())
}

// A full crowd gives the place of the one that has been silent for longest, and no place of one
// that has a request, but for a host with fewer connections.
func TestCrowd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCrowd(nil, 3, newShares(1000, 1000))
		var ends []net.Conn // the peers'
		from := func(share int) net.Conn {
			here, there := net.Pipe()
			ends = append(ends, there)
			return c.admit(here, share)
		}
		admit := func() net.Conn { return from(1) }
		gone := func(i int) bool {
			ends[i].SetReadDeadline(time.Now().Add(time.Second))
			_, err := ends[i].Read(make([]byte, 1))
			return err == io.EOF
		}
		first, second, third := admit(), admit(), admit()
		c.state(first, http.StateActive)
		c.state(second, http.StateActive)
		c.state(second, http.StateIdle) // after third
		if fourth := admit(); fourth == nil || !gone(2) || gone(0) || gone(1) {
			t.Error("the fourth did not take the place of the third")
		}
		if admit() == nil || !gone(1) || gone(0) || gone(3) {
			t.Error("the fifth did not take the place of the second")
		}
		for cc := range c.conns {
			c.state(cc, http.StateActive)
		}
		if admit() != nil {
			t.Error("there was room among three that are busy")
		}
		first.Close()
		third.Close()
		if len(c.conns) != 2 || admit() == nil {
			t.Errorf("no room after one has left: %d", len(c.conns))
		}
		for cc := range c.conns {
			c.state(cc, http.StateActive)
		}
		if other := from(2); other == nil || len(c.conns) != 3 {
			t.Error("three of one host keep another one out")
		}
		if third := from(3); third == nil || len(c.conns) != 3 {
			t.Error("two of one host keep a third one out")
		}
		for cc := range c.conns {
			c.state(cc, http.StateActive)
		}
		if from(2) != nil {
			t.Error("a host has taken the place of one with as few connections")
		}
		for _, end := range ends {
			end.Close()
		}
	})
}

// So many turns at once, and so many in a second.
func TestTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newTurns(10, 5)
		taken := 0
		for range 1000 {
			if p.take() {
				taken++
			}
		}
		if taken < 5 || taken > 6 {
			t.Errorf("%d at once", taken)
		}
		for start := time.Now(); time.Since(start) < 10*time.Second; time.Sleep(time.Millisecond) {
			if p.take() {
				taken++
			}
		}
		if taken < 100 || taken > 110 {
			t.Errorf("%d in ten seconds", taken)
		}
		p = newTurns(10, 5)
		start := time.Now()
		for range 105 {
			time.Sleep(p.delay())
		}
		if took := time.Since(start); took < 9900*time.Millisecond || took > 10100*time.Millisecond {
			t.Errorf("105 turns took %v", took)
		}
	})
}

// The page of the metrics is made once a second, however many ask.
func TestMetricsAreKept(t *testing.T) {
	m, err := newMetrics(listenLocal(t), "127.0.0.1:0", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	first, err := m.collect()
	if err != nil {
		t.Fatal(err)
	}
	if again, err := m.collect(); err != nil || &again[0] != &first[0] {
		t.Errorf("made twice, %v", err)
	}
	m.made = m.made.Add(-metricsFresh)
	if again, err := m.collect(); err != nil || &again[0] == &first[0] {
		t.Errorf("not made again after a second, %v", err)
	}
	var names []string
	for s := bufio.NewScanner(strings.NewReader(string(first))); s.Scan(); {
		if name, ok := strings.CutPrefix(s.Text(), "# TYPE "); ok {
			names = append(names, name)
		}
	}
	if !slices.IsSorted(names) || len(names) < 30 {
		t.Errorf("%d families: %s", len(names), fmt.Sprint(names))
	}
}
