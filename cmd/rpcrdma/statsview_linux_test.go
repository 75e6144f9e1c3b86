package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
)

// A terminal is a pseudo-terminal, with what a program has drawn on it.
type terminal struct {
	t             *testing.T
	master, slave *os.File

	mu          sync.Mutex
	state       string // of an escape sequence that has begun
	screen      [][]byte
	row, col    int
	other, hide bool // the other screen; no cursor
	draws       int  // from the top
	raw         bytes.Buffer
}

// newTerminal opens a terminal of 24 lines and 100 columns.
func newTerminal(t *testing.T) *terminal {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if errors.Is(err, fs.ErrNotExist) {
		t.Skip("this machine has no pseudo-terminals: ", err)
	}
	testutil.Must(t, err, unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0))
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	testutil.Must(t, err)
	slave, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	testutil.Must(t, err)
	m := &terminal{t: t, master: master, slave: slave}
	m.resize(24, 100)
	done := make(chan struct{})
	go func() {
		defer close(done)
		b := make([]byte, 4096)
		for {
			n, err := master.Read(b)
			if err != nil {
				return
			}
			m.mu.Lock()
			m.raw.Write(b[:n])
			for _, c := range b[:n] {
				m.put(c)
			}
			m.mu.Unlock()
		}
	}()
	t.Cleanup(func() { slave.Close(); <-done; master.Close() })
	return m
}

func (m *terminal) resize(rows, cols uint16) {
	m.t.Helper()
	testutil.Must(m.t, unix.IoctlSetWinsize(int(m.slave.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: cols}))
	m.mu.Lock()
	defer m.mu.Unlock()
	old := m.screen
	m.screen = make([][]byte, rows)
	for i := range m.screen {
		m.screen[i] = bytes.Repeat([]byte(" "), int(cols))
		if i < len(old) {
			copy(m.screen[i], old[i])
		}
	}
	m.row, m.col = min(m.row, int(rows)-1), 0
}

// put does what a terminal does with a byte. Drawing outside, and sequences that the view is not to
// use, are errors.
func (m *terminal) put(c byte) {
	if m.state != "" || c == 0x1b {
		if m.state += string(rune(c)); len(m.state) > 2 && (c >= 'A' && c <= 'Z' || c >= 'a' && c <= 'z') {
			m.control(m.state)
			m.state = ""
		}
		return
	}
	switch {
	case c == '\r':
		m.col = 0
	case c == '\n':
		if m.row++; m.row == len(m.screen) {
			if m.row--; m.other {
				m.t.Error("the screen scrolls")
			}
		}
	case c < ' ':
		m.t.Errorf("byte %#x", c)
	case m.col < len(m.screen[m.row]):
		m.screen[m.row][m.col] = c
		m.col++
	case c < 0x80 && m.other: // the rest of a character is dropped
		m.t.Errorf("%q is outside of the line %q", c, m.screen[m.row])
	}
}

func (m *terminal) control(seq string) {
	switch seq {
	case "\x1b[?1049h", "\x1b[?1049l":
		m.other = seq[len(seq)-1] == 'h'
	case "\x1b[?25h", "\x1b[?25l":
		m.hide = seq[len(seq)-1] == 'l'
	case "\x1b[?7h", "\x1b[?7l":
	case "\x1b[H": // to the top
		m.row, m.col = 0, 0
		m.draws++
	case "\x1b[K": // erase to the end of the line
		m.erase(m.row, m.col)
	case "\x1b[J": // erase to the end of the screen
		m.erase(m.row, m.col)
		for i := m.row + 1; i < len(m.screen); i++ {
			m.erase(i, 0)
		}
	default:
		m.t.Errorf("sequence %q", seq)
	}
}

func (m *terminal) erase(row, from int) {
	for i := from; i < len(m.screen[row]); i++ {
		m.screen[row][i] = ' '
	}
}

// look returns what is on the screen, and how often it was drawn.
func (m *terminal) look() (text string, draws int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, line := range m.screen {
		text += strings.TrimRight(string(line), " ") + "\n"
	}
	return text, m.draws
}

// start runs the command on the terminal, and returns the settings of the terminal.
func (m *terminal) start(args ...string) (*exec.Cmd, unix.Termios) {
	m.t.Helper()
	before, err := unix.IoctlGetTermios(int(m.slave.Fd()), unix.TCGETS)
	testutil.Must(m.t, err)
	cmd := command(m.t.Context(), args...)
	cmd.Stdin, cmd.Stdout = m.slave, m.slave
	cmd.Stderr = new(bytes.Buffer)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	testutil.Must(m.t, cmd.Start())
	return cmd, *before
}

