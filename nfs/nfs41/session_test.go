package nfs41

import (
	"bytes"
	"context"
	"errors"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rpcrdma/rpcrdma/internal/testing/rdmatest"
	"github.com/rpcrdma/rpcrdma/internal/testing/testbed"
	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/transport"
)

// suite has the tests that run on each test bed, with both ends of this package.
var suite = []struct {
	name string
	run  func(*testing.T, *bed)
}{
	{"BothWays", testBothWays},
	{"Callbacks", testCallbacks},
	{"CallbackCompound", testCallbackCompound},
	{"Enabled", testEnabled},
	{"Version40", testVersion40},
	{"ReadyFirst", testReadyFirst},
	{"TwoConnections", testTwoConnections},
	{"Refused", testRefused},
	{"Reconnect", testReconnect},
	{"ReconnectUnderWay", testReconnectUnderWay},
	{"ReplyLost", testReplyLost},
	{"Forgotten", testForgotten},
	{"Restart", testRestart},
	{"Slots", testSlots},
	{"GivenUp", testGivenUp},
	{"Renew", testRenew},
	{"Ends", testEnds},
}

// runSuite runs the suite over both versions of RPC-over-RDMA.
func runSuite(t *testing.T, b *bed) {
	for _, b.version = range []transport.Version{transport.Version1, transport.Version2} {
		t.Run("version "+b.version.String(), func(t *testing.T) {
			for _, tt := range suite {
				t.Run(tt.name, func(t *testing.T) {
					b.Check(t)
					tt.run(t, b)
				})
			}
		})
	}
}

func TestIwarpSessions(t *testing.T) { runSuite(t, &bed{Bed: testbed.Iwarp()}) }

func TestRDMASessions(t *testing.T) {
	for _, kind := range rdmatest.Kinds() {
		t.Run(kind, func(t *testing.T) { runSuite(t, &bed{Bed: testbed.Device(t, kind)}) })
	}
}

// patient returns a context for operations that normally take no time.
func patient(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(bg, patience)
	t.Cleanup(cancel)
	return ctx
}

func wantFlags(t testing.TB, s *Session, want SeqFlags) {
	t.Helper()
	if flags, err := s.Sequence(patient(t)); err != nil || flags != want {
		t.Errorf("SEQUENCE: %v, %v, want %v", flags, err, want)
	}
}

// wantCallbacks makes calls to the client.
func wantCallbacks(t testing.TB, ss *ServerSession) {
	t.Helper()
	if err := ss.Null(patient(t)); err != nil {
		t.Errorf("CB_NULL: %v", err)
	}
	if err := ss.Callback(patient(t)); err != nil {
		t.Errorf("CB_SEQUENCE: %v", err)
	}
}

// lose closes the connection of the backchannel.
func (ss *ServerSession) lose() {
	ss.s.mu.Lock()
	cn := ss.conn
	ss.s.mu.Unlock()
	cn.Close()
}

func testBothWays(t *testing.T, b *bed) {
	w := start(t, b, nil)
	s := w.dial(t, nil)
	ss := w.next(t)
	info, err := s.Info(bg)
	if err != nil || info.Flags != SessionConnBackChan || info.ID != ss.ID() || info.Back.MaxRequests != 16 || info.Fore.MaxRequests != 16 {
		t.Errorf("%+v, %v", info, err)
	}
	if ss.CallbackProgram() != CallbackProgram || ss.Back() != info.Back {
		t.Errorf("%#x, %+v", ss.CallbackProgram(), ss.Back())
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 20 {
				wantFlags(t, s, 0)
			}
		})
		wg.Go(func() {
			for range 20 {
				wantCallbacks(t, ss)
			}
		})
	}
	wg.Wait()
	if st := s.CallbackStats(); st != (CallbackStats{Compounds: 160, Sequences: 160}) {
		t.Errorf("%+v", st)
	}
	if d, err := s.LeaseTime(bg); err != nil || d != 90*time.Second {
		t.Errorf("%v, %v", d, err)
	}
	if err := s.Destroy(patient(t)); err != nil {
		t.Error(err)
	}
	if n := len(w.srv.Sessions()); n != 0 {
		t.Errorf("%d sessions are left", n)
	}
	if err := ss.Null(bg); !errors.Is(err, ErrSessionEnded) || !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
	if err := ss.Callback(bg); !errors.Is(err, ErrSessionEnded) {
		t.Error(err)
	}
}

