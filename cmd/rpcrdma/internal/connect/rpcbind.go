package connect

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/cli"
	"github.com/rpcrdma/rpcrdma/nfs"
	"github.com/rpcrdma/rpcrdma/rpc/rpcbind"
)

// AddRPCBindOption adds --rpcbind, which defaults to value if given without one.
func AddRPCBindOption(cmd *cobra.Command, o *Options, value, usage string) {
	flags := cmd.Flags()
	flags.StringVar(&o.Rpcbind, "rpcbind", "", usage)
	flags.Lookup("rpcbind").NoOptDefVal = value
}

// RPCBindHelp is the help topic about --rpcbind.
const RPCBindHelp = `With --rpcbind a server is named without a port. The command asks the rpcbind of the server's
machine for the port on which it serves the program over RDMA, or TCP with --provider tcp.
--rpcbind=HOST:PORT asks another rpcbind; the equals sign is required.

'rpcrdma serve --rpcbind' registers the server with the rpcbind of its own machine until the
server exits.`

// AddLookupOption is AddRPCBindOption for commands that connect.
func AddLookupOption(cmd *cobra.Command, o *Options) {
	AddRPCBindOption(cmd, o, ":"+strconv.Itoa(rpcbind.Port),
		"ask rpcbind for the server's port: the server's, or the one at `HOST:PORT`")
}

// CheckRPCBind rejects a value of --rpcbind that is not HOST:PORT.
func (o *Options) CheckRPCBind(cmd *cobra.Command) error {
	if o.Rpcbind == "" {
		return nil
	}
	if _, port, err := net.SplitHostPort(o.Rpcbind); err != nil || port == "" {
		return cli.Usage(cmd, fmt.Errorf("--rpcbind wants =HOST:PORT, got %q", o.Rpcbind))
	}
	return nil
}

// ParseURL parses a URL argument with one of the given schemes, or nfs, or HOST:/PATH. Its errors are
// usage errors.
func (o *Options) ParseURL(cmd *cobra.Command, arg string, schemes ...string) (*nfs.URL, error) {
	if err := o.CheckRPCBind(cmd); err != nil {
		return nil, err
	}
	if len(schemes) == 0 {
		schemes = []string{"nfs"}
	}
	refuse := func(format string, args ...any) (*nfs.URL, error) {
		return nil, cli.Usage(cmd, fmt.Errorf(format, args...))
	}
	arg = mountURL(arg, schemes[0])
	scheme, rest, ok := strings.Cut(arg, "://")
	if !ok || !slices.Contains(schemes, scheme) {
		return refuse("want %s://HOST[:PORT]/EXPORT/PATH or HOST:/EXPORT/PATH, got %q", schemes[0], arg)
	}
	u, err := nfs.ParseURL("nfs://" + rest)
	if bad, ok := errors.AsType[*nfs.URLError](err); ok {
		return refuse("URL %q: %w", arg, bad.Err)
	}
	p, err := url.Parse(arg)
	switch {
	case err == nil && p.Port() == "" && o.findsPort():
		u.Port = 0 // ConnectURL looks it up
	case err == nil && p.Port() != "" && o.Rpcbind != "":
		return refuse("--rpcbind finds the port: give the URL without :%s", p.Port())
	}
	return u, nil
}

// mountURL converts HOST:/PATH, the notation of mount(8), to a URL, and returns other arguments unchanged.
func mountURL(arg, scheme string) string {
	host, path, ok := strings.Cut(arg, ":/")
	if !ok || strings.HasPrefix(path, "/") || !cli.IsHost(host) {
		return arg
	}
	if host = cli.BareHost(host); strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	return (&url.URL{Scheme: scheme, Host: host, Path: "/" + path}).String()
}

// IsURL reports whether an argument is meant to be a URL rather than a local file.
func IsURL(arg string) bool {
	return strings.Contains(mountURL(arg, "nfs"), "://")
}

// Server returns the name of a URL's server. The port may be unknown.
func Server(u *nfs.URL) string {
	if u.Port == 0 {
		return u.Host
	}
	return u.Addr()
}

// rpcbindAt returns the address of the rpcbind that lookupPort asks.
func (o *Options) rpcbindAt(host string) string {
	at, port, _ := net.SplitHostPort(o.Rpcbind)
	return net.JoinHostPort(cmp.Or(at, host), cmp.Or(port, strconv.Itoa(rpcbind.Port)))
}

// unaskedLookup limits a lookup without --rpcbind, after which there is an alternative.
const unaskedLookup = 2 * time.Second

// lookupPort asks rpcbind for the port of a program on host, over RDMA or TCP. It uses only the port in the answer,
// because the user has named the host.
func (o *Options) lookupPort(ctx context.Context, host string, prog, vers uint32, tcp bool) (int, error) {
	if o.Rpcbind == "" {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, unaskedLookup)
		defer cancel()
	}
	c := rpcbind.Client{Addr: o.rpcbindAt(host)}
	netids := [...]rpcbind.Netid{rpcbind.RDMA, rpcbind.RDMA6}
	if tcp {
		netids = [...]rpcbind.Netid{rpcbind.TCP, rpcbind.TCP6}
	}
	if ip, err := netip.ParseAddr(host); err == nil && !ip.Unmap().Is4() {
		slices.Reverse(netids[:])
	}
	var absent error // error for the first netid
	for _, netid := range netids {
		addr, err := c.GetAddr(ctx, prog, vers, netid)
		if !errors.Is(err, rpcbind.ErrNotRegistered) {
			return int(addr.Port()), err
		}
		absent = cmp.Or(absent, err)
	}
	return 0, absent
}
