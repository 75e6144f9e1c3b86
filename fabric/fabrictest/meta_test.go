package fabrictest

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// spoiled lists, for each defect of the model, the checks that must detect it.
func spoiled() []struct {
	defect defect
	checks []string
	racy   bool // the defect is a data race, which the race detector would report by itself
} {
	return []struct {
		defect defect
		checks []string
		racy   bool
	}{
		// Setup
		{"cuts private data", []string{"Setup/PrivateDataTooLong"}, false},
		{"rejects without a word", []string{"Setup/Reject"}, false},
		{"forgets early receives", []string{"Setup/ReceivesPostedBefore"}, false},
		{"read limits of its own", []string{"Setup/ReadLimitsAgree"}, false},
		{"deaf connect", []string{"Setup/ConnectCanceled"}, false},
		{"deaf accept", []string{"Setup/AcceptCanceled"}, false},
		{"deaf listener", []string{"Setup/ListenerClose"}, false},
		{"listener takes its connections along", []string{"Setup/ConnsOutliveListener"}, false},
		{"answers without a word", []string{"Setup/PrivateData"}, false},
		{"offers what is resolved", []string{"Setup/ResolveOffersNothing"}, false},
		{"promises any depth", []string{"Setup/TooDeepQueue"}, false},
		{"connects to nobody", []string{"Setup/NobodyListens"}, false},
		{"one request at a time", []string{"Setup/StalledPeer"}, false},
		{"mixes up requests", []string{"Setup/ManyAtOnce"}, false},
		{"closes nothing", []string{"Setup/ProviderClose"}, false},
		{"opens after its end", []string{"Setup/ProviderClose"}, false},
		{"provider takes its connections along", []string{"Setup/ProviderClose"}, false},
		{"forgets requests", []string{"Setup/ListenerCloseDropsRequests"}, false},
		{"lets connect wait", []string{"Setup/ConnectClosed"}, false},
		// Message
		{"gathers one piece", []string{"Message/Gather", "Memory/WriteGather", "Memory/ReadScatter"}, false},
		{"gathers more than it says", []string{"Message/TooManySGEs"}, false},
		{"short of breath", []string{"Message/OneMegabyte"}, false},
		{"drops empty messages", []string{"Message/Empty"}, false},
		{"drops what nobody receives", []string{"Message/NoReceivePosted"}, false},
		{"keeps the list", []string{"Message/RequestIsTheCallersAgain"}, true},
		{"boasts of local DMA", []string{"Message/LocalDMA"}, false},
		{"last receive first", []string{"Message/OrderAndLength", "Message/ManySizes"}, false},
		{"cuts messages", []string{"Message/LongerThanReceive"}, false},
		{"swallows completions", []string{"Message/CompletionsInOrder", "Message/ManySizes", "End/CloseUnderLoad"}, false},
		{"doubles completions", []string{"Message/CompletionsInOrder", "Message/ManySizes", "End/CloseUnderLoad"}, false},
		{"last completion first", []string{"Message/CompletionsInOrder", "Memory/ManyReads"}, false},
		{"signals all", []string{"Message/Unsignaled"}, false},
		{"forgets what is deferred", []string{"Message/Deferred"}, false},
		{"frees with completions", []string{"Message/QuietQueueFull"}, false},
		{"takes half a list", []string{"Message/SendQueueFull", "Message/ReceiveQueueFull"}, false},
		{"bottomless", []string{"Message/SendQueueFull"}, false},
		{"trusts local keys", []string{"Message/WrongLocalKey", "Message/ReceiveWithWrongKey", "Fence/RegionCloseStopsReceive"}, false},
		{"survives errors", []string{"Message/WrongLocalKey", "Memory/UnknownHandle"}, false},
		// Memory
		{"refuses nothing", []string{"Memory/WriteOfNothing"}, false},
		{"reads from the beginning", []string{"Memory/Read"}, false},
		{"sends overtake writes", []string{"Memory/WriteThenSend"}, true},
		{"reads when it likes", []string{"Memory/Fence", "Fence/RegionCloseStopsOwnRead"}, true},
		{"tells of reads", []string{"Memory/ReadSilentAtSource"}, false},
		{"names local regions", []string{"Memory/Segment"}, false},
		{"copies foreign memory", []string{"Memory/Foreign"}, false},
		{"shows foreign memory", []string{"Memory/Foreign"}, false},
		{"ignores rights", []string{"Memory/WriteWithoutRight", "Memory/ReadWithoutRight", "Memory/LocalRegionIsPrivate", "Window/WithoutRight"}, false},
		{"adds up bounds", []string{"Memory/WriteOutOfBounds", "Memory/ReadOutOfBounds", "Window/OutOfBounds"}, false},
		{"narrow offsets", []string{"Memory/WriteOutOfBounds", "Memory/ReadOutOfBounds", "Window/OutOfBounds"}, false},
		{"one table for all", []string{"Memory/HandleOfAnotherConn", "Window/HandleOfAnotherConn", "Window/SendInvOfAnotherConn"}, false},
		{"closed regions live on", []string{"Memory/HandleAfterClose"}, false},
		{"closed regions live on", []string{"Fence/RegionCloseStopsWrites", "Fence/RegionCloseStopsReads", "Fence/RegionCloseStopsReceive"}, true},
		// Window
		{"binds late", []string{"Window/BindInFrontOfSend"}, false},
		{"one window at a time", []string{"Window/ManyWindows"}, false},
		{"finds nothing to invalidate", []string{"Window/LocalInvOfNothing"}, false},
		{"keeps the key", []string{"Window/RebindChangesKey", "Window/StaleKey"}, false},
		{"local invalidation does nothing", []string{"Window/AfterLocalInv", "Window/LocalInvInFrontOfSend"}, false},
		{"local invalidation does nothing", []string{"Fence/LocalInvStopsWrites", "Fence/LocalInvStopsReads"}, true},
		{"closed windows live on", []string{"Window/AfterClose"}, false},
		{"closed windows live on", []string{"Fence/WindowCloseStopsWrites", "Fence/WindowCloseStopsReads"}, true},
		{"silent invalidation", []string{"Window/SendInv"}, false},
		{"invalidates anything", []string{"Window/SendInvOfNothing", "Window/SendInvOfAnotherConn"}, false},
		{"binds over", []string{"Window/PrepareWhileBound", "Window/BindUnprepared"}, false},
		{"binds what it is given", []string{"Window/BindWhatIsNotOurs"}, false},
		{"windows open their region", []string{"Window/OutOfBounds"}, false},
		{"boasts of its queue", []string{"Message/SendQueueFull"}, false},
		{"modest about windows", []string{"Window/BindUseInvalidate", "Fence/LocalInvStopsWrites"}, false},
		// Progress
		{"post waits", []string{"Progress/PostDoesNotWait", "Progress/WritesBothWaysOneGoroutine",
			"Progress/ReadsBothWaysOneGoroutine", "Progress/SendsBothWaysOneGoroutine"}, false},
		{"poll waits", []string{"Progress/PollDoesNotWait"}, false},
		{"forgets what does not fit", []string{"Progress/PollTakesWhatFits"}, false},
		{"deaf to messages", []string{"Progress/WaitForMessage"}, false},
		{"waits for news", []string{"Progress/WaitWhileThereIsSomething"}, false},
		{"forgets wakes", []string{"Progress/WakeBeforeWait", "Progress/WakeDuringWait", "Progress/WaitContext"}, false},
		{"never stops waking", []string{"Progress/WakeWakesOnce"}, false},
		// End
		{"deaf wait", []string{"End/CloseUnblocksWait", "Progress/WaitSeesEnd"}, false},
		{"flushes nothing", []string{"End/CloseAtPeerFlushes", "End/Disconnect", "End/CloseUnderLoad"}, false},
		{"flushes what is signaled", []string{"End/FailureFlushesTheRest"}, false},
		{"ends early", []string{"End/CloseAtPeerFlushes", "End/Disconnect", "Progress/WaitSeesEnd"}, false},
		{"ends without a type", []string{"End/AfterClose", "End/AfterPeersEnd", "End/CloseAtPeerFlushes"}, false},
		{"rude", []string{"End/Disconnect", "End/DisconnectByServer", "End/DisconnectAtBothEnds"}, false},
		{"leaves before its messages", []string{"End/DisconnectDeliversAll", "End/MessagesBeforeEnd"}, false},
		{"contagious", []string{"End/OthersGoOn", "Memory/UnknownHandle", "Message/WrongLocalKey"}, false},
		{"closes once", []string{"End/CloseAtOnce", "End/AfterClose"}, false},
		{"closed connections live on", []string{"Fence/ConnCloseStopsWrites", "Fence/ConnCloseStopsReads", "Fence/ConnCloseStopsReceives"}, true},
		{"waits for ever to part", []string{"End/DisconnectGivesUp"}, false},
		{"leaks regions", []string{"Memory/Segment", "End/CloseBeforeConnect"}, false},
		{"leaks connections", []string{"Setup/Addresses"}, false},
		// Cost
		{"allocates", []string{"Cost/SendAllocatesNothing", "Cost/WriteAllocatesNothing", "Cost/ReadAllocatesNothing", "Cost/WindowAllocatesNothing", "Cost/WaitAllocatesNothing"}, true},
	}
}

