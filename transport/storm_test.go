package transport

import (
	"bytes"
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/rpcrdma"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
	"github.com/rpcrdma/rpcrdma/rpc"
)

// A server that ends connections costs its clients only what it costs the server: a call that it has
// answered is not made again, and connections do not follow each other without a pause.

// placedCall has a write chunk, a read chunk and a reply chunk.
func placedCall() *rpc.Call {
	return &rpc.Call{Prog: testProg, Vers: 1, Args: xdr.AppendUint32(nil, 6000), MaxResults: 9000,
		ReadItems:  []rpc.ReadItem{{Offset: 4, Data: bytes.Repeat([]byte("read "), 1200)}},
		WriteItems: []rpc.WriteItem{{Buf: make([]byte, 9000)}}}
}

// placeReply answers a call of placedCall: in its chunks, all of it.
func placeReply(p *peer, h rpcrdma.Header) (msg []byte) {
	p.t.Helper()
	p.write(h.Writes[0][0], "placed")
	h.Writes[0][0].Length = 6
	rpc := oncrpc.AppendReply(nil, &oncrpc.ReplyHeader{XID: h.XID})
	rpc = append(xdr.AppendUint32(rpc, 6), bytes.Repeat([]byte("reply "), 1000)...)
	p.write(h.Reply[0], string(rpc))
	h.Reply[0].Length = uint32(len(rpc))
	return rpcrdma.AppendHeader(nil, &rpcrdma.Header{XID: h.XID, Vers: 1, Credit: 8, Proc: rpcrdma.ProcNomsg,
		Writes: h.Writes, HasReply: true, Reply: h.Reply})
}

// checkPlaced checks what a call of placedCall has returned.
func checkPlaced(t *testing.T, call *rpc.Call, err error) {
	t.Helper()
	w := &call.WriteItems[0]
	if err != nil || !w.Chunked || w.N != 6 || string(w.Buf[:6]) != "placed" ||
		len(call.Results) != 6004 || !bytes.Equal(call.Results[4:], bytes.Repeat([]byte("reply "), 1000)) {
		t.Errorf("the call returned %v, %q in its chunk and %d bytes of results", err, w.Buf[:min(w.N, 9)], len(call.Results))
	}
}

// fenced checks that nothing opens any more what a call had offered.
func fenced(p *peer, h rpcrdma.Header) {
	p.t.Helper()
	segs := append([]rpcrdma.Segment(nil), h.Reply...)
	for _, chunk := range h.Writes {
		segs = append(segs, chunk...)
	}
	for _, s := range h.Reads {
		segs = append(segs, s.Segment)
	}
	for _, s := range segs {
		for _, access := range []fabric.Access{fabric.AccessRemoteRead, fabric.AccessRemoteWrite} {
			if _, err := p.reach(s, access); err == nil {
				p.t.Errorf("handle %#x is open", s.Handle)
			}
		}
	}
}

// last delivers the last messages and ends the connection, all in one moment.
func (p *peer) last(msgs ...[]byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, msg := range msgs {
		r := p.recvs[i]
		p.wcs = append(p.wcs, fabric.WC{ID: r.ID, Op: fabric.WCRecv, Len: uint32(copy(r.SGE.Buf, msg))})
	}
	p.recvs = p.recvs[len(msgs):]
	p.finishLocked(&fabric.ConnError{Provider: "script", Remote: true})
}

