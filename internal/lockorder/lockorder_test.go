package lockorder

import (
	"slices"
	"strings"
	"sync"
	"testing"
)

const (
	outer Rank = iota + 1
	inner
)

// taken takes locks in the given order and returns the panic, if there is one.
func taken(locks ...*Mutex) (panicked any) {
	defer func() { panicked = recover() }()
	for _, m := range locks {
		m.Lock()
		defer m.Unlock()
	}
	return nil
}

// A goroutine that takes locks against the order panics in builds with the race detector, even
// without another goroutine in its way.
func TestOrder(t *testing.T) {
	if !Checked {
		t.Skip("the order is checked in builds with the race detector")
	}
	var a, b, b2, free Mutex
	a.Init(outer)
	b.Init(inner)
	b2.Init(inner)
	for _, tt := range []struct {
		name  string
		locks []*Mutex
		ok    bool
	}{
		{"ascending", []*Mutex{&a, &b}, true},
		{"descending", []*Mutex{&b, &a}, false},
		{"two of one rank", []*Mutex{&b, &b2}, false},
		{"one without a rank anywhere", []*Mutex{&b, &free}, true},
		{"the same again, after the panics before", []*Mutex{&a, &b}, true},
	} {
		p := taken(tt.locks...)
		if (p == nil) != tt.ok {
			t.Errorf("%s: %v", tt.name, p)
		}
		if p != nil && !strings.Contains(p.(string), "rank 2") {
			t.Errorf("%s: the panic does not name the ranks: %v", tt.name, p)
		}
	}

	// TryLock does not wait, in any order, and what it locks counts.
	b.Lock()
	if !a.TryLock() || a.TryLock() {
		t.Error("TryLock does not take a free lock once")
	}
	b.Unlock()
	if p := taken(&a); p == nil {
		t.Error("a lock of the same rank as one from TryLock can be taken")
	}
	a.Unlock()

	// A lock that one goroutine holds is nothing to another.
	b.Lock()
	var wg sync.WaitGroup
	wg.Go(func() {
		if p := taken(&a); p != nil {
			t.Error(p)
		}
	})
	wg.Wait()
	b.Unlock()
}

// A goroutine holds what it has locked and not unlocked, and nothing of another's.
func TestHeld(t *testing.T) {
	var a, b, free Mutex
	a.Init(outer)
	b.Init(inner)
	a.Lock()
	b.Lock()
	free.Lock()
	want := []Rank{outer, inner}
	if !Checked {
		want = nil
	}
	if got := Held(); !slices.Equal(got, want) {
		t.Errorf("held: %v, want %v", got, want)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		if got := Held(); len(got) != 0 {
			t.Errorf("another goroutine holds %v", got)
		}
	})
	wg.Wait()
	free.Unlock()
	b.Unlock()
	a.Unlock()
	if got := Held(); len(got) != 0 {
		t.Errorf("held in the end: %v", got)
	}
}

func TestValue(t *testing.T) {
	var v Value[int]
	*v.Init(outer) = 1
	var part Part[int, string]
	*part.Init() = "before"
	changed := v.Cond()
	n := v.Lock()
	if v.TryLock() != nil {
		t.Error("TryLock returns a value that is locked")
	}
	go func() {
		n := v.Lock() // once the test waits
		*n++
		*part.Of(n) = "after"
		v.Unlock()
		changed.Broadcast()
	}()
	for *part.Of(n) == "before" {
		changed.Wait()
	}
	if *n != 2 {
		t.Errorf("the value is %d", *n)
	}
	v.Unlock()
	if n := v.TryLock(); n == nil || *n != 2 {
		t.Error("TryLock does not return a value that is free")
	}
	v.Unlock()
}

func BenchmarkLock(b *testing.B) {
	var m Mutex
	m.Init(outer)
	n := 0
	for b.Loop() {
		m.Lock()
		n++
		m.Unlock()
	}
}
