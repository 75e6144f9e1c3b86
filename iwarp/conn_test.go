//go:build linux

package iwarp

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
	"github.com/rpcrdma/rpcrdma/proto/ddp"
	"github.com/rpcrdma/rpcrdma/proto/mpa"
	"github.com/rpcrdma/rpcrdma/proto/rdmap"
)

// poll returns the available completions.
func poll(t testing.TB, c *Conn) []fabric.WC {
	t.Helper()
	var wc [16]fabric.WC
	n, err := c.Poll(wc[:])
	if err != nil {
		t.Fatal(err)
	}
	return append([]fabric.WC(nil), wc[:n]...)
}

// pollUntil polls until ok.
func pollUntil(t testing.TB, c *Conn, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ok(); runtime.Gosched() {
		if time.Now().After(end) {
			t.Fatalf("%s has not come about", what)
		}
		poll(t, c)
	}
}

// TestFenceInSegment: memory is revoked in the middle of an FPDU that is being placed, or
// between two of one Write. The rest is not placed.
func TestFenceInSegment(t *testing.T) {
	for _, how := range []string{"OpLocalInv", "MW.Close", "MR.Close", "MR.Close under a window"} {
		t.Run(how, func(t *testing.T) { fenceInWrite(t, how, 60000, 30000) })
		t.Run(how+", between segments", func(t *testing.T) { fenceInWrite(t, how, 1408, 2*1428+10) })
	}
}

// fenceInWrite sends a Write in segments of the given payload, and revokes its memory after cut bytes
// of the stream.
func fenceInWrite(t *testing.T, how string, payload, cut int) {
	const size = 60000
	c, peer := underAttack(t, New(Config{}), fabric.ConnAttr{}, 0)
	mem := make([]byte, size)
	mr, err := c.RegMR(mem, fabric.AccessLocalWrite|fabric.AccessRemoteWrite)
	if err != nil {
		t.Fatal(err)
	}
	seg := mr.Segment()
	var mw fabric.MW
	if how != "MR.Close" {
		if mw, err = c.AllocMW(); err != nil {
			t.Fatal(err)
		}
		key := mr.LKey()
		if how == "MW.Close" {
			key = fabric.LocalDMAKey
		}
		if seg, err = mw.Prepare(fabric.SGE{Buf: mem, LKey: key}, fabric.AccessRemoteWrite); err != nil {
			t.Fatal(err)
		}
		post(t, c, fabric.SendWR{Op: fabric.OpBindMW, MW: mw})
	}
	var stream, refused []byte
	for at := 0; at < size; at += payload {
		n := min(payload, size-at)
		f := peer.fpdu(tagged(rdmap.OpWrite, at+n == size, seg.Handle, seg.Offset+uint64(at)), bytes.Repeat([]byte{1}, n))
		if len(stream) <= cut {
			refused = f[2:16]
		}
		stream = append(stream, f...)
	}
	peer.write(stream[:cut])
	pollUntil(t, c, "the first part", func() bool { return c.Stats().RxBytes == uint64(cut) })
	switch how {
	case "OpLocalInv":
		post(t, c, fabric.SendWR{ID: 3, Op: fabric.OpLocalInv, Flags: fabric.Signaled, RKey: seg.Handle})
		if wc := next(t, c); wc.ID != 3 || wc.Status != fabric.WCSuccess || wc.Op != fabric.WCLocalInv {
			t.Fatalf("invalidated with %+v", wc)
		}
	case "MW.Close":
		mw.Close()
	default:
		mr.Close()
	}
	if look(&c.rx, func(x *receiver) uint32 { return x.target.stag }) != seg.Handle {
		t.Error("what was looked up is forgotten, so that nothing has been shown")
	}
	had := bytes.Count(mem, []byte{1})
	if had == 0 || had > cut {
		t.Fatalf("%d bytes placed by the first part", had)
	}
	clear(mem)
	peer.write(stream[cut:])
	wantViolation(t, c, ddpTagged(ddp.TaggedInvalidSTag))
	if n := bytes.Count(mem, []byte{1}); n > 0 {
		t.Errorf("%d bytes placed after the fence", n)
	}
	m := peer.wantTerminate("after writing to memory that was taken back", ddpTagged(ddp.TaggedInvalidSTag))
	if !bytes.Equal(m.DDP, refused) {
		t.Errorf("the Terminate message quotes %x, want %x", m.DDP, refused)
	}
}

// TestFenceInResponse: memory is revoked while a Read of the peer is being answered and the peer does
// not read the response. It receives the old content later.
func TestFenceInResponse(t *testing.T) {
	const size = 16 << 20
	for _, tc := range []struct {
		how  string
		fpdu int
	}{{"MW.Close", 0}, {"MR.Close", 0}, {"MW.Close", 1428}, {"MR.Close", 1428}} {
		how := tc.how
		t.Run(fmt.Sprintf("%s/MaxFPDU=%d", how, tc.fpdu), func(t *testing.T) {
			c, peer := underAttack(t, New(Config{MaxFPDU: tc.fpdu}), fabric.ConnAttr{}, 0)
			mem := bytes.Repeat([]byte{1}, size)
			mr, err := c.RegMR(mem, fabric.AccessRemoteRead)
			if err != nil {
				t.Fatal(err)
			}
			mw, err := c.AllocMW()
			if err != nil {
				t.Fatal(err)
			}
			seg, err := mw.Prepare(fabric.SGE{Buf: mem, LKey: mr.LKey()}, fabric.AccessRemoteRead)
			if err != nil {
				t.Fatal(err)
			}
			post(t, c, fabric.SendWR{Op: fabric.OpBindMW, MW: mw})
			peer.write(peer.fpdu(readRequest(1, rdmap.ReadRequest{SinkSTag: 1, Size: size, SrcSTag: seg.Handle, SrcTO: seg.Offset})))
			pollUntil(t, c, "a full socket", func() bool { return c.Stats().Writers > 0 })
			if how == "MW.Close" {
				mw.Close()
			} else {
				mr.Close()
			}
			for i := range mem {
				mem[i] = 2
			}
			type result struct {
				got []byte
				err error
			}
			read := make(chan result)
			go func() {
				got, err := io.ReadAll(peer.c)
				read <- result{got, err}
			}()
			_, end := drive(t, c)
			if !errors.Is(end, ErrRevoked) || end.Remote || end.Clean {
				t.Errorf("ended with %v, want ErrRevoked", end)
			}
			c.Close()
			r := <-read
			// Headers may contain a 2, but not several in sequence.
			if i := bytes.Index(r.got, bytes.Repeat([]byte{2}, 16)); i >= 0 {
				t.Errorf("byte %d of what the peer got is from after the fence", i)
			}
			if len(r.got) >= size {
				t.Errorf("the peer got %d bytes", len(r.got))
			}
		})
	}
}

