package main

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

func TestHandles(t *testing.T) {
	table := newHandleTable(100)
	root, file, other := table.handle(nil), table.handle([]string{"a", "b", "c"}), table.handle([]string{"x"})
	expect := func(handle []byte, want string) {
		t.Helper()
		path, ok := table.path(handle)
		if got := strings.Join(path, "/"); !ok || got != want {
			t.Errorf("handle leads to %q, %v, want %q", got, ok, want)
		}
	}
	stale := func(handle []byte) {
		t.Helper()
		if path, ok := table.path(handle); ok {
			t.Errorf("handle leads to %q, want it stale", path)
		}
	}
	expect(root, "")
	expect(file, "a/b/c")
	if again := table.handle([]string{"a", "b", "c"}); !slices.Equal(again, file) {
		t.Error("a second handle for the same path")
	}
	table.renamed([]string{"a", "b"}, []string{"x", "y"})
	expect(file, "x/y/c")
	table.renamed([]string{"nowhere"}, []string{"x"})
	stale(file)
	stale(other)

	file = table.handle([]string{"a", "file"})
	table.removed([]string{"a"})
	stale(file)
	table.removed(nil)
	expect(root, "")

	stale(nil)
	stale(file[:8])
	stale(newHandleTable(100).handle(nil))
	forged := slices.Clone(root)
	forged[handleSize-1] = 99
	stale(forged)
}

// A path that was handed out must not change when the library appends to it.
func TestHandlePathIsTheCallers(t *testing.T) {
	table := newHandleTable(100)
	h := table.handle([]string{"a", "b"})
	p, _ := table.path(h)
	first, second := append(p, "1"), append(p, "2")
	if first[2] != "1" || second[2] != "2" {
		t.Errorf("%q and %q share memory", first, second)
	}
}

// The table never grows beyond its limit, whatever is done to it, and keeps what
// was used last.
func TestHandleLimit(t *testing.T) {
	const limit = 50
	table := newHandleTable(limit)
	var handles [][]byte
	name := func() string { return fmt.Sprint(rand.IntN(5)) }
	path := func() []string {
		p := make([]string, 1+rand.IntN(4))
		for i := range p {
			p[i] = name()
		}
		return p
	}
	for range 20000 {
		switch rand.IntN(6) {
		case 0:
			table.removed(path())
		case 1:
			from, to := path(), path()
			if !slices.Equal(to[:min(len(from), len(to))], from) { // no directory moves into itself
				table.renamed(from, to)
			}
		case 2:
			if len(handles) > 0 {
				table.path(handles[rand.IntN(len(handles))])
			}
		default:
			p := path()
			h := table.handle(p)
			if got, ok := table.path(h); !ok || !slices.Equal(got, p) {
				t.Fatalf("a fresh handle for %q leads to %q, %v", p, got, ok)
			}
			handles = append(handles, h)
		}
		if n := len(table.byID); n > limit {
			t.Fatalf("%d handles, want at most %d", n, limit)
		}
		ring := 0
		for o := table.front.next; o != &table.front; o = o.next {
			ring++
		}
		if ring != len(table.byID)-1 {
			t.Fatalf("%d objects in the ring, %d in the table", ring, len(table.byID))
		}
	}
}
