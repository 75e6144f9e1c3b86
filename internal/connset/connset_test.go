package connset

import (
	"os"
	"testing"

	"github.com/rpcrdma/rpcrdma/internal/testing/leak"
	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
	"github.com/rpcrdma/rpcrdma/iwarp"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/transport"
)

func TestMain(m *testing.M) { os.Exit(leak.Main(m)) }

// An observer keeps a Set.
type observer struct {
	rpc.NoObserver
	set   Set
	ended chan Entry
}

func (o *observer) ConnBegan(e rpc.ConnEvent) { o.set.Began(e) }
func (o *observer) ConnEnded(e rpc.ConnEvent) { o.ended <- o.set.Ended(e) }

// Counts stay when connections end, and values of the moment go.
func TestSet(t *testing.T) {
	leak.Check(t)
	o := &observer{ended: make(chan Entry, 3)}
	if open, all, opened := o.set.Look(); len(open) != 0 || opened != 0 || all.Calls != 0 || all.Adapter == nil {
		t.Errorf("nothing yet: %v, %+v, %d", open, all, opened)
	}
	srv, err := transport.NewServer(&transport.ServerConfig{Config: transport.Config{Observer: o}})
	testutil.Must(t, err)
	t.Cleanup(func() { srv.Close() })
	p := iwarp.New(iwarp.Config{})
	l, err := srv.Listen(t.Context(), p, "127.0.0.1:0")
	testutil.Must(t, err)
	go srv.Serve(l)
	var clients []*transport.Client
	for range 3 {
		c, err := transport.Dial(t.Context(), p, l.Addr().String(), nil)
		testutil.Must(t, err)
		defer c.Close()
		clients = append(clients, c)
		_ = c.Null(t.Context(), 77, 1) // there is no such program, which is an answer, too
	}
	testutil.Eventually(t, "three connections", func() bool { open, _, _ := o.set.Look(); return len(open) == 3 })
	open, all, opened := o.set.Look()
	if opened != 3 || all.Calls < 3 || all.Credits < 3 || len(all.Adapter) == 0 || !open[0].Server || open[0].Began.IsZero() {
		t.Errorf("%+v, %+v", open, all)
	}
	for i, c := range clients {
		c.Close()
		if e := <-o.ended; e.ID == 0 || e.Stats.Calls == 0 {
			t.Errorf("ended: %+v", e)
		}
		open, now, _ := o.set.Look()
		if len(open) != 2-i || now.Calls < all.Calls {
			t.Errorf("%d connections, %d calls that were %d", len(open), now.Calls, all.Calls)
		}
		for name, n := range all.Adapter {
			if now.Adapter[name] < n {
				t.Errorf("%s: %d was %d", name, now.Adapter[name], n)
			}
		}
		all = now
	}
	if all.Credits != 0 || all.HeldBytes != 0 || all.InFlight != 0 {
		t.Errorf("at the end: %+v", all)
	}
}
