package transport

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rpcrdma/rpcrdma/iwarp"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/rpcrdma"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
	"github.com/rpcrdma/rpcrdma/rpc"
)

// The Connection Configuration Protocol of RFC 5666 section 6. Its messages are tested
// in proto/rpcrdma.

// configures is cfg with the protocol turned on.
func configures(cfg Settings, f ConfigProtocol) *Settings {
	var o RFC5666
	if cfg.RFC5666 != nil {
		o = *cfg.RFC5666
	}
	o.ConfigProtocol = &f
	cfg.RFC5666 = &o
	return &cfg
}

// configuring has a client dial the test: answer is given Dial's call, and script the
// outcome of Dial.
func configuring(t *testing.T, p *peer, cfg *Settings, answer func(p *peer, xid uint32, c rpcrdma.ConfigCall), script func(p *peer, cl *Client, err error)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		p.t = t
		p.changed = make(chan struct{})
		var cl *Client
		dialed := make(chan error, 1)
		go func() {
			var err error
			cl, err = Dial(bg, p, "script:20049", once(cfg).Client())
			dialed <- err
		}()
		h, payload := p.message("CONF_RDMA")
		var call oncrpc.CallHeader
		n, err := oncrpc.ConsumeCall(payload, &call)
		if err != nil || h.Proc != rpcrdma.ProcMsg || call.Prog != 100417 || call.Vers != 1 || call.Proc != 1 {
			t.Fatalf("the first call is %+v %+v, %v", h, call, err)
		}
		args, k, err := rpcrdma.ConsumeConfigCall(payload[n:])
		if err != nil || k != len(payload)-n {
			t.Fatalf("arguments are %x", payload[n:])
		}
		p.quiet("Dial waits for the reply")
		answer(p, h.XID, args)
		err = outcome(t, dialed)
		if (err == nil) != (cl != nil) {
			t.Fatalf("Dial returned %v and %v", cl, err)
		}
		if cl != nil {
			defer func() {
				cl.Close()
				checkArena(t, cl.conn())
			}()
		}
		script(p, cl, err)
	})
}

// configured is configuring with a server that answers r.
func configured(t *testing.T, p *peer, cfg *Settings, r rpcrdma.ConfigReply, script func(p *peer, cl *Client)) {
	t.Helper()
	configuring(t, p, cfg, func(p *peer, xid uint32, _ rpcrdma.ConfigCall) {
		p.reply(rpcrdma.Header{XID: xid}, rpcrdma.AppendConfigReply(nil, r)...)
	}, func(p *peer, cl *Client, err error) {
		if err != nil {
			t.Fatal(err)
		}
		if i := cl.Info(); !i.Configured || i.ConfigError != nil || i.PeerReads != int(r.MaxReads) || i.PeerAlign != int(r.Align) {
			t.Errorf("connection is %+v", i)
		}
		script(p, cl)
	})
}

// silentPeer is one without private data.
func silentPeer(t *testing.T) *peer { return greeting(t, nil) }

// sized makes a call with a message of size bytes if it goes inline.
func sized(size int) *rpc.Call {
	return &rpc.Call{Prog: testProg, Vers: 1, Args: letters(size - 28 - 40)}
}

// thresholdIs checks the longest message that a client sends inline, and that a longer
// one goes into read chunks as a whole.
func thresholdIs(t *testing.T, p *peer, cl *Client, size int) {
	t.Helper()
	if i := cl.Info(); i.InlineSend != size {
		t.Errorf("InlineSend is %d, want %d", i.InlineSend, size)
	}
	for _, n := range []int{size, size + 1} {
		call := sized(n)
		done := async(cl, bg, call)
		s := p.next("a call")
		var h rpcrdma.Header
		k, err := rpcrdma.ConsumeHeader(s.msg, &h, nil)
		if err != nil {
			t.Fatal(err)
		}
		msg := s.msg[k:]
		if inline := h.Proc == rpcrdma.ProcMsg; inline != (n <= size) || inline && len(s.msg) != n {
			t.Errorf("a message of %d bytes is sent as %v, %d bytes; the threshold is %d", n, h.Proc, len(s.msg), size)
		}
		if h.Proc == rpcrdma.ProcNomsg {
			msg = p.read(h.Reads)
		}
		if !bytes.Equal(msg[40:], call.Args) {
			t.Errorf("the arguments of %d bytes arrive differently", n)
		}
		p.reply(rpcrdma.Header{XID: h.XID})
		if err := outcome(t, done); err != nil {
			t.Error(err)
		}
	}
}

// configuresAll is cfg with the protocol turned on, in its default form.
func configuresAll(cfg Settings) *Settings { return configures(cfg, ConfigProtocol{}) }

