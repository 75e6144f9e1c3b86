package serving

import (
	"errors"
	"fmt"
	"strings"

	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/explain"
	"github.com/rpcrdma/rpcrdma/nfs/nfsd"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/rpc"
)

// certUsers maps names of certificates, as returned by rpc.CertificateNames, to credentials of users.
type certUsers map[string]oncrpc.Auth

// credential returns the credential for the first known name, or AUTH_NONE, which is the anonymous user.
func (c certUsers) credential(p rpc.Peer) (none oncrpc.Auth) {
	for _, name := range p.Certificate {
		if cred, ok := c[name]; ok {
			return cred
		}
	}
	return none
}

// readCertUsers reads a file with one certificate name and user per line.
func readCertUsers(file string) (certUsers, error) {
	users := make(certUsers)
	return users, eachLine(file, func(_, line string) error {
		at := strings.LastIndexAny(line, spaces)
		name := strings.TrimRight(line[:max(at, 0)], spaces) // a subject may contain spaces
		if !certName(name) {
			return errors.New("want the name of a certificate and a user, such as 'DNS:host.example.org backup' or 'email:alice@example.org 1000:1000,27'")
		}
		if _, twice := users[name]; twice {
			return fmt.Errorf("%s is there twice", explain.Printable(name))
		}
		sys, err := userOf(line[at+1:])
		users[name] = sys.Auth()
		return err
	})
}

// certName reports whether a name is of a kind that rpc.CertificateNames returns.
func certName(name string) bool {
	kind, rest, _ := strings.Cut(name, ":")
	return rest != "" && strings.Contains(" DNS URI email IP subject ", " "+kind+" ")
}

// userOf parses a user: UID:GID[,GID...], or the name of a user of this machine, with as many groups as AUTH_SYS
// permits.
func userOf(text string) (sys oncrpc.AuthSys, err error) {
	uid, gids, numbers := strings.Cut(text, ":")
	if !numbers {
		if sys, err = nfsd.LookupUser(text); err == nil {
			sys.GIDs = sys.GIDs[:min(len(sys.GIDs), oncrpc.MaxGIDs)]
		}
		return sys, err
	}
	var list []uint32
	for _, text := range append([]string{uid}, strings.Split(gids, ",")...) {
		id, err := parseID(text)
		if err != nil {
			return sys, err
		}
		list = append(list, id)
	}
	if len(list) > 2+oncrpc.MaxGIDs {
		return sys, fmt.Errorf("%d groups: AUTH_SYS has one and %d others", len(list)-1, oncrpc.MaxGIDs)
	}
	return oncrpc.AuthSys{UID: list[0], GID: list[1], GIDs: list[2:]}, nil
}
