//go:build linux && cgo

package interop

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"

	"github.com/rpcrdma/rpcrdma/ibv"
	"github.com/rpcrdma/rpcrdma/internal/testing/rdmatest"
	"github.com/rpcrdma/rpcrdma/rdmacm"
)

// A perf is a program of perftest with -R. Its two ends have a connection for control, by which they
// exchange one message after another, the client first; and then one for data, to the same port.
type perf struct {
	program string
	verb    ibv.Opcode
	size    int
	// syncs are the exchanges of addresses between the set-up and the data, of which all after the
	// first are for pace alone. What only the client works at has reports after it.
	syncs   int
	reports bool
	lat     bool
}

var perfs = []perf{
	{program: "ib_send_lat", verb: ibv.OpSend, size: 64, syncs: 4, lat: true},
	{program: "ib_send_bw", verb: ibv.OpSend, size: 4096, syncs: 4},
	{program: "ib_write_bw", verb: ibv.OpRDMAWrite, size: 4096, syncs: 3, reports: true},
	{program: "ib_read_bw", verb: ibv.OpRDMARead, size: 4096, syncs: 3, reports: true},
	{program: "ib_atomic_bw", verb: ibv.OpAtomicFetchAdd, size: 8, syncs: 3, reports: true},
}

// memory is what an end offers in each half, in bytes: the program goes through a page of it.
const memory = 16 << 10

// perfRounds is how many operations one end does, or in a test of latency both.
const perfRounds = 100

// An address is what perftest exchanges of a queue pair and its memory: a struct in C's layout, with
// numbers in network byte order.
type perfAddress struct {
	LID, OutReads, QPNum, PSN, RKey, _ uint32
	Addr                               uint64
	GID                                [16]byte
	SRQNum, GIDIndex                   uint32
}

// A control is our end of a connection for control.
type control struct {
	*end
	client bool
}

func (c *control) say(b []byte) {
	c.t.Helper()
	copy(c.sent(len(b)), b)
	c.post(c.qps[0], c.sendWR(1, len(b)))
	c.done(1, 1)
}

func (c *control) hear(n int) []byte {
	c.t.Helper()
	if wc := c.done(2, 1); int(wc.ByteLen) != n {
		c.t.Fatalf("a message of %d bytes, want %d", wc.ByteLen, n)
	}
	b := append([]byte(nil), c.received(binary.Size(perfAddress{}))[:n]...)
	c.receive(c.qps[0], 2, binary.Size(perfAddress{}))
	return b
}

// exchange tells b, and returns what the peer tells, of as many bytes.
func (c *control) exchange(b []byte) []byte {
	c.t.Helper()
	if c.client {
		c.say(b)
		return c.hear(len(b))
	}
	got := c.hear(len(b))
	c.say(b)
	return got
}

// sync exchanges addresses.
func (c *control) sync(own perfAddress) (peer perfAddress) {
	c.t.Helper()
	b, err := binary.Append(nil, binary.BigEndian, own)
	if err != nil {
		c.t.Fatal(err)
	}
	if _, err := binary.Decode(c.exchange(b), binary.BigEndian, &peer); err != nil {
		c.t.Fatal(err)
	}
	return peer
}

// begin is what comes before the data: versions, sizes and the MTU.
func (c *control) begin() {
	const pageSize, cacheLine = 4096, 64
	version := make([]byte, 16)
	copy(version, "6.06")
	c.exchange(version)
	c.exchange(binary.BigEndian.AppendUint32(nil, pageSize))
	c.exchange(binary.BigEndian.AppendUint32(nil, cacheLine))
	c.exchange([]byte{'0' + byte(ibv.MTU1024), 0})
	c.sync(perfAddress{})
}