// TestConfigureClientFirst checks that CONF_RDMA is the first call, and that nothing else is sent before its reply.
func TestConfigureClientFirst(t *testing.T) {
	t.Run("CCP-6.1-1 CCP-6.2-1 CCP-6.2-2 the first call says what the client wants, and others follow it", func(t *testing.T) {
		var got []byte
		cfg := configures(Settings{InlineSend: 4096, InlineRecv: 8192}, ConfigProtocol{MaxReads: 3})
		configuring(t, silentPeer(t), cfg, func(p *peer, xid uint32, c rpcrdma.ConfigCall) {
			got = rpcrdma.AppendConfigCall(nil, c)
			p.reply(rpcrdma.Header{XID: xid}, rpcrdma.AppendConfigReply(nil, rpcrdma.ConfigReply{MaxCall: 4096, MaxReads: 9})...)
		}, func(p *peer, cl *Client, err error) {
			if want := []byte{0, 0, 0x10, 0, 0, 0, 0x20, 0, 0, 0, 0, 3}; err != nil || !bytes.Equal(got, want) {
				t.Fatalf("%v; arguments are %x, want %x", err, got, want)
			}
			done := async(cl, bg, &rpc.Call{Prog: testProg, Vers: 1})
			h, payload := p.message("a call of the program")
			if word(payload, 3) != testProg {
				t.Errorf("call is %x", payload)
			}
			p.reply(rpcrdma.Header{XID: h.XID})
			if err := outcome(t, done); err != nil {
				t.Error(err)
			}
		})
	})

	t.Run("CCP-6.1-2 CCP-6.1-3 CCP-6.1-4 there is one call until its reply has come, however late", func(t *testing.T) {
		configuring(t, silentPeer(t), configuresAll(Settings{}), func(p *peer, xid uint32, _ rpcrdma.ConfigCall) {
			time.Sleep(2 * time.Second)
			p.quiet("there is no reply yet")
			p.reply(rpcrdma.Header{XID: xid, Credit: 3}, rpcrdma.AppendConfigReply(nil, rpcrdma.ConfigReply{MaxCall: 1024, MaxReads: 1})...)
		}, func(p *peer, cl *Client, err error) {
			if err != nil {
				t.Fatal(err)
			}
			for range 10 {
				async(cl, bg, &rpc.Call{Prog: testProg, Vers: 1})
			}
			for range 3 {
				p.message("a call within the grant")
			}
			p.quiet("the reply granted three")
		})
	})

	t.Run("CCP-6.1-3 CCP-6.1-4 RDMA_ERROR does not open the window", func(t *testing.T) {
		configuring(t, silentPeer(t), configuresAll(Settings{}), func(p *peer, xid uint32, _ rpcrdma.ConfigCall) {
			p.send(rpcrdma.AppendHeader(nil, &rpcrdma.Header{XID: xid, Vers: 1, Credit: 100, Proc: rpcrdma.ProcError, Err: rpcrdma.ErrChunk}), 0)
		}, func(p *peer, cl *Client, err error) {
			if err != nil {
				t.Fatal(err)
			}
			for range 10 {
				async(cl, bg, &rpc.Call{Prog: testProg, Vers: 1})
			}
			p.message("one call")
			p.quiet("there has been no valid reply")
		})
	})

	t.Run("CCP-11-1 a credential goes with the call", func(t *testing.T) {
		sys := oncrpc.AuthSys{Machine: "m"}
		cred := sys.Auth()
		synctest.Test(t, func(t *testing.T) {
			p := silentPeer(t)
			dialed := make(chan error, 1)
			go func() {
				cl, err := Dial(bg, p, "script:20049", configures(Settings{}, ConfigProtocol{Cred: cred}).Client())
				if err == nil {
					cl.Close()
				}
				dialed <- err
			}()
			h, payload := p.message("CONF_RDMA")
			var call oncrpc.CallHeader
			if _, err := oncrpc.ConsumeCall(payload, &call); err != nil || call.Cred.Flavor != oncrpc.FlavorSys || !bytes.Equal(call.Cred.Body, cred.Body) {
				t.Errorf("call is %+v, %v", call, err)
			}
			p.reply(rpcrdma.Header{XID: h.XID}, make([]byte, 12)...)
			if err := outcome(t, dialed); err != nil {
				t.Error(err)
			}
		})
	})
}

