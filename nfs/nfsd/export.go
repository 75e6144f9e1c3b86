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

// A Squash selects the users of clients that are mapped to the anonymous one.
type Squash uint8

// Kinds of Squash.
const (
	SquashRoot Squash = iota // user and group 0
	SquashNone
	SquashAll
)

// String is the word for it: root, none or all.
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

// Nobody is the user and group that the anonymous user has by default.
const Nobody uint32 = 65534

// An Export is a file system that clients can mount.
type Export struct {
	// Name is the path that clients mount, such as "/data" or "/". It is cleaned in the sense
	// of path.Clean.
	Name string

	// FS is the file system. It belongs to the caller.
	FS FS

	// ID names the export in handles, instead of its Name. 0: derived from Name.
	ID uint32

	// ReadOnly refuses all changes.
	ReadOnly bool

	// Squash selects the users who become the anonymous user AnonUID with the group AnonGID, 0:
	// Nobody.
	Squash           Squash
	AnonUID, AnonGID uint32

	// Allow lists the networks of the clients that may use the export. Nil allows every client; a
	// list that is empty but not nil allows none. An unknown address is in no network.
	Allow []netip.Prefix

	// Auth decides further which calls may use the export, by what the caller has proved, for
	// instance: see middleware.Allow, which makes such functions, and rpc.Request.Peer. A call that is
	// refused gets the same answer as one from a network that is not in Allow. Nil: every call may.
	Auth func(req *rpc.Request) oncrpc.AuthStat

	// Flavors are the security flavors that calls may have, in the order in which MNT returns them. Those of Kerberos
	// need the Handler of NFS to be wrapped by an rpcsec.Server. A call with another flavor gets NFS3ERR_ACCES. Clients
	// may make GETATTR and FSINFO of the export's root with any while they mount it (RFC 2623 section 2.3.2). Nil:
	// AUTH_SYS and AUTH_NONE.
	Flavors []oncrpc.Flavor

	// Users maps the principals of Kerberos to users. Nil: all of them are the anonymous user.
	Users *Users

	verf *atomic.Uint64 // the server's part of the write verifier; SetExports keeps that of an ID
}

// settle checks the export and fills in the defaults.
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

// settleUsers fills in the defaults for callers.
func (e *Export) settleUsers() {
	e.AnonUID, e.AnonGID = cmp.Or(e.AnonUID, Nobody), cmp.Or(e.AnonGID, Nobody)
	if e.Flavors == nil {
		e.Flavors = []oncrpc.Flavor{oncrpc.FlavorSys, oncrpc.FlavorNone}
	}
}

// permits reports whether a request of a client may use the export.
func (e *Export) permits(req *rpc.Request, host netip.Addr) bool {
	return e.allows(host) && (e.Auth == nil || e.Auth(req) == oncrpc.AuthOK)
}

// allows reports whether a client may use the export, if its requests may.
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

// Caller returns the user that the export would execute req for, in memory of its own. ok is false if the export is not
// for the client's host, or the credential is not acceptable. It is for other programs that show files of the export.
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

// A claim is the user that a request says, or proves, to be from.
type claim struct {
	flavor    oncrpc.Flavor  // a pseudo-flavor for calls that Kerberos protects
	principal *rpc.Principal // with RPCSEC_GSS
	sys       oncrpc.AuthSys // its UID, GID and GIDs
}

// read reports whether the credential of a request is acceptable.
func (c *claim) read(req *rpc.Request) bool {
	c.flavor, c.principal = req.Cred.Flavor, nil
	switch c.flavor {
	case oncrpc.FlavorNone:
		return true
	case oncrpc.FlavorSys:
		sys, ok := req.AuthSys()
		if ok {
			c.sys.UID, c.sys.GID = sys.UID, sys.GID
			c.sys.GIDs = append(c.sys.GIDs[:0], sys.GIDs...) // squash changes them
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

// accepts reports whether calls with a flavor may use the export.
func (e *Export) accepts(from *claim) bool { return slices.Contains(e.Flavors, from.flavor) }

// noID is (uid_t)-1, which no user has, and means "leave it" to system calls.
const noID = math.MaxUint32

// squash sets the caller that a claim stands for. The claim has the memory of the caller's groups.
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