// Each rule is broken once, and its check detects it.
func TestSuiteCanFail(t *testing.T) {
	type trial struct {
		name string
		run  func() *recorder
		r    *recorder
	}
	var together, alone []*trial
	for _, c := range spoiled() {
		for _, name := range c.checks {
			if c.racy && raceEnabled {
				continue // a data race of its own, or a check that is skipped with the race detector
			}
			x := &trial{name: string(c.defect) + "/" + name, run: func() *recorder {
				cfg := newModel(c.defect).config()
				cfg.Timeout = 300 * time.Millisecond
				cfg.Bulk = 4 << 20
				return rehearse(t, cfg.withDefaults(), find(t, name))
			}}
			if strings.HasPrefix(name, "Cost/") { // which counts what everybody allocates
				alone = append(alone, x)
			} else {
				together = append(together, x)
			}
		}
	}
	// Most of them wait for a timeout, so they run in parallel.
	var wg sync.WaitGroup
	turns := make(chan struct{}, 8)
	for _, x := range together {
		wg.Go(func() {
			turns <- struct{}{}
			x.r = x.run()
			<-turns
		})
	}
	wg.Wait()
	for _, x := range alone {
		x.r = x.run()
	}
	for _, x := range slices.Concat(together, alone) {
		t.Run(x.name, func(t *testing.T) {
			if !x.r.Failed() {
				t.Errorf("a provider that breaks the rule passes; skipped: %v; it said: %s", x.r.Skipped(), x.r.text())
			}
			t.Logf("noticed by: %s", x.r.text())
		})
	}
}