// TestConfigureClientSizes checks that a client keeps to the sizes in the reply.
func TestConfigureClientSizes(t *testing.T) {
	for _, tt := range []struct {
		own    int
		server uint32
		want   int
	}{
		{4096, 2048, 2048}, // smaller than what was asked for
		{8192, 8192, 8192},
		{4096, 8192, 4096}, // larger, which obliges to nothing
		{4096, 1<<32 - 1, 4096},
		{4096, 1501, 1501},
		{4096, 600, 600},
	} {
		t.Run("CCP-6.2-4 CCP-6.2-5 CCP-6.2-11 calls are inline up to what the server returned", func(t *testing.T) {
			configured(t, silentPeer(t), configuresAll(Settings{InlineSend: tt.own}), rpcrdma.ConfigReply{MaxCall: tt.server, MaxReads: 16}, func(p *peer, cl *Client) {
				thresholdIs(t, p, cl, tt.want)
			})
		})
	}

	t.Run("CCP-6.2-5 a server that accepts nothing inline is sent nothing", func(t *testing.T) {
		configured(t, silentPeer(t), configuresAll(Settings{}), rpcrdma.ConfigReply{MaxReads: 16}, func(p *peer, cl *Client) {
			var size *rpc.SizeError
			if err := outcome(t, async(cl, bg, &rpc.Call{Prog: testProg, Vers: 1})); !errors.As(err, &size) {
				t.Errorf("the call returned %v", err)
			}
			p.quiet("not even a header fits")
		})
	})

	t.Run("CCP-6.2-6 the size does not limit long calls", func(t *testing.T) {
		configured(t, silentPeer(t), configuresAll(Settings{}), rpcrdma.ConfigReply{MaxCall: 1024, MaxReads: 16}, func(p *peer, cl *Client) {
			call := &rpc.Call{Prog: testProg, Vers: 1, Args: letters(2 << 20)}
			done := async(cl, bg, call)
			h, _ := p.message("a long call")
			if got := p.read(h.Reads); h.Proc != rpcrdma.ProcNomsg || !bytes.Equal(got[40:], call.Args) {
				t.Errorf("sent as %v, %d bytes in chunks", h.Proc, len(got))
			}
			p.reply(rpcrdma.Header{XID: h.XID})
			if err := outcome(t, done); err != nil {
				t.Error(err)
			}
		})
	})

	t.Run("CCP-6.2-7 replies as long as was asked for need no chunk", func(t *testing.T) {
		configured(t, silentPeer(t), configuresAll(Settings{InlineRecv: 8192}), rpcrdma.ConfigReply{MaxCall: 1024, MaxReads: 16}, func(p *peer, cl *Client) {
			if i := cl.Info(); i.InlineRecv != 8192 {
				t.Errorf("InlineRecv is %d", i.InlineRecv)
			}
			const head = 28 + 32 // the most that the headers of a reply take
			for _, n := range []int{8192 - head, 8192 - head + 1} {
				call := &rpc.Call{Prog: testProg, Vers: 1, MaxResults: n}
				done := async(cl, bg, call)
				h, _ := p.message("a call")
				if h.HasReply != (n > 8192-head) {
					t.Errorf("%d bytes of results: reply chunk: %v", n, h.HasReply)
				}
				results := letters(8192 - 28 - 24)
				p.reply(rpcrdma.Header{XID: h.XID}, results...)
				if err := outcome(t, done); err != nil || !bytes.Equal(call.Results, results) {
					t.Errorf("%v, %d bytes of results", err, len(call.Results))
				}
			}
		})
	})

	for _, tt := range []struct {
		server, want int
		silent       bool
	}{{2048, 2048, false}, {4096, 4096, false}, {8192, 4096, false}, {8192, 4096, true}} {
		t.Run("CCP-6.2-4 CCP-6.2-5 what private data has agreed on is not exceeded", func(t *testing.T) {
			var asked rpcrdma.ConfigCall
			configuring(t, greeting(t, hello(false, 2048, 4096)), configuresAll(Settings{NoPrivateData: tt.silent, InlineSend: 8192, InlineRecv: 8192}), func(p *peer, xid uint32, c rpcrdma.ConfigCall) {
				asked = c
				p.reply(rpcrdma.Header{XID: xid}, rpcrdma.AppendConfigReply(nil, rpcrdma.ConfigReply{MaxCall: uint32(tt.server), MaxReads: 16})...)
			}, func(p *peer, cl *Client, err error) {
				if err != nil || asked.MaxCall != 4096 || asked.MaxReply != 2048 {
					t.Fatalf("%v, arguments are %+v", err, asked)
				}
				if i := cl.Info(); i.InlineRecv != 2048 {
					t.Errorf("InlineRecv is %d", i.InlineRecv)
				}
				thresholdIs(t, p, cl, tt.want)
			})
		})
	}

	for _, tt := range []struct {
		o      RFC5666
		server uint32
		want   int // 0: RDMA_MSG
	}{
		{RFC5666{Thresh: 512}, 4096, 4096},
		{RFC5666{Thresh: 512}, 64, 64},
		{RFC5666{Thresh: 512}, 1, 0},
		{RFC5666{Thresh: 512}, 0, 0},
		{RFC5666{Thresh: 512}, 1 << 16, 1 << 16},
		{RFC5666{Thresh: 512}, 1<<16 + 1, 0},
		{RFC5666{Thresh: 512, Align: 128}, 64, 128},
		{RFC5666{Thresh: 512, Align: 1}, 64, 0},
		{RFC5666{}, 4096, 0},
	} {
		t.Run("CCP-6.2-10 the server's alignment is for RDMA_MSGP, if that is on and has no other", func(t *testing.T) {
			configured(t, silentPeer(t), configuresAll(Settings{RFC5666: &tt.o, InlineSend: 1 << 18}), rpcrdma.ConfigReply{MaxCall: 1 << 18, Align: tt.server, MaxReads: 16}, func(p *peer, cl *Client) {
				data := letters(1000)
				async(cl, bg, &rpc.Call{Prog: testProg, Vers: 1, Args: xdr.AppendUint32(nil, 1000), ReadItems: []rpc.ReadItem{{Offset: 4, Data: data}}})
				h, payload := p.message("the call")
				at := bytes.Index(payload, data)
				switch {
				case tt.want == 0 && (h.Proc != rpcrdma.ProcMsg || at != 44):
					t.Errorf("%+v, server's %d: sent as %v, data at %d", tt.o, tt.server, h.Proc, at)
				case tt.want != 0 && (h.Proc != rpcrdma.ProcMsgp || int(h.Align) != tt.want || h.Thresh != 512 || at != max(64, tt.want)):
					t.Errorf("%+v, server's %d: sent as %+v, data at %d", tt.o, tt.server, h, at)
				}
			})
		})
	}
}

// TestConfigureClientReads checks that a client keeps to the numbers of RDMA Reads that both ends state.
func TestConfigureClientReads(t *testing.T) {
	for most, want := range map[int]uint32{0: 4, 1: 1, 4: 4, 1000: 4} {
		t.Run("CCP-6.2-8 a client announces no more Reads than its adapter serves", func(t *testing.T) {
			configuring(t, silentPeer(t), configures(Settings{}, ConfigProtocol{MaxReads: most}), func(p *peer, xid uint32, c rpcrdma.ConfigCall) {
				if c.MaxReads != want {
					t.Errorf("%d Reads are announced, want %d", c.MaxReads, want)
				}
				p.reply(rpcrdma.Header{XID: xid}, make([]byte, 12)...)
			}, func(*peer, *Client, error) {})
		})
	}

	for _, tt := range []struct {
		f     ConfigProtocol
		reads uint32 // the server's
	}{{ConfigProtocol{}, 0}, {ConfigProtocol{NoReads: true}, 16}} {
		t.Run("CCP-6.2-9 where no Reads are served there is no read list", func(t *testing.T) {
			configuring(t, silentPeer(t), configures(Settings{}, tt.f), func(p *peer, xid uint32, c rpcrdma.ConfigCall) {
				if tt.f.NoReads != (c.MaxReads == 0) {
					t.Errorf("arguments are %+v", c)
				}
				p.reply(rpcrdma.Header{XID: xid}, rpcrdma.AppendConfigReply(nil, rpcrdma.ConfigReply{MaxCall: 4096, MaxReads: tt.reads})...)
			}, func(p *peer, cl *Client, err error) {
				if err != nil {
					t.Fatal(err)
				}
				for name, call := range map[string]*rpc.Call{
					"a long call":          sized(4097),
					"a call with an item":  {Prog: testProg, Vers: 1, Args: xdr.AppendUint32(nil, 5000), ReadItems: []rpc.ReadItem{{Offset: 4, Data: letters(5000)}}},
					"a call with a window": {Prog: testProg, Vers: 1, Args: letters(5000), WriteItems: []rpc.WriteItem{{Buf: make([]byte, 9000)}}},
				} {
					var size *rpc.SizeError
					if err := outcome(t, async(cl, bg, call)); !errors.As(err, &size) || size.Limit != 4096 || size.Size <= 4096 {
						t.Errorf("%s returned %v", name, err)
					}
				}
				p.quiet("nothing of it may be sent")
				done := async(cl, bg, sized(4096))
				h, _ := p.message("what fits inline")
				p.reply(rpcrdma.Header{XID: h.XID})
				if err := outcome(t, done); err != nil || p.openWindows() != 0 {
					t.Errorf("%v, %d windows are open", err, p.openWindows())
				}
				// Nor in a reply.
				done = async(cl, bg, &rpc.Call{Prog: testProg, Vers: 1})
				h, _ = p.message("a call")
				p.reply(rpcrdma.Header{XID: h.XID, Reads: []rpcrdma.ReadSegment{{Position: 24, Segment: p.offer(1, letters(100))}}})
				p.message("RDMA_DONE")
				var bad *rpc.BadReplyError
				if err := outcome(t, done); !errors.As(err, &bad) || p.maxOut != 0 {
					t.Errorf("the call returned %v after %d Reads", err, p.maxOut)
				}
			})
		})
	}

	for _, tt := range []struct{ server, want int }{{2, 2}, {3, 3}, {100, 4}} {
		t.Run("CCP-6.2-8 a client's Reads at once are no more than the server serves", func(t *testing.T) {
			configured(t, silentPeer(t), configuresAll(Settings{}), rpcrdma.ConfigReply{MaxCall: 4096, MaxReads: uint32(tt.server)}, func(p *peer, cl *Client) {
				p.noReads = true
				call := &rpc.Call{Prog: testProg, Vers: 1}
				done := async(cl, bg, call)
				h, _ := p.message("a call")
				r := rpcrdma.Header{XID: h.XID}
				for i := range 10 {
					r.Reads = append(r.Reads, rpcrdma.ReadSegment{Position: 24, Segment: p.offer(uint32(i+1), letters(8))})
				}
				p.reply(r)
				p.readAll()
				p.message("RDMA_DONE")
				if err := outcome(t, done); err != nil || len(call.Results) != 80 || p.maxOut != tt.want {
					t.Errorf("%v, %d bytes, %d Reads at once, want %d", err, len(call.Results), p.maxOut, tt.want)
				}
			})
		})
	}
}

