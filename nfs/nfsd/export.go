package nfsd

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"path"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/rpcrdma/rpcrdma/nfs"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/rpc"
)

// A Squash selects which users of clients are mapped to the anonymous user.
type Squash uint8

// Kinds of Squash.
const (
	SquashRoot Squash = iota // user and group 0
	SquashNone
	SquashAll
)

// String returns root, none or all.
func (s Squash) String() string {
	switch s {
	case SquashRoot:
		return "root"
	case SquashNone:
		return "none"
	case SquashAll:
		return "all"
	}
	return fmt.Sprintf("Squash(%d)", uint8(s))
}

// Nobody is the default user and group of the anonymous user.
const Nobody uint32 = 65534

// An Export is a file system that clients can mount.
type Export struct {
	// Name is the path that clients mount, such as "/data" or "/". It is cleaned by path.Clean.
	Name string

	// FS is the file system. The caller owns it.
	FS FS

	// ID identifies the export in handles, in place of its Name. 0 means an ID derived from Name.
	ID uint32

	// ReadOnly rejects all changes.
	ReadOnly bool

	// Squash selects the users who become the anonymous user AnonUID with the group AnonGID. 0 means Nobody.
	Squash           Squash
	AnonUID, AnonGID uint32

	// Allow lists the networks of the clients that may use the export. Nil allows every client; an empty list that is
	// not nil allows none. An unknown address is in no network.
	Allow []netip.Prefix

	// Auth further restricts which calls may use the export, for instance by what the caller has proved: see
	// middleware.Allow, which makes such functions, and rpc.Request.Peer. A refused call gets the same answer as one
	// from a network that is not in Allow. Nil permits every call.
	Auth func(req *rpc.Request) oncrpc.AuthStat

	// Flavors lists the security flavors that calls may use, in the order in which MNT returns them. Those of Kerberos
	// require that an rpcsec.Server wraps the Handler of NFS. A call with another flavor fails with NFS3ERR_ACCES.
	// While mounting, clients may make GETATTR and FSINFO calls of the export's root with any flavor (RFC 2623 section
	// 2.3.2). Nil means AUTH_SYS and AUTH_NONE.
	Flavors []oncrpc.Flavor

	// Users maps Kerberos principals to users. Nil maps all of them to the anonymous user.
	Users *Users

	verf *atomic.Uint64 // the server's part of the write verifier; SetExports keeps it for the same ID
}

// settle checks the export and fills in defaults.
func (e *Export) settle() error {
	if e.FS == nil {
		return fmt.Errorf("nfsd: export %q has no file system", e.Name)
	}
	e.Name = path.Clean("/" + e.Name)
	if len(e.Name) > nfs.MaxMountPath || strings.ContainsRune(e.Name, 0) {
		return fmt.Errorf("nfsd: export %q: not a path of at most %d bytes", e.Name, nfs.MaxMountPath)
	}
	if e.Squash > SquashAll {
		return fmt.Errorf("nfsd: export %q: unknown %v", e.Name, e.Squash)
	}
	if e.ID == 0 {
		sum := sha256.Sum256([]byte(e.Name))
		e.ID = max(binary.BigEndian.Uint32(sum[:]), 1)
	}
	e.settleUsers()
	for _, p := range e.Allow {
		if !p.IsValid() {
			return fmt.Errorf("nfsd: export %q: an invalid network is allowed", e.Name)
		}
	}
	e.verf = new(atomic.Uint64)
	e.verf.Store(rand.Uint64())
	return nil
}

// settleUsers fills in the defaults that concern callers.
func (e *Export) settleUsers() {
	e.AnonUID, e.AnonGID = cmp.Or(e.AnonUID, Nobody), cmp.Or(e.AnonGID, Nobody)
	if e.Flavors == nil {
		e.Flavors = []oncrpc.Flavor{oncrpc.FlavorSys, oncrpc.FlavorNone}
	}
}

// permits reports whether a request from host may use the export.
func (e *Export) permits(req *rpc.Request, host netip.Addr) bool {
	return e.allows(host) && (e.Auth == nil || e.Auth(req) == oncrpc.AuthOK)
}

// allows reports whether Allow includes host.
func (e *Export) allows(host netip.Addr) bool {
	if e.Allow == nil {
		return true
	}
	for _, p := range e.Allow {
		if p.Contains(host) {
			return true
		}
	}
	return false
}

// Caller returns the user that the export would execute req for, in its own memory. ok is false if the client's host
// may not use the export, or if the credential is not acceptable. It is for programs that serve files of the export in
// other ways.
func (e *Export) Caller(req *rpc.Request) (who *Caller, ok bool) {
	who = &Caller{Host: req.Conn().RemoteAddrPort().Addr(), Net: req.Conn().Host()}
	var from claim
	if !from.read(req) {
		return nil, false
	}
	settled := *e
	settled.settleUsers()
	settled.squash(who, &from)
	return who, e.permits(req, who.Host) && settled.accepts(&from)
}

// claim is the user that a request claims, or proves, to come from.
type claim struct {
	flavor    oncrpc.Flavor  // a pseudo-flavor for Kerberos
	principal *rpc.Principal // for RPCSEC_GSS
	sys       oncrpc.AuthSys // UID, GID and GIDs are used
}

// read reads the credential of a request, and reports whether it is acceptable.
func (c *claim) read(req *rpc.Request) bool {
	c.flavor, c.principal = req.Cred.Flavor, nil
	switch c.flavor {
	case oncrpc.FlavorNone:
		return true
	case oncrpc.FlavorSys:
		sys, ok := req.AuthSys()
		if ok {
			c.sys.UID, c.sys.GID = sys.UID, sys.GID
			c.sys.GIDs = append(c.sys.GIDs[:0], sys.GIDs...) // copied, because squash modifies them
		}
		return ok
	case oncrpc.FlavorGSS:
		c.principal = req.Peer().Principal
		if p := c.principal; p != nil && p.Mechanism == "krb5" {
			c.flavor = oncrpc.FlavorKrb5 + oncrpc.Flavor(p.Service-rpc.ServiceNone)
		}
		return c.principal != nil
	}
	return false
}

// accepts reports whether the flavor of a claim may use the export.
func (e *Export) accepts(from *claim) bool { return slices.Contains(e.Flavors, from.flavor) }

// noID is (uid_t)-1. No user has it, and system calls take it as "no change".
const noID = math.MaxUint32

// squash sets who to the caller that a claim stands for. The caller's groups refer to memory of the claim.
func (e *Export) squash(who *Caller, from *claim) {
	cred := &from.sys
	known := from.flavor == oncrpc.FlavorSys || from.principal != nil && e.Users.find(from.principal.Name, cred, who)
	if !known || e.Squash == SquashAll || cred.UID == noID || cred.GID == noID {
		who.UID, who.GID, who.GIDs = e.AnonUID, e.AnonGID, nil
		return
	}
	who.UID, who.GID, who.GIDs = cred.UID, cred.GID, cred.GIDs
	root := e.Squash == SquashRoot
	if root && who.UID == 0 {
		who.UID = e.AnonUID
	}
	if root && who.GID == 0 {
		who.GID = e.AnonGID
	}
	for i, g := range who.GIDs {
		if root && g == 0 || g == noID {
			who.GIDs[i] = e.AnonGID
		}
	}
}