// TestLocalInvBehindResponse: an invalidation in the send queue waits for the Read that is
// being answered from the same batch, even if the socket does not accept the whole batch at
// once. If it were executed earlier, the rest of the batch could not be sent.
func TestLocalInvBehindResponse(t *testing.T) {
	const size = batchBytes / 2 // so that the batch has space after it
	c, peer := streamPair(t, New(Config{}), fabric.ConnAttr{}, false)
	if err := syscall.SetsockoptInt(c.link.Load().sock.fd, syscall.SOL_SOCKET, syscall.SO_SNDBUF, 16<<10); err != nil {
		t.Fatal(err)
	}
	mw, _ := c.AllocMW()
	mem := bytes.Repeat([]byte{1}, size)
	seg, err := mw.Prepare(fabric.SGE{Buf: mem}, fabric.AccessRemoteRead)
	if err != nil {
		t.Fatal(err)
	}
	post(t, c, fabric.SendWR{Op: fabric.OpBindMW, MW: mw})
	// Lock the sending side, so that the request and the invalidation get into the same batch.
	tx := c.tx.Lock()
	post(t, c, fabric.SendWR{ID: 5, Op: fabric.OpLocalInv, Flags: fabric.Signaled, RKey: seg.Handle})
	tx.turn = true // the response goes first
	peer.write(peer.fpdu(readRequest(1, rdmap.ReadRequest{SinkSTag: 1, Size: size, SrcSTag: seg.Handle, SrcTO: seg.Offset})))
	for {
		c.Poll(nil)
		if c.readsOfPeer() == 1 {
			break
		}
	}
	c.unlockTx()
	pollUntil(t, c, "a full socket", func() bool { return c.Stats().Writers == 1 })
	if c.queued() || !c.stags.names(seg.Handle) {
		t.Fatal("the window was invalidated while the response was on its way")
	}
	got := make(chan []byte, 1)
	go func() {
		var b []byte
		for len(b) < size {
			b = append(b, peer.wantSegment("a response", rdmap.OpReadResponse).payload...)
		}
		got <- b
	}()
	if wc := next(t, c); wc.ID != 5 || wc.Status != fabric.WCSuccess {
		t.Fatalf("invalidated with %+v", wc)
	}
	if !bytes.Equal(<-got, mem) {
		t.Error("the response has other bytes than the window")
	}
}

// readsOfPeer returns how many Reads of the peer are not answered.
func (c *Conn) readsOfPeer() int {
	return look(&c.state, func(st *state) int { return st.irq.len() })
}

// names reports whether stag is valid for the peer.
func (t *table) names(stag uint32) bool {
	_, flt := t.exposed(stag, fabric.AccessRemoteRead|fabric.AccessRemoteWrite)
	return flt == faultNone
}

// TestLocalInvFencesPlacing: an invalidation in the send queue completes after earlier lookups
// of the memory are no longer in use. Here the test holds the lock under which data is placed.
func TestLocalInvFencesPlacing(t *testing.T) {
	c, _ := underAttack(t, New(Config{}), fabric.ConnAttr{}, 0)
	mw, _ := c.AllocMW()
	mem := make([]byte, 64)
	seg, err := mw.Prepare(fabric.SGE{Buf: mem}, fabric.AccessRemoteWrite)
	if err != nil {
		t.Fatal(err)
	}
	post(t, c, fabric.SendWR{Op: fabric.OpBindMW, MW: mw})
	c.rx.Lock()
	place, _, flt := c.stags.remote(seg.Handle, seg.Offset, seg.Length, fabric.AccessRemoteWrite)
	if flt != faultNone {
		t.Fatal(flt)
	}
	posted := make(chan struct{})
	go func() {
		defer close(posted)
		if err := c.Post([]fabric.SendWR{{ID: 5, Op: fabric.OpLocalInv, Flags: fabric.Signaled, RKey: seg.Handle}}); err != nil {
			t.Error(err)
		}
	}()
	// It either waits for the lock or has completed.
	stacks := make([]byte, 1<<20)
	for waits := false; !waits; runtime.Gosched() {
		select {
		case <-posted:
			c.rx.Unlock()
			t.Fatal("executed while bytes were being placed")
		default:
			waits = bytes.Contains(stacks[:runtime.Stack(stacks, true)], []byte(".(*Conn).awaitRx"))
		}
	}
	if c.stags.names(seg.Handle) || c.queued() {
		t.Errorf("while bytes are being placed: the window is still named: %t, completions: %t", c.stags.names(seg.Handle), c.queued())
	}
	copy(place, garbage)
	c.rx.Unlock()
	<-posted
	if wc := next(t, c); wc.ID != 5 || wc.Status != fabric.WCSuccess {
		t.Fatalf("invalidated with %+v", wc)
	}
}

// TestInvalidateWhatThePeerHas: this side cancels a call just after its reply, with the invalidation,
// has arrived.
func TestInvalidateWhatThePeerHas(t *testing.T) {
	c, peer := underAttack(t, New(Config{}), fabric.ConnAttr{}, 0)
	mw, _ := c.AllocMW()
	bind := func() fabric.Segment {
		seg, err := mw.Prepare(fabric.SGE{Buf: make([]byte, 64)}, fabric.AccessRemoteRead)
		if err != nil {
			t.Fatal(err)
		}
		post(t, c, fabric.SendWR{Op: fabric.OpBindMW, MW: mw})
		return seg
	}
	seg := bind()
	postRecv(t, c, make([]byte, 8))
	peer.write(peer.fpdu(ddp.AppendUntagged(nil, &ddp.Untagged{Last: true, ULP: rdmap.Control(rdmap.OpSendInv), ULP32: seg.Handle, MSN: 1})))
	if wc := next(t, c); !wc.WithInv || wc.InvalidatedKey != seg.Handle {
		t.Fatalf("received %+v", wc)
	}
	inv := fabric.SendWR{ID: 6, Op: fabric.OpLocalInv, Flags: fabric.Signaled, RKey: seg.Handle}
	post(t, c, inv)
	if wc := next(t, c); wc.ID != 6 || wc.Status != fabric.WCSuccess {
		t.Fatalf("invalidated with %+v", wc)
	}
	bind()
	post(t, c, inv) // the old name
	wcs, end := drive(t, c)
	var we *WorkError
	if len(wcs) != 1 || wcs[0].Status != fabric.WCLocQPOpErr || !errors.As(end, &we) {
		t.Errorf("a stale name: %+v, %v", wcs, end)
	}
}

