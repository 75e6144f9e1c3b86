//go:build linux

package iwarp

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
	"github.com/rpcrdma/rpcrdma/proto/mpa"
	"github.com/rpcrdma/rpcrdma/proto/rdmap"
)

const (
	reqKeyHex = "4d504120494420526571204672616d65" // "MPA ID Req Frame", RFC 5044 section 7.1.1
	repKeyHex = "4d504120494420526570204672616d65" // "MPA ID Rep Frame"
)

// TestRequestBytes: the request of an initiator. Linux's siw sends the same by default:
// revision 2, enhanced, no CRC, no markers, no peer-to-peer.
func TestRequestBytes(t *testing.T) {
	for _, tc := range []struct {
		name string
		cfg  Config
		attr fabric.ConnAttr
		pd   string
		want string
	}{
		{"default", Config{}, fabric.ConnAttr{}, "", "10020004" + "00100010"},
		{"IRD 1, ORD 2", Config{}, fabric.ConnAttr{InboundReads: 1, OutboundReads: 2}, "", "10020004" + "00010002"},
		{"private data", Config{}, fabric.ConnAttr{}, "hello", "10020009" + "00100010" + "68656c6c6f"},
		{"CRC", Config{CRC: true}, fabric.ConnAttr{}, "", "50020004" + "00100010"},
		{"CRC required", Config{RequireCRC: true}, fabric.ConnAttr{}, "", "50020004" + "00100010"},
		{"peer to peer", Config{PeerToPeer: true}, fabric.ConnAttr{}, "", "10020004" + "8010c010"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c, peer, connected := scriptedServer(t, New(tc.cfg), tc.attr, []byte(tc.pd))
			want := testutil.Hex(t, reqKeyHex+tc.want)
			if got := peer.read("the request", len(want)); !bytes.Equal(got, want) {
				t.Errorf("the request is\n%x, want\n%x", got, want)
			}
			peer.wantSilence("until the request has been answered")
			c.Close()
			if err := <-connected; !errors.Is(err, net.ErrClosed) {
				t.Errorf("Connect: %v", err)
			}
		})
	}
	t.Run("the longest private data fits siw's 256 bytes", func(t *testing.T) {
		c, peer, connected := scriptedServer(t, New(Config{}), fabric.ConnAttr{}, make([]byte, MaxPrivateData))
		if s, _ := peer.wantFrame("the request", mpa.Request); s.PDLength != 256 {
			t.Errorf("private data of %d bytes on the wire", s.PDLength)
		}
		c.Close()
		<-connected
	})
}

// TestReplyBytes: the replies of a responder.
func TestReplyBytes(t *testing.T) {
	for _, tc := range []struct {
		name string
		cfg  Config
		req  string
		rep  string
	}{
		{"enhanced: grants what is in force", Config{}, "10020004" + "00040008", "10020004" + "00080004"},
		{"enhanced: grants no more than there is", Config{}, "10020004" + "00400050", "10020004" + "00100010"},
		{"enhanced: unknown IRD and ORD", Config{}, "10020004" + "3fff3fff", "10020004" + "00100010"},
		{"CRC is echoed", Config{}, "50020004" + "00040004", "50020004" + "00040004"},
		{"CRC is not asked for by the responder", Config{CRC: true}, "10020004" + "00040004", "10020004" + "00040004"},
		{"unless it requires it", Config{RequireCRC: true}, "10020004" + "00040004", "50020004" + "00040004"},
		{"revision 1", Config{}, "00010000", "00010000"},
		{"revision 1 with CRC", Config{}, "40010000", "40010000"},
		{"revision 0", Config{}, "00000000", "00000000"},
		{"revision 2, not enhanced", Config{}, "00020000", "00020000"},
		{"revision 1 has no enhanced data", Config{}, "10010000", "00010000"},
		{"peer to peer: Write rather than Read", Config{}, "10020004" + "8004c004", "10020004" + "80048004"},
		{"peer to peer: Read", Config{}, "10020004" + "80044004", "10020004" + "80044004"},
		{"peer to peer: empty FPDU", Config{}, "10020004" + "c0040004", "10020004" + "c0040004"},
		{"peer to peer: Write when nothing is named", Config{}, "10020004" + "80040004", "10020004" + "80048004"},
		{"reserved bits are ignored", Config{}, "1f020004" + "00040004", "10020004" + "00040004"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			l := listen(t, New(tc.cfg), fabric.ConnAttr{})
			peer := dialRaw(t, l)
			peer.write(testutil.Hex(t, reqKeyHex+tc.req))
			c := acceptNext(t, l)
			peer.wantSilence("until the request has been accepted")
			mustAccept(t, c, nil)
			want := testutil.Hex(t, repKeyHex+tc.rep)
			if got := peer.read("the reply", len(want)); !bytes.Equal(got, want) {
				t.Errorf("the reply is\n%x, want\n%x", got, want)
			}
			peer.wantSilence("behind the reply")
		})
	}
}

