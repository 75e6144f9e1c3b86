package rpcsec_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/internal/testing/leak"
	"github.com/rpcrdma/rpcrdma/internal/testing/rdmatest"
	"github.com/rpcrdma/rpcrdma/iwarp"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/rdmacm"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/rpc/rpcsec"
	"github.com/rpcrdma/rpcrdma/transport"
)

const (
	piece  = 64 << 10
	sealed = 2*piece + 1001 // bytes of an item that is sealed in three pieces
)

// A pair has two items for a call of procTwo, and memory for its results.
type pair struct {
	data, buf [2][]byte
	call      rpc.Call
}

func newPair(text byte) *pair {
	p := &pair{}
	for i := range p.data {
		p.data[i] = bytes.Repeat([]byte{text + byte(i)}, sealed)
		p.buf[i] = make([]byte, sealed)
	}
	return p
}

// do makes the call, and returns an error unless its results are its arguments.
func (p *pair) do(c rpc.Caller) error {
	call := &p.call
	call.Prog, call.Vers, call.Proc, call.MaxResults = prog, 1, procTwo, 8
	call.Args, call.ReadItems, call.WriteItems = call.Args[:0], call.ReadItems[:0], call.WriteItems[:0]
	for i, data := range p.data {
		clear(p.buf[i])
		call.Args = append(call.Args, number(uint32(len(data)))...)
		call.ReadItems = append(call.ReadItems, rpc.ReadItem{Offset: len(call.Args), Data: data})
		call.Receive(p.buf[i])
	}
	if err := c.Call(bg, call); err != nil {
		return err
	}
	d := call.Decoder()
	one, two := d.Item(), d.Item()
	if d.End() != nil || !bytes.Equal(one, p.data[0]) || !bytes.Equal(two, p.data[1]) {
		return errors.New("results that the server has not sent")
	}
	return nil
}

// untouched reports whether no byte has been handed out.
func (p *pair) untouched() bool {
	return !slices.ContainsFunc(p.buf[:], func(b []byte) bool { return len(bytes.Trim(b, "\x00")) > 0 }) && len(p.call.Results) == 0
}

// resize gives an item of a call another length.
func resize(call *rpc.Call, i, n int) {
	it := &call.ReadItems[i]
	it.Data = append(bytes.Clone(it.Data), make([]byte, 64)...)[:n]
	binary.BigEndian.PutUint32(call.Args[it.Offset-4:], uint32(n))
}

func swap(a, b []byte) {
	tmp := bytes.Clone(a)
	copy(a, b)
	copy(b, tmp)
}