// TestPeerInvalidatesWhatIsClosed: this side has canceled a call, and its reply, with the
// invalidation, arrives later. It closes nothing that is open.
func TestPeerInvalidatesWhatIsClosed(t *testing.T) {
	c, peer := underAttack(t, New(Config{}), fabric.ConnAttr{}, 0)
	var msn uint32
	sendInv := func(stag uint32) {
		msn++
		peer.write(peer.fpdu(ddp.AppendUntagged(nil, &ddp.Untagged{Last: true, ULP: rdmap.Control(rdmap.OpSendInv), ULP32: stag, MSN: msn})))
	}
	mem := make([]byte, 64)
	open := func(mw fabric.MW) fabric.Segment {
		seg, err := mw.Prepare(fabric.SGE{Buf: mem}, fabric.AccessRemoteWrite)
		if err != nil {
			t.Fatal(err)
		}
		post(t, c, fabric.SendWR{Op: fabric.OpBindMW, MW: mw})
		return seg
	}
	mw, _ := c.AllocMW()
	other, _ := c.AllocMW()
	for range 4 {
		seg, still := open(mw), open(other)
		postRecv(t, c, make([]byte, 8))
		post(t, c, fabric.SendWR{ID: 6, Op: fabric.OpLocalInv, Flags: fabric.Signaled, RKey: seg.Handle})
		if wc := next(t, c); wc.ID != 6 || wc.Status != fabric.WCSuccess {
			t.Fatalf("invalidated with %+v", wc)
		}
		sendInv(seg.Handle)
		if wc := next(t, c); wc.Status != fabric.WCSuccess || !wc.WithInv || wc.InvalidatedKey != seg.Handle {
			t.Fatalf("received %+v", wc)
		}
		if _, _, flt := c.stags.remote(seg.Handle, seg.Offset, 1, fabric.AccessRemoteWrite); flt != faultSTag {
			t.Errorf("the window is open: %v", flt)
		}
		if _, _, flt := c.stags.remote(still.Handle, still.Offset, 1, fabric.AccessRemoteWrite); flt != faultNone {
			t.Errorf("another window is closed: %v", flt)
		}
		post(t, c, fabric.SendWR{ID: 7, Op: fabric.OpLocalInv, Flags: fabric.Signaled, RKey: still.Handle})
		next(t, c)
	}
	// Not what has been prepared again, nor what has never been open.
	for _, stag := range []func() uint32{
		func() uint32 {
			seg := open(mw)
			post(t, c, fabric.SendWR{ID: 8, Op: fabric.OpLocalInv, Flags: fabric.Signaled, RKey: seg.Handle})
			next(t, c)
			if _, err := mw.Prepare(fabric.SGE{Buf: mem}, fabric.AccessRemoteWrite); err != nil {
				t.Fatal(err)
			}
			return seg.Handle
		},
		func() uint32 {
			fresh, _ := c.AllocMW()
			return look(&c.stags.entries, func(t *entries) uint32 { return t.stag(fresh.(*MW).index) })
		},
	} {
		if c.stags.invalidate(stag(), true) {
			t.Error("the peer has invalidated a window that this side has not")
		}
	}
	// A region that is deregistered closes its windows, and that is no invalidation.
	region, _ := c.RegMR(mem, fabric.AccessLocalWrite)
	seg, err := other.Prepare(fabric.SGE{Buf: mem, LKey: region.LKey()}, fabric.AccessRemoteWrite)
	if err != nil {
		t.Fatal(err)
	}
	post(t, c, fabric.SendWR{Op: fabric.OpBindMW, MW: other})
	region.Close()
	postRecv(t, c, make([]byte, 8))
	sendInv(seg.Handle)
	wantViolation(t, c, rdmaProtection(rdmap.CodeCannotInvalidate))
}

// TestBusyInvalidation: a peer must not invalidate what it is reading.
func TestBusyInvalidation(t *testing.T) {
	const size = 16 << 20
	c, peer := underAttack(t, New(Config{}), fabric.ConnAttr{}, 0)
	mw, _ := c.AllocMW()
	seg, err := mw.Prepare(fabric.SGE{Buf: make([]byte, size)}, fabric.AccessRemoteRead)
	if err != nil {
		t.Fatal(err)
	}
	post(t, c, fabric.SendWR{Op: fabric.OpBindMW, MW: mw})
	postRecv(t, c, make([]byte, 8))
	peer.write(peer.fpdu(readRequest(1, rdmap.ReadRequest{SinkSTag: 1, Size: size, SrcSTag: seg.Handle, SrcTO: seg.Offset})),
		peer.fpdu(ddp.AppendUntagged(nil, &ddp.Untagged{Last: true, ULP: rdmap.Control(rdmap.OpSendInv), ULP32: seg.Handle, MSN: 1})))
	wantViolation(t, c, rdmaProtection(rdmap.CodeCannotInvalidate))
}

