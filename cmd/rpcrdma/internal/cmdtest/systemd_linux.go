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

// A ServiceManager is the notification socket that systemd gives to a service, and the messages received on it.
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

// NewServiceManager makes the commands of a test report to it. It always reads: a socket holds only a few messages
// before senders block.
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

// next returns the next message other than watchdog messages, and the number of those before it.
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

// Read returns the next message, or "" if none arrives in time.
func (m *ServiceManager) Read(limit time.Duration) string {
	m.t.Helper()
	select {
	case text := <-m.heard:
		return text
	case <-time.After(limit):
		return ""
	}
}

// Silent fails the test if a message has been sent.
func (m *ServiceManager) Silent() {
	m.t.Helper()
	// A message of our own arrives after all that were sent.
	conn, err := net.Dial("unixgram", os.Getenv("NOTIFY_SOCKET"))
	testutil.Must(m.t, err)
	defer conn.Close()
	_, err = conn.Write([]byte("end"))
	testutil.Must(m.t, err)
	if text := m.Read(testutil.Patience); text != "end" {
		m.t.Errorf("the service manager hears %q", text)
	}
}

// Want fails the test unless the next messages have these lines. Each line may be a prefix.
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
