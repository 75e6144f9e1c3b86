package main

import (
	"fmt"
	"strings"

	"github.com/rpcrdma/rpcrdma/bench/internal/result"
)

// manyProcessors is the size of the machine in the estimate.
const manyProcessors = 64

// leastTaken is how often per call a lock in the tables must be acquired.
const leastTaken = 0.005

// page returns the page, in Markdown.
func page(p *result.Provenance, list []workload, samples []sample) (string, error) {
	if len(samples) != len(list) {
		return "", fmt.Errorf("%d samples of %d workloads", len(samples), len(list))
	}
	var b strings.Builder
	fmt.Fprintf(&b, `# Locks

Written by `+"`make locks`"+`; do not edit. Every mutex of both ends, on the software adapter: how often a call takes it, how long it
is held, how often a goroutine waits for it, and what follows for %d processors. A build of the program with another package `+"`sync`"+`
measures all locks, those of the standard library included.

- date: %s
- commit: %s
- machine: %s; %s
- Go: %s
- others used %.2f processors before and during the run
`, manyProcessors, p.Date.Format("2006-01-02 15:04 MST"), p.Commit, p.Machine, p.Kernel, p.Go, float64(p.Idle))
	if p.Busy {
		b.WriteString("\n**The machine was busy with other things: who waits, and the slowest hundredth, is not to be quoted.** Counts are right, and\n" +
			"medians nearly so.\n")
	}
	fmt.Fprintf(&b, `
A lock is named after the function that takes it most often. Hold times are medians, less what an empty critical section seems to
take; p99 includes preemption. "Held" is the sum for one call. "Waits" is the part of all acquisitions that found the lock taken.

The estimate: with P processors that are all busy calls come at a rate of P over the processor time of a call, and a lock of which
there are k, in use alike, is held for P times "held" over k times that processor time. Above 50 %% callers wait for it, above 100 %%
it limits the rate. The limit is k over "held", however many processors there are. A connection of its own is a limit, too: what one
lets work at the same time is the processor time of a call over "held" of its busiest lock.
`)
	for i, w := range list {
		s := samples[i]
		call := float64(s.Time.Nanoseconds()) / float64(w.calls)
		fmt.Fprintf(&b, "\n## %s\n\nA call takes %.1f µs of processor time at both ends, %.1f µs while locks are measured.\n\n", w.what, call/1e3, float64(s.BusyTime.Nanoseconds())/float64(w.calls)/1e3)
		last := fmt.Sprintf("busy at %d processors", manyProcessors)
		if w.conns < manyProcessors {
			last = "processors that it lets work" // more would be meaningless with so few connections
		}
		fmt.Fprintf(&b, "| lock | how many | taken by the call | held, median | p99 | held for a call | waits | limit, calls/s | %s |\n|---|---|---|---|---|---|---|---|---|\n", last)
		for _, l := range merge(s, w.calls) {
			if l.taken < leastTaken {
				continue
			}
			last, limit := "-", "-"
			if l.perCall > 0 {
				share := l.perCall / (float64(l.instances) * call) // of one CPU's time
				limit = rate(float64(l.instances) * 1e9 / l.perCall)
				if last = percent(manyProcessors * share); w.conns < manyProcessors {
					last = fmt.Sprintf("%.1f", 1/share)
				}
			}
			fmt.Fprintf(&b, "| `%s` | %d | %.2f | %s | %s | %s | %s | %s | %s |\n",
				l.name, l.instances, l.taken, hold(l.hold), hold(l.slow), hold(l.perCall), percent(l.waited/l.taken), limit, last)
		}
	}
	b.WriteString(conclusions)
	return b.String(), nil
}

// conclusions describes the design rather than the numbers.
const conclusions = `
## What is held across a system call

Two locks of the software adapter, on purpose, since neither is waited for, and one of the standard library:

- ` + "`iwarp.(*Conn).drive`" + `, which writes to the socket, has the sending side of the connection. It takes the lock with TryLock: a goroutine that finds it
  taken leaves what is to be sent, and the holder sends that, too. Posting never waits for it.
- ` + "`iwarp.(*Conn).waitStep`" + `, ` + "`progress`" + `: the receiving side, read by the one goroutine that is in Poll or Wait of the connection.
- ` + "`syscall.(*mmapper)`" + `, of the whole process: it is taken where slabs of buffers are mapped and given back, and Munmap calls the kernel
  with it. A call that finds a buffer in its connection's slabs does neither.

The transport holds none: ` + "`TestNoLockIsHeldInTheAdapter`" + ` and ` + "`TestNoLockIsHeldInTCP`" + ` call with lock checking (internal/lockorder), and no goroutine
has a lock whenever it posts, polls, waits, registers memory, or reads and writes a socket of TCP.
`

// resolution is the resolution of the clock, in ns.
const resolution = 10

// hold formats a hold time.
func hold(ns float64) string {
	switch {
	case ns < resolution:
		return fmt.Sprintf("< %d ns", resolution)
	case ns < 1000:
		return fmt.Sprintf("%.0f ns", ns)
	}
	return fmt.Sprintf("%.1f µs", ns/1e3)
}

func percent(v float64) string {
	switch {
	case v >= 0.1:
		return fmt.Sprintf("%.0f %%", 100*v)
	case v >= 0.0005:
		return fmt.Sprintf("%.1f %%", 100*v)
	}
	return "0 %"
}

func rate(v float64) string {
	switch {
	case v >= 1e9:
		return "> 1 G"
	case v >= 1e6:
		return fmt.Sprintf("%.1f M", v/1e6)
	}
	return fmt.Sprintf("%.0f k", v/1e3)
}
