package transport_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/internal/testing/leak"
	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
	"github.com/rpcrdma/rpcrdma/iwarp"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/transport"
)

// mutual returns a configuration for both ends, which show certificates of one authority.
func mutual(t testing.TB) *tls.Config {
	a := testutil.NewAuthority(t)
	return &tls.Config{
		Certificates: []tls.Certificate{a.Issue(t, nil, "IP:127.0.0.1")},
		RootCAs:      a.Pool(), ClientCAs: a.Pool(), ClientAuth: tls.RequireAndVerifyClientCert,
	}
}

// edited returns a copy of cfg that edit has changed.
func edited(cfg *tls.Config, edit func(c *tls.Config)) *tls.Config {
	c := cfg.Clone()
	edit(c)
	return c
}

// A wiretap keeps what connections have sent and received.
type wiretap struct {
	mu    sync.Mutex
	all   bytes.Buffer
	sent  bytes.Buffer
	conns []net.Conn
}

type tapped struct {
	net.Conn
	w *wiretap
}

func (w *wiretap) dial(ctx context.Context, addr string) (net.Conn, error) {
	c, err := transport.TCP{}.DialStream(ctx, addr)
	if err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.conns = append(w.conns, c)
	return tapped{c, w}, nil
}

func (w *wiretap) note(b []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.all.Write(b)
}

func (w *wiretap) has(s string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return bytes.Count(w.all.Bytes(), []byte(s))
}

func (c tapped) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.w.note(b[:n])
	return n, err
}

func (c tapped) Write(b []byte) (int, error) {
	c.w.note(b)
	c.w.mu.Lock()
	c.w.sent.Write(b)
	c.w.mu.Unlock()
	return c.Conn.Write(b)
}

// counted returns middleware that counts calls.
func counted(n *atomic.Int64) []rpc.Middleware {
	return []rpc.Middleware{func(next rpc.Handler) rpc.Handler {
		return rpc.HandlerFunc(func(ctx context.Context, req *rpc.Request, res *rpc.Response) {
			n.Add(1)
			next.ServeRPC(ctx, req, res)
		})
	}}
}

const marker = "a marker of data"

// echoes calls the server.
func echoes(cl *transport.Client) error {
	ctx, cancel := context.WithTimeout(bg, 20*time.Second)
	defer cancel()
	call := rpc.Call{Prog: prog, Vers: 1, Proc: procEcho, Args: xdr.AppendOpaque(nil, []byte(marker)), MaxResults: 100}
	err := cl.Call(ctx, &call)
	if err == nil && !bytes.Contains(call.Results, []byte(marker)) {
		err = fmt.Errorf("the results are %x", call.Results)
	}
	return err
}

