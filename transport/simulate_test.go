package transport_test

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// The flags of TestSimulation. make simulate sets them.
var (
	simSeeds   = flag.Int("seeds", 0, "how many histories; 0 is 2000, or 300 with the race detector")
	simFirst   = flag.Uint64("first", 1, "the first seed")
	simWorkers = flag.Int("workers", 0, "how many processes run histories and print how far they are; 0 is this one, in silence")
	simVerbose = flag.Bool("history", false, "print everything that happens")
	simShrink  = flag.Duration("shrink", 20*time.Second, "how long a failing history is shrunk; 0 leaves it as it is")
	simScript  = flag.String("script", "", "a file with a history to run instead")
	simWorker  = flag.Bool("worker", false, "run histories for another process")
)

// simLot is how many histories a worker runs before another one takes its place.
const simLot = 500

// TestSimulation runs histories of simulated connections, see simworld_test.go. It shrinks a failing history and prints
// it as a script.
func TestSimulation(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1)) // the same again for the same seed
	n := *simSeeds
	if n == 0 {
		n = 2000
		if raceEnabled {
			n = 300
		}
		if testing.Short() {
			n /= 10
		}
	}
	var log func(string, ...any)
	if *simVerbose {
		log = func(format string, args ...any) { fmt.Printf(format+"\n", args...) }
	}
	switch {
	case *simScript != "":
		text, err := os.ReadFile(*simScript)
		if err != nil {
			t.Fatal(err)
		}
		runSimScript(t, string(text), log)
	case *simWorker:
		for i := range uint64(n) {
			fmt.Printf("\nbegins %d\n", *simFirst+i) // a history may take the process with it
			res := simulate(t, newSimHistory(*simFirst+i), nil)
			line, _ := json.Marshal(res)
			fmt.Printf("\nresult %s\n", line)
		}
	case *simWorkers > 0:
		simulateMany(t, *simFirst, n)
	default:
		for i := range uint64(n) {
			seed := *simFirst + i
			if res := simulate(t, newSimHistory(seed), log); len(res.Wrong) > 0 {
				simReport(t, seed, res.Wrong)
				return // the others will do when it is mended
			}
		}
	}
}

func runSimScript(t *testing.T, text string, log func(string, ...any)) {
	h, err := parseSimHistory(text)
	if err != nil {
		t.Fatal(err)
	}
	if res := simulate(t, h, log); len(res.Wrong) > 0 {
		t.Errorf("wrong:\n%s", strings.Join(res.Wrong, "\n"))
	}
}

// TestSimulationScripts runs the histories of testdata/simulation, which are shrunk histories that once failed.
func TestSimulationScripts(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	files, err := filepath.Glob("testdata/simulation/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	for _, f := range files {
		t.Run(strings.TrimSuffix(filepath.Base(f), ".txt"), func(t *testing.T) {
			text, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			for range 3 { // what is left to chance
				runSimScript(t, string(text), nil)
			}
		})
	}
}

// TestSimulationRepeats checks that one seed always produces the same history. The scheduler's choices may make a few
// histories differ.
func TestSimulationRepeats(t *testing.T) {
	if raceEnabled {
		t.Log("the race detector has goroutines run in random order: looked at without it")
		return
	}
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	const n = 100
	same := 0
	for seed := range uint64(n) {
		h := newSimHistory(seed)
		again, err := parseSimHistory(h.String())
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		if a, b := h.String(), again.String(); a != b {
			t.Fatalf("seed %d: a history is read as another one:\n%s\n%s", seed, a, b)
		}
		if simulate(t, h, nil).Hash == simulate(t, again, nil).Hash {
			same++
		}
	}
	t.Logf("%d of %d histories are the same again", same, n)
	if same < n*3/4 {
		t.Errorf("%d of %d histories are the same again", same, n)
	}
}

// ---- a failing history