// TestSealedCallsAttacked: an attacker that can change what is in memory and in messages, and has seen earlier calls, has
// nothing executed, and the client gets an error.
func TestSealedCallsAttacked(t *testing.T) {
	eachProvider(t, func(t *testing.T, p fabric.Provider) {
		svc, log := &service{}, &logged{}
		cl := serve(t, p, programOf(svc, rpcsec.NewServer(rpcsec.ServerConfig{
			Acceptor: host, Required: true, Seal: true, Logger: slog.New(slog.NewTextHandler(log, nil)),
		})))
		b := &between{next: cl}
		c := rpcsec.NewClient(b, rpcsec.ClientConfig{Initiator: alice, Seal: rpcsec.SealRequired})
		var old rpc.Call // an earlier call, with its results
		b.reply = func(call *rpc.Call) {
			old.Args = bytes.Clone(call.Args)
			for i := range call.ReadItems {
				old.ReadItems = append(old.ReadItems, rpc.ReadItem{Data: bytes.Clone(call.ReadItems[i].Data)})
				old.WriteItems = append(old.WriteItems, rpc.WriteItem{Buf: bytes.Clone(call.WriteItems[i].Buf)})
			}
		}
		pair := newPair('a')
		if err := pair.do(c); err != nil || len(old.ReadItems) != 2 || bytes.Contains(old.ReadItems[0].Data, []byte("aaaa")) ||
			bytes.Contains(old.WriteItems[0].Buf, []byte("aaaa")) || bytes.Contains(old.Args, []byte("aaaa")) {
			t.Fatalf("%v: %d items, or text", err, len(old.ReadItems))
		}
		b.reply = nil
		for _, tt := range []struct {
			name string
			call func(call *rpc.Call)
		}{
			{"the first bit", func(call *rpc.Call) { call.ReadItems[0].Data[0] ^= 1 }},
			{"the last bit", func(call *rpc.Call) { call.ReadItems[1].Data[sealed-1] ^= 128 }},
			{"a bit of the second piece", func(call *rpc.Call) { call.ReadItems[1].Data[piece] ^= 1 }},
			{"a truncated item", func(call *rpc.Call) { resize(call, 1, sealed-1) }},
			{"an item without its last piece", func(call *rpc.Call) { resize(call, 0, 2*piece) }},
			{"a longer item", func(call *rpc.Call) { resize(call, 1, sealed+1) }},
			{"no second item", func(call *rpc.Call) {
				call.Args, call.ReadItems = call.Args[:len(call.Args)-4], call.ReadItems[:1]
			}},
			{"no items", func(call *rpc.Call) { call.Args, call.ReadItems = call.Args[:len(call.Args)-8], nil }},
			{"another item", func(call *rpc.Call) {
				call.Args = append(call.Args, number(sealed)...)
				call.ReadItems = append(call.ReadItems, rpc.ReadItem{Offset: len(call.Args), Data: old.ReadItems[0].Data})
			}},
			{"items exchanged", func(call *rpc.Call) { swap(call.ReadItems[0].Data, call.ReadItems[1].Data) }},
			{"pieces exchanged", func(call *rpc.Call) {
				swap(call.ReadItems[0].Data[:piece], call.ReadItems[0].Data[piece:2*piece])
			}},
			{"an item of an earlier call", func(call *rpc.Call) { copy(call.ReadItems[0].Data, old.ReadItems[0].Data) }},
			{"a result of an earlier call", func(call *rpc.Call) { copy(call.ReadItems[0].Data, old.WriteItems[0].Buf) }},
			{"the text", func(call *rpc.Call) { copy(call.ReadItems[0].Data, pair.data[0]) }},
			{"the body of an earlier call", func(call *rpc.Call) { copy(call.Args, old.Args) }},
			{"all of an earlier call", func(call *rpc.Call) {
				copy(call.Args, old.Args)
				for i := range call.ReadItems {
					copy(call.ReadItems[i].Data, old.ReadItems[i].Data)
				}
			}},
			{"another procedure", func(call *rpc.Call) { call.Proc = procWho }},
		} {
			before := svc.executed.Load()
			b.call = tt.call
			var got *oncrpc.RPCError
			if err := pair.do(c); !errors.As(err, &got) || got.AcceptStat != oncrpc.GarbageArgs || !pair.untouched() {
				t.Errorf("%s: %v, no byte handed out: %v", tt.name, err, pair.untouched())
			}
			if n := svc.executed.Load() - before; n != 0 {
				t.Errorf("%s: %d calls executed", tt.name, n)
			}
			b.call = nil
			if err := pair.do(c); err != nil {
				t.Errorf("after %s: %v", tt.name, err)
			}
		}
		if text := log.String(); !strings.Contains(text, "sealed item 0, piece 0: ") || !strings.Contains(text, "sealed item 1, piece 2: ") {
			t.Errorf("log: %s", text)
		}
	})
}

