package krb5

import (
	"bytes"
	"context"
	"crypto/aes"
	"encoding/hex"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jcmturner/gofork/encoding/asn1"
	"github.com/jcmturner/gokrb5/v8/asn1tools"
	"github.com/jcmturner/gokrb5/v8/crypto"
	"github.com/jcmturner/gokrb5/v8/crypto/rfc3961"
	"github.com/jcmturner/gokrb5/v8/gssapi"
	"github.com/jcmturner/gokrb5/v8/iana/asnAppTag"
	"github.com/jcmturner/gokrb5/v8/iana/etypeID"
	"github.com/jcmturner/gokrb5/v8/iana/flags"
	"github.com/jcmturner/gokrb5/v8/iana/keyusage"
	"github.com/jcmturner/gokrb5/v8/iana/msgtype"
	"github.com/jcmturner/gokrb5/v8/iana/nametype"
	"github.com/jcmturner/gokrb5/v8/keytab"
	"github.com/jcmturner/gokrb5/v8/messages"
	"github.com/jcmturner/gokrb5/v8/types"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/internal/testing/kdctest"
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
	k := kdctest.New(t, "EXAMPLE.COM")
	args := bytes.Repeat([]byte("text"), 5000)
	user := k.Keytab(t, "alice", kdctest.AES)
	for host, etype := range map[string]string{
		"a": "aes256-cts-hmac-sha384-192", "b": "aes128-cts-hmac-sha256-128",
		"c": "aes256-cts-hmac-sha1-96", "d": "aes128-cts-hmac-sha1-96",
	} {
		acceptor, err := NewAcceptor(AcceptorConfig{Keytab: k.Keytab(t, "nfs/"+host, etype+":normal"), Service: "nfs"})
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range []fabric.Provider{iwarp.New(iwarp.Config{}), transport.TCP{}} {
			cl := dial(t, p, rpcsec.NewServer(rpcsec.ServerConfig{Acceptor: acceptor, Required: true}))
			for _, service := range []rpc.Service{rpc.ServiceNone, rpc.ServiceIntegrity, rpc.ServicePrivacy} {
				cfg := InitiatorConfig{Service: "nfs@" + host, Config: k.Config, Keytab: user, Principal: "alice"}
				if service == rpc.ServiceIntegrity {
					k.Run(t, "", "kinit", "-k", "-t", user, "alice")
					cfg.Keytab, cfg.Principal, cfg.Cache = "", "", k.Cache
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
	k := kdctest.New(t, "EXAMPLE.COM")
	user, host := k.Keytab(t, "alice", kdctest.AES), k.Keytab(t, "nfs/a", kdctest.AES)
	other := k.Keytab(t, "nfs/b", kdctest.AES)
	i, err := NewInitiator(InitiatorConfig{Service: "nfs@a", Config: k.Config, Keytab: user, Principal: "alice@EXAMPLE.COM"})
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
	unknown, err := NewInitiator(InitiatorConfig{Service: "nfs@nowhere", Config: k.Config, Keytab: user, Principal: "alice"})
	if err != nil {
		t.Fatal(err)
	}
	var status *rpcsec.StatusError
	if _, err := unknown.Initiate(t.Context()); !errors.As(err, &status) || status.Status != rpcsec.NoCred {
		t.Errorf("a service that the KDC does not know: %v", err)
	}
}

var (
	user    = types.NewPrincipalName(nametype.KRB_NT_PRINCIPAL, "alice")
	service = types.NewPrincipalName(nametype.KRB_NT_SRV_HST, "nfs/a")
)

// keysOf writes the keytab of the service with a key of one version, of an encryption type, and returns it.
func keysOf(t testing.TB, path string, kvno uint8, etype int32) *keytab.Keytab {
	t.Helper()
	keys := keytab.New()
	err := keys.AddEntry("nfs/a", "EXAMPLE.COM", "password "+string('0'+kvno), time.Now(), kvno, etype)
	b, err2 := keys.Marshal()
	if err := errors.Join(err, err2, os.WriteFile(path+".new", b, 0o600), os.Rename(path+".new", path)); err != nil {
		t.Fatal(err)
	}
	return keys
}

// A forger has the key of the service, and makes tickets for it, also such as no KDC would.
type forger struct {
	keys   *keytab.Keytab
	ticket messages.Ticket
	part   messages.EncTicketPart
	auth   types.Authenticator
}

func newForger(t testing.TB, keys *keytab.Keytab) *forger {
	auth, err := types.NewAuthenticator("EXAMPLE.COM", user)
	if err != nil {
		t.Fatal(err)
	}
	auth.Cksum = gssChecksum(ctxMutual)
	return &forger{keys: keys, auth: auth,
		ticket: messages.Ticket{TktVNO: 5, Realm: "EXAMPLE.COM", SName: service},
		part: messages.EncTicketPart{
			Flags: types.NewKrbFlags(), Key: newKey(etypes[0]), CRealm: "EXAMPLE.COM", CName: user, AuthTime: time.Now(), EndTime: time.Now().Add(time.Hour),
		}}
}

// seal encrypts the ticket.
func (f *forger) seal() error {
	plain, err := asn1.Marshal(f.part)
	if err != nil {
		return err
	}
	key := f.keys.Entries[0].Key
	f.ticket.EncPart, err = crypto.GetEncryptedData(asn1tools.AddASNAppTag(plain, asnAppTag.EncTicketPart), key, keyusage.KDC_REP_TICKET, int(f.keys.Entries[0].KVNO))
	return err
}

// request returns the token with an authenticator.
func (f *forger) request(t testing.TB, plain []byte) []byte {
	t.Helper()
	sealed, err := crypto.GetEncryptedData(plain, f.part.Key, keyusage.AP_REQ_AUTHENTICATOR, 0)
	err = errors.Join(err, f.seal())
	req := messages.APReq{PVNO: 5, MsgType: msgtype.KRB_AP_REQ, APOptions: types.NewKrbFlags(), Ticket: f.ticket, EncryptedAuthenticator: sealed}
	msg, err2 := req.Marshal()
	if err := errors.Join(err, err2); err != nil {
		t.Fatal(err)
	}
	return frame(tokenAPReq, msg)
}

// Initiate is that of an honest client with the ticket.
func (f *forger) Initiate(context.Context) (rpcsec.Context, error) {
	err := f.seal()
	return &initiating{service: "nfs/a@EXAMPLE.COM", ticket: &ticket{Ticket: f.ticket, key: f.part.Key, client: user, clientRealm: f.part.CRealm, end: f.part.EndTime}}, err
}

// TestForged: what an acceptor refuses of tickets and authenticators that are encrypted as they should be.
func TestForged(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keytab")
	old := types.EncryptionKey{KeyType: etypeID.RC4_HMAC, KeyValue: make([]byte, 16)}
	across := func(f *forger) {
		f.part.CRealm, f.auth.CRealm = "OTHER.COM", "OTHER.COM"
		f.part.Transited = messages.TransitedEncoding{TRType: 1, Contents: []byte("MIDDLE.COM")}
	}
	for _, tt := range []struct {
		name  string
		etype int32
		edit  func(f *forger)
		want  Code
		who   string
	}{
		{"", etypes[0], func(*forger) {}, 0, ""},
		{"a client other than the ticket's", etypes[0], func(f *forger) { f.auth.CName = service }, CodeBadMatch, "alice@EXAMPLE.COM"},
		{"its realm", etypes[0], func(f *forger) { f.auth.CRealm = "OTHER.COM" }, CodeBadMatch, "alice@EXAMPLE.COM"},
		{"a ticket that is invalid", etypes[0], func(f *forger) { types.SetFlag(&f.part.Flags, flags.Invalid) }, CodeNotYetValid, "alice@EXAMPLE.COM"},
		{"one for tomorrow", etypes[0], func(f *forger) { f.part.StartTime = time.Now().Add(24 * time.Hour) }, CodeNotYetValid, "alice@EXAMPLE.COM"},
		{"one of yesterday", etypes[0], func(f *forger) { f.part.EndTime = time.Now().Add(-24 * time.Hour) }, CodeExpired, "alice@EXAMPLE.COM"},
		{"an authenticator of an hour ago", etypes[0], func(f *forger) { f.auth.CTime = time.Now().Add(-time.Hour) }, CodeSkew, "alice@EXAMPLE.COM"},
		{"realms on the way", etypes[0], across, CodeTransited, "alice@OTHER.COM"},
		{"realms on the way that the KDC has checked", etypes[0], func(f *forger) { across(f); types.SetFlag(&f.part.Flags, flags.TransitedPolicyChecked) }, 0, ""},
		{"a key of the service with RC4", old.KeyType, func(*forger) {}, CodeBadIntegrity, ""},
		{"a key of the session with RC4", etypes[0], func(f *forger) { f.part.Key = old }, CodeBadIntegrity, "alice@EXAMPLE.COM"},
		{"a key of the client with RC4", etypes[0], func(f *forger) { f.auth.SubKey = old }, CodeBadIntegrity, "alice@EXAMPLE.COM"},
		{"no checksum", etypes[0], func(f *forger) { f.auth.Cksum = types.Checksum{} }, CodeBadChecksum, "alice@EXAMPLE.COM"},
		{"a checksum cut short", etypes[0], func(f *forger) { f.auth.Cksum.Checksum = f.auth.Cksum.Checksum[:23] }, CodeBadChecksum, "alice@EXAMPLE.COM"},
		{"version 4", etypes[0], func(f *forger) { f.ticket.TktVNO = 4 }, CodeBadVersion, ""},
		{"another host", etypes[0], func(f *forger) { f.ticket.SName = types.NewPrincipalName(nametype.KRB_NT_SRV_HST, "nfs/b") }, CodeNoKey, ""},
	} {
		keysOf(t, path, 1, etypes[1]) // without an AES key there is no acceptor
		a, err := NewAcceptor(AcceptorConfig{Keytab: path, Service: "nfs"})
		if err != nil {
			t.Fatal(err)
		}
		f := newForger(t, keysOf(t, path, 1, tt.etype))
		tt.edit(f)
		plain, err := f.auth.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		c, _ := a.Accept()
		_, done, err := c.Step(f.request(t, plain))
		var got *Error
		if done != (tt.want == 0) || done != (err == nil) || err != nil && (!errors.As(err, &got) || got.Code != tt.want || got.Client != tt.who || !strings.HasPrefix(got.Service, "nfs/")) {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
}

// TestAnswers: an initiator refuses an AP-REP that is cut or changed anywhere, and one for another AP-REQ.
func TestAnswers(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keytab")
	f := newForger(t, keysOf(t, path, 1, etypes[0]))
	a, err := NewAcceptor(AcceptorConfig{Keytab: path})
	if err != nil {
		t.Fatal(err)
	}
	begin := func() (rpcsec.Context, []byte) {
		gss, err := f.Initiate(t.Context())
		token, _, err2 := gss.Step(nil)
		c, _ := a.Accept()
		answer, done, err3 := c.Step(token)
		if err := errors.Join(err, err2, err3); err != nil || !done {
			t.Fatal(err)
		}
		return gss, answer
	}
	gss, answer := begin()
	proof := bytes.Index(answer, []byte{0xa2}) + 30 // what follows is encrypted
	for n := range answer {
		changed := bytes.Clone(answer)
		changed[n] ^= 1
		_, cut, _ := gss.Step(bytes.Clone(answer[:n]))
		if _, done, _ := gss.Step(changed); cut || done && n >= proof {
			t.Errorf("an answer of %d bytes that is cut or changed at %d is accepted", len(answer), n)
		}
	}
	id, msg, err := unframe(answer)
	if _, done, _ := gss.Step(frame(id, append(bytes.Clone(msg), 0))); done || err != nil {
		t.Errorf("an answer with more is accepted: %v", err)
	}
	_, later := begin()
	var got *Error
	if _, done, err := gss.Step(later); done || !errors.As(err, &got) || got.Code != CodeBadMatch || got.Service != "nfs/a@EXAMPLE.COM" {
		t.Errorf("the answer to another request: %v", err)
	}
	if _, done, err := gss.Step(answer); err != nil || !done {
		t.Errorf("the answer: %v", err)
	}
}

// TestKeytabChanges: contexts live on while the keytab is gone, or half written, and none is made. New keys are used at once.
func TestKeytabChanges(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keytab")
	first := newForger(t, keysOf(t, path, 1, etypes[0]))
	a, err := NewAcceptor(AcceptorConfig{Keytab: path, Service: "nfs"})
	if err != nil {
		t.Fatal(err)
	}
	cl := dial(t, transport.TCP{}, rpcsec.NewServer(rpcsec.ServerConfig{Acceptor: a, Required: true, Logger: slog.New(slog.DiscardHandler)}))
	client := func(f *forger) *rpcsec.Client { return rpcsec.NewClient(cl, rpcsec.ClientConfig{Initiator: f}) }
	call := func(c *rpcsec.Client, want Code) {
		t.Helper()
		var got *Error
		err := c.Call(t.Context(), &rpc.Call{Prog: prog, Vers: 1, Proc: 1, MaxResults: 100})
		if (err == nil) != (want == 0) || err != nil && (!errors.As(err, &got) || got.Code != want) {
			t.Errorf("%v, want %v", err, want)
		}
	}
	established := client(first)
	call(established, 0)
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	call(established, 0)
	call(client(first), CodeNoKey)
	for n := range whole {
		if err := os.WriteFile(path, whole[:n], 0o600); err != nil {
			t.Fatal(err)
		}
		call(client(first), CodeNoKey)
	}
	second := newForger(t, keysOf(t, path, 2, etypes[0]))
	call(client(first), CodeNoKey)
	call(client(second), 0)
	call(established, 0)
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

// TestKnownKeys: the n-folds of RFC 3961 appendix A.1, which keys of RFC 3962 are derived with; the checksums and the
// pseudo-random text of RFC 8009 appendix A.
func TestKnownKeys(t *testing.T) {
	for _, tt := range []struct {
		text string
		bits int
		want string
	}{
		{"012345", 64, "be072631276b1955"}, {"password", 56, "78a07b6caf85fa"}, {"Rough Consensus, and Running Code", 64, "bb6ed30870b7f0e0"},
		{"password", 168, "59e4a8ca7c0385c3c37b3f6d2000247cb6e6bd5b3e"}, {"Q", 168, "518a54a215a8452a518a54a215a8452a518a54a215"},
		{"MASSACHVSETTS INSTITVTE OF TECHNOLOGY", 192, "db3b0d8f0b061e603282b308a50841229ad798fab9540c1b"},
		{"ba", 168, "fb25d531ae8974499f52fd92ea9857c4ba24cf297e"}, {"kerberos", 64, "6b65726265726f73"},
		{"kerberos", 128, "6b65726265726f737b9b5b2b93132b93"}, {"kerberos", 168, "8372c236344e5f1550cd0747e15d62ca7a5a3bcea4"},
		{"kerberos", 256, "6b65726265726f737b9b5b2b93132b935c9bdcdad95c9899c4cae4dee6d6cae4"},
	} {
		if got := hex.EncodeToString(rfc3961.Nfold([]byte(tt.text), tt.bits)); got != tt.want {
			t.Errorf("%q, %d bits: %s", tt.text, tt.bits, got)
		}
	}
	for _, tt := range []struct {
		etype         int32
		key, sum, prf string
	}{
		{etypeID.AES128_CTS_HMAC_SHA256_128, "3705d96080c17728a0e800eab6e0d23c", "d78367186643d67b411cba9139fc1dee",
			"9d188616f63852fe86915bb840b4a886ff3e6bb0f819b49b893393d393854295"},
		{etypeID.AES256_CTS_HMAC_SHA384_192, "6d404d37faf79f9df0d33568d320669800eb4836472ea8a026d16b7182460c52", "45ee791567eefca37f4ac1e0222de80d43c3bfa06699672a",
			"9801f69a368c2bf675e59521e177d9a07f67efe1cfde8d3c8d6f6a0256e3b17db3c1b62ad1b8553360d17367eb1514d2"},
	} {
		key := types.EncryptionKey{KeyType: tt.etype}
		key.KeyValue, _ = hex.DecodeString(tt.key)
		text, _ := hex.DecodeString("000102030405060708090a0b0c0d0e0f1011121314")
		s, err := newSigner(key, 2, deriveKc)
		if err != nil {
			t.Fatal(err)
		}
		if got := hex.EncodeToString(s.append(nil, text)); got != tt.sum {
			t.Errorf("etype %d: checksum %s", tt.etype, got)
		}
		if got, err := pseudoRandom(nil, key, []byte("test")); err != nil || hex.EncodeToString(got) != tt.prf {
			t.Errorf("etype %d: pseudo-random %x, %v", tt.etype, got, err)
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

// TestKnownStealing: the ciphertext of RFC 3962 appendix B, of a block or more, in which the last two are swapped.
func TestKnownStealing(t *testing.T) {
	const input = "I would like the General Gau's Chicken, please, and wonton soup."
	a, b, c := "97687268d6ecccc0c07b25e25ecfe584", "39312523a78662d5be7fcbcc98ebf5a8", "9dad8bbb96c4cdc03bc103e1a194bbd8"
	block, err := aes.NewCipher([]byte("chicken teriyaki"))
	if err != nil {
		t.Fatal(err)
	}
	for n, want := range map[int]string{
		17: "c6353568f2bf8cb4d8a580362da7ff7f97",
		31: "fc00783e0efdb2c1d445d4c8eff7ed22" + a[:30],
		32: b + a,
		47: a + "b3fffd940c16a18c1b5549d2f838029e" + b[:30],
		48: a + c + b,
		64: a + b + "4807efe836ee89a526730dbc2f7bc840" + c,
	} {
		text := []byte(input[:n])
		if encryptCTS(block, text); hex.EncodeToString(text) != want {
			t.Errorf("%d bytes: %x, want %s", n, text, want)
		}
		if decryptCTS(block, text); string(text) != input[:n] {
			t.Errorf("%d bytes come back as %q", n, text)
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

// FuzzAuthenticator: a client with a ticket encrypts what it likes.
func FuzzAuthenticator(f *testing.F) {
	path := filepath.Join(f.TempDir(), "keytab")
	forged := newForger(f, keysOf(f, path, 1, etypes[0]))
	plain, err := forged.auth.Marshal()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(plain)
	a, err := NewAcceptor(AcceptorConfig{Keytab: path})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, plain []byte) {
		c, _ := a.Accept()
		if _, done, _ := c.Step(forged.request(t, plain)); done && c.Peer() != "alice@EXAMPLE.COM" {
			t.Errorf("it is %s", c.Peer())
		}
	})
}

// FuzzAnswer: a server that has the key encrypts what it likes.
func FuzzAnswer(f *testing.F) {
	plain, err := asn1.Marshal(messages.EncAPRepPart{CTime: time.Unix(1e9, 0), Cusec: 5, Subkey: newKey(etypes[0])})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(asn1tools.AddASNAppTag(plain, asnAppTag.EncAPRepPart))
	key := newKey(etypes[0])
	f.Fuzz(func(t *testing.T, plain []byte) {
		sealed, err := crypto.GetEncryptedData(plain, key, keyusage.AP_REP_ENCPART, 0)
		if err != nil {
			t.Fatal(err)
		}
		msg, err := asn1.Marshal(messages.APRep{PVNO: 5, MsgType: msgtype.KRB_AP_REP, EncPart: sealed})
		if err != nil {
			t.Fatal(err)
		}
		i := &initiating{ticket: &ticket{key: key}, auth: types.Authenticator{AVNO: 5, CTime: time.Unix(1e9, 0), Cusec: 6}}
		if _, done, _ := i.Step(frame(tokenAPRep, asn1tools.AddASNAppTag(msg, asnAppTag.APREP))); done {
			t.Error("an answer to another request is accepted")
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
