package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rpcrdma/rpcrdma/proto/xdr"
	"github.com/rpcrdma/rpcrdma/transport"
)

// What --op takes: calls of the benchmark program, named after what they do to the
// client's data.
const (
	opNull  = "null"
	opEcho  = "echo"
	opRead  = "read"
	opWrite = "write"
)

// A benchStep is calls of one kind, so many outstanding.
type benchStep struct {
	op    string
	size  int // of the data, 0 for null
	depth int
}

func (s benchStep) String() string {
	if s.op == opNull {
		return fmt.Sprintf("%s, depth %d", s.op, s.depth)
	}
	return fmt.Sprintf("%s of %s, depth %d", s.op, sizeText(s.size), s.depth)
}

// A benchResult is what was measured in a step.
type benchResult struct {
	benchStep
	histogram
	took time.Duration
}

// rate is in calls per second.
func (r *benchResult) rate() float64 { return float64(r.n) / r.took.Seconds() }

// bytesPerSecond counts the data once, also that of echo, which goes there and back.
func (r *benchResult) bytesPerSecond() float64 { return r.rate() * float64(r.size) }

// errWrongData is an answer that is not what was asked for.
var errWrongData = errors.New("the answer has the wrong length or contents")

// A bencher is one goroutine's calls of one step. It checks every answer: lengths
// always, contents of echo, which are the only ones that both ends know.
type bencher struct {
	call transport.Call
	step benchStep
	data []byte
}

func newBencher(s benchStep) *bencher {
	b := &bencher{step: s, call: transport.Call{Prog: benchProgram, Vers: benchVersion}}
	if s.op != opNull {
		b.data = make([]byte, s.size)
		for i := range b.data {
			b.data[i] = byte(i * 7)
		}
	}
	switch s.op {
	case opEcho:
		b.call.Proc = benchEcho
		b.call.Args = xdr.AppendOpaque(nil, b.data)
		b.call.MaxResults = len(b.call.Args)
	case opWrite:
		b.call.Proc = benchSink
		b.call.Args = xdr.AppendUint32(nil, uint32(s.size))
		b.call.ReadItems = []transport.ReadItem{{Offset: 4, Data: b.data}}
		b.call.MaxResults = 4
	case opRead:
		b.call.Proc = benchSource
		b.call.Args = xdr.AppendUint32(nil, uint32(s.size))
		b.call.WriteItems = []transport.WriteItem{{Buf: b.data}}
		b.call.MaxResults = 4
	}
	return b
}

// once makes one call.
func (b *bencher) once(ctx context.Context, c *transport.Client) error {
	if err := c.Call(ctx, &b.call); err != nil {
		return err
	}
	if err := b.call.Reply.Err(); err != nil {
		return err
	}
	ok := true
	switch b.step.op {
	case opEcho:
		ok = bytes.Equal(b.call.Results, b.call.Args)
	case opWrite, opRead:
		n, used := xdr.ConsumeUint32(b.call.Results)
		ok = used > 0 && int(n) == b.step.size
		if ok && b.step.op == opRead && b.call.WriteItems[0].Chunked {
			ok = b.call.WriteItems[0].N == b.step.size
		}
	}
	if !ok {
		return errWrongData
	}
	return nil
}

// A stint says how long a step takes: until the time is over, or so many calls have been
// made if that is not 0.
type stint struct {
	time    time.Duration
	calls   int64
	timeout time.Duration // without any answer, 0: no limit
	late    func() error  // is why a step ends then
}

// runStep makes calls, after some that do not count. tick is called every now and then
// with the part that is done.
func runStep(ctx context.Context, c *transport.Client, s benchStep, how stint, tick func(done float64)) (*benchResult, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	benchers := make([]*bencher, s.depth)
	for i := range benchers {
		benchers[i] = newBencher(s)
	}
	var answers atomic.Int64
	watched := make(chan struct{})
	stopWatch := make(chan struct{})
	var begun atomic.Pointer[time.Time]
	go func() {
		defer close(watched)
		every := 100 * time.Millisecond
		if how.timeout > 0 {
			every = min(how.timeout/4+1, every)
		}
		ticker := time.NewTicker(every)
		defer ticker.Stop()
		var seen int64
		since := time.Now()
		for {
			select {
			case <-stopWatch:
				return
			case now := <-ticker.C:
				if n := answers.Load(); n != seen {
					seen, since = n, now
				} else if how.timeout > 0 && now.Sub(since) >= how.timeout {
					cancel(how.late())
					return
				}
				if start := begun.Load(); start != nil && how.calls == 0 {
					tick(min(1, float64(now.Sub(*start))/float64(how.time)))
				}
			}
		}
	}()
	defer func() { close(stopWatch); <-watched }()

	// each runs f for every bencher, until one fails.
	each := func(f func(i int, b *bencher) error) error {
		var wg sync.WaitGroup
		for i, b := range benchers {
			wg.Go(func() {
				if err := f(i, b); err != nil {
					cancel(err)
				}
			})
		}
		wg.Wait()
		return context.Cause(ctx)
	}
	const warmup = 4 // calls: grants grow, memory is there
	if err := each(func(_ int, b *bencher) error {
		for range warmup {
			if err := b.once(ctx, c); err != nil {
				return err
			}
			answers.Add(1)
		}
		return nil
	}); err != nil {
		return nil, err
	}

	histograms := make([]histogram, s.depth)
	var left atomic.Int64
	left.Store(how.calls)
	start := time.Now()
	begun.Store(&start)
	err := each(func(i int, b *bencher) error {
		for begin := time.Now(); ; {
			if how.calls > 0 {
				if left.Add(-1) < 0 {
					return nil
				}
			} else if begin.Sub(start) >= how.time {
				return nil
			}
			if err := b.once(ctx, c); err != nil {
				return err
			}
			end := time.Now()
			histograms[i].add(end.Sub(begin))
			begin = end
			answers.Add(1)
		}
	})
	r := &benchResult{benchStep: s, took: max(1, time.Since(start))}
	if err != nil {
		return nil, err
	}
	for i := range histograms {
		r.merge(&histograms[i])
	}
	return r, nil
}
