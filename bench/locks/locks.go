package main

import (
	"cmp"
	"math/bits"
	"slices"
	"strings"
	"time"

	"github.com/rpcrdma/rpcrdma/bench"
)

// workload is code to be measured.
type workload struct {
	what  string
	conns int
	calls int
	of    func() bench.Workload
}

func workloads() []workload {
	sw := bench.Software(bench.Adapter{})
	return []workload{
		{"RPC NULL, 32 outstanding on one connection", 1, 100_000, func() bench.Workload { return bench.Null(sw, 32) }},
		{"RPC NULL, 128 outstanding on 1000 connections", 1000, 60_000, func() bench.Workload { return bench.NullConns(sw, 1000, 128) }},
		{"64 KiB through a write chunk, 8 outstanding on one connection", 1, 20_000, func() bench.Workload { return bench.Push(sw, 64<<10, 8) }},
	}
}

// sample is the measurement of one workload.
type sample struct {
	Sites          []site
	Time, BusyTime time.Duration // CPU times without and with measuring
	Empty          []uint64      // hold times of an empty critical section
}

// site is a place that acquires locks.
type site struct {
	Frames        []string // innermost first
	Taken, Waited uint64
	WaitedFor     int64    // ns
	Holds         []uint64 // counts by hold time: see duration
	Locks         []uint64 // the set of locks, by a hash of their addresses
}

// duration returns the middle of a bucket of hold times, in ns.
func duration(bucket int) float64 {
	if bucket < 8 {
		return float64(bucket)
	}
	n := bucket/4 - 1
	return (float64(bucket%4+4) + 0.5) * float64(uint64(1)<<n)
}

// quantile returns a quantile of hold times, in ns.
func quantile(holds []uint64, q float64) float64 {
	var all, sum uint64
	for _, n := range holds {
		all += n
	}
	for i, n := range holds {
		if sum += n; n > 0 && float64(sum) >= q*float64(all) {
			return duration(i)
		}
	}
	return 0
}

// lock is a lock, or one of many of the same kind, with the places that acquire it.
type lock struct {
	name          string // place that acquires it most often
	sites         []site
	instances     int
	taken, waited float64 // per call
	waitedFor     float64 // ns per call
	hold          float64 // median in ns
	slow          float64 // 99th percentile in ns
	perCall       float64 // ns held per call, the sum of the medians
}

// merge combines the sites that acquire the same locks. n is the number of calls.
func merge(s sample, n int) []*lock {
	empty := quantile(s.Empty, 0.5)
	var locks []*lock
	byPlace := make(map[string]*site)
	for _, x := range s.Sites {
		name := place(x.Frames)
		if t := byPlace[name]; t != nil {
			t.Taken, t.Waited, t.WaitedFor = t.Taken+x.Taken, t.Waited+x.Waited, t.WaitedFor+x.WaitedFor
			for i := range t.Holds {
				t.Holds[i] += x.Holds[i]
			}
			for i := range t.Locks {
				t.Locks[i] |= x.Locks[i]
			}
			continue
		}
		x.Holds, x.Locks = slices.Clone(x.Holds), slices.Clone(x.Locks)
		byPlace[name] = &x
	}
	var places []site
	for _, x := range byPlace {
		places = append(places, *x)
	}
	slices.SortFunc(places, func(a, b site) int {
		return cmp.Or(cmp.Compare(b.Taken, a.Taken), strings.Compare(place(a.Frames), place(b.Frames)))
	})
	for _, x := range places {
		var of *lock
		for _, l := range locks {
			if sameLocks(l.sites[0].Locks, x.Locks) {
				of = l
				break
			}
		}
		if of == nil {
			of = &lock{name: place(x.Frames)}
			locks = append(locks, of)
		}
		of.sites = append(of.sites, x)
	}
	for _, l := range locks {
		holds := make([]uint64, len(l.sites[0].Holds))
		set := make([]uint64, len(l.sites[0].Locks))
		for _, x := range l.sites {
			l.taken += float64(x.Taken) / float64(n)
			l.waited += float64(x.Waited) / float64(n)
			l.waitedFor += float64(x.WaitedFor) / float64(n)
			l.perCall += max(0, quantile(x.Holds, 0.5)-empty) * float64(x.Taken) / float64(n)
			for i, k := range x.Holds {
				holds[i] += k
			}
			for i, w := range x.Locks {
				set[i] |= w
			}
		}
		l.instances = size(set)
		l.hold = max(0, quantile(holds, 0.5)-empty)
		l.slow = max(0, quantile(holds, 0.99)-empty)
	}
	slices.SortStableFunc(locks, func(a, b *lock) int { return cmp.Compare(b.perCall, a.perCall) })
	return locks
}

// size returns the approximate size of a set, as far as hashes differ.
func size(set []uint64) (n int) {
	for _, w := range set {
		n += bits.OnesCount64(w)
	}
	return n
}

// sameLocks reports whether most locks of the smaller set are also in the larger one.
func sameLocks(a, b []uint64) bool {
	both := make([]uint64, len(a))
	for i := range a {
		both[i] = a[i] & b[i]
	}
	return 2*size(both) > min(size(a), size(b))
}

// place returns the function that acquires the lock, rather than a method of the lock itself.
func place(frames []string) string {
	for _, f := range frames {
		if !strings.HasPrefix(f, "sync.") && !strings.HasPrefix(f, module+"internal/lockorder.") {
			return strings.TrimPrefix(f, module)
		}
	}
	return "?"
}
