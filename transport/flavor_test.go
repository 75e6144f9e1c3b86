package transport_test

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"math"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/iwarp"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/transport"
)

// A security flavor made of middleware, in the shape of RPCSEC_GSS with privacy (RFC 2203): the
// context is set up by NULL calls, the call's verifier signs its header, arguments and results are
// encrypted, and the reply's verifier signs the sequence number. The cryptography is a toy: it is XOR
// with a stream made of HMACs, and no key should be exchanged like this.

const (
	toyData, toyInit = 0, 1 // gss_proc, RFC 2203 section 5
	toyPrivacy       = 3
	toyWindow        = 1024 // sequence numbers; a caller that is held up falls behind others
	toyOverhead      = 4 + 4 + sha256.Size
)

// A toyCred is the body of a credential. RFC 2203 section 5.3.1.
type toyCred struct{ proc, seq, handle uint32 }

func (c *toyCred) auth() oncrpc.Auth {
	var b []byte
	for _, w := range []uint32{1, c.proc, c.seq, toyPrivacy, 4, c.handle} {
		b = xdr.AppendUint32(b, w)
	}
	return oncrpc.Auth{Flavor: oncrpc.FlavorGSS, Body: b}
}

func (c *toyCred) decode(a oncrpc.Auth) bool {
	d := xdr.NewDecoder(a.Body)
	vers, proc, seq, service, n, handle := d.Uint32(), d.Uint32(), d.Uint32(), d.Uint32(), d.Uint32(), d.Uint32()
	*c = toyCred{proc, seq, handle}
	return a.Flavor == oncrpc.FlavorGSS && d.End() == nil && vers == 1 && service == toyPrivacy && n == 4 && proc <= toyInit
}

func toyMAC(key []byte, what string, parts ...[]byte) []byte {
	h := hmac.New(sha256.New, key)
	h.Write([]byte(what))
	for _, p := range parts {
		h.Write(p)
	}
	return h.Sum(nil)
}

func toyVerf(mac []byte) oncrpc.Auth { return oncrpc.Auth{Flavor: oncrpc.FlavorGSS, Body: mac} }

// toyCrypt encrypts or decrypts b in place.
func toyCrypt(key []byte, what string, seq uint32, b []byte) {
	var at [8]byte
	binary.BigEndian.PutUint32(at[:], seq)
	for i := 0; len(b) > 0; i++ {
		binary.BigEndian.PutUint32(at[4:], uint32(i))
		for j, k := range toyMAC(key, what, at[:]) {
			if j < len(b) {
				b[j] ^= k
			}
		}
		b = b[min(len(b), sha256.Size):]
	}
}

// toySeal returns an opaque<> of the sequence number, body and a MAC, encrypted.
func toySeal(key []byte, what string, seq uint32, body []byte) []byte {
	b := append(binary.BigEndian.AppendUint32(nil, seq), body...)
	b = append(b, toyMAC(key, what, b)...)
	toyCrypt(key, what, seq, b)
	return xdr.AppendOpaque(nil, b)
}

// toyOpen undoes toySeal.
func toyOpen(key []byte, what string, seq uint32, sealed []byte) (body []byte, ok bool) {
	d := xdr.NewDecoder(sealed)
	b := bytes.Clone(d.Opaque(math.MaxInt32))
	if d.End() != nil || len(b) < 4+sha256.Size {
		return nil, false
	}
	toyCrypt(key, what, seq, b)
	n := len(b) - sha256.Size
	return b[4:n], hmac.Equal(b[n:], toyMAC(key, what, b[:n])) && binary.BigEndian.Uint32(b) == seq
}

// ---- the server

// A toyServer is the server's half. Its wrap is an rpc.Middleware.
type toyServer struct {
	secret []byte
	liar   atomic.Bool // it signs replies wrongly

	mu       sync.Mutex
	contexts map[uint32]*toyContext
}

type toyContext struct {
	key  []byte
	last uint32 // the highest sequence number
	seen [toyWindow]uint32
}

// take accepts a sequence number, once.
func (c *toyContext) take(seq uint32) bool {
	if seq+toyWindow <= c.last || c.seen[seq%toyWindow] == seq || seq == 0 {
		return false
	}
	c.seen[seq%toyWindow], c.last = seq, max(c.last, seq)
	return true
}

