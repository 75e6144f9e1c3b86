package remote

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/cli"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/rpc/rpcsec"
	"github.com/rpcrdma/rpcrdma/rpc/rpcsec/krb5"
)

// KerberosOptions holds the flags for calls with Kerberos.
type KerberosOptions struct {
	sec               service
	keytab, principal string
}

// AddKerberosOptions adds the flags for calls with Kerberos.
func AddKerberosOptions(cmd *cobra.Command, o *KerberosOptions) {
	flags := cmd.Flags()
	flags.Var(&o.sec, "sec", "call with security `FLAVOR`: krb5p (Kerberos, encrypted), krb5i (signed), krb5, or sys, which proves nothing")
	flags.StringVar(&o.keytab, "keytab", "", "get tickets with the key of --principal in `FILE` (default: the tickets of kinit)")
	flags.StringVar(&o.principal, "principal", "", "act as `NAME[@REALM]`, with the key in --keytab")
	cli.CompleteFile(cmd, "keytab")
}

// service is a flag value for a security flavor. Zero is AUTH_SYS.
type service rpc.Service

func (s *service) Type() string { return "FLAVOR" }

func (s *service) String() string { return s.Completions()[*s] }

func (s *service) Completions() []string { return []string{"sys", "krb5", "krb5i", "krb5p"} }

func (s *service) Set(text string) error {
	for i, name := range s.Completions() {
		if text == name {
			*s = service(i)
			return nil
		}
	}
	return errors.New("want sys, krb5, krb5i or krb5p")
}

// CheckKerberos rejects invalid combinations of options.
func (o *KerberosOptions) CheckKerberos(cmd *cobra.Command) error {
	switch {
	case (o.keytab == "") != (o.principal == ""):
		return cli.Usage(cmd, errors.New("--keytab and --principal must be given together"))
	case o.sec == 0 && o.keytab != "":
		return cli.Usage(cmd, errors.New("--keytab is for --sec krb5, krb5i or krb5p"))
	}
	return nil
}

// Security returns the configuration for calls with Kerberos to a service such as nfs@server, or nil.
func (o *KerberosOptions) Security(service string) (*rpcsec.ClientConfig, error) {
	if o.sec == 0 {
		return nil, nil
	}
	initiator, err := krb5.NewInitiator(krb5.InitiatorConfig{Service: service, Keytab: o.keytab, Principal: o.principal})
	if err != nil {
		return nil, fmt.Errorf("no Kerberos: %v", err) // %v: the text says more than a wrapped system error would
	}
	return &rpcsec.ClientConfig{Initiator: initiator, Service: rpc.Service(o.sec), Seal: rpcsec.SealOptional}, nil
}