// TestTLSModes checks the outcome of each combination of settings, and that no part of a call is in plain text when TLS
// is used.
func TestTLSModes(t *testing.T) {
	cfg := mutual(t)
	required, optional := &transport.TLS{Config: cfg}, &transport.TLS{Config: cfg, Optional: true}
	const encrypted, plain, refused, tooWeak = "encrypted", "plain", "refused", "too weak"
	for _, tt := range []struct {
		name           string
		client, server *transport.TLS
		want           string
	}{
		{"both require it", required, required, encrypted},
		{"it is optional for the server", required, optional, encrypted},
		{"it is optional for the client", optional, required, encrypted},
		{"it is optional for both", optional, optional, encrypted},
		{"only the client may have it", optional, nil, plain},
		{"only the server may have it", nil, optional, plain},
		{"only the client has it", required, nil, refused},
		{"only the server has it", nil, required, tooWeak},
		{"only the server has it, for other programs", nil, &transport.TLS{Config: cfg, Except: []uint32{prog}}, plain},
		{"only the server has it, for this program", nil, &transport.TLS{Config: cfg, Except: []uint32{prog + 1}}, tooWeak},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var handled atomic.Int64
			w := startTCP(t, &transport.Settings{TLS: tt.server, Middleware: counted(&handled)})
			var tap wiretap
			cl, err := transport.DialTCPWith(bg, w.addr, (&transport.Settings{TLS: tt.client}).Client(), tap.dial)
			if err == nil {
				defer cl.Close()
				if err = errors.Join(cl.Null(bg, prog, 1), echoes(cl)); tt.want == encrypted {
					tap.conns[0].Close()
					err = errors.Join(err, echoes(cl), echoes(cl))
				}
			}
			var not *transport.TLSError
			var rejected *oncrpc.RPCError
			switch tt.want {
			case refused:
				if !errors.As(err, &not) || !not.Refused {
					t.Errorf("%v, want a refusal", err)
				}
			case tooWeak:
				if !errors.As(err, &rejected) || rejected.AuthStat != oncrpc.AuthTooWeak {
					t.Errorf("%v, want AUTH_TOOWEAK", err)
				}
			default:
				if err != nil {
					t.Error(err)
				}
			}
			if (tt.want == refused || tt.want == tooWeak) != (handled.Load() == 0) {
				t.Errorf("the handler has had %d calls", handled.Load())
			}
			if n := tap.has(marker); (n > 0) != (tt.want == plain || tt.want == tooWeak) {
				t.Errorf("%d markers are in plain text", n)
			}
			if n := tap.has("STARTTLS"); (n > 0) != (tt.want == encrypted) || n > 0 && (n != 2 || len(tap.conns) != 2) {
				t.Errorf("%d offers of TLS on %d connections", n, len(tap.conns))
			}
		})
	}
}

// TestTLSRefused checks that no call is executed if either end is not the intended one.
func TestTLSRefused(t *testing.T) {
	good := mutual(t)
	other := testutil.NewAuthority(t)
	authority := testutil.NewAuthority(t)
	late := authority.Issue(t, func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) }, "IP:127.0.0.1")
	chain := authority
	for range 100 {
		chain = chain.Below(t)
	}
	var verification *tls.CertificateVerificationError
	var name x509.HostnameError
	var unknown x509.UnknownAuthorityError
	var invalid x509.CertificateInvalidError
	var alert *net.OpError
	var not *transport.TLSError
	for _, tt := range []struct {
		what           string
		client, server *tls.Config
		want           []any
	}{
		{"a server of another name", edited(good, func(c *tls.Config) { c.ServerName = "files.example" }), good, []any{&not, &verification, &name}},
		{"a server of an unknown authority", edited(good, func(c *tls.Config) { c.RootCAs = other.Pool() }), good, []any{&not, &verification, &unknown}},
		{"a server with an expired certificate", edited(good, func(c *tls.Config) { c.RootCAs = authority.Pool() }),
			edited(good, func(c *tls.Config) { c.Certificates = []tls.Certificate{late} }), []any{&not, &verification, &invalid}},
		{"a server of TLS 1.2 alone", edited(good, func(c *tls.Config) { c.MaxVersion = tls.VersionTLS13 }),
			edited(good, func(c *tls.Config) { c.MaxVersion = tls.VersionTLS12 }), []any{&not}},
		{"a client for another protocol", edited(good, func(c *tls.Config) { c.NextProtos = []string{"h2"} }), good, []any{&not, &alert}},
		{"a client without certificate", edited(good, func(c *tls.Config) { c.Certificates = nil }), good, []any{&alert}},
		{"a client of an unknown authority",
			edited(good, func(c *tls.Config) { c.Certificates = []tls.Certificate{other.Issue(t, nil, "IP:127.0.0.1")} }), good, []any{&alert}},
		{"a client with an expired certificate", edited(good, func(c *tls.Config) { c.Certificates = []tls.Certificate{late} }),
			edited(good, func(c *tls.Config) { c.ClientCAs = authority.Pool() }), []any{&alert}},
		{"a client with a chain of 100", edited(good, func(c *tls.Config) { c.Certificates = []tls.Certificate{chain.Issue(t, nil, "IP:127.0.0.1")} }),
			edited(good, func(c *tls.Config) { c.ClientCAs = authority.Pool() }), []any{&alert}},
		{"a server with a chain of 100", edited(good, func(c *tls.Config) { c.RootCAs = authority.Pool() }),
			edited(good, func(c *tls.Config) { c.Certificates = []tls.Certificate{chain.Issue(t, nil, "IP:127.0.0.1")} }), []any{&not, &verification}},
	} {
		t.Run(tt.what, func(t *testing.T) {
			var handled atomic.Int64
			// The callback is asked for each connection, and what it returns is under the same rules.
			server := &tls.Config{GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return tt.server, nil }}
			w := startTCP(t, &transport.Settings{TLS: &transport.TLS{Config: server}, Middleware: counted(&handled)})
			for _, optional := range []bool{false, true} {
				cfg := transport.Once(&transport.Settings{TLS: &transport.TLS{Config: tt.client, Optional: optional}})
				cl, err := transport.DialTCP(bg, w.addr, cfg.Client())
				if err == nil {
					err = echoes(cl) // a client learns that its certificate is refused after the handshake
					cl.Close()
				}
				for _, want := range tt.want {
					if !errors.As(err, want) {
						t.Errorf("%v; want a %T", err, want)
					}
				}
				t.Log(err)
			}
			if n := handled.Load(); n != 0 {
				t.Errorf("the handler has had %d calls", n)
			}
		})
	}
}

