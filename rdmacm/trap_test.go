//go:build linux && cgo

package rdmacm_test

import (
	"bytes"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/fabric/fabrictest"
	"github.com/rpcrdma/rpcrdma/ibv"
	"github.com/rpcrdma/rpcrdma/internal/testing/rdmatest"
	"github.com/rpcrdma/rpcrdma/rdmacm"
)

// TestRDMATrapWindowKey: a window that is bound again needs the key of its last bind
// in the library's struct, which no call puts there: rxe refuses the bind otherwise.
// The provider does it.
func TestRDMATrapWindowKey(t *testing.T) {
	addr := rdmatest.Device(t, "rxe")
	p := provider(t, rdmacm.Config{UnsafeWindows: true})
	client, server := pair(t, p, addr, fabric.ConnAttr{})
	mem := client.Region(4096, fabric.AccessLocalWrite)
	in := server.Region(64, fabric.AccessLocalWrite)
	w := client.Window()
	keys := make(map[uint32]bool)
	last := uint32(0)
	for i := range times(1000) {
		sge := fabrictest.SGE(mem, i%60*64, 64)
		fabrictest.Fill(sge.Buf, uint64(i))
		seg, err := w.Prepare(sge, fabric.AccessRemoteRead)
		if err != nil {
			t.Fatalf("round %d: %v", i, err)
		}
		if seg.Handle == last {
			t.Fatalf("round %d: the key %#x is that of the last bind", i, seg.Handle)
		}
		last = seg.Handle
		keys[last] = true
		id := uint64(i + 1)
		client.Post("a bind", fabric.SendWR{ID: id, Op: fabric.OpBindMW, MW: w, Flags: fabric.Signaled})
		client.WantSent("the bind", id)
		if i%100 == 0 {
			server.Post("a Read", fabric.SendWR{
				ID: id, Op: fabric.OpRead, Flags: fabric.Signaled,
				SGL: []fabric.SGE{fabrictest.SGE(in, 0, 64)}, RKey: seg.Handle, RemoteOffset: seg.Offset,
			})
			server.WantSent("the Read", id)
			if !bytes.Equal(in.Bytes(), sge.Buf) {
				t.Fatalf("round %d: the Read through the window brought something else", i)
			}
		}
		client.Post("an invalidation", fabric.SendWR{ID: id, Op: fabric.OpLocalInv, RKey: seg.Handle, Flags: fabric.Signaled})
		client.WantSent("the invalidation", id)
	}
	if len(keys) < 100 {
		t.Errorf("%d different keys", len(keys))
	}
}