// simReport prints a history that has gone wrong, as short as it gets.
func simReport(t *testing.T, seed uint64, wrong []string) {
	h := newSimHistory(seed)
	replay := fmt.Sprintf("make simulate FIRST=%d SEEDS=1 VERBOSE=1", seed)
	script := h.String()
	if *simShrink > 0 {
		if s := shrinkSim(h, *simShrink); s != nil {
			script = s.String()
		} else {
			script = "# not the same when it is run again\n" + script
		}
	}
	t.Errorf("seed %d (%s):\n%s\n%s", seed, replay, strings.Join(wrong, "\n"), script)
}

// shrinkSim leaves out of a history what it goes wrong without. It returns nil if the
// history does not go wrong again. Each attempt has a process of its own, since some end it.
func shrinkSim(h *simHistory, patience time.Duration) *simHistory {
	end := time.Now().Add(patience)
	dir, err := os.MkdirTemp("", "simulation")
	if err != nil {
		return nil
	}
	defer os.RemoveAll(dir)
	fails := func(h *simHistory, tries int) bool {
		file := filepath.Join(dir, "script")
		if os.WriteFile(file, []byte(h.String()), 0o600) != nil {
			return false
		}
		for range tries {
			cmd := exec.Command(os.Args[0], "-test.run=^TestSimulation$", "-test.timeout=30s", "-script="+file)
			if cmd.Run() != nil {
				return true
			}
		}
		return false
	}
	if !fails(h, 5) {
		return nil
	}
	for shorter := true; shorter && time.Now().Before(end); {
		shorter = false
		for _, try := range simShorter(h) {
			if time.Now().After(end) {
				break
			}
			if fails(try, 2) {
				h, shorter = try, true
				break
			}
		}
	}
	return h
}

// simShorter returns histories that are simpler than h, the much simpler ones first.
func simShorter(h *simHistory) (list []*simHistory) {
	add := func(change func(s *simHistory)) {
		s, err := parseSimHistory(h.String())
		if err != nil {
			return
		}
		if change(s); s.String() != h.String() {
			list = append(list, s)
		}
	}
	for n := len(h.Ops) / 2; n > 0; n /= 2 {
		for at := 0; at < len(h.Ops); at += n {
			add(func(s *simHistory) { s.Ops = slices.Delete(s.Ops, at, min(at+n, len(s.Ops))) })
		}
	}
	for i := range h.Faults {
		add(func(s *simHistory) { s.Faults = slices.Delete(s.Faults, i, i+1) })
	}
	for i := range h.Clients {
		if len(h.Clients) > 1 && !slices.ContainsFunc(h.Ops, func(o simOp) bool { return o.Client == i }) {
			add(func(s *simHistory) {
				s.Clients = slices.Delete(s.Clients, i, i+1)
				for j := range s.Ops {
					if s.Ops[j].Client > i {
						s.Ops[j].Client--
					}
				}
			})
		}
	}
	for i := range h.Ops {
		o := func(change func(o *simOp)) { add(func(s *simHistory) { change(&s.Ops[i]) }) }
		o(func(o *simOp) { o.Reads = nil })
		o(func(o *simOp) { o.Items = nil })
		o(func(o *simOp) { o.Args = 0 })
		o(func(o *simOp) { o.Results = 0 })
		o(func(o *simOp) { o.Work = 0 })
		o(func(o *simOp) { o.Cancel = 0 })
		o(func(o *simOp) {
			o.Alloc, o.Inline, o.Nested, o.NoResend, o.Idempotent = false, false, false, false, false
		})
	}
	return list
}

// ---- many histories

