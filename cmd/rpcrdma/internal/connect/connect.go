// Package connect has the flags shared by all commands that use a connection, and makes connections as they specify:
// with a provider, through rpcbind, within a timeout, recorded to a file.
package connect

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/cli"
	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/explain"
	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/provider"
	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/nfs"
	"github.com/rpcrdma/rpcrdma/proto/dump"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/transport"
)

// A Dialer connects over p to addr, HOST:PORT, with TLS as in transport.Config.
type Dialer func(ctx context.Context, p fabric.Provider, addr string, tls *transport.TLS) error

// connect calls dial to connect to the server at addr, HOST:PORT, or HOST if the port is to be looked up, with the
// provider of the options, all within the timeout. It returns the address with the port. rpcbind looks up prog and
// vers.
func (o *Options) connect(ctx context.Context, stderr io.Writer, addr string, prog, vers uint32, dial Dialer) (string, error) {
	var at stage
	ctx, cancel := Within(ctx, o.Timeout, func() error { return o.Stalled(stderr, at.get(), nil) })
	defer cancel()
	a := attempt{o: o, stderr: stderr, at: &at, prog: prog, vers: vers, dial: dial}
	var err error
	if a.tls, err = o.TLS(stderr); err != nil {
		return addr, err
	}
	if a.tls != nil {
		a.tls.Prog, a.tls.Vers = prog, vers
	}
	if o.shm != "" {
		at.set("connecting to %s over shared memory", o.shm)
		p, err := o.NewShared()
		if err == nil {
			err = dial(ctx, p, o.shm, nil)
		}
		return a.guess(addr, nfs.Port), withHint(ctx, err)
	}
	if o.Provider.Value != provider.Auto {
		reached, err := a.over(ctx, o.Provider.Value, addr)
		return reached, withHint(ctx, err)
	}
	var failed autoError
	for _, name := range after(o.chooseClient(ctx, stderr, a.guess(addr, nfs.Port))) {
		reached, err := a.bounded(ctx, name, addr)
		if err == nil && failed != nil {
			printChoice(stderr, name, a.why(name, failed[len(failed)-1]))
		}
		if err == nil || ctx.Err() != nil || errors.As(err, new(*net.DNSError)) {
			return reached, withHint(ctx, err)
		}
		failed = append(failed, err)
	}
	return addr, withHint(ctx, failed)
}

// after returns the providers that auto tries, of which name is the first.
func after(name string) []string {
	if name == provider.RDMA {
		return []string{name, provider.IWARP, provider.TCP}
	}
	return []string{name, provider.TCP}
}

// rdmaTries limits an attempt of auto over RDMA, because a server without RDMA may not answer.
const rdmaTries = 5 * time.Second

// bounded is over, limited to rdmaTries unless it is the last attempt.
func (a *attempt) bounded(ctx context.Context, name, addr string) (string, error) {
	if name != provider.TCP {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, rdmaTries)
		defer cancel()
	}
	return a.over(ctx, name, addr)
}

// why returns the reason why auto uses the provider called name, after the previous one failed with err.
func (a *attempt) why(name string, err error) string {
	why := explain.NoConnection(err)
	if e, ok := errors.AsType[*tcpServerError](err); ok {
		why = e.what()
	}
	if name == provider.TCP && a.o.Recording.file != "" {
		why += "; --capture does not record it"
	}
	return why
}

// attempt is a connection to be made, over one provider or another.
type attempt struct {
	o          *Options
	stderr     io.Writer
	at         *stage
	prog, vers uint32
	dial       Dialer
	tls        *transport.TLS
}

// over connects to addr over the provider called name, and returns the address with the port. An unknown port comes
// from rpcbind. Over TCP it is 2049 if rpcbind has none.
func (a *attempt) over(ctx context.Context, name, addr string) (string, error) {
	var unregistered error
	if _, _, err := net.SplitHostPort(addr); err != nil {
		host, port := cli.BareHost(addr), nfs.Port
		tcp := name == provider.TCP
		if tcp {
			port = cli.DefaultTCPPort
		}
		if tcp || a.o.Rpcbind != "" {
			a.at.set("asking the rpcbind at %s", a.o.rpcbindAt(host))
			found, err := a.o.lookupPort(ctx, host, a.prog, a.vers, tcp)
			switch {
			case err == nil:
				port = found
			case a.o.Rpcbind != "" || ctx.Err() != nil:
				return addr, err
			}
			unregistered = err
		}
		addr = net.JoinHostPort(host, strconv.Itoa(port))
	}
	a.at.set("connecting to %s over %s", addr, name)
	p, err := a.o.newProvider(a.stderr, name)
	switch {
	case err != nil:
	case name == provider.IWARP:
		err = a.overIWARP(ctx, p, addr)
	default:
		err = a.dial(ctx, p, addr, a.tls)
	}
	if err != nil && unregistered != nil && !errors.As(err, new(*net.DNSError)) {
		err = &lookupError{err, unregistered}
	}
	return addr, err
}