// logged is a log in memory.
type logged struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *logged) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// TestSealedRepliesAttacked: a client believes no result that the server has not sealed for the call, and hands no byte out.
func TestSealedRepliesAttacked(t *testing.T) {
	eachProvider(t, func(t *testing.T, p fabric.Provider) {
		cl := serve(t, p, programOf(&service{}, rpcsec.NewServer(rpcsec.ServerConfig{Acceptor: host, Seal: true})))
		b := &between{next: cl}
		c := rpcsec.NewClient(b, rpcsec.ClientConfig{Initiator: alice, Seal: rpcsec.SealRequired})
		pair := newPair('a')
		inline := p.Name() == transport.TCP{}.Name()
		// result returns the data of a result where the client looks for it.
		result := func(call *rpc.Call, i int) []byte {
			if !inline {
				return call.WriteItems[i].Buf[:call.WriteItems[i].N]
			}
			end := len(call.Results) - (1-i)*(4+(sealed+3)&^3)
			return call.Results[end-(sealed+3)&^3:][:sealed]
		}
		length := func(call *rpc.Call, i int) []byte {
			if !inline {
				return call.Results[len(call.Results)-8+4*i:]
			}
			return call.Results[len(call.Results)-(2-i)*(4+(sealed+3)&^3):]
		}
		var old [2][]byte
		b.reply = func(call *rpc.Call) { old[0], old[1] = bytes.Clone(result(call, 0)), bytes.Clone(result(call, 1)) }
		if err := pair.do(c); err != nil {
			t.Fatal(err)
		}
		for _, tt := range []struct {
			name        string
			reply       func(call *rpc.Call)
			item, piece int
		}{
			{"the first bit", func(call *rpc.Call) { result(call, 0)[0] ^= 1 }, 0, 0},
			{"the last bit", func(call *rpc.Call) { result(call, 1)[sealed-1] ^= 128 }, 1, 2},
			{"a bit of the second piece", func(call *rpc.Call) { result(call, 1)[piece] ^= 1 }, 1, 1},
			{"a truncated result", func(call *rpc.Call) {
				call.WriteItems[1].N = sealed - 1
				binary.BigEndian.PutUint32(length(call, 1), sealed-1)
			}, 1, -1},
			{"results exchanged", func(call *rpc.Call) { swap(result(call, 0), result(call, 1)) }, 0, 0},
			{"pieces exchanged", func(call *rpc.Call) { r := result(call, 1); swap(r[:piece], r[piece:2*piece]) }, 1, 0},
			{"a result of an earlier call", func(call *rpc.Call) { copy(result(call, 1), old[1]) }, 1, 0},
			{"an argument of the call", func(call *rpc.Call) { copy(result(call, 0), call.ReadItems[0].Data) }, 0, 0},
			{"the text", func(call *rpc.Call) { copy(result(call, 0), pair.data[0]) }, 0, 0},
			{"no first result", func(call *rpc.Call) {
				call.WriteItems[0].Chunked, call.WriteItems[0].N = false, 0
				clear(length(call, 0)[:4])
			}, 0, -1},
			{"more", func(call *rpc.Call) { call.Results = append(call.Results, 0, 0, 0, 0) }, 0, -1},
		} {
			b.reply = tt.reply
			var got *rpcsec.ReplyError
			var bad *rpcsec.SealError
			if err := pair.do(c); !errors.As(err, &got) || !got.Results || !errors.As(err, &bad) || bad.Item != tt.item || bad.Piece != tt.piece || !pair.untouched() {
				t.Errorf("%s: %v, no byte handed out: %v", tt.name, err, pair.untouched())
			}
			b.reply = nil
			if err := pair.do(c); err != nil {
				t.Errorf("after %s: %v", tt.name, err)
			}
		}
	})
}

// A liar has its contexts encrypt something else.
type liar struct {
	psk
	edit *atomic.Pointer[func(text []byte) []byte] // of arguments or results, after the sequence number
}

type liarContext struct {
	*pskContext
	liar
}

func (l liar) Initiate(context.Context) (rpcsec.Context, error) {
	return liarContext{&pskContext{psk: l.psk, initiator: true}, l}, nil
}

func (l liar) Accept() (rpcsec.Context, error) { return liarContext{&pskContext{psk: l.psk}, l}, nil }

func (c liarContext) Wrap(b []byte, at int) ([]byte, error) {
	if edit, from := c.edit.Load(), at+c.WrapHead()+4; edit != nil {
		b = slices.Grow(append(b[:from:from], (*edit)(bytes.Clone(b[from:]))...), c.WrapTail())
	}
	return c.pskContext.Wrap(b, at)
}

// lies returns edits of text, which begins with a manifest of two items after so many rooms, and ends with their lengths.
func lies(rooms int) map[string]func(text []byte) []byte {
	items := 12 + 4*rooms // their count, and then where each is and how long
	item := func(text []byte, n uint32) {
		binary.BigEndian.PutUint32(text[items+16:], n)
		binary.BigEndian.PutUint32(text[len(text)-4:], n)
	}
	const tags = 3 * 16
	return map[string]func(text []byte) []byte{
		"one more": func(text []byte) []byte {
			text[items+3] = 3
			text = slices.Insert(text, items+20, 0, 0, 0, 12, 0, 0, 0, 0)
			return append(text, 0, 0, 0, 0)
		},
		"longer":     func(text []byte) []byte { item(text, sealed+1); return text },
		"2^31 bytes": func(text []byte) []byte { item(text, 1<<31); return slices.Delete(text, len(text)-8-tags, len(text)-8) },
		"2^31-1 bytes": func(text []byte) []byte {
			item(text, 1<<31-1)
			return slices.Insert(text, len(text)-8, make([]byte, 1<<31/piece*16-tags)...)
		},
	}
}

