package serving

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/cli"
	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/explain"
	"github.com/rpcrdma/rpcrdma/nfs/nfsd"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/rpc/rpcsec"
	"github.com/rpcrdma/rpcrdma/rpc/rpcsec/krb5"
)

// kerberosFlags holds the flags of serve for calls with Kerberos.
type kerberosFlags struct {
	sec        flavors
	keytab     string
	realm      string
	principals string // FILE

	acceptor *krb5.Acceptor // nil if no export uses Kerberos
	started  bool           // acceptor is final
}

func (o *kerberosFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.Var(&o.sec, "sec", "accept only calls with these `FLAVORS`, the preferred one first: krb5p,krb5i,krb5,sys (default sys)")
	flags.StringVar(&o.keytab, "keytab", "", "read the Kerberos key of nfs/HOST from `FILE` (default $KRB5_KTNAME, or /etc/krb5.keytab)")
	flags.StringVar(&o.realm, "realm", "", "map users of `REALM` to the local users of the same name (default: the realm of the key)")
	flags.StringVar(&o.principals, "principals", "", "map principals to users as `FILE` lists, one PRINCIPAL USER per line; SIGHUP rereads it")
	cli.CompleteFile(cmd, "keytab")
	cli.CompleteFile(cmd, "principals")
}

// flavors is a flag value for a list of security flavors.
type flavors []oncrpc.Flavor

func (l *flavors) Type() string { return "FLAVORS" }

func (l *flavors) Completions() []string { return []string{"krb5p", "krb5i", "krb5", "sys"} }

func (l *flavors) String() string {
	var names []string
	for _, f := range *l {
		switch f {
		case oncrpc.FlavorSys:
			names = append(names, "sys")
		case oncrpc.FlavorNone:
		default:
			names = append(names, f.String())
		}
	}
	return strings.Join(names, ",")
}

// Set replaces the list. In the options of an export, where a comma ends the option, flavors are separated by colons.
func (l *flavors) Set(s string) error {
	*l = nil
	for _, name := range strings.FieldsFunc(s, func(r rune) bool { return r == ',' || r == ':' }) {
		list := []oncrpc.Flavor{oncrpc.FlavorSys, oncrpc.FlavorNone} // AUTH_NONE is the anonymous user
		if name != "sys" {
			i := slices.IndexFunc(kerberos[:], func(f oncrpc.Flavor) bool { return name == f.String() })
			if i < 0 {
				return fmt.Errorf("want some of krb5p, krb5i, krb5 and sys, not %q", name)
			}
			list = kerberos[i : i+1]
		}
		if slices.Contains(*l, list[0]) {
			return fmt.Errorf("%s is there twice", name)
		}
		*l = append(*l, list...)
	}
	if *l == nil {
		return errors.New("want some of krb5p, krb5i, krb5 and sys")
	}
	return nil
}

// kerberos lists the flavors that require a keytab. Immutable.
var kerberos = [...]oncrpc.Flavor{oncrpc.FlavorKrb5p, oncrpc.FlavorKrb5i, oncrpc.FlavorKrb5}

// addUsers makes the exports map principals to users, if any export uses Kerberos.
func (o *kerberosFlags) addUsers(list []exportSpec) error {
	at := slices.IndexFunc(list, func(e exportSpec) bool {
		return slices.ContainsFunc(e.Flavors, func(f oncrpc.Flavor) bool { return slices.Contains(kerberos[:], f) })
	})
	if at < 0 {
		return nil
	}
	if o.acceptor == nil && o.started {
		return list[at].failed(errors.New("no export had Kerberos when the server started: restart the server"))
	}
	if o.acceptor == nil {
		o.keytab = cmp.Or(o.keytab, strings.TrimPrefix(os.Getenv("KRB5_KTNAME"), "FILE:"), "/etc/krb5.keytab")
		acceptor, err := krb5.NewAcceptor(krb5.AcceptorConfig{Keytab: o.keytab, Service: "nfs"})
		if err != nil {
			return &exportsError{"--sec", err}
		}
		o.acceptor = acceptor
	}
	users := &nfsd.Users{Realm: o.realm}
	if realms := o.acceptor.Realms(); users.Realm == "" && len(realms) == 1 {
		users.Realm = realms[0]
	} else if users.Realm == "" {
		return &exportsError{"--sec", fmt.Errorf("keys for the realms %s: --realm says which one has local users", strings.Join(realms, ", "))}
	}
	if o.principals != "" {
		var err error
		if users.Table, err = readPrincipals(o.principals); err != nil {
			return err
		}
	}
	for i := range list {
		list[i].Users = users
	}
	return nil
}

// readPrincipals reads a file with one principal and user name per line.
func readPrincipals(name string) (map[string]string, error) {
	table := make(map[string]string)
	return table, eachLine(name, func(_, line string) error {
		words := strings.Fields(line)
		if len(words) != 2 || !strings.Contains(words[0], "@") {
			return errors.New("want PRINCIPAL@REALM USER")
		}
		if _, twice := table[words[0]]; twice {
			return fmt.Errorf("%s is there twice", explain.Printable(words[0]))
		}
		table[words[0]] = words[1]
		return nil
	})
}

// secure wraps a program with RPCSEC_GSS if any export uses Kerberos.
func (o *kerberosFlags) secure(p *rpc.Program, log *slog.Logger) {
	o.started = true
	if o.acceptor == nil {
		return
	}
	sec := rpcsec.NewServer(rpcsec.ServerConfig{Acceptor: o.acceptor, Seal: true, Logger: log})
	p.Handler, p.Null = rpc.Chain(p.Handler, sec.Wrap), true
}
