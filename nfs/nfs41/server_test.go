package nfs41

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rpcrdma/rpcrdma/internal/testing/testbed"
	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/transport"
)

// A raw client sends arbitrary COMPOUNDs, valid or not.
type raw struct {
	t    testing.TB
	cl   *transport.Client
	cred oncrpc.Auth

	id       ClientID
	sequence uint32 // of the next CREATE_SESSION
	session  SessionID
	next     uint32 // sequence id of slot 0
}

func (w *world) raw(t testing.TB, cfg *transport.ClientConfig) *raw {
	t.Helper()
	cl, err := transport.Dial(bg, w.Provider, w.addr, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cl.Close() })
	return &raw{t: t, cl: cl, cred: (&oncrpc.AuthSys{UID: 1}).Auth()}
}

// A got is a reply: the status of each operation, and the whole reply.
type got struct {
	status []Status
	bytes  []byte
}

// send sends a COMPOUND and decodes the reply into the results of ops.
func (r *raw) send(minor uint32, ops ...Operation) got {
	r.t.Helper()
	head := compoundArgs{Tag: []byte("tag"), Minor: minor, Count: uint32(len(ops))}
	return r.bytes(appendOps(head.Append(nil), ops), ops...)
}

func (r *raw) bytes(args []byte, ops ...Operation) got {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(bg, patience)
	defer cancel()
	call := rpc.Call{Prog: Program, Vers: Version, Proc: ProcCompound, Cred: r.cred, Args: args, MaxResults: 8192}
	if err := r.cl.Call(ctx, &call); err != nil {
		r.t.Fatalf("%+v: %v", ops, err)
	}
	g := got{bytes: bytes.Clone(call.Results)}
	d := xdr.NewDecoder(g.bytes)
	var res compoundRes
	res.Decode(&d)
	for i := range int(res.Count) {
		op, status := d.Uint32(), Status(d.Uint32())
		if want := ops[i].Op; op != want && (op != OpIllegal || status == StatusOK) {
			r.t.Errorf("%s is answered by %s", OpName(want), OpName(op))
		}
		g.status = append(g.status, status)
		if ops[i].Result != nil && status == StatusOK {
			ops[i].Result.Decode(&d)
		}
	}
	if err := d.End(); err != nil {
		r.t.Errorf("%+v: %v: %x", ops, err, g.bytes)
	}
	if n := len(g.status); string(res.Tag) != "tag" || n > 0 && g.status[n-1] != res.Status {
		r.t.Errorf("%+v, and the operations %v", res, g.status)
	}
	if len(g.status) == 0 {
		g.status = []Status{res.Status}
	}
	return g
}

// want sends a COMPOUND and compares the statuses.
func (r *raw) want(what string, want []Status, ops ...Operation) got {
	r.t.Helper()
	g := r.send(Minor, ops...)
	if !slices.Equal(g.status, want) {
		r.t.Errorf("%s: %v, want %v", what, g.status, want)
	}
	return g
}

func ok(n int) []Status { return make([]Status, n) }

func (r *raw) exchange(a exchangeIDArgs, want Status) exchangeIDRes {
	r.t.Helper()
	var res exchangeIDRes
	r.want("EXCHANGE_ID", []Status{want}, Operation{OpExchangeID, &a, &res})
	if want == StatusOK {
		r.id, r.sequence = res.ClientID, res.Sequence
	}
	return res
}

func (r *raw) create(change func(*createSessionArgs), want Status) createSessionRes {
	r.t.Helper()
	attrs := ChannelAttrs{MaxRequest: 4000, MaxResponse: 4000, MaxResponseCached: 1000, MaxOps: 8, MaxRequests: 4}
	a := createSessionArgs{
		ClientID: r.id, Sequence: r.sequence, Fore: attrs, Back: attrs,
		CallbackProgram: CallbackProgram, CallbackSec: []CallbackSec{{}},
	}
	if change != nil {
		change(&a)
	}
	var res createSessionRes
	r.want("CREATE_SESSION", []Status{want}, Operation{OpCreateSession, &a, &res})
	if want == StatusOK {
		r.session, r.next = res.Session, 1
	}
	return res
}

