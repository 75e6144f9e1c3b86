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
	maxUsers   = 4096 // that are remembered; then all are forgotten
)

// Users maps principals of Kerberos to users of this machine: with Table, and otherwise by Realm. All others are the anonymous
// user, those of machines and services among them, such as "host/client.example.com@EXAMPLE.COM". A user is remembered for
// 5 minutes. The fields must not change, and Users must not be copied, after the first use.
type Users struct {
	// Realm is the realm with users that have the names of local users: "alice@" and Realm is "alice". "": no realm has.
	Realm string

	// Table has the names of local users by principal, such as "backup/host@EXAMPLE.COM".
	Table map[string]string

	// Lookup returns the user with a name of this machine: its UID, GID and GIDs. It may block. Nil: LookupUser.
	Lookup func(name string) (oncrpc.AuthSys, error)

	mu    sync.Mutex
	known map[string]*knownUser // by principal
}

// A knownUser is what a principal is mapped to.
type knownUser struct {
	once  sync.Once
	found atomic.Bool // sys and ok are what they stay
	sys   oncrpc.AuthSys
	ok    bool
	until time.Time // guarded by Users.mu
}

// LookupUser returns a user of this machine with all groups, from the databases that the system uses.
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

// name returns the local user that a principal is, if it is one.
func (u *Users) name(principal string) (name string, ok bool) {
	if name, ok = u.Table[principal]; ok {
		return name, true
	}
	name, realm, _ := strings.Cut(principal, "@")
	return name, name != "" && u.Realm != "" && realm == u.Realm && !strings.ContainsAny(name, `/\`)
}

// find copies the user that a principal is mapped to into sys, or returns false. It may block; see Caller.Wait.
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
		sys.GIDs = append(sys.GIDs[:0], k.sys.GIDs...) // squash changes them
	}
	return k.ok
}

// look looks for the user that k is to have.
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