// Without a defect the model passes, otherwise the meta test would prove nothing.
func TestRehearsal(t *testing.T) {
	for _, name := range []string{"Message/CompletionsInOrder", "Memory/WriteOutOfBounds", "Fence/RegionCloseStopsWrites", "End/CloseUnderLoad"} {
		if r := rehearse(t, newModel("").config().withDefaults(), find(t, name)); r.failed || r.skipped {
			t.Errorf("%s: failed %v, skipped %v: %s", name, r.failed, r.skipped, r.log)
		}
	}
}

// The suite passes with all Limits and with missing capabilities.
func TestModelManners(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*model)
	}{
		{"as with verbs", func(m *model) {
			m.limits = Limits{Shortage: ShortageWaits, PaddedPrivateData: true, CoarseStatus: true}
			m.noDMA, m.noInv = true, true
		}},
		{"as with iWARP", func(m *model) {
			m.limits = Limits{LocalCompletion: true, ClientFirst: true}
			m.scatter = 1
		}},
		{"as with siw", func(m *model) {
			m.limits = Limits{LocalCompletion: true, CoarseStatus: true}
			m.noDMA, m.noWindows, m.scatter, m.coyFlush = true, true, 1, true
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := newModel("")
			c.change(m)
			cfg := m.config()
			cfg.Bulk = 8 << 20
			Run(t, cfg)
		})
	}
}

