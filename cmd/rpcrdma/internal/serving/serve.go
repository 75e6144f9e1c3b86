// Package serving implements the command serve: an NFS server over RDMA and TCP for directories of this machine, with
// access log, metrics, notifications, and support for service managers.
package serving

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/cli"
	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/connect"
	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/explain"
	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/loadgen"
	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/notify"
	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/provider"
	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/nfs"
	"github.com/rpcrdma/rpcrdma/nfs/nfsd"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/rpc/middleware"
	"github.com/rpcrdma/rpcrdma/rpc/rpcbind"
	"github.com/rpcrdma/rpcrdma/transport"
)

// serveOptions holds the options of serve.
type serveOptions struct {
	connect.Options
	exportFlags
	addr, tcpAddr string
	shm           string // a socket
	metricsAddr   string
	async         bool
	accessLog     string // FILE, or - for standard output; empty: none
	accessFormat  accessFormat
	tlsSquash     string // FILE

	openDir DirOpener
}

// A DirOpener opens a directory for export, as OpenDir does.
type DirOpener func(dir string, async bool, s *State, log *slog.Logger) (nfsd.FS, io.Closer, error)

// New returns the command serve.
func New() *cobra.Command { return NewFrom(OpenDir) }

// NewFrom returns the command serve with directories opened by open.
func NewFrom(open DirOpener) *cobra.Command {
	o := &serveOptions{openDir: open}
	cmd := &cobra.Command{
		Use:        "serve (--dir DIR | --export SPEC... | --exports FILE)",
		SuggestFor: []string{"server", "export", "share", "start", "nfsd"},
		Short:      "Export directories over NFS version 3",
		Long: `Export directories over NFS version 3, on RPC-over-RDMA or, with --provider tcp, on TCP.
MOUNT is on the same port.

With --dir clients see DIR as "/": nfs://HOST:PORT/FILE is DIR/FILE. --export gives each
directory its own name, by default its path, and options:

  ro                    refuse all changes
  squash=none|root|all  as --squash; also anonuid=UID, anongid=GID and allow=CIDR
  sec=FLAVOR[:FLAVOR]   as --sec

--exports names a file with one export per line; "#" begins a comment. A line such as "--addr
:20049" sets an option of this command, unless the command line sets it. SIGHUP rereads the
file: exports that remain are not disturbed, handles of removed exports become stale, and
options do not change. If the file has an error, the server reports it and changes nothing.
In a name, put a backslash before each comma, space, "=", "#" and backslash.

Clients cannot reach anything outside the directories, by any name or symbolic link, nor
anything mounted below them.

If run as root, the server performs every operation as the user and groups that the client
names, and the kernel decides what they may do. A client's root is mapped to the anonymous
user, unless --squash says otherwise. If run as any other user, the server lets every client
that reaches the port do what that user can do, and files that clients create belong to that
user. Users are not authenticated, except with --tls-squash and --sec: --allow names the
machines to trust, and --tls-ca the authorities that must have certified a machine.

With --tls-squash the certificate of a client determines its user, whatever user it claims.
Each line of FILE has the name of a certificate and a user. SIGHUP rereads it:

  DNS:host.example.org      backup
  email:alice@example.org   1000:1000,27
  subject:CN=bob,O=Example  bob

A user is UID:GID[,GID...], or the name of a user of this machine. All other clients, and
clients over --shm, are the anonymous user.

With --sec krb5, krb5i or krb5p users authenticate with Kerberos, and clients with another
flavor are refused. The keytab must have the key of nfs/HOST, where HOST is the name by which
clients mount. alice@REALM is the local user alice; each line of --principals maps another
principal to a user name. All others, including machines, are the anonymous user.

File handles are valid while the server runs, and with --state also after a restart. If the
server runs as root, most file systems find a file by its handle without a search.

--access-log writes a line for each call: time, client, procedure, status and duration in
seconds, then user, export, name and so on. "object", "to" and "found" are short forms of
handles: "found" of a LOOKUP equals "object" of a later READ. Names are quoted, and control
characters in them escaped. SIGHUP reopens the file, for log rotation. If the disk cannot
keep up, lines are dropped, and counted.

Data is on disk when the server acknowledges it as stable, unless --async is given.

With --rpcbind clients need not know the port: the server registers NFS and MOUNT under netid
rdma or rdma6, and with --tcp-addr also tcp or tcp6, until it exits.

--shm also serves programs on this machine, and in containers that share the socket, over
shared memory. To connect they need write permission on the socket, which the server's umask
determines. They have no address for allow=CIDR to match: exports with allow= are not served
there.

The server also has a benchmark program, 0x20524442 version 1, for 'rpcrdma bench', and a
notification program, 0x2052444e version 1, for 'rpcrdma watch', which obeys --allow,
--squash and the permissions of directories. Up to 128 clients may watch at a time, up to 32
of them from one address.

--metrics-addr serves HTTP: /metrics for Prometheus, /healthz, /debug/pprof, and
/debug/rpcrdma, a page with connections, calls and latencies, which 'rpcrdma stats' also
reads. Anyone who can reach it sees client addresses and process internals: use a loopback
address, or one that only operators reach.

Under systemd, the command reports readiness, reload and stop, and feeds the watchdog. It
uses sockets that systemd opened: a socket named addr, tcp-addr or metrics-addr replaces the
value of that option.

When it is ready, the command prints a line that contains "listening on HOST:PORT". On
SIGINT or SIGTERM it stops accepting calls, answers those in progress, and exits.`,
		Example: `  rpcrdma serve --dir /srv/data --read-only
  rpcrdma serve --dir . --addr 127.0.0.1:0 --tcp-addr 127.0.0.1:2049
  rpcrdma serve --export /srv/data --export /home=/users,squash=all,allow=192.0.2.0/24 --addr 192.0.2.1:20049
  rpcrdma serve --exports /etc/rpcrdma/exports --state /var/lib/rpcrdma --access-log /var/log/rpcrdma/access
  rpcrdma serve --export /home,sec=krb5p --export /srv/public,ro,sec=sys --addr :20049
  rpcrdma serve --dir . --addr 192.0.2.1:0 --rpcbind`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 && !cmd.Flags().Changed("dir") {
				return fmt.Errorf("unexpected argument %q: to serve the directory %s: --dir %s", args[0], args[0], args[0])
			}
			return cli.WantArgs()(cmd, args)
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			exports, err := o.exports(func(options []optionLine) error { return o.setOptions(cmd.Flags(), options) })
			if bad, ok := errors.AsType[*exportsError](err); ok {
				return fmt.Errorf("serve: %w", bad)
			}
			if err == nil && o.JSON && o.accessLog == "-" {
				err = errors.New("--access-log - and --json both print to standard output")
			}
			if err == nil {
				err = o.checkListen()
			}
			if err == nil {
				err = o.CheckTLS(true)
			}
			if err == nil && o.tlsSquash != "" && !o.Certified() {
				err = errors.New("--tls-squash requires --tls require and --tls-ca, which identify clients")
			}
			if err == nil && o.tlsSquash != "" && o.acceptor != nil {
				err = errors.New("--tls-squash and --sec krb5 exclude each other: users are known by certificates or by Kerberos")
			}
			if err != nil {
				return cli.Usage(cmd, err)
			}
			if err := o.CheckRPCBind(cmd); err != nil {
				return err
			}
			ctx, stop := cli.Interruptible(cmd.Context())
			defer stop()
			return o.serve(ctx, exports, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	connect.AddServerOptions(cmd, &o.Options, 10*time.Second, "at the end, wait this long for calls under way, then cut them off")
	connect.AddRPCBindOption(cmd, &o.Options, net.JoinHostPort("localhost", strconv.Itoa(rpcbind.Port)),
		"register with the rpcbind at `HOST:PORT`, which usually accepts this only from its own machine")
	flags := cmd.Flags()
	flags.StringVar(&o.addr, "addr", "127.0.0.1:20049", "listen on `HOST[:PORT]`; no host means all addresses, no port 20049, port 0 a free one")
	flags.StringVar(&o.tcpAddr, "tcp-addr", "", "also serve NFS over plain TCP on `HOST[:PORT]`; no port means 2049")
	flags.StringVar(&o.shm, "shm", "", "also serve programs on this machine over shared memory at `SOCKET`: a path, or @NAME")
	cli.CompleteFile(cmd, "shm")
	o.exportFlags.add(cmd)
	flags.StringVar(&o.tlsSquash, "tls-squash", "", "map clients to the users that `FILE` lists for their certificates, and all others to the anonymous user")
	cli.CompleteFile(cmd, "tls-squash")
	flags.StringVar(&o.metricsAddr, "metrics-addr", "", "serve metrics and status over HTTP on `HOST[:PORT]`, such as 127.0.0.1; no port means 9649")
	flags.StringVar(&o.accessLog, "access-log", "", "append a line for each call to `FILE`, which SIGHUP reopens; - is standard output")
	flags.Var(&o.accessFormat, "access-log-format", "write the access log as `FORMAT`: text or json")
	cli.CompleteFlag(cmd, "addr", connect.LocalAddresses(nfs.Port))
	cli.CompleteFlag(cmd, "tcp-addr", connect.LocalAddresses(cli.DefaultTCPPort))
	cli.CompleteFlag(cmd, "metrics-addr", cli.Words("127.0.0.1:9649", "[::1]:9649"))
	cli.CompleteFile(cmd, "access-log")
	flags.BoolVar(&o.async, "async", false, "answer before data is on disk; a crash can lose such data")
	return cmd
}

// checkListen checks the addresses to listen on and adds default ports.
func (o *serveOptions) checkListen() (err error) {
	for _, a := range []struct {
		flag  string
		value *string
		port  int
	}{{"addr", &o.addr, nfs.Port}, {"tcp-addr", &o.tcpAddr, cli.DefaultTCPPort}, {"metrics-addr", &o.metricsAddr, cli.DefaultMetricsPort}} {
		if *a.value == "" && a.flag != "addr" { // not requested
			continue
		}
		if *a.value, err = cli.WithPort(*a.value, a.port, true); err != nil {
			return fmt.Errorf("--%s: %w", a.flag, err)
		}
	}
	return nil
}

// serve runs until ctx ends.
func (o *serveOptions) serve(ctx context.Context, exports []exportSpec, stdout, stderr io.Writer) error {
	s := &service{serveOptions: o, log: o.Logger(stderr), stdout: stdout, ready: stdout, failed: make(chan error, 4)}
	s.manager.log = s.log
	if o.JSON {
		s.ready = stderr
	}
	hangups := make(chan os.Signal, 1)
	if o.file != "" || o.accessLog != "" || o.tlsSquash != "" || o.principals != "" { // otherwise SIGHUP would end the process
		signal.Notify(hangups, syscall.SIGHUP)
		defer signal.Stop(hangups)
	}
	defer s.close()
	open, err := inherited()
	defer open.close()
	if err == nil {
		err = o.adopt(open)
	}
	if err != nil {
		return fmt.Errorf("serve: %s", explain.OneLine(err))
	}
	if err := s.open(ctx, exports, open, stderr); err != nil {
		return fmt.Errorf("serve: %s", explain.Text(err))
	}
	s.start()
	known, err := o.register(ctx, s.provider, s.listener.Addr(), s.tcp)
	if err == nil {
		err = s.announce(ctx, s.ready)
	}
	watched, unwatch := context.WithCancel(context.Background())
	defer unwatch()
	s.running.Go(func() { s.manager.watched(watched, s.alive) })
	for serving := err == nil; serving; {
		select {
		case <-hangups:
			s.hangup()
		case <-ctx.Done():
			serving = false
		case err = <-s.failed:
			serving = false
		}
	}
	s.manager.stopping()
	// Stop directing clients here.
	if unset := known.remove(); err == nil {
		err = unset
	}
	if cut := s.stop(unwatch); err == nil {
		err = cut
	}
	stats := s.server.Stats()
	connect.LogStats(s.log, stats)
	if o.JSON {
		if err := cli.PrintJSON(stdout, stats); err != nil {
			return err
		}
	}
	if err != nil {
		return fmt.Errorf("serve: %s", explain.Text(err))
	}
	return nil
}

// service is a running serve command.
type service struct {
	*serveOptions
	log           *slog.Logger
	stdout, ready io.Writer // ready: for the message that the service is ready

	exporter *exporter
	access   *accessLog                // nil without --access-log
	metrics  *metrics                  // nil without --metrics-addr
	users    atomic.Pointer[certUsers] // for --tls-squash
	provider fabric.Provider
	server   *transport.Server
	listener *transport.Listener
	tcp      net.Listener        // nil without --tcp-addr
	shared   *transport.Listener // nil without --shm
	notify   *notify.Server
	opened   []io.Closer // closed at the very end, last to first
	manager  manager

	running sync.WaitGroup
	failed  chan error // capacity for every goroutine of running
}

// open opens everything that the service needs. The caller must close the service, even after an error.
func (s *service) open(ctx context.Context, exports []exportSpec, open sockets, stderr io.Writer) (err error) {
	if l := open.take(socketAddr); l != nil {
		s.provider, err = s.NewServerOn(stderr, l)
	} else {
		s.provider, err = s.NewServer(ctx, stderr, s.addr)
	}
	if err != nil {
		return err
	}
	if s.metricsAddr != "" {
		l, err := open.listen(ctx, socketMetrics, s.metricsAddr)
		if err != nil {
			return &connect.ListenError{Flag: "metrics-addr", Addr: s.metricsAddr, Err: err}
		}
		if s.metrics, err = newMetrics(l, s.metricsAddr, s.log); err != nil {
			l.Close()
			return err
		}
		s.opened = append(s.opened, s.metrics)
	}
	cfg := transport.Config{Logger: s.log, Observer: s.metrics.observer()}
	if cfg.TLS, err = s.TLS(stderr); err != nil {
		return err
	}
	if cfg.TLS != nil { // Linux uses plain text for MOUNT, and xprtsec= for NFS
		cfg.TLS.Except = []uint32{nfs.MountProgram}
	}
	if s.tlsSquash != "" {
		if err := s.readUsers(); err != nil {
			return err
		}
		cfg.Middleware = []rpc.Middleware{middleware.Identify(func(p rpc.Peer) oncrpc.Auth { return s.users.Load().credential(p) })}
	}
	if s.server, err = transport.NewServer(&transport.ServerConfig{Config: cfg}); err != nil {
		return err
	}
	if err := s.openFiles(exports); err != nil {
		return err
	}
	if err := errors.Join(s.server.Register(loadgen.Program()), notify.RegisterNotifyV1(s.server, s.notify)); err != nil {
		return err
	}
	return s.listen(ctx, open)
}

// openFiles opens the exports and registers the programs that serve them.
func (s *service) openFiles(exports []exportSpec) (err error) {
	x := newExporter(s.serveOptions, s.log)
	if err := x.check(exports); err != nil { // before a key is created that clients could read
		return err
	}
	if s.state != "" {
		if x.state, err = openState(s.state); err != nil {
			return err
		}
		s.opened = append(s.opened, x.state)
		x.cfg.Key = x.state.key
	}
	if s.accessLog != "" {
		if s.access, err = openAccessLog(s.accessLog, s.accessFormat.json, s.stdout, s.log); err != nil {
			return err
		}
		s.opened = append(s.opened, s.access)
		x.cfg.Access = s.access.note
	}
	s.opened = append(s.opened, x)
	if err := x.set(exports); err != nil {
		return err
	}
	s.exporter = x
	s.notify = notify.NewServer(x.watched, s.log)
	s.opened = append(s.opened, s.notify)
	for _, p := range x.server.Programs() {
		if p.Number == nfs.Program { // MOUNT uses AUTH_SYS with every server
			s.secure(&p, s.log)
		}
		if err := s.server.Register(p); err != nil {
			return err
		}
	}
	return nil
}

// readUsers reads the file of --tls-squash.
func (s *service) readUsers() error {
	users, err := readCertUsers(s.tlsSquash)
	if err == nil {
		s.users.Store(&users)
	}
	return err
}

// hangup handles SIGHUP: it reopens the access log, and reads the exports file and the file of users again. If that
// fails, it logs the error and changes nothing.
func (s *service) hangup() {
	if s.access != nil {
		s.access.reopen()
	}
	if s.tlsSquash != "" {
		if err := s.readUsers(); err != nil {
			s.log.Error("the users of certificates stay as they were", "err", explain.Text(err))
		}
	}
	if s.file == "" && s.principals == "" {
		return
	}
	s.manager.reloading()
	defer func() { s.manager.ready(s.status()) }() // in either case
	exports, err := s.exports(func(options []optionLine) error {
		if s.changed(options) {
			s.log.Error("options in the exports file have changed: restart the server to apply them", "file", s.file)
		}
		return nil
	})
	if err == nil {
		err = s.exporter.set(exports)
	}
	if err != nil {
		s.log.Error("the exports stay as they were", "err", explain.Text(err))
		return
	}
	if _, err := fmt.Fprintf(s.ready, "rpcrdma: exporting %s\n", s.exporter); err != nil {
		s.log.Error("the exports are the new ones, and could not be printed", "err", explain.Text(err))
	}
}

// close closes what open has opened.
func (s *service) close() {
	for i := len(s.opened) - 1; i >= 0; i-- {
		s.opened[i].Close()
	}
}

// listen listens on the addresses of the options.
func (s *service) listen(ctx context.Context, open sockets) (err error) {
	if s.listener, err = s.server.Listen(ctx, s.provider, s.addr); err != nil {
		return &connect.ListenError{Flag: "addr", Addr: s.addr, Err: err}
	}
	s.opened = append(s.opened, s.listener)
	if s.provider.Name() == provider.RDMA {
		if err := provider.CheckServing(ctx, s.listener.Addr().String()); err != nil {
			return &connect.ListenError{Flag: "addr", Addr: s.addr, Err: err}
		}
	}
	if s.shm != "" {
		p, err := s.NewShared()
		if err != nil {
			return err
		}
		if s.shared, err = s.server.Listen(ctx, p, s.shm); err != nil {
			return &connect.ListenError{Flag: "shm", Addr: s.shm, Err: err}
		}
		s.opened = append(s.opened, s.shared)
	}
	if s.tcpAddr == "" {
		return nil
	}
	tcp, err := open.listen(ctx, socketTCP, s.tcpAddr)
	if err != nil {
		return &connect.ListenError{Flag: "tcp-addr", Addr: s.tcpAddr, Err: err}
	}
	s.opened = append(s.opened, tcp)
	s.tcp = s.Recording.Listener(tcp)
	return nil
}

// start starts serving. Failures before the end are sent to failed.
func (s *service) start() {
	run := func(f func() error) {
		s.running.Go(func() {
			if err := f(); !errors.Is(err, net.ErrClosed) {
				s.failed <- err
			}
		})
	}
	run(func() error { return s.server.Serve(s.listener) })
	if s.shared != nil {
		run(func() error { return s.server.Serve(s.shared) })
	}
	if s.tcp != nil {
		run(func() error { return s.server.ServeTCP(s.tcp) })
	}
	if s.metrics != nil {
		s.metrics.start()
	}
}

// announce prints that the server is ready, and where it listens.
func (s *service) announce(ctx context.Context, w io.Writer) error {
	addr := s.listener.Addr()
	where := fmt.Sprintf("%v (%s)", addr, s.provider.Name())
	if s.provider.Name() == provider.RDMA {
		if device, err := provider.DeviceAt(ctx, addr.String()); err == nil {
			where = fmt.Sprintf("%v (%s, %s)", addr, s.provider.Name(), device)
		}
	}
	if s.shared != nil {
		where += fmt.Sprintf(" and %v (shm)", s.shared.Addr())
	}
	if s.tcp != nil {
		where += fmt.Sprintf(" and %v (tcp)", s.tcp.Addr())
	}
	how := ""
	if s.Rpcbind != "" {
		how = ", registered with rpcbind at " + s.Rpcbind
	}
	_, err := fmt.Fprintf(w, "rpcrdma: listening on %s, exporting %s%s%s\n", where, s.exporter, how, s.metrics.where())
	if err == nil {
		s.manager.ready(s.status())
	}
	return err
}

// status returns a short description of the service.
func (s *service) status() string {
	return fmt.Sprintf("listening on %v (%s), exporting %s", s.listener.Addr(), s.provider.Name(), s.exporter)
}

// alive acquires and releases the locks that every connection needs, so it returns only if they are not stuck.
func (s *service) alive() {
	s.server.Stats()
	for _, c := range s.server.Conns() {
		c.Stats()
	}
}

// stop stops the service gracefully: first new connections, then notifications, and then calls in progress, which it
// waits for until the timeout. unwatch ends the watchdog notifications. stop returns an error if calls were cut off.
func (s *service) stop(unwatch func()) (err error) {
	s.metrics.stopping()
	s.listener.Close()
	if s.shared != nil {
		s.shared.Close()
	}
	if s.tcp != nil {
		s.tcp.Close()
	}
	s.notify.Close()
	ctx, cancel := connect.Within(context.Background(), s.Timeout, func() error {
		st := s.server.Stats()
		return fmt.Errorf("calls still under way after %v were cut off (%d connections, %d calls without a reply)",
			s.Timeout, st.OpenConns, max(0, int64(st.Calls-st.Replies)))
	})
	defer cancel()
	if cut := s.server.Shutdown(ctx); cut != nil {
		err = cmp.Or(context.Cause(ctx), cut)
	}
	unwatch()
	s.running.Wait()
	return err
}
