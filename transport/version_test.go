package transport

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/rpcrdma"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
	"github.com/rpcrdma/rpcrdma/rpc"
)

// Version 2 and its negotiation (version two). In this file a zero Config.Version has its documented
// meaning; in other files it means version 1.

// A dialing is a client while it is being made.
type dialing struct {
	*peers
	all  []*peer
	stop context.CancelFunc // ends Dial's context
	done chan struct{}
	cl   *Client
	err  error
}

// dials runs a conversation with a client from its first message on, with a first peer
// that gives no private data.
func dials(t *testing.T, cfg *Settings, script func(d *dialing, p *peer)) {
	t.Helper()
	dialsTo(t, greeting(t, nil), cfg, script)
}

func dialsTo(t *testing.T, p *peer, cfg *Settings, script func(d *dialing, p *peer)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		p.t, p.changed = t, make(chan struct{})
		d := &dialing{peers: &peers{t: t, line: []*peer{p}}, all: []*peer{p}}
		d.dial(cfg)
		defer d.close()
		script(d, p)
	})
}

// dial begins to make the client.
func (d *dialing) dial(cfg *Settings) { d.dialUntil(0, cfg) }

// dialUntil does with a deadline, if it is not zero.
func (d *dialing) dialUntil(end time.Duration, cfg *Settings) {
	var ctx context.Context
	if ctx, d.stop = context.WithCancel(bg); end > 0 {
		ctx, d.stop = context.WithTimeout(bg, end)
	}
	done := make(chan struct{})
	d.done, d.cl, d.err = done, nil, nil
	go func() {
		defer close(done)
		d.cl, d.err = Dial(ctx, d.peers, "script:20049", cfg.Client())
	}()
}

func (d *dialing) close() {
	d.stop()
	<-d.done
	if d.cl != nil {
		d.cl.Close()
		checkArena(d.t, d.cl.conn())
	}
	synctest.Wait()
	for i, p := range d.all {
		if n := p.regions(); n != 0 {
			d.t.Errorf("connection %d has left %d regions", i+1, n)
		}
	}
}

// another is the next peer to be connected to, without private data either.
func (d *dialing) another() *peer {
	p := greeting(d.t, nil)
	d.all = append(d.all, p)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.line = append(d.line, p)
	return p
}

// over reports whether Dial has returned.
func (d *dialing) over() bool {
	synctest.Wait()
	select {
	case <-d.done:
		return true
	default:
		return false
	}
}

// client is the client, which must be there by now.
func (d *dialing) client() *Client {
	d.t.Helper()
	if !d.over() {
		d.t.Fatal("Dial has not returned")
	}
	if d.err != nil {
		d.t.Fatalf("Dial returned %v", d.err)
	}
	settle()
	return d.cl
}

// fails is the error of Dial, which must have failed by now.
func (d *dialing) fails() error {
	d.t.Helper()
	if !d.over() || d.err == nil {
		d.t.Fatal("Dial has not failed")
	}
	return d.err
}

// none checks that Dial has failed for want of a version, with this range of the server's.
func (d *dialing) none(low, high uint32) *rpc.VersionError {
	d.t.Helper()
	var v *rpc.VersionError
	if err := d.fails(); !errors.As(err, &v) || v.Low != low || v.High != high {
		d.t.Fatalf("Dial returned %v, want versions %d to %d", err, low, high)
	}
	return v
}

// asked checks the first message of a connection, by which a client asks for version 2.
func (p *peer) asked() rpcrdma.Header {
	p.t.Helper()
	h, _ := p.askedWith()
	return h
}

// askedWith does, and returns the properties in that message: nil if it is NULL.
func (p *peer) askedWith() (rpcrdma.Header, *rpcrdma.Properties) {
	p.t.Helper()
	s := p.next("the first message")
	var h rpcrdma.Header
	n, err := rpcrdma.ConsumeHeader(s.msg, &h, &bothVersions)
	if err != nil || h.Vers != 2 || h.Proc != rpcrdma.ProcMsg || h.Credit == 0 || n != rpcrdma.MinHeaderSize || len(s.msg) > 1024 {
		p.t.Fatalf("the first message is %+v in %d bytes, %v", h, len(s.msg), err)
	}
	var call oncrpc.CallHeader
	k, err := oncrpc.ConsumeCall(s.msg[n:], &call)
	if err != nil || call.XID != h.XID {
		p.t.Fatalf("the first message has %+v, %v", call, err)
	}
	var told *rpcrdma.Properties
	if args := s.msg[n+k:]; call.Proc != 0 {
		offer, err := rpcrdma.ConsumeProperties(args)
		if err != nil || offer.Dir != rpcrdma.PropOffer || call.Prog != rpcrdma.PropProgram || call.Vers != 1 || call.Proc != 1 {
			p.t.Fatalf("the first message has %+v with %x, %v", call, args, err)
		}
		told = &offer
	} else if len(args) > 0 {
		p.t.Fatalf("the first message is NULL with %d bytes of arguments", len(args))
	}
	p.quiet("nothing follows before the answer")
	return h, told
}

