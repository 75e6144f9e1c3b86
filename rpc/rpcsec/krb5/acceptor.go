package krb5

import (
	"cmp"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/jcmturner/gokrb5/v8/iana/flags"
	"github.com/jcmturner/gokrb5/v8/iana/keyusage"
	"github.com/jcmturner/gokrb5/v8/keytab"
	"github.com/jcmturner/gokrb5/v8/messages"
	"github.com/jcmturner/gokrb5/v8/types"

	"github.com/rpcrdma/rpcrdma/rpc/rpcsec"
)

const (
	// defaultSkew is the default of MIT Kerberos and Heimdal.
	defaultSkew = 5 * time.Minute

	// maxAuthenticators bounds the authenticators remembered in each of two generations, and maxOfClient those of one
	// client.
	maxAuthenticators = 1 << 16
	maxOfClient       = maxAuthenticators / 8
)

// AcceptorConfig configures an Acceptor.
type AcceptorConfig struct {
	// Keytab is the path of the keytab with the service's keys. It is read again when it changes. While it cannot be
	// read, no context is accepted, but established contexts continue to work.
	Keytab string

	// Service restricts clients to tickets for principals of the keytab with this first component, such as "nfs". ""
	// permits all.
	Service string

	// ClockSkew is the permitted difference from a client's clock. 0 means 5 minutes.
	ClockSkew time.Duration
}

// An Acceptor accepts contexts of Kerberos clients. It implements rpcsec.Acceptor. Its methods are safe for concurrent
// use.
type Acceptor struct {
	cfg  AcceptorConfig
	now  func() time.Time
	seen replays

	mu     sync.Mutex
	keys   *keytab.Keytab
	loaded fs.FileInfo
}

// NewAcceptor returns an Acceptor. It fails if the keytab cannot be used.
func NewAcceptor(cfg AcceptorConfig) (*Acceptor, error) {
	a := &Acceptor{cfg: cfg, now: time.Now}
	a.cfg.ClockSkew = cmp.Or(cfg.ClockSkew, defaultSkew)
	a.seen.keep = 2 * a.cfg.ClockSkew // how long an authenticator may be accepted
	keys, err := a.keytab()
	if err != nil {
		return nil, err
	}
	for _, e := range keys.Entries {
		if a.serves(e.Principal.Components) && keySize(e.Key.KeyType) > 0 {
			return a, nil
		}
	}
	return nil, fmt.Errorf("keytab %s has no AES key of a service %q", cfg.Keytab, cfg.Service)
}

// serves reports whether tickets for the principal called name are accepted.
func (a *Acceptor) serves(name []string) bool {
	return len(name) > 0 && (a.cfg.Service == "" || name[0] == a.cfg.Service)
}

// Realms returns, sorted, the realms of the services in the keytab for which clients may have tickets.
func (a *Acceptor) Realms() (realms []string) {
	keys, err := a.keytab()
	if err != nil {
		return nil
	}
	for _, e := range keys.Entries {
		if a.serves(e.Principal.Components) {
			realms = append(realms, e.Principal.Realm)
		}
	}
	slices.Sort(realms)
	return slices.Compact(realms)
}

// keytab returns the current keytab.
func (a *Acceptor) keytab() (*keytab.Keytab, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	info, err := os.Stat(a.cfg.Keytab)
	if err != nil {
		return nil, fmt.Errorf("keytab: %w", err)
	}
	if l := a.loaded; l != nil && os.SameFile(l, info) && l.ModTime().Equal(info.ModTime()) && l.Size() == info.Size() {
		return a.keys, nil
	}
	keys, err := keytab.Load(a.cfg.Keytab)
	if err != nil {
		return nil, fmt.Errorf("keytab %s: %w", a.cfg.Keytab, err)
	}
	a.keys, a.loaded = keys, info
	return keys, nil
}

// Accept returns a new context.
func (a *Acceptor) Accept() (rpcsec.Context, error) { return &accepting{acceptor: a}, nil }

// accepting is the context of an acceptor. One step establishes it.
type accepting struct {
	session
	acceptor *Acceptor
}

// Step replies to an AP-REQ: RFC 4120 section 3.2.3, RFC 4121 section 4.1.
func (c *accepting) Step(token []byte) (out []byte, done bool, err error) {
	id, msg, err := unframe(token)
	if err != nil {
		return nil, false, err
	}
	if id != tokenAPReq {
		return nil, false, bad(rpcsec.DefectiveToken, "token %#04x, want an AP-REQ", id)
	}
	var req messages.APReq
	if err := req.Unmarshal(msg); err != nil {
		return nil, false, status(rpcsec.DefectiveToken, &Error{Code: CodeMessageType, Err: fmt.Errorf("AP-REQ: %w", err)})
	}
	gss, err := c.acceptor.verify(&req)
	if err != nil {
		return nil, false, err
	}
	ticket, auth := &req.Ticket.DecryptedEncPart, &req.Authenticator
	c.peer = principal(ticket.CName, ticket.CRealm)
	c.expires = ticket.EndTime.Add(c.acceptor.cfg.ClockSkew)
	key := ticket.Key
	if auth.SubKey.KeyType != 0 {
		key = auth.SubKey
	}
	if gss&ctxMutual == 0 {
		return nil, true, c.establish(false, key, false, auth.SeqNumber)
	}
	key = newKey(key.KeyType)
	var random [4]byte
	rand.Read(random[:])
	seq := int64(binary.BigEndian.Uint32(random[:]) >> 2) // some libraries read it as a signed number
	rep, err := makeAPRep(messages.EncAPRepPart{CTime: auth.CTime, Cusec: auth.Cusec, Subkey: key, SequenceNumber: seq}, ticket.Key)
	if err != nil {
		return nil, false, err
	}
	return frame(tokenAPRep, rep), true, c.establish(false, key, true, seq)
}

