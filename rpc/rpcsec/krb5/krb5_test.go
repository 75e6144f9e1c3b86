package krb5

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jcmturner/gokrb5/v8/crypto"
	"github.com/jcmturner/gokrb5/v8/gssapi"
	"github.com/jcmturner/gokrb5/v8/iana/etypeID"
	"github.com/jcmturner/gokrb5/v8/iana/keyusage"
	"github.com/jcmturner/gokrb5/v8/types"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/iwarp"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/rpc/rpcsec"
	"github.com/rpcrdma/rpcrdma/transport"
)

const prog = 0x20000778

// dial returns a client of a program with one procedure, which answers with the principal and the arguments.
func dial(t *testing.T, p fabric.Provider, sec *rpcsec.Server) *transport.Client {
	t.Helper()
	server, err := transport.NewServer(nil)
	if err != nil {
		t.Fatal(err)
	}
	handler := rpc.HandlerFunc(func(_ context.Context, req *rpc.Request, res *rpc.Response) {
		res.Results = append(xdr.AppendString(res.Results, req.Peer().Principal.Name), req.Args...)
	})
	if err := server.Register(rpc.Program{Number: prog, Low: 1, High: 1, Null: true, Handler: rpc.Chain(handler, sec.Wrap)}); err != nil {
		t.Fatal(err)
	}
	l, err := server.Listen(t.Context(), p, "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() { server.Serve(l) })
	t.Cleanup(func() { server.Close(); wg.Wait() })
	cl, err := transport.Dial(t.Context(), p, l.Addr().String(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cl.Close() })
	return cl
}

// TestKerberos: with tickets of MIT's KDC, of each encryption type, by a key and by what kinit has cached, both ends
// know each other and calls pass with each service.
func TestKerberos(t *testing.T) {
	k := newKDC(t)
	args := bytes.Repeat([]byte("text"), 5000)
	user := k.keytab(t, "alice", "aes256-cts-hmac-sha1-96:normal")
	for host, etype := range map[string]string{
		"a": "aes256-cts-hmac-sha384-192", "b": "aes128-cts-hmac-sha256-128",
		"c": "aes256-cts-hmac-sha1-96", "d": "aes128-cts-hmac-sha1-96",
	} {
		acceptor, err := NewAcceptor(AcceptorConfig{Keytab: k.keytab(t, "nfs/"+host, etype+":normal"), Service: "nfs"})
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range []fabric.Provider{iwarp.New(iwarp.Config{}), transport.TCP{}} {
			cl := dial(t, p, rpcsec.NewServer(rpcsec.ServerConfig{Acceptor: acceptor, Required: true}))
			for _, service := range []rpc.Service{rpc.ServiceNone, rpc.ServiceIntegrity, rpc.ServicePrivacy} {
				cfg := InitiatorConfig{Service: "nfs@" + host, Config: k.config, Keytab: user, Principal: "alice"}
				if service == rpc.ServiceIntegrity {
					k.run(t, "", "kinit", "-k", "-t", user, "alice")
					cfg.Keytab, cfg.Principal, cfg.Cache = "", "", k.cache()
				}
				i, err := NewInitiator(cfg)
				if err != nil {
					t.Fatal(err)
				}
				c := rpcsec.NewClient(cl, rpcsec.ClientConfig{Initiator: i, Service: service})
				call := rpc.Call{Prog: prog, Vers: 1, Proc: 1, Args: args, MaxResults: 100 + len(args)}
				want := append(xdr.AppendString(nil, "alice@EXAMPLE.COM"), args...)
				if err := c.Call(t.Context(), &call); err != nil || !bytes.Equal(call.Results, want) {
					t.Errorf("%s, %v: %v, %.40q", etype, service, err, call.Results)
				}
				if err := c.Close(t.Context()); err != nil {
					t.Error(err)
				}
			}
		}
	}
}

// TestRefused: what acceptors refuse, with the code that clients see.
func TestRefused(t *testing.T) {
	k := newKDC(t)
	user, host := k.keytab(t, "alice", "aes256-cts-hmac-sha1-96:normal"), k.keytab(t, "nfs/a", "aes256-cts-hmac-sha1-96:normal")
	other := k.keytab(t, "nfs/b", "aes256-cts-hmac-sha1-96:normal")
	i, err := NewInitiator(InitiatorConfig{Service: "nfs@a", Config: k.config, Keytab: user, Principal: "alice@EXAMPLE.COM"})
	if err != nil {
		t.Fatal(err)
	}
	gss, err := i.Initiate(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	token, _, err := gss.Step(nil)
	if err != nil {
		t.Fatal(err)
	}
	later := func(d time.Duration) func(*Acceptor) {
		return func(a *Acceptor) { a.now = func() time.Time { return time.Now().Add(d) } }
	}
	for _, tt := range []struct {
		name, keytab string
		change       func(a *Acceptor)
		steps        int
		want         Code
	}{
		{"", host, func(*Acceptor) {}, 1, 0},
		{"a replay", host, func(*Acceptor) {}, 2, CodeRepeat},
		{"a skew", host, later(6 * time.Minute), 1, CodeSkew},
		{"within the skew", host, later(4 * time.Minute), 1, 0},
		{"an old ticket", host, later(48 * time.Hour), 1, CodeExpired},
		{"a ticket from the future", host, later(-time.Hour), 1, CodeNotYetValid},
		{"another service", host, func(a *Acceptor) { a.cfg.Service = "host" }, 1, CodeNotUs},
		{"another host", other, func(*Acceptor) {}, 1, CodeNoKey},
		{"a keytab that is gone", host, func(a *Acceptor) { a.cfg.Keytab += ".gone" }, 1, CodeNoKey},
	} {
		a, err := NewAcceptor(AcceptorConfig{Keytab: tt.keytab, Service: "nfs"})
		if err != nil {
			t.Fatal(err)
		}
		tt.change(a)
		for range tt.steps {
			c, _ := a.Accept()
			_, _, err = c.Step(bytes.Clone(token))
		}
		var got *Error
		var status *rpcsec.StatusError
		if tt.want == 0 && err != nil || tt.want != 0 && (!errors.As(err, &got) || got.Code != tt.want || !errors.As(err, &status) || status.Minor != tt.want.Minor()) {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
	const proof = 100 // bytes at the end of the token, which are of the authenticator
	for n := range token {
		for _, bad := range [][]byte{token[:n], append(append(bytes.Clone(token[:n]), token[n]^0x41), token[n+1:]...)} {
			a, err := NewAcceptor(AcceptorConfig{Keytab: host})
			if err != nil {
				t.Fatal(err)
			}
			c, _ := a.Accept()
			if _, _, err := c.Step(bytes.Clone(bad)); err == nil && (len(bad) < len(token) || n >= len(token)-proof) {
				t.Errorf("a token of %d bytes, different at %d, is accepted", len(bad), n)
			}
		}
	}
	if _, err := NewAcceptor(AcceptorConfig{Keytab: host, Service: "host"}); err == nil {
		t.Error("a keytab without keys of the service is enough")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := i.Initiate(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("canceled: %v", err)
	}
	unknown, err := NewInitiator(InitiatorConfig{Service: "nfs@nowhere", Config: k.config, Keytab: user, Principal: "alice"})
	if err != nil {
		t.Fatal(err)
	}
	var status *rpcsec.StatusError
	if _, err := unknown.Initiate(t.Context()); !errors.As(err, &status) || status.Status != rpcsec.NoCred {
		t.Errorf("a service that the KDC does not know: %v", err)
	}
}

// TestCaches: files that are no caches of credentials.
func TestCaches(t *testing.T) {
	dir := t.TempDir()
	config := filepath.Join(dir, "krb5.conf")
	if err := os.WriteFile(config, []byte("[libdefaults]\n default_realm = EXAMPLE.COM\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"empty": "", "short": "\x05\x04\x00\x0c\x00\x01", "other": strings.Repeat("text", 100)} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		for _, cache := range []string{path, "FILE:" + path, "KEYRING:" + path, path + ".gone"} {
			i, err := NewInitiator(InitiatorConfig{Service: "nfs@a", Config: config, Cache: cache})
			if err != nil {
				t.Fatal(err)
			}
			var got *Error
			if _, err := i.Initiate(t.Context()); !errors.As(err, &got) || got.Code != CodeNoKey {
				t.Errorf("%s: %v", cache, err)
			}
		}
	}
}

// pair returns the two ends of a context with a key.
func pair(t testing.TB, key types.EncryptionKey) (initiator, acceptor *session) {
	t.Helper()
	initiator, acceptor = &session{}, &session{}
	if err := errors.Join(initiator.establish(true, key, true, 7), acceptor.establish(false, key, true, 1<<40)); err != nil {
		t.Fatal(err)
	}
	return initiator, acceptor
}

// wrap returns the token of msg.
func wrap(t testing.TB, s *session, msg []byte) []byte {
	t.Helper()
	b, err := s.Wrap(append(make([]byte, 3+s.WrapHead()), msg...), 3)
	if err != nil || len(b)-3 > s.WrapHead()+len(msg)+s.WrapTail() {
		t.Fatalf("token of %d bytes, %v", len(b), err)
	}
	return b[3:]
}

// TestTokens: another library makes and reads the same tokens, for each encryption type and many lengths. Those that
// have been changed, cut or turned back are refused.
func TestTokens(t *testing.T) {
	for _, etype := range etypes {
		key := newKey(etype)
		initiator, acceptor := pair(t, key)
		for n := range 100 {
			msg := bytes.Repeat([]byte{byte(n)}, n)
			mic, err := acceptor.AppendMIC(nil, msg)
			if err != nil || len(mic) != acceptor.MICSize() || initiator.VerifyMIC(msg, mic) != nil {
				t.Fatalf("etype %d: MIC of %d bytes, %v", etype, len(mic), err)
			}
			var theirs gssapi.MICToken
			if err := theirs.Unmarshal(mic, true); err != nil {
				t.Fatal(err)
			}
			theirs.Payload = msg
			if ok, err := theirs.Verify(key, keyusage.GSSAPI_ACCEPTOR_SIGN); !ok {
				t.Errorf("etype %d: gokrb5 does not believe a MIC: %v", etype, err)
			}
			token := wrap(t, initiator, msg)
			text, err := crypto.DecryptMessage(bytes.Clone(token[tokenHeader:]), key, keyusage.GSSAPI_INITIATOR_SEAL)
			if err != nil || !bytes.Equal(text, append(bytes.Clone(msg), token[:tokenHeader]...)) {
				t.Errorf("etype %d: gokrb5 reads %x, %v", etype, text, err)
			}
			// gokrb5 encrypts, with 3 bytes of filler and a rotation.
			head := []byte{5, 4, flagAcceptor | flagSealed | flagSubkey, 0xff, 0, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9}
			sealed, err := crypto.GetEncryptedData(append(append(bytes.Clone(msg), 1, 2, 3), head...), key, keyusage.GSSAPI_ACCEPTOR_SEAL, 0)
			if err != nil {
				t.Fatal(err)
			}
			body := sealed.Cipher
			head[7] = 28
			cut := len(body) - 28
			token = append(append(head, body[cut:]...), body[:cut]...)
			if got, err := initiator.Unwrap(token); err != nil || !bytes.Equal(got, msg) {
				t.Errorf("etype %d: of gokrb5's token of %d bytes, %x, %v", etype, n, got, err)
			}
		}
		msg := []byte("a message that is longer than two blocks")
		mic, _ := acceptor.AppendMIC(nil, msg)
		token := wrap(t, acceptor, msg)
		if acceptor.VerifyMIC(msg, mic) == nil || initiator.VerifyMIC(msg[1:], mic) == nil {
			t.Errorf("etype %d: a MIC turned back, or of another message, is believed", etype)
		}
		if _, err := acceptor.Unwrap(bytes.Clone(token)); err == nil {
			t.Errorf("etype %d: a token turned back is believed", etype)
		}
		for n := range mic {
			changed := bytes.Clone(mic)
			if changed[n] ^= 1; initiator.VerifyMIC(msg, changed) == nil || initiator.VerifyMIC(msg, mic[:n]) == nil {
				t.Errorf("etype %d: a MIC that differs at %d is believed", etype, n)
			}
		}
		for n := range token {
			changed := bytes.Clone(token)
			changed[n] ^= 1
			_, err := initiator.Unwrap(changed)
			if _, short := initiator.Unwrap(bytes.Clone(token[:n])); err == nil || short == nil {
				t.Errorf("etype %d: a token that differs at %d is believed", etype, n)
			}
		}
	}
}

// TestKnownText: what RFC 8009 appendix A has encrypted, with key usage 2.
func TestKnownText(t *testing.T) {
	for _, tt := range []struct {
		etype            int32
		key, plain, text string
	}{
		{etypeID.AES128_CTS_HMAC_SHA256_128, "3705d96080c17728a0e800eab6e0d23c", "000102030405",
			"84d7f30754ed987bab0bf3506beb09cfb55402cef7e6877ce99e247e52d16ed4421dfdf8976c"},
		{etypeID.AES256_CTS_HMAC_SHA384_192, "6d404d37faf79f9df0d33568d320669800eb4836472ea8a026d16b7182460c52", "000102030405",
			"4ed7b37c2bcac8f74f23c1cf07e62bc7b75fb3f637b9f559c7f664f69eab7b6092237526ea0d1f61cb20d69d10f2"},
		{etypeID.AES256_CTS_HMAC_SHA384_192, "6d404d37faf79f9df0d33568d320669800eb4836472ea8a026d16b7182460c52", "",
			"41f53fa5bfe7026d91faf9be959195a058707273a96a40f0a01960621ac612748b9bbfbe7eb4ce3c"},
	} {
		key, _ := hex.DecodeString(tt.key)
		text, _ := hex.DecodeString(tt.text)
		got, err := decrypt(types.EncryptedData{EType: tt.etype, Cipher: text}, types.EncryptionKey{KeyType: tt.etype, KeyValue: key}, 2)
		if err != nil || hex.EncodeToString(got) != tt.plain {
			t.Errorf("etype %d: %x, %v", tt.etype, got, err)
		}
	}
}

// TestReplays: an authenticator is remembered for as long as it would be accepted, and how many are is bounded.
func TestReplays(t *testing.T) {
	r, now := replays{keep: 10 * time.Minute}, time.Unix(1e9, 0)
	sum := func(n int) (s [32]byte) { s[0], s[1], s[2] = byte(n), byte(n>>8), byte(n>>16); return s }
	for n := range maxOfClient {
		if err := r.add(sum(n), "mallory", now); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		n      int
		client string
		after  time.Duration
		want   error
	}{
		{maxOfClient, "mallory", 0, errMany}, {maxOfClient, "alice", 0, nil}, {maxOfClient, "alice", 0, errSeen},
		{maxOfClient, "alice", 10 * time.Minute, errSeen}, {1, "mallory", 11 * time.Minute, errSeen}, {1, "mallory", 40 * time.Minute, nil},
	} {
		if err := r.add(sum(tt.n), tt.client, now.Add(tt.after)); err != tt.want {
			t.Errorf("%+v: %v", tt, err)
		}
	}
}

// TestPrincipals: no name passes for another.
func TestPrincipals(t *testing.T) {
	for want, name := range map[string][]string{
		"alice@R": {"alice"}, "nfs/host@R": {"nfs", "host"}, `nfs\/host@R`: {"nfs/host"}, `a\@R@R`: {"a@R"},
		`a\\@R`: {`a\`}, `a\nb?@R`: {"a\nb\x1b"},
	} {
		if got := principal(types.PrincipalName{NameString: name}, "R"); got != want {
			t.Errorf("%q is %q, want %q", name, got, want)
		}
	}
}

func FuzzUnwrap(f *testing.F) {
	initiator, acceptor := pair(f, newKey(etypes[0]))
	f.Add(wrap(f, acceptor, []byte("text")))
	f.Fuzz(func(t *testing.T, b []byte) {
		if _, err := acceptor.Unwrap(b); err == nil {
			t.Error("a forged token is accepted")
		}
		if initiator.VerifyMIC(b, b) == nil {
			t.Error("a forged MIC is accepted")
		}
	})
}

func FuzzStep(f *testing.F) {
	f.Add(frame(tokenAPReq, []byte{0x6e, 0x03, 0x30, 0x01, 0x00}))
	f.Add(frame(tokenAPRep, []byte{0x6f, 0x03, 0x30, 0x01, 0x00}))
	f.Fuzz(func(t *testing.T, b []byte) {
		c, _ := (&Acceptor{cfg: AcceptorConfig{Keytab: "/nonexistent"}, now: time.Now}).Accept()
		if _, _, err := c.Step(b); err == nil {
			t.Error("accepted without a key")
		}
		i := &initiating{ticket: &ticket{key: newKey(etypes[0])}, auth: types.Authenticator{AVNO: 5}}
		if _, _, err := i.Step(b); err == nil {
			t.Error("established without the server's key")
		}
	})
}