// TestSealedLies: a peer that has the keys, and says of items what is not so, is refused by a server and by a client.
func TestSealedLies(t *testing.T) {
	eachProvider(t, func(t *testing.T, p fabric.Provider) {
		var client, server atomic.Pointer[func(text []byte) []byte]
		svc := &service{}
		cl := serve(t, p, programOf(svc, rpcsec.NewServer(rpcsec.ServerConfig{Acceptor: liar{host, &server}, Seal: true, Logger: quiet})))
		pair := newPair('a')
		c := rpcsec.NewClient(cl, rpcsec.ClientConfig{Initiator: liar{alice, &client}, Seal: rpcsec.SealRequired})
		if err := pair.do(c); err != nil {
			t.Fatal(err)
		}
		for name, edit := range lies(2) {
			client.Store(&edit)
			var got *oncrpc.RPCError
			if err := pair.do(c); !errors.As(err, &got) || !pair.untouched() || svc.executed.Load() != 1 {
				t.Errorf("the client lies, %s: %v, %d executed", name, err, svc.executed.Load())
			}
		}
		client.Store(nil)
		item := func(text []byte) []byte {
			text[15] = 1
			return slices.Insert(text, 16, slices.Concat([]byte{0, 0, 0, 4}, text[16:20], make([]byte, 16))...)
		}
		server.Store(&item)
		call := rpc.Call{Prog: prog, Vers: 1, Proc: procEcho, Args: number(4096), ReadItems: []rpc.ReadItem{{Offset: 4, Data: make([]byte, 4096)}}, MaxResults: 5000}
		if err := c.Call(bg, &call); !errors.As(err, new(*rpcsec.ReplyError)) {
			t.Errorf("an item that was not asked for: %v", err)
		}
		server.Store(nil)
		for name, edit := range lies(0) {
			server.Store(&edit)
			fits := name != "2^31-1 bytes" // its tags are longer than the client has room for
			if err := pair.do(c); err == nil || fits && (!errors.As(err, new(*rpcsec.ReplyError)) || !pair.untouched()) {
				t.Errorf("the server lies, %s: %v", name, err)
			}
			server.Store(nil)
			if err := pair.do(c); err != nil {
				t.Errorf("after %s: %v", name, err)
			}
		}
	})
}

// A meddler is an adapter of a server that changes the RDMA Writes of replies on their way.
type meddler struct {
	fabric.Provider
	change atomic.Pointer[func(writes []*fabric.SendWR)]
}

func (m *meddler) Listen(ctx context.Context, addr string, attr fabric.ConnAttr) (fabric.Listener, error) {
	l, err := m.Provider.Listen(ctx, addr, attr)
	return meddlerListener{l, m}, err
}

type meddlerListener struct {
	fabric.Listener
	m *meddler
}

func (l meddlerListener) Accept(ctx context.Context) (fabric.Conn, error) {
	c, err := l.Listener.Accept(ctx)
	if err != nil {
		return nil, err
	}
	return meddlerConn{c, l.m}, nil
}

type meddlerConn struct {
	fabric.Conn
	m *meddler
}

func (c meddlerConn) Post(wrs []fabric.SendWR) error {
	var writes []*fabric.SendWR
	for i := range wrs {
		if wrs[i].Op == fabric.OpWrite {
			writes = append(writes, &wrs[i])
		}
	}
	if f := c.m.change.Load(); f != nil && len(writes) > 0 {
		(*f)(writes)
	}
	return c.Conn.Post(wrs)
}

// TestSealedChunksAttacked: a host on the way that changes, exchanges or replays RDMA Writes brings nothing about but errors.
func TestSealedChunksAttacked(t *testing.T) {
	eachProvider(t, func(t *testing.T, p fabric.Provider) {
		if p.Name() != (transport.TCP{}).Name() { // which has no Writes
			attackChunks(t, p)
		}
	})
}

func TestRDMASealedChunksAttacked(t *testing.T) {
	rdmatest.OnDevices(t, func(t *testing.T, kind, addr string) {
		for _, cfg := range []rdmacm.Config{{}, {UnsafeWindows: true}} {
			p, err := rdmacm.New(cfg)
			if err != nil {
				t.Fatal(err)
			}
			attackChunks(t, p)
		}
	})
}

