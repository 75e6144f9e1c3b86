package transport_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/proto/rpcrdma"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/transport"
)

// Ends of all versions against each other.

// A tally is a provider that counts connections, and what they send.
type tally struct {
	fabric.Provider
	conns, sends atomic.Int32
}

func (p *tally) Resolve(ctx context.Context, addr string, attr fabric.ConnAttr) (fabric.Conn, error) {
	c, err := p.Provider.Resolve(ctx, addr, attr)
	if err != nil {
		return nil, err
	}
	return tallied{c, p}, nil
}

type tallied struct {
	fabric.Conn
	p *tally
}

func (c tallied) Connect(ctx context.Context, privateData []byte) error {
	err := c.Conn.Connect(ctx, privateData)
	if err == nil {
		c.p.conns.Add(1)
	}
	return err
}

func (c tallied) Post(wrs []fabric.SendWR) error {
	for i := range wrs {
		if wrs[i].Op == fabric.OpSend || wrs[i].Op == fabric.OpSendInv {
			c.p.sends.Add(1)
		}
	}
	return c.Conn.Post(wrs)
}

// reversal is an optional operation: the answer is the request's data, and its message
// backwards.
func reversal() []transport.Operation {
	return []transport.Operation{{
		Type:     0x7e57,
		IsAnswer: func(info []byte) bool { return bytes.HasPrefix(info, []byte("!")) },
		Handle: func(_ context.Context, _ rpc.Conn, m transport.Optional) (transport.Optional, error) {
			var back []byte
			for i := range m.Payload {
				back = append(back, m.Payload[len(m.Payload)-1-i])
			}
			return transport.Optional{Info: append([]byte("!"), m.Info...), Payload: back}, nil
		},
	}}
}

// testVersions: V2-5.1-1 V2-5.2-2 V2-5.2-5 V2-5.3-1 V2-4.2-10 each pair of ends speaks the
// highest version that both have, or fails for good.
func testVersions(t *testing.T, b *bed) {
	for _, client := range []transport.Version{transport.Version1, transport.Version2, transport.VersionAuto} {
		for _, server := range []transport.Version{transport.Version1, transport.Version2, transport.VersionAuto} {
			for _, large := range []bool{false, true} {
				name := fmt.Sprintf("client %v, server %v", client, server)
				cfg := transport.Settings{PeerChunks: transport.AllChunks, Operations: reversal()}
				if large {
					name += ", 16384 bytes without private data"
					cfg.InlineSend, cfg.InlineRecv, cfg.NoPrivateData = 16384, 16384, true
				}
				t.Run(name, func(t *testing.T) { b.version(t, cfg, client, server) })
			}
		}
	}
}