// establish creates a client id and a session.
func (r *raw) establish(owner string) {
	r.t.Helper()
	r.exchange(exchangeIDArgs{Owner: []byte(owner)}, StatusOK)
	r.create(nil, StatusOK)
	r.sequence++
}

// seq returns the next SEQUENCE in slot 0.
func (r *raw) seq(res *sequenceRes) Operation {
	a := sequenceArgs{Session: r.session, Sequence: r.next}
	r.next++
	op := Operation{Op: OpSequence, Args: &a, Result: new(sequenceRes)}
	if res != nil {
		op.Result = res
	}
	return op
}

func TestServerExchangeID(t *testing.T) {
	b := &bed{Bed: testbed.Iwarp()}
	b.Check(t)
	w := start(t, b, &ServerConfig{Lease: time.Hour})
	r := w.raw(t, nil)
	one := exchangeIDArgs{Owner: []byte("one"), Verifier: Verifier{1}}

	first := r.exchange(one, StatusOK)
	if first.Flags != exchangeUseNonPNFS || first.Sequence != 1 || len(first.Scope) == 0 {
		t.Errorf("%+v", first)
	}
	// An unconfirmed record is replaced.
	second := r.exchange(one, StatusOK)
	if second.ClientID == first.ClientID {
		t.Error("an unconfirmed client is the same again")
	}
	r.id = first.ClientID
	r.create(nil, StatusStaleClientID)
	r.id = second.ClientID
	r.create(nil, StatusOK)
	// The same client again.
	again := r.exchange(one, StatusOK)
	if again.ClientID != second.ClientID || again.Flags&exchangeConfirmedR == 0 || again.Sequence != 2 {
		t.Errorf("%+v after %+v", again, second)
	}
	// Updates of existing clients.
	update := one
	update.Flags = exchangeUpdConfirmedRecA
	if res := r.exchange(update, StatusOK); res.ClientID != second.ClientID {
		t.Errorf("%+v", res)
	}
	update.Verifier = Verifier{2}
	r.exchange(update, StatusNotSame)
	update.Owner = []byte("nobody")
	r.exchange(update, StatusNoEnt)
	// Another principal must not take over an owner.
	other := w.raw(t, nil)
	other.cred = (&oncrpc.AuthSys{UID: 2}).Auth()
	other.exchange(one, StatusClidInUse)
	update = one
	update.Flags = exchangeUpdConfirmedRecA
	other.exchange(update, StatusPerm)
	other.id, other.sequence = second.ClientID, 2
	other.create(nil, StatusClidInUse)
	// The old state of a restarted client is dropped when it creates a session.
	session := r.session
	restarted := one
	restarted.Verifier = Verifier{3}
	third := r.exchange(restarted, StatusOK)
	if third.ClientID == second.ClientID || third.Flags&exchangeConfirmedR != 0 {
		t.Errorf("%+v after %+v", third, second)
	}
	if got := w.srv.Sessions(); len(got) != 1 || got[0].ID() != session {
		t.Errorf("%v", got)
	}
	r.create(nil, StatusOK)
	if got := w.srv.Sessions(); len(got) != 1 || got[0].ID() == session || got[0].Owner() != "one" {
		t.Errorf("%v", got)
	}
	// Unsupported features.
	r.exchange(exchangeIDArgs{Owner: []byte("x"), Flags: 1 << 20}, StatusInval)
	r.exchange(exchangeIDArgs{Owner: []byte("x"), Protect: protectArgs{How: protectMachCred}}, StatusInval)
	r.exchange(exchangeIDArgs{Owner: []byte("x"), Protect: protectArgs{How: protectSSV}}, StatusEncrAlgUnsupp)
}