// ended checks that the command ends well, and gives the terminal back as it was.
func (m *terminal) ended(cmd *exec.Cmd, before unix.Termios) {
	m.t.Helper()
	late := time.AfterFunc(testTimeout, func() { cmd.Process.Signal(syscall.SIGQUIT) })
	defer late.Stop()
	if err := cmd.Wait(); err != nil || cmd.Stderr.(*bytes.Buffer).Len() > 0 {
		m.t.Errorf("the command: %v, %s", err, cmd.Stderr)
	}
	after, err := unix.IoctlGetTermios(int(m.slave.Fd()), unix.TCGETS)
	if testutil.Must(m.t, err); *after != before {
		m.t.Errorf("the settings are %+v, were %+v", *after, before)
	}
	testutil.Eventually(m.t, "the screen and the cursor are back", func() bool {
		m.mu.Lock()
		defer m.mu.Unlock()
		return !m.other && !m.hide
	})
}

// TestStatsView: on a terminal the samples are drawn in place, until a key or a signal.
func TestStatsView(t *testing.T) {
	dir := t.TempDir()
	testutil.WriteFiles(t, dir, map[string]string{slowName: randomText(1, 1<<16)})
	s, slow := startSlow(t, "--dir", dir, "--metrics-addr", "127.0.0.1:0")
	slow.hang(t, s)
	addr := strings.TrimPrefix(s.http, "http://")

	t.Run("q", func(t *testing.T) {
		m := newTerminal(t)
		defer func() {
			if text, n := m.look(); t.Failed() {
				t.Logf("drawn %d times:\n%s", n, text)
			}
		}()
		cmd, before := m.start("stats", "--interval", "1s", addr)
		shows := func(draws int, lines ...string) func() bool {
			return func() bool {
				text, n := m.look()
				for _, line := range lines {
					if strings.Count(text, line) != 1 {
						return false
					}
				}
				return n >= draws
			}
		}
		all := []string{
			"server " + addr, "connections: 1 open", "calls: 1 executing", "4 KiB held by calls", "PROCEDURE", "IN FLIGHT", " NFS 3 READ  from 127.0.0.1:",
			"CONNECTION", " iwarp v2 ", " 1/", "(q ends)",
		}
		testutil.Eventually(t, "there is something on the screen", shows(1, all...))
		first, _ := m.look()
		testutil.Eventually(t, "it is drawn again in place", shows(3, all...))
		if text, _ := m.look(); text == first || !strings.Contains(text, "CALLS/s") {
			t.Errorf("it shows what it showed before:\n%s", text)
		}
		m.resize(12, 40)
		_, n := m.look()
		m.master.Write([]byte(" "))
		testutil.Eventually(t, "a key draws it again, as small as the terminal", func() bool {
			text, now := m.look()
			return now > n && strings.Contains(text, "IN FLIGHT") && strings.Contains(text, "NFS 3 READ")
		})
		m.master.Write([]byte("q"))
		m.ended(cmd, before)
	})
	for name, end := range map[string]func(m *terminal, cmd *exec.Cmd){
		"Ctrl-C":  func(m *terminal, _ *exec.Cmd) { m.master.Write([]byte{3}) },
		"SIGTERM": func(_ *terminal, cmd *exec.Cmd) { cmd.Process.Signal(syscall.SIGTERM) },
	} {
		t.Run(name, func(t *testing.T) {
			m := newTerminal(t)
			cmd, before := m.start("stats", "--interval", "1h", addr)
			testutil.Eventually(t, "it is drawn", func() bool { text, _ := m.look(); return strings.Contains(text, "IN FLIGHT") })
			end(m, cmd)
			m.ended(cmd, before)
		})
	}
	for _, args := range [][]string{
		{"--count", "1", addr}, {"--count", "1"}, {"--plain", "--count", "2", addr}, {"--json", "--count", "1", addr},
	} {
		t.Run(strings.Join(args[:len(args)-1], " "), func(t *testing.T) {
			m := newTerminal(t)
			cmd, before := m.start(append([]string{"stats", "--interval", "1s"}, args...)...)
			m.ended(cmd, before)
			live := strings.HasPrefix(args[0], "--count")
			testutil.Eventually(t, "the output is there", func() bool {
				m.mu.Lock()
				defer m.mu.Unlock()
				return m.raw.Len() > 0
			})
			m.mu.Lock()
			defer m.mu.Unlock()
			if has := strings.Contains(m.raw.String(), "\x1b"); has != live {
				t.Errorf("the output is %q", m.raw.String())
			}
		})
	}
}
