package main

import (
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rpcrdma/rpcrdma/bench/internal/result"
)

// The mutex of this Go release can be replaced, and what replaces it is Go.
func TestOverlay(t *testing.T) {
	sync, err := packageSync(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	source, err := os.ReadFile(filepath.Join(sync, "mutex.go"))
	if err != nil {
		t.Fatal(err)
	}
	changed, err := withMeasured(string(source))
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"mutex.go": changed, "measured.go": overlay} {
		if _, err := parser.ParseFile(token.NewFileSet(), name, text, parser.SkipObjectResolution); err != nil {
			t.Error(err)
		}
	}
	if _, err := withMeasured("package sync\n\ntype Mutex struct{ state int32 }\n"); err == nil {
		t.Error("another mutex has been replaced")
	}
}

const buckets = 256

// in is a set of hold times, all in one bucket.
func in(bucket int, n uint64) []uint64 {
	holds := make([]uint64, buckets)
	holds[bucket] = n
	return holds
}

// set is a set of locks.
func set(locks ...int) []uint64 {
	s := make([]uint64, 4)
	for _, l := range locks {
		s[l/64] |= 1 << (l % 64)
	}
	return s
}

func TestQuantile(t *testing.T) {
	for bucket, want := range map[int]float64{0: 0, 3: 3, 4: 4, 7: 7, 8: 9, 11: 15, 12: 18, 40: 2304} {
		if got := duration(bucket); got != want {
			t.Errorf("bucket %d is %v ns, want %v", bucket, got, want)
		}
	}
	holds := in(4, 98)
	holds[40] = 2
	if p50, p99 := quantile(holds, 0.5), quantile(holds, 0.99); p50 != 4 || p99 != 2304 {
		t.Errorf("median %v, p99 %v", p50, p99)
	}
	if got := quantile(nil, 0.5); got != 0 {
		t.Errorf("the median of nothing is %v", got)
	}
}

// Places that take the same locks are one line, named after the busiest, and hold times add up.
func TestMerge(t *testing.T) {
	s := sample{
		Empty: in(4, 10),
		Time:  100 * time.Microsecond,
		Sites: []site{
			{Frames: []string{"sync.(*Mutex).Lock", module + "transport.f"}, Taken: 20, Holds: in(40, 20), Locks: set(1, 2)},
			{Frames: []string{"sync.(*Mutex).Lock", module + "internal/lockorder.(*Mutex).Lock", module + "transport.g"}, Taken: 10, Waited: 5, WaitedFor: 1000, Holds: in(40, 10), Locks: set(1, 2)},
			{Frames: []string{module + "transport.f", "main.main"}, Taken: 20, Holds: in(40, 20), Locks: set(1, 2)},
			{Frames: []string{module + "iwarp.h"}, Taken: 1, Holds: in(12, 1), Locks: set(3)},
			{Frames: []string{"sync.(*Mutex).Lock"}, Taken: 1, Holds: in(12, 1), Locks: set(200)},
		},
	}
	locks := merge(s, 10)
	if len(locks) != 3 {
		t.Fatalf("%d locks", len(locks))
	}
	l := locks[0]
	if l.name != "transport.f" || l.instances != 2 || l.taken != 5 || l.waited != 0.5 || l.waitedFor != 100 || l.hold != 2300 || l.perCall != 5*2300 {
		t.Errorf("%+v", l)
	}
	if len(s.Sites[0].Holds) != buckets || s.Sites[0].Holds[40] != 20 {
		t.Error("the sample has changed")
	}
	list := []workload{{what: "calls", conns: 1, calls: 10}, {what: "more calls", conns: 100, calls: 10}}
	text, err := page(&result.Provenance{Busy: true}, list, []sample{s, s})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"**The machine was busy", "A call takes 10.0 µs of processor time",
		"| `transport.f` | 2 | 5.00 | 2.3 µs | 2.3 µs | 11.5 µs | 10 % | 174 k | 1.7 |\n", // a call takes 10 µs, and has two
		"| `transport.f` | 2 | 5.00 | 2.3 µs | 2.3 µs | 11.5 µs | 10 % | 174 k | 3680 % |\n",
		"| `iwarp.h` | 1 | 0.10 | 14 ns | 14 ns | < 10 ns | 0 % | 714.3 M | 7142.9 |\n",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the page lacks %q:\n%s", want, text)
		}
	}
	if _, err := page(&result.Provenance{}, list, nil); err == nil {
		t.Error("a page of nothing")
	}
}