func TestServerCreateSession(t *testing.T) {
	b := &bed{Bed: testbed.Iwarp()}
	b.Check(t)
	w := start(t, b, &ServerConfig{Lease: time.Hour, MaxSessions: 2})
	r := w.raw(t, nil)
	r.id = 7
	r.create(nil, StatusStaleClientID)
	r.exchange(exchangeIDArgs{Owner: []byte("one")}, StatusOK)
	r.create(func(a *createSessionArgs) { a.Sequence = 0 }, StatusSeqMisordered)
	r.create(func(a *createSessionArgs) { a.Sequence = 2 }, StatusSeqMisordered)
	r.create(func(a *createSessionArgs) { a.Flags = 8 }, StatusInval)
	r.create(func(a *createSessionArgs) { a.Fore.MaxOps = 1 }, StatusTooSmall)
	r.create(func(a *createSessionArgs) { a.Fore.MaxResponse = 100 }, StatusTooSmall)
	r.create(func(a *createSessionArgs) { a.Fore.MaxRequests = 0 }, StatusTooSmall)
	r.create(func(a *createSessionArgs) { a.Back.MaxOps, a.Flags = 1, SessionConnBackChan }, StatusTooSmall)
	r.create(func(a *createSessionArgs) { a.CallbackSec = []CallbackSec{{Flavor: oncrpc.FlavorGSS}} }, StatusEncrAlgUnsupp)
	large := func(a *createSessionArgs) {
		a.Fore = ChannelAttrs{HeaderPad: 8, MaxRequest: 1 << 31, MaxResponse: 1 << 31, MaxResponseCached: 1 << 31, MaxOps: 1 << 31, MaxRequests: 1 << 31, HasIRD: true}
		a.Flags = SessionPersist | SessionConnRDMA
	}
	first := r.create(large, StatusOK)
	if first.Flags != 0 || first.Sequence != 1 || first.Fore != w.srv.cfg.Fore {
		t.Errorf("%+v, the server's limits are %+v", first, w.srv.cfg.Fore)
	}
	// A resent call gets the same reply, a different one with the same sequence id does not.
	if again := r.create(large, StatusOK); again != first {
		t.Errorf("%+v, at first %+v", again, first)
	}
	r.create(nil, StatusSeqMisordered)
	r.sequence++
	r.create(nil, StatusOK)
	r.sequence++
	r.create(nil, StatusDelay)
	if n := len(w.srv.Sessions()); n != 2 {
		t.Errorf("%d sessions", n)
	}
}

// TestServerLimits: at its limit the server removes clients with an expired lease, and no others.
func TestServerLimits(t *testing.T) {
	b := &bed{Bed: testbed.Iwarp()}
	b.Check(t)
	w := start(t, b, &ServerConfig{Lease: time.Hour, MaxClients: 2})
	r := w.raw(t, nil)
	r.establish("one")
	r.establish("two")
	r.exchange(exchangeIDArgs{Owner: []byte("three")}, StatusDelay)
	session := r.session
	w.srv.mu.Lock()
	for _, cl := range w.srv.clients {
		if cl.owner == "two" {
			cl.renewed = cl.renewed.Add(-2 * time.Hour)
		}
	}
	w.srv.mu.Unlock()
	r.establish("three")
	for _, ss := range w.srv.Sessions() {
		if ss.ID() == session {
			t.Error("an expired client has its session")
		}
	}
	if n := len(w.srv.Sessions()); n != 2 {
		t.Errorf("%d sessions", n)
	}
}