// TestTLSReplayed checks that replaying the data of a legitimate client causes no execution.
func TestTLSReplayed(t *testing.T) {
	var handled atomic.Int64
	cfg := &transport.TLS{Config: mutual(t)}
	w := startTCP(t, &transport.Settings{TLS: cfg, Middleware: counted(&handled)})
	var tap wiretap
	cl, err := transport.DialTCPWith(bg, w.addr, (&transport.Settings{TLS: cfg}).Client(), tap.dial)
	testutil.Must(t, err)
	testutil.Must(t, echoes(cl), cl.Close())
	c, err := net.Dial("tcp", w.addr)
	testutil.Must(t, err)
	defer c.Close()
	c.SetDeadline(time.Now().Add(20 * time.Second))
	_, err = c.Write(tap.sent.Bytes())
	testutil.Must(t, err)
	if _, err := io.Copy(io.Discard, c); errors.Is(err, os.ErrDeadlineExceeded) || handled.Load() != 1 {
		t.Errorf("%v, the handler has had %d calls", err, handled.Load())
	}
}

// record returns a message as a record.
func record(msg []byte) []byte {
	return append(oncrpc.AppendRecordMark(nil, len(msg), true), msg...)
}

// nextRecord reads a record of one fragment.
func nextRecord(c io.Reader) ([]byte, error) {
	var mark [4]byte
	if _, err := io.ReadFull(c, mark[:]); err != nil {
		return nil, err
	}
	msg := make([]byte, binary.BigEndian.Uint32(mark[:])&^oncrpc.LastFragment)
	_, err := io.ReadFull(c, msg)
	return msg, err
}

