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

var notifyExample = notifyArgs{
	id: token{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, number: 7,
	events: []Event{
		{Kind: Created, IsDir: true, Path: "ab"},
		{Kind: Renamed, Path: "a/bcd", From: "xy"},
		{Kind: Overflow, IsDir: true},
		{Kind: Ended, Status: StatusGone},
	},
}

// Written by hand from the description in doc.go.
const notifyGolden = `
	00010203 04050607 08090a0b 0c0d0e0f  00000000 00000007  00000004
	00000001 00000001 00000002 61620000
	00000006 00000000 00000005 612f6263 64000000 00000002 78790000
	00000005 00000001 00000000
	00000007 00000008`

func TestNotifyCodec(t *testing.T) {
	golden := testutil.Hex(t, notifyGolden)
	if b := notifyExample.Append(nil); !bytes.Equal(b, golden) {
		t.Errorf("NOTIFY is\n%x, want\n%x", b, golden)
	}
	size := notifyHead
	for _, e := range notifyExample.events {
		size += e.size()
	}
	if size != len(golden) {
		t.Errorf("NOTIFY has %d bytes, counted %d", len(golden), size)
	}
	var a notifyArgs
	d := xdr.NewDecoder(golden)
	if a.Decode(&d); d.End() != nil || !reflect.DeepEqual(a, notifyExample) {
		t.Errorf("decoded %+v, %v", a, d.End())
	}
	// Only the paths are allocated.
	if n := testing.AllocsPerRun(100, func() {
		d := xdr.NewDecoder(golden)
		a.Decode(&d)
	}); n != 3 {
		t.Errorf("%v allocations for 3 names", n)
	}
	for n := range golden {
		d := xdr.NewDecoder(golden[:n])
		if a.Decode(&d); d.Err() == nil {
			t.Errorf("%d of %d bytes decode", n, len(golden))
		}
	}

	for _, tt := range []struct {
		args subscribeArgs
		hex  string
	}{
		{subscribeArgs{dir: "in", recursive: true}, "00000002 696e0000 00000001 00000000"},
		{
			subscribeArgs{old: former{true, notifyExample.id}},
			"00000000 00000000 00000001 00010203 04050607 08090a0b 0c0d0e0f",
		},
	} {
		want := testutil.Hex(t, tt.hex)
		if b := tt.args.Append(nil); !bytes.Equal(b, want) {
			t.Errorf("SUBSCRIBE is %x, want %x", b, want)
		}
		var a subscribeArgs
		d := xdr.NewDecoder(want)
		if a.Decode(&d); d.End() != nil || a != tt.args {
			t.Errorf("decoded %+v, %v", a, d.End())
		}
	}
	for _, tt := range []struct {
		res subscribeRes
		hex string
	}{
		{subscribeRes{status: StatusTooMuch}, "00000005"},
		{subscribeRes{ok: subscribed{notifyExample.id, true, 60}}, "00000000 00010203 04050607 08090a0b 0c0d0e0f 00000001 0000003c"},
	} {
		want := testutil.Hex(t, tt.hex)
		if b := tt.res.Append(nil); !bytes.Equal(b, want) {
			t.Errorf("results are %x, want %x", b, want)
		}
		var r subscribeRes
		d := xdr.NewDecoder(want)
		if r.Decode(&d); d.End() != nil || r != tt.res {
			t.Errorf("decoded %+v, %v", r, d.End())
		}
	}
}

func FuzzNotify(f *testing.F) {
	f.Add(testutil.Hex(f, notifyGolden))
	f.Add(testutil.Hex(f, "00000002 696e0000 00000001 00000000"))
	f.Add(testutil.Hex(f, "00000000 00010203 04050607 08090a0b 0c0d0e0f 00000001 0000003c"))
	f.Fuzz(func(t *testing.T, b []byte) {
		again := func(d *xdr.Decoder, v any, encode func([]byte) []byte) {
			if d.End() != nil {
				return
			}
			// Padding may have been anything.
			if out := encode(nil); len(out) != len(b) {
				t.Errorf("%x decodes to %+v, which is %x", b, v, out)
			}
		}
		var n notifyArgs
		d := xdr.NewDecoder(b)
		n.Decode(&d)
		again(&d, n, n.Append)
		if len(n.events) > maxEvents {
			t.Errorf("%d events", len(n.events))
		}
		for _, e := range n.events {
			_ = e.Kind.String() + e.Text() + e.Status.Error()
		}
		var a subscribeArgs
		d = xdr.NewDecoder(b)
		a.Decode(&d)
		again(&d, a, a.Append)
		var r subscribeRes
		d = xdr.NewDecoder(b)
		r.Decode(&d)
		again(&d, r, r.Append)
	})
}

// The queue has every change within its limits, and no event that another one stands for.
func TestPending(t *testing.T) {
	ev := func(kind Kind, path string) Event { return Event{Kind: kind, Path: path} }
	all := func(p *pending) (got []string) {
		for {
			events := p.take(4000)
			if len(events) == 0 {
				return got
			}
			for _, e := range events {
				got = append(got, e.Kind.String()+" "+e.Path)
			}
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
		if got := p.take(900); len(got) != 1 || got[0] != want {
			t.Errorf("%+v, want %+v", got, want)
		}
	}
	if p.size != 0 {
		t.Errorf("%d bytes are left", p.size)
	}
}