func attackChunks(t *testing.T, p fabric.Provider) {
	m := &meddler{Provider: p}
	cl := serve(t, m, programOf(&service{}, rpcsec.NewServer(rpcsec.ServerConfig{Acceptor: host, Seal: true})))
	c := rpcsec.NewClient(cl, rpcsec.ClientConfig{Initiator: alice, Seal: rpcsec.SealRequired})
	pair := newPair('a')
	old := make([]byte, 1000)
	for _, tt := range []struct {
		name   string
		change func(writes []*fabric.SendWR)
	}{
		{"", func(writes []*fabric.SendWR) { copy(old, writes[0].SGL[0].Buf) }},
		{"a bit", func(writes []*fabric.SendWR) { writes[0].SGL[0].Buf[77] ^= 1 }},
		{"an earlier call", func(writes []*fabric.SendWR) { copy(writes[0].SGL[0].Buf, old) }},
		{"exchanged", func(writes []*fabric.SendWR) {
			a, b := writes[0], writes[len(writes)-1]
			a.RKey, a.RemoteOffset, b.RKey, b.RemoteOffset = b.RKey, b.RemoteOffset, a.RKey, a.RemoteOffset
		}},
		{"written to one place", func(writes []*fabric.SendWR) {
			writes[0].RKey, writes[0].RemoteOffset = writes[len(writes)-1].RKey, writes[len(writes)-1].RemoteOffset
		}},
	} {
		m.change.Store(&tt.change)
		var bad *rpcsec.SealError
		err := pair.do(c)
		if (err == nil) != (tt.name == "") || err != nil && !errors.As(err, &bad) || err != nil && !pair.untouched() {
			t.Errorf("%s: %v, no byte handed out: %v", tt.name, err, pair.untouched())
		}
		m.change.Store(nil)
		if err := pair.do(c); err != nil {
			t.Errorf("after %s: %v", tt.name, err)
		}
	}
	if st := cl.Stats(); st.LongCall == 0 || st.WriteChunk == 0 || st.ReplyChunk != 0 {
		t.Errorf("%+v", st)
	}
}

// TestRDMASealed: sealed items keep their chunks on devices, too.
func TestRDMASealed(t *testing.T) {
	rdmatest.OnDevices(t, func(t *testing.T, kind, addr string) {
		p, err := rdmacm.New(rdmacm.Config{})
		if err != nil {
			t.Fatal(err)
		}
		cl := serve(t, p, programOf(&service{}, rpcsec.NewServer(rpcsec.ServerConfig{Acceptor: host, Seal: true})))
		c := rpcsec.NewClient(cl, rpcsec.ClientConfig{Initiator: alice, Seal: rpcsec.SealRequired})
		data, buf := bytes.Repeat([]byte("some text"), 100_000), make([]byte, 900_000)
		for _, n := range []int{0, 1, 4096, 70_001, len(data)} {
			if err := echo(c, new(rpc.Call), data[:n], buf); err != nil {
				t.Errorf("%d bytes: %v", n, err)
			}
		}
		parallel(t, c)
		if st := cl.Stats(); st.ReadChunk == 0 || st.WriteChunk == 0 {
			t.Errorf("%+v", st)
		}
	})
}

// TestSealedAgain: what the reply cache answers is sealed with other nonces each time, whatever the call's number, and nothing is
// executed twice.
func TestSealedAgain(t *testing.T) {
	svc := &service{}
	raw := &resender{xid: 7, addr: listen(t, transport.TCP{}, programOf(svc, rpcsec.NewServer(rpcsec.ServerConfig{Acceptor: host, Seal: true})))}
	c := rpcsec.NewClient(raw, rpcsec.ClientConfig{Initiator: alice, Seal: rpcsec.SealRequired})
	data, buf := bytes.Repeat([]byte("text"), 2000), make([]byte, 8000)
	seen := make(map[string]bool)
	for range 3 {
		if err := echo(c, new(rpc.Call), data, buf); err != nil { // with another number
			t.Fatal(err)
		}
		for range 3 {
			var again rpc.Call
			if err := raw.send(&again); err != nil {
				t.Fatal(err)
			}
			text := string(again.Results[len(again.Results)-len(data):])
			if seen[text] || len(again.Results) < len(data)+60 {
				t.Errorf("ciphertext that was seen before, or %d bytes", len(again.Results))
			}
			seen[text] = true
		}
	}
	if n := svc.executed.Load(); n != 1 {
		t.Errorf("%d executed", n)
	}
}

