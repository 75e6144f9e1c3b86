package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/rpcrdma/rpcrdma/bench"
	"github.com/rpcrdma/rpcrdma/bench/internal/measure"
	"github.com/rpcrdma/rpcrdma/bench/internal/result"
	"github.com/rpcrdma/rpcrdma/internal/limited"
)

// defaultRowLimit is several times the time of the longest row in a virtual machine without
// KVM.
const defaultRowLimit = 2 * time.Minute

// startLimit limits the time until the first row begins.
const startLimit = time.Minute

// event is a report of the worker about a task. It is a line of its standard error, in order with the output of the
// tasks, with JSON after a zero byte.
type event struct {
	Kind  string `json:"kind"`
	ID    string `json:"id"`
	What  string `json:"what"`
	Goals []int  `json:"goals,omitempty"`
	Why   string `json:"why,omitempty"` // reason for a failure
}

const (
	taskLeftOut = "left out"
	taskBegins  = "begins"
	taskEnds    = "ends" // successfully, or with Why
)

// mark is the first byte of an event's line.
const mark = '\x00'

func (e event) tell(w io.Writer) error {
	b, err := json.Marshal(e)
	if err != nil {
		return err
	}
	_, err = w.Write(append(append([]byte{mark}, b...), '\n'))
	return err
}

// failRow adds a failed task to the results.
func failRow(f *result.File, e event) {
	for _, g := range e.Goals {
		f.Missing = append(f.Missing, result.Missing{Goal: g, Why: e.ID + ": " + e.Why})
	}
	f.Failed = append(f.Failed, result.Failed{ID: e.ID, What: e.What, Why: e.Why})
}

// work is passed to the worker in its environment: what has already been done.
type work struct {
	Begin   time.Time
	Skip    []string // tasks
	Command string   // command line of the user
}

const workVariable = "RPCRDMA_BENCH_WORK"

// workOf returns nil in a process that is not a worker.
func workOf() (*work, error) {
	text, ok := os.LookupEnv(workVariable)
	if !ok {
		return nil, nil
	}
	w := new(work)
	return w, json.Unmarshal([]byte(text), w)
}

// do measures the remaining tasks, adds to the file of the previous worker, and saves it after each task. It reports a
// failed task as an event, not as an error.
func (w *work) do(p *plan, m measurer, keep, logs string) error {
	m.begin = w.Begin
	m.skip = make(map[string]bool)
	for _, id := range w.Skip {
		m.skip[id] = true
	}
	if len(w.Skip) == 0 {
		m.file.Title = p.title
		m.file.Provenance = *measure.Begin(w.Command, m.Options, "google.golang.org/grpc", "github.com/containerd/ttrpc")
	} else {
		f, err := result.Load(keep)
		if err != nil {
			return err
		}
		m.file = *f
	}
	var told error
	m.told = func(e event, failed error) error {
		told = errors.Join(w.save(&m.file, e, keep), w.keep(e, failed, logs))
		if told == nil {
			told = e.tell(os.Stderr)
		}
		return told
	}
	_ = m.all(p)
	return told
}

// save saves the results so far, so that they survive if the worker is killed.
func (w *work) save(f *result.File, e event, keep string) error {
	if e.Kind != taskBegins {
		measure.End(&f.Provenance)
	}
	return f.Save(keep)
}

// keep saves the output of a failed program.
func (w *work) keep(e event, failed error, logs string) error {
	var p *bench.ProgramError
	if !errors.As(failed, &p) {
		return nil
	}
	return appendLog(logs, e.ID, fmt.Sprintf("%v\n\nstandard output:\n%s\n\nstandard error:\n%s\n\n", failed, p.Output.Stdout, p.Output.Stderr))
}

// supervisor runs this program as a worker process that measures the rows. If it has to kill the worker, it starts
// another.
type supervisor struct {
	args    []string
	command string // for the results
	keep    string // the file of results
	logs    string // the directory for the output of failed rows; empty: a temporary one
	limit   time.Duration
	env     []string // additional variables, for tests

	any    bool // a row has begun
	skip   []string
	now    *event // current task
	failed []event
	said   bytes.Buffer // its standard error
	line   []byte       // its unfinished last line
	quiet  bool         // it is printing its stacks
	timer  *time.Timer
}

// maxSaid limits the output of a row that is kept, in bytes.
const maxSaid = 4 << 20

