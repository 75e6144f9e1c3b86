package loadgen

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rpcrdma/rpcrdma/proto/xdr"
	"github.com/rpcrdma/rpcrdma/rpc"
)

// A Result is the measurement of a step.
type Result struct {
	Step
	Histogram               // latencies of the calls
	Took      time.Duration // from the start of the first call to the end of the last one, above 0
}

// Rate returns the number of calls per second.
func (r *Result) Rate() float64 { return float64(r.n) / r.Took.Seconds() }

// BytesPerSecond returns the data rate. It counts the data of a call once, even for Echo, which moves it twice.
func (r *Result) BytesPerSecond() float64 { return r.Rate() * float64(r.Size) }

// Errors that end a step.
var (
	// ErrWrongData means that an answer has the wrong length or contents.
	ErrWrongData = errors.New("the answer has the wrong length or contents")
	// ErrStalled means that the server did not answer any call for [Config].Timeout.
	ErrStalled = errors.New("no answer from the server")
)

// Config is the duration of a step, and the functions that it reports to.
type Config struct {
	Time  time.Duration // make calls for this long
	Calls int64         // or this number of calls if it is not 0

	// Timeout is how long the server may not answer; 0 means no limit. After it, Stalled returns the error of the step,
	// while the calls are still outstanding. A nil Stalled means ErrStalled.
	Timeout time.Duration
	Stalled func() error

	// Progress is called about ten times a second with the elapsed fraction of Time, from 0 to 1. The calls do not
	// overlap. It may be nil.
	Progress func(done float64)
}

// warmup is how many calls of each worker are not counted. They let the credit grant grow and the memory be registered.
const warmup = 4

// Run measures s on c, a connection or several, to a server that has [Program]. It ends with the first error of a call,
// or with ctx; the error is then the context's cause.
func Run(ctx context.Context, c rpc.Caller, s Step, cfg Config) (*Result, error) {
	if err := s.check(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	r := &runner{ctx: ctx, cancel: cancel, client: c, cfg: cfg, workers: make([]*worker, s.Depth)}
	for i := range r.workers {
		r.workers[i] = newWorker(s)
	}
	stop := make(chan struct{})
	var watching sync.WaitGroup
	watching.Go(func() { r.watch(stop) })
	defer watching.Wait()
	defer close(stop)

	if err := r.each(r.warmUp); err != nil {
		return nil, err
	}
	r.left.Store(cfg.Calls)
	start := time.Now()
	r.start.Store(&start)
	err := r.each(func(w *worker) error { return r.measure(w, start) })
	if err != nil {
		return nil, err
	}
	result := &Result{Step: s, Took: max(1, time.Since(start))}
	for _, w := range r.workers {
		result.Merge(&w.latencies)
	}
	return result, nil
}

// runner is a step in progress.
type runner struct {
	ctx     context.Context
	cancel  context.CancelCauseFunc
	client  rpc.Caller
	cfg     Config
	workers []*worker

	answers atomic.Int64
	left    atomic.Int64              // calls not begun yet, if Calls limits them
	start   atomic.Pointer[time.Time] // start of the measurement; nil: warming up
}

// each runs f for every worker concurrently until one fails.
func (r *runner) each(f func(*worker) error) error {
	var wg sync.WaitGroup
	for _, w := range r.workers {
		wg.Go(func() {
			if err := f(w); err != nil {
				r.cancel(err) // the first error wins
			}
		})
	}
	wg.Wait()
	return context.Cause(r.ctx)
}

func (r *runner) warmUp(w *worker) error {
	for range warmup {
		if err := w.once(r.ctx, r.client); err != nil {
			return err
		}
		r.answers.Add(1)
	}
	return nil
}

func (r *runner) measure(w *worker, start time.Time) error {
	for begin := time.Now(); r.more(begin.Sub(start)); {
		if err := w.once(r.ctx, r.client); err != nil {
			return err
		}
		end := time.Now()
		w.latencies.Add(end.Sub(begin))
		begin = end
		r.answers.Add(1)
	}
	return nil
}

// more reports whether to make another call after this time.
func (r *runner) more(after time.Duration) bool {
	if r.cfg.Calls > 0 {
		return r.left.Add(-1) >= 0
	}
	return after < r.cfg.Time
}

// watch reports progress, and ends the step if no answer arrives within the timeout.
func (r *runner) watch(stop <-chan struct{}) {
	every := 100 * time.Millisecond
	if r.cfg.Timeout > 0 {
		every = min(r.cfg.Timeout/4+1, every)
	}
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	var seen int64
	since := time.Now()
	for {
		select {
		case <-stop:
			return
		case now := <-ticker.C:
			if n := r.answers.Load(); n != seen {
				seen, since = n, now
			} else if r.cfg.Timeout > 0 && now.Sub(since) >= r.cfg.Timeout {
				r.cancel(r.stalled())
				return
			}
			if start := r.start.Load(); start != nil && r.cfg.Calls == 0 && r.cfg.Progress != nil {
				r.cfg.Progress(min(1, float64(now.Sub(*start))/float64(r.cfg.Time)))
			}
		}
	}
}

func (r *runner) stalled() error {
	if r.cfg.Stalled == nil {
		return fmt.Errorf("%w for %v", ErrStalled, r.cfg.Timeout)
	}
	return r.cfg.Stalled()
}

// worker makes the calls of a step one after the other. It checks the length of every answer, and the contents for
// Echo, the only operation with data that both ends know.
type worker struct {
	step      Step
	call      rpc.Call
	latencies Histogram
}

func newWorker(s Step) *worker {
	w := &worker{step: s, call: rpc.Call{Prog: ProgramNumber, Vers: ProgramVersion}}
	data := make([]byte, s.Size)
	for i := range data {
		data[i] = byte(i * 7)
	}
	switch s.Op {
	case Echo:
		w.call.Proc = ProcEcho
		w.call.Args = xdr.AppendOpaque(nil, data)
		w.call.MaxResults = len(w.call.Args)
	case Write:
		w.call.Proc = ProcSink
		w.call.Args = xdr.AppendUint32(nil, uint32(s.Size))
		w.call.ReadItems = []rpc.ReadItem{{Offset: 4, Data: data}}
		w.call.MaxResults = 4
	case Read:
		w.call.Proc = ProcSource
		w.call.Args = xdr.AppendUint32(nil, uint32(s.Size))
		w.call.WriteItems = []rpc.WriteItem{{Buf: data}}
		w.call.MaxResults = 4
	}
	return w
}

// once makes one call.
func (w *worker) once(ctx context.Context, c rpc.Caller) error {
	if err := c.Call(ctx, &w.call); err != nil {
		return err
	}
	if err := w.call.Reply.Err(); err != nil {
		return err
	}
	if !w.right() {
		return ErrWrongData
	}
	return nil
}

// right checks the answer.
func (w *worker) right() bool {
	switch w.step.Op {
	case Echo:
		return bytes.Equal(w.call.Results, w.call.Args)
	case Write, Read:
		n, used := xdr.ConsumeUint32(w.call.Results)
		if used <= 0 || int(n) != w.step.Size {
			return false
		}
	}
	if w.step.Op == Read && w.call.WriteItems[0].Chunked {
		return w.call.WriteItems[0].N == w.step.Size
	}
	return true
}