// talk is the conversation of ours with the program, once both connections are there.
func (p perf) talk(c *control, data *end) {
	t := c.t
	c.sync(perfAddress{})
	qp := data.qps[0]
	own := perfAddress{QPNum: qp.Num(), PSN: rand.Uint32() & 0xffffff, RKey: data.mr.RKey(), Addr: data.mr.Addr(), OutReads: 1}
	if p.verb == ibv.OpSend && (p.lat || !c.client) {
		for range perfRounds {
			data.receive(qp, 2, p.size)
		}
	}
	var peer perfAddress
	for i := range p.syncs {
		if got := c.sync(own); i == 0 {
			peer = got
		}
	}
	wr := data.sendWR(1, p.size)
	wr.Opcode, wr.RemoteAddr, wr.RKey, wr.CompareAdd = p.verb, peer.Addr, peer.RKey, 1
	switch {
	case p.lat:
		for range perfRounds {
			if c.client {
				data.post(qp, wr)
				data.done(2, 1)
				data.done(1, 1)
			} else {
				data.done(2, 1)
				data.post(qp, wr)
				data.done(1, 1)
			}
		}
	case c.client:
		for range perfRounds {
			data.post(qp, wr)
			data.done(1, 1)
		}
	case p.verb == ibv.OpSend:
		data.done(2, perfRounds)
	}
	if p.reports {
		c.sync(own)
		for range 5 { // size, iterations, three rates
			if report := c.exchange(make([]byte, 8)); len(report) != 8 {
				t.Errorf("a report of %d bytes", len(report))
			}
		}
	}
	c.sync(own)
}

// hangUp ends a connection when the peer does.
func hangUp(ctx context.Context, id *rdmacm.ID) {
	go func() {
		for {
			if ev, err := id.Event(ctx); err != nil || ev.Type == rdmacm.EventDisconnected {
				id.Disconnect()
				return
			}
		}
	}()
}

// listens posts the receive of the first message, and hear those of the next.
func (c *control) listens() { c.receive(c.qps[0], 2, binary.Size(perfAddress{})) }

// TestRDMAPerftest: programs of perftest measure our end, and ours does the work of theirs.
func TestRDMAPerftest(t *testing.T) {
	for _, p := range perfs {
		for _, kind := range []string{"rxe"} { // siw may miss a first message, see provider.deaf
			start := func(t *testing.T, port string, server ...string) *program {
				args := append([]string{"-R", "-d", rdmatest.Name(t, kind), "-p", port, "-n", strconv.Itoa(perfRounds)}, server...)
				if p.verb != ibv.OpAtomicFetchAdd {
					args = append([]string{"-s", strconv.Itoa(p.size)}, args...)
				}
				return startProgram(t, kind, p.program, "perftest", args...)
			}
			params := rdmacm.ConnParam{ResponderResources: 1, InitiatorDepth: 1, RetryCount: 7, RNRRetryCount: 7}
			t.Run(fmt.Sprintf("%s/%s/server", p.program, kind), func(t *testing.T) {
				addr := rdmatest.Device(t, kind)
				l, port := listenAt(t, rdmacm.PortSpaceTCP, addr, 0)
				prog := start(t, port, addr)
				ctx := testContext(t)
				id := accepted(t, l)
				c := &control{end: endOf(t, id, ibv.QPTypeRC, memory)}
				c.listens()
				must(id.Accept(ctx, params))(t)
				hangUp(ctx, id)
				c.begin()
				id = accepted(t, l)
				data := endOf(t, id, ibv.QPTypeRC, memory)
				must(id.Accept(ctx, params))(t)
				hangUp(ctx, id)
				p.talk(c, data)
				prog.wantSuccess()
			})
			t.Run(fmt.Sprintf("%s/%s/client", p.program, kind), func(t *testing.T) {
				addr := rdmatest.Device(t, kind)
				port := freePort(addr)
				prog := start(t, port)
				prog.awaitListening("ucma_get_event")
				ctx := testContext(t)
				id, e, _ := connected(t, rdmacm.PortSpaceTCP, addr, port, memory, func(e *end) { (&control{end: e}).listens() })
				c := &control{end: e, client: true}
				c.begin()
				dataID, data, _ := connected(t, rdmacm.PortSpaceTCP, addr, port, memory, nil)
				p.talk(c, data)
				for _, id := range []*rdmacm.ID{dataID, id} {
					hangUp(ctx, id)
					id.Disconnect()
				}
				prog.wantSuccess()
			})
		}
	}
}
