package main

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

	"github.com/rpcrdma/rpcrdma/nfs"
	"github.com/rpcrdma/rpcrdma/proto/dump"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/rpc/rpcbind"
)

// addRPCBindOption adds --rpcbind, which means value if it has none.
func addRPCBindOption(cmd *cobra.Command, o *options, value, usage string) {
	flags := cmd.Flags()
	flags.StringVar(&o.rpcbind, "rpcbind", "", usage)
	flags.Lookup("rpcbind").NoOptDefVal = value
}

// rpcbindHelp is the help topic about --rpcbind.
const rpcbindHelp = `With --rpcbind a server is named without a port: the rpcbind of its machine is asked for
the port on which it serves the program over RDMA. --rpcbind=HOST:PORT asks another
rpcbind; the equals sign is required.

'rpcrdma serve --rpcbind' registers the server with the rpcbind of its own machine until
the server ends.`

// addLookupOption is addRPCBindOption for commands that connect.
func addLookupOption(cmd *cobra.Command, o *options) {
	addRPCBindOption(cmd, o, ":"+strconv.Itoa(rpcbind.Port),
		"ask rpcbind for the server's port: the server's, or the one at `HOST:PORT`")
}

// checkRPCBind refuses a value of --rpcbind that is not HOST:PORT.
func (o *options) checkRPCBind(cmd *cobra.Command) error {
	if o.rpcbind == "" {
		return nil
	}
	if _, port, err := net.SplitHostPort(o.rpcbind); err != nil || port == "" {
		return usage(cmd, fmt.Errorf("--rpcbind wants =HOST:PORT, got %q", o.rpcbind))
	}
	return nil
}

// isHost reports whether s is a name or an address; IPv6 may have brackets.
func isHost(s string) bool {
	_, err := netip.ParseAddr(bareHost(s))
	return err == nil && strings.HasPrefix(s, "[") == strings.HasSuffix(s, "]") || s != "" && !strings.ContainsAny(s, ":[]/@?#% \t\r\n\x00")
}

func bareHost(s string) string {
	return strings.TrimSuffix(strings.TrimPrefix(s, "["), "]")
}

// parseURL reads a URL argument, whose scheme is one of those given, or nfs. Errors are usage
// errors.
func (o *options) parseURL(cmd *cobra.Command, arg string, schemes ...string) (*nfs.URL, error) {
	if err := o.checkRPCBind(cmd); err != nil {
		return nil, err
	}
	if len(schemes) == 0 {
		schemes = []string{"nfs"}
	}
	refuse := func(format string, args ...any) (*nfs.URL, error) {
		return nil, usage(cmd, fmt.Errorf(format, args...))
	}
	scheme, rest, ok := strings.Cut(arg, "://")
	if !ok || !slices.Contains(schemes, scheme) {
		return refuse("want %s://HOST[:PORT]/EXPORT/PATH, got %q", schemes[0], arg)
	}
	u, err := nfs.ParseURL("nfs://" + rest)
	if bad, ok := errors.AsType[*nfs.URLError](err); ok {
		return refuse("URL %q: %w", arg, bad.Err)
	}
	if p, err := url.Parse(arg); o.rpcbind != "" && err == nil && p.Port() != "" {
		return refuse("--rpcbind finds the port: give the URL without :%s", p.Port())
	}
	return u, err
}

// rpcbindAt is the address of the rpcbind that lookupPort asks.
func (o *options) rpcbindAt(host string) string {
	at, port, _ := net.SplitHostPort(o.rpcbind)
	return net.JoinHostPort(cmp.Or(at, host), port)
}

// lookupPort asks rpcbind on which port host serves a program over RDMA. It takes only the
// port from the answer: the user has named the host.
func (o *options) lookupPort(ctx context.Context, host string, prog, vers uint32) (int, error) {
	at, port, err := net.SplitHostPort(o.rpcbind)
	if err != nil {
		return 0, err
	}
	c := rpcbind.Client{Addr: net.JoinHostPort(cmp.Or(at, host), port)}
	netids := [...]rpcbind.Netid{rpcbind.RDMA, rpcbind.RDMA6}
	if ip, err := netip.ParseAddr(host); err == nil && !ip.Unmap().Is4() {
		netids = [...]rpcbind.Netid{rpcbind.RDMA6, rpcbind.RDMA}
	}
	var absent error // for the first netid
	for _, netid := range netids {
		addr, err := c.GetAddr(ctx, prog, vers, netid)
		if !errors.Is(err, rpcbind.ErrNotRegistered) {
			return int(addr.Port()), err
		}
		absent = cmp.Or(absent, err)
	}
	return 0, absent
}

