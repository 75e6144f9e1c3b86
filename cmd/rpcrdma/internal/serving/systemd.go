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

// Names of sockets opened by a service manager: those of the options that they replace, set by FileDescriptorName= in a
// unit (systemd.socket(5)).
const (
	socketAddr    = "addr"
	socketTCP     = "tcp-addr"
	socketMetrics = "metrics-addr"
)

// socketError is the error for a socket from the service manager that serve cannot use.
type socketError struct {
	name string
	err  error
}

func (e *socketError) Error() string {
	return fmt.Sprintf("the socket %s of the service manager: %v", explain.Printable(e.name), e.err)
}

func (e *socketError) Unwrap() error { return e.err }

// sockets holds the listening sockets with which the process was started (sd_listen_fds(3)), by name.
type sockets map[string]*net.TCPListener

// inherited returns the sockets with which the process was started. It removes them from the environment, so a second
// call returns none. The caller must close them, even after an error.
func inherited() (sockets, error) {
	s := make(sockets)
	var first error
	for _, f := range activation.Files(true) {
		l, err := listenerOf(f)
		f.Close() // l is a duplicate
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

// listenerOf returns the listener of a descriptor, which it leaves open.
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

// close closes the sockets that were not taken.
func (s sockets) close() {
	for _, l := range s {
		l.Close()
	}
}

// take returns the socket with a name, or nil. The caller then owns it.
func (s sockets) take(name string) *net.TCPListener {
	l := s[name]
	delete(s, name)
	return l
}

// listen returns the socket with a name, or else listens on addr.
func (s sockets) listen(ctx context.Context, name, addr string) (net.Listener, error) {
	if l := s.take(name); l != nil {
		return l, nil
	}
	return new(net.ListenConfig).Listen(ctx, "tcp", addr)
}

// adopt sets the options to the addresses of the sockets.
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

// manager reports the state of the process to the service manager that has started it, if any (sd_notify(3)).
type manager struct{ log *slog.Logger }

// tell sends lines of VARIABLE=VALUE. Without a service manager it does nothing. A service manager that does not listen
// is no reason to stop serving.
func (m *manager) tell(lines ...string) {
	if err := sdNotify(strings.Join(lines, "\n")); err != nil {
		m.log.Error("the service manager was not notified", "what", lines[0], "err", err)
	}
}

// notifyLimit is how long tell waits if the service manager's socket is full. daemon.SdNotify would wait forever.
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

// ready reports that the process is serving, and the status that 'systemctl status' shows.
func (m *manager) ready(status string) {
	m.tell(daemon.SdNotifyReady, "STATUS="+strings.ReplaceAll(status, "\n", " "))
}

// reloading reports that the process is reloading; ready follows.
func (m *manager) reloading() {
	m.tell(daemon.SdNotifyReloading, strings.TrimSpace(daemon.SdNotifyMonotonicUsec()))
}

// stopping reports that the process is stopping.
func (m *manager) stopping() { m.tell(daemon.SdNotifyStopping, "STATUS=answering calls under way") }

// watched feeds the watchdog at the interval that it requires, until ctx ends. Each time alive must return first. If it
// hangs, the feeding stops, and the service manager replaces the process.
func (m *manager) watched(ctx context.Context, alive func()) {
	limit, err := daemon.SdWatchdogEnabled(false)
	if err != nil {
		m.log.Error("cannot feed the service manager's watchdog", "err", err)
	}
	if err != nil || limit <= 0 {
		return
	}
	tick := time.NewTicker(limit / 3) // sd_watchdog_enabled(3) recommends half
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