// nothing is a binding for which no argument or result may be a chunk.
type nothing struct{}

func (nothing) Call(rpc.Procedure, []byte, []rpc.Range) ([]rpc.Range, rpc.ReplyBounds) {
	return nil, rpc.ReplyBounds{}
}
func (nothing) Reply(rpc.Procedure, []byte, bool, []rpc.Range) []rpc.Range { return nil }

// TestSealedBinding: the items of a sealed call may be chunks whatever the binding says of the procedure's, and nothing else may.
func TestSealedBinding(t *testing.T) {
	program := programOf(&service{}, rpcsec.NewServer(rpcsec.ServerConfig{Acceptor: host, Seal: true}))
	program.Binding = nothing{}
	cl := serve(t, iwarp.New(iwarp.Config{}), program)
	data, buf := bytes.Repeat([]byte("text"), piece), make([]byte, 4*piece)
	garbage := func(err error) bool {
		var got *oncrpc.RPCError
		return errors.As(err, &got) && got.Stat == oncrpc.MsgAccepted && got.AcceptStat == oncrpc.GarbageArgs
	}
	if err := echo(rpcsec.NewClient(cl, rpcsec.ClientConfig{Initiator: alice, Service: rpc.ServiceNone}), new(rpc.Call), data, buf); !garbage(err) {
		t.Errorf("without privacy: %v", err)
	}
	if err := echo(rpcsec.NewClient(cl, rpcsec.ClientConfig{Initiator: alice, Seal: rpcsec.SealRequired}), new(rpc.Call), data, buf); err != nil {
		t.Errorf("sealed: %v", err)
	}
	if st := cl.Stats(); st.ReadChunk != 2 || st.WriteChunk != 1 {
		t.Errorf("%+v", st)
	}
	cred := oncrpc.Auth{Flavor: oncrpc.FlavorGSS, Body: append(number(1), make([]byte, 16)...)}
	binary.BigEndian.PutUint32(cred.Body[12:], oncrpc.ServiceSealed)
	inside := rpc.Call{Prog: prog, Vers: 1, Proc: procEcho, Cred: cred, Args: append(number(uint32(len(data)+4)), number(uint32(len(data)))...),
		ReadItems: []rpc.ReadItem{{Offset: 8, Data: data}}}
	if err := cl.Call(bg, &inside); !garbage(err) {
		t.Errorf("a chunk in the encrypted body: %v", err)
	}
}

