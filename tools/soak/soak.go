package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/rpcrdma/rpcrdma/internal/limited"
)

// soak is a run.
type soak struct {
	length, every time.Duration
	rng           *rand.Rand
	addrs         []string // addresses of this machine
	rdma          bool
	faults        []fault

	mu     sync.Mutex
	series map[string]map[string][]int64 // by process that stays, and by quantity
	totals map[string]int64              // of all processes, including those that were killed
	wrong  []string
	hung   []string            // commands that did not return, with details
	procs  map[string]*process // by name
	done   map[string]int      // number of faults, by name
	roles  map[string]role     // roles of the processes that are restarted
}

// The processes.
const (
	server, client = "server", "client" // stay
	rover, caller  = "other server", "other client"
)

// process is a participating process.
type process struct {
	name  string
	cmd   *exec.Cmd
	in    io.Closer
	addrs chan []string
	ended chan error
	moved time.Time // when it last had something new to report
	calls int64
	last  sample
	stops bool // it is stopped or being ended
}

// fault happens to a peer, or to the network in between.
type fault struct {
	name string
	do   func(ctx context.Context, s *soak) error
}

// pause is how long a temporary fault lasts.
const pause = 2 * time.Second

// Immutable.
var softwareFaults = []fault{
	{"client killed", func(ctx context.Context, s *soak) error { return s.again(ctx, caller, 0) }},
	{"server killed", func(ctx context.Context, s *soak) error { return s.again(ctx, rover, 0) }},
	{"client stopped", func(ctx context.Context, s *soak) error { return s.stop(ctx, caller) }},
	{"server stopped", func(ctx context.Context, s *soak) error { return s.stop(ctx, rover) }},
}

// littleMemory is a low limit of a client's locked memory, in KiB.
const littleMemory = 256

// Immutable.
var deviceFaults = []fault{
	{"device removed", func(ctx context.Context, s *soak) error { return s.remove(ctx) }},
	{"network down", func(ctx context.Context, s *soak) error {
		dev := s.netdev()
		return s.during(ctx, []string{"ip", "link", "set", dev, "down"}, []string{"ip", "link", "set", dev, "up"})
	}},
	{"packets lost and reordered", func(ctx context.Context, s *soak) error {
		// Both ends are on this machine, so their traffic goes through lo.
		return s.during(ctx, []string{"tc", "qdisc", "add", "dev", "lo", "root", "netem", "delay", "1ms", "reorder", "25%", "loss", "1%"},
			[]string{"tc", "qdisc", "del", "dev", "lo", "root"})
	}},
	{"little memory to lock", func(ctx context.Context, s *soak) error { return s.again(ctx, caller, littleMemory) }},
}