// TestRDMATrapInvalidateRegion: a peer that invalidates what is a region and no window. rxe takes
// regions only from the kernel's own users: the connection ends. siw may carry it out, and as nothing
// makes a region valid again for programs, it is dead then: every access is refused. Either way
// nothing is written, and it can be closed.
func TestRDMATrapInvalidateRegion(t *testing.T) {
	rdmatest.OnDevices(t, func(t *testing.T, kind, addr string) {
		p := provider(t, rdmacm.Config{})
		client, server := pair(t, p, addr, fabric.ConnAttr{})
		mr := server.Region(4096, fabric.AccessLocalWrite|fabric.AccessRemoteWrite|fabric.AccessRemoteRead)
		seg := mr.Segment()
		server.Receives(2, 64)
		client.Receives(2, 64)
		wr := client.Message([]byte("your region"))
		wr.Op, wr.RKey = fabric.OpSendInv, seg.Handle
		err := client.TryPost(wr)
		var lack *fabric.CapabilityError
		if errors.As(err, &lack) {
			if client.Conn.Capabilities().RemoteInvalidate {
				t.Errorf("%v, although the capability is there", err)
			}
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		wc, got, err := server.NextRecv()
		if err == nil && wc.Status == fabric.WCSuccess {
			t.Logf("the message has arrived (%q, invalidated: %v)", got, wc.WithInv)
			out := client.Region(64, 0)
			fabrictest.Fill(out.Bytes(), 1)
			client.TryPost(fabric.SendWR{
				ID: 7, Op: fabric.OpWrite, Flags: fabric.Signaled, SGL: []fabric.SGE{fabrictest.SGE(out, 0, 64)}, RKey: seg.Handle, RemoteOffset: seg.Offset,
			})
		}
		t.Logf("client: %v", client.WantEnd("after access to what is not open"))
		t.Logf("server: %v", server.WantEnd("after access to what is not open"))
		if !bytes.Equal(mr.Bytes(), make([]byte, 4096)) {
			t.Error("a region that was invalidated has been written")
		}
		if err := mr.Close(); err != nil {
			t.Errorf("closing the region: %v", err)
		}
	})
}

// lossy has the loopback interface, over which a machine talks to its own addresses,
// drop packets.
func lossy(t *testing.T, percent string) {
	t.Helper()
	machine(t)
	sh(t, "modprobe", "sch_netem")
	sh(t, "tc", "qdisc", "add", "dev", "lo", "root", "netem", "loss", percent, "delay", "2ms")
	t.Cleanup(func() { sh(t, "tc", "qdisc", "del", "dev", "lo", "root") })
}

const (
	chunk  = 64 << 10
	chunks = 8 // between two completions that are waited for
)

// TestRDMATrapEarlyCompletion: siw completes what has been handed to TCP, and an unsignaled request
// of a page or more lies there by reference: when TCP sends it a second time, it sends what is in the
// buffer then. The provider asks for signals of its own, which make siw copy, so that a buffer is
// free when a later request has completed. With packets lost on the way TCP does send twice.
func TestRDMATrapEarlyCompletion(t *testing.T) {
	addr := rdmatest.Device(t, "siw")
	// Packets are lost only once there is a connection: its set-up has timers of the
	// kernel's, which are not what this is about.
	t.Run("provider", func(t *testing.T) {
		p := provider(t, rdmacm.Config{})
		c, s := fabrictest.Pair(t, p, fabrictest.Setup{Addr: addr + ":0", Timeout: limit})
		lossy(t, "5%")
		client, server := fabrictest.NewEndpoint(t, "client", c), fabrictest.NewEndpoint(t, "server", s)
		for _, e := range []*fabrictest.Endpoint{client, server} {
			e.Timeout = 2 * limit
			e.Start()
		}
		out := client.Region(chunks*chunk, 0)
		sink := server.Region(chunks*chunk, fabric.AccessLocalWrite|fabric.AccessRemoteWrite)
		server.Receives(1, 8)
		end := time.Now().Add(limit / 3)
		for round := 0; round < times(60) && time.Now().Before(end); round++ {
			// Writes and Sends by turns, none of them signaled, then one that is.
			sends := round % 2 * chunks
			server.Receives(sends+1, chunk)
			for i := range chunks {
				sge := fabrictest.SGE(out, i*chunk, chunk)
				fabrictest.Fill(sge.Buf, uint64(round*chunks+i))
				wr := fabric.SendWR{Op: fabric.OpWrite, SGL: []fabric.SGE{sge}, RKey: sink.Segment().Handle, RemoteOffset: sink.Segment().Offset + uint64(i*chunk)}
				if sends > 0 {
					wr = fabric.SendWR{Op: fabric.OpSend, SGL: []fabric.SGE{sge}}
				}
				client.Post("data", wr)
			}
			client.Send("what comes behind", []byte("behind"))
			// The buffers are ours again.
			clear(out.Bytes())
			for i := range sends {
				server.WantMessage(fmt.Sprintf("round %d: message %d", round, i), fabrictest.Pattern(chunk, uint64(round*chunks+i)))
			}
			server.WantMessage("what comes behind", []byte("behind"))
			for i := range chunks - sends {
				if !bytes.Equal(sink.Bytes()[i*chunk:][:chunk], fabrictest.Pattern(chunk, uint64(round*chunks+i))) {
					t.Fatalf("round %d: Write %d was damaged after its completion", round, i)
				}
			}
		}
	})
	// The same by hand, without those signals. Whether it goes wrong is up to the kernel
	// and to chance, so that this only tells.
	t.Run("device", func(t *testing.T) {
		client, server := joined(t, channel(t), addr)
		lossy(t, "5%")
		end := time.Now().Add(limit / 3)
		seen, rounds := 0, 0
		for ; rounds < times(60) && time.Now().Before(end); rounds++ {
			if err := server.qp.PostRecv([]ibv.RecvWR{{ID: 1, SGL: server.part(chunks*chunk, 8)}}); err != nil {
				t.Fatal(err)
			}
			var wrs []ibv.SendWR
			for i := range chunks {
				fabrictest.Fill(client.mr.Bytes()[i*chunk:][:chunk], uint64(rounds*chunks+i))
				wrs = append(wrs, ibv.SendWR{Opcode: ibv.OpRDMAWrite, SGL: client.part(i*chunk, chunk), RKey: server.mr.RKey(), RemoteAddr: server.mr.Addr() + uint64(i*chunk)})
			}
			wrs = append(wrs, ibv.SendWR{ID: 2, Opcode: ibv.OpSend, Flags: ibv.SendSignaled, SGL: client.part(chunks*chunk, 8)})
			if err := client.qp.PostSend(wrs); err != nil {
				t.Fatal(err)
			}
			if wc := client.next(t); wc.Status != ibv.WCSuccess {
				t.Fatalf("%+v", wc)
			}
			clear(client.mr.Bytes()[:chunks*chunk])
			if wc := server.next(t); wc.Status != ibv.WCSuccess {
				t.Fatalf("%+v", wc)
			}
			for i := range chunks {
				if !bytes.Equal(server.mr.Bytes()[i*chunk:][:chunk], fabrictest.Pattern(chunk, uint64(rounds*chunks+i))) {
					seen++
				}
			}
		}
		t.Logf("without signals %d of %d Writes were damaged after their completion", seen, rounds*chunks)
	})
}

// TestRDMATrapInline: what fits is copied into the work request, up to a limit that
// differs by device and that no verb tells: siw refuses to make a queue pair with
// more than it takes. Messages around each limit arrive whole.
func TestRDMATrapInline(t *testing.T) {
	rdmatest.OnDevices(t, func(t *testing.T, kind, addr string) {
		for _, most := range []int{0, -1, 1, 80, 512, 4096} {
			t.Run(fmt.Sprint(most), func(t *testing.T) {
				p := provider(t, rdmacm.Config{MaxInline: most})
				client, server := pair(t, p, addr, fabric.ConnAttr{})
				out := client.Region(2048, 0)
				fabrictest.Fill(out.Bytes(), 5)
				sink := server.Region(2048, fabric.AccessLocalWrite|fabric.AccessRemoteWrite)
				id := uint64(0)
				for _, edge := range []int{0, 1, 55, 80, 220, 512, 1024} {
					for n := max(edge-1, 0); n <= edge+1; n++ {
						server.Receives(1, 2048)
						id++
						var sgl []fabric.SGE
						if n > 0 {
							sgl = []fabric.SGE{fabrictest.SGE(out, 3, n)}
						}
						if n > 1 { // gathered, it is one message all the same
							sgl = []fabric.SGE{fabrictest.SGE(out, 3, n/2), fabrictest.SGE(out, 3+n/2, n-n/2)}
						}
						client.Post("a Write and a Send",
							fabric.SendWR{Op: fabric.OpWrite, SGL: sgl, RKey: sink.Segment().Handle, RemoteOffset: sink.Segment().Offset},
							fabric.SendWR{ID: id, Op: fabric.OpSend, SGL: sgl, Flags: fabric.Signaled})
						client.WantSent("the Send", id)
						server.WantMessage(fmt.Sprintf("a message of %d bytes", n), out.Bytes()[3:3+n])
						if !bytes.Equal(sink.Bytes()[:n], out.Bytes()[3:3+n]) {
							t.Errorf("the Write of %d bytes brought something else", n)
						}
						clear(sink.Bytes())
					}
				}
			})
		}
	})
}

// TestRDMATrapReadList: a Read goes into one buffer on iWARP, into a list on RoCE.
func TestRDMATrapReadList(t *testing.T) {
	rdmatest.OnDevices(t, func(t *testing.T, kind, addr string) {
		p := provider(t, rdmacm.Config{})
		client, server := pair(t, p, addr, fabric.ConnAttr{})
		src := server.Region(256, fabric.AccessRemoteRead)
		fabrictest.Fill(src.Bytes(), 8)
		in := client.Region(512, fabric.AccessLocalWrite)
		read := func(sgl ...fabric.SGE) error {
			return client.TryPost(fabric.SendWR{ID: 1, Op: fabric.OpRead, Flags: fabric.Signaled, SGL: sgl, RKey: src.Segment().Handle, RemoteOffset: src.Segment().Offset})
		}
		err := read(fabrictest.SGE(in, 0, 100), fabrictest.SGE(in, 300, 156))
		if kind == "siw" {
			var lack *fabric.CapabilityError
			if !errors.As(err, &lack) || !errors.Is(err, fabric.ErrNotSupported) {
				t.Errorf("a Read into two buffers: %v", err)
			}
			if err := read(fabrictest.SGE(in, 0, 256)); err != nil {
				t.Fatal(err)
			}
			client.WantSent("a Read into one buffer", 1)
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		client.WantSent("the Read", 1)
		if got := append(bytes.Clone(in.Bytes()[:100]), in.Bytes()[300:456]...); !bytes.Equal(got, src.Bytes()) {
			t.Error("the Read brought something else")
		}
	})
}

// TestRDMATrapOvertaking: on siw a Send that was posted after a Read completes first, since it need
// not wait for an answer. The provider reports both in the order posted.
func TestRDMATrapOvertaking(t *testing.T) {
	rdmatest.OnDevices(t, func(t *testing.T, kind, addr string) {
		const size = 512 << 10
		t.Run("provider", func(t *testing.T) {
			p := provider(t, rdmacm.Config{})
			client, server := pair(t, p, addr, fabric.ConnAttr{})
			src := server.Region(size, fabric.AccessRemoteRead)
			in := client.Region(size, fabric.AccessLocalWrite)
			for i := range uint64(times(20)) {
				server.Receives(1, 64)
				fabrictest.Fill(src.Bytes(), i)
				msg := client.Message([]byte("behind the Read"))
				client.Post("a Read and a Send", fabric.SendWR{
					ID: i, Op: fabric.OpRead, Flags: fabric.Signaled,
					SGL: []fabric.SGE{fabrictest.SGE(in, 0, size)}, RKey: src.Segment().Handle, RemoteOffset: src.Segment().Offset,
				}, msg)
				client.WantSent("the Read", i)
				if !bytes.Equal(in.Bytes(), fabrictest.Pattern(size, i)) {
					t.Fatalf("round %d: the Read has completed and its data is not there", i)
				}
				client.WantSent("the Send behind it", msg.ID)
				server.WantMessage("the message behind the Read", []byte("behind the Read"))
			}
		})
		t.Run("device", func(t *testing.T) {
			client, server := joined(t, channel(t), addr)
			overtaken := 0
			for i := range 10 {
				if err := server.qp.PostRecv([]ibv.RecvWR{{ID: 1, SGL: server.part(size, 64)}}); err != nil {
					t.Fatal(err)
				}
				err := client.qp.PostSend([]ibv.SendWR{
					{ID: 1, Opcode: ibv.OpRDMARead, Flags: ibv.SendSignaled, SGL: client.part(0, size), RKey: server.mr.RKey(), RemoteAddr: server.mr.Addr()},
					{ID: 2, Opcode: ibv.OpSend, Flags: ibv.SendSignaled, SGL: client.part(size, 64)},
				})
				if err != nil {
					t.Fatal(err)
				}
				first, second := client.next(t), client.next(t)
				if first.Status != ibv.WCSuccess || second.Status != ibv.WCSuccess {
					t.Fatalf("round %d: %+v, %+v", i, first, second)
				}
				if first.ID == 2 {
					overtaken++
				}
				server.next(t)
			}
			t.Logf("%d of 10 Reads were overtaken", overtaken)
			if kind == "rxe" && overtaken > 0 {
				t.Error("RoCE completes in order")
			}
		})
	})
}

// TestRDMATrapInvalidatedFlag: rxe says that a window was invalidated with the kernel's
// number for the flag, which libibverbs uses for something else. The provider knows.
func TestRDMATrapInvalidatedFlag(t *testing.T) {
	addr := rdmatest.Device(t, "rxe")
	p := provider(t, rdmacm.Config{UnsafeWindows: true})
	client, server := pair(t, p, addr, fabric.ConnAttr{})
	if !server.Conn.Capabilities().RemoteInvalidate {
		t.Skip("the provider does not offer remote invalidation")
	}
	mem := server.Region(4096, fabric.AccessLocalWrite)
	w := server.Window()
	for i := range uint64(20) {
		seg, err := w.Prepare(fabrictest.SGE(mem, 0, 64), fabric.AccessRemoteRead)
		if err != nil {
			t.Fatal(err)
		}
		server.Receives(2, 64)
		server.Post("a bind", fabric.SendWR{ID: i, Op: fabric.OpBindMW, MW: w, Flags: fabric.Signaled})
		server.WantSent("the bind", i)
		client.Send("a plain message", []byte("plain"))
		if wc := server.WantMessage("a plain message", []byte("plain")); wc.WithInv {
			t.Errorf("a plain message is said to invalidate %#x", wc.InvalidatedKey)
		}
		wr := client.Message([]byte("yours"))
		wr.Op, wr.RKey = fabric.OpSendInv, seg.Handle
		client.Post("a Send with Invalidate", wr)
		client.WantSent("a Send with Invalidate", wr.ID)
		if wc := server.WantMessage("the message that invalidates", []byte("yours")); !wc.WithInv || wc.InvalidatedKey != seg.Handle {
			t.Errorf("round %d: invalidated: %v, %#x, want %#x", i, wc.WithInv, wc.InvalidatedKey, seg.Handle)
		}
	}
}

// TestRDMASilentRoom: requests that are not signaled make room without a completion, and Wait returns
// for a caller that has found no room.
func TestRDMASilentRoom(t *testing.T) {
	rdmatest.OnDevices(t, func(t *testing.T, kind, addr string) {
		for _, shared := range []int{0, 1024} {
			t.Run(fmt.Sprintf("shared=%d", shared), func(t *testing.T) {
				p := provider(t, rdmacm.Config{Wait: rdmacm.WaitEvent, SharedCQ: shared})
				client, server := pair(t, p, addr, fabric.ConnAttr{SendDepth: 64, RecvDepth: 8})
				client.Stop()
				sink := server.Region(8, fabric.AccessLocalWrite|fabric.AccessRemoteWrite)
				data := client.Region(8, 0)
				full := 0
				returns(t, "posting", func() {
					for i := range uint64(1000) {
						put := fabric.SendWR{ID: i, Op: fabric.OpWrite, RKey: sink.Segment().Handle, RemoteOffset: sink.Segment().Offset,
							SGL: []fabric.SGE{fabrictest.SGE(data, 0, 8)}}
						err := client.TryPost(put)
						for ; errors.Is(err, fabric.ErrQueueFull); err = client.TryPost(put) {
							full++
							if err := client.Conn.Wait(); err != nil {
								t.Error(err)
								return
							}
							var wcs [1]fabric.WC
							if n, err := client.Conn.Poll(wcs[:]); n > 0 || err != nil {
								t.Error(n, err)
								return
							}
						}
						if err != nil {
							t.Error(err)
							return
						}
					}
				})
				t.Logf("the queue was full %d times", full)
			})
		}
	})
}

// TestRDMATrapMapOffset: libsiw takes the map offset of one page for that of no map.
// Whatever connections there are on a context, of whichever providers, none of their
// queues begins there.
func TestRDMATrapMapOffset(t *testing.T) {
	addr := rdmatest.Device(t, "siw")
	for _, recvs := range []int{16, 128, 1000, 4000} {
		for range 12 { // by then in use: more than what lies before that page
			fabrictest.Pair(t, provider(t, rdmacm.Config{}), fabrictest.Setup{
				Addr: addr + ":0", Client: fabric.ConnAttr{RecvDepth: recvs}, Server: fabric.ConnAttr{RecvDepth: recvs}, Timeout: limit,
			})
		}
	}
}
