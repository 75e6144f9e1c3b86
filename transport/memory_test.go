package transport

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/rpcrdma/rpcrdma/proto/rpcrdma"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/transport/internal/arena"
)

// Memory of a server's calls: it is counted, once each way, and a call never finds data of another in
// it.

// TestMemoryIsCounted checks that MaxMemory limits after any number of calls as it did before the first, and for
// results from any source.
func TestMemoryIsCounted(t *testing.T) {
	t.Run("what arguments have taken is given back once", func(t *testing.T) {
		testServer(t, &Settings{MaxMessage: 1 << 16, MaxMemory: 1 << 17}, func(p *peer, s *Server, svc *testService) {
			const calls = 6
			data := make([]byte, 60_000)
			first := int32(0)
			for round := range 5 {
				for i := range uint32(calls) {
					xid := uint32(round)*calls + i + 1
					p.send(callBytes(rpcrdma.Header{XID: xid, Reads: []rpcrdma.ReadSegment{
						{Position: 40, Segment: p.offer(xid, data)}}}, procHold), 0)
				}
				synctest.Wait()
				n := svc.running.Load()
				if round == 0 {
					first = n
				}
				if n != first || n < 1 || n > 2 {
					t.Fatalf("round %d: %d calls are being executed, memory is for 2, at first there were %d", round, n, first)
				}
				for range calls {
					svc.gate <- struct{}{}
				}
				for range calls {
					p.message("a reply")
				}
				for i := range uint32(calls) { // which have taken nothing
					p.send(callBytes(rpcrdma.Header{XID: 1000 + i}, procArgs), 0)
					p.message("a reply")
				}
				synctest.Wait()
				if n := s.reserved(); n != 0 {
					t.Fatalf("round %d: %d bytes are reserved in the end", round, n)
				}
			}
		})
	})

	for _, dma := range []bool{true, false} {
		t.Run(fmt.Sprintf("results that are not from Alloc, LocalDMA %v", dma), func(t *testing.T) {
			p := newPeer(t)
			p.caps.LocalDMA = dma
			testServerOf(t, p, &Settings{MaxMessage: 1 << 16, MaxMemory: 1 << 18}, func(p *peer, s *Server, _ *testService) {
				p.holdSends = true // a client that does not take what it gets
				for xid := uint32(1); xid <= 12 && p.posted() > 0; xid++ {
					p.send(callBytes(rpcrdma.Header{XID: xid, Writes: []rpcrdma.WriteChunk{{p.offer(xid, make([]byte, 60_000))}}},
						procTwo, xdr.AppendUint32(xdr.AppendUint32(nil, 60_000), 0)...), 0)
				}
				synctest.Wait()
				before := s.Stats().Replies
				if before < 3 || before > 6 {
					t.Errorf("%d replies are on their way, memory is for 4", before)
				}
				p.completeSends()
				synctest.Wait()
				if n := s.Stats().Replies; n <= before {
					t.Errorf("%d replies after some were taken, %d before", n, before)
				}
			})
		})
	}
}

// TestMemoryOfResults checks that an admitted call has memory for all results that fit its chunks, however they are
// split into buffers, and whatever memory others hold meanwhile.
func TestMemoryOfResults(t *testing.T) {
	for _, tt := range []struct {
		name    string
		memory  int // MaxMemory: too little for the first call, what this one offers, and the rounding
		writes  []int
		reply   int
		items   []int
		results int
	}{
		{"several items, all rounded up", 200 << 10, []int{33001, 20046, 9000}, 36_000, []int{33001, 20046, 9000}, 33_000},
		{"several items in the reply chunk", 132 << 10, nil, 40_000, []int{33_000, 6000}, 4},
		{"many small items, and a large one", 150 << 10, nil, 40_000, append(slices.Repeat([]int{40}, 60), 33_000), 4},
	} {
		t.Run(tt.name, func(t *testing.T) {
			prog := rpc.Program{Number: testProg, Low: 1, High: 1, Handler: rpc.HandlerFunc(func(_ context.Context, req *rpc.Request, res *rpc.Response) {
				if req.Proc == 1 {
					res.AddItem(res.Alloc(60_000), nil)
					return
				}
				for _, n := range tt.items {
					res.AddItem(make([]byte, n), nil)
				}
				res.Results = append(res.Results, make([]byte, tt.results)...)
			})}
			p := newPeer(t)
			p.caps.LocalDMA = false
			serverOf(t, p, &Settings{MaxMessage: 128 << 10, MaxMemory: tt.memory}, []rpc.Program{prog}, func(p *peer, _ *Server) {
				p.holdSends = true
				p.send(callBytes(rpcrdma.Header{XID: 1, Writes: []rpcrdma.WriteChunk{{p.offer(1, make([]byte, 60_000))}}}, 1), 0)
				p.message("the first reply, which is not taken yet")
				h := rpcrdma.Header{XID: 2, HasReply: true}
				for i, n := range tt.writes {
					h.Writes = append(h.Writes, rpcrdma.WriteChunk{p.offer(uint32(2+i), make([]byte, n))})
				}
				h.Reply = rpcrdma.WriteChunk{p.offer(9, make([]byte, tt.reply))}
				p.send(callBytes(h, 2), 0)
				synctest.Wait()
				p.completeSends() // should the call wait
				if h, _ := p.message("the second reply"); h.Proc != rpcrdma.ProcNomsg {
					t.Errorf("the second reply is %v", h.Proc)
				}
				p.completeSends()
			})
		})
	}
}

// TestMemoryOfOthers checks that data of one client's calls that remains in memory reaches neither another client's
// calls nor the padding of a later message.
func TestMemoryOfOthers(t *testing.T) {
	t.Run("of a connection that has ended", func(t *testing.T) {
		const size, bufs = arena.SlabSize, 4 // a slab each
		var dirty []byte
		prog := rpc.Program{Number: testProg, Low: 1, High: 1, Inline: rpc.Every,
			Handler: rpc.HandlerFunc(func(_ context.Context, _ *rpc.Request, res *rpc.Response) {
				for range bufs {
					b := res.Alloc(size)
					for _, v := range b {
						if v != 0 {
							dirty = append(dirty, v)
							break
						}
					}
					for i := range b {
						b[i] = 0xee
					}
				}
			})}
		for range 3 {
			serverOf(t, newPeer(t), nil, []rpc.Program{prog}, func(p *peer, _ *Server) {
				p.send(callBytes(rpcrdma.Header{XID: 5}, 1), 0)
				_, payload := p.message("the reply")
				accepted(t, payload, 5)
			})
		}
		if len(dirty) > 0 {
			t.Errorf("%d buffers of fresh connections have bytes of others: %x", len(dirty), dirty)
		}
	})

	t.Run("padding that no sender has sent is zero", func(t *testing.T) {
		testServer(t, nil, func(p *peer, _ *Server, _ *testService) {
			for i, data := range [][]byte{bytes.Repeat([]byte{0xff}, 900), []byte("fives"), []byte("sixsix"), []byte("seven77")} {
				xid := uint32(i + 1)
				h := rpcrdma.Header{XID: xid, Reads: []rpcrdma.ReadSegment{{Position: 44, Segment: p.offer(xid, data)}}}
				p.send(callBytes(h, procArgs, xdr.AppendUint32(nil, uint32(len(data)))...), 0)
				_, payload := p.message("the reply")
				if got, want := accepted(t, payload, xid), opaque(string(data)); !bytes.Equal(got, want) {
					t.Errorf("the handler saw %x, want %x", got, want)
				}
			}
		})
	})
}