func TestServerSequence(t *testing.T) {
	b := &bed{Bed: testbed.Iwarp()}
	b.Check(t)
	w := start(t, b, nil)
	r := w.raw(t, nil)
	r.establish("one")
	seq := func(slot, sequence uint32, cache bool) Operation {
		return Operation{OpSequence, &sequenceArgs{Session: r.session, Slot: slot, Sequence: sequence, CacheThis: cache}, new(sequenceRes)}
	}
	root := Operation{Op: OpPutRootFH}
	getFH := Operation{Op: OpGetFH, Result: new(FileHandle)}

	r.want("an unknown session", []Status{StatusBadSession}, Operation{OpSequence, &sequenceArgs{Session: tSession}, nil})
	r.want("slot 4 of 4", []Status{StatusBadSlot}, seq(4, 1, false))
	r.want("sequence id 0", []Status{StatusSeqMisordered}, seq(0, 0, false))
	r.want("sequence id 2", []Status{StatusSeqMisordered}, seq(0, 2, false))
	first := r.want("the first", ok(3), seq(0, 1, true), root, getFH)
	again := r.want("the first again", ok(3), seq(0, 1, true), root, getFH)
	if !bytes.Equal(first.bytes, again.bytes) {
		t.Errorf("the reply is another:\n%x\n%x", first.bytes, again.bytes)
	}
	r.want("another with its id", []Status{StatusSeqFalseRetry}, seq(0, 1, true), root)
	r.want("the next, not kept", ok(3), seq(0, 2, false), root, getFH)
	r.want("the next again", []Status{StatusOK, StatusRetryUncachedRep}, seq(0, 2, false), root, getFH)
	// The reply to SEQUENCE alone is always cached, and so is a failure that was requested to
	// be cached.
	alone := r.want("SEQUENCE alone", ok(1), seq(0, 3, false))
	if again := r.want("SEQUENCE alone again", ok(1), seq(0, 3, false)); !bytes.Equal(alone.bytes, again.bytes) {
		t.Errorf("the reply is another:\n%x\n%x", alone.bytes, again.bytes)
	}
	r.want("a failure", []Status{StatusOK, StatusNoFileHandle}, seq(0, 4, true), getFH)
	r.want("a failure again", []Status{StatusOK, StatusNoFileHandle}, seq(0, 4, true), getFH)
	r.want("another slot", ok(1), seq(3, 1, false))

	// Limits of the channel: 8 operations, 4000 bytes, 1000 bytes cached.
	r.want("9 operations", []Status{StatusTooManyOps}, append([]Operation{seq(1, 1, false)}, slices.Repeat([]Operation{root}, 8)...)...)
	name := Name(strings.Repeat("x", maxName))
	lookups := slices.Repeat([]Operation{{Op: OpLookup, Args: &name}}, 4)
	r.want("4100 bytes", []Status{StatusReqTooBig}, append([]Operation{seq(1, 1, false)}, lookups...)...)
	mask := KnownAttrs()
	attrs := slices.Repeat([]Operation{{OpGetAttr, &mask, new(RawAttrs)}}, 6)
	g := r.send(Minor, append([]Operation{seq(1, 1, true), root}, attrs...)...)
	if last := g.status[len(g.status)-1]; last != StatusRepTooBigToCache || len(g.bytes) > 1000 {
		t.Errorf("%v, %d bytes", g.status, len(g.bytes))
	}
	r.want("6 times all attributes", ok(8), append([]Operation{seq(1, 2, false), root}, attrs...)...)
	r.sequence = 2
	r.create(func(a *createSessionArgs) { a.Fore.MaxResponse, a.Fore.MaxResponseCached = 1024, 64 }, StatusOK)
	g = r.send(Minor, append([]Operation{seq(1, 1, false), root}, attrs...)...)
	if last := g.status[len(g.status)-1]; last != StatusRepTooBig || len(g.bytes) > 1024 {
		t.Errorf("%v, %d bytes", g.status, len(g.bytes))
	}
	r.want("nothing fits into 64 bytes", []Status{StatusRepTooBigToCache}, seq(0, 1, true))
	r.want("the slot is as it was", ok(1), seq(0, 1, false))

	// Positions of operations.
	r.want("two SEQUENCEs", []Status{StatusOK, StatusSequencePos}, seq(2, 1, false), seq(2, 2, false))
	r.want("no SEQUENCE", []Status{StatusOpNotInSession}, root)
	r.want("RECLAIM_COMPLETE without", []Status{StatusOpNotInSession}, Operation{Op: OpReclaimComplete, Args: new(reclaimCompleteArgs)})
	r.want("EXCHANGE_ID with others", []Status{StatusNotOnlyOp}, Operation{Op: OpExchangeID, Args: &exchangeIDArgs{}}, root)
	r.want("BIND_CONN_TO_SESSION behind SEQUENCE", []Status{StatusOK, StatusNotOnlyOp},
		seq(2, 2, false), Operation{Op: OpBindConnToSession, Args: &bindConnArgs{Session: r.session, Dir: fromClientFore}})
	r.want("operation 2", []Status{StatusOK, StatusOpIllegal}, seq(2, 3, false), Operation{Op: 2})
	r.want("operation 59", []Status{StatusOK, StatusOpIllegal}, seq(2, 4, false), Operation{Op: 59})
	r.want("OPEN", []Status{StatusOK, StatusOK, StatusNotSupp}, seq(2, 5, false), root, Operation{Op: OpOpen, Args: &OpenArgs{}})
	if g := r.send(2, seq(2, 6, false)); g.status[0] != StatusMinorVersMismatch {
		t.Errorf("minor version 2: %v", g.status)
	}
	// Arguments that do not decode.
	head := compoundArgs{Tag: []byte("tag"), Minor: Minor, Count: 2}
	args := appendOps(head.Append(nil), []Operation{seq(2, 6, false)})
	cut := r.bytes(append(args, 0, 0, 0, byte(OpAccess)), seq(2, 6, false), Operation{Op: OpAccess})
	if !slices.Equal(cut.status, []Status{StatusOK, StatusNoFileHandle}) {
		t.Errorf("%v", cut.status)
	}
	head.Count = 3
	args = appendOps(head.Append(nil), []Operation{seq(2, 7, false), root})
	cut = r.bytes(append(args, 0, 0, 0, byte(OpAccess)), seq(2, 7, false), root, Operation{Op: OpAccess})
	if !slices.Equal(cut.status, []Status{StatusOK, StatusOK, StatusBadXDR}) {
		t.Errorf("%v", cut.status)
	}
	head.Count = 2
	args = appendOps(head.Append(nil), []Operation{seq(2, 8, false)})
	cut = r.bytes(args, seq(2, 8, false), root)
	if !slices.Equal(cut.status, []Status{StatusOK, StatusBadXDR}) {
		t.Errorf("%v", cut.status)
	}
	cut = r.bytes(head.Append(nil), root)
	if !slices.Equal(cut.status, []Status{StatusBadXDR}) {
		t.Errorf("%v", cut.status)
	}
	for _, args := range [][]byte{nil, {0, 0, 0, 1}, new(compoundArgs).Append(nil)[:8]} {
		var e *oncrpc.RPCError
		err := r.cl.Call(bg, &rpc.Call{Prog: Program, Vers: Version, Proc: ProcCompound, Args: args})
		if !errors.As(err, &e) || e.AcceptStat != oncrpc.GarbageArgs {
			t.Errorf("%x: %v", args, err)
		}
	}
	var e *oncrpc.RPCError
	if err := r.cl.Call(bg, &rpc.Call{Prog: Program, Vers: Version, Proc: 2}); !errors.As(err, &e) || e.AcceptStat != oncrpc.ProcUnavail {
		t.Error(err)
	}
}

