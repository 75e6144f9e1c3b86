package serving

import (
	"context"
	"net"
	"net/netip"
	"time"

	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/explain"
	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/provider"
	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/nfs"
	"github.com/rpcrdma/rpcrdma/rpc/rpcbind"
)

// registration is a set of entries that serve has made in an rpcbind.
type registration struct {
	client rpcbind.Client
	known  []rpcbind.Mapping
}

// registerTimeout limits register and remove, so that an unresponsive rpcbind does not prevent a server from exiting.
const registerTimeout = 5 * time.Second

// register registers NFS and MOUNT with rpcbind, completely or not at all. tcp may be nil. Without --rpcbind it does
// nothing.
func (o *serveOptions) register(ctx context.Context, p fabric.Provider, at net.Addr, tcp net.Listener) (*registration, error) {
	r := &registration{client: rpcbind.Client{Addr: o.Rpcbind}}
	if o.Rpcbind == "" {
		return r, nil
	}
	ctx, cancel := context.WithTimeout(ctx, registerTimeout)
	defer cancel()
	netid := rpcbind.RDMA
	if p.Name() == provider.TCP {
		netid = rpcbind.TCP
	}
	mappings := mappingsOf(netid, at)
	if tcp != nil {
		mappings = append(mappings, mappingsOf(rpcbind.TCP, tcp.Addr())...)
	}
	for _, m := range mappings {
		if err := r.client.Set(ctx, m); err != nil {
			_ = r.remove() // report the first error
			return r, explain.Error(err)
		}
		r.known = append(r.known, m)
	}
	return r, nil
}

// mappingsOf returns the mappings for a listener's address. A listener on all IPv6 addresses also has those for IPv4.
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
			first = explain.Error(err)
		}
	}
	r.known = nil
	return first
}
