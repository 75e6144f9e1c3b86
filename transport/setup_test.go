package transport

import (
	"testing"
	"testing/synctest"

	"github.com/rpcrdma/rpcrdma/proto/rpcrdma"
)

// Properties that the ends tell each other while they connect (docs/protocol.md, At setup).

// setup is private data that both ends have, with a setup message after it.
func setup(credit uint32, p rpcrdma.Properties) []byte {
	return rpcrdma.AppendSetup(hello(true, 4096, 4096), rpcrdma.Setup{Credit: credit, Properties: p})
}

// damaged is setup with one octet, counted from the end, that is another.
func damaged(b []byte, fromEnd int, octet byte) []byte {
	b[len(b)-fromEnd] = octet
	return b
}

// TestSetupClient checks that a client starts with the program's first call if its offer is accepted.
func TestSetupClient(t *testing.T) {
	for _, tt := range []struct {
		name       string
		cfg        Settings
		hello      []byte
		send, recv int
		inv        bool
		credits    int
	}{
		{"the least", Settings{}, setup(1, accept(4096, 4096, false)), 4096, 4096, false, 1},
		{"invalidation and credits", Settings{}, setup(5, accept(4096, 4096, true)), 4096, 4096, true, 5},
		{"longer messages, each way its own", Settings{InlineSend: 16384, InlineRecv: 16384}, setup(3, accept(12288, 8192, true)), 8192, 12288, true, 3},
		{"more credits than the client asked for", Settings{Credits: 2}, setup(9, accept(4096, 4096, true)), 4096, 4096, true, 2},
		{"Version2", Settings{Version: Version2}, setup(3, accept(4096, 4096, true)), 4096, 4096, true, 3},
		{"no private data of RFC 8797 in front", Settings{}, setup(3, accept(4096, 4096, true))[rpcrdma.PrivateDataSize:], 4096, 4096, true, 3},
		{"zeros behind, as InfiniBand pads", Settings{}, append(setup(3, accept(4096, 4096, true)), make([]byte, 24)...), 4096, 4096, true, 3},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dialsTo(t, greeting(t, tt.hello), &tt.cfg, func(d *dialing, p *peer) {
				cl := d.client()
				p.quiet("nothing is asked")
				offered, ok := rpcrdma.FindSetup(p.got, rpcrdma.PropOffer)
				size := uint32(max(4096, tt.cfg.InlineSend))
				want := rpcrdma.Setup{Credit: uint32(cl.connCfg.Credits), Properties: offer(size, size, true)}
				if !ok || offered != want || len(p.got) != rpcrdma.PrivateDataSize+rpcrdma.SetupSize {
					t.Errorf("the client's private data is %x, which offers %+v, want %+v", p.got, offered, want)
				}
				if _, ok := rpcrdma.FindPrivateData(p.got[:rpcrdma.PrivateDataSize]); !ok {
					t.Errorf("PVT-4-5 private data begins with %x", p.got)
				}
				i := cl.Info()
				if i.Version != 2 || !i.Properties || i.InlineSend != tt.send || i.InlineRecv != tt.recv || i.RemoteInvalidation != tt.inv || i.Credits != tt.credits {
					t.Errorf("ConnInfo is %+v", i)
				}
				// As many calls as there are credits go out at once.
				for range tt.credits + 1 {
					async(cl, bg, testCall())
				}
				for range tt.credits {
					if h, _ := p.message("a call"); h.Vers != 2 {
						t.Errorf("a call is %+v", h)
					} else {
						defer p.reply(rpcrdma.Header{XID: h.XID, Vers: 2, Credit: 100})
					}
				}
				p.quiet("the grant is used up")
			})
			dialsTo(t, greeting(t, tt.hello), &tt.cfg, func(d *dialing, p *peer) {
				p.inlineUpTo(d.client(), tt.send)
				p.takesUpTo(d.client(), tt.recv)
			})
		})
	}
}