// A registration is what serve has registered with an rpcbind.
type registration struct {
	client rpcbind.Client
	known  []rpcbind.Mapping
}

// registerTimeout bounds register and remove, so that a silent rpcbind does not keep a
// server from ending.
const registerTimeout = 5 * time.Second

// register registers NFS and MOUNT with rpcbind, all of it or nothing. tcp may be nil.
// Without --rpcbind it does nothing.
func (o *serveOptions) register(ctx context.Context, rdma net.Addr, tcp net.Listener) (*registration, error) {
	r := &registration{client: rpcbind.Client{Addr: o.rpcbind}}
	if o.rpcbind == "" {
		return r, nil
	}
	ctx, cancel := context.WithTimeout(ctx, registerTimeout)
	defer cancel()
	mappings := mappingsOf(rpcbind.RDMA, rdma)
	if tcp != nil {
		mappings = append(mappings, mappingsOf(rpcbind.TCP, tcp.Addr())...)
	}
	for _, m := range mappings {
		if err := r.client.Set(ctx, m); err != nil {
			_ = r.remove() // the first error is the one to report
			return r, explained(err)
		}
		r.known = append(r.known, m)
	}
	return r, nil
}

// mappingsOf returns the mappings of a listener's address. A listener on all addresses of
// IPv6 has those of IPv4, too.
func mappingsOf(netid rpcbind.Netid, listener net.Addr) (mappings []rpcbind.Mapping) {
	at, err := netip.ParseAddrPort(listener.String())
	if err != nil {
		return nil
	}
	addrs := []netip.Addr{at.Addr().Unmap()}
	if addrs[0] == netip.IPv6Unspecified() {
		addrs = append(addrs, netip.IPv4Unspecified())
	}
	for _, addr := range addrs {
		uaddr := rpcbind.FormatAddr(netip.AddrPortFrom(addr, at.Port()))
		for _, m := range [...]rpcbind.Mapping{{Prog: nfs.Program, Vers: nfs.Version}, {Prog: nfs.MountProgram, Vers: nfs.MountVersion}} {
			m.Netid, m.Addr = netid.For(addr), uaddr
			mappings = append(mappings, m)
		}
	}
	return mappings
}

// remove undoes register.
func (r *registration) remove() error {
	ctx, cancel := context.WithTimeout(context.Background(), registerTimeout)
	defer cancel()
	var first error
	for _, m := range r.known {
		if err := r.client.Unset(ctx, m.Prog, m.Vers, m.Netid); err != nil && first == nil {
			first = explained(err)
		}
	}
	r.known = nil
	return first
}

// rpcbindText says which request an rpcbind has refused, and why.
func rpcbindText(e *rpcbind.OpError) string {
	program, _ := dump.Names(e.Prog, e.Vers, 0)
	what := fmt.Sprintf("%s version %d over %s", cmp.Or(program, fmt.Sprintf("program %d", e.Prog)), e.Vers, e.Netid)
	var rpc *oncrpc.RPCError
	denied := errors.As(e.Err, &rpc) && rpc.Stat == oncrpc.MsgDenied && rpc.RejectStat == oncrpc.AuthError
	why := explain(e.Err)
	switch e.Op {
	case "SET":
		if e.Err == rpcbind.ErrRefused {
			why = "another address is registered already; is another server running?"
		} else if denied {
			why = fmt.Sprintf("it accepts that only from its own machine (%v)", rpc.AuthStat)
		}
		return fmt.Sprintf("registering %s with the rpcbind at %s: %s", what, e.Server, why)
	case "UNSET":
		return fmt.Sprintf("unregistering %s with the rpcbind at %s: %s", what, e.Server, why)
	}
	if e.Err == rpcbind.ErrNotRegistered {
		return fmt.Sprintf("the rpcbind at %s has no %s registered", e.Server, what)
	}
	return fmt.Sprintf("asking the rpcbind at %s for %s: %s", e.Server, what, why)
}