// TestServerDirectory: the operations of a mount.
func TestServerDirectory(t *testing.T) {
	b := &bed{Bed: testbed.Iwarp()}
	b.Check(t)
	w := start(t, b, nil)
	r := w.raw(t, nil)
	r.establish("one")
	root := Operation{Op: OpPutRootFH}
	var fh FileHandle
	r.want("GETFH", ok(3), r.seq(nil), root, Operation{Op: OpGetFH, Result: &fh})
	put := Operation{Op: OpPutFH, Args: &fh}
	var attrs RawAttrs
	mask := Bits(AttrType, AttrFSID, AttrMode)
	r.want("GETATTR", ok(3), r.seq(nil), put, Operation{OpGetAttr, &mask, &attrs})
	if a, err := attrs.Attrs(); err != nil || a.Type != TypeDir || a.Mode != 0o555 {
		t.Errorf("%+v, %v", a, err)
	}
	var access AccessRes
	r.want("ACCESS", ok(3), r.seq(nil), put, Operation{OpAccess, &AccessArgs{0x3f}, &access})
	if access != (AccessRes{0x1f, AccessRead | AccessLookup}) {
		t.Errorf("%+v", access)
	}
	var dir ReadDirRes
	r.want("READDIR", ok(3), r.seq(nil), put, Operation{OpReadDir, &ReadDirArgs{MaxCount: 100}, &dir})
	if len(dir.Entries) != 0 || !dir.EOF {
		t.Errorf("%+v", dir)
	}
	var sec SecInfoRes
	r.want("SECINFO_NO_NAME", []Status{StatusOK, StatusOK, StatusOK, StatusNoFileHandle},
		r.seq(nil), put, Operation{OpSecInfoNoName, new(SecInfoNoNameArgs), &sec}, Operation{Op: OpGetFH})
	if len(sec.Flavors) != 2 || sec.Flavors[0].Flavor != uint32(oncrpc.FlavorSys) {
		t.Errorf("%+v", sec)
	}
	name, empty, other := Name("x"), Name(""), FileHandle("x")
	for _, test := range []struct {
		what string
		want Status
		ops  []Operation
	}{
		{"SAVEFH and RESTOREFH", StatusOK, []Operation{put, {Op: OpSaveFH}, {Op: OpRestoreFH}}},
		{"RESTOREFH", StatusNoFileHandle, []Operation{{Op: OpRestoreFH}}},
		{"PUTPUBFH", StatusOK, []Operation{{Op: OpPutPubFH}}},
		{"PUTFH of another", StatusStale, []Operation{{Op: OpPutFH, Args: &other}}},
		{"LOOKUP", StatusNoEnt, []Operation{put, {Op: OpLookup, Args: &name}}},
		{"LOOKUP of nothing", StatusInval, []Operation{put, {Op: OpLookup, Args: &empty}}},
		{"LOOKUPP", StatusNoEnt, []Operation{put, {Op: OpLookupP}}},
		{"SECINFO", StatusNoEnt, []Operation{put, {Op: OpSecInfo, Args: &name}}},
		{"SECINFO_NO_NAME of the parent", StatusNoEnt, []Operation{put, {Op: OpSecInfoNoName, Args: &SecInfoNoNameArgs{true}}}},
		{"READDIR from a cookie", StatusBadCookie, []Operation{put, {Op: OpReadDir, Args: &ReadDirArgs{Cookie: 3, MaxCount: 100}}}},
		{"READDIR into nothing", StatusTooSmall, []Operation{put, {Op: OpReadDir, Args: &ReadDirArgs{MaxCount: 8}}}},
		{"GETATTR of nothing", StatusNoFileHandle, []Operation{{Op: OpGetAttr, Args: &mask}}},
		{"RECLAIM_COMPLETE of no file system", StatusNoFileHandle, []Operation{{Op: OpReclaimComplete, Args: &reclaimCompleteArgs{true}}}},
		{"RECLAIM_COMPLETE of one file system", StatusOK, []Operation{put, {Op: OpReclaimComplete, Args: &reclaimCompleteArgs{true}}}},
		{"RECLAIM_COMPLETE", StatusOK, []Operation{{Op: OpReclaimComplete, Args: new(reclaimCompleteArgs)}}},
		{"RECLAIM_COMPLETE again", StatusCompleteAlready, []Operation{{Op: OpReclaimComplete, Args: new(reclaimCompleteArgs)}}},
	} {
		want := append(ok(len(test.ops)), test.want)
		r.want(test.what, want, append([]Operation{r.seq(nil)}, test.ops...)...)
	}
}

