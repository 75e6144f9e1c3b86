package krb5

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jcmturner/gokrb5/v8/client"
	"github.com/jcmturner/gokrb5/v8/config"
	"github.com/jcmturner/gokrb5/v8/credentials"
	"github.com/jcmturner/gokrb5/v8/iana/flags"
	"github.com/jcmturner/gokrb5/v8/iana/nametype"
	"github.com/jcmturner/gokrb5/v8/keytab"
	"github.com/jcmturner/gokrb5/v8/messages"
	"github.com/jcmturner/gokrb5/v8/types"

	"github.com/rpcrdma/rpcrdma/rpc/rpcsec"
)

// InitiatorConfig configures an Initiator.
type InitiatorConfig struct {
	// Service is the service and host to get tickets for: "nfs@server.example.com". The host name is not looked up in
	// DNS: it must be the one in the server's keytab.
	Service string

	// Config is the path of krb5.conf. "" means the environment variable KRB5_CONFIG, or else /etc/krb5.conf.
	Config string

	// Keytab and Principal are for logging in with a key. Principal is "alice@EXAMPLE.COM", or "alice" in the default
	// realm.
	Keytab, Principal string

	// Cache is the path of a credential cache file, as kinit writes it, to use if there is no Keytab. "" means the
	// environment variable KRB5CCNAME, or else /tmp/krb5cc_UID. Both keytab and cache are read again for each ticket.
	Cache string
}

// An Initiator begins contexts as a Kerberos client. It implements rpcsec.Initiator. It requests a ticket from the KDC
// and keeps it until it expires. Its methods are safe for concurrent use.
type Initiator struct {
	cfg     InitiatorConfig
	krb     *config.Config
	service types.PrincipalName

	mu     sync.Mutex
	ticket *ticket
}

// ticket is a ticket for the service.
type ticket struct {
	messages.Ticket
	key         types.EncryptionKey
	client      types.PrincipalName
	clientRealm string
	end         time.Time
}

// NewInitiator returns an Initiator. It does not contact the KDC yet.
func NewInitiator(cfg InitiatorConfig) (*Initiator, error) {
	service, host, ok := strings.Cut(cfg.Service, "@")
	if !ok || service == "" || host == "" {
		return nil, fmt.Errorf("service %q is not of the form nfs@host", cfg.Service)
	}
	path := cfg.Config
	if path == "" {
		path = os.Getenv("KRB5_CONFIG")
	}
	if path == "" {
		path = "/etc/krb5.conf"
	}
	krb, err := config.Load(path)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	for _, list := range []*[]int32{&krb.LibDefaults.DefaultTktEnctypeIDs, &krb.LibDefaults.DefaultTGSEnctypeIDs} {
		*list = permitted(*list)
	}
	return &Initiator{cfg: cfg, krb: krb, service: types.PrincipalName{NameType: nametype.KRB_NT_SRV_HST, NameString: []string{service, host}}}, nil
}

// permitted returns the supported encryption types in list, or all supported ones if it has none of them.
func permitted(list []int32) []int32 {
	list = slices.DeleteFunc(slices.Clone(list), func(e int32) bool { return keySize(e) == 0 })
	if len(list) == 0 {
		return etypes[:]
	}
	return list
}

// early is how long before its expiry a ticket is replaced.
const early = 10 * time.Second

// Initiate returns a new context. If there is no valid ticket, it requests one from the KDC.
func (i *Initiator) Initiate(ctx context.Context) (rpcsec.Context, error) {
	t, err := i.get(ctx)
	if err != nil {
		return nil, err
	}
	return &initiating{ticket: t, service: principal(i.service, t.Realm)}, nil
}