// testCallbacks: operations after CB_SEQUENCE are passed to the handler.
func testCallbacks(t *testing.T, b *bed) {
	w := start(t, b, nil)
	got := make(chan string, 1)
	w.dial(t, &Config{CallbackProgram: 0x20000001, Callback: func(ctx context.Context, op uint32, args Message) Status {
		switch a := args.(type) {
		case *CBRecallArgs:
			got <- CBOpName(op) + " " + a.Handle.String()
			return StatusBadHandle
		case *CBRecallAnyArgs:
			got <- CBOpName(op)
			return StatusOK
		}
		return StatusServerFault
	}})
	ss := w.next(t)
	if ss.CallbackProgram() != 0x20000001 {
		t.Errorf("%#x", ss.CallbackProgram())
	}
	ctx := patient(t)
	any := Operation{Op: OpCBRecallAny, Args: &CBRecallAnyArgs{Keep: 1, Mask: Bits(0)}}
	recall := Operation{Op: OpCBRecall, Args: &CBRecallArgs{StateID: tStateID, Handle: tHandle}}
	if err := ss.Callback(ctx, any); err != nil || <-got != "CB_RECALL_ANY" {
		t.Error(err)
	}
	if err := ss.Callback(ctx, recall); !hasStatus(err, StatusBadHandle) || <-got != "CB_RECALL aabbcc" {
		t.Error(err)
	}
	if err := ss.Callback(ctx, Operation{Op: 3}); !hasStatus(err, StatusNotSupp) {
		t.Errorf("CB_GETATTR: %v", err)
	}
	if err := ss.Callback(ctx, Operation{Op: 99}); !hasStatus(err, StatusOpIllegal) {
		t.Errorf("operation 99: %v", err)
	}
	if err := ss.Callback(ctx, slices.Repeat([]Operation{any}, 16)...); !hasStatus(err, StatusTooManyOps) {
		t.Errorf("17 operations: %v", err)
	}
	long := Operation{Op: OpCBRecall, Args: &rawArgs{make([]byte, 4096)}}
	var size *rpc.SizeError
	if err := ss.Callback(ctx, long); !errors.As(err, &size) {
		t.Errorf("4096 bytes: %v", err)
	}
	// Without a handler only CB_SEQUENCE is executed.
	s := w.dial(t, nil)
	ss = w.next(t)
	if err := ss.Callback(ctx, any); !hasStatus(err, StatusNotSupp) {
		t.Error(err)
	}
	if st := s.CallbackStats(); st.Sequences != 1 || st.Refused != 0 {
		t.Errorf("%+v", st)
	}
}

// rawArgs are encoded arguments.
type rawArgs struct{ b []byte }

func (a *rawArgs) Append(b []byte) []byte { return append(b, a.b...) }
func (a *rawArgs) Decode(d *xdr.Decoder)  { a.b = d.Rest() }