// TestRequestRefused: invalid requests do not reach Accept. The listener still works.
func TestRequestRefused(t *testing.T) {
	pd := func(n int) string { return hex.EncodeToString(make([]byte, n)) }
	l := listen(t, New(Config{}), fabric.ConnAttr{})
	for _, tc := range []struct {
		name   string
		req    string
		reject string // flags to expect in the rejection, or none
	}{
		{"markers demanded", reqKeyHex + "90020004" + "00040004", "30"},
		{"markers demanded by revision 1", reqKeyHex + "c0010000", "60"},
		{"a request that rejects", reqKeyHex + "20010000", "20"},
		{"private data of 513 bytes", reqKeyHex + "00010201" + pd(513), "20"},
		{"revision 3", reqKeyHex + "00030000", "20"},
		{"enhanced without room for it", reqKeyHex + "10020003" + "000400", "20"},
		{"an FPDU right behind the request", reqKeyHex + "10020004" + "00040004" + "0002aabb00000000", "30"},
		{"a reply", repKeyHex + "00010000", ""},
		{"something else altogether", hex.EncodeToString([]byte("GET / HTTP/1.1\r\n\r\n")), ""},
		{"half a request", reqKeyHex[:16], "half"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			peer := dialRaw(t, l)
			peer.write(testutil.Hex(t, tc.req))
			switch tc.reject {
			case "half":
				peer.c.(*net.TCPConn).CloseWrite()
			case "":
			default:
				s, _ := peer.wantFrame("a rejection", mpa.Reply)
				if s.Flags != mpa.Flags(testutil.Hex(t, tc.reject)[0]) {
					t.Errorf("flags of the rejection: %v", s.Flags)
				}
			}
			peer.wantEnd("of a refused request")
		})
	}
	a := dialRaw(t, l)
	a.write(testutil.Hex(t, reqKeyHex+"00010000"))
	mustAccept(t, acceptNext(t, l), nil)
	a.wantFrame("a reply to one who asks properly", mpa.Reply)
}

// TestReceive512: a peer may send the maximum of private data.
func TestReceive512(t *testing.T) {
	for _, req := range []mpa.Start{{Kind: mpa.Request, Revision: 1}, {Kind: mpa.Request, Revision: 2, Flags: mpa.FlagEnhanced}} {
		l := listen(t, New(Config{}), fabric.ConnAttr{})
		peer := dialRaw(t, l)
		pd := bytes.Repeat([]byte{0, 16, 0, 17}, 128)
		peer.write(startFrame(req, pd))
		if req.Flags != 0 {
			pd = pd[mpa.EnhancedLen:]
		}
		if got := acceptNext(t, l).PeerPrivateData(); !bytes.Equal(got, pd) {
			t.Errorf("revision %d: %d bytes of private data, want %d", req.Revision, len(got), len(pd))
		}
	}
}