// TestTLSAnswers checks that a client starts TLS only after STARTTLS, and continues in plain text, where it may, only
// after a refusal.
func TestTLSAnswers(t *testing.T) {
	leak.Check(t)
	offer := oncrpc.Auth{Body: []byte("STARTTLS")}
	reply := func(h oncrpc.ReplyHeader) func(xid uint32) []byte {
		return func(xid uint32) []byte {
			answer := h
			answer.XID += xid
			return record(oncrpc.AppendReply(nil, &answer))
		}
	}
	for _, tt := range []struct {
		name    string
		answer  func(xid uint32) []byte
		refusal bool
		want    any
	}{
		{"an answer that has been stripped", reply(oncrpc.ReplyHeader{}), true, nil},
		{"another word", reply(oncrpc.ReplyHeader{Verf: oncrpc.Auth{Body: []byte("STARTTL5")}}), true, nil},
		{"the word of another flavor", reply(oncrpc.ReplyHeader{Verf: oncrpc.Auth{Flavor: oncrpc.FlavorSys, Body: offer.Body}}), true, nil},
		{"a flavor that is not known", reply(oncrpc.ReplyHeader{Stat: oncrpc.MsgDenied, RejectStat: oncrpc.AuthError, AuthStat: oncrpc.AuthRejectedCred}), true, new(*oncrpc.RPCError)},
		{"an answer to another call", reply(oncrpc.ReplyHeader{XID: 1}), false, nil},
		{"a program that is not there, and no handshake", reply(oncrpc.ReplyHeader{Verf: offer, AcceptStat: oncrpc.ProgUnavail}), false, nil},
		{"plain text after the answer", func(xid uint32) []byte {
			return append(reply(oncrpc.ReplyHeader{Verf: offer})(xid), record(make([]byte, 40))...)
		}, false, new(tls.RecordHeaderError)},
		{"a long answer", func(uint32) []byte { return []byte{0xff, 0xff, 0xff, 0xff} }, false, nil},
		{"half an answer", func(uint32) []byte { return []byte{0x80, 0} }, false, nil},
		{"none", func(uint32) []byte { return nil }, false, nil},
		{"silence", nil, false, new(net.Error)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			testutil.Must(t, err)
			var served sync.WaitGroup
			defer served.Wait()
			defer l.Close()
			served.Go(func() {
				for {
					c, err := l.Accept()
					if err != nil {
						return
					}
					served.Go(func() {
						defer c.Close()
						probe, err := nextRecord(c)
						var h oncrpc.CallHeader
						n, bad := oncrpc.ConsumeCall(probe, &h)
						if err != nil || bad != nil || n != len(probe) || h.Proc != 0 || h.Prog != 100003 || h.Vers != 3 ||
							h.Cred.Flavor != oncrpc.FlavorTLS || len(h.Cred.Body)+len(h.Verf.Body)+int(h.Verf.Flavor) > 0 {
							t.Errorf("the client begins with %x", probe)
						}
						if tt.answer != nil {
							c.Write(tt.answer(h.XID))
							c.(*net.TCPConn).CloseWrite()
						}
						io.Copy(io.Discard, c)
					})
				}
			})
			for _, optional := range []bool{false, true} {
				cfg := transport.Settings{SetupTimeout: 5 * time.Second, TLS: &transport.TLS{Config: mutual(t), Optional: optional}}
				if tt.answer == nil {
					cfg.SetupTimeout = 300 * time.Millisecond
				}
				cl, err := transport.DialTCP(bg, l.Addr().String(), transport.Once(&cfg).Client())
				if cl != nil {
					cl.Close()
				}
				if optional && tt.refusal {
					if err != nil {
						t.Errorf("it does not go on in plain text: %v", err)
					}
					continue
				}
				var not *transport.TLSError
				if !errors.As(err, &not) || not.Refused != tt.refusal {
					t.Errorf("%v, want a *TLSError", err)
				}
				if tt.want != nil && !errors.As(err, tt.want) {
					t.Errorf("%v, want a %T", err, tt.want)
				}
				t.Log(err)
			}
		})
	}
}

