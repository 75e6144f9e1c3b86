package rpcbind

import (
	"cmp"
	"context"
	"errors"
	"net/netip"
	"time"

	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
)

// Patience is the timeout of an operation when its context has no deadline.
const Patience = 15 * time.Second

// A Client is the address of an rpcbind server. Every operation makes a new connection and closes it.
type Client struct {
	// Network is "tcp" or "udp", or one of the two with "4" or "6" appended for one version of
	// IP. Empty means "tcp". Over UDP only the first address of the host is tried, and a DUMP
	// that does not fit one datagram fails.
	Network string

	// Addr is HOST:PORT.
	Addr string
}

// do tries an operation with one version after the other, until rpcbind supports it. Every
// error is an *OpError.
func (c *Client) do(ctx context.Context, p uint32, about Mapping, f func(context.Context, *conn, uint32) error) error {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, Patience)
		defer cancel()
	}
	err := func() error {
		conn, err := dial(ctx, cmp.Or(c.Network, "tcp"), c.Addr)
		if err != nil {
			return err
		}
		defer conn.Close()
		for _, vers := range [...]uint32{version4, version3} {
			if err = f(ctx, conn, vers); !lacksVersion(err) {
				return err
			}
		}
		if _, known := portmapProto(about.Netid); about.Netid != "" && !known {
			return &VersionError{about.Netid, err}
		}
		return f(ctx, conn, version2)
	}()
	if err != nil {
		return &OpError{procName(p), c.Addr, about.Prog, about.Vers, about.Netid, err}
	}
	return nil
}

// lacksVersion reports whether err means that rpcbind does not support the version. RFC 5531
// section 9.
func lacksVersion(err error) bool {
	var e *oncrpc.RPCError
	return errors.As(err, &e) && e.Stat == oncrpc.MsgAccepted &&
		(e.AcceptStat == oncrpc.ProgMismatch || e.AcceptStat == oncrpc.ProgUnavail)
}

// change calls SET or UNSET. If the result is false, it returns ErrRefused.
func change(ctx context.Context, c *conn, vers uint32, p uint32, args []byte) error {
	var done bool
	err := c.call(ctx, vers, p, args, func(d *xdr.Decoder) { done = d.Bool() })
	if err == nil && !done {
		return ErrRefused
	}
	return err
}

// Set registers m. Registering it again changes nothing. The port mapper uses only the port of
// the address. RFC 1833 sections 2.2.1 and 3.2, SET.
func (c *Client) Set(ctx context.Context, m Mapping) error {
	if err := m.check(); err != nil {
		return &OpError{procName(procSet), c.Addr, m.Prog, m.Vers, m.Netid, err}
	}
	return c.do(ctx, procSet, m, func(ctx context.Context, conn *conn, vers uint32) error {
		if vers != version2 {
			return change(ctx, conn, vers, procSet, m.append(nil))
		}
		prot, _ := portmapProto(m.Netid)
		addr, err := ParseAddr(m.Addr)
		if err != nil {
			return err
		}
		e := portMapping{m.Prog, m.Vers, prot, uint32(addr.Port())}
		return change(ctx, conn, vers, procSet, e.Append(nil))
	})
}

// Unset removes the registrations of a program over netid, or over all netids if it is empty.
// The port mapper always removes all of them. RFC 1833 sections 2.2.1 and 3.2, UNSET.
func (c *Client) Unset(ctx context.Context, prog, vers uint32, netid Netid) error {
	m := Mapping{Prog: prog, Vers: vers, Netid: netid}
	return c.do(ctx, procUnset, m, func(ctx context.Context, conn *conn, v uint32) error {
		if v != version2 {
			return change(ctx, conn, v, procUnset, m.append(nil))
		}
		return change(ctx, conn, v, procUnset, (&portMapping{prog: prog, vers: vers}).Append(nil))
	})
}

