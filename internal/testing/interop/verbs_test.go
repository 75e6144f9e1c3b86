//go:build linux && cgo

package interop

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/rpcrdma/rpcrdma/ibv"
	"github.com/rpcrdma/rpcrdma/internal/testing/rdmatest"
	"github.com/rpcrdma/rpcrdma/rdmacm"
)

// A pingpong is one of the examples of libibverbs: both ends connect queue pairs by hand, with
// addresses that they exchange over TCP, and send each other the same buffer in turns.
type pingpong struct {
	program string
	args    []string
	typ     ibv.QPType
	size    int
	qps     int
	entries int // addresses in the exchange
	ops     ibv.SendOps
}

var pingpongs = []pingpong{
	{program: "ibv_rc_pingpong", typ: ibv.QPTypeRC, size: 4096, qps: 1, entries: 1},
	{program: "ibv_rc_pingpong", args: []string{"-e", "-m", "1024"}, typ: ibv.QPTypeRC, size: 100_000, qps: 1, entries: 1, ops: ibv.SendOpsOf(ibv.OpSend)},
	{program: "ibv_uc_pingpong", typ: ibv.QPTypeUC, size: 4096, qps: 1, entries: 1},
	{program: "ibv_ud_pingpong", typ: ibv.QPTypeUD, size: 1024, qps: 1, entries: 1},
	{program: "ibv_srq_pingpong", args: []string{"-q", "8"}, typ: ibv.QPTypeRC, size: 4096, qps: 8, entries: 256},
}

// rounds is how often each end sends.
const rounds = 200

// qkey is the key of ibv_ud_pingpong's datagrams.
const qkey = 0x11111111

func TestRDMAPingpong(t *testing.T) {
	addr := rdmatest.Device(t, "rxe") // an iWARP connection cannot be made by hand
	for _, pp := range pingpongs {
		name := fmt.Sprintf("%s/%d", pp.program, pp.size)
		t.Run(name+"/client", func(t *testing.T) {
			e := pp.end(t)
			port := freePort(addr)
			p := pp.start(e, port)
			pp.run(e, dialProgram(t, p, net.JoinHostPort(addr, port)), true)
			p.wantSuccess()
		})
		t.Run(name+"/server", func(t *testing.T) {
			e := pp.end(t)
			l, err := net.Listen("tcp", net.JoinHostPort(addr, "0"))
			closing(t, l, err)
			_, port, _ := net.SplitHostPort(l.Addr().String())
			p := pp.start(e, port, addr)
			c, err := l.Accept()
			closing(t, c, err)
			pp.run(e, c, false)
			p.wantSuccess()
		})
	}
}

// start starts the program, with the server to connect to if it is a client.
func (pp pingpong) start(e *end, port string, server ...string) *program {
	row := -1
	for _, g := range must(e.dev.GIDTable())(e.t) {
		if g.Type == ibv.GIDTypeRoCEv2 && g.GID.Addr().Is4() {
			row = g.Index
		}
	}
	args := []string{"-d", e.dev.Info().Name, "-g", strconv.Itoa(row), "-p", port, "-n", strconv.Itoa(rounds), "-s", strconv.Itoa(pp.size)}
	return startProgram(e.t, "rxe", pp.program, "ibverbs-utils", slices.Concat(args, pp.args, server)...)
}