// testCallbackCompound: replies of a client to hostile calls.
func testCallbackCompound(t *testing.T, b *bed) {
	w := start(t, b, nil)
	var executed atomic.Int32
	s := w.dial(t, &Config{
		Back: ChannelAttrs{MaxRequest: 512, MaxResponseCached: 100, MaxOps: 4, MaxRequests: 2},
		Callback: func(context.Context, uint32, Message) Status {
			executed.Add(1)
			return StatusOK
		},
	})
	ss := w.next(t)
	ctx := patient(t)
	raw := func(args []byte) ([]byte, error) {
		call := rpc.Call{Prog: CallbackProgram, Vers: CallbackVersion, Proc: ProcCompound, Args: args}
		err := ss.channel.Call(ctx, &call)
		return bytes.Clone(call.Results), err
	}
	send := func(minor uint32, ops ...Operation) ([]byte, []Status) {
		t.Helper()
		head := cbCompoundArgs{Tag: []byte("tag"), Minor: minor, Count: uint32(len(ops))}
		results, err := raw(appendOps(head.Append(nil), ops))
		if err != nil {
			t.Fatal(err)
		}
		d := xdr.NewDecoder(results)
		var res compoundRes
		if res.Decode(&d); d.Err() != nil || string(res.Tag) != "tag" {
			t.Fatalf("%x", results)
		}
		if res.Count == 0 {
			return results, []Status{res.Status}
		}
		var status []Status
		for range res.Count {
			op, st := d.Uint32(), Status(d.Uint32())
			if status = append(status, st); op == OpCBSequence && st == StatusOK {
				new(cbSequenceRes).Decode(&d)
			}
		}
		if d.End() != nil || status[len(status)-1] != res.Status {
			t.Errorf("%x", results)
		}
		return results, status
	}
	seq := func(slot, sequence uint32, cache bool) Operation {
		return Operation{Op: OpCBSequence, Args: &cbSequenceArgs{sequenceArgs: sequenceArgs{Session: ss.ID(), Slot: slot, Sequence: sequence, CacheThis: cache}}}
	}
	any := Operation{Op: OpCBRecallAny, Args: &CBRecallAnyArgs{}}
	var last []byte
	for _, test := range []struct {
		what string
		want []Status
		ops  []Operation
		n    int32 // how often the handler has been called
		same bool  // the reply is that of the line above
	}{
		{"an unknown session", []Status{StatusBadSession}, []Operation{{Op: OpCBSequence, Args: &cbSequenceArgs{}}}, 0, false},
		{"slot 2 of 2", []Status{StatusBadSlot}, []Operation{seq(2, 1, false)}, 0, false},
		{"sequence id 2", []Status{StatusSeqMisordered}, []Operation{seq(0, 2, false)}, 0, false},
		{"the first, kept", ok(2), []Operation{seq(0, 1, true), any}, 1, false},
		{"the first again", ok(2), []Operation{seq(0, 1, true), any}, 1, true},
		{"another with its id", []Status{StatusSeqFalseRetry}, []Operation{seq(0, 1, true)}, 1, false},
		{"the next, not kept", ok(2), []Operation{seq(0, 2, false), any}, 2, false},
		{"the next again", []Status{StatusOK, StatusRetryUncachedRep}, []Operation{seq(0, 2, false), any}, 2, false},
		{"CB_SEQUENCE alone", ok(1), []Operation{seq(0, 3, false)}, 2, false},
		{"CB_SEQUENCE alone again", ok(1), []Operation{seq(0, 3, false)}, 2, true},
		{"more than can be kept", ok(4), []Operation{seq(0, 4, true), any, any, any}, 5, false},
		{"more than can be kept again", []Status{StatusOK, StatusRetryUncachedRep}, []Operation{seq(0, 4, true), any, any, any}, 5, false},
		{"5 operations", []Status{StatusTooManyOps}, []Operation{seq(1, 1, false), any, any, any, any}, 5, false},
		{"no CB_SEQUENCE", []Status{StatusOpNotInSession}, []Operation{any}, 5, false},
		{"two CB_SEQUENCEs", []Status{StatusOK, StatusSequencePos}, []Operation{seq(1, 1, false), seq(1, 2, false)}, 5, false},
		{"operation 99", []Status{StatusOK, StatusOpIllegal}, []Operation{seq(1, 2, false), {Op: 99}, any}, 5, false},
		{"operation 99 alone", []Status{StatusOpIllegal}, []Operation{{Op: 99}}, 5, false},
		{"CB_NOTIFY_LOCK", []Status{StatusOK, StatusNotSupp}, []Operation{seq(1, 3, false), {Op: 13}}, 5, false},
		{"arguments cut off", []Status{StatusOK, StatusBadXDR}, []Operation{seq(1, 4, false), {Op: OpCBRecall}}, 5, false},
		{"too long", []Status{StatusReqTooBig}, []Operation{seq(1, 5, false), {Op: OpCBRecall, Args: &rawArgs{make([]byte, 500)}}}, 5, false},
		{"the slot is as it was", ok(1), []Operation{seq(1, 5, false)}, 5, false},
	} {
		results, status := send(Minor, test.ops...)
		if !slices.Equal(status, test.want) {
			t.Errorf("%s: %v, want %v", test.what, status, test.want)
		}
		if n := executed.Load(); n != test.n {
			t.Errorf("%s: executed %d times, want %d", test.what, n, test.n)
		}
		if test.same && !bytes.Equal(results, last) {
			t.Errorf("%s: the reply is another:\n%x\n%x", test.what, results, last)
		}
		last = results
	}
	if _, status := send(0, seq(1, 6, false)); status[0] != StatusMinorVersMismatch {
		t.Errorf("minor version 0: %v", status)
	}
	results, err := raw((&cbCompoundArgs{Minor: Minor, Count: 1}).Append(nil))
	if want := testutil.Hex(t, "00002734 00000000 00000001 0000273c 00002734"); err != nil || !bytes.Equal(results, want) {
		t.Errorf("no operation: %x, %v", results, err)
	}
	for _, args := range [][]byte{nil, {0, 0, 0, 1}, new(cbCompoundArgs).Append(nil)[:12]} {
		var e *oncrpc.RPCError
		if _, err := raw(args); !errors.As(err, &e) || e.AcceptStat != oncrpc.GarbageArgs {
			t.Errorf("%x: %v", args, err)
		}
	}
	var e *oncrpc.RPCError
	if err := ss.channel.Call(ctx, &rpc.Call{Prog: CallbackProgram, Vers: CallbackVersion, Proc: 2}); !errors.As(err, &e) || e.AcceptStat != oncrpc.ProcUnavail {
		t.Error(err)
	}
	if st := s.CallbackStats(); st.Replays != 4 || st.Sequences != 9 {
		t.Errorf("%+v", st)
	}
	// Our requester was not involved: it finds that its sequence ids have been used.
	if err := ss.Callback(ctx); !hasStatus(err, StatusSeqMisordered, StatusSeqFalseRetry) {
		t.Errorf("%v", err)
	}
	wantFlags(t, s, SeqBackchannelFault)
}