// TestOneDoorbell: a list is sent with one system call, and a large payload is received
// without a copy.
func TestOneDoorbell(t *testing.T) {
	a, b := join(t, New(Config{}), fabric.ConnAttr{})
	mr := register(t, b, 1<<20, fabric.AccessLocalWrite|fabric.AccessRemoteWrite)
	seg := mr.Segment()
	buf := make([]byte, 1<<20)
	postRecv(t, b, make([]byte, 64))
	var wrs []fabric.SendWR
	for i := range 8 {
		n := 200 << (i % 4)
		wrs = append(wrs, fabric.SendWR{Op: fabric.OpWrite, RKey: seg.Handle, RemoteOffset: seg.Offset + uint64(i)*1000, SGL: []fabric.SGE{{Buf: buf[:n]}}})
	}
	wrs = append(wrs, fabric.SendWR{Op: fabric.OpSend, Flags: fabric.Signaled, SGL: []fabric.SGE{{Buf: buf[:64]}}})
	post(t, a, wrs...)
	next(t, a)
	next(t, b)
	if s := a.Stats(); s.Writev != 1 || s.Doorbells != 1 || s.TxFPDUs != 9 {
		t.Errorf("a list of nine: %+v", s)
	}
	before := b.Stats()
	postRecv(t, b, make([]byte, 64))
	post(t, a, fabric.SendWR{Op: fabric.OpWrite, RKey: seg.Handle, RemoteOffset: seg.Offset, SGL: []fabric.SGE{{Buf: buf}}}, wrs[8])
	next(t, a)
	next(t, b)
	after := b.Stats()
	if d := after.ReadDirect - before.ReadDirect; d < 8 {
		t.Errorf("a megabyte in 17 segments was read with %d direct reads: %+v", d, after)
	}
	if after.RxFPDUs-before.RxFPDUs != 18 || after.RxBytes != a.Stats().TxBytes {
		t.Errorf("received %+v, sent %+v", after, a.Stats())
	}
}

// TestWriterComesAndGoes: while the socket is full there is a writer goroutine.
func TestWriterComesAndGoes(t *testing.T) {
	c, peer := connectRaw(t, New(Config{}), fabric.ConnAttr{})
	writing := func() bool { return look(&c.tx, func(t *sender) bool { return t.writer }) }
	const size = 32 << 20
	for range 2 {
		post(t, c, fabric.SendWR{ID: 1, Op: fabric.OpWrite, Flags: fabric.Signaled, SGL: []fabric.SGE{{Buf: make([]byte, size)}}})
		if !writing() {
			t.Error("nobody waits for room in a full socket")
		}
		for got := 0; got < size; {
			got += len(peer.wantSegment("a segment", rdmap.OpWrite).payload)
		}
		if wc := next(t, c); wc.ID != 1 || wc.Status != fabric.WCSuccess {
			t.Fatalf("completion %+v", wc)
		}
		pollUntil(t, c, "the writer's end", func() bool { return !writing() })
	}
	c.writers.Wait()
	if s := c.Stats(); s.Writers != 2 {
		t.Errorf("%+v", s)
	}
}

// TestWakes: no Wake is lost.
func TestWakes(t *testing.T) {
	a, _ := join(t, New(Config{}), fabric.ConnAttr{})
	woken := make(chan struct{})
	quit := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			if err := a.Wait(); err != nil {
				return
			}
			select {
			case woken <- struct{}{}:
			case <-quit:
				return
			}
		}
	})
	for range 20000 {
		a.Wake()
		<-woken
	}
	close(quit)
	a.Wake()
	wg.Wait()
	// A Wake without a waiter is for the next Wait.
	a.Wake()
	if err := a.Wait(); err != nil {
		t.Fatal(err)
	}
}

// TestWaitSeesOthersWork: a waiter returns for completions that other goroutines have caused.
func TestWaitSeesOthersWork(t *testing.T) {
	a, b := join(t, New(Config{}), fabric.ConnAttr{})
	go b.Wait()
	done := make(chan fabric.WC)
	go func() {
		for {
			if err := a.Wait(); err != nil {
				return
			}
			var wc [1]fabric.WC
			if n, _ := a.Poll(wc[:]); n > 0 {
				done <- wc[0]
			}
		}
	}()
	for i := range uint64(3000) {
		post(t, a, fabric.SendWR{ID: i, Op: fabric.OpWrite, Flags: fabric.Signaled})
		if wc := <-done; wc.ID != i {
			t.Fatalf("completion %+v, want %d", wc, i)
		}
	}
}

// TestDisconnectHeld: Disconnect of a responder that may not send yet does not wait forever
// for its requests.
func TestDisconnectHeld(t *testing.T) {
	c, peer := underAttack(t, New(Config{}), fabric.ConnAttr{}, 0)
	post(t, c, fabric.SendWR{ID: 1, Op: fabric.OpSend, Flags: fabric.Signaled})
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Millisecond)
	defer cancel()
	if err := c.Disconnect(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Disconnect: %v", err)
	}
	wcs, _ := drive(t, c)
	if len(wcs) != 1 || wcs[0].Status != fabric.WCFlushErr {
		t.Errorf("completions %+v", wcs)
	}
	c.Close()
	peer.wantEnd("of a connection that was given up")
}

// TestDisconnectAnswers: Reads of the peer that have arrived are answered before the end.
func TestDisconnectAnswers(t *testing.T) {
	const size = 8 << 20
	c, peer := underAttack(t, New(Config{}), fabric.ConnAttr{}, 0)
	seg := register(t, c, size, fabric.AccessRemoteRead).Segment()
	peer.write(peer.fpdu(readRequest(1, rdmap.ReadRequest{SinkSTag: 1, Size: size, SrcSTag: seg.Handle, SrcTO: seg.Offset})))
	pollUntil(t, c, "a full socket", func() bool { return c.Stats().Writers > 0 })
	gone := make(chan error, 1)
	go func() { gone <- c.Disconnect(context.Background()) }()
	for got := 0; got < size; {
		got += len(peer.wantSegment("a Read Response", rdmap.OpReadResponse).payload)
	}
	peer.wantEnd("after the answer")
	peer.c.Close()
	if err := <-gone; err != nil {
		t.Errorf("Disconnect: %v", err)
	}
	if _, end := drive(t, c); !end.Clean || end.Remote {
		t.Errorf("ended with %v", end)
	}
}

// TestCloseAbandons: Close with outstanding requests is not an orderly close for the peer.
func TestCloseAbandons(t *testing.T) {
	a, b := join(t, New(Config{}), fabric.ConnAttr{})
	seg := register(t, b, 8, fabric.AccessRemoteRead).Segment()
	post(t, a, fabric.SendWR{Op: fabric.OpRead, RKey: seg.Handle, RemoteOffset: seg.Offset, SGL: []fabric.SGE{{Buf: make([]byte, 8)}}})
	a.Close()
	if _, end := drive(t, b); end.Clean {
		t.Errorf("ended with %v", end)
	}
	a, b = join(t, New(Config{}), fabric.ConnAttr{})
	post(t, a, fabric.SendWR{Op: fabric.OpWrite})
	a.Close()
	if _, end := drive(t, b); !end.Clean || !end.Remote {
		t.Errorf("ended with %v, want an orderly end after idle", end)
	}
}