// TestResponderWaits: a responder sends nothing before the first FPDU of the initiator, of any
// kind, has arrived (RFC 5044 section 7.1.2, RFC 6581 section 4). Ready To Receive frames have
// an arbitrary STag; siw uses 1.
func TestResponderWaits(t *testing.T) {
	for _, tc := range []struct {
		name     string
		enhanced mpa.Enhanced
		crc      bool
		first    [][]byte // of its ULPDU
		answer   bool     // a Read Response
		receives bool
	}{
		{"a Send", mpa.Enhanced{IRD: 1, ORD: 1}, false, [][]byte{untagged(rdmap.OpSend, true, 0, 1, 0)}, false, true},
		{"a zero-length Write", mpa.Enhanced{PeerToPeer: true, RTRWrite: true}, false, [][]byte{tagged(rdmap.OpWrite, true, 1, 0)}, false, false},
		{"a zero-length Write with CRC", mpa.Enhanced{PeerToPeer: true, RTRWrite: true}, true, [][]byte{tagged(rdmap.OpWrite, true, 1, 0)}, false, false},
		{"a zero-length Read, though ORD is 0", mpa.Enhanced{PeerToPeer: true, RTRRead: true}, false,
			[][]byte{readRequest(1, rdmap.ReadRequest{SinkSTag: 5, SinkTO: 6, SrcSTag: 1})}, true, false},
		{"an empty FPDU", mpa.Enhanced{PeerToPeer: true, RTRSend: true}, false, nil, false, false},
		{"an empty FPDU with CRC", mpa.Enhanced{PeerToPeer: true, RTRSend: true}, true, nil, false, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			l := listen(t, New(Config{}), fabric.ConnAttr{})
			peer := dialRaw(t, l)
			flags := mpa.FlagEnhanced
			if tc.crc {
				flags |= mpa.FlagCRC
			}
			peer.write(startFrame(mpa.Start{Kind: mpa.Request, Revision: 2, Flags: flags}, enhanced(tc.enhanced)))
			c := acceptNext(t, l)
			mustAccept(t, c, nil)
			peer.wantFrame("a reply", mpa.Reply)
			peer.crc = tc.crc
			if tc.receives {
				postRecv(t, c, make([]byte, 8))
			}
			post(t, c, fabric.SendWR{ID: 9, Op: fabric.OpSend, Flags: fabric.Signaled, SGL: []fabric.SGE{{Buf: []byte("first word")}}})
			peer.wantSilence("before the initiator's first FPDU")
			peer.write(peer.fpdu(tc.first...))
			if tc.receives {
				if wc := next(t, c); wc.ID != 100 {
					t.Fatalf("completion %+v", wc)
				}
			}
			if wc := next(t, c); wc.ID != 9 || wc.Status != fabric.WCSuccess {
				t.Fatalf("completion %+v", wc)
			}
			if tc.answer {
				// The Read arrived before the Send could be sent, but the Send was posted
				// earlier: either may be first.
				s := peer.wantAny("the response or the Send")
				if s.op == rdmap.OpSend {
					s = peer.wantSegment("the response", rdmap.OpReadResponse)
				} else {
					peer.wantSegment("the Send", rdmap.OpSend)
				}
				if s.t.STag != 5 || s.t.TO != 6 || !s.t.Last || len(s.payload) != 0 {
					t.Errorf("the Read Response is %+v", s)
				}
				return
			}
			if s := peer.wantSegment("the responder's first word", rdmap.OpSend); string(s.payload) != "first word" {
				t.Errorf("the Send is %+v", s)
			}
		})
	}
}