// testEnabled: BIDI-3.2-1 a server calls only when CREATE_SESSION or BIND_CONN_TO_SESSION have
// announced that the client is ready, and only on that connection.
func testEnabled(t *testing.T, b *bed) {
	w := start(t, b, nil)
	s := w.dial(t, &Config{NoBackchannel: true})
	ss := w.next(t)
	if info, err := s.Info(bg); err != nil || info.Flags != 0 {
		t.Errorf("%+v, %v", info, err)
	}
	wantFlags(t, s, SeqCBPathDown|SeqCBPathDownSession)
	ctx, cancel := context.WithTimeout(bg, 50*time.Millisecond)
	defer cancel()
	var lost *rpc.LostError
	if err := ss.Null(ctx); !errors.As(err, &lost) || lost.Sent {
		t.Errorf("CB_NULL: %v", err)
	}
	// Another connection that serves callbacks.
	executed := make(chan uint32, 1)
	r := w.raw(t, &transport.ClientConfig{Callbacks: []rpc.Program{{
		Number: CallbackProgram, Low: 1, High: 1,
		Handler: rpc.HandlerFunc(func(_ context.Context, req *rpc.Request, res *rpc.Response) { executed <- req.Proc }),
	}}})
	bind := func(dir uint32, want Status) bindConnRes {
		t.Helper()
		var res bindConnRes
		r.want("BIND_CONN_TO_SESSION", []Status{want}, Operation{OpBindConnToSession, &bindConnArgs{Session: ss.ID(), Dir: dir}, &res})
		return res
	}
	bind(9, StatusInval)
	if res := bind(fromClientFore, StatusOK); res.Dir != fromServerFore {
		t.Errorf("%+v", res)
	}
	wantFlags(t, s, SeqCBPathDown|SeqCBPathDownSession)
	for _, test := range []struct{ ask, answer uint32 }{
		{fromClientBack, fromServerBack}, {fromClientForeOrBoth, fromServerBoth}, {fromClientBackOrBoth, fromServerBoth},
	} {
		if res := bind(test.ask, StatusOK); res.Dir != test.answer || res.Session != ss.ID() {
			t.Errorf("asked for %d: %+v", test.ask, res)
		}
		if err := ss.Null(patient(t)); err != nil {
			t.Errorf("CB_NULL: %v", err)
		}
	}
	wantFlags(t, s, 0)
	// Another session of the client has no backchannel.
	r.establish("another")
	var res sequenceRes
	r.want("SEQUENCE", ok(1), r.seq(&res))
	if res.Flags != SeqCBPathDown|SeqCBPathDownSession {
		t.Errorf("another client is told %v", res.Flags)
	}
	r.create(func(a *createSessionArgs) { a.Flags = SessionConnBackChan }, StatusOK)
	r.want("SEQUENCE", ok(1), r.seq(&res))
	if res.Flags != 0 {
		t.Errorf("with a backchannel: %v", res.Flags)
	}
	r.sequence++
	r.create(nil, StatusOK)
	r.want("SEQUENCE", ok(1), r.seq(&res))
	if res.Flags != SeqCBPathDownSession {
		t.Errorf("without, beside one with: %v", res.Flags)
	}
	// The connection ends, and with it the readiness.
	r.cl.Close()
	select {
	case <-ss.conn.Done():
	case <-time.After(patience):
		t.Fatal("the connection lives")
	}
	wantFlags(t, s, SeqCBPathDown|SeqCBPathDownSession)
}

