package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/rpcrdma/rpcrdma/nfs"
	"github.com/rpcrdma/rpcrdma/proto/dump"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/rpcbind"
)

// addRPCBindOption gives cmd --rpcbind, which may stand alone and then means value.
func addRPCBindOption(cmd *cobra.Command, o *options, value, usage string) {
	flags := cmd.Flags()
	flags.StringVar(&o.rpcbind, "rpcbind", "", usage)
	flags.Lookup("rpcbind").NoOptDefVal = value
}

// lookupHelp is the part of a command's help that is about finding the port.
const lookupHelp = `With --rpcbind the server is named without a port: its rpcbind is asked on which one
it serves the program over RDMA. --rpcbind=HOST:PORT asks another rpcbind.`

// addLookupOption is addRPCBindOption for commands that connect.
func addLookupOption(cmd *cobra.Command, o *options) {
	addRPCBindOption(cmd, o, ":"+strconv.Itoa(rpcbind.Port),
		"ask the rpcbind at `HOST:PORT` for the server's port; no host means the server's")
	cmd.Long += "\n\n" + lookupHelp
}

// checkRPCBind refuses a --rpcbind that is no HOST:PORT.
func (o *options) checkRPCBind(cmd *cobra.Command) error {
	if o.rpcbind == "" {
		return nil
	}
	if _, port, err := net.SplitHostPort(o.rpcbind); err != nil || port == "" {
		return &usageError{command: cmd.CommandPath(), err: fmt.Errorf("--rpcbind wants =HOST:PORT, got %q", o.rpcbind)}
	}
	return nil
}

// checkAddr reads an argument that is HOST or HOST:PORT, the port being that of URLs if
// there is none; with --rpcbind it is HOST. An error is about usage.
func (o *options) checkAddr(cmd *cobra.Command, arg string) (addr string, err error) {
	if err := o.checkRPCBind(cmd); err != nil {
		return "", err
	}
	_, port, err := net.SplitHostPort(arg)
	switch {
	case o.rpcbind == "" && err != nil && isHost(arg):
		return net.JoinHostPort(bareHost(arg), strconv.Itoa(nfs.Port)), nil
	case o.rpcbind == "" && err != nil:
		err = fmt.Errorf("want HOST or HOST:PORT, got %q", arg)
	case o.rpcbind != "" && err == nil:
		err = fmt.Errorf("the port is %s already: --rpcbind wants HOST alone", port)
	case o.rpcbind != "" && !isHost(arg):
		err = fmt.Errorf("with --rpcbind want HOST, got %q", arg)
	default:
		return arg, nil
	}
	return "", &usageError{command: cmd.CommandPath(), err: err}
}

// isHost tells whether s is a name or an address, IPv6's with brackets or without.
func isHost(s string) bool {
	_, err := netip.ParseAddr(bareHost(s))
	return err == nil && strings.HasPrefix(s, "[") == strings.HasSuffix(s, "]") || s != "" && !strings.ContainsAny(s, ":[]")
}

func bareHost(s string) string {
	return strings.TrimSuffix(strings.TrimPrefix(s, "["), "]")
}

// parseURL reads a URL argument. An error is about usage.
func (o *options) parseURL(cmd *cobra.Command, arg string) (*nfs.URL, error) {
	if err := o.checkRPCBind(cmd); err != nil {
		return nil, err
	}
	u, err := nfs.ParseURL(arg)
	if err != nil {
		return nil, &usageError{command: cmd.CommandPath(), err: fmt.Errorf("%s", oneLine(err))}
	}
	if p, err := url.Parse(arg); o.rpcbind != "" && err == nil && p.Port() != "" {
		return nil, &usageError{command: cmd.CommandPath(), err: fmt.Errorf("the port is %s already: --rpcbind wants a URL without one", p.Port())}
	}
	return u, nil
}

// rpcbindAt is the rpcbind that lookupPort asks.
func (o *options) rpcbindAt(host string) string {
	at, port, _ := net.SplitHostPort(o.rpcbind)
	return net.JoinHostPort(cmp.Or(at, host), port)
}

// lookupPort asks rpcbind on which port host serves a program over RDMA. Of the
// answer it takes the port alone: which host it shall be has been said already.
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
	var absent error // what the first netid's answer was
	for _, netid := range netids {
		addr, err := c.GetAddr(ctx, prog, vers, netid)
		if !errors.Is(err, rpcbind.ErrNotRegistered) {
			return int(addr.Port()), err
		}
		absent = cmp.Or(absent, err)
	}
	return 0, absent
}

// A registration is what serve has told an rpcbind.
type registration struct {
	client rpcbind.Client
	known  []rpcbind.Mapping
}

// registerTimeout bounds register, and remove: an rpcbind that is silent must not keep
// a server from its end.
const registerTimeout = 5 * time.Second

// register tells rpcbind where NFS and MOUNT are served: all of it, or nothing. tcp may
// be nil. Without --rpcbind there is nothing to tell.
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
			_ = r.remove() // what went wrong first is told
			return r, explained(err)
		}
		r.known = append(r.known, m)
	}
	return r, nil
}

// mappingsOf is what is served at a listener's address. One on all addresses of IPv6
// has those of IPv4 as well.
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

// remove takes back what register has told.
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

// rpcbindText says what an rpcbind did not do, and why.
func rpcbindText(e *rpcbind.OpError) string {
	program, _ := dump.Names(e.Prog, e.Vers, 0)
	what := fmt.Sprintf("%s version %d over %s", cmp.Or(program, fmt.Sprintf("program %d", e.Prog)), e.Vers, e.Netid)
	var rpc *oncrpc.RPCError
	denied := errors.As(e.Err, &rpc) && rpc.Stat == oncrpc.MsgDenied && rpc.RejectStat == oncrpc.AuthError
	why := explain(e.Err)
	switch e.Op {
	case "SET":
		if e.Err == rpcbind.ErrRefused {
			why = "another address is registered for it already"
		} else if denied {
			why = fmt.Sprintf("it takes that from its own machine only (%v)", rpc.AuthStat)
		}
		return fmt.Sprintf("registering %s with the rpcbind at %s: %s", what, e.Server, why)
	case "UNSET":
		return fmt.Sprintf("taking %s back from the rpcbind at %s: %s", what, e.Server, why)
	}
	if e.Err == rpcbind.ErrNotRegistered {
		return fmt.Sprintf("the rpcbind at %s knows no %s", e.Server, what)
	}
	return fmt.Sprintf("asking the rpcbind at %s for %s: %s", e.Server, what, why)
}