// A skipped check has a reason, and with Complete it fails.
func TestLack(t *testing.T) {
	m := newModel("")
	m.noWindows = true
	cfg := m.config().withDefaults()
	r := rehearse(t, cfg, find(t, "Window/SendInv"))
	if !r.Skipped() || r.Failed() || !strings.Contains(r.text(), "the provider has no memory windows: model: no memory windows") {
		t.Errorf("without windows: skipped %v, failed %v: %s", r.Skipped(), r.Failed(), r.text())
	}
	cfg.Complete = true
	if r := rehearse(t, cfg, find(t, "Window/SendInv")); r.Skipped() || !r.Failed() {
		t.Errorf("without windows in a complete provider: skipped %v, failed %v: %s", r.Skipped(), r.Failed(), r.text())
	}
}

// find returns a check by its name in Run.
func find(t *testing.T, name string) check {
	t.Helper()
	for _, g := range suite() {
		for _, c := range g.checks {
			if g.name+"/"+c.name == name {
				return c
			}
		}
	}
	t.Fatalf("no check %s", name)
	return check{}
}

// A recorder is a testing.TB that records failures.
type recorder struct {
	testing.TB
	mu       sync.Mutex
	failed   bool
	skipped  bool
	log      []string
	cleanups []func()
}

// rehearse runs a check and returns its outcome.
func rehearse(t *testing.T, cfg Config, c check) *recorder {
	r := &recorder{TB: t}
	r.do(func() { runCheck(r, cfg, c) })
	for {
		r.mu.Lock()
		n := len(r.cleanups)
		if n == 0 {
			r.mu.Unlock()
			return r
		}
		f := r.cleanups[n-1]
		r.cleanups = r.cleanups[:n-1]
		r.mu.Unlock()
		r.do(f)
	}
}

// do runs f, which may call FailNow, on a new goroutine.
func (r *recorder) do(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	<-done
}

func (r *recorder) note(failed bool, s string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failed = r.failed || failed
	r.log = append(r.log, s)
}

func (r *recorder) Helper()                   {}
func (r *recorder) Log(a ...any)              { r.note(false, fmt.Sprintln(a...)) }
func (r *recorder) Logf(f string, a ...any)   { r.note(false, fmt.Sprintf(f, a...)) }
func (r *recorder) Error(a ...any)            { r.note(true, fmt.Sprintln(a...)) }
func (r *recorder) Errorf(f string, a ...any) { r.note(true, fmt.Sprintf(f, a...)) }
func (r *recorder) Fail()                     { r.note(true, "failed") }
func (r *recorder) FailNow()                  { r.Fail(); runtime.Goexit() }
func (r *recorder) Fatal(a ...any)            { r.Error(a...); runtime.Goexit() }
func (r *recorder) Fatalf(f string, a ...any) { r.Errorf(f, a...); runtime.Goexit() }
func (r *recorder) Skip(a ...any)             { r.Log(a...); r.SkipNow() }
func (r *recorder) Skipf(f string, a ...any)  { r.Logf(f, a...); r.SkipNow() }

func (r *recorder) SkipNow() {
	r.mu.Lock()
	r.skipped = true
	r.mu.Unlock()
	runtime.Goexit()
}

func (r *recorder) text() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.TrimSpace(strings.Join(r.log, "\n"))
}

func (r *recorder) Failed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.failed
}

func (r *recorder) Skipped() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.skipped
}

func (r *recorder) Cleanup(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cleanups = append(r.cleanups, f)
}

// Every check fails for some defect, or is listed here with a reason.
func TestEveryCheckCanFail(t *testing.T) {
	excused := map[string]string{
		"Setup/AnswerCanceled":       "allows both ways of answering",
		"Message/PostersAtOnce":      "looks for races, which a model with one lock cannot have",
		"Progress/WritesBothWays":    "looks for a lock-up of both drivers, which a model with one lock cannot have",
		"Progress/ReadsBothWays":     "looks for a lock-up of both drivers, which a model with one lock cannot have",
		"Progress/BurstsBothWays":    "looks for a lock-up of both drivers, which a model with one lock cannot have",
		"Progress/WaitForCompletion": "has nothing to wait for where requests are carried out by Post",
	}
	shown := map[string]bool{}
	for _, c := range spoiled() {
		for _, name := range c.checks {
			shown[name] = true
			find(t, name)
		}
	}
	for _, g := range suite() {
		for _, c := range g.checks {
			name := g.name + "/" + c.name
			if _, ok := excused[name]; ok == shown[name] {
				t.Errorf("%s: shown to fail: %v; excused: %v", name, shown[name], ok)
			}
		}
	}
}
