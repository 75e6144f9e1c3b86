package transport

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/proto/rpcrdma"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/transport/internal/expose"
)

// apart fails the test if the peer reaches any of mem.
func (p *peer) apart(mem []byte) {
	p.t.Helper()
	synctest.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	for key, w := range p.windows {
		const remote = fabric.AccessRemoteRead | fabric.AccessRemoteWrite
		if w.bound && w.access&remote != 0 && expose.Overlap(w.mem, mem) {
			p.t.Errorf("the peer reaches memory of the program through handle %#x", key)
		}
	}
}

// TestBounce checks that short items go through bounce buffers where memory would have to be registered for each call.
func TestBounce(t *testing.T) {
	arg, res := span{100, 9100}, span{10_000, 19_500}

	t.Run("V1-11-3 nothing is registered for a call, and the peer never reaches the program's memory", func(t *testing.T) {
		clientOf(t, registering(t, false), nil, func(p *peer, cl *Client) {
			mem := letters(20_000)
			want := bytes.Clone(mem)
			regions := 0
			for i := range 3 {
				call := moves(mem, arg, res)
				done := async(cl, bg, call)
				h, _ := p.message("the call")
				p.apart(mem)
				if i == 0 {
					regions = p.regions()
				}
				if n := p.regions(); n != regions {
					t.Errorf("%d regions during a call, %d during the first", n, regions)
				}
				if !bytes.Equal(p.read(h.Reads), arg.of(want)) {
					t.Error("the argument is another")
				}
				text := fmt.Sprintf("placed %d", i)
				p.write(h.Writes[0][0], text)
				h.Writes[0][0].Length = uint32(len(text))
				p.reply(rpcrdma.Header{XID: h.XID, Writes: h.Writes}, xdr.AppendUint32(nil, uint32(len(text)))...)
				if err := outcome(t, done); err != nil {
					t.Fatal(err)
				}
				copy(res.of(want), text)
				if !bytes.Equal(mem, want) || call.WriteItems[0].N != len(text) || !call.WriteItems[0].Chunked {
					t.Errorf("the result is %.20q, %d bytes", res.of(mem), call.WriteItems[0].N)
				}
				// Writes of the peer after its reply have no effect.
				p.write(h.Writes[0][0], "late")
				if !bytes.Equal(mem, want) {
					t.Error("the peer has written to the program's memory")
				}
			}
		})
	})

	t.Run("an item that is longer is registered", func(t *testing.T) {
		clientOf(t, registering(t, false), &Settings{BounceMax: 9200}, func(p *peer, cl *Client) {
			before := p.regions()
			mem := letters(20_000)
			done := async(cl, bg, moves(mem, arg, res))
			h, _ := p.message("the call")
			if m, err := p.reach(h.Writes[0][0], fabric.AccessRemoteWrite); err != nil || &m[0] != &mem[res.from] {
				t.Errorf("the longer item: %v", err)
			}
			p.apart(arg.of(mem))
			if n := p.regions(); n != before+2 {
				t.Errorf("%d regions, want two more than %d", n, before)
			}
			p.reply(rpcrdma.Header{XID: h.XID, Writes: h.Writes}, xdr.AppendUint32(nil, h.Writes[0][0].Length)...)
			if err := outcome(t, done); err != nil || p.regions() != before+1 {
				t.Errorf("%v, %d regions", err, p.regions())
			}
		})
	})

	t.Run("a failed call leaves the result as it was", func(t *testing.T) {
		clientOf(t, registering(t, false), nil, func(p *peer, cl *Client) {
			mem := letters(20_000)
			want := bytes.Clone(mem)
			done := async(cl, bg, moves(mem, arg, res))
			h, _ := p.message("the call")
			p.write(h.Writes[0][0], "placed")
			h.Writes[0][0].Handle++
			p.reply(rpcrdma.Header{XID: h.XID, Writes: h.Writes}, 0, 0, 0, 6)
			var bad *rpc.BadReplyError
			if err := outcome(t, done); !errors.As(err, &bad) || !bytes.Equal(mem, want) {
				t.Errorf("%v, %.10q", err, res.of(mem))
			}
		})
	})

	t.Run("a long call, and a long reply", func(t *testing.T) {
		clientOf(t, registering(t, false), nil, func(p *peer, cl *Client) {
			regions := 0
			for i := range 3 {
				args := letters(6000)
				call := &rpc.Call{Prog: testProg, Vers: 1, Args: args, MaxResults: 9000}
				done := async(cl, bg, call)
				h, _ := p.message("the call")
				if i == 0 {
					regions = p.regions()
				}
				if n := p.regions(); n != regions {
					t.Errorf("%d regions, %d during the first call", n, regions)
				}
				if m := p.read(h.Reads); h.Proc != rpcrdma.ProcNomsg || !bytes.HasSuffix(m, args) {
					t.Errorf("%v, a message of %d bytes", h.Proc, len(m))
				}
				msg := p.replyBytes(rpcrdma.Header{XID: h.XID}, letters(5000))
				n := rpcrdma.MinHeaderSize
				p.write(h.Reply[0], string(msg[n:]))
				h.Reply[0].Length = uint32(len(msg) - n)
				p.reply(rpcrdma.Header{XID: h.XID, Proc: rpcrdma.ProcNomsg, Reply: h.Reply, HasReply: true})
				if err := outcome(t, done); err != nil || !bytes.Equal(call.Results, letters(5000)) {
					t.Errorf("%v, %d bytes of results", err, len(call.Results))
				}
			}
		})
	})

	t.Run("what is registered for good stays where it is", func(t *testing.T) {
		clientOf(t, registering(t, false), nil, func(p *peer, cl *Client) {
			mem := letters(20_000)
			m := register(t, cl, mem)
			defer m.Close()
			before := p.regions()
			_, write := p.answersMove(async(cl, bg, moves(mem, arg, res)))
			if write.Offset != peerBase+uint64(res.from) || p.regions() != before {
				t.Errorf("the result is at %#x, %d regions, %d before", write.Offset, p.regions(), before)
			}
		})
	})

	t.Run("V1-11-4 windows lie over bounce buffers, for one call and one right", func(t *testing.T) {
		clientOf(t, registering(t, true), nil, func(p *peer, cl *Client) {
			mem := letters(20_000)
			regions := 0
			for i := range 3 {
				done := async(cl, bg, moves(mem, arg, res))
				h, _ := p.message("the call")
				p.apart(mem)
				if i == 0 {
					regions = p.regions()
				}
				if n := p.regions(); n != regions {
					t.Errorf("%d regions during a call, %d during the first", n, regions)
				}
				if _, err := p.reach(h.Writes[0][0], fabric.AccessRemoteRead); err == nil {
					t.Error("a write chunk can be read")
				}
				p.mu.Lock()
				for key, w := range p.windows {
					if w.mr && w.access != fabric.AccessLocalWrite {
						t.Errorf("the region with handle %#x has rights %d", key, w.access)
					}
				}
				p.mu.Unlock()
				p.write(h.Writes[0][0], "placed")
				h.Writes[0][0].Length = 6
				p.reply(rpcrdma.Header{XID: h.XID, Writes: h.Writes}, 0, 0, 0, 6)
				if err := outcome(t, done); err != nil || string(mem[res.from:][:6]) != "placed" {
					t.Fatalf("%v, %q", err, mem[res.from:][:6])
				}
				for _, s := range []rpcrdma.Segment{h.Reads[0].Segment, h.Writes[0][0]} {
					if _, err := p.reach(s, fabric.AccessRemoteRead|fabric.AccessRemoteWrite); err == nil {
						t.Error("the peer reaches the buffer after the call")
					}
				}
			}
		})
	})

	t.Run("unused buffers are released", func(t *testing.T) {
		clientOf(t, registering(t, false), nil, func(p *peer, cl *Client) {
			before := p.regions()
			p.answersMove(async(cl, bg, moves(letters(20_000), arg, res)))
			if n := p.regions(); n != before+1 {
				t.Errorf("%d regions, %d before", n, before)
			}
			time.Sleep(3 * trimTime)
			if n := p.regions(); n != before {
				t.Errorf("%d regions after a while, %d before", n, before)
			}
		})
	})
}

