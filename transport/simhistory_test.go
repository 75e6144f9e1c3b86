package transport_test

import (
	"bufio"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/internal/testing/simfabric"
)

// A simHistory is everything that is decided about a simulated history: the properties of the two
// ends and the adapters, the calls and their times, and the faults. The delays follow from the seed.
// It has a text form, one thing to a line, which a failing seed is printed in when it has been
// shrunk, and which testdata/simulation keeps.
type simHistory struct {
	Setup   simSetup
	Server  simEnd
	Clients []simEnd
	Ops     []simOp
	Faults  []simFault
}

// A simSetup is common to all.
type simSetup struct {
	Seed       uint64 // of the delays
	Net        string // fast, mixed, slow, even
	NoWindows  bool
	NoInv      bool
	NoDMA      bool
	Weak       bool
	LocalDone  bool
	SGE        int
	CacheSmall bool // the reply cache holds next to nothing
	TCP        bool // no RDMA
	Wrap       bool // xids begin just below their wrap
	Ask        bool // the Observers call Conn.Info, Stats and RemoteAddr
	Closers    bool // two goroutines close what is closed
}

// A simEnd is the configuration of one end.
type simEnd struct {
	Send, Recv  int
	Credits     int
	Backward    int
	Memory      int
	Segment     int
	Version     int
	Full        bool // AllChunks
	NoPriv      bool
	NoInv       bool
	Callbacks   bool
	NoReconnect bool
	KeepAlive   time.Duration
	Idle        time.Duration
	Register    bool // the client's items lie in a Memory
	Bounce      int  // BounceMax
}

// A simOp is an action of one of the two ends.
type simOp struct {
	Do     string // call, back, operate, restart, stop, close, shutdown, memory
	ID     int
	At     time.Duration
	Client int

	// Of calls.
	Args       int
	Reads      []int
	Results    int
	Items      []int
	Work       time.Duration
	Timeout    time.Duration
	Cancel     time.Duration // 0: never
	Idempotent bool
	Inline     bool
	Alloc      bool
	Fail       bool
	How        string // of Fail: "" by Response.Fail, panic, goexit
	NoResend   bool
	Nested     bool // the handler calls back before it answers
	Piped      bool // made in a Pipeline, beside another call

	Down time.Duration // restart: until the next server comes
}

// A simFault is something that goes wrong.
type simFault struct {
	At   string // name of a simfabric.Kind
	Op   string // of Start, Arrive: what kind of request; "": any
	Side string // client, server; "": either
	N    int    // at the N-th such event
	Do   string // fail, cut, cutafter, hold
	For  time.Duration
}

const simMaxMessage = 128 << 10

// pick returns one of the values.
func pick[T any](r *rand.Rand, of ...T) T { return of[r.IntN(len(of))] }

// chance is true in so many of a hundred cases.
func chance(r *rand.Rand, percent int) bool { return r.IntN(100) < percent }

// upTo draws a duration, as likely short as long.
func upTo(r *rand.Rand, low, high time.Duration) time.Duration {
	f := r.Float64()
	d := float64(low)
	for range 30 {
		if d >= float64(high) {
			break
		}
		d *= 1 + f
	}
	return low + time.Duration(r.Float64()*(min(d, float64(high))-float64(low)))
}

// simSize draws the length of something, most often short.
func simSize(r *rand.Rand, most int) int {
	n := pick(r, 0, 1, 2, 3, 4, 100, 700, 1000, 2000, 4000, 5000, 9000, 20000, 33000)
	n += r.IntN(64)
	return min(n, most)
}

