//go:build linux

package iwarp

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/internal/lockorder"
	"github.com/rpcrdma/rpcrdma/proto/ddp"
	"github.com/rpcrdma/rpcrdma/proto/mpa"
	"github.com/rpcrdma/rpcrdma/proto/rdmap"
)

// patience bounds every single expectation.
const patience = 20 * time.Second

// A rawPeer is a scripted peer that sends and receives raw bytes. Expectations have a description for
// messages.
type rawPeer struct {
	t   testing.TB
	c   net.Conn
	crc bool
}

func (p *rawPeer) write(b ...[]byte) {
	p.t.Helper()
	p.c.SetDeadline(time.Now().Add(patience))
	if _, err := p.c.Write(bytes.Join(b, nil)); err != nil {
		p.t.Fatalf("the scripted peer cannot write: %v", err)
	}
}

func (p *rawPeer) read(what string, n int) []byte {
	p.t.Helper()
	p.c.SetDeadline(time.Now().Add(patience))
	b := make([]byte, n)
	if m, err := io.ReadFull(p.c, b); err != nil {
		p.t.Fatalf("want %s of %d bytes, got %x and %v", what, n, b[:m], err)
	}
	return b
}

// wantSilence wants nothing to have arrived. Bytes written to a loopback socket before the
// call would have.
func (p *rawPeer) wantSilence(what string) {
	p.t.Helper()
	rc, err := p.c.(syscall.Conn).SyscallConn()
	if err != nil {
		p.t.Fatal(err)
	}
	rc.Control(func(fd uintptr) {
		if waiting, eof := peek(int(fd)); waiting || eof {
			p.t.Fatalf("want silence %s; something has come: %t, the end: %t", what, waiting, eof)
		}
	})
}

// wantEnd wants the end of the stream, orderly or by a reset, and nothing before it.
func (p *rawPeer) wantEnd(what string) {
	p.t.Helper()
	p.c.SetDeadline(time.Now().Add(patience))
	b := make([]byte, 64)
	n, err := p.c.Read(b)
	if n > 0 || err != io.EOF && !errors.Is(err, syscall.ECONNRESET) {
		p.t.Fatalf("want the end of the stream %s, got %x and %v", what, b[:n], err)
	}
}

func (p *rawPeer) wantFrame(what string, kind mpa.Kind) (mpa.Start, []byte) {
	p.t.Helper()
	var s mpa.Start
	if _, err := mpa.ConsumeStart(p.read(what, mpa.StartLen), &s); err != nil || s.Kind != kind {
		p.t.Fatalf("want %s, got %+v and %v", what, s, err)
	}
	return s, p.read("its private data", s.PDLength)
}

// startFrame is a start-up frame with private data; the enhanced data is part
// of that.
func startFrame(s mpa.Start, pd []byte) []byte {
	s.PDLength = len(pd)
	return append(mpa.AppendStart(nil, &s), pd...)
}

func enhanced(e mpa.Enhanced, pd ...byte) []byte { return append(mpa.AppendEnhanced(nil, &e), pd...) }

func (p *rawPeer) fpdu(ulpdu ...[]byte) []byte {
	return mpa.AppendFPDU(nil, bytes.Join(ulpdu, nil), p.crc)
}

// A segment as received by the scripted peer.
type segment struct {
	tagged   bool
	t        ddp.Tagged
	u        ddp.Untagged
	op       rdmap.Opcode
	payload  []byte
	fpduSize int
}

func (p *rawPeer) wantSegment(what string, op rdmap.Opcode) segment {
	p.t.Helper()
	s := p.wantAny(what)
	if s.op != op {
		p.t.Fatalf("want %s, a %v, got a %v: %+v", what, op, s.op, s)
	}
	return s
}

// wantAny wants a segment of any kind.
func (p *rawPeer) wantAny(what string) segment {
	p.t.Helper()
	l := p.read("the length of "+what, 2)
	n := int(binary.BigEndian.Uint16(l))
	rest := p.read(what, mpa.FPDULen(n)-2)
	u, _, err := mpa.ConsumeFPDU(append(l, rest...), p.crc)
	if err != nil {
		p.t.Fatalf("%s: %v", what, err)
	}
	if !p.crc && mpa.CRC(rest[len(rest)-4:]) != 0 {
		p.t.Errorf("%s: the CRC field of a stream without CRCs is not zero", what)
	}
	s := segment{tagged: len(u) > 0 && ddp.IsTagged(u), fpduSize: mpa.FPDULen(n)}
	var ulp uint8
	var k int
	if s.tagged {
		k, err = ddp.ConsumeTagged(u, &s.t)
		ulp = s.t.ULP
	} else {
		k, err = ddp.ConsumeUntagged(u, &s.u)
		ulp = s.u.ULP
	}
	if err == nil {
		s.payload = u[k:]
		s.op, err = rdmap.ParseControl(ulp)
	}
	if err != nil {
		p.t.Fatalf("%s: %v in %x", what, err, u)
	}
	return s
}