func TestServerDestroy(t *testing.T) {
	b := &bed{Bed: testbed.Iwarp()}
	b.Check(t)
	w := start(t, b, nil)
	r := w.raw(t, nil)
	r.establish("one")
	first := r.session
	r.create(nil, StatusOK)
	destroy := func(id SessionID) Operation { return Operation{Op: OpDestroySession, Args: &id} }
	r.want("a session in use, and more", []Status{StatusOK, StatusNotOnlyOp}, r.seq(nil), destroy(r.session), Operation{Op: OpPutRootFH})
	r.want("another session", ok(3), r.seq(nil), destroy(first), Operation{Op: OpPutRootFH})
	r.want("it once more", []Status{StatusBadSession}, destroy(first))
	r.want("a client with a session", []Status{StatusClientIDBusy}, Operation{Op: OpDestroyClientID, Args: &r.id})
	r.want("the session in use", ok(2), r.seq(nil), destroy(r.session))
	r.want("a client", ok(1), Operation{Op: OpDestroyClientID, Args: &r.id})
	r.want("it once more", []Status{StatusStaleClientID}, Operation{Op: OpDestroyClientID, Args: &r.id})
	w.srv.mu.Lock()
	defer w.srv.mu.Unlock()
	if len(w.srv.clients)+len(w.srv.owners)+len(w.srv.sessions) != 0 {
		t.Errorf("left: %v, %v, %v", w.srv.clients, w.srv.owners, w.srv.sessions)
	}
}