// newSimHistory makes the history of a seed.
func newSimHistory(seed uint64) *simHistory {
	r := rand.New(rand.NewPCG(seed, 0x5eed))
	h := &simHistory{}
	h.Setup = simSetup{
		Seed: seed, Net: pick(r, "fast", "fast", "mixed", "mixed", "slow", "even"),
		NoWindows: chance(r, 35), NoDMA: chance(r, 50), Weak: chance(r, 8), LocalDone: chance(r, 50),
		SGE: pick(r, 1, 2, 4, 16), CacheSmall: chance(r, 5),
	}
	h.Setup.NoInv = h.Setup.NoWindows || chance(r, 25)
	full := chance(r, 50)
	version := pick(r, 0, 0, 1, 2)
	end := func() simEnd {
		return simEnd{
			Send: pick(r, 1024, 4096, 4096, 8192), Recv: pick(r, 1024, 4096, 4096, 8192),
			Credits: pick(r, 1, 2, 3, 4, 8, 16, 32), Backward: pick(r, 1, 2, 4),
			Segment: pick(r, 0, 0, 0, 4096, 8192), Full: full,
			NoPriv: chance(r, 10), NoInv: chance(r, 10),
		}
	}
	h.Server = end()
	h.Server.Version = version
	h.Server.Memory = pick(r, simMaxMessage, simMaxMessage, 2*simMaxMessage, 0)
	for range pick(r, 1, 1, 1, 2, 3) {
		c := end()
		c.NoReconnect = chance(r, 12)
		if c.Version = pick(r, 0, 1, 2); version != 0 && c.Version != version {
			c.Version = 0
		}
		if c.NoReconnect && version == 2 {
			c.Version = 2 // with VersionAuto it may have settled for version 1, for good
		}
		c.Callbacks = chance(r, 40)
		c.Register = chance(r, 20)
		if chance(r, 15) {
			c.KeepAlive = upTo(r, 20*time.Millisecond, 5*time.Second)
		}
		if chance(r, 10) && !c.Callbacks {
			c.Idle = upTo(r, 5*time.Millisecond, 2*time.Second)
		}
		h.Clients = append(h.Clients, c)
	}
	bounce := rand.New(rand.NewPCG(seed, 0xb0b))
	h.Server.Bounce = pick(bounce, -1, 0, 0, 4096)
	for i := range h.Clients {
		h.Clients[i].Bounce = pick(bounce, -1, 0, 0, 4096)
	}
	more := rand.New(rand.NewPCG(seed, 0xadd)) // r is left alone: seeds stay what they are
	h.Setup.TCP, h.Setup.Wrap, h.Setup.Ask, h.Setup.Closers = chance(more, 30), chance(more, 50), chance(more, 50), chance(more, 50)
	span := upTo(r, 50*time.Microsecond, 300*time.Millisecond)
	at := func() time.Duration { return time.Duration(r.Int64N(int64(span))) }
	calls := 1 + r.IntN(24)
	back := 35 // of a hundred calls
	if chance(r, 5) {
		h.Clients[0].Callbacks = true
		calls, back = 50, 95
	}
	id := 0
	for range calls {
		id++
		c := r.IntN(len(h.Clients))
		h.Ops = append(h.Ops, h.newCall(r, id, c, back, at()))
	}
	if chance(r, 25) {
		for range 1 + r.IntN(2) {
			id++
			h.Ops = append(h.Ops, simOp{Do: pick(r, "restart", "restart", "stop"), ID: id, At: at(), Down: upTo(r, 10*time.Microsecond, 500*time.Millisecond)})
		}
	}
	for chance(r, 15) {
		id++
		h.Ops = append(h.Ops, simOp{Do: "operate", ID: id, At: at(), Client: r.IntN(len(h.Clients)), Args: simSize(r, 300), Timeout: upTo(r, 10*time.Microsecond, 20*time.Second)})
	}
	if chance(r, 10) {
		id++
		h.Ops = append(h.Ops, simOp{Do: pick(r, "close", "shutdown"), ID: id, At: at(), Client: r.IntN(len(h.Clients))})
	}
	if chance(r, 20) {
		id++
		h.Ops = append(h.Ops, simOp{Do: "memory", ID: id, At: at(), Client: r.IntN(len(h.Clients))})
	}
	for i := range h.Ops {
		if o := &h.Ops[i]; (o.Do == "call" || o.Do == "back") && (o.Fail || chance(more, 4)) {
			o.Fail, o.How = true, pick(more, "", "panic", "goexit", "goexit")
			if o.Do == "back" && o.Inline && o.How == "goexit" {
				o.How = "panic" // it may be on a caller's goroutine, which would be gone
			}
		}
	}
	if chance(r, 75) {
		for range 1 + r.IntN(5) {
			h.Faults = append(h.Faults, newSimFault(r))
		}
	}
	return h
}