func (s *toyServer) wrap(next rpc.Handler) rpc.Handler {
	return rpc.HandlerFunc(func(ctx context.Context, req *rpc.Request, res *rpc.Response) {
		var cred toyCred
		switch ok := cred.decode(req.Cred); {
		case !ok:
			res.Deny(oncrpc.AuthBadCred)
		case cred.proc == toyInit && req.Proc == 0:
			s.set(req, res)
		case cred.proc == toyInit:
			res.Deny(oncrpc.AuthBadCred)
		default:
			s.serve(ctx, &cred, req, res, next)
		}
	})
}

// set makes a context: RFC 2203 section 5.2.2.
func (s *toyServer) set(req *rpc.Request, res *rpc.Response) {
	s.mu.Lock()
	defer s.mu.Unlock()
	handle, nonce := uint32(len(s.contexts)+1), make([]byte, 16)
	rand.Read(nonce)
	key := toyMAC(s.secret, "key", req.Args, nonce)
	s.contexts[handle] = &toyContext{key: key}
	res.Results = append(xdr.AppendUint32(res.Results, handle), nonce...)
	res.Verf = toyVerf(toyMAC(key, "window"))
}

// serve has a call executed that is in order: RFC 2203 section 5.3.3.
func (s *toyServer) serve(ctx context.Context, cred *toyCred, req *rpc.Request, res *rpc.Response, next rpc.Handler) {
	header := oncrpc.AppendCall(nil, &oncrpc.CallHeader{
		XID: req.XID, RPCVers: oncrpc.Version, Prog: req.Prog, Vers: req.Vers, Proc: req.Proc, Cred: req.Cred,
	})
	header = header[:len(header)-8] // up to the credential
	s.mu.Lock()
	c := s.contexts[cred.handle]
	ok := c != nil && hmac.Equal(req.Verf.Body, toyMAC(c.key, "header", header)) && c.take(cred.seq)
	s.mu.Unlock()
	if !ok {
		res.Deny(oncrpc.AuthGSSCred)
		return
	}
	var seq [4]byte
	binary.BigEndian.PutUint32(seq[:], cred.seq)
	if res.Verf = toyVerf(toyMAC(c.key, "reply", seq[:])); s.liar.Load() {
		res.Verf.Body[3] ^= 1
	}
	args, ok := toyOpen(c.key, "arguments", cred.seq, req.Args)
	if !ok {
		res.Fail(oncrpc.GarbageArgs)
		return
	}
	req.SetArgs(args)
	res.Reserve(toyOverhead)
	next.ServeRPC(ctx, req, res)
	if h := res.Status(); h.Err() != nil {
		return
	}
	if !res.Join() {
		res.Fail(oncrpc.SystemErr)
		return
	}
	res.Results = toySeal(c.key, "results", cred.seq, res.Results)
}

// ---- the client

var errToyServer = errors.New("it is not the server that answers")

// A toyCaller is the client's half, around a Caller.
type toyCaller struct {
	next   rpc.Caller
	key    []byte
	handle uint32
	seq    atomic.Uint32
	tamper func(call *rpc.Call) // with what is sent
}

// newToyCaller sets up a context.
func newToyCaller(next rpc.Caller, secret []byte) (*toyCaller, error) {
	nonce := make([]byte, 16)
	rand.Read(nonce)
	cred := toyCred{proc: toyInit}
	call := rpc.Call{Prog: prog, Vers: 1, Cred: cred.auth(), Args: nonce, MaxResults: 100}
	if err := next.Call(bg, &call); err != nil {
		return nil, err
	}
	d := xdr.NewDecoder(call.Results)
	c := &toyCaller{next: next, handle: d.Uint32(), tamper: func(*rpc.Call) {}}
	c.key = toyMAC(secret, "key", nonce, d.FixedOpaque(16))
	if d.End() != nil || !hmac.Equal(call.Reply.Verf.Body, toyMAC(c.key, "window")) {
		return nil, errToyServer
	}
	return c, nil
}

