package spin

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
)

// A world has the delays of two ends that wait for each other's messages. Times are made up; those of
// the first ones are near what virtual machines show.
type world struct {
	name string

	seen   time.Duration // what a message takes to an end that polls
	woken  time.Duration // to one that is parked
	beside time.Duration // more than that, when the other end polls meanwhile

	// Another program has the processor: how often, and for how long on average.
	lateSeen, lateWoken float64
	lateFor             time.Duration

	// think returns the client's delay before its next call.
	think func(call int, r *rand.Rand) time.Duration

	worst float64 // how many times as long calls may take as with the better way
	vain  float64 // share of the time, of both ends together, that may be polled in vain
	parks bool    // both ends end up parking, where either way costs the same time
}

// A way is how an end waits.
type way int

const (
	adapts way = iota
	polls
	parks
)

// An end of the connection.
type end struct {
	Spinner
	received uint64
	since    time.Time // it waits
	limit    time.Duration
	leaves   bool // out the waits that need not count
	counts   bool
}

func (e *end) wait(how way, now time.Time) {
	e.since = now
	switch how {
	case adapts:
		e.limit = e.Begin(e.received)
		e.counts = e.Counts() || !e.leaves
	case polls:
		e.limit = time.Hour
	case parks:
		e.limit = 0
	}
}

// calls plays so many, and returns what one takes on average, without thinking, and the share
// of the time that was polled in vain.
func (w *world) calls(client, server *end, how way, n int) (mean time.Duration, vain float64) {
	r := rand.New(rand.NewPCG(1, 2))
	now := time.Unix(1e9, 0)
	begin := now
	var sum, lost time.Duration
	// deliver has to receive what from has just sent.
	deliver := func(to, from *end) {
		late, takes := w.lateSeen, w.seen
		if to.limit == 0 {
			late = w.lateWoken
		}
		if r.Float64() < late {
			takes += time.Duration(r.ExpFloat64() * float64(w.lateFor))
		}
		missed := to.limit > 0 && now.Add(takes).Sub(to.since) > to.limit
		if missed {
			lost += to.limit
		}
		if missed || to.limit == 0 {
			takes += w.woken - w.seen
			if from.limit > 0 {
				takes += w.beside
			}
		}
		now = now.Add(takes)
		to.received++
		if how == adapts && to.counts {
			to.End(to.received, now.Sub(to.since))
		}
	}
	server.wait(how, now)
	for call := range n {
		if w.think != nil {
			now = now.Add(w.think(call, r))
		}
		from := now
		client.wait(how, now)
		deliver(server, client)
		now = now.Add(5 * time.Microsecond)
		server.wait(how, now)
		deliver(client, server)
		sum += now.Sub(from)
	}
	return sum / time.Duration(n), float64(lost) / float64(now.Sub(begin))
}

func worlds() []world {
	const us, ms = time.Microsecond, time.Millisecond
	always := func(d time.Duration) func(int, *rand.Rand) time.Duration {
		return func(int, *rand.Rand) time.Duration { return d }
	}
	return []world{
		{name: "idle machine", seen: 15 * us, woken: 55 * us, worst: 1.05},
		{name: "hardware", seen: us, woken: 6 * us, worst: 1.1},
		{name: "busy machine", seen: 15 * us, woken: 55 * us, lateSeen: 0.02, lateWoken: 0.02, lateFor: 5 * ms, worst: 1.2, vain: 0.1},
		{name: "an end that is parked wakes late while the other one polls", seen: 15 * us, woken: 55 * us, beside: 75 * us, worst: 1.05, vain: 0.01},
		{name: "parking takes long", seen: 25 * us, woken: 150 * us, worst: 1.1, vain: 0.01},
		{name: "hogs that come before who polls", seen: 25 * us, woken: 60 * us, lateSeen: 0.1, lateWoken: 0.005, lateFor: 6 * ms, worst: 1.5, vain: 0.05, parks: true},
		{name: "one processor, and sockets are looked at late", seen: 25 * us, woken: 10 * ms, worst: 400, vain: 0.01}, // no better than parking
		{name: "the device takes as long either way", seen: 80 * us, woken: 82 * us, worst: 1.05, parks: true},
		{name: "slow device", seen: 2 * ms, woken: 2050 * us, worst: 1.05, vain: 0.05, parks: true},
		{name: "a call now and then", seen: 15 * us, woken: 55 * us, think: always(10 * ms), worst: 2.5, vain: 0.001},
		{name: "a call each millisecond", seen: 15 * us, woken: 55 * us, think: always(ms), worst: 2.5, vain: 0.02},
		{name: "calls in bursts", seen: 15 * us, woken: 55 * us, worst: 1.1, vain: 0.02, think: func(call int, _ *rand.Rand) time.Duration {
			if call%100 == 0 {
				return 10 * ms
			}
			return 0
		}},
	}
}

// TestSpinner: in the long run waits take hardly longer than in the better way, and next to
// nothing is polled in vain.
func TestSpinner(t *testing.T) {
	for _, first := range []Spinner{{}, *Parking()} {
		for _, leaves := range []bool{false, true} {
			for _, w := range worlds() {
				t.Run(fmt.Sprintf("%s/leaves=%t/parks=%t", w.name, leaves, first.parks), func(t *testing.T) {
					testWorld(t, &w, end{Spinner: first, leaves: leaves})
				})
			}
		}
	}
}

func testWorld(t *testing.T, w *world, first end) {
	const n = 50_000
	var mean [3]time.Duration
	client, server := first, first
	var vain float64
	mean[adapts], vain = w.calls(&client, &server, adapts, n)
	for _, how := range []way{polls, parks} {
		mean[how], _ = w.calls(&end{}, &end{}, how, n)
	}
	t.Logf("adaptive %v, %.2f %% in vain; polled %v, parked %v", mean[adapts], 100*vain, mean[polls], mean[parks])
	if best := min(mean[polls], mean[parks]); float64(mean[adapts]) > w.worst*float64(best) {
		t.Errorf("a call takes %v, in the better way %v", mean[adapts], best)
	}
	if vain > w.vain {
		t.Errorf("%.2f %% of the time have been polled in vain", 100*vain)
	}
	if w.parks && !(client.parks && server.parks) {
		t.Errorf("parks: client %v, server %v", client.parks, server.parks)
	}
}

// TestSpinnerChanges: what was better may not be from some time on.
func TestSpinnerChanges(t *testing.T) {
	all := worlds()
	find := func(name string) *world {
		for i := range all {
			if all[i].name == name {
				return &all[i]
			}
		}
		t.Fatalf("no world %q", name)
		return nil
	}
	for _, from := range all {
		for _, to := range []string{"idle machine", "hogs that come before who polls", "slow device"} {
			w := find(to)
			var client, server end
			from.calls(&client, &server, adapts, 5000)
			w.calls(&client, &server, adapts, 30_000) // until it has noticed
			got, _ := w.calls(&client, &server, adapts, 20_000)
			polled, _ := w.calls(&end{}, &end{}, polls, 20_000)
			parked, _ := w.calls(&end{}, &end{}, parks, 20_000)
			if best := min(polled, parked); float64(got) > 1.5*float64(best) {
				t.Errorf("%s, then %s: a call takes %v, in the better way %v", from.name, to, got, best)
			}
		}
	}
}