// testVersion40: BIDI-3.1-1 version 4.0, with callbacks over a separate connection, never enables the
// backward direction.
func testVersion40(t *testing.T, b *bed) {
	w := start(t, b, nil)
	conns := make(chan rpc.Conn, 1)
	w.handle = func(ctx context.Context, req *rpc.Request, res *rpc.Response, next rpc.Handler) {
		next.ServeRPC(ctx, req, res)
		conns <- req.Conn()
	}
	r := w.raw(t, &transport.ClientConfig{Callbacks: []rpc.Program{{
		Number: CallbackProgram, Low: 1, High: 1,
		Handler: rpc.HandlerFunc(func(context.Context, *rpc.Request, *rpc.Response) {}),
	}}})
	const setClientID = 35
	if g := r.send(0, Operation{Op: setClientID}); g.status[0] != StatusMinorVersMismatch {
		t.Errorf("%v", g.status)
	}
	var notReady *rpc.NotReadyError
	if err := (<-conns).Null(bg, CallbackProgram, CallbackVersion); !errors.As(err, &notReady) {
		t.Error(err)
	}
}

// testReadyFirst: BIDI-6-3 the client executes callbacks before it has received the reply to
// CREATE_SESSION: program and receives are ready before it is sent.
func testReadyFirst(t *testing.T, b *bed) {
	w := start(t, b, nil)
	called := make(chan error, 1)
	sequenced := make(chan error, 1)
	w.handle = func(ctx context.Context, req *rpc.Request, res *rpc.Response, next rpc.Handler) {
		next.ServeRPC(ctx, req, res)
		if list := w.srv.Sessions(); len(list) == 1 && cap(called) > len(called) {
			// The reply has not been sent yet.
			called <- list[0].Null(ctx)
			list[0].used() // do not wait for it
			go func() { sequenced <- list[0].Callback(patient(t)) }()
		}
	}
	w.dial(t, nil)
	if err := <-called; err != nil {
		t.Errorf("CB_NULL before the reply: %v", err)
	}
	// CB_SEQUENCE needs the session's id, and waits for the reply that has it.
	if err := <-sequenced; err != nil {
		t.Errorf("CB_SEQUENCE before the reply: %v", err)
	}
}

// testTwoConnections: BIDI-3.2-2 separate connections for the calls of the client and of the
// server.
func testTwoConnections(t *testing.T, b *bed) {
	w := start(t, b, nil)
	s := w.dial(t, &Config{BackConn: true})
	ss := w.next(t)
	fore, back := s.Transport()
	if fore == back {
		t.Fatal("there is one connection")
	}
	wantFlags(t, s, 0)
	before := back.Stats()
	wantCallbacks(t, ss)
	for range 5 {
		wantFlags(t, s, 0)
	}
	// Forward calls used the one, backward calls the other.
	if after := back.Stats(); after.Calls != before.Calls+2 {
		t.Errorf("%d calls on the connection for the server's", after.Calls-before.Calls)
	}
	if ss.conn.RemoteAddr().String() != back.Info().LocalAddr.String() {
		t.Errorf("the server calls %v, not %v", ss.conn.RemoteAddr(), back.Info().LocalAddr)
	}
	if n := w.t.Stats().OpenConns; n != 2 {
		t.Errorf("%d connections", n)
	}
	ss.lose()
	wantCallbacks(t, ss)
	wantFlags(t, s, 0)
	if err := s.Destroy(patient(t)); err != nil {
		t.Error(err)
	}
}

// testRefused: a server without backchannels refuses them.
func testRefused(t *testing.T, b *bed) {
	w := start(t, b, &ServerConfig{NoBackchannel: true})
	s := w.dial(t, nil)
	if info, err := s.Info(bg); err != nil || info.Flags != 0 {
		t.Errorf("%+v, %v", info, err)
	}
	wantFlags(t, s, SeqCBPathDown|SeqCBPathDownSession)
	if err := s.Bind(patient(t)); !errors.Is(err, ErrNoBackchannel) {
		t.Error(err)
	}
	if _, err := Dial(patient(t), w.Provider, w.addr, &Config{BackConn: true}); !hasStatus(err, StatusInval) {
		t.Error(err)
	}
}

