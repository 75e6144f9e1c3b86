package transport

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/proto/rpcrdma"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
	"github.com/rpcrdma/rpcrdma/rpc"
)

// registering is a peer with an adapter that wants memory registered.
func registering(t *testing.T, windows bool) *peer {
	p := newPeer(t)
	p.caps.LocalDMA, p.caps.MemoryWindows, p.caps.RemoteInvalidate = false, windows, windows
	return p
}

// registersEach is for a client that registers memory for each call unless it is registered for good.
var registersEach = &Settings{BounceMax: -1}

// A span is a part of memory, by its ends.
type span struct{ from, to int }

func (s span) of(mem []byte) []byte { return mem[s.from:s.to] }

// moves is a call that has its argument and its result in mem.
func moves(mem []byte, arg, res span) *rpc.Call {
	return &rpc.Call{Prog: testProg, Vers: 1, Args: xdr.AppendUint32(nil, uint32(arg.to-arg.from)), MaxResults: 8,
		ReadItems: []rpc.ReadItem{{Offset: 4, Data: arg.of(mem)}}, WriteItems: []rpc.WriteItem{{Buf: res.of(mem)}}}
}

// answersMove replies to the next call and returns the segments that it exposed.
func (p *peer) answersMove(done <-chan error) (read, write rpcrdma.Segment) {
	p.t.Helper()
	h, _ := p.message("the call")
	read, write = h.Reads[0].Segment, h.Writes[0][0]
	p.reply(rpcrdma.Header{XID: h.XID, Writes: h.Writes}, xdr.AppendUint32(nil, write.Length)...)
	if err := outcome(p.t, done); err != nil {
		p.t.Fatal(err)
	}
	return read, write
}

