package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/dirwatch"
	"github.com/rpcrdma/rpcrdma/loadgen"
	"github.com/rpcrdma/rpcrdma/nfs"
	"github.com/rpcrdma/rpcrdma/notify"
	"github.com/rpcrdma/rpcrdma/provider"
	"github.com/rpcrdma/rpcrdma/rpcbind"
	"github.com/rpcrdma/rpcrdma/transport"
)

// serveOptions are the options of serve.
type serveOptions struct {
	options
	addr, tcpAddr, dir string
	readOnly, async    bool
}

func newServe() *cobra.Command {
	var o serveOptions
	cmd := &cobra.Command{
		Use:   "serve --dir DIR",
		Short: "Export a directory over NFS version 3",
		Long: `Export a directory over NFS version 3 on RPC-over-RDMA, with MOUNT on the same port.

Clients see DIR as "/": nfs://HOST:PORT/FILE is DIR/FILE. Nothing outside of DIR can be
reached, whatever the name and through whatever symbolic link. There is no protection
inside it: whoever reaches the port can do what the user who runs this command can do,
whatever user the client claims to be. Files that clients make belong to that user.

Data is on disk when the server says so, unless --async is given.

With --rpcbind clients need not know the port: NFS and MOUNT are registered under netid
rdma or rdma6, and with --tcp-addr also tcp or tcp6, until the server ends.

The server also has a benchmark program, 0x20524442 version 1, for 'rpcrdma bench', and a
notification program, 0x2052444e version 1, for 'rpcrdma watch'. A watching client is
forgotten when it is away for more than a minute. At most 128 clients watch at a time, at
most 32 of them from one address.

When it is ready, the command prints a line that contains "listening on HOST:PORT". At
SIGINT or SIGTERM it takes no more calls, answers those under way, and ends.`,
		Example: `  rpcrdma serve --dir /srv/data --read-only
  rpcrdma serve --dir . --addr 127.0.0.1:0 --tcp-addr 127.0.0.1:2049
  rpcrdma serve --dir . --addr 192.0.2.1:0 --rpcbind`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.dir == "" {
				return &usageError{command: cmd.CommandPath(), err: errors.New("--dir DIR is missing: which directory?")}
			}
			if err := o.checkRPCBind(cmd); err != nil {
				return err
			}
			ctx, stop := interruptible(cmd.Context())
			defer stop()
			return o.serve(ctx, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	addOptions(cmd, &o.options, 10*time.Second, "at the end, wait this long for calls under way, then cut them off")
	addRPCBindOption(cmd, &o.options, net.JoinHostPort("localhost", strconv.Itoa(rpcbind.Port)),
		"register with the rpcbind at `HOST:PORT`, which usually accepts this only from its own machine")
	flags := cmd.Flags()
	flags.StringVar(&o.addr, "addr", "127.0.0.1:20049", "listen on `HOST:PORT`; no host means all addresses, port 0 picks a free one")
	flags.StringVar(&o.tcpAddr, "tcp-addr", "", "serve NFS over plain TCP, too, on `HOST:PORT`")
	flags.StringVar(&o.dir, "dir", "", "export the directory `DIR`")
	flags.BoolVar(&o.readOnly, "read-only", false, "refuse all changes")
	flags.BoolVar(&o.async, "async", false, "answer before data is on disk, which a crash can lose")
	return cmd
}

// serve runs until ctx ends.
func (o *serveOptions) serve(ctx context.Context, stdout, stderr io.Writer) error {
	log := o.logger(stderr)
	p, err := o.newServer(ctx, stderr, o.addr)
	if err != nil {
		return fmt.Errorf("serve: %w", err)
	}
	e, err := newExport(o.dir, o.readOnly)
	if err != nil {
		return fmt.Errorf("serve: %s", explain(err))
	}
	defer e.Close()
	w, err := dirwatch.New(e.root, log)
	if err != nil {
		return fmt.Errorf("serve: %s", explain(err))
	}
	defer w.Close()
	n := notify.NewServer(w, log)
	defer n.Close()
	server, err := transport.NewServer(&transport.Config{Logger: log})
	if err != nil {
		return err
	}
	for _, p := range []transport.Program{loadgen.Program(), n.Program()} {
		if err := server.Register(p); err != nil {
			return err
		}
	}
	l, err := server.Listen(ctx, p, o.addr)
	if err == nil && p.Name() == provider.RDMA {
		if err = provider.CheckServing(ctx, l.Addr().String()); err != nil {
			l.Close()
		}
	}
	if err != nil {
		return fmt.Errorf("serve: %s", listenText(o.addr, err))
	}
	var tcp net.Listener
	if o.tcpAddr != "" {
		if tcp, err = net.Listen("tcp", o.tcpAddr); err != nil {
			l.Close()
			return fmt.Errorf("serve: %s", listenText(o.tcpAddr, err))
		}
		tcp = server.LimitTCP(tcp)
	}

	g := newGuard(e, o.async, log)
	bridge := server.Bridge(nfs.Binding{}, nfs.Program, nfs.MountProgram)
	var running sync.WaitGroup
	failed := make(chan error, 3) // one for each below
	run := func(f func() error) {
		running.Go(func() {
			if err := f(); !errors.Is(err, net.ErrClosed) {
				failed <- err
			}
		})
	}
	run(func() error { return g.serveRDMA(bridge) })
	run(func() error { return server.Serve(l) })
	where := fmt.Sprintf("%v (%s)", l.Addr(), p.Name())
	if p.Name() == provider.RDMA {
		if device, err := provider.DeviceAt(ctx, l.Addr().String()); err == nil {
			where = fmt.Sprintf("%v (%s, %s)", l.Addr(), p.Name(), device)
		}
	}
	if tcp != nil {
		run(func() error { return g.serveTCP(tcp) })
		where += fmt.Sprintf(" and %v (tcp)", tcp.Addr())
	}

	ready := stdout
	if o.json {
		ready = stderr
	}
	dir, err := filepath.Abs(o.dir)
	if err != nil {
		dir = o.dir
	}
	how := ""
	if o.readOnly {
		how = ", read-only"
	}
	known, err := o.register(ctx, l.Addr(), tcp)
	if o.rpcbind != "" {
		how += ", registered with rpcbind at " + o.rpcbind
	}
	if err == nil {
		_, err = fmt.Fprintf(ready, "rpcrdma: listening on %s, exporting %s%s\n", where, printable(dir), how)
	}
	if err == nil {
		select {
		case <-ctx.Done():
		case err = <-failed:
		}
	}

	// In order: no lookups, no new connections, no notifications; then the calls under way,
	// and last what they need.
	if unset := known.remove(); err == nil {
		err = unset
	}
	left := time.Duration(math.MaxInt64)
	if o.timeout > 0 {
		left = o.timeout
	}
	begun := time.Now()
	l.Close()
	if tcp != nil {
		tcp.Close()
	}
	n.Close()
	shutdown, cancel := within(context.Background(), o.timeout, func() error {
		s := server.Stats()
		return fmt.Errorf("calls still under way after %v were cut off (%d connections, %d calls without a reply)",
			o.timeout, s.OpenConns, max(0, int64(s.Calls-s.Replies)))
	})
	defer cancel()
	if cut := server.Shutdown(shutdown); cut != nil && err == nil {
		err = cmp.Or(context.Cause(shutdown), cut)
	}
	bridge.Close()
	g.stop(left - time.Since(begun))
	running.Wait()
	stats := server.Stats()
	logStats(log, stats)
	if o.json {
		if err := printJSON(stdout, newStatsJSON(stats)); err != nil {
			return err
		}
	}
	if err != nil {
		return fmt.Errorf("serve: %s", oneLine(err))
	}
	return nil
}