// Call makes another call of call, in an envelope, without items.
func (c *toyCaller) Call(ctx context.Context, call *rpc.Call) error {
	cred := toyCred{seq: c.seq.Add(1), handle: c.handle}
	sealed := rpc.Call{
		Prog: call.Prog, Vers: call.Vers, Proc: call.Proc, Cred: cred.auth(),
		Sign:       func(header []byte) oncrpc.Auth { return toyVerf(toyMAC(c.key, "header", header)) },
		Args:       toySeal(c.key, "arguments", cred.seq, call.AppendArgs(nil)),
		MaxResults: call.MaxResults + toyOverhead,
	}
	for i := range call.WriteItems {
		call.WriteItems[i].Chunked = false
		sealed.MaxResults += xdr.Padded(len(call.WriteItems[i].Buf))
	}
	c.tamper(&sealed)
	err := c.next.Call(ctx, &sealed)
	call.Reply = sealed.Reply
	if err != nil {
		return err
	}
	var seq [4]byte
	binary.BigEndian.PutUint32(seq[:], cred.seq)
	results, ok := toyOpen(c.key, "results", cred.seq, sealed.Results)
	if !ok || !hmac.Equal(sealed.Reply.Verf.Body, toyMAC(c.key, "reply", seq[:])) {
		return errToyServer
	}
	call.Results = results
	return nil
}

// ---- the tests

// TestFlavor: V1-11-1 middleware of both ends is enough for a flavor that authenticates both, and
// encrypts what they say. Nothing that is protected goes to a chunk of its own.
func TestFlavor(t *testing.T) {
	secret := []byte("known to both")
	toy := &toyServer{secret: secret, contexts: make(map[uint32]*toyContext)}
	svc := &service{}
	program := rpc.Program{Number: prog, Low: 1, High: 1, Null: true, Handler: rpc.Chain(svc, toy.wrap),
		Inline: func(_, proc uint32) bool { return proc == procEcho }}
	onBoth(t, nil, nil, []rpc.Program{program}, func(t *testing.T, cl *transport.Client) {
		c, err := newToyCaller(cl, secret)
		if err != nil {
			t.Fatal(err)
		}
		data, buf := make([]byte, 1<<20), make([]byte, 1<<20)
		fill(data, 8)
		var call rpc.Call
		for _, n := range []int{0, 1, 64, 3900, 3960, 4000, 4096, 70000, 1<<20 - 1} {
			for _, proc := range []uint32{procEcho, procSlow} {
				clear(buf)
				if err := echo(c, proc, data[:n], buf, &call); err != nil {
					t.Errorf("%d bytes, procedure %d: %v", n, proc, err)
				}
			}
		}
		if st := cl.Stats(); st.ReadChunk+st.WriteChunk > 0 || cl.Info().Provider != "tcp" && (st.LongCall == 0 || st.ReplyChunk == 0) {
			t.Errorf("protected calls went as %+v", st)
		}
		long := rpc.Call{Prog: prog, Vers: 1, Proc: procLong, Args: xdr.AppendUint32(nil, 5000), MaxResults: 20000}
		if err := c.Call(bg, &long); err != nil || len(long.Results) != 20000 || long.Results[19999] != 5000%256-1 {
			t.Errorf("long results: %v, %d bytes", err, len(long.Results))
		}
		if err := c.Call(bg, &rpc.Call{Prog: prog, Vers: 1}); err == nil {
			t.Error("procedure 0 has been executed by a handler that has none")
		}
		toyParallel(t, c)
		toyRefusals(t, c, toy)
	})
}