// iwarpTime is how long an iWARP server may take before the client checks whether it speaks TCP.
const iwarpTime = 500 * time.Millisecond

// overIWARP is dial over iWARP. It detects a server of ONC RPC over TCP instead of waiting for it: some of them take
// the beginning of iWARP for that of a long record.
func (a *attempt) overIWARP(ctx context.Context, p fabric.Provider, addr string) error {
	dialing, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	found := &tcpServerError{addr}
	timer := time.AfterFunc(iwarpTime, func() {
		if speaksRPC(dialing, addr, a.prog, a.vers) {
			cancel(found)
		}
	})
	defer timer.Stop()
	err := a.dial(dialing, p, addr, a.tls)
	if err != nil && (context.Cause(dialing) == found || explain.Unanswered(err) && speaksRPC(ctx, addr, a.prog, a.vers)) {
		return found
	}
	return err
}

// guess returns addr with the default port.
func (a *attempt) guess(addr string, port int) string {
	if _, _, err := net.SplitHostPort(addr); err == nil {
		return addr
	}
	return net.JoinHostPort(cli.BareHost(addr), strconv.Itoa(port))
}

// findsPort reports whether the port of a server, if none is given, is looked up while connecting.
func (o *Options) findsPort() bool {
	return o.Rpcbind != "" || o.Provider.Value == provider.TCP || o.Provider.Value == provider.Auto
}

// speaksRPC reports whether a server of ONC RPC over TCP answers at addr.
func speaksRPC(ctx context.Context, addr string, prog, vers uint32) bool {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	c, err := transport.DialTCP(ctx, addr, &transport.ClientConfig{NoReconnect: true})
	if err != nil {
		return false
	}
	defer c.Close()
	err = c.Null(ctx, prog, vers)
	return err == nil || errors.As(err, new(*oncrpc.RPCError))
}

// tcpServerError is the error for a TCP server that was assumed to use RDMA.
type tcpServerError struct{ addr string }

func (e *tcpServerError) what() string { return e.addr + " is an ONC RPC server over TCP" }

func (e *tcpServerError) Error() string { return e.what() + ", not RDMA" }

// Explain suggests the provider that the server needs.
func (e *tcpServerError) Explain() string { return e.Error() + ": use --provider tcp" }

// autoError holds the error of each provider, none of which reached the server.
type autoError []error

func (e autoError) Error() string { return e.join(error.Error) }

func (e autoError) Unwrap() []error { return e }

// Explain returns the explanation of each provider's error, the last one with its hint.
func (e autoError) Explain() string {
	last := len(e) - 1
	return autoError(e[:last]).join(explain.NoConnection) + "; " + explain.Text(e[last])
}

func (e autoError) join(text func(error) string) string {
	texts := make([]string, len(e))
	for i, err := range e {
		texts[i] = text(err)
	}
	return strings.Join(texts, "; ")
}

// lookupError is the error of a connection that failed after rpcbind had no port for it.
type lookupError struct{ err, lookup error }

func (e *lookupError) Error() string { return e.err.Error() + "; " + e.lookup.Error() }

func (e *lookupError) Unwrap() error { return e.err }

// Explain returns both reasons.
func (e *lookupError) Explain() string {
	return explain.NoConnection(e.err) + "; " + explain.Text(e.lookup)
}

