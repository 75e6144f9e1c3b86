package remote

import (
	"context"
	"errors"
	"fmt"
	"net"

	"github.com/spf13/cobra"

	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/cli"
	"github.com/rpcrdma/rpcrdma/nfs"
)

// Each calls work for one URL after the other. URLs of the same server share a connection. With several URLs, an error
// of one is reported and the others are processed nevertheless.
func (o *Options) Each(cmd *cobra.Command, args []string, work func(ctx context.Context, r *Target) error) error {
	var urls []*nfs.URL
	for _, arg := range args {
		u, err := o.ParseURL(cmd, arg)
		if err != nil {
			return err
		}
		urls = append(urls, u)
	}
	c := remotes{o: o, cmd: cmd}
	failures := 0
	var last error
	for i, u := range urls {
		last = c.work(u, cmd.Name()+" "+args[i], work)
		if last == nil {
			continue
		}
		failures++
		if len(urls) == 1 || errors.Is(last, cli.ErrInterrupted) {
			break
		}
		cli.PrintError(cmd.ErrOrStderr(), o.JSON, last, 1)
	}
	c.close(failures == 0)
	switch {
	case failures == 0:
		return nil
	case len(urls) == 1 || errors.Is(last, cli.ErrInterrupted):
		return last
	}
	return fmt.Errorf("%s: %d of %d failed", cmd.Name(), failures, len(urls))
}

// reached is a connection for several URLs, and the context of the work on it.
type reached struct {
	ctx context.Context
	r   *Target
}

// remotes holds the connections of a command with several URLs, by address. The zero value with o and cmd is ready for
// use.
type remotes struct {
	o    *Options
	cmd  *cobra.Command
	open map[string]reached
}

// work calls work for one URL.
func (c *remotes) work(u *nfs.URL, name string, work func(ctx context.Context, r *Target) error) error {
	addr := u.Addr() // before the rpcbind lookup
	s, ok := c.open[addr]
	if !ok {
		ctx, r, err := c.o.Dial(c.cmd, u, name)
		if err != nil {
			return err
		}
		s = reached{ctx, r}
		if c.open == nil {
			c.open = make(map[string]reached)
		}
		c.open[addr] = s
	}
	r := *s.r
	r.URL, r.Name = &nfs.URL{Host: u.Host, Port: s.r.URL.Port, Path: u.Path}, name
	err := work(s.ctx, &r)
	if s.ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
		err = r.Failed(s.ctx, err)
		delete(c.open, addr) // the next URL gets a new connection
		s.r.End(false)
		return err
	}
	return r.Failed(s.ctx, err)
}

// close closes the connections, gracefully if ok is set.
func (c *remotes) close(ok bool) {
	for _, s := range c.open {
		s.r.End(ok)
	}
}