// TestConfigureClientWithout checks that the server need not support the protocol, and that other failures of the call
// make Dial fail.
func TestConfigureClientWithout(t *testing.T) {
	t.Run("CCP-6.1-2 without the protocol a message has 1024 bytes, and the first call is the program's", func(t *testing.T) {
		for _, cfg := range []*Settings{nil, {RFC5666: &RFC5666{}}} {
			clientOf(t, silentPeer(t), cfg, func(p *peer, cl *Client) {
				p.quiet("nobody has called")
				thresholdIs(t, p, cl, 1024)
			})
		}
	})

	for name, answer := range map[string]func(xid uint32) []byte{
		"PROG_UNAVAIL":  rejection(oncrpc.ReplyHeader{AcceptStat: oncrpc.ProgUnavail}),
		"PROG_MISMATCH": rejection(oncrpc.ReplyHeader{AcceptStat: oncrpc.ProgMismatch, Low: 2, High: 3}),
		"PROC_UNAVAIL":  rejection(oncrpc.ReplyHeader{AcceptStat: oncrpc.ProcUnavail}),
		"AUTH_TOOWEAK":  rejection(oncrpc.ReplyHeader{Stat: oncrpc.MsgDenied, RejectStat: oncrpc.AuthError, AuthStat: oncrpc.AuthTooWeak}),
		"ERR_CHUNK": func(xid uint32) []byte {
			return rpcrdma.AppendHeader(nil, &rpcrdma.Header{XID: xid, Vers: 1, Credit: 1, Proc: rpcrdma.ProcError, Err: rpcrdma.ErrChunk})
		},
		"ERR_VERS": func(xid uint32) []byte {
			return rpcrdma.AppendHeader(nil, &rpcrdma.Header{XID: xid, Vers: 1, Credit: 1, Proc: rpcrdma.ProcError, Err: rpcrdma.ErrVers, VersLow: 1, VersHigh: 1})
		},
	} {
		t.Run("CCP-6-3 a server without it changes nothing/"+name, func(t *testing.T) {
			configuring(t, silentPeer(t), configuresAll(Settings{}), func(p *peer, xid uint32, _ rpcrdma.ConfigCall) {
				p.send(answer(xid), 0)
			}, func(p *peer, cl *Client, err error) {
				if err != nil {
					t.Fatal(err)
				}
				if i := cl.Info(); i.Configured || i.ConfigError == nil || i.InlineRecv != 1024 {
					t.Errorf("connection is %+v", i)
				}
				thresholdIs(t, p, cl, 1024)
			})
		})
	}

	for _, n := range []int{0, 8, 16} {
		t.Run("a reply that makes no sense fails Dial", func(t *testing.T) {
			configuring(t, silentPeer(t), configuresAll(Settings{}), func(p *peer, xid uint32, _ rpcrdma.ConfigCall) {
				p.reply(rpcrdma.Header{XID: xid}, make([]byte, n)...)
			}, func(p *peer, cl *Client, err error) {
				var bad *rpc.BadReplyError
				var dial *DialError
				if !errors.As(err, &bad) || !errors.As(err, &dial) || !p.over() {
					t.Errorf("Dial returned %v", err)
				}
			})
		})
	}

	t.Run("a connection that ends fails Dial", func(t *testing.T) {
		configuring(t, silentPeer(t), configuresAll(Settings{}), func(p *peer, _ uint32, _ rpcrdma.ConfigCall) { p.hangUp() },
			func(p *peer, cl *Client, err error) {
				if !errors.Is(err, net.ErrClosed) {
					t.Errorf("Dial returned %v", err)
				}
			})
	})

	t.Run("Dial's context bounds the call", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			p := silentPeer(t)
			ctx, cancel := context.WithTimeout(bg, 5*time.Second)
			defer cancel()
			if _, err := Dial(ctx, p, "script:20049", configuresAll(Settings{}).Client()); !errors.Is(err, context.DeadlineExceeded) || !p.over() {
				t.Errorf("Dial returned %v", err)
			}
		})
	})
}

// rejection is a reply of RPC that is not a success.
func rejection(h oncrpc.ReplyHeader) func(xid uint32) []byte {
	return func(xid uint32) []byte {
		h.XID = xid
		return oncrpc.AppendReply(rpcrdma.AppendHeader(nil, &rpcrdma.Header{XID: xid, Vers: 1, Credit: 1}), &h)
	}
}