// verify decrypts the ticket and the authenticator of req and returns the flags of the context.
func (a *Acceptor) verify(req *messages.APReq) (gss uint32, err error) {
	ticket := &req.Ticket
	e := &Error{Service: principal(ticket.SName, ticket.Realm)}
	fail := func(s rpcsec.Status, code Code, err error) (uint32, error) {
		e.Code, e.Err = code, err
		return 0, status(s, e)
	}
	if req.PVNO != 5 || ticket.TktVNO != 5 {
		return fail(rpcsec.DefectiveToken, CodeBadVersion, nil)
	}
	if !a.serves(ticket.SName.NameString) {
		return fail(rpcsec.NoCred, CodeNotUs, nil)
	}
	keys, err := a.keytab()
	if err != nil {
		return fail(rpcsec.NoCred, CodeNoKey, err)
	}
	key, _, err := keys.GetEncryptionKey(ticket.SName, ticket.Realm, ticket.EncPart.KVNO, ticket.EncPart.EType)
	if err != nil {
		return fail(rpcsec.NoCred, CodeNoKey, err)
	}
	plain, err := decrypt(ticket.EncPart, key, keyusage.KDC_REP_TICKET)
	if err != nil {
		return fail(rpcsec.DefectiveToken, CodeBadIntegrity, fmt.Errorf("ticket: %w", err))
	}
	part := &ticket.DecryptedEncPart
	if err := part.Unmarshal(plain); err != nil {
		return fail(rpcsec.DefectiveToken, CodeBadIntegrity, fmt.Errorf("ticket: %w", err))
	}
	e.Client = principal(part.CName, part.CRealm)
	now, skew := a.now(), a.cfg.ClockSkew
	start := part.StartTime
	if start.IsZero() {
		start = part.AuthTime
	}
	switch {
	case start.Sub(now) > skew || types.IsFlagSet(&part.Flags, flags.Invalid):
		return fail(rpcsec.Failure, CodeNotYetValid, fmt.Errorf("it is from %v, and here it is %v", start, now.UTC()))
	case now.Sub(part.EndTime) > skew:
		return fail(rpcsec.CredentialsExpired, CodeExpired, fmt.Errorf("it was valid until %v", part.EndTime))
	case part.CRealm != ticket.Realm && len(part.Transited.Contents) > 0 && !types.IsFlagSet(&part.Flags, flags.TransitedPolicyChecked):
		// RFC 4120 section 2.7: otherwise the acceptor must check the transited realms.
		return fail(rpcsec.Failure, CodeTransited, nil)
	}
	if plain, err = decrypt(req.EncryptedAuthenticator, part.Key, keyusage.AP_REQ_AUTHENTICATOR); err != nil {
		return fail(rpcsec.DefectiveToken, CodeBadIntegrity, fmt.Errorf("authenticator: %w", err))
	}
	auth := &req.Authenticator
	if err := auth.Unmarshal(plain); err != nil {
		return fail(rpcsec.DefectiveToken, CodeBadIntegrity, fmt.Errorf("authenticator: %w", err))
	}
	made := auth.CTime.Add(time.Duration(auth.Cusec) * time.Microsecond)
	gss, ok := parseChecksum(auth.Cksum)
	switch {
	case principal(auth.CName, auth.CRealm) != e.Client:
		return fail(rpcsec.DefectiveToken, CodeBadMatch, nil)
	case made.Sub(now).Abs() > skew:
		return fail(rpcsec.Failure, CodeSkew, fmt.Errorf("the client's clock says %v, this one %v", made, now.UTC()))
	case !ok:
		return fail(rpcsec.DefectiveToken, CodeBadChecksum, nil)
	case auth.SubKey.KeyType != 0 && checkKey(auth.SubKey) != nil:
		return fail(rpcsec.DefectiveToken, CodeBadIntegrity, checkKey(auth.SubKey))
	}
	// The hash of the decrypted text identifies the authenticator, because each has its own time, subkey and sequence
	// number.
	if err := a.seen.add(sha256.Sum256(plain), e.Client, now); err != nil {
		return fail(rpcsec.DuplicateToken|rpcsec.Failure, CodeRepeat, err)
	}
	return gss, nil
}

var (
	errSeen = errors.New("the authenticator was used before")
	errMany = errors.New("too many authenticators in a short time")
)

// replays remembers authenticators (RFC 4120 section 3.2.3) in two generations. It forgets each after between keep and
// twice keep.
type replays struct {
	keep time.Duration

	mu        sync.Mutex
	began     time.Time
	now, then map[[sha256.Size]byte]struct{}
	of        map[string]int // count in this generation, by client
}

// add returns an error if the authenticator was added before, or if there is no room for it.
func (r *replays) add(sum [sha256.Size]byte, client string, now time.Time) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.now == nil || now.Sub(r.began) > r.keep {
		if r.then = r.now; now.Sub(r.began) > 2*r.keep {
			r.then = nil
		}
		r.now, r.of, r.began = make(map[[sha256.Size]byte]struct{}), make(map[string]int), now
	}
	_, before := r.then[sum]
	_, again := r.now[sum]
	switch {
	case before || again:
		return errSeen
	case len(r.now) >= maxAuthenticators || r.of[client] >= maxOfClient:
		return errMany
	}
	r.now[sum] = struct{}{}
	r.of[client]++
	return nil
}