// register registers memory with a client.
func register(t *testing.T, cl *Client, mem []byte) *Memory {
	t.Helper()
	m, err := cl.RegisterMemory(mem)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// TestRegisterMemory checks that calls use registered memory without registering it again.
func TestRegisterMemory(t *testing.T) {
	arg, res := span{100, 9100}, span{10_000, 19_500}

	t.Run("calls name parts of one region", func(t *testing.T) {
		clientOf(t, registering(t, false), registersEach, func(p *peer, cl *Client) {
			mem := letters(20_000)
			before := p.regions()
			m := register(t, cl, mem)
			if n := p.regions(); n != before+1 || &m.Bytes()[0] != &mem[0] || len(m.Bytes()) != len(mem) {
				t.Fatalf("%d regions, %d before", n, before)
			}
			for range 3 {
				done := async(cl, bg, moves(mem, arg, res))
				h, _ := p.message("the call")
				read, write := h.Reads[0].Segment, h.Writes[0][0]
				if read.Handle != write.Handle || read.Offset != peerBase+100 || write.Offset != peerBase+10_000 || write.Length != 9500 {
					t.Fatalf("segments are %+v and %+v", read, write)
				}
				if !bytes.Equal(p.read(h.Reads), arg.of(mem)) {
					t.Error("the argument is another")
				}
				p.write(write, "placed")
				p.reply(rpcrdma.Header{XID: h.XID, Writes: h.Writes}, xdr.AppendUint32(nil, write.Length)...)
				if err := outcome(t, done); err != nil || string(mem[res.from:res.from+6]) != "placed" {
					t.Fatalf("%v, %q", err, mem[res.from:res.from+6])
				}
				if _, err := p.reach(write, fabric.AccessRemoteWrite); err != nil || p.regions() != before+1 {
					t.Fatalf("%v, %d regions after a call, want %d", err, p.regions(), before+1)
				}
			}
			done := async(cl, bg, moves(mem, arg, res))
			_, write := p.answersMove(done)
			for range 2 {
				if err := m.Close(); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := p.reach(write, fabric.AccessRemoteWrite); err == nil || p.regions() != before {
				t.Errorf("after Close the peer reaches the memory: %v, %d regions", err, p.regions())
			}
			_, again := p.answersMove(async(cl, bg, moves(mem, arg, res)))
			if _, err := p.reach(again, fabric.AccessRemoteWrite); err == nil || again.Handle == write.Handle || p.regions() != before {
				t.Error("a call after Close does not register for itself")
			}
		})
	})

	t.Run("V1-11-4 windows over it are for one call and one right", func(t *testing.T) {
		clientOf(t, registering(t, true), registersEach, func(p *peer, cl *Client) {
			mem := letters(20_000)
			before := p.regions()
			m := register(t, cl, mem)
			for range 3 {
				done := async(cl, bg, moves(mem, arg, res))
				h, _ := p.message("the call")
				if n := p.regions(); n != before+1 {
					t.Errorf("%d regions during the call, want %d", n, before+1)
				}
				if _, err := p.reach(h.Writes[0][0], fabric.AccessRemoteRead); err == nil {
					t.Error("a write chunk can be read")
				}
				p.reply(rpcrdma.Header{XID: h.XID}, 0, 0, 0, 0)
				if err := outcome(t, done); err != nil {
					t.Fatal(err)
				}
				if _, err := p.reach(h.Writes[0][0], fabric.AccessRemoteWrite); err == nil {
					t.Error("the peer can write after the call")
				}
			}
			m.Close()
			if n := p.regions(); n != before {
				t.Errorf("%d regions after Close, want %d", n, before)
			}
		})
	})

	t.Run("nothing is registered where any memory will do", func(t *testing.T) {
		client(t, nil, func(p *peer, cl *Client) {
			mem := letters(20_000)
			m := register(t, cl, mem)
			_, write := p.answersMove(async(cl, bg, moves(mem, arg, res)))
			if _, err := p.reach(write, fabric.AccessRemoteWrite); err == nil || p.regions() != 0 {
				t.Errorf("%d regions, %v", p.regions(), err)
			}
			m.Close()
		})
	})
}

// TestRegisterMemoryEnds checks that a registration ends with Close, with its connection, or with an abandoned call,
// and that one made for a call ends with the call.
func TestRegisterMemoryEnds(t *testing.T) {
	arg, res := span{100, 9100}, span{10_000, 19_500}

	t.Run("what lies elsewhere, or across an end, is registered for the call", func(t *testing.T) {
		clientOf(t, registering(t, false), registersEach, func(p *peer, cl *Client) {
			mem := letters(30_000)
			low := register(t, cl, mem[:9000])
			high := register(t, cl, mem[9000:18_000])
			defer low.Close()
			defer high.Close()
			before := p.regions()
			l, h := p.answersMove(async(cl, bg, moves(mem, span{0, 9000}, span{9000, 18_000})))
			across, beyond := p.answersMove(async(cl, bg, moves(mem, span{1000, 10_000}, span{18_000, 27_000})))
			if l.Handle == h.Handle || l.Offset != peerBase || h.Offset != peerBase {
				t.Errorf("the neighbors are %+v and %+v", l, h)
			}
			for _, s := range []rpcrdma.Segment{across, beyond} {
				if _, err := p.reach(s, fabric.AccessRemoteRead|fabric.AccessRemoteWrite); err == nil || s.Handle == l.Handle || s.Handle == h.Handle {
					t.Errorf("%+v is not the call's own", s)
				}
			}
			if p.regions() != before {
				t.Errorf("%d regions, %d before", p.regions(), before)
			}
			for _, bad := range [][]byte{nil, mem[:1], mem[8999:9001], mem[17_999:], mem, mem[100:200]} {
				if m, err := cl.RegisterMemory(bad); err == nil {
					t.Errorf("%d bytes were registered on top of others", len(m.Bytes()))
				}
			}
			if err := register(t, cl, mem[18_000:]).Close(); err != nil || p.regions() != before {
				t.Errorf("%v, %d regions, %d before", err, p.regions(), before)
			}
		})
	})

	t.Run("V1-11-3 a call that is given up takes the registration with it", func(t *testing.T) {
		clientOf(t, registering(t, false), registersEach, func(p *peer, cl *Client) {
			mem := letters(20_000)
			m := register(t, cl, mem)
			_, first := p.answersMove(async(cl, bg, moves(mem, arg, res)))
			ctx, cancel := context.WithCancel(bg)
			done := async(cl, ctx, moves(mem, arg, res))
			late, _ := p.message("the call")
			cancel()
			time.Sleep(10 * time.Millisecond)
			if err := outcome(t, done); !errors.Is(err, context.Canceled) {
				t.Fatal(err)
			}
			if _, err := p.reach(first, fabric.AccessRemoteWrite); err == nil {
				t.Error("the peer can still write")
			}
			p.reply(rpcrdma.Header{XID: late.XID})
			_, second := p.answersMove(async(cl, bg, moves(mem, arg, res)))
			if _, err := p.reach(second, fabric.AccessRemoteWrite); err != nil || second.Handle == first.Handle {
				t.Errorf("the memory was not registered again: %v", err)
			}
			m.Close()
			if _, err := p.reach(second, fabric.AccessRemoteWrite); err == nil {
				t.Error("after Close the peer can still write")
			}
		})
	})

	t.Run("Close leaves the memory to the calls under way", func(t *testing.T) {
		clientOf(t, registering(t, false), registersEach, func(p *peer, cl *Client) {
			mem := letters(20_000)
			m := register(t, cl, mem)
			_, seg := p.answersMove(async(cl, bg, moves(mem, arg, res)))
			var calls [2]<-chan error
			var xids [2]uint32
			for i := range calls {
				calls[i] = async(cl, bg, moves(mem, arg, res))
				h, _ := p.message("a call")
				xids[i] = h.XID
			}
			m.Close()
			for i := range calls {
				if _, err := p.reach(seg, fabric.AccessRemoteWrite); err != nil {
					t.Errorf("with %d calls under way: %v", len(calls)-i, err)
				}
				p.reply(rpcrdma.Header{XID: xids[i]}, 0, 0, 0, 0)
				if err := outcome(t, calls[i]); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := p.reach(seg, fabric.AccessRemoteWrite); err == nil {
				t.Error("after the last call the peer can still write")
			}
		})
	})

	t.Run("each connection has its own", func(t *testing.T) {
		p := registering(t, false)
		clientOver(t, p, registersEach, nil, func(ps *peers, cl *Client) {
			mem := letters(20_000)
			m := register(t, cl, mem)
			done := async(cl, bg, moves(mem, arg, res))
			h, _ := p.message("the call")
			first := h.Writes[0][0]
			q := ps.next()
			q.caps, q.nextKey = p.caps, 0xabcd0000
			p.hangUp()
			time.Sleep(time.Second)
			h2, _ := q.message("the call again")
			second := h2.Writes[0][0]
			if _, err := p.reach(first, fabric.AccessRemoteWrite); err == nil || second.Handle == first.Handle {
				t.Errorf("the memory is open to the connection that has ended: %v", err)
			}
			q.write(second, "placed")
			q.reply(rpcrdma.Header{XID: h2.XID, Writes: h2.Writes}, xdr.AppendUint32(nil, 9500)...)
			if err := outcome(t, done); err != nil || string(mem[res.from:res.from+6]) != "placed" {
				t.Fatal(err)
			}
			synctest.Wait()
			if n := m.region.Registrations(); n != 1 {
				t.Errorf("%d connections are remembered", n)
			}
			m.Close()
			if _, err := q.reach(second, fabric.AccessRemoteWrite); err == nil {
				t.Error("after Close the peer can still write")
			}
		})
	})
}