// readAll executes the Reads that are held back, until none is left.
func (p *peer) readAll() {
	for {
		synctest.Wait()
		p.mu.Lock()
		if len(p.holdRead) == 0 {
			p.mu.Unlock()
			return
		}
		p.doReads()
		p.notify()
		p.mu.Unlock()
	}
}

// confCall is a call of CONFIG_RDMA_PROG; edit may change its header.
func confCall(xid uint32, edit func(*oncrpc.CallHeader), args ...byte) []byte {
	h := oncrpc.CallHeader{XID: xid, RPCVers: 2, Prog: 100417, Vers: 1, Proc: 1}
	if edit != nil {
		edit(&h)
	}
	b := rpcrdma.AppendHeader(nil, &rpcrdma.Header{XID: xid, Vers: 1, Credit: 8})
	return append(oncrpc.AppendCall(b, &h), args...)
}

// configure has the server configure the connection and returns the answer.
func (p *peer) configure(c rpcrdma.ConfigCall) rpcrdma.ConfigReply {
	p.t.Helper()
	p.send(confCall(77, nil, rpcrdma.AppendConfigCall(nil, c)...), 0)
	_, payload := p.message("the reply of CONF_RDMA")
	results := accepted(p.t, payload, 77)
	r, n, err := rpcrdma.ConsumeConfigReply(results)
	if err != nil || n != len(results) {
		p.t.Fatalf("results are %x", results)
	}
	return r
}

// repliesUpTo checks the longest reply that a server sends inline: a longer one goes to the reply
// chunk, and is refused without one.
func (p *peer) repliesUpTo(size int) {
	p.t.Helper()
	for _, chunk := range []bool{false, true} {
		for _, n := range []int{size, size + 1} {
			h := rpcrdma.Header{XID: 5}
			head := 28 + 24
			if chunk {
				h.HasReply, h.Reply = true, rpcrdma.WriteChunk{p.offer(0x99, make([]byte, 1<<15))}
				head += 4 + 16
			}
			p.send(callBytes(h, procLongBytes, xdr.AppendUint32(nil, uint32(n-head))...), 0)
			s := p.next("the reply")
			proc := rpcrdma.Proc(word(s.msg, 3))
			want := rpcrdma.ProcMsg
			if n > size {
				want = rpcrdma.ProcError
				if chunk {
					want = rpcrdma.ProcNomsg
				}
			}
			if proc != want || proc == rpcrdma.ProcMsg && len(s.msg) != n || len(s.msg) > size {
				p.t.Errorf("a reply of %d bytes, with a reply chunk: %v, is sent as %v of %d bytes, want %v", n, chunk, proc, len(s.msg), want)
			}
		}
	}
}

// procLongBytes answers as many bytes as its argument says.
const procLongBytes = 20

// configServer is a server with the protocol and a program for it to show in.
func configServer(t *testing.T, p *peer, cfg *Settings, script func(p *peer, svc *testService)) {
	t.Helper()
	svc := &testService{}
	prog := svc.program()
	prog.Inline = nil // the limits are those that goroutines see, too
	prog.Handler = rpc.HandlerFunc(func(ctx context.Context, req *rpc.Request, res *rpc.Response) {
		if req.Proc == procLongBytes {
			d := xdr.NewDecoder(req.Args)
			res.Results = append(res.Results, letters(int(d.Uint32()))...)
			return
		}
		svc.ServeRPC(ctx, req, res)
	})
	serverOf(t, p, cfg, []rpc.Program{prog}, func(p *peer, _ *Server) {
		svc.gate = make(chan struct{})
		script(p, svc)
	})
}

// configArgs are the arguments of a call that asks for 4096 bytes in both directions.
func configArgs() []byte {
	return rpcrdma.AppendConfigCall(nil, rpcrdma.ConfigCall{MaxCall: 4096, MaxReply: 4096, MaxReads: 16})
}

// outcomeOf sends a call and returns the RPC header of its reply.
func (p *peer) outcomeOf(msg []byte) (h oncrpc.ReplyHeader) {
	p.t.Helper()
	p.send(msg, 0)
	_, payload := p.message("the answer")
	if _, err := oncrpc.ConsumeReply(payload, &h); err != nil {
		p.t.Fatal(err)
	}
	return h
}

// callsWithReads sends a call that the server fetches with twelve RDMA Reads.
func (p *peer) callsWithReads() {
	h := rpcrdma.Header{XID: 9}
	for i := range 12 {
		h.Reads = append(h.Reads, rpcrdma.ReadSegment{Position: 44, Segment: p.offer(uint32(i+1), letters(8))})
	}
	p.send(callBytes(h, procArgs, xdr.AppendUint32(nil, 96)...), 0)
}