func TestAcceptedReply(t *testing.T) {
	// The reply has arrived, the memory is not closed yet, the connection ends.
	for _, windows := range []bool{true, false} {
		for _, tt := range []struct {
			name  string
			call  func() *rpc.Call
			reply func(p *peer, h rpcrdma.Header) []byte
			check func(t *testing.T, call *rpc.Call, err error)
		}{
			{"inline",
				func() *rpc.Call { return numbered(5) },
				func(p *peer, h rpcrdma.Header) []byte {
					return p.replyBytes(rpcrdma.Header{XID: h.XID}, opaque("inline"))
				},
				func(t *testing.T, call *rpc.Call, err error) {
					t.Helper()
					if err != nil || !bytes.Equal(call.Results, opaque("inline")) {
						t.Errorf("the call returned %v, %q", err, call.Results)
					}
				}},
			{"in chunks of all kinds", placedCall, placeReply, checkPlaced},
			{"a refusal", placedCall,
				func(p *peer, h rpcrdma.Header) []byte {
					return rpcrdma.AppendHeader(nil, &rpcrdma.Header{XID: h.XID, Vers: 1, Credit: 1, Proc: rpcrdma.ProcError, Err: rpcrdma.ErrChunk})
				},
				func(t *testing.T, _ *rpc.Call, err error) {
					t.Helper()
					var refused *rpc.RDMAError
					if !errors.As(err, &refused) {
						t.Errorf("the call returned %v", err)
					}
				}},
			{"a reply that makes no sense", placedCall,
				func(p *peer, h rpcrdma.Header) []byte {
					return p.replyBytes(rpcrdma.Header{XID: h.XID, Writes: []rpcrdma.WriteChunk{{{Handle: 1, Length: 1}}}}, nil)
				},
				func(t *testing.T, _ *rpc.Call, err error) {
					t.Helper()
					var bad *rpc.BadReplyError
					if !errors.As(err, &bad) {
						t.Errorf("the call returned %v", err)
					}
				}},
		} {
			for _, seen := range []bool{true, false} { // the reply, before the end
				name := tt.name
				if !windows {
					name += ", in regions"
				}
				if !seen {
					name += ", and the end with it"
				}
				t.Run(name, func(t *testing.T) {
					p := newPeer(t)
					p.caps.MemoryWindows = windows
					clientOver(t, p, nil, nil, func(ps *peers, cl *Client) {
						p.holdInv = true
						call := tt.call()
						done := async(cl, bg, call)
						h, _ := p.message("the call")
						next := ps.next()
						reply := tt.reply(p, h)
						if seen {
							p.send(reply, 0)
							synctest.Wait()
							p.hangUp()
						} else {
							p.last(reply)
						}
						err := outcome(t, done)
						tt.check(t, call, err)
						fenced(p, h)
						time.Sleep(time.Hour)
						next.quiet("the call has been answered")
						if n, st := ps.attempts(), cl.Stats(); n != 1 || st.Resent != 0 {
							t.Errorf("%d connections, %d calls sent again", n, st.Resent)
						}
					})
				})
			}
		}
	}

	t.Run("memory is the caller's once the connection is closed, not when an invalidation has failed", func(t *testing.T) {
		clientTo(t, nil, func(ps *peers, p *peer, cl *Client) {
			p.holdInv = true
			call := placedCall()
			done := async(cl, bg, call)
			h, _ := p.message("the call")
			p.send(placeReply(p, h), 0)
			synctest.Wait()
			p.mu.Lock()
			for i := range p.heldInv {
				p.heldInv[i].Status = fabric.WCFlushErr
			}
			p.mu.Unlock()
			p.completeInv()
			pending(t, done)
			p.hangUp()
			err := outcome(t, done)
			checkPlaced(t, call, err)
			fenced(p, h)
		})
	})

	t.Run("all that came before the end, more than one poll takes", func(t *testing.T) {
		const calls = 3*firstPoll + 1
		clientTo(t, nil, func(ps *peers, p *peer, cl *Client) {
			p.opens(cl, calls)
			var all [calls]*rpc.Call
			var done [calls]<-chan error
			var hs [calls]rpcrdma.Header
			for i := range all {
				all[i] = placedCall()
				done[i] = async(cl, bg, all[i])
				hs[i], _ = p.message("a call")
			}
			var replies [][]byte
			for _, h := range hs {
				replies = append(replies, placeReply(p, h))
			}
			p.last(replies...)
			for i := range all {
				checkPlaced(t, all[i], outcome(t, done[i]))
				fenced(p, hs[i])
			}
			if n := ps.attempts(); n != 1 {
				t.Errorf("%d connections", n)
			}
		})
	})

	t.Run("a reply in read chunks is there when it has been fetched", func(t *testing.T) {
		for _, fetched := range []bool{true, false} {
			clientTo(t, &Settings{RFC5666: &RFC5666{}}, func(ps *peers, p *peer, cl *Client) {
				p.noReads, p.holdSends = !fetched, true
				call := &rpc.Call{Prog: testProg, Vers: 1}
				done := async(cl, bg, call)
				h, _ := p.message("the call")
				data := append(oncrpc.AppendReply(nil, &oncrpc.ReplyHeader{XID: h.XID}), opaque("fetched")...)
				p.send(rpcrdma.AppendHeader(nil, &rpcrdma.Header{XID: h.XID, Vers: 1, Credit: 8, Proc: rpcrdma.ProcNomsg,
					Reads: []rpcrdma.ReadSegment{{Segment: p.offer(9, data)}}}), 0)
				synctest.Wait()
				q := ps.next()
				p.hangUp()
				if !fetched {
					time.Sleep(time.Second)
					h2, _ := q.message("the call again")
					if h2.XID != h.XID {
						t.Errorf("it has the xid %#x, had %#x", h2.XID, h.XID)
					}
					q.reply(rpcrdma.Header{XID: h2.XID}, opaque("fetched")...)
				}
				if err := outcome(t, done); err != nil || !bytes.Equal(call.Results, opaque("fetched")) {
					t.Errorf("the call returned %v, %q", err, call.Results)
				}
				time.Sleep(time.Second)
				q.quiet("the call has its reply")
			})
		}
	})
}