// TestTLSPlainText checks plain text from a client, or from an attacker in its place, to a server that requires TLS.
func TestTLSPlainText(t *testing.T) {
	cfg := mutual(t)
	call := func(proc uint32, flavor oncrpc.Flavor) []byte {
		h := oncrpc.CallHeader{XID: 5, RPCVers: 2, Prog: prog, Vers: 1, Proc: proc, Cred: oncrpc.Auth{Flavor: flavor}}
		b := oncrpc.AppendCall(nil, &h)
		if proc != 0 {
			b = xdr.AppendOpaque(b, []byte(marker))
		}
		return record(b)
	}
	null, probe, work := call(0, oncrpc.FlavorNone), call(0, oncrpc.FlavorTLS), call(procEcho, oncrpc.FlavorNone)
	denied := func(s oncrpc.AuthStat) oncrpc.ReplyHeader {
		return oncrpc.ReplyHeader{XID: 5, Stat: oncrpc.MsgDenied, RejectStat: oncrpc.AuthError, AuthStat: s}
	}
	offer := oncrpc.ReplyHeader{XID: 5, Verf: oncrpc.Auth{Body: []byte("STARTTLS")}}
	tooWeak, badCred := denied(oncrpc.AuthTooWeak), denied(oncrpc.AuthBadCred)
	for _, tt := range []struct {
		name string
		sent [][]byte
		want []oncrpc.ReplyHeader // one for each
		then string               // what follows
	}{
		{"calls", [][]byte{work, null, work}, []oncrpc.ReplyHeader{tooWeak, {XID: 5}, tooWeak}, ""},
		{"a probe that is late", [][]byte{null, probe, work}, []oncrpc.ReplyHeader{{XID: 5}, badCred, tooWeak}, ""},
		{"AUTH_TLS of another procedure", [][]byte{call(procEcho, oncrpc.FlavorTLS), work}, []oncrpc.ReplyHeader{badCred, tooWeak}, ""},
		{"AUTH_TLS of another procedure, without arguments", [][]byte{
			record(oncrpc.AppendCall(nil, &oncrpc.CallHeader{XID: 5, RPCVers: 2, Prog: prog, Vers: 1, Proc: procEcho, Cred: oncrpc.Auth{Flavor: oncrpc.FlavorTLS}})), work,
		}, []oncrpc.ReplyHeader{badCred, tooWeak}, ""},
		{"a call right after the probe", [][]byte{append(bytes.Clone(probe), work...)}, []oncrpc.ReplyHeader{offer}, "alert"},
		{"a call instead of a handshake", [][]byte{probe, work}, []oncrpc.ReplyHeader{offer}, "alert"},
		{"probes twice", [][]byte{append(bytes.Clone(probe), probe...)}, []oncrpc.ReplyHeader{offer}, "alert"},
		{"half a handshake", [][]byte{probe, {22, 3, 1, 2}}, []oncrpc.ReplyHeader{offer}, "end"},
		{"half a probe", [][]byte{probe[:20]}, nil, "end"},
		{"silence", nil, nil, "end"},
		{"TLS without a probe", [][]byte{{22, 3, 1, 2, 0, 1, 0, 1, 0xfc}}, nil, "end"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var handled atomic.Int64
			limit := testutil.Patience
			if tt.then == "end" { // which the limit brings
				limit = 500 * time.Millisecond
			}
			w := startTCP(t, &transport.Settings{TLS: &transport.TLS{Config: cfg}, Middleware: counted(&handled), SetupTimeout: limit})
			c, err := net.Dial("tcp", w.addr)
			testutil.Must(t, err)
			defer c.Close()
			c.SetDeadline(time.Now().Add(20 * time.Second))
			for i, b := range tt.sent {
				if _, err := c.Write(b); err != nil {
					t.Fatal(err)
				}
				if i >= len(tt.want) {
					break
				}
				msg, err := nextRecord(c)
				var h oncrpc.ReplyHeader
				if err == nil {
					_, err = oncrpc.ConsumeReply(msg, &h)
				}
				if want := tt.want[i]; err != nil || !bytes.Equal(msg, oncrpc.AppendReply(nil, &want)) {
					t.Fatalf("answer %d: %+v, %v; want %+v", i, h, err, want)
				}
			}
			if tt.then != "" {
				rest, err := io.ReadAll(c)
				if errors.Is(err, os.ErrDeadlineExceeded) || len(rest) > 7 || tt.then == "alert" && len(rest) > 0 && rest[0] != 21 {
					t.Errorf("then come %x, %v", rest, err)
				}
			}
			if n := handled.Load(); n != 0 {
				t.Errorf("the handler has had %d calls", n)
			}
		})
	}
}