// waited waits for the first message of a connection that is to be made.
func (p *peer) waited() {
	for range 2 * defaultMaxPause / time.Millisecond {
		p.mu.Lock()
		n := len(p.sends)
		p.mu.Unlock()
		if n > 0 {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// speaks2 answers the first message in version 2, as a server does that does not know the
// procedure for properties.
func (p *peer) speaks2() {
	p.t.Helper()
	p.answers2(p.askedWith())
}

func (p *peer) answers2(h rpcrdma.Header, told *rpcrdma.Properties) {
	p.t.Helper()
	if told == nil {
		p.reply(rpcrdma.Header{XID: h.XID, Vers: 2})
		return
	}
	p.unavailable(h.XID)
}

// unavailable answers a call in version 2 with PROG_UNAVAIL.
func (p *peer) unavailable(xid uint32) {
	msg := rpcrdma.AppendHeader(nil, &rpcrdma.Header{XID: xid, Vers: 2, Credit: 100})
	p.send(oncrpc.AppendReply(msg, &oncrpc.ReplyHeader{XID: xid, AcceptStat: oncrpc.ProgUnavail}), 0)
}

// errVers is the answer of a server that speaks other versions.
func errVers(xid, low, high uint32) []byte {
	return rpcrdma.AppendHeader(nil, &rpcrdma.Header{XID: xid, Vers: low, Credit: 100,
		Proc: rpcrdma.ProcError, Err: rpcrdma.ErrVers, VersLow: low, VersHigh: high})
}

// speaks refuses the first message with a range of versions.
func (p *peer) speaks(low, high uint32) {
	p.t.Helper()
	p.send(errVers(p.asked().XID, low, high), 0)
}

// finishes checks that a call of the client goes out in a version, and answers it.
func (p *peer) finishes(cl *Client, vers uint32) rpcrdma.Header {
	p.t.Helper()
	done := async(cl, bg, testCall())
	h, _ := p.message("a call")
	if h.Vers != vers {
		p.t.Errorf("the call is of version %d, want %d", h.Vers, vers)
	}
	p.reply(rpcrdma.Header{XID: h.XID, Vers: vers})
	if err := outcome(p.t, done); err != nil {
		p.t.Error(err)
	}
	if got := cl.Info().Version; got != vers {
		p.t.Errorf("ConnInfo has version %d, want %d", got, vers)
	}
	settle()
	return h
}

// callOf is a call with a message of n bytes, transport header included.
func callOf(n int) *rpc.Call {
	return &rpc.Call{Prog: testProg, Vers: 1, Proc: procArgs, Args: make([]byte, n-rpcrdma.MinHeaderSize-40)}
}

// inlineUpTo checks that the client's longest Send has n bytes: a call of so many goes
// inline, a longer one in a chunk.
func (p *peer) inlineUpTo(cl *Client, n int) {
	p.t.Helper()
	for _, size := range []int{n / 2, n, n + 4} {
		done := async(cl, bg, callOf(size))
		s := p.next("a call")
		var h rpcrdma.Header
		if _, err := rpcrdma.ConsumeHeader(s.msg, &h, &bothVersions); err != nil {
			p.t.Fatal(err)
		}
		switch {
		case size <= n && (h.Proc != rpcrdma.ProcMsg || len(s.msg) != size):
			p.t.Errorf("a call of %d bytes is sent as %v in %d", size, h.Proc, len(s.msg))
		case size > n && (h.Proc != rpcrdma.ProcNomsg || len(h.Reads) != 1 || h.Reads[0].Position != 0 || int(h.Reads[0].Length) != size-rpcrdma.MinHeaderSize):
			p.t.Errorf("a call of %d bytes is sent as %+v", size, h)
		}
		p.reply(rpcrdma.Header{XID: h.XID, Vers: h.Vers})
		if err := outcome(p.t, done); err != nil {
			p.t.Error(err)
		}
	}
}

// takesUpTo checks that replies of n bytes are taken inline, and that of a longer one the
// client offers memory for.
func (p *peer) takesUpTo(cl *Client, n int) {
	p.t.Helper()
	for _, size := range []int{n, n + 4} {
		results := size - rpcrdma.MinHeaderSize - 32 // the RPC header may have 32 bytes
		call := &rpc.Call{Prog: testProg, Vers: 1, MaxResults: results}
		done := async(cl, bg, call)
		h, _ := p.message("a call")
		if h.HasReply != (size > n) {
			p.t.Errorf("a reply of up to %d bytes: the call is %+v", size, h)
		}
		if !h.HasReply {
			p.reply(rpcrdma.Header{XID: h.XID, Vers: h.Vers}, make([]byte, results+8)...)
		} else {
			msg := append(oncrpc.AppendReply(nil, &oncrpc.ReplyHeader{XID: h.XID}), make([]byte, results)...)
			p.write(h.Reply[0], string(msg))
			h.Reply[0].Length = uint32(len(msg))
			p.reply(rpcrdma.Header{XID: h.XID, Vers: h.Vers, Proc: rpcrdma.ProcNomsg, HasReply: true, Reply: h.Reply})
		}
		if err := outcome(p.t, done); err != nil || len(call.Results) < results {
			p.t.Errorf("a reply of %d bytes: %v, %d bytes of results", size, err, len(call.Results))
		}
	}
}

func TestVersionAnswered(t *testing.T) {
	// Nothing to tell by properties: the connection is set up with the first answer.
	plain := &Settings{NoRemoteInvalidation: true}

	t.Run("V2-5-1 V2-5-3 V2-5.1-1 one short message of version 2, and then version 2", func(t *testing.T) {
		for _, vers := range []Version{VersionAuto, Version2} {
			dials(t, &Settings{Version: vers, NoRemoteInvalidation: true}, func(d *dialing, p *peer) {
				h := p.asked()
				time.Sleep(versionPatience - 1)
				p.quiet("the answer has not come")
				if d.over() {
					t.Fatal("Dial has returned before the answer")
				}
				p.reply(rpcrdma.Header{XID: h.XID, Vers: 2, Credit: 5})
				cl := d.client()
				if i := cl.Info(); i.Version != 2 || i.Credits != 5 || i.Properties {
					t.Errorf("ConnInfo is %+v", i)
				}
				p.finishes(cl, 2)
				if n := d.attempts(); n != 1 {
					t.Errorf("%d connections", n)
				}
			})
		}
	})

	t.Run("V2-5.1-1 a server without the program has answered, too", func(t *testing.T) {
		for _, reply := range []oncrpc.ReplyHeader{
			{AcceptStat: oncrpc.ProgUnavail},
			{AcceptStat: oncrpc.ProgMismatch, Low: 3, High: 4},
			{AcceptStat: oncrpc.SystemErr},
			{Stat: oncrpc.MsgDenied, RejectStat: oncrpc.AuthError, AuthStat: oncrpc.AuthTooWeak},
		} {
			dials(t, plain, func(d *dialing, p *peer) {
				reply.XID = p.asked().XID
				p.send(oncrpc.AppendReply(rpcrdma.AppendHeader(nil, &rpcrdma.Header{XID: reply.XID, Vers: 2, Credit: 3}), &reply), 0)
				p.finishes(d.client(), 2)
			})
		}
	})

	t.Run("V2-2.1-1 V2-2.1-2 V2-2.3-1 V2-2.3-3 V2-5.1-1 V2-5.2-5 from then on 4096 bytes in both directions, and long messages beyond", func(t *testing.T) {
		dials(t, plain, func(d *dialing, p *peer) {
			p.speaks2()
			cl := d.client()
			if i := cl.Info(); i.InlineSend != 4096 || i.InlineRecv != 4096 || i.PrivateData {
				t.Errorf("ConnInfo is %+v", i)
			}
			p.inlineUpTo(cl, 4096)
			p.takesUpTo(cl, 4096)
			p.inlineUpTo(cl, 4096)
		})
	})

	t.Run("V2-5.2-6 V2-2.3-1 V2-2.3-2 receives are long enough before the first message is sent", func(t *testing.T) {
		for _, size := range []int{1024, 4096, 16384} {
			dials(t, &Settings{InlineSend: size, InlineRecv: size, NoRemoteInvalidation: true, Version: VersionAuto}, func(d *dialing, p *peer) {
				h, told := p.askedWith()
				p.mu.Lock()
				for _, r := range p.recvs {
					if n := len(r.SGE.Buf); n != max(size, 4096) {
						t.Errorf("a receive of %d bytes is posted, want %d", n, max(size, 4096))
					}
				}
				p.mu.Unlock()
				// A call of the server's, as long as they get, right after the answer.
				args := make([]byte, 4096-rpcrdma.MinHeaderSize-40)
				p.answers2(h, told)
				p.send(callBytes(rpcrdma.Header{XID: 0xca11, Vers: 2}, 1, args...), 0)
				settle() // the answer may have been taken alone
				var back rpcrdma.Header
				for range 2 { // an offer may come in between
					var payload []byte
					if back, payload = p.message("the answer to the server's call"); back.Proc == rpcrdma.ProcOptional {
						p.send(rpcrdma.AppendHeader(nil, &rpcrdma.Header{XID: back.XID, Vers: 2, Credit: 8,
							Proc: rpcrdma.ProcError, Err: rpcrdma.ErrInvalOption}), 0)
						continue
					}
					var r oncrpc.ReplyHeader
					if _, err := oncrpc.ConsumeReply(payload, &r); err != nil || r.AcceptStat != oncrpc.ProgUnavail || back.Vers != 2 || back.XID != 0xca11 {
						t.Errorf("the answer is %+v %+v, %v", back, r, err)
					}
					if size <= 4096 {
						break
					}
				}
				p.finishes(d.client(), 2)
			})
		}
	})

	t.Run("V2-5-1 V2-5-3 a connection that comes back begins in the same way, however many calls wait", func(t *testing.T) {
		dials(t, plain, func(d *dialing, p *peer) {
			p.speaks2()
			cl := d.client()
			p.finishes(cl, 2)
			done := make([]<-chan error, 5)
			for i := range done {
				done[i] = async(cl, bg, numbered(uint32(i)))
				synctest.Wait()
			}
			var xids []uint32
			for range done {
				h, _ := p.numberedCall("a call")
				xids = append(xids, h.XID)
			}
			q := d.another()
			p.hangUp()
			synctest.Wait()
			time.Sleep(time.Second)
			h := q.asked()
			if slices.Contains(xids, h.XID) {
				t.Errorf("the first message has the xid %#x of a call", h.XID)
			}
			q.reply(rpcrdma.Header{XID: h.XID, Vers: 2, Credit: 5})
			for range done {
				h, n := q.numberedCall("a call again")
				if h.Vers != 2 || !slices.Contains(xids, h.XID) {
					t.Errorf("call %d is %+v", n, h)
				}
				q.reply(rpcrdma.Header{XID: h.XID, Vers: 2, Credit: 5})
			}
			for i := range done {
				if err := outcome(t, done[i]); err != nil {
					t.Error(err)
				}
			}
		})
	})

	t.Run("a version is the connection's: after one of version 2 comes one of version 1, and its calls go out again", func(t *testing.T) {
		dials(t, plain, func(d *dialing, p *peer) {
			p.speaks2()
			cl := d.client()
			p.finishes(cl, 2)
			call := callOf(3000)
			done := async(cl, bg, call)
			first, _ := p.message("a call of 3000 bytes, inline")
			if first.Proc != rpcrdma.ProcMsg {
				t.Errorf("the call is %+v", first)
			}
			q := d.another()
			p.hangUp()
			synctest.Wait()
			time.Sleep(time.Second)
			q.speaks(1, 1)
			again, _ := q.message("the call again")
			if again.Vers != 1 || again.XID != first.XID || again.Proc != rpcrdma.ProcNomsg {
				t.Errorf("the call is %+v", again)
			}
			q.reply(rpcrdma.Header{XID: again.XID})
			if err := outcome(t, done); err != nil {
				t.Error(err)
			}
			q.inlineUpTo(cl, 1024)
		})
	})
}

func TestVersionRefused(t *testing.T) {
	t.Run("V2-5.2-2 V2-5-2 V2-5.2-5 version 1 on the same connection, from one credit on, with its thresholds", func(t *testing.T) {
		for _, r := range [][2]uint32{{1, 1}, {0, 1}, {1, 2}, {1, 0xffffffff}} {
			dials(t, nil, func(d *dialing, p *peer) {
				start := time.Now()
				p.speaks(r[0], r[1]) // with 100 credits
				if synctest.Wait(); !time.Now().Equal(start) {
					t.Errorf("it took %v", time.Since(start))
				}
				cl := d.client()
				p.quiet("no call has been made")
				if i := cl.Info(); i.Version != 1 || i.Credits != 1 || i.InlineSend != 1024 || i.InlineRecv != 1024 {
					t.Errorf("ConnInfo is %+v", i)
				}
				var done []<-chan error
				for range 3 {
					done = append(done, async(cl, bg, testCall()))
				}
				h, _ := p.message("a call")
				p.quiet("credits of an RDMA_ERROR say nothing")
				if h.Vers != 1 {
					t.Errorf("the call is of version %d", h.Vers)
				}
				p.reply(rpcrdma.Header{XID: h.XID, Credit: 2})
				for range 2 {
					h, _ := p.message("a call")
					p.reply(rpcrdma.Header{XID: h.XID, Credit: 8})
				}
				for _, d := range done {
					if err := outcome(t, d); err != nil {
						t.Error(err)
					}
				}
				p.inlineUpTo(cl, 1024)
				p.takesUpTo(cl, 1024)
				if n := d.attempts(); n != 1 {
					t.Errorf("%d connections", n)
				}
				if st := cl.Stats(); st.ErrVers != 1 {
					t.Errorf("counters are %+v", st)
				}
			})
		}
	})

	t.Run("V2-5.2-5 what private data agrees on holds for version 1", func(t *testing.T) {
		dialsTo(t, greeting(t, hello(true, 8192, 2048)), &Settings{InlineSend: 16384, InlineRecv: 16384}, func(d *dialing, p *peer) {
			p.speaks(1, 1)
			cl := d.client()
			if i := cl.Info(); i.Version != 1 || i.InlineSend != 2048 || i.InlineRecv != 8192 || !i.RemoteInvalidation {
				t.Errorf("ConnInfo is %+v", i)
			}
			p.inlineUpTo(cl, 2048)
		})
	})

	t.Run("no version in common is the end", func(t *testing.T) {
		for _, tt := range []struct {
			cfg    Version
			ranges [][2]uint32
		}{
			{VersionAuto, [][2]uint32{{2, 2}, {3, 9}, {2, 0xffffffff}, {0xffffffff, 0xffffffff}, {0, 0}, {1, 0}, {2, 1}, {9, 3}}},
			{Version2, [][2]uint32{{1, 1}, {1, 2}, {2, 2}, {3, 9}, {0, 0}, {9, 3}}},
		} {
			for _, r := range tt.ranges {
				dials(t, &Settings{Version: tt.cfg}, func(d *dialing, p *peer) {
					p.speaks(r[0], r[1])
					err := d.none(r[0], r[1])
					if d.attempts() != 1 || !p.over() {
						t.Errorf("%d connections", d.attempts())
					}
					if want := fmt.Sprintf("versions %d to %d", r[0], r[1]); !strings.Contains(err.Error(), want) {
						t.Errorf("it says %q, want %q", err, want)
					}
					var dial *DialError
					if !errors.As(d.err, &dial) || errors.Is(d.err, net.ErrClosed) {
						t.Errorf("Dial returned %#v", d.err)
					}
				})
			}
		}
	})

	t.Run("no version in common any more: the client is over, and does not ask again", func(t *testing.T) {
		for _, cfg := range []*Settings{
			{Version: VersionAuto, NoRemoteInvalidation: true}, {Version: Version2, NoRemoteInvalidation: true},
			{Version: VersionAuto, NoRemoteInvalidation: true, Callbacks: callback(), KeepAlive: -1},
		} {
			dials(t, cfg, func(d *dialing, p *peer) {
				p.speaks2()
				cl := d.client()
				p.finishes(cl, 2)
				done := async(cl, bg, testCall())
				p.message("a call")
				q := d.another()
				d.another()
				p.hangUp()
				synctest.Wait()
				time.Sleep(time.Second)
				q.speaks(3, 4)
				err := outcome(t, done)
				var none *rpc.VersionError
				if !errors.As(err, &none) || !errors.Is(err, net.ErrClosed) || none.Low != 3 || none.High != 4 {
					t.Errorf("the call returned %v", err)
				}
				select {
				case <-cl.Done():
				default:
					t.Error("the client is not over")
				}
				if err := cl.Err(); !errors.As(err, &none) {
					t.Errorf("Err is %v", err)
				}
				if err := cl.Call(bg, testCall()); !errors.As(err, &none) || !errors.Is(err, net.ErrClosed) {
					t.Errorf("another call returned %v", err)
				}
				time.Sleep(24 * time.Hour)
				if n := d.attempts(); n != 2 || !q.over() {
					t.Errorf("%d connections", n)
				}
			})
		}
	})

	t.Run("V2-5.2-3 a connection that is lost right after: at most one question", func(t *testing.T) {
		dials(t, nil, func(d *dialing, p *peer) {
			p.speaks(1, 1)
			p.hangUp()
			cl := d.client()
			done := async(cl, bg, testCall())
			for range 5 {
				q := d.another()
				time.Sleep(time.Minute)
				h, _ := q.message("the call")
				if h.Vers != 1 {
					t.Fatalf("the first message is of version %d", h.Vers)
				}
				q.hangUp()
				synctest.Wait()
			}
			q := d.another()
			time.Sleep(time.Minute)
			q.answerNext("the call")
			if err := outcome(t, done); err != nil {
				t.Error(err)
			}
			if n := d.attempts(); n < 7 {
				t.Errorf("%d connections", n)
			}
		})
	})
}

// brief is a connection that ends as soon as it is made.
type brief struct{ peerConn }

func (c brief) Connect(ctx context.Context, private []byte) error {
	err := c.peerConn.Connect(ctx, private)
	c.hangUp()
	return err
}

func TestVersionUnheard(t *testing.T) {
	t.Run("V2-5.2-4 a server that is silent gets a new connection, of version 1", func(t *testing.T) {
		for _, tt := range []struct{ deadline, patience time.Duration }{
			{0, versionPatience}, {time.Hour, versionPatience}, {4 * time.Second, 2 * time.Second}, {10 * time.Second, versionPatience},
		} {
			p := greeting(t, nil)
			synctest.Test(t, func(t *testing.T) {
				p.t, p.changed = t, make(chan struct{})
				d := &dialing{peers: &peers{t: t, line: []*peer{p}}, all: []*peer{p}}
				q := d.another()
				d.dialUntil(tt.deadline, nil)
				defer d.close()
				p.asked()
				start := time.Now()
				time.Sleep(tt.patience - 1)
				if d.attempts() != 1 || p.over() {
					t.Errorf("with a deadline of %v it is not waited for %v", tt.deadline, tt.patience)
				}
				time.Sleep(time.Nanosecond)
				cl := d.client()
				if tried := d.tried(); len(tried) != 2 || tried[1].Sub(start) != tt.patience || !p.over() {
					t.Errorf("connections at %v", tried)
				}
				p.quiet("the connection has ended")
				q.finishes(cl, 1)
				q.inlineUpTo(cl, 1024)
				// The next does not ask either, if that was enough to know.
				r := d.another()
				q.hangUp()
				synctest.Wait()
				done := async(cl, bg, testCall())
				time.Sleep(time.Second)
				want := uint32(1)
				if tt.patience < versionPatience/2 {
					want = 2
				}
				if h, _ := r.message("the first message"); h.Vers != want {
					t.Errorf("after %v of silence the first message of the next connection is of version %d", tt.patience, h.Vers)
				}
				d.stop()
				cl.Close()
				<-done
			})
		}
	})

	t.Run("a server that answers version 2 and no offer", func(t *testing.T) {
		dials(t, nil, func(d *dialing, p *peer) {
			q := d.another()
			p.speaks2()
			p.offered(4096, 4096, true)
			time.Sleep(versionPatience)
			q.finishes(d.client(), 1)
			if d.attempts() != 2 || !p.over() {
				t.Errorf("%d connections", d.attempts())
			}
		})
	})

	t.Run("V2-5.2-4 a server that hangs up, too, at once", func(t *testing.T) {
		for _, early := range []bool{false, true} {
			p := greeting(t, nil)
			synctest.Test(t, func(t *testing.T) {
				p.t, p.changed = t, make(chan struct{})
				d := &dialing{peers: &peers{t: t, line: []*peer{p}}, all: []*peer{p}}
				if early { // before the message is on its way
					d.wrap = func(c peerConn) fabric.Conn { return brief{c} }
				}
				q := d.another()
				start := time.Now()
				d.dial(nil)
				defer d.close()
				if !early {
					p.asked()
					p.hangUp()
				}
				cl := d.client()
				if tried := d.tried(); len(tried) != 2 || !tried[1].Equal(start) {
					t.Errorf("connections at %v", tried)
				}
				q.finishes(cl, 1)
			})
		}
	})

	t.Run("a server that has spoken version 2 is asked some times more, whatever it does meanwhile", func(t *testing.T) {
		for _, vers := range []Version{VersionAuto, Version2} {
			dials(t, &Settings{Version: vers, NoRemoteInvalidation: true}, func(d *dialing, p *peer) {
				p.speaks2()
				cl := d.client()
				p.finishes(cl, 2)
				done := async(cl, bg, testCall())
				first, _ := p.message("a call")
				for range 3 { // and after each answer anew
					for i := range versionTrust {
						q := d.another()
						p.hangUp()
						q.waited()
						q.asked()
						if p = q; i%2 == 0 {
							time.Sleep(versionPatience + time.Second)
						}
					}
					q := d.another()
					p.hangUp()
					q.waited()
					q.speaks2()
					h, _ := q.message("the call")
					if h.Vers != 2 || h.XID != first.XID {
						t.Fatalf("the call is %+v", h)
					}
					p = q
				}
				p.hangUp()
				for range versionTrust {
					q := d.another()
					q.waited()
					q.asked()
					q.hangUp()
				}
				q, r := d.another(), d.another()
				q.waited()
				q.asked()
				q.hangUp()
				if vers == VersionAuto {
					r.answerNext("the call, in version 1")
					if err := outcome(t, done); err != nil || cl.Info().Version != 1 {
						t.Errorf("the call returned %v", err)
					}
				} else if err := outcome(t, done); !errors.As(err, new(*rpc.VersionError)) {
					t.Errorf("the call returned %v", err)
				}
			})
		}
	})

	t.Run("an answer to something else is none", func(t *testing.T) {
		dials(t, nil, func(d *dialing, p *peer) {
			h := p.asked()
			q := d.another()
			p.reply(rpcrdma.Header{XID: h.XID + 1, Vers: 2})
			p.send(errVers(h.XID+1, 1, 1), 0)
			p.send([]byte{1, 2, 3}, 0)
			p.send(rpcrdma.AppendHeader(nil, &rpcrdma.Header{XID: h.XID, Vers: 1, Proc: rpcrdma.ProcDone}), 0)
			time.Sleep(versionPatience)
			q.finishes(d.client(), 1)
			if st := d.cl.Stats(); st.Dropped != 4 {
				t.Errorf("%d messages were dropped, want 4", st.Dropped)
			}
		})
	})

	t.Run("version 2 alone", func(t *testing.T) {
		for what, act := range map[string]func(p *peer){
			"the end": func(p *peer) { p.hangUp() },
			"silence": func(*peer) { time.Sleep(versionPatience) },
		} {
			dials(t, &Settings{Version: Version2}, func(d *dialing, p *peer) {
				p.asked()
				act(p)
				err := d.none(0, 0)
				if err.Reason == nil || !strings.Contains(err.Error(), "does not answer version 2") {
					t.Errorf("%s: it says %q", what, err)
				}
				if n := d.attempts(); n != 1 {
					t.Errorf("%s: %d connections", what, n)
				}
			})
		}
	})

	t.Run("a context that ends meanwhile", func(t *testing.T) {
		for _, vers := range []Version{VersionAuto, Version2} {
			dials(t, &Settings{Version: vers}, func(d *dialing, p *peer) {
				d.another()
				p.asked()
				time.Sleep(time.Second)
				d.stop()
				if err := d.fails(); !errors.Is(err, context.Canceled) || errors.As(err, new(*rpc.VersionError)) {
					t.Errorf("Dial returned %v", err)
				}
				if n := d.attempts(); n != 1 || !p.over() {
					t.Errorf("%d connections", n)
				}
				// It says nothing about the server.
				q := d.line[0]
				d.dial(&Settings{Version: vers, NoRemoteInvalidation: true})
				q.speaks2()
				q.finishes(d.client(), 2)
			})
		}
	})
}

// TestVersionSenseless checks that an answer that no version 2 server would send shows that the server has
// misinterpreted the message.
func TestVersionSenseless(t *testing.T) {
	answers := map[string]func(xid uint32) []byte{
		"a reply of version 1": func(xid uint32) []byte { return (&peer{}).replyBytes(rpcrdma.Header{XID: xid}, nil) },
		"a reply of version 77": func(xid uint32) []byte {
			return (&peer{}).replyBytes(rpcrdma.Header{XID: xid, Vers: 77}, nil)
		},
		"ERR_CHUNK of version 1": func(xid uint32) []byte {
			return rpcrdma.AppendHeader(nil, &rpcrdma.Header{XID: xid, Vers: 1, Credit: 100, Proc: rpcrdma.ProcError, Err: rpcrdma.ErrChunk})
		},
		"another error": func(xid uint32) []byte {
			return rpcrdma.AppendHeader(nil, &rpcrdma.Header{XID: xid, Vers: 1, Credit: 100, Proc: rpcrdma.ProcError, Err: 77})
		},
		"RDMA_NOMSG": func(xid uint32) []byte {
			return rpcrdma.AppendHeader(nil, &rpcrdma.Header{XID: xid, Vers: 2, Credit: 1, Proc: rpcrdma.ProcNomsg})
		},
		"RDMA_MSGP": func(xid uint32) []byte {
			return rpcrdma.AppendHeader(nil, &rpcrdma.Header{XID: xid, Vers: 1, Credit: 1, Proc: rpcrdma.ProcMsgp})
		},
		"a reply cut short": func(xid uint32) []byte {
			return rpcrdma.AppendHeader(nil, &rpcrdma.Header{XID: xid, Vers: 2, Credit: 1, Proc: rpcrdma.ProcNomsg})[:24]
		},
		"a reply with memory that was not offered": func(xid uint32) []byte {
			return (&peer{}).replyBytes(rpcrdma.Header{XID: xid, Vers: 2, Writes: []rpcrdma.WriteChunk{{{Handle: 1}}}}, nil)
		},
		"a reply with another xid inside": func(xid uint32) []byte {
			b := rpcrdma.AppendHeader(nil, &rpcrdma.Header{XID: xid, Vers: 2, Credit: 1})
			return oncrpc.AppendReply(b, &oncrpc.ReplyHeader{XID: xid + 1})
		},
		"half an RPC header": func(xid uint32) []byte {
			b := rpcrdma.AppendHeader(nil, &rpcrdma.Header{XID: xid, Vers: 2, Credit: 1})
			return oncrpc.AppendReply(b, &oncrpc.ReplyHeader{XID: xid})[:40]
		},
	}
	for name, answer := range answers {
		t.Run(name, func(t *testing.T) {
			dials(t, nil, func(d *dialing, p *peer) {
				p.send(answer(p.asked().XID), 0)
				cl := d.client()
				if i := cl.Info(); i.Version != 1 || i.InlineSend != 1024 || i.InlineRecv != 1024 {
					t.Errorf("ConnInfo is %+v", i)
				}
				p.finishes(cl, 1)
				if n := d.attempts(); n != 1 {
					t.Errorf("%d connections", n)
				}
			})
			dials(t, &Settings{Version: Version2}, func(d *dialing, p *peer) {
				p.send(answer(p.asked().XID), 0)
				d.none(1, 1)
			})
		})
	}
}

// TestVersionErrors checks that a version 2 error is not treated as a version mismatch. The server has understood the
// first message, and may for instance lack memory for the answer.
func TestVersionErrors(t *testing.T) {
	for name, code := range map[string]rpcrdma.ErrCode{"RDMA_ERR_BAD_HEADER": rpcrdma.ErrBadHeader, "RDMA_ERR_INVAL_OPTION": rpcrdma.ErrInvalOption} {
		t.Run(name, func(t *testing.T) {
			for _, vers := range []Version{VersionAuto, Version2} {
				dials(t, &Settings{Version: vers}, func(d *dialing, p *peer) {
					h, told := p.askedWith()
					if told == nil {
						t.Fatal("there are no properties to tell")
					}
					p.send(rpcrdma.AppendHeader(nil, &rpcrdma.Header{XID: h.XID, Vers: 2, Credit: 100, Proc: rpcrdma.ProcError, Err: code}), 0)
					h, _ = p.message("the properties, once more")
					if h.Proc != rpcrdma.ProcOptional || h.OptType != rpcrdma.OptProperties {
						t.Fatalf("the second message is %+v", h)
					}
					p.send(invalOption(h.XID, 100), 0)
					p.finishes(d.client(), 2)
					if n := d.attempts(); n != 1 {
						t.Errorf("%d connections", n)
					}
				})
			}
		})
	}
}

// TestVersionContradiction checks a server that refuses calls of version 1 because it supports version 2, but does not
// answer version 2 either. It gets further attempts at the pace of reconnections, and the calls end.
func TestVersionContradiction(t *testing.T) {
	serve := func(p *peer) {
		p.ends(func(h rpcrdma.Header, _ []byte) bool {
			if h.Vers == rpcrdma.Version2 {
				return true
			}
			p.deliver(errVers(h.XID, rpcrdma.Version2, rpcrdma.Version2))
			return false
		})
	}
	dials(t, nil, func(d *dialing, p *peer) {
		d.mu.Lock()
		d.more = func() *peer {
			p := newPeer(t)
			if len(d.dials) > 1000 {
				p.refuse = errors.New("script: enough")
				return p
			}
			go func() {
				for p.posted() == 0 { // the connection is being made
					time.Sleep(time.Millisecond)
				}
				serve(p)
			}()
			return p
		}
		d.mu.Unlock()
		serve(p)
		time.Sleep(time.Second)
		cl := d.client()
		if n := d.attempts(); n != 2 {
			t.Fatalf("%d connections until there is a client", n)
		}
		var refused *rpc.RDMAError
		ctx, cancel := context.WithTimeout(bg, 10*time.Minute)
		defer cancel()
		if err := cl.Call(ctx, numbered(1)); !errors.As(err, &refused) || refused.Code != rpcrdma.ErrVers {
			t.Fatalf("the call returned %v", err)
		}
		if n := d.attempts() - 2; n != versionAsks*(versionTrust+2) {
			t.Errorf("%d connections for one call", n)
		}
		ctx, cancel = context.WithCancel(bg)
		defer cancel()
		go func() {
			for ctx.Err() == nil {
				_ = cl.Call(ctx, numbered(1))
			}
		}()
		before := d.attempts()
		time.Sleep(time.Hour)
		if n := d.attempts() - before; n < 300 || n > 520 {
			t.Errorf("%d connections in an hour", n)
		}
		cancel()
		settle()
	})
}

func TestVersionChosen(t *testing.T) {
	t.Run("clients of version 1, and those that do as RFC 5666 does, do not ask", func(t *testing.T) {
		for _, cfg := range []*Settings{{Version: Version1}, {RFC5666: &RFC5666{}}, {Version: Version1, RFC5666: &RFC5666{}}} {
			dials(t, cfg, func(d *dialing, p *peer) {
				cl := d.client()
				p.quiet("there is nothing to ask")
				p.finishes(cl, 1)
			})
		}
	})

	t.Run("configurations that cannot be", func(t *testing.T) {
		for _, cfg := range []*Settings{
			{Version: Version2, RFC5666: &RFC5666{}}, {Version: 3}, {Version: 255},
			{Operations: []Operation{{Type: 1}}},
			{Operations: []Operation{{Type: rpcrdma.OptProperties, IsAnswer: func([]byte) bool { return true }}}},
		} {
			if _, err := Dial(bg, newPeer(t), "script:20049", cfg.Client()); err == nil {
				t.Errorf("Dial takes %+v", cfg)
			}
			if _, err := NewServer(cfg.Server()); err == nil {
				t.Errorf("NewServer takes %+v", cfg)
			}
		}
	})

	t.Run("a server of version 1 is remembered, for all clients that share the cache, and for its time", func(t *testing.T) {
		for _, tt := range []struct{ lifetime, want time.Duration }{{0, time.Hour}, {time.Minute, time.Minute}} {
			cache := NewVersionCache(tt.lifetime)
			cfg := &Settings{VersionCache: cache, NoRemoteInvalidation: true}
			dials(t, cfg, func(d *dialing, p *peer) {
				p.speaks(1, 1)
				learned := time.Now()
				d.client().Close()
				// Others that share it, or do not.
				q := d.another()
				d.dial(cfg)
				cl := d.client()
				q.quiet("the server is known")
				q.finishes(cl, 1)
				cl.Close()
				q = d.another()
				d.dial(&Settings{NoRemoteInvalidation: true})
				q.speaks2()
				q.finishes(d.client(), 2)
				d.cl.Close()
				// Version 2 alone asks in any case.
				q = d.another()
				d.dial(&Settings{Version: Version2, VersionCache: cache, NoRemoteInvalidation: true})
				q.speaks2()
				d.client().Close()
				time.Sleep(tt.want - time.Since(learned))
				q = d.another()
				d.dial(cfg)
				d.client().Close()
				q.quiet("the server is known")
				time.Sleep(time.Nanosecond)
				q = d.another()
				d.dial(cfg)
				q.speaks2()
				q.finishes(d.client(), 2)
				// That was the answer of one that speaks version 2 now.
				d.cl.Close()
				q = d.another()
				d.dial(cfg)
				q.speaks2()
				d.client()
			})
		}
	})

	t.Run("a client asks again on a connection that comes back after that time", func(t *testing.T) {
		dials(t, &Settings{NoRemoteInvalidation: true}, func(d *dialing, p *peer) {
			p.speaks(1, 1)
			cl := d.client()
			p.finishes(cl, 1)
			time.Sleep(time.Hour)
			q := d.another()
			p.hangUp()
			synctest.Wait()
			done := async(cl, bg, testCall())
			time.Sleep(time.Second)
			q.speaks2()
			if h, _ := q.message("the call"); h.Vers != 2 {
				t.Errorf("the call is of version %d", h.Vers)
			} else {
				q.reply(rpcrdma.Header{XID: h.XID, Vers: 2})
			}
			if err := outcome(t, done); err != nil {
				t.Error(err)
			}
		})
	})

	t.Run("a cache is bounded, and keeps to addresses", func(t *testing.T) {
		v := NewVersionCache(0)
		for i := range 3 * maxVersions {
			key := fmt.Sprint(i)
			if v.has(key) {
				t.Fatalf("it has %s", key)
			}
			if v.note(key); !v.has(key) {
				t.Fatalf("it has not %s", key)
			}
			if n := len(v.until); n > maxVersions {
				t.Fatalf("it has %d entries", n)
			}
		}
	})
}

// TestVersionPrivateData checks that private data counts in version 2 if both ends send it and it states more than 4096
// bytes.
func TestVersionPrivateData(t *testing.T) {
	for _, tt := range []struct {
		name       string
		cfg        Settings
		hello      []byte
		send, recv int // of the end under test
	}{
		{"V2-2.3-3 none", Settings{NoPrivateData: true}, nil, 4096, 4096},
		{"V2-2.3-3 the peer's alone", Settings{NoPrivateData: true, InlineSend: 8192, InlineRecv: 8192}, hello(false, 8192, 8192), 4096, 4096},
		{"V2-2.3-3 ours alone", Settings{InlineSend: 8192, InlineRecv: 8192}, nil, 4096, 4096},
		{"V2-2.3-2 both", Settings{InlineSend: 16384, InlineRecv: 65536}, hello(true, 8192, 32768), 16384, 8192},
		{"both, and ours is less", Settings{InlineSend: 1024, InlineRecv: 2048}, hello(true, 8192, 8192), 4096, 4096},
		{"both, and the peer's is less", Settings{InlineSend: 8192, InlineRecv: 8192}, hello(true, 1024, 2048), 4096, 4096},
	} {
		t.Run(tt.name, func(t *testing.T) {
			check := func(i rpc.ConnInfo) {
				t.Helper()
				if i.Version != 2 || i.InlineSend != tt.send || i.InlineRecv != tt.recv || i.RemoteInvalidation || i.Properties {
					t.Errorf("ConnInfo is %+v", i)
				}
			}
			dialsTo(t, greeting(t, tt.hello), &tt.cfg, func(d *dialing, p *peer) {
				p.speaks2()
				if synctest.Wait(); !d.over() { // a notification, which the client does not wait for
					h, _ := p.message("an offer")
					p.send(rpcrdma.AppendHeader(nil, &rpcrdma.Header{XID: h.XID, Vers: 2, Credit: 1, Proc: rpcrdma.ProcError, Err: rpcrdma.ErrInvalOption}), 0)
				}
				cl := d.client()
				check(cl.Info())
				p.inlineUpTo(cl, tt.send)
				p.takesUpTo(cl, tt.recv)
			})
			auto(t, greeting(t, tt.hello), &tt.cfg, func(p *peer, s *Server, _ *testService) {
				p.proves(1, 2)
				check(theConn(s).info())
			})
		})
	}
}

// ---- servers

// auto runs a conversation with a server, and leaves Config.Version as it is.
func auto(t *testing.T, p *peer, cfg *Settings, script func(p *peer, s *Server, svc *testService)) {
	t.Helper()
	svc := &callerService{}
	prog := svc.program()
	prog.Handler = svc
	synctest.Test(t, func(t *testing.T) {
		p.t, p.changed = t, make(chan struct{})
		svc.gate, svc.conns = make(chan struct{}), make(chan *Conn, 1)
		s, err := NewServer(cfg.Server())
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Register(prog); err != nil {
			t.Fatal(err)
		}
		l, err := s.Listen(bg, p, "script:20049")
		if err != nil {
			t.Fatal(err)
		}
		go s.Serve(l)
		synctest.Wait()
		c := theConn(s)
		defer func() {
			s.Close()
			checkArena(t, c)
		}()
		script(p, s, &svc.testService)
	})
}

// theConn is the server's one connection.
func theConn(s *Server) *conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.rdmaConns() {
		return c
	}
	return nil
}

// proves makes a call in a version, and wants the answer in the same.
func (p *peer) proves(xid, vers uint32) rpcrdma.Header {
	p.t.Helper()
	p.send(callBytes(rpcrdma.Header{XID: xid, Vers: vers}, procEcho, opaque("hello")...), 0)
	h, results := p.replies(xid, "the reply")
	if h.Vers != vers || !bytes.Equal(results, opaque("hello")) {
		p.t.Errorf("the reply to a call of version %d is %+v %x", vers, h, results)
	}
	return h
}

func TestVersionServer(t *testing.T) {
	t.Run("V2-5.3-1 V2-5.1-1 each call is answered in its version, mixed as they may be", func(t *testing.T) {
		for _, order := range [][]uint32{{1, 1, 1}, {2, 2, 2}, {1, 2, 1, 2, 2, 1}, {2, 1, 2, 1, 1, 2}} {
			auto(t, greeting(t, nil), nil, func(p *peer, s *Server, svc *testService) {
				for i, vers := range order {
					p.proves(uint32(i), vers)
				}
				if v := theConn(s).info().Version; v != order[0] {
					t.Errorf("ConnInfo has version %d, want %d", v, order[0])
				}
				// At the same time, and errors, too.
				for i, vers := range order {
					p.send(callBytes(rpcrdma.Header{XID: uint32(i), Vers: vers}, procHold), 0)
				}
				synctest.Wait()
				close(svc.gate)
				for range order {
					h, _ := p.message("a reply")
					if h.Vers != order[h.XID] {
						t.Errorf("call %d of version %d is answered in version %d", h.XID, order[h.XID], h.Vers)
					}
				}
				for i, vers := range order {
					p.send(rpcrdma.AppendHeader(nil, &rpcrdma.Header{XID: uint32(i), Vers: vers, Credit: 1, Proc: rpcrdma.ProcNomsg}), 0)
					h, _ := p.message("an RDMA_ERROR")
					if h.Vers != vers || h.Err != rpcrdma.ErrChunk || h.XID != uint32(i) {
						t.Errorf("a malformed call of version %d is answered with %+v", vers, h)
					}
				}
			})
		}
	})

	t.Run("V1-4.2-3 V1-4.2-4 V2-5.2-1 other versions get the range there is, in 28 bytes, and the connection goes on", func(t *testing.T) {
		for _, tt := range []struct {
			cfg       Version
			low, high byte
			others    []uint32
		}{
			{Version1, 1, 1, []uint32{0, 2, 3, 0xffffffff}},
			{Version2, 2, 2, []uint32{0, 1, 3, 0xffffffff}},
			{VersionAuto, 1, 2, []uint32{0, 3, 4, 0xffffffff}},
		} {
			// The limits cannot say otherwise.
			cfg := &Settings{Version: tt.cfg, Limits: rpcrdma.Limits{Versions: rpcrdma.Range{Low: 1, High: 7}}}
			auto(t, greeting(t, nil), cfg, func(p *peer, s *Server, _ *testService) {
				for _, vers := range tt.others {
					call := callBytes(rpcrdma.Header{XID: 0xfeed, Vers: max(vers, 1)}, 0)
					want := append([]byte{0, 0, 0xfe, 0xed}, xdr.AppendUint32(nil, vers)...)
					copy(call[4:], want[4:])
					want = append(want, 0, 0, 0, initialGrant, 0, 0, 0, 4, 0, 0, 0, 1, 0, 0, 0, tt.low, 0, 0, 0, tt.high)
					p.send(call, 0)
					if got := p.next("an RDMA_ERROR").msg; !bytes.Equal(got, want) {
						t.Errorf("to version %d the answer is %x, want %x", vers, got, want)
					}
				}
				if n := s.Stats().ErrVers; int(n) != len(tt.others) {
					t.Errorf("%d ERR_VERS are counted", n)
				}
				p.proves(1, uint32(tt.high))
				p.proves(2, uint32(tt.low))
			})
		}
	})

	t.Run("V2-5.2-6 V2-5.1-1 V2-5-3 the first reply has no more than 1024 bytes, later ones have 4096, and the rest is in chunks", func(t *testing.T) {
		words := func(size int) []byte { return xdr.AppendUint32(nil, uint32(size-rpcrdma.MinHeaderSize-24)/4) }
		auto(t, greeting(t, nil), nil, func(p *peer, s *Server, _ *testService) {
			mem := make([]byte, 8000)
			long := func(xid uint32, size int) rpcrdma.Header {
				t.Helper()
				chunk := p.offer(xid, mem)
				empty := rpcrdma.Header{HasReply: true, Reply: rpcrdma.WriteChunk{chunk}}
				n := empty.Size() - rpcrdma.MinHeaderSize
				p.send(callBytes(rpcrdma.Header{XID: xid, Vers: 2, HasReply: true, Reply: rpcrdma.WriteChunk{chunk}}, procLong, words(size-n)...), 0)
				s := p.next("a reply")
				var h rpcrdma.Header
				if _, err := rpcrdma.ConsumeHeader(s.msg, &h, &bothVersions); err != nil || h.Vers != 2 || h.XID != xid {
					t.Fatalf("the reply is %+v, %v", h, err)
				}
				if h.Proc == rpcrdma.ProcMsg && len(s.msg) != size {
					t.Errorf("the reply has %d bytes, want %d", len(s.msg), size)
				}
				return h
			}
			if h := long(1, 1028); h.Proc != rpcrdma.ProcNomsg || h.Reply.Length() == 0 {
				t.Errorf("the first reply is %+v", h)
			}
			if h := long(2, 4096); h.Proc != rpcrdma.ProcMsg {
				t.Errorf("a reply of 4096 bytes is %+v", h)
			}
			if h := long(3, 4100); h.Proc != rpcrdma.ProcNomsg {
				t.Errorf("a reply of 4100 bytes is %+v", h)
			}
			if i := theConn(s).info(); i.InlineSend != 4096 || i.InlineRecv != 4096 {
				t.Errorf("ConnInfo is %+v", i)
			}
		})
		for _, first := range []int{1024, 1028} {
			auto(t, greeting(t, nil), nil, func(p *peer, s *Server, _ *testService) {
				p.send(callBytes(rpcrdma.Header{XID: 1, Vers: 2}, procLong, words(first)...), 0)
				got := p.next("the first reply").msg
				if len(got) > 1024 || first <= 1024 && len(got) != first {
					t.Errorf("the first reply has %d bytes, its message %d", len(got), first)
				}
				// An error is not what the client waits for.
				for xid, size := range []int{1028, 1024, 4096} {
					p.send(callBytes(rpcrdma.Header{XID: uint32(xid), Vers: 2}, procLong, words(size)...), 0)
					got := len(p.next("a reply").msg)
					if want := size; first > 1024 && xid == 0 && got != rpcrdma.ErrChunkSize || (first <= 1024 || xid > 0) && got != want {
						t.Errorf("after a first reply of %d bytes, one of %d has %d", first, size, got)
					}
				}
			})
		}
		// Private data agreed on this before.
		auto(t, greeting(t, hello(false, 2048, 2048)), nil, func(p *peer, s *Server, _ *testService) {
			p.send(callBytes(rpcrdma.Header{XID: 1, Vers: 2}, procLong, words(2048)...), 0)
			if n := len(p.next("the first reply").msg); n > 1024 {
				t.Errorf("the first reply has %d bytes", n)
			}
		})
	})

	t.Run("V2-2.3-1 V2-2.1-2 calls of 4096 bytes, long calls beyond", func(t *testing.T) {
		auto(t, greeting(t, nil), nil, func(p *peer, s *Server, _ *testService) {
			args := make([]byte, 4096-rpcrdma.MinHeaderSize-40)
			mem := make([]byte, 8000)
			for xid := range uint32(20) { // more than receives are posted
				p.send(callBytes(rpcrdma.Header{XID: xid, Vers: 2, HasReply: xid == 0, Reply: rpcrdma.WriteChunk{p.offer(1, mem)}}, procArgs, args...)[:4096], 0)
				if h, _ := p.message("a reply"); h.XID != xid || h.Vers != 2 || h.Proc == rpcrdma.ProcError && xid > 0 {
					t.Fatalf("the reply is %+v", h)
				}
			}
			msg := appendCall(nil, 99, procArgs, make([]byte, 5000)...)
			p.send(callBytes(rpcrdma.Header{XID: 99, Vers: 2, Proc: rpcrdma.ProcNomsg,
				Reads:    []rpcrdma.ReadSegment{{Segment: p.offer(2, msg)}},
				HasReply: true, Reply: rpcrdma.WriteChunk{p.offer(3, mem)}}, 0), 0)
			h, _ := p.message("the reply to a long call")
			if h.Vers != 2 || h.Proc != rpcrdma.ProcNomsg || len(accepted(t, mem[:h.Reply.Length()], 99)) != 5000 {
				t.Errorf("the reply is %+v", h)
			}
		})
	})

	t.Run("no Send with Invalidate in version 2, whatever private data says", func(t *testing.T) {
		auto(t, greeting(t, hello(true, 4096, 4096)), nil, func(p *peer, s *Server, _ *testService) {
			for xid, vers := range []uint32{2, 2, 1} {
				h := rpcrdma.Header{XID: uint32(xid), Vers: vers, Writes: []rpcrdma.WriteChunk{{p.offer(7, make([]byte, 100))}}}
				p.send(callBytes(h, procEcho, opaque("x")...), 0)
				if s := p.next("the reply"); s.inv != 0 || word(s.msg, 1) != vers {
					t.Errorf("the reply to a call of version %d invalidates %#x", vers, s.inv)
				}
			}
		})
		auto(t, greeting(t, hello(true, 4096, 4096)), nil, func(p *peer, s *Server, _ *testService) {
			for xid, vers := range []uint32{1, 2, 1} {
				h := rpcrdma.Header{XID: uint32(xid), Vers: vers, Writes: []rpcrdma.WriteChunk{{p.offer(7, make([]byte, 100))}}}
				p.send(callBytes(h, procEcho, opaque("x")...), 0)
				if s := p.next("the reply"); (s.inv == 7) != (vers == 1) {
					t.Errorf("the reply to a call of version %d invalidates %#x", vers, s.inv)
				}
			}
		})
	})

	t.Run("a server that does as RFC 5666 does, does so in version 1", func(t *testing.T) {
		auto(t, greeting(t, nil), &Settings{RFC5666: &RFC5666{}}, func(p *peer, s *Server, _ *testService) {
			p.proves(1, 2)
			padded := rpcrdma.AppendHeader(nil, &rpcrdma.Header{XID: 2, Vers: 1, Credit: 1, Proc: rpcrdma.ProcMsgp})
			p.send(appendCall(padded, 2, procEcho, opaque("x")...), 0)
			if h, _ := p.message("the reply"); h.Proc != rpcrdma.ProcMsg || h.Vers != 1 {
				t.Errorf("RDMA_MSGP of version 1 is answered with %+v", h)
			}
			padded[7] = 2
			p.send(appendCall(padded, 2, procEcho, opaque("x")...), 0)
			if h, _ := p.message("an RDMA_ERROR"); h.Err != rpcrdma.ErrBadHeader || h.Vers != 2 {
				t.Errorf("RDMA_MSGP of version 2 is answered with %+v", h)
			}
		})
	})
}

// TestVersionServerRefuses checks V2-4.2-11: a call that is malformed in version 1 is malformed in version 2.
func TestVersionServerRefuses(t *testing.T) {
	for _, tt := range malformedCalls() {
		msg := bytes.Clone(tt.msg)
		if tt.code == rpcrdma.ErrVers || word(msg, 3) > 4 {
			continue // versions are another test's, and version 2 has this type
		}
		msg[7] = 2
		t.Run(tt.name, func(t *testing.T) {
			for _, vers := range []Version{VersionAuto, Version2} {
				auto(t, greeting(t, nil), &Settings{Version: vers}, func(p *peer, s *Server, _ *testService) {
					before := p.posted()
					for range 2 * initialGrant {
						p.send(msg, 0)
						want := []byte{0, 0, 0, 7, 0, 0, 0, 2, 0, 0, 0, initialGrant, 0, 0, 0, 4, 0, 0, 0, 2}
						if got := p.next("an RDMA_ERROR").msg; !bytes.Equal(got, want) {
							t.Fatalf("answer is %x, want %x", got, want)
						}
					}
					if n := p.posted(); n <= before-recvBatch {
						t.Errorf("%d receives are posted, %d before", n, before)
					}
					p.proves(8, 2)
				})
			}
		})
	}
}

// TestVersionReserved checks that types that version 2 reserves are not handled as those of version 1.
func TestVersionReserved(t *testing.T) {
	done := rpcrdma.AppendHeader(nil, &rpcrdma.Header{XID: 7, Vers: 1, Credit: 50, Proc: rpcrdma.ProcDone})
	done[7] = 2
	padded := rpcrdma.AppendHeader(nil, &rpcrdma.Header{XID: 7, Vers: 1, Credit: 50, Proc: rpcrdma.ProcMsgp})
	padded[7] = 2

	t.Run("V2-4.2-6 a server drops RDMA_DONE and refuses RDMA_MSGP, a thousand times", func(t *testing.T) {
		for _, msg := range [][]byte{done, append(done[:16:16], 0, 0, 0, 0), padded, appendCall(padded, 7, 0), padded[:16]} {
			auto(t, greeting(t, nil), nil, func(p *peer, s *Server, _ *testService) {
				grant := p.proves(1, 2).Credit
				before, refused := p.posted(), msg[15] == 2
				for range 1000 {
					p.send(msg, 0)
					if !refused {
						p.quiet("RDMA_DONE is reserved")
					} else if h, _ := p.message("an RDMA_ERROR"); h.Vers != 2 || h.Err != rpcrdma.ErrBadHeader || h.XID != 7 {
						t.Fatalf("the answer is %+v", h)
					}
				}
				if n := p.posted(); n <= before-recvBatch {
					t.Errorf("%d receives are posted, %d before", n, before)
				}
				if h := p.proves(2, 2); h.Credit != grant {
					t.Errorf("the grant was %d, it is %d", grant, h.Credit)
				}
				st := s.Stats()
				if refused != (st.ErrChunk == 1000) || refused != (st.Dropped == 0) {
					t.Errorf("counters are %+v", st)
				}
			})
		}
	})

	t.Run("V2-4.2-6 to a client they are answers that make no sense, if anything", func(t *testing.T) {
		client2(t, nil, func(p *peer, cl *Client) {
			call := async(cl, bg, testCall())
			h, _ := p.message("a call")
			for _, msg := range [][]byte{done, padded} {
				msg := bytes.Clone(msg)
				copy(msg, xdr.AppendUint32(nil, h.XID))
				p.send(msg, 0)
				p.quiet("that is no call")
			}
			var bad *rpc.BadReplyError
			if err := outcome(t, call); !errors.As(err, &bad) {
				t.Errorf("the call returned %v", err)
			}
			p.finishes(cl, 2)
		})
	})
}

// ---- both directions

// client2 runs a conversation with a client on a connection of version 2. Unless cfg says
// so the client has nothing to tell by properties.
func client2(t *testing.T, cfg *Settings, script func(p *peer, cl *Client)) {
	t.Helper()
	var c Settings
	if cfg != nil {
		c = *cfg
	}
	c.Version, c.NoReconnect, c.NoRemoteInvalidation, c.KeepAlive = Version2, true, true, -1
	dials(t, &c, func(d *dialing, p *peer) {
		p.speaks2()
		script(p, d.client())
	})
}

// caller2 runs a conversation with a server that calls its client in version 2.
func caller2(t *testing.T, cfg *Settings, script func(p *peer, s *Server, cn *Conn)) {
	t.Helper()
	auto(t, greeting(t, nil), cfg, func(p *peer, s *Server, svc *testService) {
		p.proves(1, 2)
		cn := &theConn(s).public
		cn.AllowBackward(0)
		synctest.Wait()
		script(p, s, cn)
	})
}

func TestVersionBackward(t *testing.T) {
	t.Run("BIDI-5.1-2 V2-4.2-10 V2-2.3-1 a server calls in the version of its client, with up to 4096 bytes", func(t *testing.T) {
		caller2(t, nil, func(p *peer, s *Server, cn *Conn) {
			for _, size := range []int{100, 4096} {
				call := callOf(size)
				call.MaxResults = 4096 - rpcrdma.MinHeaderSize - 32
				done := backward(cn, bg, call)
				sent := p.next("a call")
				h := word(sent.msg, 0)
				if len(sent.msg) != size || word(sent.msg, 1) != 2 {
					t.Fatalf("the call has %d bytes and version %d", len(sent.msg), word(sent.msg, 1))
				}
				p.reply(rpcrdma.Header{XID: h, Vers: 2}, make([]byte, call.MaxResults)...)
				if err := outcome(t, done); err != nil || len(call.Results) != call.MaxResults {
					t.Errorf("the call returned %v", err)
				}
			}
			var size *rpc.SizeError
			if err := cn.Call(bg, callOf(4100)); !errors.As(err, &size) || size.Limit != 4096 {
				t.Errorf("a longer call returned %v", err)
			}
			if i := cn.Info(); i.Version != 2 || i.BackwardCredits < 1 {
				t.Errorf("ConnInfo is %+v", i)
			}
		})
	})

	t.Run("V2-4.2-10 V2-5.3-1 a client without programs says so, and has a receive for it", func(t *testing.T) {
		client2(t, nil, func(p *peer, cl *Client) {
			if p.early < firstReplies+1+leastBatch {
				t.Errorf("%d receives were posted when the connection was made", p.early)
			}
			before := p.posted()
			for xid := range uint32(100) {
				p.send(callBytes(rpcrdma.Header{XID: xid, Vers: 2, Credit: 99}, xid%3, make([]byte, 4096-68)...), 0)
				h, payload := p.message("the answer")
				var r oncrpc.ReplyHeader
				if _, err := oncrpc.ConsumeReply(payload, &r); err != nil || r.AcceptStat != oncrpc.ProgUnavail || h.Vers != 2 || h.XID != xid || h.Credit != 1 {
					t.Fatalf("the answer is %+v %+v, %v", h, r, err)
				}
			}
			if n := p.posted(); n <= before-recvBatch {
				t.Errorf("%d receives are posted, %d before", n, before)
			}
			p.finishes(cl, 2)
		})
	})

	t.Run("V2-4.2-10 V2-2.1-1 a client executes calls, also between its first message and the answer", func(t *testing.T) {
		svc := &testService{}
		dials(t, &Settings{Callbacks: []rpc.Program{svc.program()}, NoRemoteInvalidation: true, KeepAlive: -1}, func(d *dialing, p *peer) {
			h := p.asked()
			p.send(callBytes(rpcrdma.Header{XID: 3, Vers: 2}, procEcho, opaque("early")...), 0)
			if r, results := p.replies(3, "the reply"); r.Vers != 2 || !bytes.Equal(results, opaque("early")) {
				t.Errorf("the reply is %+v %q", r, results)
			}
			p.reply(rpcrdma.Header{XID: h.XID, Vers: 2})
			cl := d.client()
			const size = 4096 - rpcrdma.MinHeaderSize - 24
			p.send(callBytes(rpcrdma.Header{XID: 4, Vers: 2}, procLong, xdr.AppendUint32(nil, size/4)...), 0)
			s := p.next("a reply of 4096 bytes")
			if len(s.msg) != 4096 || word(s.msg, 1) != 2 {
				t.Errorf("the reply has %d bytes", len(s.msg))
			}
			p.send(callBytes(rpcrdma.Header{XID: 5, Vers: 2}, procLong, xdr.AppendUint32(nil, size/4+1)...), 0)
			if h, _ := p.message("an RDMA_ERROR"); h.Vers != 2 || h.Err != rpcrdma.ErrBadHeader {
				t.Errorf("a reply that is too long: %+v", h)
			}
			p.finishes(cl, 2)
		})
	})

	t.Run("V2-4.2-11 a client answers malformed calls in version 2", func(t *testing.T) {
		client2(t, &Settings{Callbacks: callback()}, func(p *peer, cl *Client) {
			for _, h := range []rpcrdma.Header{
				{Writes: []rpcrdma.WriteChunk{{{Handle: 1, Length: 100, Offset: peerBase}}}},
				{Proc: rpcrdma.ProcNomsg, Reads: []rpcrdma.ReadSegment{{Segment: rpcrdma.Segment{Handle: 1, Length: 80, Offset: peerBase}}}},
			} {
				h.XID, h.Vers = 7, 2
				p.send(callBytes(h, 1), 0)
				want := []byte{0, 0, 0, 7, 0, 0, 0, 2, 0, 0, 0, DefaultBackward, 0, 0, 0, 4, 0, 0, 0, 2}
				if got := p.next("an RDMA_ERROR").msg; !bytes.Equal(got, want) {
					t.Errorf("the answer is %x, want %x", got, want)
				}
			}
			p.finishes(cl, 2)
		})
	})

	t.Run("a client that fell back to version 1 drops calls, as others do", func(t *testing.T) {
		dials(t, nil, func(d *dialing, p *peer) {
			p.speaks(1, 1)
			cl := d.client()
			p.send(callBytes(rpcrdma.Header{XID: 9}, 1), 0)
			p.quiet("there are no programs in version 1")
			p.finishes(cl, 1)
		})
	})
}

// FuzzVersion2Server sends a server of both versions several messages with arbitrary bytes. The server must answer each
// once, ignore it, or end the connection, without leaks or crashes.
func FuzzVersion2Server(f *testing.F) {
	p := newPeer(nil)
	seg := func(h uint32, n int) rpcrdma.Segment { return p.offer(h, make([]byte, n)) }
	opt := func(typ uint32, info []byte) []byte {
		return rpcrdma.AppendHeader(nil, &rpcrdma.Header{XID: 5, Vers: 2, Credit: 1, Proc: rpcrdma.ProcOptional, OptType: typ, OptInfo: info})
	}
	offer := rpcrdma.AppendProperties(nil, rpcrdma.Properties{SendSize: 8192, RecvSize: 8192, RemoteInvalidation: true})
	for _, msg := range [][]byte{
		callBytes(rpcrdma.Header{XID: 5, Vers: 2}, procEcho, opaque("hello")...),
		callBytes(rpcrdma.Header{XID: 5, Vers: 2, Reads: []rpcrdma.ReadSegment{{Position: 44, Segment: seg(1, 500)}}}, procEcho, 0, 0, 1, 0xf4),
		callBytes(rpcrdma.Header{XID: 5, Vers: 2, HasReply: true, Reply: rpcrdma.WriteChunk{seg(2, 9000)}}, procLong, 0, 0, 8, 0),
		opt(rpcrdma.OptProperties, offer), opt(rpcrdma.OptProperties, offer[:12]), opt(testOp, []byte("?x")), opt(testOp, nil), opt(3, offer),
		append(opt(testOp, []byte("?x")), appendCall(nil, 5, procEcho)...),
		errVers(5, 1, 1), {1, 2, 3},
	} {
		f.Add(msg, msg, false)
		f.Add(opt(rpcrdma.OptProperties, offer), msg, true)
	}
	f.Fuzz(func(t *testing.T, first, second []byte, mixed bool) {
		if len(first) > DefaultInline || len(second) > DefaultInline {
			return
		}
		if mixed && len(second) > 8 {
			second[7] = 1
		}
		p := greeting(t, nil)
		p.hostile = true
		for h := uint32(1); h <= 3; h++ {
			p.offer(h, make([]byte, 10_000))
		}
		auto(t, p, &Settings{Operations: testOps()}, func(p *peer, s *Server, svc *testService) {
			close(svc.gate)
			before := p.posted()
			for i, msg := range [][]byte{first, second} {
				dropped := s.Stats().Dropped
				if p.over() {
					return
				}
				p.send(msg, 0)
				synctest.Wait()
				p.mu.Lock()
				answers, ended := p.sends, p.end != nil
				p.sends = nil
				p.mu.Unlock()
				if len(answers) > 1 {
					t.Fatalf("%d answers to message %d", len(answers), i)
				}
				if len(answers) == 0 && !ended && s.Stats().Dropped != dropped+1 {
					t.Fatalf("neither answered nor ignored: %+v", s.Stats())
				}
				if len(answers) == 1 {
					var h rpcrdma.Header
					_, err := rpcrdma.ConsumeHeader(answers[0].msg, &h, &bothVersions)
					if err != nil || h.XID != word(msg, 0) || h.Vers != word(msg, 1) || h.Credit == 0 {
						t.Fatalf("message %d is answered with %+v, %v", i, h, err)
					}
				}
			}
			if n := p.posted(); n <= before-recvBatch && !p.over() {
				t.Fatalf("%d receives are posted, %d before", n, before)
			}
		})
	})
}

// FuzzVersion2Client answers the first message of a client of both versions, and those that follow, with arbitrary
// bytes that contain the xids. The client must end or keep waiting.
func FuzzVersion2Client(f *testing.F) {
	p := &peer{}
	answers := [][]byte{
		p.replyBytes(rpcrdma.Header{Vers: 2}, nil),
		p.replyBytes(rpcrdma.Header{}, nil),
		errVers(0, 1, 1), errVers(0, 2, 3),
		rpcrdma.AppendHeader(nil, &rpcrdma.Header{Vers: 2, Credit: 1, Proc: rpcrdma.ProcError, Err: rpcrdma.ErrInvalOption}),
		rpcrdma.AppendHeader(nil, &rpcrdma.Header{Vers: 2, Credit: 8, Proc: rpcrdma.ProcOptional, OptType: rpcrdma.OptProperties,
			OptInfo: rpcrdma.AppendProperties(nil, rpcrdma.Properties{Dir: rpcrdma.PropAccept, SendSize: 4096, RecvSize: 65536, RemoteInvalidation: true})}),
		rpcrdma.AppendHeader(nil, &rpcrdma.Header{Vers: 2, Credit: 8, Proc: rpcrdma.ProcOptional, OptType: testOp, OptInfo: []byte("!done")}),
		{0, 0, 0, 0, 2},
	}
	for _, msg := range answers {
		f.Add(answers[0], msg, msg)
		f.Add(msg, answers[5], answers[6])
	}
	f.Fuzz(func(t *testing.T, first, second, third []byte) {
		msgs := [][]byte{bytes.Clone(first), bytes.Clone(second), bytes.Clone(third)}
		for _, msg := range msgs {
			if len(msg) > 4096 {
				return
			}
		}
		dials(t, &Settings{NoReconnect: true, InlineSend: 8192, InlineRecv: 8192, Operations: testOps()}, func(d *dialing, p *peer) {
			operated := make(chan error, 1)
			asked := false
			for _, msg := range msgs {
				synctest.Wait()
				if d.over() && !asked {
					if d.err != nil {
						return
					}
					asked = true
					go func() {
						_, err := d.cl.Operate(bg, Optional{Type: testOp, Info: []byte("?x")})
						operated <- err
					}()
					synctest.Wait()
				}
				p.mu.Lock()
				sends := p.sends
				p.sends = nil
				p.mu.Unlock()
				if len(sends) > 1 {
					t.Fatalf("%d messages at once", len(sends))
				}
				if len(sends) == 0 || p.over() {
					return
				}
				if len(msg) >= 4 {
					copy(msg, sends[0].msg[:4])
				}
				p.send(msg, 0)
			}
			synctest.Wait()
			if d.over() && d.err == nil {
				if i := d.cl.Info(); i.InlineSend > 8192 || i.InlineRecv > 8192 || i.Version == 2 && (i.InlineSend < 4096 || i.InlineRecv < 4096) {
					t.Fatalf("ConnInfo is %+v", i)
				}
			}
		})
	})
}