// TestInitiatorReady: an initiator that requested peer-to-peer sends the chosen frame,
// invisibly to its user.
func TestInitiatorReady(t *testing.T) {
	p := New(Config{PeerToPeer: true})
	for _, tc := range []struct {
		name  string
		reply mpa.Enhanced
		op    rdmap.Opcode
	}{
		{"Write", mpa.Enhanced{PeerToPeer: true, RTRWrite: true, IRD: 3, ORD: 3}, rdmap.OpWrite},
		{"Read", mpa.Enhanced{PeerToPeer: true, RTRRead: true, IRD: 3, ORD: 3}, rdmap.OpReadRequest},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c, peer, connected := scriptedServer(t, p, fabric.ConnAttr{}, nil)
			peer.wantFrame("a request", mpa.Request)
			peer.write(startFrame(mpa.Start{Kind: mpa.Reply, Revision: 2, Flags: mpa.FlagEnhanced}, enhanced(tc.reply)))
			if err := <-connected; err != nil {
				t.Fatal(err)
			}
			s := peer.wantSegment("a Ready To Receive frame", tc.op)
			if tc.op == rdmap.OpWrite {
				if len(s.payload) != 0 || !s.t.Last || s.t.STag == 0 {
					t.Errorf("the frame is %+v", s)
				}
			} else {
				var r rdmap.ReadRequest
				rdmap.ConsumeReadRequest(s.payload, &r)
				if r.Size != 0 || s.u.MSN != 1 || r.SrcSTag == 0 {
					t.Errorf("the frame is %+v", r)
				}
				peer.write(peer.fpdu(tagged(rdmap.OpReadResponse, true, r.SinkSTag, r.SinkTO)))
			}
			postRecv(t, c, make([]byte, 8))
			peer.write(peer.fpdu(untagged(rdmap.OpSend, true, 0, 1, 0), []byte("server")))
			if wc := next(t, c); wc.ID != 100 || wc.Len != 6 {
				t.Errorf("completion %+v, want the server's word", wc)
			}
			peer.c.Close()
			if wcs, _ := drive(t, c); len(wcs) != 0 {
				t.Errorf("completions of what the user has not posted: %+v", wcs)
			}
		})
	}
}

// TestReplyRefused: replies that Connect refuses.
func TestReplyRefused(t *testing.T) {
	for _, tc := range []struct {
		name      string
		cfg       Config
		rep       string
		terminate mpa.Code // of the message to the responder
	}{
		{"markers demanded", Config{}, repKeyHex + "90020004" + "00010001", 0},
		{"a request", Config{}, reqKeyHex + "00010000", 0},
		{"not MPA", Config{}, "485454502f312e3120343030204261640d0a0d0a", 0},
		{"revision 3", Config{}, repKeyHex + "00030000", 0},
		{"private data of 513 bytes", Config{}, repKeyHex + "00010201", 0},
		{"an FPDU right behind the reply", Config{}, repKeyHex + "10020004" + "00100010" + "0002aabb00000000", 0},
		{"more Reads than were offered", Config{}, repKeyHex + "10020004" + "00100011", mpa.CodeInsufficientIRD},
		{"a Ready To Receive frame that was not offered", Config{PeerToPeer: true}, repKeyHex + "10020004" + "c0100010", mpa.CodeNoMatchingRTR},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c, peer, connected := scriptedServer(t, New(tc.cfg), fabric.ConnAttr{}, nil)
			peer.wantFrame("a request", mpa.Request)
			peer.write(testutil.Hex(t, tc.rep))
			var se *SetupError
			if err := <-connected; !errors.As(err, &se) {
				t.Fatalf("Connect: %T (%v), want a *SetupError", err, err)
			}
			if tc.terminate != 0 {
				peer.wantTerminate("to one who wants too much", llpCause(tc.terminate))
			} else {
				peer.wantEnd("after a reply that is refused")
			}
			if _, end := drive(t, c); end.Clean {
				t.Errorf("ended with %v", end)
			}
		})
	}
}

// TestFallback: a responder that supports only revision 1 replies with it, and all its private
// data belongs to the user. IRD and ORD are those of the attributes.
func TestFallback(t *testing.T) {
	c, peer, connected := scriptedServer(t, New(Config{}), fabric.ConnAttr{InboundReads: 3, OutboundReads: 5}, nil)
	peer.wantFrame("a request", mpa.Request)
	peer.write(startFrame(mpa.Start{Kind: mpa.Reply, Revision: 1}, []byte("old one")))
	if err := <-connected; err != nil {
		t.Fatal(err)
	}
	caps := c.Capabilities()
	if string(c.PeerPrivateData()) != "old one" || caps.InboundReads != 3 || caps.OutboundReads != 5 {
		t.Errorf("private data %q, %+v", c.PeerPrivateData(), caps)
	}
}