// TestTLSNames checks that a client that names no protocol is served, because Linux names none, and that one that names
// another protocol is not.
func TestTLSNames(t *testing.T) {
	cfg := mutual(t)
	w := startTCP(t, &transport.Settings{TLS: &transport.TLS{Config: cfg}})
	for _, names := range [][]string{nil, {"h2", "sunrpc"}, {"h2"}} {
		var tap wiretap
		c, err := tap.dial(bg, w.addr)
		testutil.Must(t, err)
		defer c.Close()
		c.SetDeadline(time.Now().Add(20 * time.Second))
		call := func(s net.Conn, flavor oncrpc.Flavor) error {
			h := oncrpc.CallHeader{XID: 5, RPCVers: 2, Prog: prog, Vers: 1, Cred: oncrpc.Auth{Flavor: flavor}}
			if _, err := s.Write(record(oncrpc.AppendCall(nil, &h))); err != nil {
				return err
			}
			_, err := nextRecord(s)
			return err
		}
		testutil.Must(t, call(c, oncrpc.FlavorTLS))
		s := tls.Client(c, edited(cfg, func(c *tls.Config) { c.ServerName, c.NextProtos = "127.0.0.1", names }))
		if err := call(s, oncrpc.FlavorNone); (err == nil) != (len(names) != 1) || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%q: %v", names, err)
		}
	}
}

// TestTLSSilentClient checks that a client that need not use TLS may be silent for longer than a set-up takes.
func TestTLSSilentClient(t *testing.T) {
	w := startTCP(t, &transport.Settings{TLS: &transport.TLS{Config: mutual(t), Optional: true}, SetupTimeout: 20 * time.Millisecond})
	var tap wiretap
	cl, err := transport.DialTCPWith(bg, w.addr, nil, tap.dial)
	testutil.Must(t, err)
	defer cl.Close()
	for end := time.Now().Add(20 * time.Second); w.server.Stats().Conns == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("no connection")
		}
	}
	if err := echoes(cl); err != nil || len(tap.conns) != 1 {
		t.Errorf("%v, on %d connections", err, len(tap.conns))
	}
}