// TestIdleMemory: an idle connection has no goroutine and at most 40 KiB of memory, with 32
// receives posted and after some use.
func TestIdleMemory(t *testing.T) {
	const pairs = 100
	p := New(Config{})
	buf := make([]byte, 1024)
	conns := make([]*Conn, 0, 2*pairs)
	one := func() {
		a, b := join(t, p, fabric.ConnAttr{})
		for _, c := range []*Conn{a, b} {
			recvs := make([]fabric.RecvWR, 32)
			for i := range recvs {
				recvs[i].SGE.Buf = buf
			}
			if err := c.PostRecv(recvs); err != nil {
				t.Fatal(err)
			}
		}
		for range 8 {
			post(t, a, fabric.SendWR{Op: fabric.OpSend, Flags: fabric.Signaled, SGL: []fabric.SGE{{Buf: buf}}})
			next(t, a)
			next(t, b)
		}
		// A waiter returns the stage to the pool.
		for _, c := range []*Conn{a, b} {
			c.Poll(nil)
		}
		conns = append(conns, a, b)
	}
	one()
	heap := func() uint64 {
		var m runtime.MemStats
		for range 3 {
			runtime.GC()
		}
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	goroutines := runtime.NumGoroutine()
	before := heap()
	for range pairs {
		one()
	}
	each := float64(heap()-before) / (2 * pairs)
	t.Logf("%.1f KiB per connection", each/1024)
	if each > 40<<10 {
		t.Errorf("%.1f KiB per idle connection, want at most 40", each/1024)
	}
	if n := runtime.NumGoroutine(); n > goroutines {
		t.Errorf("%d goroutines for %d idle connections", n-goroutines, 2*pairs)
	}
	runtime.KeepAlive(conns)
}

// TestStress: all operations concurrently, and then the end at some moment, from either side.
func TestStress(t *testing.T) {
	rounds := 24
	if testing.Short() {
		rounds = 8
	}
	for round := range rounds {
		p := New(Config{CRC: round%2 == 0, MaxFPDU: []int{0, 1448, 9000}[round%3], PeerToPeer: true})
		a, b := join(t, p, fabric.ConnAttr{InboundReads: 3, OutboundReads: 3})
		var wg sync.WaitGroup
		ends := []*Conn{a, b}
		var put, get [2]fabric.Segment
		for i, c := range ends {
			put[i] = register(t, c, 1<<18, fabric.AccessLocalWrite|fabric.AccessRemoteWrite).Segment()
			get[i] = register(t, c, 1<<18, fabric.AccessRemoteRead).Segment()
			for range 64 {
				postRecv(t, c, make([]byte, 256))
			}
		}
		for i, c := range ends {
			put, get := put[1-i], get[1-i]
			wg.Go(func() { // drives
				var wc [16]fabric.WC
				for {
					n, err := c.Poll(wc[:])
					if err != nil {
						return
					}
					for _, w := range wc[:n] {
						if w.Op == fabric.WCRecv && w.Status == fabric.WCSuccess {
							c.PostRecv([]fabric.RecvWR{{SGE: fabric.SGE{Buf: make([]byte, 256)}}})
						}
					}
					if n == 0 {
						c.Wait()
					}
				}
			})
			for k := range 2 {
				wg.Go(func() { // posts
					out, in := make([]byte, 200<<10), make([]byte, 200<<10)
					for n := 1; ; n++ {
						size := (n * 7919) % len(out)
						wr := fabric.SendWR{Op: fabric.OpWrite, RKey: put.Handle, RemoteOffset: put.Offset, SGL: []fabric.SGE{{Buf: out[:size]}}}
						if (n+k)%2 == 0 {
							wr = fabric.SendWR{Op: fabric.OpRead, RKey: get.Handle, RemoteOffset: get.Offset, SGL: []fabric.SGE{{Buf: in[:size]}}}
						}
						if n%5 == 0 {
							wr.Flags = fabric.Signaled
						}
						err := c.Post([]fabric.SendWR{wr})
						if errors.Is(err, fabric.ErrQueueFull) {
							runtime.Gosched()
						} else if err != nil {
							return
						}
					}
				})
			}
			wg.Go(func() { // wakes, exposes and takes back
				for {
					mw, err := c.AllocMW()
					if err != nil {
						return
					}
					c.Wake()
					mw.Prepare(fabric.SGE{Buf: make([]byte, 64)}, fabric.AccessRemoteRead)
					c.Post([]fabric.SendWR{{Op: fabric.OpBindMW, MW: mw}})
					c.Stats()
					mw.Close()
					if c.over.Load() {
						return
					}
				}
			})
		}
		for a.Stats().TxFPDUs < uint64(100+round*20) && !a.over.Load() {
			runtime.Gosched()
		}
		wg.Go(func() { ends[round%2].Close() })
		if round%4 == 0 {
			wg.Go(func() { ends[1-round%2].Close() })
		}
		wg.Wait()
		a.Close()
		b.Close()
		if l := p.OpenObjects(); l != (OpenObjects{}) {
			t.Fatalf("left open: %+v", l)
		}
	}
}

// TestTable tests the STag table.
func TestTable(t *testing.T) {
	c, _ := join(t, New(Config{}), fabric.ConnAttr{})
	mem := make([]byte, 100)
	mr, err := c.RegMR(mem, fabric.AccessLocalWrite|fabric.AccessRemoteRead|fabric.AccessRemoteWrite)
	if err != nil {
		t.Fatal(err)
	}
	seg := mr.Segment()
	tb := &c.stags
	for _, tc := range []struct {
		stag uint32
		off  uint64 // from the segment's
		n    uint32
		want fault
	}{
		{seg.Handle, 0, 100, faultNone},
		{seg.Handle, 100, 0, faultNone},
		{seg.Handle, 99, 1, faultNone},
		{seg.Handle, 99, 2, faultBounds},
		{seg.Handle, 101, 0, faultBounds},
		{seg.Handle, 0, 101, faultBounds},
		{seg.Handle, 0, 1<<32 - 1, faultBounds},
		{seg.Handle, -seg.Offset - 1, 1, faultWrap},
		{seg.Handle, -seg.Offset - 1, 0, faultBounds},
		{seg.Handle, -seg.Offset, 0, faultBounds},
		{seg.Handle, ^uint64(0), 1, faultBounds},
		{seg.Handle ^ 0x80, 0, 1, faultSTag},
		{seg.Handle + 1<<stagKeyBits, 0, 1, faultSTag},
		{0, 0, 1, faultSTag},
		{0xffffffff, 0, 1, faultSTag},
	} {
		buf, _, got := tb.remote(tc.stag, seg.Offset+tc.off, tc.n, fabric.AccessRemoteRead)
		if got != tc.want {
			t.Errorf("STag %#x, offset base+%#x, %d bytes: %v, want %v", tc.stag, tc.off, tc.n, got, tc.want)
		}
		if got == faultNone && (uint32(len(buf)) != tc.n || cap(buf) != len(buf) || tc.n > 0 && &buf[0] != &mem[tc.off]) {
			t.Errorf("offset %d, %d bytes: another place", tc.off, tc.n)
		}
	}
	for _, tc := range []struct {
		sge  fabric.SGE
		want bool
	}{
		{fabric.SGE{Buf: mem, LKey: mr.LKey()}, true},
		{fabric.SGE{Buf: mem[50:], LKey: mr.LKey()}, true},
		{fabric.SGE{LKey: mr.LKey()}, true},
		{fabric.SGE{Buf: make([]byte, 100), LKey: mr.LKey()}, false},
		{fabric.SGE{Buf: make([]byte, 100)}, true},
		{fabric.SGE{Buf: mem, LKey: mr.LKey() ^ 1}, false},
	} {
		if _, ok := tb.local(&tc.sge, true); ok != tc.want {
			t.Errorf("SGE of %d bytes with key %#x: %t", len(tc.sge.Buf), tc.sge.LKey, ok)
		}
	}
	// An index is reused with another key.
	mr.Close()
	mr2, err := c.RegMR(mem, 0)
	if err != nil {
		t.Fatal(err)
	}
	if a, b := mr2.LKey(), seg.Handle; a>>stagKeyBits != b>>stagKeyBits || a == b {
		t.Errorf("the next region is %#x after %#x", a, b)
	}
	if s := mr2.Segment(); s.Handle != 0 || s.Offset != 0 {
		t.Errorf("a local region has the handle %#x, offset %#x", s.Handle, s.Offset)
	}
}

// TestTableFull: a connection has 1,048,574 regions and windows, and one more when
// one of them is closed.
func TestTableFull(t *testing.T) {
	c := New(Config{}).newConn(fabric.ConnAttr{}, &setup{})
	defer c.Close()
	register(t, c, 1, 0)
	// Most pages of this table are never touched.
	m, err := syscall.Mmap(-1, 0, 1<<20*int(unsafe.Sizeof(entry{})), syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_PRIVATE|syscall.MAP_ANON|syscall.MAP_NORESERVE)
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Munmap(m)
	c.stags.entries.Lock().e = unsafe.Slice((*entry)(unsafe.Pointer(&m[0])), 1<<20)[:1_048_574]
	c.stags.entries.Unlock()
	mw, err := c.AllocMW()
	if err != nil {
		t.Fatal(err)
	}
	if i := mw.(*MW).index; i != 1_048_574 || i >= sinkSTag(0)>>stagKeyBits {
		t.Errorf("the last index is %d", i)
	}
	var ce *fabric.CapabilityError
	if _, err := c.RegMR(make([]byte, 1), 0); !errors.As(err, &ce) {
		t.Errorf("another region: %v, want a *fabric.CapabilityError", err)
	}
	if _, err := c.AllocMW(); !errors.As(err, &ce) {
		t.Errorf("another window: %v, want a *fabric.CapabilityError", err)
	}
	mw.Close()
	if _, err := c.AllocMW(); err != nil {
		t.Errorf("when one was closed: %v", err)
	}
}

// TestGrowingRings: numbers remain valid while a ring grows.
func TestGrowingRings(t *testing.T) {
	var r ring[int]
	sum := 0
	for i := range 1000 {
		*r.push() = i
		if i%3 == 0 {
			sum += *r.at(r.head)
			r.drop(1)
		}
	}
	for i := r.head; i != r.tail; i++ {
		if *r.at(i) != int(i) {
			t.Fatalf("element %d is %d", i, *r.at(i))
		}
	}
	if r.len() != 1000-334 || sum != 333*334/2 {
		t.Errorf("%d left, sum %d", r.len(), sum)
	}
}

// TestPartialBytes: a stream that arrives byte by byte.
func TestPartialBytes(t *testing.T) {
	for _, crc := range []mpa.Flags{0, mpa.FlagCRC} {
		c, peer := underAttack(t, New(Config{}), fabric.ConnAttr{}, crc)
		mr := register(t, c, 100, fabric.AccessLocalWrite|fabric.AccessRemoteWrite)
		seg := mr.Segment()
		in := make([]byte, 50)
		postRecv(t, c, in)
		var b []byte
		b = append(b, peer.fpdu(tagged(rdmap.OpWrite, false, seg.Handle, seg.Offset), garbage[:33])...)
		b = append(b, peer.fpdu(tagged(rdmap.OpWrite, true, seg.Handle, seg.Offset+33), garbage[:67])...)
		b = append(b, peer.fpdu(untagged(rdmap.OpSend, false, 0, 1, 0), garbage[:21])...)
		b = append(b, peer.fpdu(untagged(rdmap.OpSendSE, true, 0, 1, 21), garbage[:29])...)
		for i := range b {
			peer.write(b[i : i+1])
			if i%3 == 0 {
				poll(t, c)
			}
		}
		if wc := next(t, c); wc.Len != 50 || !bytes.Equal(in, garbage[:50]) || !bytes.Equal(mr.Bytes(), garbage[:100]) {
			t.Errorf("received %+v", wc)
		}
	}
}

// TestSendFlavours: the four Sends on the wire.
func TestSendFlavours(t *testing.T) {
	c, peer := connectRaw(t, New(Config{}), fabric.ConnAttr{})
	for i, tc := range []struct {
		wr   fabric.SendWR
		op   rdmap.Opcode
		stag uint32
	}{
		{fabric.SendWR{Op: fabric.OpSend, RKey: 9}, rdmap.OpSend, 0},
		{fabric.SendWR{Op: fabric.OpSendInv, RKey: 9}, rdmap.OpSendInv, 9},
		{fabric.SendWR{Op: fabric.OpSend, Flags: fabric.Solicited}, rdmap.OpSendSE, 0},
		{fabric.SendWR{Op: fabric.OpSendInv, Flags: fabric.Solicited, RKey: 10}, rdmap.OpSendSEInv, 10},
	} {
		post(t, c, tc.wr)
		s := peer.wantSegment(tc.op.String(), tc.op)
		if s.u.ULP32 != tc.stag || s.u.MSN != uint32(i+1) || s.u.QN != 0 || !s.u.Last || len(s.payload) != 0 {
			t.Errorf("%v: %+v", tc.op, s.u)
		}
	}
}

// TestGolden: the first FPDUs of an initiator, byte by byte, written by hand from RFC 5044
// section 4, RFC 5041 section 4 and RFC 5040 section 4.
func TestGolden(t *testing.T) {
	c, peer := connectRaw(t, New(Config{}), fabric.ConnAttr{})
	post(t, c,
		fabric.SendWR{Op: fabric.OpSend, SGL: []fabric.SGE{{Buf: []byte("ab")}, {Buf: []byte("c")}}},
		fabric.SendWR{Op: fabric.OpWrite, RKey: 0x01020304, RemoteOffset: 0x1112131415161718, SGL: []fabric.SGE{{Buf: []byte("write")}}},
		fabric.SendWR{Op: fabric.OpRead, RKey: 0x21222324, RemoteOffset: 0x3132333435363738, SGL: []fabric.SGE{{Buf: make([]byte, 0x55)}}})
	want := testutil.Hex(t, "0015"+"4143"+"00000000"+"00000000"+"00000001"+"00000000"+"616263"+"00"+"00000000"+
		"0013"+"c140"+"01020304"+"1112131415161718"+"7772697465"+"000000"+"00000000"+
		"002e"+"4141"+"00000000"+"00000001"+"00000001"+"00000000")
	got := peer.read("three FPDUs", len(want))
	if !bytes.Equal(got, want) {
		t.Errorf("sent\n%x, want\n%x", got, want)
	}
	rr := peer.read("the Read Request", 28+4)
	if binary.BigEndian.Uint32(rr[12:]) != 0x55 || !bytes.Equal(rr[16:], testutil.Hex(t, "21222324"+"3132333435363738"+"00000000")) {
		t.Errorf("the Read Request is %x", rr)
	}
}

// TestNoInterleaving: a message is sent completely before the next one begins, as siw
// requires.
func TestNoInterleaving(t *testing.T) {
	const size = 300000
	c, peer := underAttack(t, New(Config{MaxFPDU: 9000}), fabric.ConnAttr{}, 0)
	seg := register(t, c, size, fabric.AccessRemoteRead).Segment()
	var reads []byte
	for msn := range uint32(4) {
		reads = append(reads, peer.fpdu(readRequest(1+msn, rdmap.ReadRequest{SinkSTag: 50 + msn, Size: size, SrcSTag: seg.Handle, SrcTO: seg.Offset}))...)
	}
	var wrs []fabric.SendWR
	for i := range uint32(6) {
		wr := fabric.SendWR{Op: fabric.OpWrite, RKey: 60 + i, SGL: []fabric.SGE{{Buf: make([]byte, size)}}}
		if i%2 == 1 {
			wr.Op = fabric.OpSend
		}
		wrs = append(wrs, wr)
	}
	post(t, c, wrs...) // and wait for the peer's first word
	peer.write(reads)
	ended := make(chan struct{})
	go func() {
		drive(t, c)
		close(ended)
	}()
	responses, lastResponse := 0, 0
	for messages := 0; messages < 10; messages++ {
		first, got := peer.wantAny("the first segment of a message"), 0
		for s := first; ; s = peer.wantAny("the next segment of a message") {
			if s.op != first.op || s.t.STag != first.t.STag || s.u.MSN != first.u.MSN {
				t.Fatalf("a %v of %+v in the middle of a %v of %+v", s.op, s.t, first.op, first.t)
			}
			if off := s.t.TO + uint64(s.u.MO); off != uint64(got) {
				t.Fatalf("%v at offset %d, want %d", s.op, off, got)
			}
			got += len(s.payload)
			if s.t.Last || s.u.Last {
				break
			}
		}
		if got != size {
			t.Fatalf("a %v of %d bytes", first.op, got)
		}
		if first.op == rdmap.OpReadResponse {
			responses++
			lastResponse = messages
		}
	}
	if responses != 4 || lastResponse == 9 {
		t.Errorf("%d responses, the last as message %d: they and our own messages take turns", responses, lastResponse)
	}
	peer.c.Close()
	<-ended
}

// TestReadBehindDisconnect: a Read that arrives after this side has shut down its write side
// is not answered, and the end is orderly nevertheless.
func TestReadBehindDisconnect(t *testing.T) {
	c, peer := underAttack(t, New(Config{}), fabric.ConnAttr{}, 0)
	seg := register(t, c, 64, fabric.AccessRemoteRead).Segment()
	gone := make(chan error, 1)
	go func() { gone <- c.Disconnect(context.Background()) }()
	peer.wantEnd("of what this side has to say")
	peer.write(peer.fpdu(readRequest(1, rdmap.ReadRequest{SinkSTag: 1, Size: 64, SrcSTag: seg.Handle, SrcTO: seg.Offset})))
	peer.c.Close()
	if err := <-gone; err != nil {
		t.Errorf("Disconnect: %v", err)
	}
	if _, end := drive(t, c); !end.Clean || end.Remote {
		t.Errorf("ended with %v", end)
	}
}

// TestInvalidationBehindBlockedBatch: a peer that has received all of a response invalidates
// the window, while the rest of the response's batch waits for space in the socket.
func TestInvalidationBehindBlockedBatch(t *testing.T) {
	const size = 4096
	c, peer := underAttack(t, New(Config{}), fabric.ConnAttr{}, 0)
	if err := syscall.SetsockoptInt(c.link.Load().sock.fd, syscall.SOL_SOCKET, syscall.SO_SNDBUF, 16<<10); err != nil {
		t.Fatal(err)
	}
	mw, _ := c.AllocMW()
	seg, err := mw.Prepare(fabric.SGE{Buf: make([]byte, size)}, fabric.AccessRemoteRead)
	if err != nil {
		t.Fatal(err)
	}
	post(t, c, fabric.SendWR{Op: fabric.OpBindMW, MW: mw})
	postRecv(t, c, make([]byte, 8))
	tx := c.tx.Lock()
	post(t, c, fabric.SendWR{Op: fabric.OpWrite, RKey: 0x100, SGL: []fabric.SGE{{Buf: make([]byte, 8<<20)}}})
	tx.turn = true // the response goes first
	peer.write(peer.fpdu(readRequest(1, rdmap.ReadRequest{SinkSTag: 1, Size: size, SrcSTag: seg.Handle, SrcTO: seg.Offset})))
	for c.readsOfPeer() != 1 {
		c.Poll(nil)
	}
	c.unlockTx()
	pollUntil(t, c, "a full socket", func() bool { return c.Stats().Writers == 1 })
	if s := peer.wantSegment("the response", rdmap.OpReadResponse); len(s.payload) != size {
		t.Fatalf("response of %d bytes", len(s.payload))
	}
	peer.write(peer.fpdu(ddp.AppendUntagged(nil, &ddp.Untagged{Last: true, ULP: rdmap.Control(rdmap.OpSendInv), ULP32: seg.Handle, MSN: 1})))
	if wc := next(t, c); wc.ID != 100 || !wc.WithInv || wc.InvalidatedKey != seg.Handle {
		t.Errorf("received %+v", wc)
	}
	if b := c.tx.Lock().b; b == nil || !b.blocked || b.pos == b.niov {
		t.Error("the batch is no longer waiting, so that nothing has been shown")
	}
	c.unlockTx()
}

// TestSilentRoom: unsignaled requests free queue entries without a completion, and Wait
// returns after Post has found the queue full.
func TestSilentRoom(t *testing.T) {
	client, server := join(t, New(Config{}), fabric.ConnAttr{SendDepth: 4, RecvDepth: 1})
	defer client.Close()
	defer server.Close()
	serve := sync.OnceFunc(func() {
		go func() {
			for server.Wait() == nil {
				server.Poll(nil)
			}
		}()
	})
	sink := make([]byte, 8<<20) // four do not fit the socket
	mr, err := server.RegMR(sink, fabric.AccessLocalWrite|fabric.AccessRemoteWrite)
	if err != nil {
		t.Fatal(err)
	}
	seg, data := mr.Segment(), make([]byte, len(sink))
	full := 0
	for range 20 {
		put := []fabric.SendWR{{Op: fabric.OpWrite, RKey: seg.Handle, RemoteOffset: seg.Offset, SGL: []fabric.SGE{{Buf: data}}}}
		err := client.Post(put)
		for ; errors.Is(err, fabric.ErrQueueFull); err = client.Post(put) {
			full++
			serve()
			if err := client.Wait(); err != nil {
				t.Fatal(err)
			}
			var wcs [1]fabric.WC
			if n, err := client.Poll(wcs[:]); n > 0 || err != nil {
				t.Fatal(n, err)
			}
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if full == 0 {
		t.Error("the queue was never full")
	}
}

// TestNumbersWrap: messages arrive while their numbers wrap (RFC 5041 section 4.3),
// and Reads while the keys and the offsets of their sinks begin anew.
func TestNumbersWrap(t *testing.T) {
	a, b := join(t, New(Config{}), fabric.ConnAttr{})
	ends := []*Conn{a, b}
	for _, c := range ends {
		tx, rx, st := c.tx.Lock(), c.rx.Lock(), c.state.Lock()
		for _, qn := range []int{rdmap.QNSend, rdmap.QNRead} {
			tx.msn[qn], rx.msn[qn] = math.MaxUint32-5, math.MaxUint32-5
		}
		if st.sq.len() > 0 {
			t.Fatal("a request is under way")
		}
		at := uint64(1<<16 - 10) // sinkTO(1<<16) is that of 0, and so is sinkSTag
		st.sq.head, st.sq.tail, st.written, tx.next = at, at, at, at
		c.state.Unlock()
		c.rx.Unlock()
		c.tx.Unlock()
	}
	var mrs [2]fabric.MR
	mems := [2][]byte{make([]byte, 64), make([]byte, 64)}
	for i, c := range ends {
		mr, err := c.RegMR(mems[i], fabric.AccessRemoteRead)
		if err != nil {
			t.Fatal(err)
		}
		mrs[i] = mr
	}
	for n := range byte(20) {
		for i, c := range ends {
			peer := ends[1-i]
			for k := range mems[1-i] {
				mems[1-i][k] = n + byte(k)
			}
			in, back := make([]byte, 8), make([]byte, 64)
			postRecv(t, peer, in)
			seg := mrs[1-i].Segment()
			post(t, c, fabric.SendWR{ID: 1, Op: fabric.OpRead, RKey: seg.Handle, RemoteOffset: seg.Offset, SGL: []fabric.SGE{{Buf: back}}},
				fabric.SendWR{ID: 2, Op: fabric.OpSend, Flags: fabric.Signaled, SGL: []fabric.SGE{{Buf: []byte{n, 1, 2, 3}}}})
			if wc := next(t, peer); wc.Status != 0 || wc.Len != 4 || in[0] != n {
				t.Fatalf("message %d: %+v, %x", n, wc, in)
			}
			if wc := next(t, c); wc.ID != 2 || wc.Status != 0 || !bytes.Equal(back, mems[1-i]) {
				t.Fatalf("request %d: %+v, read %x, want %x", n, wc, back, mems[1-i])
			}
		}
	}
	for _, c := range ends {
		msn, tail := look(&c.tx, func(t *sender) [3]uint32 { return t.msn }), look(&c.state, func(st *state) uint64 { return st.sq.tail })
		if msn[rdmap.QNSend] > 20 || msn[rdmap.QNRead] > 20 || tail <= 1<<16 {
			t.Errorf("no number has wrapped: %d, %d", msn, tail)
		}
	}
}