// TestReadlessPeer: no Reads are sent to a peer that serves none.
func TestReadlessPeer(t *testing.T) {
	c, peer, connected := scriptedServer(t, New(Config{}), fabric.ConnAttr{}, nil)
	peer.wantFrame("a request", mpa.Request)
	peer.write(startFrame(mpa.Start{Kind: mpa.Reply, Revision: 2, Flags: mpa.FlagEnhanced}, enhanced(mpa.Enhanced{ORD: 4})))
	if err := <-connected; err != nil {
		t.Fatal(err)
	}
	if n := c.Capabilities().OutboundReads; n != 0 {
		t.Errorf("%d outbound Reads", n)
	}
	post(t, c, fabric.SendWR{ID: 5, Op: fabric.OpRead, SGL: []fabric.SGE{{Buf: make([]byte, 8)}}})
	wcs, end := drive(t, c)
	var we *WorkError
	if len(wcs) != 1 || wcs[0].Status != fabric.WCLocQPOpErr || !errors.As(end, &we) || we.ID != 5 {
		t.Errorf("completed %+v, ended with %v", wcs, end)
	}
	peer.wantTerminate("for a request that cannot be executed", catastrophic)
}

// TestEarlyResponder: an initiator that has sent nothing is sent nothing.
func TestEarlyResponder(t *testing.T) {
	c, peer := connectRaw(t, New(Config{}), fabric.ConnAttr{})
	postRecv(t, c, make([]byte, 8))
	peer.write(peer.fpdu(untagged(rdmap.OpSend, true, 0, 1, 0), []byte("early")))
	wantViolation(t, c, llpCause(mpa.CodeInvalidFrame))
	peer.wantTerminate("to a responder that speaks first", llpCause(mpa.CodeInvalidFrame))
}

// TestSilentPeers: peers that do not complete their requests are replaced by later ones, and
// time out.
func TestSilentPeers(t *testing.T) {
	p := New(Config{MaxPending: 2})
	l := listen(t, p, fabric.ConnAttr{})
	var silent []*rawPeer
	for range 3 {
		s := dialRaw(t, l)
		s.write([]byte("MPA ID"))
		silent = append(silent, s)
	}
	silent[0].wantEnd("of the oldest of three where two may be pending")
	peer := dialRaw(t, l)
	peer.write(startFrame(mpa.Start{Kind: mpa.Request, Revision: 1}, nil))
	mustAccept(t, acceptNext(t, l), nil)
	peer.wantFrame("a reply", mpa.Reply)

	// One host has one pending handshake and another two: the older of the two is dropped, and the
	// first host keeps its own.
	shared := listen(t, New(Config{MaxPending: 3}), fabric.ConnAttr{})
	lone := dialRawFrom(t, "127.0.0.2", shared)
	lone.write([]byte("MPA ID"))
	var many []*rawPeer
	for range 3 {
		s := dialRaw(t, shared)
		s.write([]byte("MPA ID"))
		many = append(many, s)
	}
	many[0].wantEnd("of the oldest of the host that has the most")
	lone.write(startFrame(mpa.Start{Kind: mpa.Request, Revision: 1}, nil)[len("MPA ID"):])
	mustAccept(t, acceptNext(t, shared), nil)
	lone.wantFrame("a reply to the host that had one place", mpa.Reply)

	brief := listen(t, New(Config{RequestTimeout: 30 * time.Millisecond}), fabric.ConnAttr{})
	s := dialRaw(t, brief)
	s.write([]byte("MPA ID Req Fra"))
	s.wantEnd("of a request that takes too long")
}

// TestConnectTimeout: Connect does not wait forever for a reply.
func TestConnectTimeout(t *testing.T) {
	_, _, connected := scriptedServer(t, New(Config{ReplyTimeout: 30 * time.Millisecond}), fabric.ConnAttr{}, nil)
	var se *SetupError
	if err := <-connected; !errors.As(err, &se) || !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("Connect to one who does not answer: %v", err)
	}
}