// TestTLSBothWays checks simultaneous calls from both ends.
func TestTLSBothWays(t *testing.T) {
	_, cl, cn := callable(t, transport.Settings{TLS: &transport.TLS{Config: mutual(t)}}, new(errander), transport.TCP{}.DialStream)
	cn.AllowBackward(0)
	ctx, cancel := context.WithTimeout(bg, time.Minute)
	defer cancel()
	var wg sync.WaitGroup
	for i, w := range []way{cl.Call, cn.Call} {
		for g := range 4 {
			wg.Go(func() {
				var r runner
				rng := rand.New(rand.NewPCG(uint64(g), uint64(i)))
				for range 30 {
					if err := errors.Join(r.run(ctx, w, randomErrand(rng, rng.Uint64(), true))); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
	}
	wg.Wait()
	for _, cn := range []*transport.Conn{cn, cl.Latest()} {
		if p := cn.Peer(); p.TLS == nil || p.TLS.Version != tls.VersionTLS13 || p.TLS.NegotiatedProtocol != "sunrpc" || !p.Proved() || !p.Private() {
			t.Errorf("the peer is %+v", p)
		}
	}
}

func TestTLSConfig(t *testing.T) {
	for _, cfg := range []*transport.TLS{{}, {Config: new(tls.Config)}} {
		if _, err := transport.NewServer((&transport.Settings{TLS: cfg}).Server()); err == nil {
			t.Errorf("a server with %+v", cfg)
		}
	}
	if _, err := transport.DialTCP(bg, "127.0.0.1:1", (&transport.Settings{TLS: new(transport.TLS)}).Client()); err == nil || errors.As(err, new(*transport.DialError)) {
		t.Errorf("a client without Config: %v", err)
	}
}

// TestTLSOverRDMA checks that both ends refuse connections of an adapter without encryption where TLS is required.
func TestTLSOverRDMA(t *testing.T) {
	cfg := mutual(t)
	plain, encrypted := iwarp.New(iwarp.Config{}), iwarp.New(iwarp.Config{TLS: cfg})
	for _, tt := range []struct {
		name string
		p    fabric.Provider
		tls  *transport.TLS
		ok   bool
	}{
		{"plain text", plain, nil, true},
		{"TLS is optional", plain, &transport.TLS{Config: cfg, Optional: true}, true},
		{"TLS is required", plain, &transport.TLS{Config: cfg}, false},
		{"the adapter has TLS", encrypted, &transport.TLS{Config: cfg}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, err := transport.NewServer((&transport.Settings{TLS: tt.tls}).Server())
			testutil.Must(t, err)
			defer s.Close()
			testutil.Must(t, s.Register(rpc.Program{Number: prog, Low: 1, High: 1, Handler: rpc.Procedures{}}))
			l, err := s.Listen(bg, tt.p, "127.0.0.1:0")
			addr := "127.0.0.1:1"
			if err == nil {
				addr = l.Addr().String()
				go s.Serve(l)
			}
			cl, dialErr := transport.Dial(bg, tt.p, addr, (&transport.Settings{TLS: tt.tls}).Client())
			if dialErr == nil {
				dialErr = cl.Null(bg, prog, 1)
				cl.Close()
			}
			for _, err := range []error{err, dialErr} {
				if (err == nil) != tt.ok || !tt.ok && !errors.As(err, new(*transport.TLSError)) {
					t.Error(err)
				}
			}
		})
	}
}

// pythonTLS returns a command that runs a program in Python, or skips the test.
func pythonTLS(t *testing.T, program string, args ...string) *exec.Cmd {
	t.Helper()
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("there is no python3:", err)
	}
	if out, err := exec.Command(python, "-c", "import ssl; assert ssl.HAS_TLSv1_3 and ssl.HAS_ALPN").CombinedOutput(); err != nil {
		t.Skipf("python3 has no ssl with TLS 1.3: %v\n%s", err, out)
	}
	return exec.Command(python, append([]string{"-c", program}, args...)...)
}

// TestTLSPython uses Python's ssl module as the client, which sends the probe by hand.
func TestTLSPython(t *testing.T) {
	dir := t.TempDir()
	a := testutil.NewAuthority(t)
	cert := a.Issue(t, nil, "IP:127.0.0.1")
	caFile, _ := testutil.WriteCert(t, dir, "ca", a.Certificate)
	certFile, keyFile := testutil.WriteCert(t, dir, "end", cert)
	var handled atomic.Int64
	w := startTCP(t, &transport.Settings{Middleware: counted(&handled), TLS: &transport.TLS{Config: &tls.Config{
		Certificates: []tls.Certificate{cert}, ClientCAs: a.Pool(), ClientAuth: tls.RequireAndVerifyClientCert,
	}}})
	host, port, _ := net.SplitHostPort(w.addr)
	out, err := pythonTLS(t, pythonClient, host, port, caFile, certFile, keyFile, fmt.Sprint(uint32(prog)), fmt.Sprint(uint32(procEcho))).CombinedOutput()
	if err != nil || string(bytes.TrimSpace(out)) != "TLSv1.3 sunrpc" || handled.Load() != 1 {
		t.Errorf("%v, %d calls\n%s", err, handled.Load(), out)
	}
}

const pythonClient = `
import socket, ssl, struct, sys
host, port, ca, cert, key, prog, echo = sys.argv[1:]
prog, echo = int(prog), int(echo)

def call(s, xid, proc, flavor, args=b""):
    msg = struct.pack(">10I", xid, 0, 2, prog, 1, proc, flavor, 0, 0, 0) + args
    s.sendall(struct.pack(">I", len(msg) | 1 << 31) + msg)
    def read(n):
        b = b""
        while len(b) < n:
            more = s.recv(n - len(b))
            assert more, "the connection has ended"
            b += more
        return b
    return read(struct.unpack(">I", read(4))[0] & 0x7fffffff)

s = socket.create_connection((host, int(port)), 20)
reply = call(s, 1, 0, 7)
assert reply == struct.pack(">5I", 1, 1, 0, 0, 8) + b"STARTTLS" + bytes(4), reply
c = ssl.create_default_context(cafile=ca)
c.minimum_version = ssl.TLSVersion.TLSv1_3
c.load_cert_chain(cert, key)
c.set_alpn_protocols(["sunrpc"])
s = c.wrap_socket(s, server_hostname=host)
reply = call(s, 2, 0, 7)
assert reply == struct.pack(">5I", 2, 1, 1, 1, 1), reply # AUTH_BADCRED
assert call(s, 3, 0, 0) == struct.pack(">6I", 3, 1, 0, 0, 0, 0)
data = b"0123456789abcdef" * 4096
args = struct.pack(">I", len(data)) + data
assert call(s, 4, echo, 0, args) == struct.pack(">6I", 4, 1, 0, 0, 0, 0) + args
print(s.version(), s.selected_alpn_protocol())
s.close()
`

// TestTLSPythonServer uses Python's ssl module as a server that requires a certificate, with and without naming the
// protocol.
func TestTLSPythonServer(t *testing.T) {
	leak.Check(t)
	for _, name := range []string{"sunrpc", ""} {
		t.Run(name, func(t *testing.T) { callPython(t, name) })
	}
}

func callPython(t *testing.T, name string) {
	dir := t.TempDir()
	a := testutil.NewAuthority(t)
	cert := a.Issue(t, nil, "IP:127.0.0.1")
	caFile, _ := testutil.WriteCert(t, dir, "ca", a.Certificate)
	certFile, keyFile := testutil.WriteCert(t, dir, "end", cert)
	cmd := pythonTLS(t, pythonServer, caFile, certFile, keyFile, fmt.Sprint(uint32(prog)), fmt.Sprint(uint32(procEcho)), name)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	testutil.Must(t, err)
	testutil.Must(t, cmd.Start())
	defer func() {
		if err := cmd.Wait(); err != nil {
			t.Errorf("%v\n%s", err, &stderr)
		}
	}()
	var port int
	if _, err := fmt.Fscan(out, &port); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(bg, 20*time.Second)
	defer cancel()
	cl, err := transport.DialTCP(ctx, fmt.Sprintf("127.0.0.1:%d", port), (&transport.Settings{NoReconnect: true, TLS: &transport.TLS{
		Config: &tls.Config{Certificates: []tls.Certificate{cert}, RootCAs: a.Pool()}, Prog: prog, Vers: 1,
	}}).Client())
	if err != nil {
		cmd.Process.Kill()
		t.Fatal(err)
	}
	defer cl.Close()
	data := bytes.Repeat([]byte(marker), 4096)
	call := rpc.Call{Prog: prog, Vers: 1, Proc: procEcho, Args: xdr.AppendOpaque(nil, data), MaxResults: len(data) + 100}
	if err := cl.Call(ctx, &call); err != nil || !bytes.Equal(call.Results, call.Args) {
		t.Errorf("%v, %d bytes of results", err, len(call.Results))
	}
}

const pythonServer = `
import socket, ssl, struct, sys
ca, cert, key, prog, echo, name = sys.argv[1:]
prog, echo = int(prog), int(echo)

def read(s, n):
    b = b""
    while len(b) < n:
        more = s.recv(n - len(b))
        assert more, "the connection has ended"
        b += more
    return b

def take(s):
    return read(s, struct.unpack(">I", read(s, 4))[0] & 0x7fffffff)

def answer(s, call, verf, results=b""):
    msg = call[:4] + struct.pack(">4I", 1, 0, 0, len(verf)) + verf + bytes(4) + results
    s.sendall(struct.pack(">I", len(msg) | 1 << 31) + msg)

listener = socket.create_server(("127.0.0.1", 0))
listener.settimeout(20)
print(listener.getsockname()[1], flush=True)
s, _ = listener.accept()
s.settimeout(20)
probe = take(s)
assert len(probe) == 40 and struct.unpack(">9I", probe[4:]) == (0, 2, prog, 1, 0, 7, 0, 0, 0), probe
answer(s, probe, b"STARTTLS")
c = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
c.minimum_version = ssl.TLSVersion.TLSv1_3
c.load_cert_chain(cert, key)
c.load_verify_locations(ca)
c.verify_mode = ssl.CERT_REQUIRED
if name:
    c.set_alpn_protocols([name])
s = c.wrap_socket(s, server_side=True)
assert (s.selected_alpn_protocol() or "") == name and s.getpeercert(), s.selected_alpn_protocol()
call = take(s)
assert struct.unpack(">5I", call[4:24]) == (0, 2, prog, 1, echo), call[:40]
answer(s, call, b"", call[40:])
assert s.recv(1) == b""
`
