package remote

import (
	"testing"
	"time"

	"github.com/rpcrdma/rpcrdma/rpc"
)

// A patience gives up when the connection is away for longer than --retry, and when it is
// silent for longer than that and --timeout.
func TestPatience(t *testing.T) {
	type at struct {
		seconds int
		up      bool
		heard   uint64
		pending int
		want    verdict
	}
	for _, tt := range []struct {
		name         string
		retry, limit time.Duration
		steps        []at
	}{
		{"nothing to do", time.Second, time.Second, []at{{0, true, 1, 0, goOn}, {1000, true, 1, 0, goOn}, {2000, false, 1, 0, goOn}, {3000, false, 1, 0, goOn}}},
		{"away for too long", 30 * time.Second, time.Minute, []at{{0, true, 1, 1, goOn}, {10, false, 1, 1, goOn}, {39, false, 1, 1, goOn}, {40, false, 1, 1, away}}},
		{"back in time", 30 * time.Second, time.Minute, []at{{0, true, 1, 1, goOn}, {10, false, 1, 1, goOn}, {39, true, 1, 1, goOn}, {41, false, 2, 1, goOn}, {70, false, 2, 1, goOn}, {71, false, 2, 1, away}}},
		{"silent", 10 * time.Second, time.Minute, []at{{0, true, 1, 1, goOn}, {59, true, 1, 1, goOn}, {60, true, 1, 1, silent}}},
		{"silent, with --retry above --timeout", 2 * time.Minute, 2 * time.Minute, []at{{0, true, 1, 1, goOn}, {119, true, 1, 1, goOn}, {120, true, 1, 1, silent}}},
		{"silent without limit", time.Second, 0, []at{{0, true, 1, 1, goOn}, {100000, true, 1, 1, goOn}}},
		{"slow, but not silent", time.Second, time.Minute, []at{{0, true, 1, 1, goOn}, {59, true, 2, 1, goOn}, {118, true, 3, 1, goOn}, {178, true, 3, 1, silent}}},
		{"idle between calls", time.Second, time.Minute, []at{{0, true, 1, 1, goOn}, {59, true, 1, 0, goOn}, {118, true, 1, 1, goOn}, {119, true, 1, 1, silent}}},
		{"back after a long time", time.Minute, time.Minute, []at{{0, true, 1, 1, goOn}, {1, false, 1, 1, goOn}, {60, true, 1, 1, goOn}, {64, true, 1, 1, goOn}, {65, true, 1, 1, silent}}},
	} {
		p := patience{retry: tt.retry, limit: tt.limit}
		start := time.Unix(0, 0)
		for i, s := range tt.steps {
			st := rpc.Stats{Replies: s.heard}
			if s.up {
				st.OpenConns = 1
			}
			if got := p.step(start.Add(time.Duration(s.seconds)*time.Second), st, s.pending); got != s.want {
				t.Errorf("%s, step %d: %v, want %v", tt.name, i, got, s.want)
			}
			was := i == 0 || tt.steps[i-1].up
			if p.lost != (was && !s.up) || p.recovered != (!was && s.up) {
				t.Errorf("%s, step %d: lost %v, recovered %v", tt.name, i, p.lost, p.recovered)
			}
		}
	}
}