// TestSealedBridge: sealed calls keep their chunks on the RDMA side of a bridge, which cannot open them.
func TestSealedBridge(t *testing.T) {
	leak.Check(t)
	inner, err := transport.NewServer(nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := inner.Register(programOf(&service{}, rpcsec.NewServer(rpcsec.ServerConfig{Acceptor: host, Seal: true}))); err != nil {
		t.Fatal(err)
	}
	outer, err := transport.NewServer(nil)
	if err != nil {
		t.Fatal(err)
	}
	bridge := outer.Bridge(nothing{}, prog)
	p := iwarp.New(iwarp.Config{})
	l, err := outer.Listen(bg, p, "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() { inner.ServeTCP(bridge) })
	wg.Go(func() { outer.Serve(l) })
	defer wg.Wait()
	defer inner.Close()
	defer outer.Close()
	cl, err := transport.Dial(bg, p, l.Addr().String(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	c := rpcsec.NewClient(cl, rpcsec.ClientConfig{Initiator: alice, Seal: rpcsec.SealRequired})
	data, buf := bytes.Repeat([]byte("text"), piece), make([]byte, 4*piece)
	if err := echo(c, new(rpc.Call), data, buf); err != nil {
		t.Error(err)
	}
	if st := cl.Stats(); st.ReadChunk != 1 || st.WriteChunk != 1 || st.ReplyChunk != 0 {
		t.Errorf("%+v", st)
	}
	records, err := transport.DialTCPWith(bg, "", nil, func(context.Context, string) (net.Conn, error) {
		return transport.NewRecordConn(cl, nothing{}, 1<<20), nil
	})
	if err != nil {
		t.Fatal(err)
	}
	defer records.Close()
	c = rpcsec.NewClient(records, rpcsec.ClientConfig{Initiator: alice, Seal: rpcsec.SealRequired})
	if err := echo(c, new(rpc.Call), data, buf); err != nil {
		t.Errorf("as records: %v", err)
	}
}

// A keyless is a mechanism that derives no keys.
type keyless struct{ psk }

type keylessContext struct{ rpcsec.Context }

func (k keyless) Initiate(ctx context.Context) (rpcsec.Context, error) {
	c, err := k.psk.Initiate(ctx)
	return keylessContext{c}, err
}

func (k keyless) Accept() (rpcsec.Context, error) {
	c, err := k.psk.Accept()
	return keylessContext{c}, err
}

// TestAgreement: items are sealed if both ends can and are to. An attacker cannot keep them from agreeing: without
// the answer that only the server can have made, no call is made.
func TestAgreement(t *testing.T) {
	p := iwarp.New(iwarp.Config{})
	leak.Check(t)
	for _, tt := range []struct {
		name      string
		initiator rpcsec.Initiator
		server    rpcsec.ServerConfig
		null      func(call *rpc.Call)
		call      func(call *rpc.Call)
		agree     bool
		attacked  bool
	}{
		{"both", alice, rpcsec.ServerConfig{Acceptor: host, Seal: true}, nil, nil, true, false},
		{"the client", alice, rpcsec.ServerConfig{Acceptor: host}, nil, nil, false, false},
		{"a client without keys", keyless{alice}, rpcsec.ServerConfig{Acceptor: host, Seal: true}, nil, nil, false, false},
		{"a server without keys", alice, rpcsec.ServerConfig{Acceptor: keyless{host}, Seal: true}, nil, nil, false, false},
		{"the answer is taken away", alice, rpcsec.ServerConfig{Acceptor: host, Seal: true}, func(call *rpc.Call) { call.Results = nil }, nil, false, true},
		{"another answer", alice, rpcsec.ServerConfig{Acceptor: host, Seal: true}, func(call *rpc.Call) {
			call.Results = append([]byte(nil), call.Results[:40]...)
			call.Results[3] = 36
		}, nil, false, true},
		{"another verifier", alice, rpcsec.ServerConfig{Acceptor: host, Seal: true}, func(call *rpc.Call) { call.Reply.Verf.Body[0] ^= 1 }, nil, false, true},
		{"the offer is taken away", alice, rpcsec.ServerConfig{Acceptor: host, Seal: true}, nil, func(call *rpc.Call) { call.Args = nil }, false, true},
		{"another offer", alice, rpcsec.ServerConfig{Acceptor: host, Seal: true}, nil, func(call *rpc.Call) { call.Args[30] ^= 1 }, false, true},
	} {
		for _, seal := range []rpcsec.Sealing{rpcsec.SealOff, rpcsec.SealOptional, rpcsec.SealRequired} {
			tt.server.Logger = quiet
			svc := &service{}
			cl := serve(t, p, programOf(svc, rpcsec.NewServer(tt.server)))
			offers := 0
			between := rpc.CallerFunc(func(ctx context.Context, call *rpc.Call) error {
				offer := call.Proc == 0 && call.Cred.Body[7] == 0
				if offer && tt.call != nil {
					tt.call(call)
				}
				err := cl.Call(ctx, call)
				if offer {
					offers++
					if tt.null != nil {
						tt.null(call)
					}
				}
				return err
			})
			c := rpcsec.NewClient(between, rpcsec.ClientConfig{Initiator: tt.initiator, Seal: seal})
			err := newPair('a').do(c)
			st := cl.Stats()
			var refused *rpcsec.ContextError
			switch {
			case seal == rpcsec.SealOff:
				if err != nil || offers != 0 || st.WriteChunk != 0 {
					t.Errorf("%s, %d: %v, %d offers, %+v", tt.name, seal, err, offers, st)
				}
			case tt.attacked || !tt.agree && seal == rpcsec.SealRequired:
				if !errors.As(err, &refused) || errors.Is(err, rpcsec.ErrNotSealed) == tt.attacked || svc.executed.Load() != 0 {
					t.Errorf("%s, %d: %v, %d executed", tt.name, seal, err, svc.executed.Load())
				}
			case err != nil || tt.agree != (st.WriteChunk > 0) || tt.agree != (st.ReplyChunk == 0):
				t.Errorf("%s, %d: %v, %+v", tt.name, seal, err, st)
			}
		}
	}
}