// TestSetupNotAccepted checks that a client asks by a message if there is no valid acceptance.
func TestSetupNotAccepted(t *testing.T) {
	good := func() []byte { return setup(3, accept(4096, 4096, true)) }
	for name, b := range map[string][]byte{
		"nothing":             nil,
		"RFC 8797 alone":      hello(true, 4096, 4096),
		"the client's offer":  setup(3, offer(4096, 4096, true)),
		"one octet missing":   good()[:len(good())-1],
		"another identifier":  damaged(good(), 21, 0),
		"no credit":           setup(0, accept(4096, 4096, true)),
		"too small a size":    setup(3, accept(4092, 4096, true)),
		"an odd size":         setup(3, accept(4096, 4097, true)),
		"an unknown kind":     damaged(good(), 13, 7),
		"a rejection's kind":  damaged(good(), 13, 2),
		"credits beyond 2^31": damaged(good(), 20, 0x80),
	} {
		t.Run(name, func(t *testing.T) {
			dialsTo(t, greeting(t, b), &Settings{}, func(d *dialing, p *peer) {
				p.speaks2()
				p.unheardOffer()
				if i := d.client().Info(); i.Version != 2 || i.Properties || i.RemoteInvalidation || i.InlineSend != 4096 {
					t.Errorf("ConnInfo is %+v", i)
				}
			})
			dialsTo(t, greeting(t, b), &Settings{}, func(d *dialing, p *peer) {
				p.speaks(1, 1)
				p.finishes(d.client(), 1)
			})
		})
	}
}

// unheardOffer refuses the offer that follows when the first message was answered in version 2
// by a server that does not know the procedure.
func (p *peer) unheardOffer() {
	p.t.Helper()
	h, _ := p.message("an offer")
	p.send(rpcrdma.AppendHeader(nil, &rpcrdma.Header{XID: h.XID, Vers: 2, Credit: 1, Proc: rpcrdma.ProcError, Err: rpcrdma.ErrInvalOption}), 0)
}

// TestSetupNotOffered checks that an end sends no setup message if it may not, or has no room for one.
func TestSetupNotOffered(t *testing.T) {
	for _, tt := range []struct {
		name string
		cfg  Settings
		room int
		want int // octets of private data
	}{
		{"version 1", Settings{Version: Version1}, 56, rpcrdma.PrivateDataSize},
		{"RFC 5666", Settings{RFC5666: &RFC5666{}}, 56, rpcrdma.PrivateDataSize},
		{"no private data", Settings{NoPrivateData: true}, 56, 0},
		{"one octet too little", Settings{}, rpcrdma.PrivateDataSize + rpcrdma.SetupSize - 1, rpcrdma.PrivateDataSize},
	} {
		peerOf := func(b []byte) *peer {
			p := greeting(t, b)
			p.caps.MaxPrivateData = tt.room
			return p
		}
		check := func(t *testing.T, p *peer) {
			t.Helper()
			if _, found := rpcrdma.FindSetup(p.got, rpcrdma.PropOffer); found || len(p.got) != tt.want {
				t.Errorf("private data is %x", p.got)
			}
		}
		t.Run(tt.name, func(t *testing.T) {
			dialsTo(t, peerOf(setup(3, accept(8192, 8192, true))), &tt.cfg, func(d *dialing, p *peer) {
				synctest.Wait()
				if check(t, p); d.over() {
					if i := d.client().Info(); i.Version != 1 || i.Properties {
						t.Errorf("ConnInfo is %+v", i)
					}
				} else {
					p.speaks(1, 1)
				}
			})
			auto(t, peerOf(setup(3, offer(8192, 8192, true))), &tt.cfg, func(p *peer, s *Server, _ *testService) {
				if check(t, p); theConn(s).version() != 0 {
					t.Error("the server has settled on a version")
				}
			})
		})
	}
	t.Run("a server that spoke version 1 alone an hour ago", func(t *testing.T) {
		cache := NewVersionCache(0)
		cache.note("script script:20049")
		cfg := (&Settings{}).Client()
		cfg.VersionCache = cache
		p := greeting(t, nil)
		synctest.Test(t, func(t *testing.T) {
			p.t, p.changed = t, make(chan struct{})
			cl, err := Dial(bg, p, "script:20049", cfg)
			if err != nil {
				t.Fatal(err)
			}
			defer cl.Close()
			if len(p.got) != rpcrdma.PrivateDataSize {
				t.Errorf("private data is %x", p.got)
			}
		})
	})
}

