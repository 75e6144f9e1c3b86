package fabric_test

import (
	"testing"

	"github.com/rpcrdma/rpcrdma/fabric"
)

// TestDeferrals: a signaled request has a completion, and so has each deferred one that follows
// MaxDeferred without, whatever is signaled between them. Requests that ask for nothing do not count.
func TestDeferrals(t *testing.T) {
	const n = fabric.MaxDeferred
	type step struct {
		flags fabric.SendFlags
		times int
		want  bool
	}
	for _, tc := range []struct {
		name  string
		steps []step
	}{
		{"nothing", []step{{0, 1000, false}, {fabric.Fence | fabric.Solicited, 1000, false}}},
		{"signaled", []step{{fabric.Signaled, 100, true}, {fabric.Signaled | fabric.Deferred, 100, true}}},
		{"deferred", []step{{fabric.Deferred, n, false}, {fabric.Deferred, 1, true}, {fabric.Deferred, n, false}, {fabric.Deferred | fabric.Fence, 1, true}}},
		{"signaled between", []step{{fabric.Deferred, n, false}, {fabric.Signaled, 100, true}, {fabric.Deferred, 1, true}, {fabric.Deferred, n, false}}},
		{"nothing between", []step{{fabric.Deferred, n - 1, false}, {0, 100, false}, {fabric.Deferred, 1, false}, {0, 1, false}, {fabric.Deferred, 1, true}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var d fabric.Deferrals
			for i, s := range tc.steps {
				for k := range s.times {
					if got := d.Reports(s.flags); got != s.want {
						t.Fatalf("step %d, request %d: %v", i, k, got)
					}
				}
			}
		})
	}
}
