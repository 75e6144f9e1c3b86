//go:build linux

package iwarp

import (
	"testing"
	"time"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/proto/rdmap"
)

// wantNudge wants an empty Write.
func (p *rawPeer) wantNudge(what string) {
	p.t.Helper()
	if s := p.wantSegment(what, rdmap.OpWrite); len(s.payload) != 0 || !s.t.Last || s.t.STag != noSTag {
		p.t.Errorf("%s is %+v", what, s)
	}
}

// TestNudge: an initiator that gets no answer to its first message sends empty Writes until something
// arrives.
func TestNudge(t *testing.T) {
	for _, crc := range []bool{false, true} {
		p := New(Config{CRC: crc})
		p.nudgeAfter = time.Millisecond
		c, peer := connectRaw(t, p, fabric.ConnAttr{SendDepth: 1})
		in := make([]byte, 16)
		postRecv(t, c, in)
		post(t, c, fabric.SendWR{ID: 1, Op: fabric.OpSend, Flags: fabric.Signaled, SGL: []fabric.SGE{{Buf: []byte("hello?")}}})
		if s := peer.wantSegment("the first words", rdmap.OpSend); string(s.payload) != "hello?" {
			t.Errorf("the first words are %q", s.payload)
		}
		peer.wantNudge("a nudge")
		peer.wantNudge("another one")
		peer.write(peer.fpdu(untagged(rdmap.OpSend, true, 0, 1, 0), []byte("yes?")))
		// The user sees only its own completions, and can use the whole queue.
		if wc := next(t, c); wc.ID != 1 || wc.Op != fabric.WCSend {
			t.Errorf("completion %+v, want the Send", wc)
		}
		if wc := next(t, c); wc.ID != 100 || string(in[:wc.Len]) != "yes?" {
			t.Errorf("completion %+v, want the answer", wc)
		}
		if c.nudge() {
			t.Error("the responder's answer is not heard")
		}
		post(t, c, fabric.SendWR{Op: fabric.OpSend, SGL: []fabric.SGE{{Buf: []byte("fine")}}})
		s := peer.wantAny("the next words, perhaps after a nudge")
		for s.op == rdmap.OpWrite {
			s = peer.wantAny("the next words")
		}
		if s.op != rdmap.OpSend || string(s.payload) != "fine" || s.u.MSN != 2 {
			t.Errorf("the next words are %+v", s)
		}
		peer.c.Close()
		if wcs, end := drive(t, c); len(wcs) != 0 || !end.Clean {
			t.Errorf("ended with %v, completions %+v", end, wcs)
		}
	}
}

// TestNudgeManners: when an empty Write is sent and when not.
func TestNudgeManners(t *testing.T) {
	c, peer := connectRaw(t, New(Config{}), fabric.ConnAttr{})
	if !c.nudge() {
		t.Error("something has been heard before anything was said")
	}
	peer.wantSilence("as nothing has been sent that could have been missed")

	// A request that waits for the peer does not delay the empty Write.
	src := make([]byte, 8)
	post(t, c,
		fabric.SendWR{ID: 1, Op: fabric.OpRead, RKey: 0x500, SGL: []fabric.SGE{{Buf: src}}},
		fabric.SendWR{ID: 2, Op: fabric.OpSend, Flags: fabric.Fence | fabric.Signaled, SGL: []fabric.SGE{{Buf: []byte("done")}}})
	peer.wantSegment("a Read", rdmap.OpReadRequest)
	c.nudge()
	peer.wantNudge("a nudge in front of the fenced Send")
	c.Close()
	if c.nudge() {
		t.Error("a connection that is closed wants to be heard")
	}

	// An empty Write does not interrupt a message.
	c, peer = connectRaw(t, New(Config{}), fabric.ConnAttr{})
	post(t, c, fabric.SendWR{ID: 1, Op: fabric.OpSend, SGL: []fabric.SGE{{Buf: make([]byte, 64<<20)}}})
	c.nudge()
	for got := 0; got < 64<<20; {
		s := peer.wantSegment("a segment of the message", rdmap.OpSend)
		got += len(s.payload)
	}
	for c.nudge(); ; c.nudge() {
		// It is not needed before the last segment has been sent.
		if idle := func() bool { defer c.unlockTx(); return c.tx.Lock().b == nil }; idle() {
			c.nudge()
			break
		}
	}
	peer.wantNudge("a nudge behind the message")
}

// TestNudgerEnds: the timer does not outlive the connection, and a responder has none.
func TestNudgerEnds(t *testing.T) {
	a, b := join(t, New(Config{}), fabric.ConnAttr{})
	nudger := func(c *Conn) *time.Timer { return look(&c.state, func(st *state) *time.Timer { return st.nudger }) }
	if nudger(a) == nil || nudger(b) != nil {
		t.Error("the side that connects nudges, the other does not")
	}
	a.Close()
	if nudger(a).Stop() {
		t.Error("a timer of a closed connection runs")
	}
}