// TestConfigureServer checks the replies of servers with and without the protocol.
func TestConfigureServer(t *testing.T) {
	want := configArgs()

	t.Run("CCP-6-3 CCP-6.1-2 a server without it has no such program, and takes and makes messages of 1024 bytes", func(t *testing.T) {
		for _, cfg := range []*Settings{nil, {RFC5666: &RFC5666{}}} {
			configServer(t, silentPeer(t), cfg, func(p *peer, _ *testService) {
				msg := callBytes(rpcrdma.Header{XID: 4}, procArgs, letters(1024-28-40)...)
				p.send(msg, 0)
				if _, payload := p.message("the reply"); len(msg) != 1024 || !bytes.Equal(accepted(t, payload, 4), letters(1024-28-40)) {
					t.Error("a call of 1024 bytes is not answered")
				}
				if h := p.outcomeOf(confCall(3, nil, want...)); h.Stat != oncrpc.MsgAccepted || h.AcceptStat != oncrpc.ProgUnavail {
					t.Errorf("answer is %+v", h)
				}
				p.repliesUpTo(1024)
			})
		}
	})

	t.Run("CCP-6.1-3 a fresh connection has a receive for the call", func(t *testing.T) {
		configServer(t, silentPeer(t), configuresAll(Settings{Credits: 1}), func(p *peer, _ *testService) {
			if n := p.posted(); n < 1 {
				t.Errorf("%d receives", n)
			}
			p.send(confCall(3, nil, want...), 0)
			if h, _ := p.message("the reply"); h.Credit != 1 {
				t.Errorf("grant is %d", h.Credit)
			}
		})
	})

	t.Run("CCP-6.2-1 CCP-6.2-3 the reply, byte by byte", func(t *testing.T) {
		cfg := configures(Settings{InlineRecv: 8192}, ConfigProtocol{Align: 64, MaxReads: 3})
		configServer(t, silentPeer(t), cfg, func(p *peer, _ *testService) {
			p.send(confCall(3, nil, want...), 0)
			_, payload := p.message("the reply")
			if got, want := accepted(t, payload, 3), []byte{0, 0, 0x20, 0, 0, 0, 0, 0x40, 0, 0, 0, 3}; !bytes.Equal(got, want) {
				t.Errorf("results are %x, want %x", got, want)
			}
		})
	})

	t.Run("CTX-5531-3 CCP-6.2-1 procedure 0, and what is not in the program", func(t *testing.T) {
		configServer(t, silentPeer(t), configuresAll(Settings{}), func(p *peer, _ *testService) {
			for _, tt := range []struct {
				edit func(*oncrpc.CallHeader)
				args []byte
				want oncrpc.ReplyHeader
			}{
				{func(c *oncrpc.CallHeader) { c.Proc = 0 }, nil, oncrpc.ReplyHeader{}},
				{func(c *oncrpc.CallHeader) { c.Proc = 2 }, want, oncrpc.ReplyHeader{AcceptStat: oncrpc.ProcUnavail}},
				{func(c *oncrpc.CallHeader) { c.Vers = 2 }, want, oncrpc.ReplyHeader{AcceptStat: oncrpc.ProgMismatch, Low: 1, High: 1}},
				{func(c *oncrpc.CallHeader) { c.Vers = 0 }, want, oncrpc.ReplyHeader{AcceptStat: oncrpc.ProgMismatch, Low: 1, High: 1}},
				{nil, want[:8], oncrpc.ReplyHeader{AcceptStat: oncrpc.GarbageArgs}},
				{nil, append(bytes.Clone(want), 0, 0, 0, 0), oncrpc.ReplyHeader{AcceptStat: oncrpc.GarbageArgs}},
			} {
				got := p.outcomeOf(confCall(3, tt.edit, tt.args...))
				if got.Stat != tt.want.Stat || got.AcceptStat != tt.want.AcceptStat || got.Low != tt.want.Low || got.High != tt.want.High {
					t.Errorf("answer is %+v, want %+v", got, tt.want)
				}
			}
			p.repliesUpTo(1024)
		})
	})

	t.Run("CCP-6.1-1 while other calls are being answered nothing changes", func(t *testing.T) {
		configServer(t, silentPeer(t), configuresAll(Settings{}), func(p *peer, svc *testService) {
			p.send(callBytes(rpcrdma.Header{XID: 8}, procHold), 0)
			p.quiet("the call is held")
			all := rpcrdma.ConfigCall{MaxCall: 4096, MaxReply: 4096, MaxReads: 1}
			if r := p.configure(all); r.MaxCall != 1024 {
				t.Errorf("reply is %+v", r)
			}
			p.repliesUpTo(1024)
			close(svc.gate)
			p.message("the reply of the call that was held")
			if r := p.configure(all); r.MaxCall != 4096 {
				t.Errorf("reply is %+v", r)
			}
			p.repliesUpTo(4096)

			p.noReads = true
			p.callsWithReads()
			p.quiet("the call is being fetched")
			if r := p.configure(rpcrdma.ConfigCall{}); r.MaxCall != 4096 {
				t.Errorf("reply is %+v", r)
			}
			p.readAll()
			if h, _ := p.message("the reply"); h.Proc != rpcrdma.ProcMsg || p.maxOut != 1 {
				t.Errorf("the reply is %+v after %d Reads at once", h, p.maxOut)
			}
			p.repliesUpTo(4096)
		})
	})
}