func (h *simHistory) newCall(r *rand.Rand, id, client, back int, at time.Duration) simOp {
	o := simOp{Do: "call", ID: id, Client: client, At: at, Timeout: 20 * time.Second}
	if h.Clients[client].Callbacks && chance(r, back) {
		o.Do = "back"
	}
	chunks := o.Do == "call" || h.Server.Full
	most := 300
	if chunks {
		most = 33000
	}
	o.Args = simSize(r, most)
	o.Results = simSize(r, most)
	if chunks {
		for range pick(r, 0, 0, 1, 1, 2, 3) {
			o.Reads = append(o.Reads, simSize(r, 33000))
		}
		for range pick(r, 0, 0, 1, 1, 2, 3) {
			o.Items = append(o.Items, 1+simSize(r, 33000))
		}
	}
	sum := func(n int, l []int) int {
		for _, v := range l {
			n += v
		}
		return n
	}
	// Both messages have to fit.
	for sum(o.Args, o.Reads) > 110_000 {
		o.Reads = o.Reads[1:]
	}
	for sum(o.Results, o.Items) > 110_000 {
		o.Items = o.Items[1:]
	}
	o.Inline = chance(r, 25)
	if !o.Inline && chance(r, 60) {
		o.Work = upTo(r, time.Microsecond, 50*time.Millisecond)
	}
	switch r.IntN(10) {
	case 0, 1:
		o.Timeout = upTo(r, time.Microsecond, 100*time.Millisecond)
	case 2:
		o.Cancel = upTo(r, time.Microsecond, 100*time.Millisecond)
	}
	o.Idempotent = chance(r, 30)
	o.Alloc = chance(r, 50)
	o.Fail = chance(r, 4)
	o.NoResend = chance(r, 15)
	o.Nested = o.Do == "call" && !o.Inline && h.Clients[client].Callbacks && chance(r, 20)
	o.Piped = (o.Args+o.Results+id)%3 == 0 // r is left alone: seeds stay what they are
	return o
}

var simOpcodes = map[fabric.Opcode]string{
	fabric.OpSend: "Send", fabric.OpSendInv: "SendInv", fabric.OpWrite: "Write", fabric.OpRead: "Read",
	fabric.OpBindMW: "BindMW", fabric.OpLocalInv: "LocalInv",
}

func newSimFault(r *rand.Rand) simFault {
	f := simFault{Side: pick(r, "client", "server", "")}
	f.N = 1 + r.IntN(1<<r.IntN(7))
	f.For = upTo(r, 10*time.Microsecond, 4*time.Second)
	switch r.IntN(10) {
	case 0, 1, 2: // the connection is lost
		f.At = pick(r, "Connect", "Take", "Accept", "RegMR", "AllocMW", "Post", "PostRecv", "Start", "Start", "Start",
			"Arrive", "Arrive", "Arrive", "Respond", "Complete", "Receive", "Receive", "Receive")
		f.Do = pick(r, "cut", "cutafter")
	case 3, 4: // memory
		f.At, f.Do = pick(r, "RegMR", "AllocMW"), "fail"
		f.N = 1 + r.IntN(1<<r.IntN(5))
	case 5: // full queues
		f.At, f.Do = pick(r, "Post", "Post", "Post", "PostRecv"), "fail"
	case 6: // requests that fail
		f.At, f.Op, f.Do = "Start", pick(r, "BindMW", "LocalInv", "Read", "Write", "Send"), "fail"
	case 7: // set-up
		f.At, f.Do = pick(r, "Resolve", "Connect"), "fail"
		f.N = 1 + r.IntN(4)
	default: // something takes long
		f.At = pick(r, "Connect", "Take", "Accept", "Start", "Arrive", "Arrive", "Arrive", "Respond", "Respond", "Complete", "Complete",
			"Receive", "Receive", "Receive", "Learn", "Learn")
		f.Do = "hold"
	}
	if f.Op == "" && (f.At == "Start" || f.At == "Arrive") && chance(r, 50) {
		f.Op = pick(r, "Send", "SendInv", "Write", "Read", "BindMW", "LocalInv")
	}
	return f
}

