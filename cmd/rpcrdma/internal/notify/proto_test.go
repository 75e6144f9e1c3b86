package notify

import (
	"bytes"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
)

// Events are on the wire as notify.x has them; the bytes are written by hand.
func TestEventCodec(t *testing.T) {
	for _, tt := range []struct {
		event Event
		hex   string
	}{
		{Event{Kind: Created, IsDir: true, Path: "ab"}, "00000001 00000001 00000002 61620000"},
		{Event{Kind: Renamed, Path: "a/bcd", From: "xy"}, "00000006 00000000 00000005 612f6263 64000000 00000002 78790000"},
		{Event{Kind: Overflow, IsDir: true}, "00000005 00000001 00000000"},
		{Event{Kind: Ended, Status: StatusGone}, "00000007 00000007"},
		{Event{Kind: Watching}, "00000008"},
	} {
		golden := testutil.Hex(t, tt.hex)
		if b := tt.event.Append(nil); !bytes.Equal(b, golden) {
			t.Errorf("%v is %x, want %x", tt.event, b, golden)
		}
		if n := tt.event.size(); n != len(golden) && tt.event.Kind != Watching {
			t.Errorf("%v has %d bytes, counted %d", tt.event, len(golden), n)
		}
		var e Event
		d := xdr.NewDecoder(golden)
		if e.Decode(&d); d.End() != nil || !reflect.DeepEqual(e, tt.event) {
			t.Errorf("decoded %+v, %v", e, d.End())
		}
	}
}

// The queue has every change within its limits, and no event that another one stands for.
func TestPending(t *testing.T) {
	ev := func(kind Kind, path string) Event { return Event{Kind: kind, Path: path} }
	all := func(p *pending) (got []string) {
		for {
			e, ok := p.take(4000)
			if !ok {
				return got
			}
			got = append(got, e.Kind.String()+" "+e.Path)
		}
	}
	for _, tt := range []struct {
		name string
		in   []Event
		want string
	}{
		{"contents", []Event{ev(Modified, "a"), ev(Modified, "b"), ev(Modified, "a"), ev(Attributes, "a"), ev(Attributes, "a")},
			"modified a, modified b, attributes a"},
		{"of a new file", []Event{ev(Created, "a"), ev(Modified, "a"), ev(Attributes, "a"), ev(Removed, "a"), ev(Created, "a"), ev(Modified, "a")},
			"created a, removed a, created a"},
		{"of a file that was renamed", []Event{ev(Created, "a"), {Kind: Renamed, Path: "b", From: "a"}, ev(Modified, "b"), ev(Modified, "a")},
			"created a, renamed b, modified b, modified a"},
		{"the end", []Event{ev(Created, "a"), {Kind: Ended, Status: StatusGone}}, "created a, ended "},
		{"more than can be told", []Event{ev(Created, "a"), ev(Overflow, ""), ev(Created, "b"), {Kind: Ended}}, "created a, overflow , ended "},
	} {
		var p pending
		for _, e := range tt.in {
			p.add(e)
		}
		if got := strings.Join(all(&p), ", "); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
		if p.size != 0 || p.events != nil || p.told != nil {
			t.Errorf("%s: something is left: %+v", tt.name, p)
		}
	}

	// An event that has been taken stands for nothing.
	var p pending
	p.add(ev(Created, "a"))
	p.take(4000)
	p.add(ev(Modified, "a"))
	if got := all(&p); !slices.Equal(got, []string{"modified a"}) {
		t.Errorf("after what was taken: %q", got)
	}

	// It is bounded, by number and by size.
	for _, long := range []int{1, 3000} {
		p = pending{}
		for i := range 3 * maxPending {
			p.add(ev(Created, fmt.Sprintf("%0*d", long, i)))
			if len(p.events) > maxPending || p.size > maxPendingSize || len(p.told) > maxPending {
				t.Fatalf("%d events of %d bytes wait", len(p.events), p.size)
			}
		}
		if got := all(&p); !slices.Equal(got, []string{"overflow "}) {
			t.Errorf("after too many: %.100q", got)
		}
	}

	// An event that fits into no message becomes an overflow of a directory above it.
	deep := strings.Repeat("dir/", 300)
	p.add(ev(Created, deep+"x"))
	p.add(Event{Kind: Renamed, Path: "y", From: deep})
	p.add(ev(Created, strings.Repeat("z", 1000)))
	for _, want := range []Event{
		{Kind: Overflow, IsDir: true, Path: strings.TrimSuffix(deep[:888], "/")},
		{Kind: Overflow, IsDir: true, Path: "y"},
		{Kind: Overflow, IsDir: true},
	} {
		if got, ok := p.take(900); !ok || got != want {
			t.Errorf("%+v, want %+v", got, want)
		}
	}
	if p.size != 0 {
		t.Errorf("%d bytes are left", p.size)
	}
}
