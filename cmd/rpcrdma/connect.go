package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/nfs"
	"github.com/rpcrdma/rpcrdma/proto/dump"
	"github.com/rpcrdma/rpcrdma/transport"
)

// A dialer connects over p to addr, HOST:PORT.
type dialer func(ctx context.Context, p fabric.Provider, addr string) error

// connect finds the server at addr, which is HOST with --rpcbind and otherwise HOST:PORT,
// and has dial connect to it with the provider of the options, all within the timeout. It
// returns the address with the port. prog and vers are what rpcbind is asked for.
func (o *options) connect(ctx context.Context, stderr io.Writer, addr string, prog, vers uint32, dial dialer) (string, error) {
	var at stage
	ctx, cancel := within(ctx, o.timeout, func() error { return o.stalled(stderr, at.get(), nil) })
	defer cancel()
	if o.rpcbind != "" {
		host := bareHost(addr)
		at.set("asking the rpcbind at %s", o.rpcbindAt(host))
		port, err := o.lookupPort(ctx, host, prog, vers)
		if err != nil {
			return addr, withHint(ctx, err)
		}
		addr = net.JoinHostPort(host, strconv.Itoa(port))
	}
	at.set("connecting to %s", addr)
	p, err := o.newClient(ctx, stderr, addr)
	if err != nil {
		return addr, withHint(ctx, err)
	}
	at.set("connecting to %s over %s", addr, p.Name())
	if err := dial(ctx, p, addr); err != nil {
		return addr, withHint(ctx, err)
	}
	return addr, nil
}

// connectURL is connect to the NFS server of a URL. With --rpcbind, the URL has the port
// afterwards.
func (o *options) connectURL(ctx context.Context, stderr io.Writer, u *nfs.URL, dial dialer) error {
	if o.rpcbind == "" {
		_, err := o.connect(ctx, stderr, u.Addr(), nfs.Program, nfs.Version, dial)
		return err
	}
	addr, err := o.connect(ctx, stderr, u.Host, nfs.Program, nfs.Version, dial)
	if err != nil {
		return err
	}
	_, port, err := net.SplitHostPort(addr)
	if err == nil {
		u.Port, err = strconv.Atoi(port)
	}
	return err
}

// dialAddr connects to an argument that checkAddr has returned, for a command that reports
// a lost connection instead of making another one. It returns the address with the port.
func (o *options) dialAddr(ctx context.Context, stderr io.Writer, addr string, prog, vers uint32, cfg *transport.ClientConfig) (c *transport.Client, at string, err error) {
	cfg.NoReconnect = true
	at, err = o.connect(ctx, stderr, addr, prog, vers, func(ctx context.Context, p fabric.Provider, addr string) (err error) {
		c, err = transport.Dial(ctx, p, addr, cfg)
		return err
	})
	return c, at, err
}

// dialGroup is dialAddr with up to so many connections.
func (o *options) dialGroup(ctx context.Context, stderr io.Writer, addr string, prog, vers uint32, cfg *transport.ClientConfig, conns int) (c transport.Requester, at string, err error) {
	if conns == 1 {
		return o.dialAddr(ctx, stderr, addr, prog, vers, cfg)
	}
	cfg.NoReconnect = true
	at, err = o.connect(ctx, stderr, addr, prog, vers, func(ctx context.Context, p fabric.Provider, addr string) (err error) {
		c, err = transport.DialGroup(ctx, p, []string{addr}, &transport.GroupConfig{ClientConfig: *cfg, Connections: conns})
		return err
	})
	return c, at, err
}

// null makes one NULL call within the timeout.
func (o *options) null(ctx context.Context, stderr io.Writer, c transport.Requester, prog, vers uint32) error {
	ctx, cancel := within(ctx, o.timeout, func() error {
		name, _ := dump.Names(prog, vers, 0)
		return o.stalled(stderr, fmt.Sprintf("NULL of %s version %d", cmp.Or(name, fmt.Sprintf("program %d", prog)), vers), c)
	})
	defer cancel()
	err := c.Null(ctx, prog, vers)
	if err != nil && ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		return context.Cause(ctx)
	}
	return err
}