// testReconnect: BIDI-6-2 after a reconnect the server calls once the session has been
// bound to the new connection.
func testReconnect(t *testing.T, b *bed) {
	w := start(t, b, nil)
	arrived, proceed := make(chan rpc.Conn, 16), make(chan struct{})
	var binds atomic.Int32
	w.handle = func(ctx context.Context, req *rpc.Request, res *rpc.Response, next rpc.Handler) {
		if firstOf(req.Args) == OpBindConnToSession {
			arrived <- req.Conn()
			<-proceed
			binds.Add(1)
		}
		next.ServeRPC(ctx, req, res)
	}
	s := w.dial(t, nil)
	ss := w.next(t)
	wantCallbacks(t, ss)
	ss.lose()
	cn := <-arrived // the new connection
	var notReady *rpc.NotReadyError
	if err := cn.Null(patient(t), ss.CallbackProgram(), CallbackVersion); !errors.As(err, &notReady) {
		t.Errorf("CB_NULL on a connection that is not bound: %v", err)
	}
	null := make(chan error, 1)
	early := false
	go func() {
		err := ss.Null(patient(t))
		early = binds.Load() == 0
		null <- err
	}()
	close(proceed)
	if err := <-null; err != nil || early {
		t.Errorf("CB_NULL before the connection was bound: %v; %v", early, err)
	}
	wantFlags(t, s, 0)
	for range 3 {
		ss.lose()
		wantCallbacks(t, ss)
	}
	if got := w.srv.Sessions(); len(got) != 1 || got[0] != ss {
		t.Errorf("%v", got)
	}
}

// firstOf returns the first operation of a COMPOUND.
func firstOf(args []byte) uint32 {
	d := xdr.NewDecoder(args)
	new(compoundArgs).Decode(&d)
	return d.Uint32()
}

// testReconnectUnderWay: a callback that loses its connection during its execution is executed only
// once.
func testReconnectUnderWay(t *testing.T, b *bed) {
	w := start(t, b, nil)
	entered, leave := make(chan struct{}, 4), make(chan struct{})
	s := w.dial(t, &Config{Callback: func(context.Context, uint32, Message) Status {
		entered <- struct{}{}
		<-leave
		return StatusOK
	}})
	ss := w.next(t)
	done := make(chan error, 1)
	go func() { done <- ss.Callback(patient(t), Operation{Op: OpCBRecallAny, Args: &CBRecallAnyArgs{}}) }()
	<-entered
	ss.lose()
	wantFlags(t, s, s.waitUp(t))
	close(leave)
	if err := <-done; err != nil {
		t.Error(err)
	}
	if st := s.CallbackStats(); st.Sequences != 1 || st.Replays != 1 || len(entered) != 0 {
		t.Errorf("%+v", st)
	}
	wantCallbacks(t, ss)
}

// waitUp waits until the server has a connection for callbacks again.
func (s *Session) waitUp(t testing.TB) SeqFlags {
	t.Helper()
	for end := time.Now().Add(patience); ; {
		flags, err := s.Sequence(patient(t))
		if err != nil {
			t.Fatal(err)
		}
		if flags == 0 {
			return 0
		}
		if time.Now().After(end) {
			t.Fatalf("the server still says %v", flags)
		}
	}
}

// testReplyLost: a COMPOUND that loses its reply with the connection is executed only once.
func testReplyLost(t *testing.T, b *bed) {
	w := start(t, b, nil)
	var lose atomic.Bool
	w.handle = func(ctx context.Context, req *rpc.Request, res *rpc.Response, next rpc.Handler) {
		next.ServeRPC(ctx, req, res)
		if lose.CompareAndSwap(true, false) {
			req.Conn().Close()
		}
	}
	s := w.dial(t, nil)
	ss := w.next(t)
	// Read-only operations are executed again, with a new sequence id.
	lose.Store(true)
	if _, err := s.LeaseTime(patient(t)); err != nil {
		t.Error(err)
	}
	// RECLAIM_COMPLETE can be executed only once.
	w.srv.mu.Lock()
	ss.client.reclaimed = false
	w.srv.mu.Unlock()
	lose.Store(true)
	if err := s.Compound(patient(t), Operation{Op: OpReclaimComplete, Args: new(reclaimCompleteArgs)}); err != nil {
		t.Error(err)
	}
	// So can DESTROY_SESSION.
	lose.Store(true)
	if err := s.Destroy(patient(t)); err != nil {
		t.Error(err)
	}
}