// wantTerminate wants a Terminate message and then the end.
func (p *rawPeer) wantTerminate(what string, cause rdmap.Cause) rdmap.Terminate {
	p.t.Helper()
	s := p.wantSegment("a Terminate message "+what, rdmap.OpTerminate)
	if s.u.QN != rdmap.QNTerminate || s.u.MSN != 1 || s.u.MO != 0 || !s.u.Last {
		p.t.Errorf("the Terminate message has the header %+v", s.u)
	}
	var m rdmap.Terminate
	if n, err := rdmap.ConsumeTerminate(s.payload, &m); err != nil || n != len(s.payload) {
		p.t.Fatalf("Terminate message %x: %d, %v", s.payload, n, err)
	}
	if m.Cause != cause {
		p.t.Fatalf("the Terminate message %s says %v, want %v", what, m.Cause, cause)
	}
	p.wantEnd("after the Terminate message " + what)
	return m
}

func tagged(op rdmap.Opcode, last bool, stag uint32, to uint64) []byte {
	return ddp.AppendTagged(nil, &ddp.Tagged{Last: last, ULP: rdmap.Control(op), STag: stag, TO: to})
}

func untagged(op rdmap.Opcode, last bool, qn, msn, mo uint32) []byte {
	return ddp.AppendUntagged(nil, &ddp.Untagged{Last: last, ULP: rdmap.Control(op), QN: qn, MSN: msn, MO: mo})
}

func readRequest(msn uint32, r rdmap.ReadRequest) []byte {
	return rdmap.AppendReadRequest(untagged(rdmap.OpReadRequest, true, rdmap.QNRead, msn, 0), &r)
}

// dialRaw connects to a listener and sends nothing.
func dialRaw(t testing.TB, l fabric.Listener) *rawPeer {
	t.Helper()
	return dialRawFrom(t, "127.0.0.1", l)
}

// dialRawFrom is dialRaw from one of this host's addresses.
func dialRawFrom(t testing.TB, host string, l fabric.Listener) *rawPeer {
	t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(host)}}
	c, err := d.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return &rawPeer{t: t, c: c}
}