// TestBounceGivenUp checks that no other call uses the buffers of an abandoned call before its reply arrives.
func TestBounceGivenUp(t *testing.T) {
	arg, res := span{100, 9100}, span{10_000, 19_500}
	for _, weak := range []bool{false, true} {
		t.Run(fmt.Sprintf("the connection goes on, WeakRevocation %v", weak), func(t *testing.T) {
			p := registering(t, false)
			p.caps.WeakRevocation = weak
			clientOf(t, p, nil, func(p *peer, cl *Client) {
				p.opensTwo(cl)
				mem := letters(20_000)
				want := bytes.Clone(mem)
				ctx, giveUp := context.WithCancel(bg)
				first := async(cl, ctx, moves(mem, arg, res))
				late, _ := p.message("the first call")
				giveUp()
				time.Sleep(10 * time.Millisecond) // until that is noticed
				if err := outcome(t, first); !errors.Is(err, context.Canceled) {
					t.Fatal(err)
				}
				if p.over() {
					t.Fatal("the connection has ended")
				}
				p.apart(mem)

				other := letters(20_000)
				second := async(cl, bg, moves(other, arg, res))
				h, _ := p.message("the second call")
				for _, s := range []rpcrdma.Segment{h.Reads[0].Segment, h.Writes[0][0]} {
					for _, o := range []rpcrdma.Segment{late.Reads[0].Segment, late.Writes[0][0]} {
						if s.Handle == o.Handle && s.Offset < o.Offset+uint64(o.Length) && o.Offset < s.Offset+uint64(s.Length) {
							t.Errorf("%+v of the second call is in %+v of the first", s, o)
						}
					}
				}
				p.write(h.Writes[0][0], "placed")
				p.write(late.Writes[0][0], "too late")
				if !bytes.Equal(p.read(h.Reads), arg.of(other)) {
					t.Error("the argument is another")
				}
				p.reply(rpcrdma.Header{XID: late.XID, Writes: late.Writes}, 0, 0, 0, 8)
				p.reply(rpcrdma.Header{XID: h.XID, Writes: h.Writes}, xdr.AppendUint32(nil, h.Writes[0][0].Length)...)
				if err := outcome(t, second); err != nil || string(other[res.from:][:6]) != "placed" {
					t.Errorf("%v, %q", err, other[res.from:][:8])
				}
				if !bytes.Equal(mem, want) {
					t.Error("the memory of the first call has changed")
				}
				synctest.Wait()
				if what := Busy(cl.Latest()); what != "" {
					t.Error(what)
				}
			})
		})
	}

	t.Run("what does not fit into a buffer takes the connection along as before", func(t *testing.T) {
		p := registering(t, false)
		p.caps.WeakRevocation = true
		clientOf(t, p, &Settings{BounceMax: 9200}, func(p *peer, cl *Client) {
			ctx, giveUp := context.WithCancel(bg)
			done := async(cl, ctx, moves(letters(20_000), arg, res))
			p.message("the call")
			giveUp()
			time.Sleep(10 * time.Millisecond)
			if err := outcome(t, done); !errors.Is(err, context.Canceled) || !p.over() {
				t.Errorf("%v, the connection lives: %v", err, !p.over())
			}
		})
	})

	t.Run("when all are in use memory is registered for the call", func(t *testing.T) {
		const half = bounceMemory / 2 // two of them, and the slab of the results, are too much
		clientOf(t, registering(t, false), &Settings{BounceMax: half}, func(p *peer, cl *Client) {
			p.opensTwo(cl)
			ctx, giveUp := context.WithCancel(bg)
			mem := letters(half + 5000)
			first := async(cl, ctx, moves(mem, span{0, half}, span{half, half + 5000}))
			late, _ := p.message("the first call")
			p.apart(mem)
			giveUp()
			time.Sleep(10 * time.Millisecond)
			if err := outcome(t, first); !errors.Is(err, context.Canceled) {
				t.Fatal(err)
			}
			for i := range 2 {
				before := p.regions()
				if i == 0 {
					before++ // the messages of two calls at once
				}
				done := async(cl, bg, moves(mem, span{0, half}, span{half, half + 5000}))
				h, _ := p.message("another call")
				if m, err := p.reach(h.Reads[0].Segment, fabric.AccessRemoteRead); err != nil || &m[0] != &mem[0] {
					t.Errorf("%v; the item is not where it was", err)
				}
				p.apart(mem[half:])
				p.reply(rpcrdma.Header{XID: h.XID, Writes: h.Writes}, xdr.AppendUint32(nil, h.Writes[0][0].Length)...)
				if err := outcome(t, done); err != nil || p.regions() != before {
					t.Errorf("%v, %d regions, %d before", err, p.regions(), before)
				}
			}
			p.reply(rpcrdma.Header{XID: late.XID})
			p.opensTwo(cl) // which takes the late reply in
			done := async(cl, bg, moves(mem, span{0, half}, span{half, half + 5000}))
			h, _ := p.message("a call that has room again")
			p.apart(mem)
			p.reply(rpcrdma.Header{XID: h.XID, Writes: h.Writes}, xdr.AppendUint32(nil, h.Writes[0][0].Length)...)
			if err := outcome(t, done); err != nil {
				t.Error(err)
			}
		})
	})
}