// testForgotten: if the server has forgotten the client the session is replaced, and the new
// backchannel works.
func testForgotten(t *testing.T, b *bed) {
	w := start(t, b, nil)
	s := w.dial(t, nil)
	old := w.next(t)
	forget := func(ss *ServerSession) {
		w.srv.mu.Lock()
		w.srv.forget(ss.client)
		w.srv.mu.Unlock()
	}
	forget(old)
	wantFlags(t, s, 0)
	ss := w.next(t)
	wantCallbacks(t, ss)
	if err := old.Null(bg); !errors.Is(err, ErrSessionEnded) {
		t.Error(err)
	}
	// Operations that can be executed only once are not repeated in the new session.
	forget(ss)
	reclaim := Operation{Op: OpReclaimComplete, Args: new(reclaimCompleteArgs)}
	if err := s.Compound(patient(t), reclaim); !hasStatus(err, StatusBadSession) {
		t.Error(err)
	}
	ss = w.next(t)
	wantFlags(t, s, 0)
	// Only the session is lost.
	w.srv.mu.Lock()
	client := ss.client
	w.srv.drop(ss)
	w.srv.mu.Unlock()
	wantFlags(t, s, 0)
	if ss = w.next(t); ss.client != client {
		t.Error("the client has another id")
	}
	// The connection is lost, and the server has forgotten the client meanwhile.
	forget(ss)
	ss.s.mu.Lock()
	ss.conn = nil
	ss.s.mu.Unlock()
	w.closeConns(t, s)
	ss = w.next(t)
	wantCallbacks(t, ss)
	wantFlags(t, s, 0)
}

// closeConns closes the connections of a session without its knowledge.
func (w *world) closeConns(t testing.TB, s *Session) {
	t.Helper()
	var once sync.Once
	closed := make(chan struct{})
	w.handle = func(ctx context.Context, req *rpc.Request, res *rpc.Response, next rpc.Handler) {
		once.Do(func() {
			req.Conn().Close()
			close(closed)
		})
		next.ServeRPC(ctx, req, res)
	}
	if _, err := s.Sequence(patient(t)); err != nil {
		t.Error(err)
	}
	<-closed
}

// testRestart: the server is replaced by another one at its address.
func testRestart(t *testing.T, b *bed) {
	w := start(t, b, nil)
	s := w.dial(t, nil)
	wantCallbacks(t, w.next(t))
	before, err := s.Info(bg)
	if err != nil {
		t.Fatal(err)
	}
	w.t.Close()
	w.srv.Close()
	w.open(t, nil)
	w.serve(t, w.addr)
	// A client with a backchannel reconnects without a call.
	ss := w.next(t)
	wantCallbacks(t, ss)
	wantFlags(t, s, 0)
	if after, err := s.Info(bg); err != nil || after.ID == before.ID || after.ClientID == before.ClientID {
		t.Errorf("%+v, %v, before %+v", after, err, before)
	}
	s.Close() // before the server, or it would look for that again
}

// testSlots: the client's slots bound the callbacks in flight.
func testSlots(t *testing.T, b *bed) {
	w := start(t, b, nil)
	const slots = 3
	var running, most atomic.Int32
	full := make(chan struct{})
	var once sync.Once
	w.dial(t, &Config{Back: ChannelAttrs{MaxRequests: slots}, Callback: func(context.Context, uint32, Message) Status {
		n := running.Add(1)
		defer running.Add(-1)
		for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
		}
		if n == slots {
			once.Do(func() { close(full) })
		}
		<-full // all slots are in use once
		return StatusOK
	}})
	ss := w.next(t)
	wantCallbacks(t, ss) // a connection starts with one credit
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			if err := ss.Callback(patient(t), Operation{Op: OpCBRecallAny, Args: &CBRecallAnyArgs{}}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if n := most.Load(); n != slots {
		t.Errorf("%d in flight at most, there are %d slots", n, slots)
	}
	// A client with more slots than the server uses.
	w.dial(t, &Config{Back: ChannelAttrs{MaxRequests: 1000}})
	if ss := w.next(t); len(ss.calls.table.slots) != MaxBackwardSlots {
		t.Errorf("%d slots", len(ss.calls.table.slots))
	}
}