// TestConfigureServerSizes checks that a server keeps to the agreed sizes.
func TestConfigureServerSizes(t *testing.T) {
	for _, tt := range []struct {
		hello []byte
		asked uint32
		want  uint32
	}{
		{nil, 2048, 8192}, {nil, 8192, 8192}, {nil, 16384, 8192}, {nil, 0, 8192},
		{hello(false, 4096, 4096), 8192, 4096}, // CCP after private data only lowers
		{hello(false, 16384, 4096), 2048, 8192},
	} {
		t.Run("CCP-6.2-4 a server returns what its receives take, less than asked for or more", func(t *testing.T) {
			configServer(t, greeting(t, tt.hello), configuresAll(Settings{InlineRecv: 8192}), func(p *peer, _ *testService) {
				if r := p.configure(rpcrdma.ConfigCall{MaxCall: tt.asked, MaxReply: 1024, MaxReads: 1}); r.MaxCall != tt.want || r.MaxReads != 4 || r.Align != 0 {
					t.Errorf("asked for %d: %+v, want %d", tt.asked, r, tt.want)
				}
				msg := callBytes(rpcrdma.Header{XID: 4}, procSink, letters(int(tt.want)-28-40)...)
				p.send(msg, 0)
				if h, _ := p.message("the reply"); h.XID != 4 || h.Proc != rpcrdma.ProcMsg {
					t.Errorf("a call of %d bytes is answered by %+v", len(msg), h)
				}
			})
		})
	}

	t.Run("CCP-6.2-7 inline replies are as long as the client accepts, and no longer than the server's own limit", func(t *testing.T) {
		configServer(t, silentPeer(t), configuresAll(Settings{InlineSend: 4096}), func(p *peer, _ *testService) {
			p.repliesUpTo(1024)
			for _, c := range []struct {
				asked uint32
				want  int
			}{{1500, 1500}, {4096, 4096}, {600, 600}, {1 << 31, 4096}} {
				p.configure(rpcrdma.ConfigCall{MaxCall: 1024, MaxReply: c.asked, MaxReads: 1})
				p.repliesUpTo(c.want)
			}
		})
	})

	t.Run("CCP-6.2-7 what private data has agreed on is not exceeded", func(t *testing.T) {
		configServer(t, greeting(t, hello(false, 4096, 2048)), configuresAll(Settings{InlineSend: 4096}), func(p *peer, _ *testService) {
			for _, c := range []struct{ asked, want int }{{1500, 1500}, {4096, 2048}} {
				p.configure(rpcrdma.ConfigCall{MaxCall: 1024, MaxReply: uint32(c.asked), MaxReads: 1})
				p.repliesUpTo(c.want)
			}
		})
	})

	t.Run("CCP-6.2-4 a server that sends no private data goes by the client's", func(t *testing.T) {
		for _, size := range []int{1024, 2048, 4096} {
			configServer(t, greeting(t, hello(false, size, size)), configuresAll(Settings{NoPrivateData: true, InlineSend: 3072, InlineRecv: 3072}), func(p *peer, _ *testService) {
				if r := p.configure(rpcrdma.ConfigCall{MaxCall: 4096, MaxReply: 4096, MaxReads: 1}); int(r.MaxCall) != min(size, 3072) {
					t.Errorf("client's %d: reply is %+v", size, r)
				}
				p.repliesUpTo(min(size, 3072))
			})
		}
	})

	t.Run("CCP-6.2-7 a client that accepts nothing is sent no results", func(t *testing.T) {
		configServer(t, silentPeer(t), configuresAll(Settings{}), func(p *peer, _ *testService) {
			p.configure(rpcrdma.ConfigCall{})
			p.send(callBytes(rpcrdma.Header{XID: 4}, procArgs, 1, 2, 3, 4), 0)
			if h, _ := p.message("the answer"); h.Proc != rpcrdma.ProcError {
				t.Errorf("answer is %+v", h)
			}
		})
	})

	t.Run("CCP-6.2-7 a reply in read chunks has a header that the client accepts", func(t *testing.T) {
		const header = 28 + 24 // a read list of one entry
		for _, size := range []uint32{header, header - 1} {
			serverOf(t, silentPeer(t), configuresAll(Settings{}), []rpc.Program{paddedProgram(false, true)}, func(p *peer, _ *Server) {
				args := append(opaque("a"), opaque("b")...)
				p.configure(rpcrdma.ConfigCall{MaxCall: 1024, MaxReply: size, MaxReads: 1})
				p.send(callBytes(rpcrdma.Header{XID: 3}, 1, args...), 0)
				if h, _ := p.message("the answer"); h.Proc == rpcrdma.ProcError != (size < header) || h.Proc != rpcrdma.ProcError && h.Size() != header {
					t.Errorf("%d bytes are accepted, the answer is %+v", size, h)
				}
			})
		}
	})
}

// TestConfigureServerReads checks that a server issues at most as many concurrent RDMA Reads as the client serves.
func TestConfigureServerReads(t *testing.T) {
	for _, tt := range []struct{ client, want int }{{2, 2}, {1, 1}, {1 << 30, 4}} {
		t.Run("CCP-6.2-8 a server's Reads at once are no more than the client serves", func(t *testing.T) {
			configServer(t, silentPeer(t), configures(Settings{}, ConfigProtocol{MaxReads: 1}), func(p *peer, _ *testService) {
				p.noReads = true
				p.configure(rpcrdma.ConfigCall{MaxCall: 1024, MaxReply: 1024, MaxReads: uint32(tt.client)})
				for range 3 {
					p.callsWithReads()
				}
				p.readAll()
				if p.maxOut != tt.want {
					t.Errorf("%d Reads at once, want %d", p.maxOut, tt.want)
				}
				for range 3 {
					if _, payload := p.message("a reply"); len(accepted(t, payload, 9)) != 100 {
						t.Errorf("reply is %x", payload)
					}
				}
			})
		})
	}

	for _, tt := range []struct {
		f     ConfigProtocol
		reads uint32 // the client's
	}{{ConfigProtocol{}, 0}, {ConfigProtocol{NoReads: true}, 16}} {
		t.Run("CCP-6.2-9 where no Reads are served, calls with read chunks are refused", func(t *testing.T) {
			configServer(t, silentPeer(t), configures(Settings{}, tt.f), func(p *peer, _ *testService) {
				if r := p.configure(rpcrdma.ConfigCall{MaxCall: 1024, MaxReply: 1024, MaxReads: tt.reads}); (r.MaxReads == 0) != tt.f.NoReads {
					t.Errorf("reply is %+v", r)
				}
				p.callsWithReads()
				if h, _ := p.message("the answer"); h.XID != 9 || h.Proc != rpcrdma.ProcError || h.Err != rpcrdma.ErrChunk || p.maxOut != 0 {
					t.Errorf("answer is %+v, after %d Reads", h, p.maxOut)
				}
				p.configure(rpcrdma.ConfigCall{MaxCall: 1024, MaxReply: 1024, MaxReads: 1})
				p.callsWithReads() // what the client has taken back is allowed again
				if h, _ := p.message("the answer"); (h.Proc == rpcrdma.ProcMsg) == tt.f.NoReads {
					t.Errorf("answer is %+v", h)
				}
			})
		})
	}

	t.Run("CCP-6.2-9 a reply has no read chunks then", func(t *testing.T) {
		cfg := configuresAll(Settings{InlineSend: 1024})
		serverOf(t, silentPeer(t), cfg, []rpc.Program{paddedProgram(false, true)}, func(p *peer, _ *Server) {
			args := append(opaque(string(letters(1000))), opaque(string(letters(900)))...)
			for _, reads := range []uint32{1, 0} {
				p.configure(rpcrdma.ConfigCall{MaxCall: 4096, MaxReply: 1024, MaxReads: reads})
				p.send(callBytes(rpcrdma.Header{XID: 3}, 1, args...), 0)
				if h, _ := p.message("the answer"); (len(h.Reads) > 0) != (reads > 0) || (h.Proc == rpcrdma.ProcError) != (reads == 0) {
					t.Errorf("with %d Reads the answer is %+v", reads, h)
				}
			}
		})
	})
}

