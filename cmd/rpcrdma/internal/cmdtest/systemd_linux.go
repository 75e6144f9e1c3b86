package cmdtest

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
)

// A ServiceManager is the socket that systemd gives to a service, and what came there.
type ServiceManager struct {
	t     *testing.T
	heard chan string
}

// NotifySocket returns a socket to which the commands of a test report.
func NotifySocket(t *testing.T) *net.UnixConn {
	t.Helper()
	addr := &net.UnixAddr{Name: filepath.Join(t.TempDir(), "notify"), Net: "unixgram"}
	conn, err := net.ListenUnixgram("unixgram", addr)
	testutil.Must(t, err)
	t.Cleanup(func() { conn.Close() })
	t.Setenv("NOTIFY_SOCKET", addr.Name)
	return conn
}

// NewServiceManager has the commands of a test report to it. It always listens: a socket holds a
// few messages, and then the reporting process waits.
func NewServiceManager(t *testing.T) *ServiceManager {
	t.Helper()
	conn := NotifySocket(t)
	m := &ServiceManager{t, make(chan string, 1<<16)}
	done := make(chan struct{})
	go func() {
		defer close(done)
		buf := make([]byte, 4096)
		for {
			n, err := conn.Read(buf)
			if err != nil {
				return
			}
			m.heard <- string(buf[:n])
		}
	}()
	t.Cleanup(func() {
		conn.Close()
		<-done
	})
	return m
}

// next returns the next message that is no sign of life. Of those it counts.
func (m *ServiceManager) next() (lines []string, alive int) {
	m.t.Helper()
	for {
		switch text := m.Read(testutil.Patience); text {
		case "WATCHDOG=1":
			alive++
		case "":
			m.t.Fatalf("the service manager hears nothing")
		default:
			return strings.Split(text, "\n"), alive
		}
	}
}

// Read returns the next message, or "" if none comes in time.
func (m *ServiceManager) Read(limit time.Duration) string {
	m.t.Helper()
	select {
	case text := <-m.heard:
		return text
	case <-time.After(limit):
		return ""
	}
}

// Silent wants that no message has been sent.
func (m *ServiceManager) Silent() {
	m.t.Helper()
	// A message of its own comes after what has been sent.
	conn, err := net.Dial("unixgram", os.Getenv("NOTIFY_SOCKET"))
	testutil.Must(m.t, err)
	defer conn.Close()
	_, err = conn.Write([]byte("end"))
	testutil.Must(m.t, err)
	if text := m.Read(testutil.Patience); text != "end" {
		m.t.Errorf("the service manager hears %q", text)
	}
}

// Want wants the next messages to have these lines, each of which may be the beginning of one.
func (m *ServiceManager) Want(lines ...string) {
	m.t.Helper()
	got, _ := m.next()
	ok := len(got) == len(lines)
	for i := 0; ok && i < len(lines); i++ {
		ok = strings.HasPrefix(got[i], lines[i])
	}
	if !ok {
		m.t.Fatalf("the service manager hears %q, want %q", got, lines)
	}
}