func (s *soak) run(ctx context.Context) error {
	s.series = map[string]map[string][]int64{server: {}, client: {}, "verbs objects": {}}
	s.totals, s.procs, s.done = make(map[string]int64), make(map[string]*process), make(map[string]int)
	defer func() {
		for _, p := range s.procs {
			_ = p.cmd.Process.Kill()
		}
	}()
	if s.rdma {
		// It may be missing; the fault then fails with a message.
		_ = command(ctx, "modprobe", "sch_netem")
	}
	var at []string
	for _, a := range s.addrs {
		at = append(at, a+":0", overTCP+a+":0")
	}
	steady, err := s.start(ctx, server, role{Server: true, Addrs: at}, 0)
	if err != nil {
		return err
	}
	other, err := s.start(ctx, rover, role{Server: true, Addrs: at}, 0)
	if err != nil {
		return err
	}
	both := append(slices.Clone(steady), other...)
	s.roles = map[string]role{rover: {Server: true, Addrs: other}, caller: {Addrs: steady}}
	if _, err := s.start(ctx, client, role{Addrs: both}, 0); err != nil {
		return err
	}
	if _, err := s.start(ctx, caller, s.roles[caller], 0); err != nil {
		return err
	}
	begin := time.Now()
	end, cancel := context.WithTimeout(ctx, s.length)
	defer cancel()
	// Some hundred of them in half an hour.
	next := time.NewTicker(min(5*time.Second, max(s.length/20, 2*time.Second)))
	defer next.Stop()
	look := time.NewTicker(s.every)
	defer look.Stop()
	var turn []fault
	var failed error
	for end.Err() == nil && failed == nil {
		select {
		case <-next.C:
			if len(turn) == 0 {
				turn = slices.Clone(s.faults)
				s.rng.Shuffle(len(turn), func(i, j int) { turn[i], turn[j] = turn[j], turn[i] })
			}
			f := turn[0]
			turn = turn[1:]
			if err := f.do(end, s); err != nil && (end.Err() == nil || errors.As(err, new(*hungError))) {
				failed = fmt.Errorf("%s, after %v: %w", f.name, time.Since(begin).Round(time.Second), err)
			}
			s.done[f.name]++
		case <-look.C:
			if err := s.look(end); err != nil && (end.Err() == nil || errors.As(err, new(*hungError))) {
				failed = err
			}
		case <-end.Done():
		}
	}
	var hung *hungError
	if errors.As(failed, &hung) {
		// No process can be expected to end properly.
		s.examine(hung)
	} else {
		// The two that stay must end properly, and finally report their results.
		limit := 2 * patience
		for _, name := range []string{client, caller, server, rover} {
			if err := s.end(name, limit); err != nil {
				failed = errors.Join(failed, err)
				limit = deathLimit // there is something to report already
			}
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	ok := s.report(os.Stdout, time.Since(begin))
	if err := errors.Join(ctx.Err(), failed); err != nil {
		return err
	}
	if !ok {
		return errors.New("not all is as it should be")
	}
	return nil
}

// start starts a process. memlock limits its locked memory, in KiB; 0 means no change.
func (s *soak) start(ctx context.Context, name string, r role, memlock int) ([]string, error) {
	r.Every, r.RDMA, r.Seed = s.every, s.rdma, s.rng.Uint64()
	text, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self)
	if memlock > 0 {
		cmd = exec.Command("sh", "-c", fmt.Sprintf("ulimit -l %d; exec \"$0\"", memlock), self)
	}
	cmd.Env = append(os.Environ(), roleVariable+"="+string(text))
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = endWithUs()
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &process{name: name, cmd: cmd, in: in, addrs: make(chan []string, 1), ended: make(chan error, 1), moved: time.Now()}
	s.mu.Lock()
	s.procs[name] = p
	s.mu.Unlock()
	go func() {
		lines := bufio.NewScanner(out)
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			var x sample
			if err := json.Unmarshal(lines.Bytes(), &x); err == nil {
				s.take(p, x)
			}
		}
		p.ended <- cmd.Wait()
	}()
	if !r.Server {
		return nil, nil
	}
	select {
	case addrs := <-p.addrs:
		return addrs, nil
	case err := <-p.ended:
		p.ended <- err
		return nil, fmt.Errorf("the %s ended: %v", name, err)
	case <-time.After(patience):
		return nil, fmt.Errorf("the %s does not listen after %v", name, patience)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// maxWrong is how many incorrect replies are reported.
const maxWrong = 20

// take processes a sample.
func (s *soak) take(p *process, x sample) {
	if x.Addrs != nil {
		p.addrs <- x.Addrs
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for k, n := range x.Right {
		side := "calls made: "
		if p.name == server || p.name == rover {
			side = "calls served: "
		}
		s.totals[side+k] += n - p.last.Right[k]
	}
	s.totals["calls given up"] += x.GivenUp - p.last.GivenUp
	s.totals["ended with a peer"] += x.Lost - p.last.Lost
	s.totals["WRONG"] += x.NumWrong - p.last.NumWrong
	for _, w := range x.Wrong[:min(len(x.Wrong), max(0, maxWrong-len(s.wrong)))] {
		s.wrong = append(s.wrong, p.name+": "+w)
	}
	p.last = x
	var calls int64
	for _, n := range x.Right {
		calls += n
	}
	if calls != p.calls {
		p.calls, p.moved = calls, time.Now()
	}
	if list := s.series[p.name]; list != nil && !p.stops {
		for what, n := range map[string]int64{"resident": x.Resident, "live heap": x.Heap, "mapped": x.Mapped, "descriptors": x.Descriptors, "goroutines": x.Goroutines} {
			list[what] = append(list[what], n)
		}
	}
}

// silence is how long a process that stays may be inactive before it counts as hung.
const silence = 2 * time.Minute

// look counts verbs objects, and checks that the processes that stay are working.
func (s *soak) look(ctx context.Context) error {
	if s.rdma {
		out, err := output(ctx, "rdma", "resource", "show")
		if err != nil {
			return err
		}
		for what, n := range objects(out) {
			s.series["verbs objects"][what] = append(s.series["verbs objects"][what], n)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, name := range []string{server, client} {
		p := s.procs[name]
		select {
		case err := <-p.ended:
			p.ended <- err
			return fmt.Errorf("the %s ended: %v", name, err)
		default:
		}
		if time.Since(p.moved) > silence {
			p.tellStacks()
			return fmt.Errorf("the %s has done nothing for %v; its stacks are above", name, silence)
		}
	}
	return nil
}

// objects adds up the objects of all devices, from lines like "0: rxe0: pd 1 cq 2 qp 1 cm_id 0 mr 0 ctx 1 srq 0".
func objects(text string) map[string]int64 {
	sum := make(map[string]int64)
	for line := range strings.Lines(text) {
		_, rest, _ := strings.Cut(line, ": ")
		_, rest, _ = strings.Cut(rest, ": ")
		words := strings.Fields(rest)
		for i := 0; i+1 < len(words); i += 2 {
			var n int64
			if _, err := fmt.Sscan(words[i+1], &n); err == nil {
				sum[words[i]] += n
			}
		}
	}
	return sum
}

// again kills a process and starts another in its place.
func (s *soak) again(ctx context.Context, name string, memlock int) error {
	p := s.procs[name]
	if err := p.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	if !p.ends(deathLimit) {
		return fmt.Errorf("the %s has not ended %v after it was killed", name, deathLimit)
	}
	// The previous process may need a moment to release the port.
	var err error
	for range 100 {
		if _, err = s.start(ctx, name, s.roles[name], memlock); err == nil || ctx.Err() != nil {
			return err
		}
		if p := s.procs[name]; p != nil {
			if !p.ends(deathLimit) {
				return fmt.Errorf("the %s has not ended after %v: %w", name, deathLimit, err)
			}
		}
		if !rest(ctx) {
			return ctx.Err()
		}
	}
	return err
}

// stop stops a process for a while.
func (s *soak) stop(ctx context.Context, name string) error {
	p := s.procs[name].cmd.Process
	if err := p.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	wait(ctx)
	return p.Signal(syscall.SIGCONT)
}

func wait(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-time.After(pause):
	}
}

// during runs a command, and after a while another.
func (s *soak) during(ctx context.Context, begin, end []string) error {
	// A fault that has begun is always undone, even if the time is over.
	ctx, whole := context.WithoutCancel(ctx), ctx
	if err := command(ctx, begin...); err != nil {
		return err
	}
	wait(whole)
	return command(ctx, end...)
}

// commandLimit is how long a command may take. Removing a device takes longest: it waits for all processes that have
// the device open.
const commandLimit = time.Minute

func command(ctx context.Context, words ...string) error {
	_, err := output(ctx, words...)
	return err
}

// output returns the output of a command. If the command exceeds its limit, the error is a *hungError.
func output(ctx context.Context, words ...string) (string, error) {
	p := limited.Program{Cmd: exec.Command(words[0], words[1:]...), Limit: commandLimit}
	r, err := p.Run(ctx)
	line := strings.Join(words, " ")
	var late *limited.TimeError
	switch {
	case errors.As(err, &late):
		return "", &hungError{line, late}
	case err != nil:
		return "", fmt.Errorf("%s: %w: %s", line, err, r.Said())
	}
	return string(r.Stdout), nil
}

// hungError means that a command did not return.
type hungError struct {
	line string
	err  *limited.TimeError
}

func (e *hungError) Error() string { return e.line + ": " + e.err.Error() }

func (e *hungError) Unwrap() error { return e.err }

// examine finds the processes that block a hanging command, for the report. For our own processes among them, it
// requests the stacks.
func (s *soak) examine(hung *hungError) {
	list := holders("/proc")
	who := "nobody"
	if len(list) > 0 {
		who = strings.Join(list, "; ")
	}
	what := "command"
	if strings.Contains(hung.line, "link delete") {
		what = "device removal"
	}
	s.hung = append(s.hung, fmt.Sprintf("%s hung: %v: RDMA devices are held by %s", what, hung, who))
	if out, err := output(context.Background(), "dmesg"); err == nil {
		lines := slices.Collect(strings.Lines(out))
		s.hung = append(s.hung, "the end of the kernel's log:\n"+strings.Join(lines[max(0, len(lines)-20):], ""))
	}
	s.mu.Lock()
	procs := maps.Clone(s.procs)
	for _, p := range procs {
		p.stops = true
	}
	s.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(procs)) {
		p := procs[name]
		fmt.Fprintf(os.Stderr, "soak: stacks of the %s, process %d:\n", name, p.cmd.Process.Pid)
		p.tellStacks()
	}
}

// holders lists the processes that have RDMA devices open, from the folder proc: "soak (12): uverbs0 uverbs1
// (deleted)". A device with a deleted file is being removed.
func holders(proc string) []string {
	var list []string
	dirs, _ := filepath.Glob(filepath.Join(proc, "[0-9]*"))
	for _, dir := range dirs {
		var devices []string
		files, _ := os.ReadDir(filepath.Join(dir, "fd"))
		for _, f := range files {
			at, err := os.Readlink(filepath.Join(dir, "fd", f.Name()))
			if device, ok := strings.CutPrefix(at, "/dev/infiniband/uverbs"); err == nil && ok {
				devices = append(devices, "uverbs"+device)
			}
		}
		if len(devices) == 0 {
			continue
		}
		slices.Sort(devices)
		name, _ := os.ReadFile(filepath.Join(dir, "comm"))
		list = append(list, fmt.Sprintf("%s (%s): %s", strings.TrimSpace(string(name)), filepath.Base(dir), strings.Join(slices.Compact(devices), " ")))
	}
	return list
}

// deathLimit is how long a process may take to end after it was killed or asked to print its stacks. One that waits in
// the kernel may not end at all.
const deathLimit = 20 * time.Second

// ends waits until the process has ended.
func (p *process) ends(limit time.Duration) bool {
	select {
	case err := <-p.ended:
		p.ended <- err // for the next caller
		return true
	case <-time.After(limit):
		return false
	}
}

// tellStacks ends a process so that it prints where it hangs.
func (p *process) tellStacks() {
	_ = p.cmd.Process.Signal(syscall.SIGCONT)
	_ = p.cmd.Process.Signal(syscall.SIGQUIT)
	if !p.ends(deathLimit) {
		_ = p.cmd.Process.Kill()
	}
}

// kind returns the kinds of the devices, by the networks that scripts/vm gives them.
func (s *soak) kind() string {
	var kinds []string
	for _, kind := range []string{"rxe", "siw"} {
		if os.Getenv("RPCRDMA_"+strings.ToUpper(kind)+"_ADDR") != "" {
			kinds = append(kinds, kind)
		}
	}
	return kinds[s.rng.IntN(len(kinds))]
}

func (s *soak) netdev() string { return "rdma-" + s.kind() }

// remove removes a device while it is in use, and adds it again.
func (s *soak) remove(ctx context.Context) error {
	// rxe and siw devices are not removed while processes have them open: the kernel waits until all have closed them,
	// which a stopped process does not do. stop has resumed all processes before it returns; a lost signal would show
	// here.
	for _, p := range s.procs {
		if err := p.cmd.Process.Signal(syscall.SIGCONT); err != nil && !errors.Is(err, os.ErrProcessDone) {
			return err
		}
	}
	kind := s.kind()
	return s.during(ctx, []string{"rdma", "link", "delete", kind + "0"}, []string{"rdma", "link", "add", kind + "0", "type", kind, "netdev", "rdma-" + kind})
}

// end ends a process, which must exit properly.
func (s *soak) end(name string, limit time.Duration) error {
	s.mu.Lock()
	p := s.procs[name]
	if p == nil {
		s.mu.Unlock()
		return nil
	}
	p.stops = true
	s.mu.Unlock()
	p.in.Close()
	select {
	case err := <-p.ended:
		if err != nil {
			return fmt.Errorf("the %s: %w", name, err)
		}
		return nil
	case <-time.After(limit):
		p.tellStacks()
		return fmt.Errorf("the %s has not ended after %v; its stacks are above", name, limit)
	}
}

// slack is how much a number may grow in addition to a tenth. Immutable.
var slack = map[string]int64{
	"resident": 32 << 20, "live heap": 16 << 20, "mapped": 128 << 20, "descriptors": 16, "goroutines": 32,
	"pd": 2, "cq": 24, "qp": 24, "cm_id": 32, "mr": 256, "ctx": 2, "srq": 0,
}

// flatness is the course of a number.
type flatness struct {
	first, last, limit int64
	flat               bool
}

// flat judges samples, after a warm-up of a tenth of them.
func flat(list []int64, slack int64) flatness {
	list = list[len(list)/10:]
	third := len(list) / 3
	if third == 0 {
		return flatness{}
	}
	f := flatness{first: slices.Max(list[:third]), last: slices.Max(list[len(list)-third:])}
	f.limit = f.first + f.first/10 + slack
	f.flat = f.last <= f.limit
	return f
}

// report prints the summary.
func (s *soak) report(w io.Writer, took time.Duration) bool {
	ok := s.totals["WRONG"] == 0
	fmt.Fprintf(w, "\nsoak: %v\n\n", took.Round(time.Second))
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	var calls int64
	for _, k := range slices.Sorted(maps.Keys(s.totals)) {
		if s.totals[k] == 0 && strings.HasPrefix(k, "calls ") {
			continue // connections are not served, and NULL does not belong to the program
		}
		fmt.Fprintf(tw, "%s\t%d\t\n", k, s.totals[k])
		if strings.HasPrefix(k, "calls made: ") {
			calls += s.totals[k]
		}
	}
	for _, k := range slices.Sorted(maps.Keys(s.done)) {
		fmt.Fprintf(tw, "%s\t%d\t\n", k, s.done[k])
	}
	tw.Flush()
	fmt.Fprintln(w)
	fmt.Fprintln(tw, "who\twhat\tsamples\tmost, first third\tmost, last third\tat most\t\t")
	for _, who := range []string{server, client, "verbs objects"} {
		for _, what := range slices.Sorted(maps.Keys(s.series[who])) {
			f := flat(s.series[who][what], slack[what])
			verdict := "flat"
			if !f.flat {
				verdict, ok = "GROWS", false
			}
			fmt.Fprintf(tw, "%s\t%s\t%d\t%d\t%d\t%d\t%s\t\n", who, what, len(s.series[who][what]), f.first, f.last, f.limit, verdict)
		}
	}
	tw.Flush()
	for _, text := range s.hung {
		fmt.Fprintf(w, "HUNG: %s\n", text)
		ok = false
	}
	for _, text := range s.wrong {
		fmt.Fprintf(w, "WRONG: %s\n", text)
	}
	if calls == 0 {
		fmt.Fprintln(w, "no call was answered")
		ok = false
	}
	return ok
}