// TestBacklog: requests beyond the backlog are rejected.
func TestBacklog(t *testing.T) {
	p := New(Config{Backlog: 1})
	l := listen(t, p, fabric.ConnAttr{})
	req := startFrame(mpa.Start{Kind: mpa.Request, Revision: 1}, nil)
	first, second := dialRaw(t, l), dialRaw(t, l)
	first.write(req)
	second.write(req)
	rejected := make(chan *rawPeer, 2)
	for _, p := range []*rawPeer{first, second} {
		go func() {
			var b [mpa.StartLen]byte
			p.c.SetReadDeadline(time.Now().Add(patience))
			n, _ := p.c.Read(b[:])
			if n == mpa.StartLen && mpa.Flags(b[16])&mpa.FlagReject != 0 {
				rejected <- p
			}
		}()
	}
	loser := <-rejected
	loser.wantEnd("of the second of two where one may wait")
	mustAccept(t, acceptNext(t, l), nil)
}

// TestPeerGivesUp: a peer that has closed when its request is accepted.
func TestPeerGivesUp(t *testing.T) {
	l := listen(t, New(Config{}), fabric.ConnAttr{})
	peer := dialRaw(t, l)
	peer.write(startFrame(mpa.Start{Kind: mpa.Request, Revision: 1}, nil))
	c := acceptNext(t, l)
	peer.c.Close()
	var se *SetupError
	if err := c.Accept(context.Background(), nil); !errors.As(err, &se) {
		t.Errorf("Accept of one who has gone: %v", err)
	}
}

// TestMisuse: calls that are invalid in the connection's state.
func TestMisuse(t *testing.T) {
	ctx := context.Background()
	l := listen(t, New(Config{}), fabric.ConnAttr{})
	p := New(Config{})
	fc, err := p.Resolve(ctx, l.Addr().String(), fabric.ConnAttr{})
	if err != nil {
		t.Fatal(err)
	}
	defer fc.Close()
	if err := fc.Post([]fabric.SendWR{{}}); !errors.Is(err, ErrNotConnected) {
		t.Errorf("Post before Connect: %v", err)
	}
	if err := fc.Wait(); !errors.Is(err, ErrNotConnected) {
		t.Errorf("Wait before Connect: %v", err)
	}
	if n, err := fc.Poll(nil); n != 0 || err != nil {
		t.Errorf("Poll before Connect: %d, %v", n, err)
	}
	if err := fc.Accept(ctx, nil); !errors.Is(err, ErrMisuse) {
		t.Errorf("Accept of a resolved connection: %v", err)
	}
	if err := fc.Reject(nil); !errors.Is(err, ErrMisuse) {
		t.Errorf("Reject of a resolved connection: %v", err)
	}
	c, s := join(t, p, fabric.ConnAttr{})
	if err := c.Connect(ctx, nil); !errors.Is(err, ErrMisuse) {
		t.Errorf("Connect twice: %v", err)
	}
	if err := s.Connect(ctx, nil); !errors.Is(err, ErrMisuse) {
		t.Errorf("Connect of an accepted connection: %v", err)
	}
	if _, err := c.RegMR(make([]byte, 8), fabric.AccessRemoteWrite); !errors.Is(err, ErrMisuse) {
		t.Errorf("region with remote and without local write: %v", err)
	}
	if _, err := p.Resolve(ctx, "no port", fabric.ConnAttr{}); err == nil {
		t.Error("Resolve of an address without a port")
	}
	if err := c.Post([]fabric.SendWR{{Op: 99}}); !errors.Is(err, fabric.ErrNotSupported) {
		t.Errorf("Post of an unknown opcode: %v", err)
	}
}