func (b *bed) version(t *testing.T, cfg transport.Settings, client, server transport.Version) {
	real, live := b.provider(t)
	t.Cleanup(func() { live.check(t) })
	conns := make(chan *transport.Conn, 1)
	cfg.Version = server
	s := b.serve(t, real, cfg, &errander{ready: func(req *rpc.Request) { conns <- req.Conn().(*transport.Conn) }})
	p := &tally{Provider: real}
	cfg.Version, cfg.Callbacks = client, []rpc.Program{(&errander{}).program()}
	ctx, cancel := context.WithTimeout(bg, b.patience())
	defer cancel()
	cl, err := s.dial(ctx, t, p, transport.Once(&cfg).Client())
	if cl != nil {
		defer cl.Close()
	}
	dialed := p.sends.Load()
	if n := p.conns.Load(); n != 1 {
		t.Errorf("%d connections have been made", n)
	}
	hello := &rpc.Call{Prog: errands, Vers: 1, Proc: procReady}
	switch {
	case client == transport.Version2 && server == transport.Version1:
		var none *rpc.VersionError
		if !errors.As(err, &none) || none.Low != 1 || none.High != 1 || dialed != 1 {
			t.Errorf("Dial returned %v after %d messages", err, dialed)
		}
		return
	case err != nil:
		t.Fatal(err)
	case client == transport.Version1 && server == transport.Version2:
		for range 3 { // whatever is called, and the connection stays
			var refused *rpc.RDMAError
			if err := cl.Call(ctx, hello); !errors.As(err, &refused) || refused.Code != rpcrdma.ErrVers || refused.VersLow != 2 || refused.VersHigh != 2 {
				t.Errorf("a call returned %v", err)
			}
		}
		if st := s.Stats(); st.ErrVers != 3 || st.Conns != 1 || st.Calls != 0 {
			t.Errorf("the server's counters are %+v", st)
		}
		return
	}

	if err := cl.Call(ctx, hello); err != nil {
		t.Fatal(err)
	}
	cn := <-conns
	own, peers := cl.Info(), cn.Info()
	vers := uint32(2)
	if client == transport.Version1 || server == transport.Version1 {
		vers = 1
	}
	if own.Version != vers || peers.Version != vers {
		t.Errorf("versions %d and %d, want %d", own.Version, peers.Version, vers)
	}

	// Asking takes one message, and none where version 2 is agreed on at setup; properties take
	// none of their own, and nothing a second connection. Version 2 always comes with them.
	offers := vers == 2
	var messages int32
	if client != transport.Version1 && (vers == 1 || cfg.NoPrivateData) {
		messages++
	}
	if dialed != messages || p.conns.Load() != 1 {
		t.Errorf("Dial took %d messages and %d connections, want %d and 1", dialed, p.conns.Load(), messages)
	}
	var refusals uint64
	if client == transport.VersionAuto && vers == 1 {
		refusals = 1
	}
	if st := s.Stats(); st.Conns != 1 || st.ErrVers != refusals || st.ErrChunk != 0 {
		t.Errorf("the server's counters are %+v", st)
	}
	size := 4096
	switch {
	case cfg.NoPrivateData && vers == 1:
		size = 1024
	case cfg.NoPrivateData:
		size = 16384
	}
	for _, i := range []rpc.ConnInfo{own, peers} {
		if i.InlineSend != size || i.InlineRecv != size || i.Properties != offers {
			t.Errorf("thresholds are %d and %d, properties %v; want %d, %v", i.InlineSend, i.InlineRecv, i.Properties, size, offers)
		}
	}
	if own.RemoteInvalidation != peers.RemoteInvalidation || own.RemoteInvalidation && cfg.NoPrivateData && vers == 1 {
		t.Errorf("remote invalidation is %v and %v", own.RemoteInvalidation, peers.RemoteInvalidation)
	}

	cn.AllowBackward(0)
	var wg sync.WaitGroup
	for i, w := range []way{cl.Call, cn.Call} {
		for g := range 4 {
			wg.Go(func() {
				var r runner
				rng := rand.New(rand.NewPCG(uint64(g), uint64(i)))
				for n := range b.count(100) + 5 {
					e := randomErrand(rng, rng.Uint64(), true)
					if n < 5 { // long in either direction, and as long as messages get
						e = errand{no: e.no, proc: procErrand, in: []int{size, 70_000, 0, 70_000, size - 200}[n], out: []int{size, 0, 70_000, 70_000, size - 200}[n], loose: n%2 == 0, placed: n == 2}
					}
					if err, wrong := r.run(ctx, w, e); err != nil || wrong != nil {
						t.Errorf("%v: %v %v", e, err, wrong)
						return
					}
				}
			})
		}
	}
	wg.Wait()
	if st := cl.Stats(); st.Inline == 0 || st.ReadChunk == 0 || st.WriteChunk == 0 || st.LongCall == 0 || st.ReplyChunk == 0 {
		t.Errorf("not all shapes: %+v", st)
	}
	if st := cl.Stats(); (st.Invalidated > 0) != own.RemoteInvalidation {
		t.Errorf("remote invalidation is %v, and there were %d", own.RemoteInvalidation, st.Invalidated)
	}

	for end, operate := range map[string]func(context.Context, transport.Optional) (transport.Optional, error){"client": cl.Operate, "server": cn.Operate} {
		long := bytes.Repeat([]byte("ab"), size/2-100)
		m, err := operate(ctx, transport.Optional{Type: 0x7e57, Info: []byte("?"), Payload: long})
		switch {
		case vers == 1:
			if !errors.Is(err, errors.ErrUnsupported) {
				t.Errorf("an operation of the %s's in version 1: %v", end, err)
			}
		case err != nil || string(m.Info) != "!?" || !bytes.Equal(m.Payload, bytes.Repeat([]byte("ba"), size/2-100)):
			t.Errorf("an operation of the %s's: %q with %d bytes, %v", end, m.Info, len(m.Payload), err)
		}
	}
	if n := p.conns.Load(); n != 1 {
		t.Errorf("%d connections have been made", n)
	}
}