// TestConfigureServerAuth checks the protection that a server requires of the call.
func TestConfigureServerAuth(t *testing.T) {
	want := configArgs()

	t.Run("CCP-11-1 a call that is not protected as the server wants is rejected, and changes nothing", func(t *testing.T) {
		cfg := configures(Settings{}, ConfigProtocol{Auth: func(cred oncrpc.Auth) oncrpc.AuthStat {
			if cred.Flavor == oncrpc.FlavorNone {
				return oncrpc.AuthTooWeak
			}
			return oncrpc.AuthOK
		}})
		configServer(t, silentPeer(t), cfg, func(p *peer, _ *testService) {
			h := p.outcomeOf(confCall(3, nil, want...))
			if h.Stat != oncrpc.MsgDenied || h.RejectStat != oncrpc.AuthError || h.AuthStat != oncrpc.AuthTooWeak {
				t.Errorf("answer is %+v", h)
			}
			p.repliesUpTo(1024)
			sys := oncrpc.AuthSys{Machine: "m"}
			h = p.outcomeOf(confCall(3, func(c *oncrpc.CallHeader) { c.Cred = sys.Auth() }, want...))
			if h.Err() != nil {
				t.Errorf("with AUTH_SYS the answer is %+v", h)
			}
			p.repliesUpTo(4096)
		})
	})

	t.Run("CCP-11-1 what cannot be verified is rejected", func(t *testing.T) {
		for _, auth := range []func(oncrpc.Auth) oncrpc.AuthStat{nil, func(oncrpc.Auth) oncrpc.AuthStat { return oncrpc.AuthOK }} {
			configServer(t, silentPeer(t), configures(Settings{}, ConfigProtocol{Auth: auth}), func(p *peer, _ *testService) {
				h := p.outcomeOf(confCall(3, func(c *oncrpc.CallHeader) { c.Cred.Flavor = oncrpc.FlavorGSS }, want...))
				if h.Stat != oncrpc.MsgDenied || h.AuthStat != oncrpc.AuthRejectedCred {
					t.Errorf("answer is %+v", h)
				}
				p.repliesUpTo(1024)
			})
		}
	})
}

// procSink is not in the program: its refusal shows that the call has arrived.
const procSink = procHold + 100

func TestConfigureConfig(t *testing.T) {
	for _, o := range []RFC5666{
		{ConfigProtocol: &ConfigProtocol{Align: -1}},
		{ConfigProtocol: &ConfigProtocol{Align: 1<<16 + 1}},
		{ConfigProtocol: &ConfigProtocol{MaxReads: -1}},
		{ConfigProtocol: &ConfigProtocol{Cred: oncrpc.Auth{Body: make([]byte, 401)}}},
		{ConfigProtocol: &ConfigProtocol{Verf: oncrpc.Auth{Body: make([]byte, 401)}}},
		{ConfigProtocol: &ConfigProtocol{}, Thresh: 400},
	} {
		if _, err := NewServer((&Settings{RFC5666: &o}).Server()); err == nil {
			t.Errorf("%+v %+v is accepted", o, o.ConfigProtocol)
		}
	}
	if _, err := NewServer((&Settings{RFC5666: &RFC5666{Thresh: 401, ConfigProtocol: &ConfigProtocol{Align: 1 << 16, MaxReads: 1000}}}).Server()); err != nil {
		t.Error(err)
	}
}

// TestConfigureBothEnds checks the protocol over the software adapter, when it is enabled at both ends, one end, or
// neither.
func TestConfigureBothEnds(t *testing.T) {
	for _, tt := range []struct {
		client, server, private bool
		want                    int // the threshold of both directions
	}{
		{true, true, false, 8192},
		{true, false, false, 1024},
		{false, true, false, 1024},
		{false, false, false, 1024},
		{true, true, true, 4096},
	} {
		name := fmt.Sprintf("CCP-6-3 CCP-6.1-1 CCP-6.2-11 client %v, server %v, private data %v", tt.client, tt.server, tt.private)
		t.Run(name, func(t *testing.T) {
			config := func(on bool, inline int) *Settings {
				cfg := Settings{NoPrivateData: !tt.private, InlineSend: inline, InlineRecv: inline}
				if !on {
					return &cfg
				}
				return configures(cfg, ConfigProtocol{Align: 64, MaxReads: 3})
			}
			inline := 8192
			if tt.private {
				inline = 4096
			}
			s, err := NewServer(config(tt.server, inline).Server())
			if err != nil {
				t.Fatal(err)
			}
			svc := &testService{}
			if err := s.Register(svc.program()); err != nil {
				t.Fatal(err)
			}
			provider := iwarp.New(iwarp.Config{})
			l, err := s.Listen(bg, provider, "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			served := make(chan error, 1)
			go func() { served <- s.Serve(l) }()
			defer func() {
				s.Close()
				if err := <-served; !errors.Is(err, net.ErrClosed) {
					t.Errorf("Serve returned %v", err)
				}
			}()
			cl, err := Dial(bg, provider, l.Addr().String(), once(config(tt.client, 8192)).Client())
			if err != nil {
				t.Fatal(err)
			}
			defer cl.Close()

			i := cl.Info()
			if i.Configured != (tt.client && tt.server) || i.InlineSend != tt.want || i.InlineRecv != tt.want {
				t.Errorf("connection is %+v", i)
			}
			if i.Configured && (i.PeerReads != 3 || i.PeerAlign != 64) {
				t.Errorf("connection is %+v", i)
			}
			var refused *oncrpc.RPCError
			if tt.client && !tt.server && (!errors.As(i.ConfigError, &refused) || refused.AcceptStat != oncrpc.ProgUnavail) {
				t.Errorf("the server refused with %v", i.ConfigError)
			}

			var wg sync.WaitGroup
			before := s.Stats()
			for range 4 {
				wg.Go(func() {
					for _, size := range []int{tt.want - 28 - 40, tt.want, 100000} {
						call := rpc.Call{Prog: testProg, Vers: 1, Proc: procArgs, Args: letters(size), MaxResults: size}
						if err := cl.Call(bg, &call); err != nil || !bytes.Equal(call.Results, call.Args) {
							t.Errorf("%d bytes: %v, %d bytes came back", size, err, len(call.Results))
						}
					}
				})
			}
			wg.Wait()
			st := s.Stats()
			if long := st.LongCall - before.LongCall; long != 8 {
				t.Errorf("%d of 12 calls were long, want 8", long)
			}
		})
	}
}