// TestSegmentSize: the size of FPDUs.
func TestSegmentSize(t *testing.T) {
	for _, tc := range []struct {
		cfg  Config
		want int // longest FPDU of a Write of 200000 bytes
	}{
		{Config{}, mpa.FPDULen(localFPDU)},
		{Config{MaxFPDU: 1448}, 1448},
		{Config{MaxFPDU: 1460}, 1460},
		{Config{MaxFPDU: 1}, mpa.FPDULen(14 + 8)},
		{Config{MaxFPDU: 1 << 20}, mpa.FPDULen(mpa.MaxULPDU)},
	} {
		c, peer := connectRaw(t, New(tc.cfg), fabric.ConnAttr{})
		const size = 200000
		go func() {
			post(t, c, fabric.SendWR{Op: fabric.OpWrite, SGL: []fabric.SGE{{Buf: make([]byte, size)}}})
		}()
		longest := 0
		for got, last := 0, false; !last; {
			s := peer.wantSegment("a segment", rdmap.OpWrite)
			if s.t.TO != uint64(got) {
				t.Fatalf("%+v: segment at offset %d, want %d", tc.cfg, s.t.TO, got)
			}
			got += len(s.payload)
			last = s.t.Last
			longest = max(longest, s.fpduSize)
			if last != (got == size) || !last && len(s.payload)%8 != 0 {
				t.Fatalf("%+v: L=%t after %d bytes, payload of %d", tc.cfg, last, got, len(s.payload))
			}
		}
		if longest > tc.want || longest < tc.want-12 {
			t.Errorf("%+v: FPDUs of up to %d bytes, want %d or a little less", tc.cfg, longest, tc.want)
		}
		c.Close()
	}
}

// TestSilentFailure: when a responder's own request fails, it sends nothing before the peer's first
// FPDU, not even a Terminate message.
func TestSilentFailure(t *testing.T) {
	c, peer := underAttack(t, New(Config{}), fabric.ConnAttr{}, 0)
	post(t, c, fabric.SendWR{ID: 3, Op: fabric.OpBindMW})
	wcs, _ := drive(t, c)
	if len(wcs) != 1 || wcs[0].Status != fabric.WCMWBindErr {
		t.Errorf("completions %+v", wcs)
	}
	peer.wantEnd("without a word")
}

// fullListener listens at an address with a full backlog: connection attempts wait until empty is
// called.
func fullListener(t *testing.T) (addr string, empty func()) {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { syscall.Close(fd) })
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Listen(fd, 0); err != nil { // listen(2): one more than that may wait
		t.Fatal(err)
	}
	at, err := localAddr(fd)
	if err != nil {
		t.Fatal(err)
	}
	first, err := net.Dial("tcp", at.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { first.Close() })
	return at.String(), func() {
		for range 2 {
			c, _, err := syscall.Accept(fd)
			if err != nil {
				t.Error(err)
				return
			}
			t.Cleanup(func() { syscall.Close(c) })
		}
	}
}

// TestConnectWaits: Connect waits for the TCP connection until the context ends or the Conn is
// closed.
func TestConnectWaits(t *testing.T) {
	connect := func(addr string, ctx context.Context) (fabric.Conn, <-chan error) {
		c, err := New(Config{ReplyTimeout: 30 * time.Millisecond}).Resolve(ctx, addr, fabric.ConnAttr{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		done := make(chan error, 1)
		go func() { done <- c.Connect(ctx, nil) }()
		return c, done
	}
	addr, empty := fullListener(t)

	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Millisecond)
	defer cancel()
	if _, done := connect(addr, ctx); !errors.Is(<-done, context.DeadlineExceeded) {
		t.Error("the end of the context is not told")
	}

	// tried returns when the peer has dropped the first attempt.
	tried := func(c fabric.Conn) {
		for c.(*Conn).setupSocket() == nil {
			time.Sleep(time.Millisecond)
		}
	}
	c, done := connect(addr, context.Background())
	tried(c)
	c.Close()
	if err := <-done; !errors.Is(err, net.ErrClosed) {
		t.Errorf("Connect of a connection that is closed meanwhile: %v", err)
	}

	// With space in the backlog TCP's next attempt succeeds, and Connect waits for the reply.
	c, done = connect(addr, context.Background())
	tried(c)
	empty()
	var se *SetupError
	if err := <-done; !errors.As(err, &se) || se.Reason != "no valid MPA reply" || !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("Connect to one who does not answer: %v", err)
	}
}

func (c *Conn) setupSocket() *os.File {
	return look(&c.state, func(st *state) *os.File { return st.sock.f })
}