// simulateMany runs histories in several processes and prints how far they are.
func simulateMany(t *testing.T, first uint64, n int) {
	var mu sync.Mutex
	next, last := first, first+uint64(n)
	total := simResult{Struck: make(map[string]int)}
	histories, wrong := 0, 0
	start := time.Now()
	said := start
	var failed []uint64
	take := func() (from uint64, k int) {
		mu.Lock()
		defer mu.Unlock()
		from = next
		k = int(min(simLot, last-next))
		next += uint64(k)
		return from, k
	}
	note := func(seed uint64, res simResult) {
		mu.Lock()
		defer mu.Unlock()
		histories++
		total.add(res)
		if len(res.Wrong) > 0 {
			wrong++
			failed = append(failed, seed)
			fmt.Printf("seed %d: %s\n", seed, res.Wrong[0])
		}
		if time.Since(said) > 10*time.Second {
			said = time.Now()
			fmt.Printf("%d of %d histories, %d calls, wrong: %d (%v)\n", histories, n, total.Calls, wrong, time.Since(start).Round(time.Second))
		}
	}
	var g sync.WaitGroup
	for range *simWorkers {
		g.Go(func() {
			for {
				from, k := take()
				for k > 0 { // a process that breaks down is followed by one for the rest
					done := simRunLot(from, k, note)
					from, k = from+uint64(done), k-done
				}
				if from >= last {
					return
				}
			}
		})
	}
	g.Wait()
	fmt.Printf("histories: %d, seeds %d to %d, in %v\n", histories, first, last-1, time.Since(start).Round(time.Second))
	fmt.Printf("calls: %d, never executed: %d, sent again: %d\n", total.Calls, total.Unmade, total.Resent)
	fmt.Printf("cuts: %d\n", total.Cuts)
	sum := 0
	for _, k := range slices.Sorted(maps.Keys(total.Struck)) {
		fmt.Printf("  %-28s %d\n", k, total.Struck[k])
		sum += total.Struck[k]
	}
	fmt.Printf("faults: %d\n", sum)
	fmt.Printf("wrong: %d\n", wrong)
	for _, seed := range failed[:min(len(failed), 3)] {
		simReport(t, seed, nil)
	}
	if wrong > 0 {
		t.Errorf("%d of %d histories are wrong: %v", wrong, histories, failed)
	}
}

// add adds the outcome of histories.
func (r *simResult) add(o simResult) {
	r.Calls += o.Calls
	r.Unmade += o.Unmade
	r.Resent += o.Resent
	r.Cuts += o.Cuts
	for k, n := range o.Struck {
		r.Struck[k] += n
	}
}

// simRunLot runs k histories in a process of their own, and returns how many it has run.
func simRunLot(from uint64, k int, note func(uint64, simResult)) (done int) {
	cmd := exec.Command(os.Args[0], "-test.run=^TestSimulation$", "-test.timeout=0", "-worker",
		"-first="+strconv.FormatUint(from, 10), "-seeds="+strconv.Itoa(k))
	out, err := cmd.StdoutPipe()
	if err == nil {
		cmd.Stderr = cmd.Stdout
		err = cmd.Start()
	}
	if err != nil {
		note(from, simResult{Wrong: []string{err.Error()}})
		return k
	}
	// A history that takes no time at all and does not end is ended.
	hung := time.AfterFunc(time.Minute, func() { _ = cmd.Process.Kill() })
	var rest []string
	begun := false
	sc := bufio.NewScanner(out)
	sc.Buffer(nil, 1<<24)
	for sc.Scan() {
		line := sc.Text()
		if strings.HasPrefix(line, "begins ") {
			begun, rest = true, nil
			hung.Reset(time.Minute)
			continue
		}
		if text, ok := strings.CutPrefix(line, "result "); ok {
			var res simResult
			if err := json.Unmarshal([]byte(text), &res); err != nil {
				res.Wrong = []string{err.Error()}
			}
			note(from+uint64(done), res)
			done, begun = done+1, false
			continue
		}
		if line != "" && len(rest) < 60 {
			rest = append(rest, line)
		}
	}
	err = cmd.Wait()
	hung.Stop()
	if done < k && (err != nil || begun) {
		note(from+uint64(done), simResult{Wrong: []string{fmt.Sprintf("the process ends: %v\n%s", err, strings.Join(rest, "\n"))}})
		done++
	}
	return done
}
