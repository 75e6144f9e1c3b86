package notify

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
	"github.com/rpcrdma/rpcrdma/iwarp"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/transport"
)

// newClient returns a client that adds its notifications to lines.
func newClient(lines *testutil.Lines) *Client {
	return NewClient(ClientConfig{
		Recursive:  true,
		Subscribed: func(again bool) { lines.Add(fmt.Sprintf("subscribed, again %v", again)) },
		Events: func(number uint64, events []Event) {
			for _, e := range events {
				lines.Add(fmt.Sprintf("%d %v", number, e))
			}
		},
	})
}

func (b *bed) connect(t *testing.T, c *Client) *transport.Client {
	t.Helper()
	cl, err := transport.Dial(t.Context(), iwarp.New(iwarp.Config{}), b.addr, &transport.ClientConfig{
		NoReconnect: true, Callbacks: []rpc.Program{c.Program()},
	})
	testutil.Must(t, err)
	t.Cleanup(func() { cl.Close() })
	return cl
}

// A client resumes its subscription on a new connection, loses no event, and starts anew
// when the server has forgotten it.
func TestClient(t *testing.T) {
	b := newBed(t, time.Minute, time.Minute)
	var lines testutil.Lines
	c := newClient(&lines)
	cl := b.connect(t, c)
	testutil.Must(t, c.Subscribe(t.Context(), cl))
	b.source.emit(Event{Kind: Created, Path: "a"})
	testutil.WantLines(t, lines.Wait(t, "a"), "subscribed, again false", "1 created a")

	cl.Close()
	b.source.emit(Event{Kind: Removed, Path: "a"})
	cl = b.connect(t, c)
	testutil.Must(t, c.Subscribe(t.Context(), cl))
	testutil.WantLines(t, lines.Wait(t, "removed a"), "subscribed, again true", "2 removed a")

	testutil.Must(t, c.Unsubscribe(t.Context(), cl), c.Unsubscribe(t.Context(), cl))
	b.idle(t)
	testutil.Must(t, c.Subscribe(t.Context(), cl))
	b.source.emit(Event{Kind: Created, Path: "b"})
	testutil.WantLines(t, lines.Wait(t, "b"), "subscribed, again false", "1 created b")
	b.source.end("", StatusGone)
	lines.Wait(t, "ended the directory has been removed or renamed (GONE)")
	b.idle(t)
	if err := c.Unsubscribe(t.Context(), cl); !errors.Is(err, StatusUnknown) {
		t.Errorf("UNSUBSCRIBE of a subscription that has ended: %v", err)
	}
}

// The client returns the server's status.
func TestClientRefused(t *testing.T) {
	b := newBed(t, time.Minute, time.Minute)
	var lines testutil.Lines
	c := newClient(&lines)
	cl := b.connect(t, c)
	b.source.refuse(StatusTooMuch)
	if err := c.Subscribe(t.Context(), cl); !errors.Is(err, StatusTooMuch) {
		t.Errorf("SUBSCRIBE: %v", err)
	}
	if got := lines.All(); len(got) > 0 {
		t.Errorf("told %q", got)
	}
}

// What a server sends again is reported once, a gap is reported, and events of another subscription
// are refused.
func TestWatchNumbers(t *testing.T) {
	var lines testutil.Lines
	c := newClient(&lines)
	c.id, c.known = notifyExample.id, true
	create := func(path string) []Event { return []Event{{Kind: Created, Path: path}} }
	for _, tt := range []struct {
		args notifyArgs
		want []string
	}{
		{args: notifyArgs{number: 1, events: create("a")}, want: []string{"1 created a"}},
		{args: notifyArgs{number: 1, events: create("a")}},
		{
			args: notifyArgs{number: 2, events: []Event{{Kind: Removed, Path: "a"}, {Kind: Created, Path: "b"}}},
			want: []string{"2 removed a", "2 created b"},
		},
		{args: notifyArgs{number: 1, events: create("a")}},
		{
			args: notifyArgs{number: 4, events: create("c")},
			want: []string{"4 overflow ./ changes were lost: rescan this directory", "4 created c"},
		},
		{args: notifyArgs{id: token{1}, number: 5, events: create("d")}},
		{args: notifyArgs{number: 5, events: create("d")}, want: []string{"5 created d"}},
	} {
		if tt.args.id == (token{}) {
			tt.args.id = c.id
		}
		var res rpc.Response
		req := &rpc.Request{Procedure: rpc.Procedure{Proc: ProcNotify}, Args: tt.args.Append(nil)}
		before := len(lines.All())
		c.serve(t.Context(), req, &res)
		testutil.WantLines(t, lines.All()[before:], tt.want...)
	}
}