// toyParallel makes calls at once, more than there are credits at first.
func toyParallel(t *testing.T, c *toyCaller) {
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			var call rpc.Call
			data, buf := []byte("some bytes that are secret"), make([]byte, 100)
			for range 50 {
				if err := echo(c, procEcho, data, buf, &call); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
}

// toyRefusals: what is not in order is refused, and the connection goes on.
func toyRefusals(t *testing.T, c *toyCaller, toy *toyServer) {
	good := c.tamper
	for _, tt := range []struct {
		name   string
		tamper func(call *rpc.Call)
		accept oncrpc.AcceptStat
		auth   oncrpc.AuthStat
	}{
		{"another key for the header", func(call *rpc.Call) {
			call.Sign = func(header []byte) oncrpc.Auth { return toyVerf(toyMAC([]byte("guess"), "header", header)) }
		}, 0, oncrpc.AuthGSSCred},
		{"no verifier", func(call *rpc.Call) { call.Sign = nil }, 0, oncrpc.AuthGSSCred},
		{"a context that there is not", func(call *rpc.Call) {
			call.Cred = (&toyCred{seq: c.seq.Load(), handle: 999}).auth()
		}, 0, oncrpc.AuthGSSCred},
		{"a sequence number again", func(call *rpc.Call) {
			call.Cred = (&toyCred{seq: 2, handle: c.handle}).auth()
		}, 0, oncrpc.AuthGSSCred},
		{"a credential cut short", func(call *rpc.Call) { call.Cred.Body = call.Cred.Body[:20] }, 0, oncrpc.AuthBadCred},
		{"AUTH_SYS", func(call *rpc.Call) { call.Cred = (&oncrpc.AuthSys{}).Auth() }, 0, oncrpc.AuthBadCred},
		{"other arguments", func(call *rpc.Call) { call.Args[9] ^= 4 }, oncrpc.GarbageArgs, 0},
		{"arguments cut short", func(call *rpc.Call) { call.Args = call.Args[:8] }, oncrpc.GarbageArgs, 0},
	} {
		c.tamper = tt.tamper
		err := c.Call(bg, &rpc.Call{Prog: prog, Vers: 1, Proc: procLong, Args: xdr.AppendUint32(nil, 3), MaxResults: 100})
		var got *oncrpc.RPCError
		if !errors.As(err, &got) || got.AcceptStat != tt.accept || got.AuthStat != tt.auth {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
	c.tamper = good
	toy.liar.Store(true)
	three := rpc.Call{Prog: prog, Vers: 1, Proc: procLong, Args: xdr.AppendUint32(nil, 3), MaxResults: 100}
	if err := c.Call(bg, &three); err != errToyServer {
		t.Errorf("a server that does not know the key: %v", err)
	}
	toy.liar.Store(false)
	if err := c.Call(bg, &three); err != nil || len(three.Results) != 12 {
		t.Errorf("after all: %v", err)
	}
}

// TestSignedCalls: a call that is sent again has the xid that was signed, and its reply comes from
// the reply cache, though the wrapper would not execute it twice.
func TestSignedCalls(t *testing.T) {
	secret := []byte("known to both")
	for name, p := range map[string]fabric.Provider{"iwarp": iwarp.New(iwarp.Config{}), "TCP": transport.TCP{}} {
		t.Run(name, func(t *testing.T) {
			toy := &toyServer{secret: secret, contexts: make(map[uint32]*toyContext)}
			var executed atomic.Int32
			handler := func(_ context.Context, req *rpc.Request, res *rpc.Response) {
				if executed.Add(1) == 3 {
					req.Conn().Close() // the reply to the third gets lost
					<-req.Conn().Done()
				}
				res.Results = append(res.Results, req.Args...)
			}
			addr := serveNew(t, p, nil, []rpc.Program{{Number: prog, Low: 1, High: 1, Null: true,
				Handler: rpc.Chain(rpc.HandlerFunc(handler), toy.wrap)}})
			cl := dialNew(t, p, addr, nil)
			c, err := newToyCaller(cl, secret)
			if err != nil {
				t.Fatal(err)
			}
			signed := 0
			c.tamper = func(call *rpc.Call) {
				sign := call.Sign
				call.Sign = func(header []byte) oncrpc.Auth { signed++; return sign(header) }
			}
			for i := range uint32(5) {
				call := rpc.Call{Prog: prog, Vers: 1, Proc: 1, Args: xdr.AppendUint32(nil, i), MaxResults: 100}
				if err := c.Call(bg, &call); err != nil || !bytes.Equal(call.Results, call.Args) {
					t.Errorf("call %d: %v", i, err)
				}
			}
			if st := cl.Stats(); st.Conns != 2 || st.Resent != 1 || executed.Load() != 5 || signed != 5 {
				t.Errorf("%d connections, %d calls sent again, %d executed, %d signed", st.Conns, st.Resent, executed.Load(), signed)
			}
		})
	}
}
