package hosts

import (
	"testing"
	"testing/synctest"
	"time"
)

// A visitor is a connection that has been silent since it came.
type visitor struct {
	since  time.Time
	called bool
}

func (v *visitor) Silence(now time.Time) (time.Duration, bool) { return now.Sub(v.since), false }
func (v *visitor) HasCalled() bool                             { return v.called }
func (v *visitor) MakeRoom()                                   {}

// TestSetupsAreShared: a host with all connections that are being set up makes room for another host.
func TestSetupsAreShared(t *testing.T) {
	gs := Guests{Most: 100, MostSetups: 4}
	var greedy []*Guest
	for range 4 {
		greedy = append(greedy, gs.Admit("greedy", false))
	}
	if gs.Admit("greedy", false) != nil {
		t.Error("the host that has all has got one more")
	}
	if gs.Admit("modest", false) == nil {
		t.Fatal("no room for another host")
	}
	over := 0
	for _, g := range greedy {
		if g.Ctx.Err() != nil {
			over++
		}
	}
	if over != 1 || gs.Len() != 4 || gs.setups != 4 {
		t.Errorf("%d have been thrown out, %d are left, %d of them being set up", over, gs.Len(), gs.setups)
	}
}

// TestThrownOut: connections that have called nothing give way, and are not kept then: the list of those
// that may give way has them still.
func TestThrownOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gs := Guests{Most: 3, MostSetups: 3}
		var all []*Guest
		for _, host := range []string{"a", "b", "c"} {
			g := gs.Admit(host, false)
			gs.Settle(g, &visitor{since: time.Now(), called: host == "a"})
			all = append(all, g)
		}
		if gs.Admit("d", false) != nil {
			t.Error("room for one more, though all may still call")
		}
		time.Sleep(StrangerTime + IdleLook)
		for _, host := range []string{"d", "e"} {
			if g := gs.Admit(host, false); g == nil {
				t.Fatalf("no room for %s", host)
			}
		}
		for i, g := range all {
			if gone := i > 0; g.gone != gone || (g.c == nil) != gone {
				t.Errorf("a connection of %s is gone: %v, and kept: %v", g.host, g.gone, g.c != nil)
			}
		}
		synctest.Wait()
	})
}