// ends has a peer take messages and treat them until treat says that it is enough, and then
// ends the connection.
func (p *peer) ends(treat func(h rpcrdma.Header, payload []byte) (enough bool)) {
	defer p.hangUp()
	for {
		s, ok := p.take()
		if !ok {
			return
		}
		var h rpcrdma.Header
		n, err := rpcrdma.ConsumeHeader(s.msg, &h, &bothVersions)
		if err != nil || treat(h, s.msg[n:]) {
			return
		}
	}
}

func TestStorm(t *testing.T) {
	once := func(context.Context, *Client) {}
	calls := func(ctx context.Context, cl *Client) { // one after the other
		for cl.Call(ctx, placedCall()) == nil {
		}
	}
	one := func(ctx context.Context, cl *Client) { _ = cl.Call(ctx, placedCall()) }
	for name, tt := range map[string]struct {
		progs  []rpc.Program
		told   func(cl *Client)                      // OnReconnect
		use    func(ctx context.Context, cl *Client) // what the client does meanwhile
		server func(p *peer)                         // for each connection, on a goroutine of its own
	}{
		"answers each call, and ends the connection behind it": {
			use: calls,
			server: func(p *peer) {
				p.ends(func(h rpcrdma.Header, _ []byte) bool { p.deliver(placeReply(p, h)); return true })
			},
		},
		"ends the connection when a call comes": {
			use:    one,
			server: func(p *peer) { p.ends(func(rpcrdma.Header, []byte) bool { return true }) },
		},
		"answers an earlier call": {
			use: one,
			server: func(p *peer) {
				p.ends(func(h rpcrdma.Header, _ []byte) bool {
					p.deliver(p.replyBytes(rpcrdma.Header{XID: h.XID + 1}, nil))
					return true
				})
			},
		},
		"ends the connection of an idle client": {
			progs:  callback(),
			use:    once,
			server: (*peer).hangUp,
		},
		"ends it when the client is ready": {
			progs: callback(),
			told:  func(cl *Client) { _ = cl.Call(bg, numbered(1)) },
			use:   once,
			server: func(p *peer) {
				p.ends(func(h rpcrdma.Header, _ []byte) bool {
					p.deliver(p.replyBytes(rpcrdma.Header{XID: h.XID}, nil))
					return true
				})
			},
		},
		"calls the client, and ends the connection": {
			progs: callback(),
			use:   once,
			server: func(p *peer) {
				p.deliver(callBytes(rpcrdma.Header{XID: 1}, 1))
				p.ends(func(rpcrdma.Header, []byte) bool { return true })
			},
		},
		"refuses each call, and ends the connection": {
			use: func(ctx context.Context, cl *Client) {
				for ctx.Err() == nil {
					_ = cl.Call(ctx, numbered(1))
				}
			},
			server: func(p *peer) {
				p.ends(func(h rpcrdma.Header, _ []byte) bool {
					p.deliver(rpcrdma.AppendHeader(nil, &rpcrdma.Header{XID: h.XID, Vers: 1, Credit: 1, Proc: rpcrdma.ProcError, Err: rpcrdma.ErrVers, VersLow: 1, VersHigh: 1}))
					return true
				})
			},
		},
	} {
		t.Run("a server "+name, func(t *testing.T) {
			cfg := &Settings{Callbacks: tt.progs, KeepAlive: -1, OnReconnect: tt.told}
			clientTo(t, cfg, func(ps *peers, p *peer, cl *Client) {
				ps.mu.Lock()
				ps.more = func() *peer {
					p := newPeer(t)
					if len(ps.dials) > 1000 {
						p.refuse = errors.New("script: enough")
						return p
					}
					go func() {
						for p.posted() == 0 { // the connection is being made
							time.Sleep(time.Millisecond)
						}
						tt.server(p)
					}()
					return p
				}
				ps.mu.Unlock()
				ctx, cancel := context.WithCancel(bg)
				defer cancel()
				p.hangUp()
				go tt.use(ctx, cl)
				time.Sleep(5 * time.Second)
				if n := ps.attempts(); n < 5 || n > 12 {
					ps.t.Fatalf("%d connections in five seconds", n)
				}
				time.Sleep(55 * time.Second)
				if n := ps.attempts(); n < 8 || n > 25 {
					t.Errorf("%d connections in a minute", n)
				}
				before := ps.attempts()
				time.Sleep(time.Hour)
				if n := ps.attempts() - before; n < 300 || n > 420 {
					t.Errorf("%d connections in the hour after", n)
				}
				cancel()
			})
		})
	}

	t.Run("calls of OnReconnect do not pile up, and one follows on the last of all connections", func(t *testing.T) {
		var under, most, all atomic.Int32
		cfg := &Settings{Callbacks: callback(), KeepAlive: -1, OnReconnect: func(cl *Client) {
			most.Store(max(most.Load(), under.Add(1)))
			_ = cl.Call(bg, numbered(uint32(all.Add(1))))
			under.Add(-1)
		}}
		clientTo(t, cfg, func(ps *peers, p *peer, cl *Client) {
			for range 20 {
				q := ps.next()
				p.hangUp()
				time.Sleep(2 * defaultMaxPause)
				p = q
			}
			if under.Load() != maxTelling || most.Load() != maxTelling || all.Load() != maxTelling {
				t.Fatalf("%d calls of it are under way, %d were, of %d", under.Load(), most.Load(), all.Load())
			}
			for range maxTelling + 1 {
				p.answerNext("what OnReconnect asks")
			}
			synctest.Wait()
			if under.Load() != 0 || all.Load() != maxTelling+1 {
				t.Errorf("%d calls of it are under way, of %d", under.Load(), all.Load())
			}
			q := ps.next()
			time.Sleep(steady)
			p.hangUp()
			q.answerNext("what OnReconnect asks on one more connection")
		})
	})
}