func listen(t testing.TB, p *Provider, attr fabric.ConnAttr) fabric.Listener {
	t.Helper()
	l, err := p.Listen(context.Background(), "127.0.0.1:0", attr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

func acceptNext(t testing.TB, l fabric.Listener) *Conn {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	c, err := l.Accept(ctx)
	if err != nil {
		t.Fatalf("no connection request: %v", err)
	}
	t.Cleanup(func() { c.Close() })
	return c.(*Conn)
}

func mustAccept(t testing.TB, c *Conn, pd []byte) {
	t.Helper()
	if err := c.Accept(context.Background(), pd); err != nil {
		t.Fatalf("accept: %v", err)
	}
}

// underAttack sets up a responder with a scripted initiator. The responder has
// been accepted and nothing has been sent.
func underAttack(t testing.TB, p *Provider, attr fabric.ConnAttr, flags mpa.Flags) (*Conn, *rawPeer) {
	t.Helper()
	l := listen(t, p, attr)
	peer := dialRaw(t, l)
	peer.write(startFrame(mpa.Start{Kind: mpa.Request, Revision: 2, Flags: flags | mpa.FlagEnhanced}, enhanced(mpa.Enhanced{IRD: 4, ORD: 4})))
	c := acceptNext(t, l)
	mustAccept(t, c, nil)
	s, _ := peer.wantFrame("a reply", mpa.Reply)
	peer.crc = s.Flags&mpa.FlagCRC != 0
	return c, peer
}

// scriptedServer is a listener that the test plays, and a Conn that connects to it. connected
// receives the error of Connect.
func scriptedServer(t testing.TB, p *Provider, attr fabric.ConnAttr, pd []byte) (c *Conn, peer *rawPeer, connected <-chan error) {
	t.Helper()
	noNudges(p)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	fc, err := p.Resolve(context.Background(), l.Addr().String(), attr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { fc.Close() })
	done := make(chan error, 1)
	go func() { done <- fc.Connect(context.Background(), pd) }()
	nc, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { nc.Close() })
	return fc.(*Conn), &rawPeer{t: t, c: nc}, done
}

// connectRaw is scriptedServer with the usual handshake.
func connectRaw(t testing.TB, p *Provider, attr fabric.ConnAttr) (*Conn, *rawPeer) {
	t.Helper()
	c, peer, connected := scriptedServer(t, p, attr, nil)
	s, pd := peer.wantFrame("a request", mpa.Request)
	var e mpa.Enhanced
	mpa.ConsumeEnhanced(pd, &e)
	peer.crc = s.Flags&mpa.FlagCRC != 0
	peer.write(startFrame(mpa.Start{Kind: mpa.Reply, Revision: 2, Flags: s.Flags}, enhanced(mpa.Enhanced{IRD: e.ORD, ORD: e.IRD})))
	if err := <-connected; err != nil {
		t.Fatalf("connect: %v", err)
	}
	return c, peer
}

// noNudges disables empty Writes, which would depend on the speed of the test.
func noNudges(p *Provider) {
	if p.nudgeAfter == 0 {
		p.nudgeAfter = time.Hour
	}
}

// drive polls c until it ends, and returns the completions.
func drive(t testing.TB, c *Conn) (wcs []fabric.WC, end *fabric.ConnError) {
	t.Helper()
	timer := time.AfterFunc(patience, func() {
		t.Errorf("the connection has not ended: %+v", c.Stats())
		c.Close()
	})
	defer timer.Stop()
	var wc [8]fabric.WC
	for {
		n, err := c.Poll(wc[:])
		wcs = append(wcs, wc[:n]...)
		if err != nil {
			if !errors.As(err, &end) || !errors.Is(err, net.ErrClosed) {
				t.Fatalf("ended with %T: %v", err, err)
			}
			return wcs, end
		}
		if n == 0 {
			c.Wait()
		}
	}
}

// wantViolation drives c until it ends, and wants the given ProtocolError.
func wantViolation(t testing.TB, c *Conn, cause rdmap.Cause) []fabric.WC {
	t.Helper()
	wcs, end := drive(t, c)
	var pe *ProtocolError
	if !errors.As(end, &pe) || pe.Cause != cause || end.Remote || end.Clean {
		t.Errorf("ended with %#v (%v), want a *ProtocolError of %v", end, end, cause)
	}
	return wcs
}

func register(t testing.TB, c *Conn, n int, access fabric.Access) fabric.MR {
	t.Helper()
	mr, err := c.RegMR(make([]byte, n), access)
	if err != nil {
		t.Fatal(err)
	}
	return mr
}

func postRecv(t testing.TB, c *Conn, bufs ...[]byte) {
	t.Helper()
	for i, b := range bufs {
		if err := c.PostRecv([]fabric.RecvWR{{ID: 100 + uint64(i), SGE: fabric.SGE{Buf: b}}}); err != nil {
			t.Fatal(err)
		}
	}
}

func post(t testing.TB, c *Conn, wrs ...fabric.SendWR) {
	t.Helper()
	if err := c.Post(wrs); err != nil {
		t.Fatal(err)
	}
}

// TestScriptedPeer shows how the scripted peer is used.
func TestScriptedPeer(t *testing.T) {
	c, peer := underAttack(t, New(Config{}), fabric.ConnAttr{}, 0)
	in := make([]byte, 16)
	postRecv(t, c, in)
	peer.write(peer.fpdu(untagged(rdmap.OpSend, true, 0, 1, 0), []byte("ping")))
	if wc := next(t, c); wc.ID != 100 || string(in[:wc.Len]) != "ping" {
		t.Fatalf("received %+v, %q", wc, in)
	}
	post(t, c, fabric.SendWR{Op: fabric.OpSend, SGL: []fabric.SGE{{Buf: []byte("pong")}}})
	s := peer.wantSegment("the answer", rdmap.OpSend)
	if string(s.payload) != "pong" || s.u.MSN != 1 || !s.u.Last {
		t.Errorf("the answer is %+v", s)
	}
	peer.c.Close()
	if _, end := drive(t, c); !end.Remote || !end.Clean {
		t.Errorf("ended with %+v, want the peer's orderly end", end)
	}
}

// streamPair returns an established Conn over a Unix socket, without the cost of connection
// setup.
func streamPair(t testing.TB, p *Provider, attr fabric.ConnAttr, crc bool) (*Conn, *rawPeer) {
	t.Helper()
	c, fd := bareStream(t, p, attr, crc)
	f := os.NewFile(uintptr(fd), "peer")
	nc, err := net.FileConn(f)
	f.Close()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { nc.Close() })
	t.Cleanup(func() { c.Close() })
	return c, &rawPeer{t: t, c: nc, crc: crc}
}

// bareStream is streamPair with a descriptor for a peer. The caller closes both ends.
func bareStream(t testing.TB, p *Provider, attr fabric.ConnAttr, crc bool) (*Conn, int) {
	t.Helper()
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_NONBLOCK|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	attr, err = New(Config{}).checkAttr(attr)
	if err != nil {
		t.Fatal(err)
	}
	sock := newSocket(fds[0])
	l := link{sock: sock, crc: crc, maxTagged: 65000, maxUntagged: 64992, ird: attr.InboundReads, ord: attr.OutboundReads}
	c := p.newConn(attr, &setup{passive: true, laddr: &net.UnixAddr{}, raddr: &net.UnixAddr{}, link: l})
	c.attach(&l)
	c.state.Lock().phase = phaseUp
	c.state.Unlock()
	c.link.Store(&l)
	return c, fds[1]
}

// look returns what f sees of a part of a Conn.
func look[T, R any](part *lockorder.Value[T], f func(*T) R) R {
	defer part.Unlock()
	return f(part.Lock())
}

// len returns the number of entries that were ever in use, and one.
func (t *table) len() uint32 {
	return look(&t.entries, func(t *entries) uint32 { return uint32(len(t.e)) })
}

// seed makes the table give out the same tokens in every run.
func (t *table) seed() {
	t.entries.Lock().tokens = seededTokens([32]byte{})
	t.entries.Unlock()
}