// must returns the value of a call that may not fail.
func must[T any](v T, err error) func(t *testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// dialProgram connects to a program as soon as it listens.
func dialProgram(t *testing.T, p *program, addr string) net.Conn {
	t.Helper()
	for ctx := testContext(t); ; {
		c, err := net.Dial("tcp", addr)
		if err == nil {
			c.SetDeadline(time.Now().Add(patience))
			t.Cleanup(func() { c.Close() })
			return c
		}
		select {
		case <-p.exited:
			t.Fatalf("%s does not listen: %s", p.name, p.state())
		case <-ctx.Done():
			t.Fatal(err)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func (pp pingpong) end(t *testing.T) *end {
	t.Helper()
	e := newEnd(t, device(t, "rxe"), pp.size)
	if pp.qps > 1 {
		e.srq = must(e.pd.CreateSRQ(ibv.SRQAttr{MaxWR: 64, MaxSGE: 1}))(t)
		closing(t, e.srq, nil)
	}
	for range pp.qps {
		attr := e.attr(pp.typ)
		attr.SendOps = pp.ops
		e.add(e.pd.CreateQP(attr))
	}
	return e
}

// run is a conversation, after the exchange of the addresses of all queue pairs over c. Each ends with
// a zero byte. Receives are posted before the program may send.
func (pp pingpong) run(e *end, c net.Conn, client bool) {
	e.t.Helper()
	local, peers := make([]ibv.QPAddr, pp.entries), make([]ibv.QPAddr, pp.entries)
	for i, qp := range e.qps {
		local[i] = must(qp.Addr(ibv.PathAttr{}, rand.Uint32()))(e.t)
	}
	var all []byte
	for _, a := range local {
		all = append(append(all, must(a.MarshalText())(e.t)...), 0)
	}
	tell := func(b []byte) {
		if _, err := c.Write(b); err != nil {
			e.t.Fatal(err)
		}
	}
	if client {
		tell(all)
	}
	for i := range peers {
		var text [52]byte
		if _, err := io.ReadFull(c, text[:]); err != nil {
			e.t.Fatal(err)
		}
		if err := peers[i].UnmarshalText(text[:51]); err != nil {
			e.t.Fatal(err)
		}
	}
	pp.connect(e, local, peers)
	if client {
		pp.converse(e, peers, true, func() { tell([]byte("done\x00")) })
	} else {
		pp.converse(e, peers, false, func() { tell(all) })
	}
}

func (pp pingpong) connect(e *end, local, peers []ibv.QPAddr) {
	for i, qp := range e.qps {
		var err error
		if pp.typ == ibv.QPTypeUD {
			err = qp.StartDatagrams(0, qkey, local[i].PSN)
		} else {
			err = qp.ConnectTo(local[i], peers[i], ibv.PathAttr{MTU: ibv.MTU1024})
		}
		if err != nil {
			e.t.Fatal(err)
		}
	}
}

// converse sends on each queue pair when a message has come on it and the last one is sent, as the
// program does. ready lets the program begin.
func (pp pingpong) converse(e *end, peers []ibv.QPAddr, first bool, ready func()) {
	room := pp.size // of a receive
	var to *ibv.Destination
	if pp.typ == ibv.QPTypeUD {
		room += ibv.GRHSize
		to = &ibv.Destination{AH: must(e.pd.CreateAH(e.ahTo(peers[0])))(e.t), QPNum: peers[0].QPNum, Qkey: qkey}
		closing(e.t, to.AH, nil)
	}
	const send, receive = 1 << 10, 1 << 11 // and the index of the queue pair
	index := make(map[uint32]int)
	waits := make([]int, len(e.qps))
	next := func(i int) {
		for j := range e.sent(pp.size) {
			e.sent(pp.size)[j] = byte(rand.Uint32())
		}
		wr := e.sendWR(uint64(send+i), pp.size)
		wr.To = to
		e.post(e.qps[i], wr)
		waits[i] = send | receive
	}
	for i, qp := range e.qps {
		index[qp.Num()] = i
		for range 64 / len(e.qps) {
			e.receive(qp, receive, room)
		}
		waits[i] = receive
	}
	ready()
	for i := range e.qps {
		if first {
			next(i)
		}
	}
	sent, received := 0, 0
	for sent < rounds || received < rounds {
		wc := e.next()
		i := index[wc.QPNum]
		switch kind := int(wc.ID) &^ (send - 1); kind {
		case send:
			sent++
			waits[i] &^= send
		case receive:
			received++
			waits[i] &^= receive
			if int(wc.ByteLen) != room {
				e.t.Fatalf("a message of %d bytes, want %d", wc.ByteLen, room)
			}
			if len(e.qps) == 1 && (first || received > 1) && !bytes.Equal(e.received(pp.size), e.sent(pp.size)) {
				e.t.Fatalf("message %d is not what was sent", received)
			}
			e.receive(e.qps[i], receive, room)
		}
		if sent < rounds && waits[i] == 0 {
			next(i)
		}
	}
}

// A talk is a conversation with a program that connects by librdmacm, as its client or its server.
type talk struct {
	program string
	kinds   []string
	space   rdmacm.PortSpace
	server  func(addr, port string) []string // arguments of the program as a server
	client  func(addr, port string) []string
	serve   func(t *testing.T, l *rdmacm.ID, p *program) // our server
	call    func(t *testing.T, addr, port string, p *program)
	port    uint16 // of its servers, if it is fixed
	forever bool   // the program as a server does not end
}

var talks = []talk{
	{program: "ucmatose", kinds: rdmatest.Kinds(), space: rdmacm.PortSpaceTCP, server: withB, client: withS, serve: serveUcmatose, call: callUcmatose},
	{program: "cmtime", kinds: rdmatest.Kinds(), space: rdmacm.PortSpaceTCP, server: withB, client: func(addr, port string) []string {
		return append(withS(addr, port), "-c", strconv.Itoa(manyConns))
	}, serve: serveCmtime, call: callCmtime, forever: true},
	{program: "rdma_client", kinds: rdmatest.Kinds(), space: rdmacm.PortSpaceTCP, client: withS, serve: serveOne},
	{program: "rdma_server", kinds: rdmatest.Kinds(), space: rdmacm.PortSpaceTCP, server: withS, call: callOne},
	{
		program: "udaddy", kinds: []string{"rxe"}, space: rdmacm.PortSpaceUDP, port: 7174, server: func(addr, _ string) []string { return []string{"-b", addr} },
		client: func(addr, _ string) []string { return []string{"-s", addr} }, serve: serveUdaddy, call: callUdaddy,
	},
}

func withB(addr, port string) []string { return []string{"-b", addr, "-p", port} }
func withS(addr, port string) []string { return []string{"-s", addr, "-p", port} }

func TestRDMATalks(t *testing.T) {
	for _, tk := range talks {
		for _, kind := range tk.kinds {
			if tk.serve != nil {
				t.Run(tk.program+"/"+kind+"/server", func(t *testing.T) {
					addr := rdmatest.Device(t, kind)
					l, port := listenAt(t, tk.space, addr, tk.port)
					p := startProgram(t, kind, tk.program, "rdmacm-utils", tk.client(addr, port)...)
					tk.serve(t, l, p)
					p.wantSuccess()
				})
			}
			if tk.call != nil {
				t.Run(tk.program+"/"+kind+"/client", func(t *testing.T) {
					addr := rdmatest.Device(t, kind)
					port := strconv.Itoa(int(tk.port))
					if tk.port == 0 {
						port = freePort(addr)
					}
					p := startProgram(t, kind, tk.program, "rdmacm-utils", tk.server(addr, port)...)
					tk.call(t, addr, port, p)
					if !tk.forever {
						p.wantSuccess()
					}
				})
			}
		}
	}
}

// ucmatose: the server sends messages, the client as many back, and the server disconnects.
const messages, messageSize = 10, 100

func serveUcmatose(t *testing.T, l *rdmacm.ID, _ *program) {
	id := accepted(t, l)
	e := endOf(t, id, ibv.QPTypeRC, messageSize)
	e.receiveAll()
	must(id.Accept(testContext(t), rdmacm.ConnParam{}))(t)
	e.sendAll(e.sendWR(1, messageSize))
	e.done(2, messages)
	if err := id.Disconnect(); err != nil {
		t.Error(err)
	}
	disconnected(t, id)
}

func callUcmatose(t *testing.T, addr, port string, p *program) {
	p.awaitListening("ucma_get_event")
	id, e, _ := connected(t, rdmacm.PortSpaceTCP, addr, port, messageSize, (*end).receiveAll)
	e.done(2, messages)
	e.sendAll(e.sendWR(1, messageSize))
	disconnected(t, id)
}

// receiveAll posts the receives with the number 2 for all messages, sendAll sends them.
func (e *end) receiveAll() {
	for range messages {
		e.receive(e.qps[0], 2, messageSize+e.header())
	}
}

func (e *end) sendAll(wr ibv.SendWR) {
	for range messages {
		e.post(e.qps[0], wr)
	}
	e.done(wr.ID, messages)
}

// header is how many bytes of a receive come before a message.
func (e *end) header() int {
	if e.qps[0].Type() == ibv.QPTypeUD {
		return ibv.GRHSize
	}
	return 0
}

// cmtime makes connections, and ends them when all are there.
const manyConns = 20

// serveCmtime accepts whatever comes until the program has ended. It is started again when one of its
// ports is in use.
func serveCmtime(t *testing.T, l *rdmacm.ID, p *program) {
	all := testContext(t)
	ctx, cancel := context.WithCancel(all)
	go func() {
		<-p.exited
		cancel()
	}()
	conns := 0
	for {
		id, err := l.GetRequest(ctx)
		if err != nil {
			break
		}
		closing(t, id, nil)
		endOf(t, id, ibv.QPTypeRC, 1)
		if _, err := id.Accept(ctx, rdmacm.ConnParam{}); err != nil {
			continue // of a program that is being started again
		}
		conns++
		hangUp(all, id)
	}
	if conns < manyConns {
		t.Errorf("%d connections, want %d", conns, manyConns)
	}
}

func callCmtime(t *testing.T, addr, port string, p *program) {
	p.awaitListening("ucma_get_event")
	var ids []*rdmacm.ID
	for range manyConns {
		id, _, _ := connected(t, rdmacm.PortSpaceTCP, addr, port, 1, nil)
		ids = append(ids, id)
	}
	for _, id := range ids {
		if err := id.Disconnect(); err != nil {
			t.Error(err)
		}
	}
}

// rdma_client sends 16 zero bytes to rdma_server, which answers with as many.
const oneSize = 16

// On siw the server may miss the first message, see provider.deaf: then the program is started again.
const tries = 3

func serveOne(t *testing.T, l *rdmacm.ID, p *program) {
	for range tries {
		id := accepted(t, l)
		e := endOf(t, id, ibv.QPTypeRC, oneSize)
		e.receiveOne()
		must(id.Accept(testContext(t), rdmacm.ConnParam{}))(t)
		if !e.comes(2) {
			p.restart()
			continue
		}
		e.wantZero()
		e.post(e.qps[0], e.sendWR(1, oneSize))
		e.done(1, 1)
		disconnected(t, id)
		return
	}
	t.Fatal(errDeaf)
}

func callOne(t *testing.T, addr, port string, p *program) {
	for range tries {
		p.awaitListening("ucma_get_event")
		id, e, _ := connected(t, rdmacm.PortSpaceTCP, addr, port, oneSize, (*end).receiveOne)
		e.post(e.qps[0], e.sendWR(1, oneSize))
		if !e.comes(2) {
			p.restart()
			continue
		}
		e.wantZero()
		if err := id.Disconnect(); err != nil {
			t.Error(err)
		}
		return
	}
	t.Fatal(errDeaf)
}

func (e *end) receiveOne() {
	copy(e.received(oneSize), "not overwritten!")
	e.receive(e.qps[0], 2, oneSize)
}

func (e *end) wantZero() {
	if got := e.received(oneSize); !bytes.Equal(got, make([]byte, oneSize)) {
		e.t.Errorf("a message of %x", got)
	}
}

// udaddy: the client sends datagrams to the server, which answers with as many to the queue pair that
// their immediate data has the number of.
func serveUdaddy(t *testing.T, l *rdmacm.ID, _ *program) {
	id := accepted(t, l)
	e := endOf(t, id, ibv.QPTypeUD, messageSize)
	e.receiveAll()
	if err := id.AcceptDatagrams(rdmacm.ConnParam{}); err != nil {
		t.Fatal(err)
	}
	wc := e.done(2, messages)
	qp := e.qps[0]
	attr := must(qp.Query(ibv.AttrQkey))(t)
	ah := must(e.pd.CreateAHOf(id.Port(), &wc, e.received(messageSize+ibv.GRHSize)))(t)
	closing(t, ah, nil)
	e.sendAll(e.datagram(ibv.Destination{AH: ah, QPNum: wc.ImmData(), Qkey: attr.Qkey}))
}

func callUdaddy(t *testing.T, addr, port string, p *program) {
	p.awaitListening("ucma_get_event")
	_, e, ev := connected(t, rdmacm.PortSpaceUDP, addr, port, messageSize, (*end).receiveAll)
	to := ev.Destination
	ah := must(e.pd.CreateAH(to.AH))(t)
	closing(t, ah, nil)
	e.sendAll(e.datagram(ibv.Destination{AH: ah, QPNum: to.QPNum, Qkey: to.Qkey}))
	if wc := e.done(2, messages); wc.ImmData() != to.QPNum || wc.SrcQP != to.QPNum {
		t.Errorf("an answer by %d with %d, want %d", wc.SrcQP, wc.ImmData(), to.QPNum)
	}
}

// datagram is a Send to a destination, with the queue pair's number as immediate data.
func (e *end) datagram(to ibv.Destination) ibv.SendWR {
	wr := e.sendWR(1, messageSize)
	wr.Opcode, wr.Imm, wr.To = ibv.OpSendWithImm, e.qps[0].Num(), &to
	return wr
}

// TestRDMAMckey: what our member of a multicast group sends mckey receives, and the other way round.
func TestRDMAMckey(t *testing.T) {
	addr := rdmatest.Device(t, "rxe")
	const group = "239.7.7.8"
	join := func(t *testing.T, args ...string) (*program, *end, ibv.Destination) {
		id := newID(t, rdmacm.PortSpaceUDP)
		if err := id.BindAddr(netip.AddrPortFrom(netip.MustParseAddr(addr), 0)); err != nil {
			t.Fatal(err)
		}
		e := endOf(t, id, ibv.QPTypeUD, messageSize)
		to := must(id.JoinMulticast(testContext(t), netip.MustParseAddr(group), rdmacm.JoinFull))(t)
		ah := must(e.pd.CreateAH(to.AH))(t)
		closing(t, ah, nil)
		p := startProgram(t, "rxe", "mckey", "rdmacm-utils", append([]string{"-m", group, "-b", addr}, args...)...)
		return p, e, ibv.Destination{AH: ah, QPNum: to.QPNum, Qkey: to.Qkey}
	}
	t.Run("receives", func(t *testing.T) {
		p, e, to := join(t)
		for ended := false; !ended; { // datagrams before it has joined are lost
			e.post(e.qps[0], e.datagram(to))
			e.done(1, 1)
			select {
			case <-p.exited:
				ended = true
			case <-time.After(50 * time.Millisecond):
			}
		}
		p.wantSuccess()
	})
	t.Run("sends", func(t *testing.T) {
		p, e, _ := join(t, "-s")
		e.receiveAll()
		if wc := e.done(2, messages); wc.ImmData() != wc.SrcQP || int(wc.ByteLen) != messageSize+ibv.GRHSize {
			t.Errorf("%+v", wc)
		}
		p.wantSuccess()
	})
}
