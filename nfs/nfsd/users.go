package nfsd

import (
	"fmt"
	"os/user"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
)

const (
	keepUser   = 5 * time.Minute
	keepNobody = 30 * time.Second
	maxUsers   = 4096 // remembered users; beyond it all are forgotten
)

// Users maps Kerberos principals to users of this machine: first by Table, then by Realm. All other principals map to
// the anonymous user, including those of machines and services such as "host/client.example.com@EXAMPLE.COM". A user is
// cached for 5 minutes. After the first use, the fields must not change and Users must not be copied.
type Users struct {
	// Realm is the realm in which users have the names of local users: "alice@" followed by Realm is "alice". "" means
	// none.
	Realm string

	// Table maps principals, such as "backup/host@EXAMPLE.COM", to names of local users.
	Table map[string]string

	// Lookup returns the UID, GID and GIDs of a user of this machine. It may block. Nil means LookupUser.
	Lookup func(name string) (oncrpc.AuthSys, error)

	mu    sync.Mutex
	known map[string]*knownUser // by principal
}

// knownUser is what a principal maps to.
type knownUser struct {
	once  sync.Once
	found atomic.Bool // sys and ok are set and final
	sys   oncrpc.AuthSys
	ok    bool
	until time.Time // guarded by Users.mu
}

// LookupUser returns a user of this machine with all groups, from the system's user databases.
func LookupUser(name string) (oncrpc.AuthSys, error) {
	u, err := user.Lookup(name)
	if err != nil {
		return oncrpc.AuthSys{}, err
	}
	groups, err := u.GroupIds()
	if err != nil {
		return oncrpc.AuthSys{}, err
	}
	ids := make([]uint32, 0, 2+len(groups))
	for _, s := range append([]string{u.Uid, u.Gid}, groups...) {
		id, err := strconv.ParseUint(s, 10, 32)
		if err != nil {
			return oncrpc.AuthSys{}, fmt.Errorf("user %q: %w", name, err)
		}
		ids = append(ids, uint32(id))
	}
	return oncrpc.AuthSys{UID: ids[0], GID: ids[1], GIDs: ids[2:]}, nil
}

// name returns the local user that a principal maps to, if any.
func (u *Users) name(principal string) (name string, ok bool) {
	if name, ok = u.Table[principal]; ok {
		return name, true
	}
	name, realm, _ := strings.Cut(principal, "@")
	return name, name != "" && u.Realm != "" && realm == u.Realm && !strings.ContainsAny(name, `/\`)
}

// find copies the user that a principal maps to into sys. It returns false if none exists. It may block; see
// Caller.Wait.
func (u *Users) find(principal string, sys *oncrpc.AuthSys, who *Caller) bool {
	if u == nil {
		return false
	}
	u.mu.Lock()
	now := time.Now()
	k := u.known[principal]
	if k == nil || now.After(k.until) {
		if u.known == nil || len(u.known) >= maxUsers {
			u.known = make(map[string]*knownUser)
		}
		k = &knownUser{until: now.Add(keepUser)}
		u.known[principal] = k
	}
	u.mu.Unlock()
	if !k.found.Load() {
		_ = who.Wait(func() error { k.once.Do(func() { u.look(principal, k) }); return nil })
	}
	if k.ok {
		sys.UID, sys.GID = k.sys.UID, k.sys.GID
		sys.GIDs = append(sys.GIDs[:0], k.sys.GIDs...) // copied, because squash modifies them
	}
	return k.ok
}

// look looks up the user for k.
func (u *Users) look(principal string, k *knownUser) {
	if name, ok := u.name(principal); ok {
		lookup := u.Lookup
		if lookup == nil {
			lookup = LookupUser
		}
		sys, err := lookup(name)
		k.sys, k.ok = sys, err == nil
	}
	k.found.Store(true)
	if !k.ok {
		u.mu.Lock()
		k.until = time.Now().Add(keepNobody)
		u.mu.Unlock()
	}
}