// testGivenUp: a slot remains usable after a canceled call, in both directions.
func testGivenUp(t *testing.T, b *bed) {
	w := start(t, b, nil)
	entered, leave := make(chan struct{}), make(chan struct{})
	s := w.dial(t, &Config{
		Back: ChannelAttrs{MaxRequests: 1}, Fore: ChannelAttrs{MaxRequests: 1},
		Callback: func(context.Context, uint32, Message) Status {
			entered <- struct{}{}
			<-leave
			return StatusOK
		},
	})
	ss := w.next(t)
	ctx, cancel := context.WithCancel(bg)
	done := make(chan error, 1)
	go func() { done <- ss.Callback(ctx, Operation{Op: OpCBRecallAny, Args: &CBRecallAnyArgs{}}) }()
	<-entered
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	close(leave)
	wantCallbacks(t, ss)
	wantFlags(t, s, 0)

	block, blocked := make(chan struct{}), make(chan struct{})
	var once sync.Once
	w.handle = func(ctx context.Context, req *rpc.Request, res *rpc.Response, next rpc.Handler) {
		next.ServeRPC(ctx, req, res)
		once.Do(func() {
			close(blocked)
			<-block
		})
	}
	ctx, cancel = context.WithCancel(bg)
	go func() {
		_, err := s.Sequence(ctx)
		done <- err
	}()
	<-blocked
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	close(block)
	wantFlags(t, s, 0)
	wantFlags(t, s, 0)
}

// testRenew: the lease is renewed in the background, and a backchannel that the server has
// lost is bound again, also if the root is for callers of another flavor, which is asked once.
func testRenew(t *testing.T, b *bed) {
	testRenewal(t, start(t, b, &ServerConfig{Lease: time.Second}), &Config{Renew: true})
	w := start(t, b, &ServerConfig{Root: StatusWrongSec})
	testRenewal(t, w, nil)
	if n := w.srv.roots.Load(); n != 1 {
		t.Errorf("the root was asked for %d times", n)
	}
}

func testRenewal(t *testing.T, w *world, cfg *Config) {
	s := w.dial(t, cfg)
	ss := w.next(t)
	if cfg == nil {
		s.start(func() { s.renew(150 * time.Millisecond) })
	}
	renewed := func() time.Time {
		w.srv.mu.Lock()
		defer w.srv.mu.Unlock()
		return ss.client.renewed
	}
	w.srv.mu.Lock()
	ss.conn = nil
	w.srv.mu.Unlock()
	times := 0
	for last, end := renewed(), time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		w.srv.mu.Lock()
		up := ss.up()
		w.srv.mu.Unlock()
		if now := renewed(); now.After(last) {
			last = now
			times++
		}
		if up && times > 1 {
			break
		}
		if time.Now().After(end) {
			t.Fatal("neither the lease nor the backchannel is kept")
		}
	}
	wantCallbacks(t, ss)
	if err := s.Destroy(patient(t)); err != nil {
		t.Error(err)
	}
}

// testEnds: everything can be closed, twice, at any time.
func testEnds(t *testing.T, b *bed) {
	w := start(t, b, nil)
	s := w.dial(t, nil)
	ss := w.next(t)
	s.Close()
	s.Close()
	if _, err := s.Sequence(bg); !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
	if err := s.Destroy(bg); !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
	// Callbacks fail, and do not wait forever.
	done := make(chan error, 2)
	go func() { done <- ss.Null(bg) }()
	go func() { done <- ss.Callback(bg) }()
	w.srv.Close()
	w.srv.Close()
	for range 2 {
		var called *rpc.NotReadyError
		if err := <-done; !errors.Is(err, ErrSessionEnded) && !errors.As(err, &called) {
			t.Error(err)
		}
	}
	ctx, cancel := context.WithCancel(bg)
	cancel()
	if _, err := Dial(ctx, w.Provider, w.addr, nil); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if _, err := Dial(bg, w.Provider, w.addr, &Config{Owner: make([]byte, maxOwner+1)}); err == nil {
		t.Error("an owner of 1025 bytes is taken")
	}
	// A closed server creates no sessions, and its clients do not try forever.
	ctx, cancel = context.WithCancel(bg)
	defer cancel()
	w.handle = func(hctx context.Context, req *rpc.Request, res *rpc.Response, next rpc.Handler) {
		if next.ServeRPC(hctx, req, res); firstOf(req.Args) == OpCreateSession {
			cancel()
		}
	}
	if _, err := Dial(ctx, w.Provider, w.addr, nil); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
