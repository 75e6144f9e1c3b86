package serving

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strings"
	"time"

	"github.com/coreos/go-systemd/v22/activation"
	"github.com/coreos/go-systemd/v22/daemon"

	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/explain"
	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/provider"
)

// Sockets that a service manager has opened have the name of the option that they stand for, which
// is FileDescriptorName= in a unit (systemd.socket(5)).
const (
	socketAddr    = "addr"
	socketTCP     = "tcp-addr"
	socketMetrics = "metrics-addr"
)

// A socketError is a socket that the service manager has passed, and that serve cannot use.
type socketError struct {
	name string
	err  error
}

func (e *socketError) Error() string {
	return fmt.Sprintf("the socket %s of the service manager: %v", explain.Printable(e.name), e.err)
}

func (e *socketError) Unwrap() error { return e.err }

// sockets are the listening sockets that the process was started with (sd_listen_fds(3)), by name.
type sockets map[string]*net.TCPListener

// inherited takes the sockets that the process was started with. It takes those of the environment,
// so the second call has none. The caller closes them, also after an error.
func inherited() (sockets, error) {
	s := make(sockets)
	var first error
	for _, f := range activation.Files(true) {
		l, err := listenerOf(f)
		f.Close() // l has a duplicate
		switch {
		case err != nil:
		case f.Name() != socketAddr && f.Name() != socketTCP && f.Name() != socketMetrics:
			err = fmt.Errorf("want FileDescriptorName=%s, %s or %s in its unit", socketAddr, socketTCP, socketMetrics)
		case s[f.Name()] != nil:
			err = errors.New("there are two of the name, want one: [::]:PORT is IPv4 and IPv6")
		default:
			s[f.Name()] = l
			continue
		}
		if l != nil {
			l.Close()
		}
		if first == nil {
			first = &socketError{f.Name(), err}
		}
	}
	return s, first
}

// listenerOf returns the listener of a descriptor, which stays open.
func listenerOf(f *os.File) (*net.TCPListener, error) {
	l, err := net.FileListener(f)
	if err != nil {
		return nil, err
	}
	tcp, ok := l.(*net.TCPListener)
	if ok {
		err = accepts(f)
	}
	if !ok || err != nil {
		l.Close()
		return nil, errors.Join(err, errors.New("want ListenStream= with a port of TCP, and Accept=no"))
	}
	return tcp, nil
}

// close closes those that nothing has taken.
func (s sockets) close() {
	for _, l := range s {
		l.Close()
	}
}

// take returns the socket of a name, which is the caller's from now on, or nil.
func (s sockets) take(name string) *net.TCPListener {
	l := s[name]
	delete(s, name)
	return l
}

// listen is take, and listens on addr without one.
func (s sockets) listen(ctx context.Context, name, addr string) (net.Listener, error) {
	if l := s.take(name); l != nil {
		return l, nil
	}
	return new(net.ListenConfig).Listen(ctx, "tcp", addr)
}

// adopt gives the options the addresses of the sockets.
func (o *serveOptions) adopt(s sockets) error {
	for name, addr := range map[string]*string{socketAddr: &o.addr, socketTCP: &o.tcpAddr, socketMetrics: &o.metricsAddr} {
		if l := s[name]; l != nil {
			*addr = l.Addr().String()
		}
	}
	if s[socketAddr] != nil && o.Provider.Value != provider.IWARP && o.Provider.Value != provider.TCP {
		return &socketError{socketAddr, errors.New("sockets cannot be passed on for a device: use --provider iwarp")}
	}
	return nil
}

// A manager is the service manager that has started the process, if there is one: it learns what the
// process is up to (sd_notify(3)).
type manager struct{ log *slog.Logger }

// tell sends lines of VARIABLE=VALUE. Without a service manager nothing happens. One that does not
// listen is no reason to stop serving.
func (m *manager) tell(lines ...string) {
	if err := sdNotify(strings.Join(lines, "\n")); err != nil {
		m.log.Error("the service manager was not notified", "what", lines[0], "err", err)
	}
}

// notifyLimit is how long a service manager may leave its socket full. daemon.SdNotify has no limit.
const notifyLimit = time.Second

// sdNotify sends a state as sd_notify(3) does.
func sdNotify(state string) error {
	addr := &net.UnixAddr{Name: os.Getenv("NOTIFY_SOCKET"), Net: "unixgram"}
	if addr.Name == "" {
		return nil
	}
	conn, err := net.DialUnix(addr.Net, nil, addr)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetWriteDeadline(time.Now().Add(notifyLimit)); err != nil {
		return err
	}
	_, err = conn.Write([]byte(state))
	return err
}

// ready says that the process serves, and what 'systemctl status' shows of it.
func (m *manager) ready(status string) {
	m.tell(daemon.SdNotifyReady, "STATUS="+strings.ReplaceAll(status, "\n", " "))
}

// reloading says that ready comes again.
func (m *manager) reloading() {
	m.tell(daemon.SdNotifyReloading, strings.TrimSpace(daemon.SdNotifyMonotonicUsec()))
}

// stopping says that the process stops taking calls.
func (m *manager) stopping() { m.tell(daemon.SdNotifyStopping, "STATUS=answering calls under way") }

// watched tells the service manager, as often as it wants, that the process works, until ctx ends:
// alive has to return each time. Once it is stuck, so is the telling, and the process is replaced.
func (m *manager) watched(ctx context.Context, alive func()) {
	limit, err := daemon.SdWatchdogEnabled(false)
	if err != nil {
		m.log.Error("the service manager's watchdog gets no signs of life", "err", err)
	}
	if err != nil || limit <= 0 {
		return
	}
	tick := time.NewTicker(limit / 3) // half is the advice of sd_watchdog_enabled(3)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			alive()
			m.tell(daemon.SdNotifyWatchdog)
		}
	}
}