// TestSetupServer checks that a server that has accepted an offer speaks version 2 from the first message.
func TestSetupServer(t *testing.T) {
	for _, tt := range []struct {
		name       string
		cfg        Settings
		hello      []byte
		accepts    rpcrdma.Setup
		send, recv int
	}{
		{"the least", Settings{}, setup(1, offer(4096, 4096, false)), rpcrdma.Setup{Credit: 1, Properties: accept(4096, 4096, true)}, 4096, 4096},
		{"as many credits as there are receives", Settings{Credits: 64}, setup(100, offer(4096, 4096, true)),
			rpcrdma.Setup{Credit: initialGrant, Properties: accept(4096, 4096, true)}, 4096, 4096},
		{"longer messages", Settings{InlineSend: 16384, InlineRecv: 16384}, setup(2, offer(8192, 12288, true)),
			rpcrdma.Setup{Credit: 2, Properties: accept(16384, 16384, true)}, 12288, 8192},
		{"Version2, few credits", Settings{Version: Version2, Credits: 2}, setup(100, offer(4096, 4096, true)),
			rpcrdma.Setup{Credit: 2, Properties: accept(4096, 4096, true)}, 4096, 4096},
	} {
		t.Run(tt.name, func(t *testing.T) {
			auto(t, greeting(t, tt.hello), &tt.cfg, func(p *peer, s *Server, _ *testService) {
				if got, ok := rpcrdma.FindSetup(p.got, rpcrdma.PropAccept); !ok || got != tt.accepts {
					t.Fatalf("private data is %x: %+v, want %+v", p.got, got, tt.accepts)
				}
				if got := p.posted(); got < int(tt.accepts.Credit) {
					t.Errorf("%d receives for %d credits", got, tt.accepts.Credit)
				}
				i := theConn(s).info()
				if i.Version != 2 || !i.Properties || i.InlineSend != tt.send || i.InlineRecv != tt.recv {
					t.Errorf("ConnInfo is %+v", i)
				}
				// The first message, and the reply to it, may be as long as both can take.
				args := make([]byte, min(tt.send, tt.recv)-rpcrdma.MinHeaderSize-40)
				p.send(callBytes(rpcrdma.Header{XID: 3, Vers: 2}, procArgs, args...), 0)
				if h, results := p.replies(3, "the reply"); h.Proc != rpcrdma.ProcMsg || h.Vers != 2 || len(results) != len(args) {
					t.Errorf("the reply is %+v with %d bytes", h, len(results))
				}
				// It was this connection's offer.
				again := rpcrdma.AppendProperties(nil, offer(8192, 8192, false))
				if got := p.tells(again); got != reject(rpcrdma.PropNotNow) {
					t.Errorf("the answer to another offer is %+v", got)
				}
				if tt.cfg.Version == VersionAuto {
					p.proves(9, 1) // a call in another version is answered in that
				}
			})
		})
	}
	for name, b := range map[string][]byte{
		"no offer":             hello(true, 4096, 4096),
		"an acceptance":        setup(3, accept(4096, 4096, true)),
		"no credit":            setup(0, offer(4096, 4096, true)),
		"too small a size":     setup(3, offer(4096, 4092, true)),
		"an offer cut short":   setup(3, offer(4096, 4096, true))[:31],
		"behind others' octet": append([]byte{0x8d}, setup(3, rpcrdma.Properties{Dir: rpcrdma.PropAccept, SendSize: 4096, RecvSize: 4096})...),
	} {
		t.Run("not accepted: "+name, func(t *testing.T) {
			auto(t, greeting(t, b), &Settings{}, func(p *peer, s *Server, _ *testService) {
				if len(p.got) != rpcrdma.PrivateDataSize || theConn(s).version() != 0 {
					t.Errorf("private data is %x, the version is %d", p.got, theConn(s).version())
				}
				if got := p.tells(rpcrdma.AppendProperties(nil, offer(8192, 8192, true))); got != accept(4096, 4096, true) {
					t.Errorf("the answer to an offer by message is %+v", got)
				}
			})
		})
	}
}

// TestSetupAnew checks that each connection has a separate setup, and that a server that has accepted once may return
// without support for setup messages.
func TestSetupAnew(t *testing.T) {
	dialsTo(t, greeting(t, setup(3, accept(8192, 8192, true))), &Settings{InlineSend: 8192, InlineRecv: 8192}, func(d *dialing, p *peer) {
		cl := d.client()
		for _, vers := range []uint32{2, 1} {
			q := d.another()
			p.hangUp()
			synctest.Wait()
			done := async(cl, bg, testCall())
			p = q
			p.waited()
			if vers == 2 {
				p.speaks2()
				p.unheardOffer()
			} else {
				p.speaks(1, 1)
			}
			h, _ := p.message("the call")
			p.reply(rpcrdma.Header{XID: h.XID, Vers: vers, Credit: 1})
			if err := outcome(t, done); err != nil || h.Vers != vers {
				t.Errorf("a call of version %d returned %v", h.Vers, err)
			}
			if i := cl.Info(); i.Version != vers || i.Properties || i.InlineSend != 4096 && vers == 2 {
				t.Errorf("ConnInfo is %+v", i)
			}
		}
	})
}