// GetAddr looks up the address of a program over netid, one of those that this package
// defines. If the program listens on all addresses of the host, the result is the address of
// rpcbind if that is of the same IP version. ErrNotRegistered means that the program is not
// registered; for a version that is not registered rpcbind may return the address of another
// version.
//
// By the RFC rpcbind looks up the netid over which the call arrived, and ignores the one in
// the call. For other netids, such as rdma, GetAddr therefore fetches the whole list. RFC 1833
// sections 2.2.1 and 3.2: GETADDR, DUMP, GETPORT.
func (c *Client) GetAddr(ctx context.Context, prog, vers uint32, netid Netid) (netip.AddrPort, error) {
	m := Mapping{Prog: prog, Vers: vers, Netid: netid}
	if netid.family() == 0 {
		err := &AddrError{Netid: netid, What: "its addresses are not those of IP"}
		return netip.AddrPort{}, &OpError{procName(procGetAddr), c.Addr, prog, vers, netid, err}
	}
	var at netip.AddrPort
	err := c.do(ctx, procGetAddr, m, func(ctx context.Context, conn *conn, v uint32) error {
		var err error
		if v == version2 {
			at, err = getPort(ctx, conn, m)
			return err
		}
		uaddr, err := getAddr(ctx, conn, v, m)
		if err != nil {
			return err
		}
		if uaddr == "" {
			return ErrNotRegistered
		}
		if at, err = parseFor(netid, uaddr); err != nil {
			return &BadReplyError{err}
		}
		if host := conn.remote.Addr(); at.Addr().IsUnspecified() && host.Is4() == at.Addr().Is4() {
			at = netip.AddrPortFrom(host, at.Port())
		}
		return nil
	})
	if err != nil {
		return netip.AddrPort{}, err
	}
	return at, nil
}

// getAddr returns a universal address, or "".
func getAddr(ctx context.Context, c *conn, vers uint32, m Mapping) (uaddr string, err error) {
	if m.Netid == c.netid {
		err = c.call(ctx, vers, procGetAddr, m.append(nil), func(d *xdr.Decoder) { uaddr = d.String(maxString) })
		return uaddr, err
	}
	err = c.call(ctx, vers, procDump, nil, func(d *xdr.Decoder) {
		var e entry
		each(d, &e, func() {
			if uaddr == "" && e.prog == m.Prog && e.vers == m.Vers && Netid(e.netid) == m.Netid {
				uaddr = string(e.addr)
			}
		})
	})
	return uaddr, err
}

// getPort calls GETPORT of the port mapper.
func getPort(ctx context.Context, c *conn, m Mapping) (netip.AddrPort, error) {
	prot, _ := portmapProto(m.Netid)
	var port uint32
	e := portMapping{prog: m.Prog, vers: m.Vers, prot: prot}
	err := c.call(ctx, version2, procGetAddr, e.Append(nil), func(d *xdr.Decoder) { port = checkPort(d, d.Uint32()) })
	if err == nil && port == 0 {
		err = ErrNotRegistered
	}
	return netip.AddrPortFrom(c.remote.Addr(), uint16(port)), err
}

// Dump lists all registrations. RFC 1833 sections 2.2.1 and 3.2, DUMP.
func (c *Client) Dump(ctx context.Context) ([]Mapping, error) {
	var list []Mapping
	err := c.do(ctx, procDump, Mapping{}, func(ctx context.Context, conn *conn, vers uint32) error {
		return conn.call(ctx, vers, procDump, nil, func(d *xdr.Decoder) { list = decodeList(d, vers) })
	})
	if err != nil {
		return nil, err
	}
	return list, nil
}

// decodeList decodes the results of DUMP.
func decodeList(d *xdr.Decoder, vers uint32) (list []Mapping) {
	if vers == version2 {
		var e portEntry
		each(d, &e, func() { list = append(list, e.mapping()) })
	} else {
		var e entry
		each(d, &e, func() { list = append(list, e.mapping()) })
	}
	return list
}
