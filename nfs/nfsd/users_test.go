package nfsd

import (
	"context"
	"errors"
	"fmt"
	"os/user"
	"strings"
	"testing"

	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
	"github.com/rpcrdma/rpcrdma/nfs"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/rpc"
)

// proved believes credentials that prove made.
func proved(next rpc.Handler) rpc.Handler {
	return rpc.HandlerFunc(func(ctx context.Context, req *rpc.Request, res *rpc.Response) {
		if name, ok := strings.CutPrefix(string(req.Cred.Body), "proved "); ok && req.Cred.Flavor == oncrpc.FlavorGSS {
			req.SetPrincipal(&rpc.Principal{Mechanism: "krb5", Name: name[1:], Service: rpc.Service(name[0] - '0')})
		}
		next.ServeRPC(ctx, req, res)
	})
}

func prove(service rpc.Service, name string) oncrpc.Auth {
	return oncrpc.Auth{Flavor: oncrpc.FlavorGSS, Body: fmt.Appendf(nil, "proved %d%s", service, name)}
}

// newUsers has alice, and the administrator of the realm as root.
func newUsers() *Users {
	return &Users{
		Realm: "EXAMPLE.COM",
		Table: map[string]string{
			"backup/host@EXAMPLE.COM": "alice", "bob@EXAMPLE.COM": "gone", "alice@OTHER.COM": "alice", "admin@EXAMPLE.COM": "root",
		},
		Lookup: func(name string) (oncrpc.AuthSys, error) {
			switch name {
			case "alice", "host", "nfs", `a\`, "":
				return oncrpc.AuthSys{UID: 1, GID: 2, GIDs: []uint32{2, 0, 3}}, nil
			case "root":
				return oncrpc.AuthSys{GIDs: []uint32{0}}, nil
			}
			return oncrpc.AuthSys{}, errors.New("no such user")
		},
	}
}

// The table comes before the realm. All other principals are the anonymous user, machines and services among them.
func TestUsers(t *testing.T) {
	const alice, nobody = "1 2 [2 65534 3]", "65534 65534 []"
	users := newUsers()
	for _, tt := range []struct {
		principal, who string
		users          *Users
	}{
		{"alice@EXAMPLE.COM", alice, users},
		{"alice@EXAMPLE.COM", alice, users}, // from memory
		{"alice@EXAMPLE.COM", nobody, nil},
		{"alice@OTHER.COM", alice, users},
		{"backup/host@EXAMPLE.COM", alice, users},
		{"backup/host@OTHER.COM", nobody, users},
		{"admin@EXAMPLE.COM", "65534 65534 [65534]", users}, // root is squashed
		{"bob@EXAMPLE.COM", nobody, users},
		{"carol@EXAMPLE.COM", nobody, users},
		{"host/host@EXAMPLE.COM", nobody, users},
		{"nfs/host@EXAMPLE.COM", nobody, users},
		{"host@ELSEWHERE.COM", nobody, users},
		{`a\@EXAMPLE.COM@EXAMPLE.COM`, nobody, users},
		{"@EXAMPLE.COM", nobody, users},
		{"alice", nobody, users},
		{"alice@", nobody, &Users{Lookup: users.Lookup}},
	} {
		req := requestOf(oncrpc.Auth{Flavor: oncrpc.FlavorGSS})
		req.SetPrincipal(&rpc.Principal{Mechanism: "krb5", Name: tt.principal, Service: rpc.ServiceNone})
		e := Export{Users: tt.users, Flavors: []oncrpc.Flavor{oncrpc.FlavorKrb5}}
		who, ok := e.Caller(req)
		if got := fmt.Sprint(who.UID, who.GID, who.GIDs); !ok || got != tt.who {
			t.Errorf("%s is %s, %v, want %s", tt.principal, got, ok, tt.who)
		}
		e.Flavors = []oncrpc.Flavor{oncrpc.FlavorKrb5i, oncrpc.FlavorSys}
		if _, ok := e.Caller(req); ok {
			t.Errorf("%s may call without integrity", tt.principal)
		}
	}
	many := new(Users)
	for i := range 3 * maxUsers {
		many.find(fmt.Sprint(i), nil, nil)
		if len(many.known) > maxUsers {
			t.Fatalf("%d users are remembered", len(many.known))
		}
	}
}

// The users of this machine are those of its databases.
func TestLookupUser(t *testing.T) {
	me, err := user.Current()
	testutil.Must(t, err)
	sys, err := LookupUser(me.Username)
	if err != nil || fmt.Sprint(sys.UID) != me.Uid || fmt.Sprint(sys.GID) != me.Gid {
		t.Errorf("%s is %+v, %v", me.Username, sys, err)
	}
	if sys, err := LookupUser("no such user"); !errors.As(err, new(user.UnknownUserError)) {
		t.Errorf("no user is %+v, %v", sys, err)
	}
}

// MNT returns an export's flavors, and calls with others are refused, except those that mount it.
func TestFlavors(t *testing.T) {
	var seen Access
	f := newPlain()
	c := newSite(t, &Config{
		Exports: []Export{
			{Name: "/", FS: f},
			{Name: "/krb", FS: f, Users: newUsers(), Flavors: []oncrpc.Flavor{oncrpc.FlavorKrb5p, oncrpc.FlavorKrb5}},
		},
		Access: func(a *Access) { seen = *a },
	})
	root, krb := c.mnt("/"), c.mnt("/krb")
	if got := fmt.Sprint(root.Flavors, krb.Flavors); got != "[1 0] [390005 390003]" {
		t.Errorf("MNT returns flavors %s", got)
	}
	if dir := c.mnt("/krb/dir"); dir.Status != nfs.MountOK || f.last.Load().UID != Nobody {
		t.Errorf("MNT of a directory: %v, as %+v", dir.Status, f.last.Load())
	}
	const alice = "alice@EXAMPLE.COM"
	var found nfs.LookupRes
	where := nfs.DirOpArgs{Dir: c.mnt("/krb/dir").Handle, Name: "file"}
	testutil.Must(t, c.call(prove(rpc.ServicePrivacy, alice), nfs.Program, nfs.ProcLookup, &where, &found))
	file, private := c.lookup(root.Handle, "dir", "file"), found.Object
	for _, tt := range []struct {
		what string
		cred oncrpc.Auth
		root nfs.MntRes
		file nfs.FileHandle
		ok   bool
	}{
		{"sys", someone(), root, file, true},
		{"none", oncrpc.Auth{}, root, file, true},
		{"Kerberos where it is not", prove(rpc.ServiceNone, alice), root, file, false},
		{"krb5", prove(rpc.ServiceNone, alice), krb, private, true},
		{"krb5i", prove(rpc.ServiceIntegrity, alice), krb, private, false},
		{"krb5p", prove(rpc.ServicePrivacy, alice), krb, private, true},
		{"sys where it is not", someone(), krb, private, false},
		{"none where it is not", oncrpc.Auth{}, krb, private, false},
	} {
		want := nfs.StatusOK
		if !tt.ok {
			want = nfs.StatusAcces
		}
		var attr nfs.GetAttrRes
		var info nfs.FSInfoRes
		var read nfs.ReadRes
		var access nfs.AccessRes
		testutil.Must(t, c.call(tt.cred, nfs.Program, nfs.ProcGetAttr, &tt.root.Handle, &attr))
		testutil.Must(t, c.call(tt.cred, nfs.Program, nfs.ProcFSInfo, &tt.root.Handle, &info))
		if attr.Status != nfs.StatusOK || info.Status != nfs.StatusOK {
			t.Errorf("%s: while it is mounted, %v and %v", tt.what, attr.Status, info.Status)
		}
		testutil.Must(t, c.call(tt.cred, nfs.Program, nfs.ProcGetAttr, &tt.file, &attr))
		testutil.Must(t, c.call(tt.cred, nfs.Program, nfs.ProcAccess, &nfs.AccessArgs{Object: tt.root.Handle, Access: 1}, &access))
		testutil.Must(t, c.call(tt.cred, nfs.Program, nfs.ProcRead, &nfs.ReadArgs{File: tt.file, Count: 5}, &read))
		if attr.Status != want || access.Status != want || read.Status != want {
			t.Errorf("%s: %v, %v and %v, want %v", tt.what, attr.Status, access.Status, read.Status, want)
		}
		if p := seen.Principal; (p != nil) != (tt.cred.Flavor == oncrpc.FlavorGSS) || p != nil && p.Name != alice {
			t.Errorf("%s: the log has %v", tt.what, p)
		}
	}
}