// ---- text

// String prints the history as a script.
func (h *simHistory) String() string {
	var b strings.Builder
	simLine(&b, "setup", &h.Setup)
	simLine(&b, "server", &h.Server)
	for i := range h.Clients {
		simLine(&b, "client", &h.Clients[i])
	}
	for i := range h.Ops {
		simLine(&b, "op", &h.Ops[i])
	}
	for i := range h.Faults {
		simLine(&b, "fault", &h.Faults[i])
	}
	return b.String()
}

// simLine prints what is not zero of the fields of v.
func simLine(b *strings.Builder, word string, v any) {
	b.WriteString(word)
	s := reflect.ValueOf(v).Elem()
	for i := range s.NumField() {
		if f := s.Field(i); !f.IsZero() {
			val := strings.ReplaceAll(strings.Trim(fmt.Sprint(f.Interface()), "[]"), " ", ",")
			fmt.Fprintf(b, " %s=%s", strings.ToLower(s.Type().Field(i).Name), val)
		}
	}
	b.WriteByte('\n')
}

// parseSimHistory reads a script. Empty lines, and what stands after a #, are for people.
func parseSimHistory(text string) (*simHistory, error) {
	h := &simHistory{}
	sc := bufio.NewScanner(strings.NewReader(text))
	for n := 1; sc.Scan(); n++ {
		line, _, _ := strings.Cut(sc.Text(), "#")
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		var v any
		switch words[0] {
		case "setup":
			v = &h.Setup
		case "server":
			v = &h.Server
		case "client":
			h.Clients = append(h.Clients, simEnd{})
			v = &h.Clients[len(h.Clients)-1]
		case "op":
			h.Ops = append(h.Ops, simOp{})
			v = &h.Ops[len(h.Ops)-1]
		case "fault":
			h.Faults = append(h.Faults, simFault{})
			v = &h.Faults[len(h.Faults)-1]
		default:
			return nil, fmt.Errorf("line %d: what is %q?", n, words[0])
		}
		if err := simParse(words[1:], v); err != nil {
			return nil, fmt.Errorf("line %d: %v", n, err)
		}
	}
	for i, f := range h.Faults {
		if _, ok := simfabric.KindOf(f.At); !ok {
			return nil, fmt.Errorf("fault %d: no event has the name %q", i+1, f.At)
		}
	}
	for i := range h.Ops {
		if h.Ops[i].Client >= len(h.Clients) {
			return nil, fmt.Errorf("operation %d is of a client that is not there", h.Ops[i].ID)
		}
	}
	return h, nil
}

func simParse(words []string, v any) error {
	s := reflect.ValueOf(v).Elem()
	for _, w := range words {
		name, val, _ := strings.Cut(w, "=")
		f := s.FieldByNameFunc(func(n string) bool { return strings.EqualFold(n, name) })
		if !f.IsValid() {
			return fmt.Errorf("no field has the name %q", name)
		}
		var err error
		switch p := f.Addr().Interface().(type) {
		case *string:
			*p = val
		case *bool:
			*p, err = strconv.ParseBool(val)
		case *int:
			*p, err = strconv.Atoi(val)
		case *uint64:
			*p, err = strconv.ParseUint(val, 10, 64)
		case *time.Duration:
			*p, err = time.ParseDuration(val)
		case *[]int:
			for part := range strings.SplitSeq(val, ",") {
				var n int
				if n, err = strconv.Atoi(part); err != nil {
					break
				}
				*p = append(*p, n)
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}