// get returns a valid ticket.
func (i *Initiator) get(ctx context.Context) (*ticket, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	i.mu.Lock()
	t := i.ticket
	i.mu.Unlock()
	if t != nil && time.Until(t.end) > early {
		return t, nil
	}
	type result struct {
		t   *ticket
		err error
	}
	came := make(chan result, 1)
	go func() { // the exchange cannot be interrupted, but ends after some seconds
		t, err := i.ask()
		came <- result{t, err}
	}()
	select {
	case r := <-came:
		if r.err != nil {
			return nil, r.err
		}
		i.mu.Lock()
		i.ticket = r.t
		i.mu.Unlock()
		return r.t, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// ask gets a ticket from the cache or from the KDC.
func (i *Initiator) ask() (*ticket, error) {
	tgt, err := i.login()
	if err != nil {
		return nil, err
	}
	if len(tgt.SName.NameString) > 0 && tgt.SName.NameString[0] != "krbtgt" {
		return tgt, nil // this is a ticket for the service already
	}
	cl := i.client(tgt.client, tgt.clientRealm, nil)
	defer cl.Destroy() // otherwise goroutines would keep renewing tickets after referrals
	me, what := principal(tgt.client, tgt.clientRealm), principal(i.service, tgt.clientRealm)
	realm := i.krb.ResolveRealm(i.service.NameString[1])
	if realm == "" {
		realm = tgt.clientRealm
	}
	if realm != tgt.clientRealm {
		cross := types.PrincipalName{NameType: nametype.KRB_NT_SRV_INST, NameString: []string{"krbtgt", realm}}
		_, rep, err := cl.TGSREQGenerateAndExchange(cross, tgt.clientRealm, tgt.Ticket, tgt.key, false)
		if err != nil {
			return nil, exchangeError(me, principal(cross, tgt.clientRealm), err)
		}
		tgt = &ticket{Ticket: rep.Ticket, key: rep.DecryptedEncPart.Key, client: tgt.client, clientRealm: tgt.clientRealm}
	}
	_, rep, err := cl.TGSREQGenerateAndExchange(i.service, realm, tgt.Ticket, tgt.key, false)
	if err != nil {
		return nil, exchangeError(me, what, err)
	}
	t := &ticket{Ticket: rep.Ticket, key: rep.DecryptedEncPart.Key, client: tgt.client, clientRealm: tgt.clientRealm, end: rep.DecryptedEncPart.EndTime}
	return t, checkKey(t.key)
}

// client returns a client of the KDC.
func (i *Initiator) client(name types.PrincipalName, realm string, keys *keytab.Keytab) *client.Client {
	cl := client.NewWithKeytab(strings.Join(name.NameString, "/"), realm, keys, i.krb, client.DisablePAFXFAST(true))
	cl.Credentials.SetCName(name)
	return cl
}

// login returns a ticket-granting ticket, or a service ticket if the cache has one.
func (i *Initiator) login() (*ticket, error) {
	if i.cfg.Keytab == "" {
		return i.cached()
	}
	name, realm, _ := strings.Cut(i.cfg.Principal, "@")
	if realm == "" {
		realm = i.krb.LibDefaults.DefaultRealm
	}
	keys, err := keytab.Load(i.cfg.Keytab)
	if err != nil {
		return nil, status(rpcsec.NoCred, &Error{Code: CodeNoKey, Client: i.cfg.Principal, Err: fmt.Errorf("keytab %s: %w", i.cfg.Keytab, err)})
	}
	who := types.NewPrincipalName(nametype.KRB_NT_PRINCIPAL, name)
	krb := *i.krb
	krb.LibDefaults.DefaultTktEnctypeIDs = slices.DeleteFunc(slices.Clone(krb.LibDefaults.DefaultTktEnctypeIDs), func(e int32) bool {
		_, _, err := keys.GetEncryptionKey(who, realm, 0, e)
		return err != nil
	})
	me := principal(who, realm)
	if len(krb.LibDefaults.DefaultTktEnctypeIDs) == 0 {
		return nil, status(rpcsec.NoCred, &Error{Code: CodeNoKey, Client: me, Err: fmt.Errorf("no AES key in %s", i.cfg.Keytab)})
	}
	req, err := messages.NewASReqForTGT(realm, &krb, who)
	if err != nil {
		return nil, err
	}
	cl := i.client(who, realm, keys)
	defer cl.Destroy()
	rep, err := cl.ASExchange(realm, req, 0)
	if err != nil {
		return nil, exchangeError(me, "", err)
	}
	return &ticket{Ticket: rep.Ticket, key: rep.DecryptedEncPart.Key, client: who, clientRealm: realm, end: rep.DecryptedEncPart.EndTime}, nil
}

var (
	errNoTGT = errors.New("no ticket that is valid, and none to get one with")
	errCache = errors.New("only caches in files are supported")
)

// cached returns a ticket from the cache: one for the service, or else one to obtain it with.
func (i *Initiator) cached() (*ticket, error) {
	path := i.cfg.Cache
	if path == "" {
		path = os.Getenv("KRB5CCNAME")
	}
	if path == "" {
		path = "/tmp/krb5cc_" + strconv.Itoa(os.Getuid())
	}
	none := func(err error) error {
		return status(rpcsec.NoCred, &Error{Code: CodeNoKey, Err: fmt.Errorf("credentials cache %s: %w", path, err)})
	}
	if kind, rest, ok := strings.Cut(path, ":"); ok && !strings.HasPrefix(path, "/") {
		if kind != "FILE" {
			return nil, none(errCache)
		}
		path = rest
	}
	cache, err := loadCache(path)
	if err != nil {
		return nil, none(err)
	}
	realm := cache.GetClientRealm()
	var found *ticket
	for _, c := range cache.GetEntries() {
		name := c.Server.PrincipalName
		service := name.Equal(i.service)
		if !service && !name.Equal(types.PrincipalName{NameString: []string{"krbtgt", realm}}) || time.Until(c.EndTime) < early {
			continue
		}
		t := &ticket{key: c.Key, client: cache.GetClientPrincipalName(), clientRealm: realm, end: c.EndTime}
		if err := t.Unmarshal(c.Ticket); err != nil {
			return nil, none(err)
		}
		if service && checkKey(t.key) != nil {
			continue
		}
		if found = t; service {
			break
		}
	}
	if found == nil {
		return nil, none(errNoTGT)
	}
	return found, nil
}

// loadCache reads a credential cache. The library panics on truncated files.
func loadCache(path string) (c *credentials.CCache, err error) {
	defer func() {
		if r := recover(); r != nil {
			c, err = nil, fmt.Errorf("not a credentials cache: %v", r)
		}
	}()
	return credentials.LoadCCache(path)
}

// initiating is the context of an initiator. Two steps establish it: one sends the AP-REQ, the other receives the
// AP-REP.
type initiating struct {
	session
	*ticket
	service string
	auth    types.Authenticator // zero before the AP-REQ is made
}

// Step makes the AP-REQ, and then reads the AP-REP: RFC 4121 section 4.1.
func (c *initiating) Step(token []byte) (out []byte, done bool, err error) {
	if c.auth.AVNO == 0 {
		out, err = c.request()
		return out, false, err
	}
	id, msg, err := unframe(token)
	if err != nil {
		return nil, false, err
	}
	switch id {
	case tokenAPRep:
	case tokenError:
		var e messages.KRBError
		if err := e.Unmarshal(msg); err != nil {
			return nil, false, bad(rpcsec.DefectiveToken, "KRB-ERROR: %w", err)
		}
		return nil, false, status(rpcsec.Failure, &Error{Code: Code(e.ErrorCode), Service: c.service})
	default:
		return nil, false, bad(rpcsec.DefectiveToken, "token %#04x, want an AP-REP", id)
	}
	part, err := openAPRep(msg, c.key)
	if err != nil {
		return nil, false, err
	}
	// RFC 4120 section 3.2.5: the times prove that the server has decrypted this authenticator.
	if !part.CTime.Equal(c.auth.CTime.Truncate(time.Second)) || part.Cusec != c.auth.Cusec {
		return nil, false, status(rpcsec.BadSig, &Error{Code: CodeBadMatch, Service: c.service, Err: errors.New("the AP-REP answers another AP-REQ")})
	}
	key, subkey := c.auth.SubKey, part.Subkey.KeyType != 0
	if subkey {
		if key = part.Subkey; checkKey(key) != nil {
			return nil, false, bad(rpcsec.DefectiveToken, "AP-REP: %w", checkKey(key))
		}
	}
	c.peer, c.expires = c.service, c.end
	return nil, true, c.establish(true, key, subkey, c.auth.SeqNumber)
}

// request returns the AP-REQ.
func (c *initiating) request() ([]byte, error) {
	auth, err := types.NewAuthenticator(c.clientRealm, c.client)
	if err != nil {
		return nil, err
	}
	var random [4]byte
	rand.Read(random[:])
	auth.SeqNumber = int64(binary.BigEndian.Uint32(random[:]) >> 2)
	auth.SubKey = newKey(c.key.KeyType)
	auth.Cksum = gssChecksum(ctxMutual | ctxConf | ctxInteg)
	req, err := messages.NewAPReq(c.Ticket, c.key, auth)
	if err != nil {
		return nil, err
	}
	types.SetFlag(&req.APOptions, flags.APOptionMutualRequired)
	msg, err := req.Marshal()
	if err != nil {
		return nil, err
	}
	c.auth = auth
	return frame(tokenAPReq, msg), nil
}