// FuzzServer: the server answers any arguments.
func FuzzServer(f *testing.F) {
	for _, r := range recorded {
		if !r.reply && !r.cb {
			f.Add(testutil.Hex(f, r.hex))
		}
	}
	s := NewServer(&ServerConfig{MaxClients: 4, NoBackchannel: true})
	f.Fuzz(func(t *testing.T, args []byte) {
		c := compound{s: s, args: args, size: len(args)}
		out := []byte{0xff}
		if !c.run(&out) {
			return
		}
		var res compoundRes
		d := xdr.NewDecoder(out[1:])
		if res.Decode(&d); d.Err() != nil || out[0] != 0xff {
			t.Fatalf("%x is answered by %x", args, out)
		}
	})
}

// FuzzCallbacks: the client's end of a session answers any arguments, and executes a resent
// request only once.
func FuzzCallbacks(f *testing.F) {
	var id SessionID
	for _, r := range recorded {
		if r.reply || !r.cb {
			continue
		}
		b := testutil.Hex(f, r.hex)
		d := xdr.NewDecoder(b)
		new(cbCompoundArgs).Decode(&d)
		if op := d.Uint32(); op != OpCBSequence {
			f.Fatalf("%s begins with %s", r.what, CBOpName(op))
		}
		var first cbSequenceArgs
		first.Decode(&d)
		id = first.sequenceArgs.Session
		f.Add(b, b)
		f.Add(b[:len(b)-4], b)
	}
	back := ChannelAttrs{MaxRequest: 4096, MaxResponse: 4096, MaxResponseCached: 100, MaxOps: 4, MaxRequests: 2}
	f.Fuzz(func(t *testing.T, first, second []byte) {
		executed := 0
		s := &Session{cfg: Config{Callback: func(context.Context, uint32, Message) Status {
			executed++
			return StatusOK
		}}}
		s.held = s.hold(&createSessionArgs{Back: back}, &createSessionRes{Session: id, Back: back})
		for _, args := range [][]byte{first, first, second, second, first} {
			before, begun := executed, s.counters.snapshot().Sequences
			c := cbCompound{s: s, ctx: bg, args: args, size: len(args)}
			out := []byte{0xff}
			if !c.run(&out) {
				continue
			}
			var res compoundRes
			d := xdr.NewDecoder(out[1:])
			if res.Decode(&d); d.Err() != nil || out[0] != 0xff || res.Count > back.MaxOps {
				t.Fatalf("%x is answered by %x", args, out)
			}
			if n := s.counters.snapshot().Sequences - begun; n > 1 || executed > before && n == 0 {
				t.Fatalf("%x: %d operations without a request of their own", args, executed-before)
			}
		}
		if n := s.counters.snapshot().Sequences; n > 2 {
			t.Fatalf("%d requests have been executed, there were two", n)
		}
	})
}