// TestConnectRefused: the error wraps the system's error, and other addresses are tried.
func TestConnectRefused(t *testing.T) {
	nobody, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nobody.Close()
	p := New(Config{})
	fc, err := p.Resolve(context.Background(), nobody.Addr().String(), fabric.ConnAttr{})
	if err != nil {
		t.Fatal(err)
	}
	defer fc.Close()
	var op *net.OpError
	if err := fc.Connect(context.Background(), nil); !errors.Is(err, syscall.ECONNREFUSED) || !errors.As(err, &op) {
		t.Errorf("Connect to nobody: %v", err)
	}

	l := listen(t, p, fabric.ConnAttr{})
	fc, err = p.Resolve(context.Background(), l.Addr().String(), fabric.ConnAttr{})
	if err != nil {
		t.Fatal(err)
	}
	defer fc.Close()
	c := fc.(*Conn)
	to := c.state.Lock().setup
	to.addrs = append([]*net.TCPAddr{nobody.Addr().(*net.TCPAddr)}, to.addrs...)
	c.state.Unlock()
	done := make(chan error, 1)
	go func() { done <- c.Connect(context.Background(), nil) }()
	mustAccept(t, acceptNext(t, l), nil)
	if err := <-done; err != nil || c.RemoteAddr().String() != l.Addr().String() {
		t.Errorf("Connect to the second address: %v, the peer is %v", err, c.RemoteAddr())
	}
}

// TestKeepAlive: long-lived connections have TCP keep-alive enabled.
func TestKeepAlive(t *testing.T) {
	p := New(Config{})
	p.nudgeAfter = time.Millisecond
	l := listen(t, p, fabric.ConnAttr{})
	fc, err := p.Resolve(context.Background(), l.Addr().String(), fabric.ConnAttr{})
	if err != nil {
		t.Fatal(err)
	}
	defer fc.Close()
	done := make(chan error, 1)
	go func() { done <- fc.Connect(context.Background(), nil) }()
	server := acceptNext(t, l)
	mustAccept(t, server, nil)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		on, err := syscall.GetsockoptInt(fc.(*Conn).link.Load().sock.fd, syscall.SOL_SOCKET, syscall.SO_KEEPALIVE)
		if on != 0 {
			break
		}
		if err != nil || time.Now().After(end) {
			t.Fatalf("the initiator has no keep-alive: %v", err)
		}
	}
	for _, o := range []struct{ level, name, want int }{
		{syscall.SOL_SOCKET, syscall.SO_KEEPALIVE, 1},
		{syscall.IPPROTO_TCP, syscall.TCP_KEEPIDLE, 15},
		{syscall.IPPROTO_TCP, syscall.TCP_NODELAY, 1},
	} {
		if v, err := syscall.GetsockoptInt(server.link.Load().sock.fd, o.level, o.name); v != o.want || err != nil {
			t.Errorf("option %d/%d of an accepted socket is %d, %v; want %d", o.level, o.name, v, err, o.want)
		}
	}
}

// TestAddresses: the conversions to and from system addresses are inverse.
func TestAddresses(t *testing.T) {
	loopback := "lo"
	if ifis, err := net.Interfaces(); err == nil && len(ifis) > 0 {
		loopback = ifis[0].Name
	}
	for _, a := range []*net.TCPAddr{
		{IP: net.IPv4(192, 0, 2, 1), Port: 20049},
		{IP: net.ParseIP("2001:db8::1"), Port: 1},
		{IP: net.ParseIP("fe80::1"), Port: 65535, Zone: loopback},
	} {
		_, sa, err := sockaddr(a)
		if err != nil {
			t.Fatal(err)
		}
		if got := tcpAddr(sa); got.String() != a.String() {
			t.Errorf("%v has become %v", a, got)
		}
	}
	if _, sa, err := sockaddr(&net.TCPAddr{IP: net.ParseIP("fe80::1"), Zone: "77"}); err != nil || sa.(*syscall.SockaddrInet6).ZoneId != 77 {
		t.Errorf("a zone by number: %v, %v", sa, err)
	}
	if _, _, err := sockaddr(&net.TCPAddr{IP: net.ParseIP("fe80::1"), Zone: "no such"}); err == nil {
		t.Error("a zone that is not there is taken")
	}
}
