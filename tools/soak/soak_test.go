package main

import (
	"errors"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

func TestFlat(t *testing.T) {
	rising := func(from, by int64) (list []int64) {
		for range 60 {
			list = append(list, from)
			from += by
		}
		return list
	}
	jagged := rising(100, 0)
	for i := range jagged {
		jagged[i] += int64(i%7) * 20
	}
	warm := append([]int64{1000, 1000, 1000}, rising(100, 0)...) // more before it is warm counts for nothing
	warm[len(warm)-1] = 900
	for name, tt := range map[string]struct {
		list []int64
		flat bool
	}{
		"level": {rising(100, 0), true}, "rising": {rising(100, 2), false}, "falling": {rising(1000, -2), true},
		"jagged": {jagged, true}, "a little": {rising(1000, 1), true}, "after the warm-up": {warm, false}, "nothing": {nil, false}, "too few": {[]int64{1, 1}, false},
	} {
		if f := flat(tt.list, 10); f.flat != tt.flat {
			t.Errorf("%s: %+v", name, f)
		}
	}
}

func TestObjects(t *testing.T) {
	got := objects("0: rxe0: pd 1 cq 20 qp 3 cm_id 4 mr 5 ctx 1 srq 0 \n1: siw0: pd 1 cq 2 qp 1 cm_id 0 mr 7 ctx 1 srq 0 \n")
	if want := map[string]int64{"pd": 2, "cq": 22, "qp": 4, "cm_id": 4, "mr": 12, "ctx": 2, "srq": 0}; !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// TestReport: a wrong reply, something that grows, and no calls at all fail the run.
func TestReport(t *testing.T) {
	s := func() *soak {
		level := make([]int64, 60)
		return &soak{totals: map[string]int64{"calls made: NULL": 1}, series: map[string]map[string][]int64{server: {"descriptors": level}}}
	}
	if !s().report(io.Discard, time.Minute) {
		t.Error("nothing is wrong, and it has failed")
	}
	wrong, growing, idle, hung := s(), s(), s(), s()
	hung.hung = []string{"device removal hung"}
	wrong.totals["WRONG"] = 1
	growing.series[server]["descriptors"][59] = slack["descriptors"] + 1
	idle.totals = nil
	for name, s := range map[string]*soak{"wrong": wrong, "growing": growing, "idle": idle, "hung": hung} {
		if s.report(io.Discard, time.Minute) {
			t.Errorf("%s: it has passed", name)
		}
	}
}

// TestHolders: the kernel's files show which processes have a device open.
func TestHolders(t *testing.T) {
	proc := t.TempDir()
	for path, to := range map[string]string{
		"12/fd/0": "/dev/null", "12/fd/5": "/dev/infiniband/uverbs1 (deleted)", "12/fd/6": "/dev/infiniband/uverbs0",
		"13/fd/3": "/dev/infiniband/rdma_cm", "self/fd/3": "/dev/infiniband/uverbs0",
	} {
		path = filepath.Join(proc, path)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.Symlink(to, path)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(proc, "12", "comm"), []byte("soak\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if got, want := holders(proc), []string{"soak (12): uverbs0 uverbs1 (deleted)"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestFill: what follows from one seed does not follow from another, at any length.
func TestFill(t *testing.T) {
	for _, n := range []int{1, 7, 8, 9, 4000} {
		b := make([]byte, n)
		fill(b, 12345)
		if !filled(b, 12345) || n > 1 && filled(b, 54321) {
			t.Errorf("%d bytes", n)
		}
		b[n-1] ^= 1
		if filled(b, 12345) {
			t.Errorf("%d bytes: the last one may be anything", n)
		}
	}
}