// run returns the results, or nil.
func (s *supervisor) run(ctx context.Context) (*result.File, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	keep := s.keep
	if keep == "" {
		dir, err := os.MkdirTemp("", "ratio")
		if err != nil {
			return nil, err
		}
		defer os.RemoveAll(dir)
		keep = filepath.Join(dir, "results.json")
	}
	if s.logs == "" {
		if s.logs, err = os.MkdirTemp("", "ratio-failed"); err != nil {
			return nil, err
		}
		defer os.Remove(s.logs) // if it is empty
	} else if err := os.RemoveAll(s.logs); err != nil {
		return nil, err
	}
	begin := time.Now()
	var broken error
	for {
		before := len(s.skip)
		err := s.work(ctx, self, keep, begin)
		if ctx.Err() != nil {
			broken = ctx.Err()
			break
		}
		if err == nil {
			break
		}
		if s.now == nil && len(s.skip) == before {
			broken = err // the worker does not get as far as a row
			break
		}
		if s.now != nil {
			s.lost(err, keep)
		}
	}
	f, err := result.Load(keep)
	if err != nil {
		return nil, errors.Join(broken, err)
	}
	errs := []error{broken}
	for _, e := range s.failed {
		errs = append(errs, fmt.Errorf("%s: %s", e.ID, e.Why))
	}
	if len(s.failed) > 0 {
		s.name(f)
		if s.keep != "" {
			errs = append(errs, f.Save(s.keep))
		}
		errs = append(errs, fmt.Errorf("%d rows failed; what they have printed is in %s", len(s.failed), s.logs))
	}
	return f, errors.Join(errs...)
}

// name prints the name of the file with the output of each failed row.
func (s *supervisor) name(f *result.File) {
	for i := range f.Failed {
		f.Failed[i].Output = filepath.Base(s.logs) + "/" + logName(f.Failed[i].ID)
	}
}

// work runs a worker and returns its error.
func (s *supervisor) work(ctx context.Context, self, keep string, begin time.Time) error {
	text, err := json.Marshal(work{begin, s.skip, s.command})
	if err != nil {
		return err
	}
	// Of repeated options the last one counts.
	args := append(append([]string{"-json", keep}, s.args...), "-failed", s.logs)
	if keep == s.keep {
		args = args[2:]
	}
	cmd := exec.Command(self, args...)
	cmd.Env = append(append(os.Environ(), workVariable+"="+string(text)), s.env...)
	cmd.Stdout = io.Discard
	cmd.Stderr = (*sayer)(s)
	s.line, s.quiet = nil, false
	// A row's time starts when it begins.
	s.timer = time.NewTimer(max(s.limit, startLimit))
	defer s.timer.Stop()
	_, err = (&limited.Program{Cmd: cmd, Limit: s.limit, Over: s.timer.C, Stacks: true}).Run(ctx)
	if len(s.line) > 0 {
		s.print(s.line)
	}
	return err
}

// heard processes an event of the worker.
func (s *supervisor) heard(e event) {
	if e.Kind == taskBegins {
		s.any = true
		s.now = &e
		s.said.Reset()
		s.timer.Reset(s.limit)
		return
	}
	s.now = nil
	s.skip = append(s.skip, e.ID)
	if e.Why != "" {
		s.failed = append(s.failed, e)
		if err := appendLog(s.logs, e.ID, s.said.String()); err != nil {
			fmt.Fprintln(os.Stderr, "ratio:", err)
		}
	}
}

// lost records the failure of a row when its worker has exited.
func (s *supervisor) lost(err error, keep string) {
	e := *s.now
	s.now = nil
	e.Kind, e.Why = taskEnds, "its process ended: "+oneLine(err)
	if errors.As(err, new(*limited.TimeError)) {
		e.Why = fmt.Sprintf("it had not ended after %v, the limit of a row, and was killed", s.limit)
	}
	fmt.Fprintf(os.Stderr, "%s: %s\n", e.ID, e.Why)
	s.skip = append(s.skip, e.ID)
	s.failed = append(s.failed, e)
	f, err := result.Load(keep)
	if err == nil {
		failRow(f, e)
		err = f.Save(keep)
	}
	if err = errors.Join(err, appendLog(s.logs, e.ID, e.Why+"\n\n"+s.said.String())); err != nil {
		fmt.Fprintln(os.Stderr, "ratio:", err)
	}
}

// appendLog saves the output of a row.
func appendLog(dir, id, text string) error {
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return err
	}
	f, err := os.OpenFile(filepath.Join(dir, logName(id)), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o666)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}

// logName returns the name of the file for a row.
func logName(id string) string {
	return strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '.' {
			return r
		}
		return '-'
	}, id) + ".txt"
}

// sayer receives the standard error of the worker, for the terminal and the log of the row. The stacks of a worker that
// is killed go only to the log.
type sayer supervisor

func (s *sayer) Write(b []byte) (int, error) {
	n := len(b)
	for {
		line, rest, ended := bytes.Cut(b, []byte{'\n'})
		s.line = append(s.line, line...)
		if !ended && len(s.line) < maxLine {
			return n, nil
		}
		if ended {
			s.line = append(s.line, '\n')
		}
		(*supervisor)(s).print(s.line)
		s.line, b = s.line[:0], rest
	}
}

// maxLine is the maximum length of a line.
const maxLine = 1 << 20

// print processes a line of the worker.
func (s *supervisor) print(line []byte) {
	if line[0] == mark {
		var e event
		if err := json.Unmarshal(line[1:], &e); err == nil {
			s.heard(e)
			return
		}
	}
	if room := maxSaid - s.said.Len(); room > 0 {
		s.said.Write(line[:min(room, len(line))])
	}
	if s.quiet = s.quiet || bytes.HasPrefix(line, []byte("SIGQUIT: quit")); !s.quiet {
		_, _ = os.Stderr.Write(line)
	}
}