// ConnectURL connects to the NFS server of a URL. If the URL has no port, ConnectURL sets it.
func (o *Options) ConnectURL(ctx context.Context, stderr io.Writer, u *nfs.URL, dial Dialer) error {
	if u.Port != 0 {
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

// DialAddr connects to an address returned by CheckAddr, for a command that reports a lost connection instead of
// reconnecting. It returns the address with the port.
func (o *Options) DialAddr(ctx context.Context, stderr io.Writer, addr string, prog, vers uint32, cfg *transport.ClientConfig) (c *transport.Client, at string, err error) {
	cfg.NoReconnect = true
	at, err = o.connect(ctx, stderr, addr, prog, vers, func(ctx context.Context, p fabric.Provider, addr string, tls *transport.TLS) (err error) {
		cfg.TLS = tls
		c, err = transport.Dial(ctx, p, addr, cfg)
		return err
	})
	return c, at, err
}

// DialGroup is DialAddr for up to conns connections.
func (o *Options) DialGroup(ctx context.Context, stderr io.Writer, addr string, prog, vers uint32, cfg *transport.ClientConfig, conns int) (c transport.Requester, at string, err error) {
	if conns == 1 {
		return o.DialAddr(ctx, stderr, addr, prog, vers, cfg)
	}
	cfg.NoReconnect, cfg.Connections = true, conns
	at, err = o.connect(ctx, stderr, addr, prog, vers, func(ctx context.Context, p fabric.Provider, addr string, tls *transport.TLS) (err error) {
		cfg.TLS = tls
		c, err = transport.DialGroup(ctx, p, []string{addr}, cfg)
		return err
	})
	return c, at, err
}

// Null makes one NULL call within the timeout.
func (o *Options) Null(ctx context.Context, stderr io.Writer, c transport.Requester, prog, vers uint32) error {
	ctx, cancel := Within(ctx, o.Timeout, func() error {
		name, _ := dump.Names(prog, vers, 0)
		return o.Stalled(stderr, fmt.Sprintf("NULL of %s version %d", cmp.Or(name, fmt.Sprintf("program %d", prog)), vers), c)
	})
	defer cancel()
	err := c.Null(ctx, prog, vers)
	if err != nil && ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		return context.Cause(ctx)
	}
	return err
}

// withHint adds a hint to the error of a connection that was not made: for a timeout, the same hint about another
// provider as for other errors.
func withHint(ctx context.Context, err error) error {
	stall, ok := context.Cause(ctx).(*StallError)
	if dial, isDial := errors.AsType[*transport.DialError](err); ok && isDial {
		stall.hint = explain.OtherProvider(&transport.DialError{Provider: dial.Provider, Addr: dial.Addr, Err: context.DeadlineExceeded})
	}
	if ok {
		return stall
	}
	if cause := context.Cause(ctx); cause == cli.ErrInterrupted {
		return cause
	}
	return err
}

// Connect calls dial to connect to the server at addr, HOST:PORT, according to the options and within their timeout.
// prog and vers are what it serves.
func (o *Options) Connect(ctx context.Context, stderr io.Writer, addr string, prog, vers uint32, dial Dialer) error {
	_, err := o.connect(ctx, stderr, addr, prog, vers, dial)
	return err
}

// CheckServer is CheckAddr for an NFS server. It returns the server's root as a URL.
func (o *Options) CheckServer(cmd *cobra.Command, arg string) (*nfs.URL, error) {
	addr, err := o.CheckAddr(cmd, arg)
	if err != nil {
		return nil, err
	}
	host, port, err := net.SplitHostPort(addr)
	if err != nil { // looked up later
		return &nfs.URL{Host: cli.BareHost(addr), Path: "/"}, nil
	}
	n, err := net.DefaultResolver.LookupPort(cmd.Context(), "tcp", port)
	return &nfs.URL{Host: host, Port: n, Path: "/"}, err
}

// CheckAddr checks an argument HOST or HOST:PORT, and adds the default port unless the port is looked up while
// connecting. With --rpcbind it must be HOST. Errors are usage errors.
func (o *Options) CheckAddr(cmd *cobra.Command, arg string) (addr string, err error) {
	if err := o.CheckRPCBind(cmd); err != nil {
		return "", err
	}
	if o.Rpcbind == "" {
		addr, err = cli.WithPort(arg, nfs.Port, false)
		if o.findsPort() && cli.IsHost(arg) {
			addr = arg
		}
	} else if _, port, split := net.SplitHostPort(arg); split == nil {
		err = fmt.Errorf("--rpcbind finds the port: give HOST without :%s", port)
	} else if addr = arg; !cli.IsHost(arg) {
		err = fmt.Errorf("with --rpcbind want HOST, got %q", arg)
	}
	if err != nil {
		return "", cli.Usage(cmd, err)
	}
	return addr, nil
}
