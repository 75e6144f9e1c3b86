package serving

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/cmdtest"
	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
	"github.com/rpcrdma/rpcrdma/nfs"
	"github.com/rpcrdma/rpcrdma/nfs/nfsd"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
)

// anAccess is a call as tests change it.
func anAccess(change func(*nfsd.Access)) *nfsd.Access {
	a := &nfsd.Access{
		Time: time.Date(2026, 1, 2, 3, 4, 5, 6789, time.FixedZone("", 3600)), Duration: 1234567 * time.Nanosecond,
		Client: netip.MustParseAddrPort("192.0.2.1:800"), Prog: nfs.Program, Vers: 3, Proc: nfs.ProcGetAttr,
		Flavor: oncrpc.FlavorSys, UID: 1000, GID: 100, Export: &nfsd.Export{Name: "/data"}, AsUID: 1000, AsGID: 100, Object: 0xabc,
	}
	if change != nil {
		change(a)
	}
	return a
}

// A line describes a call in a form that programs can read and that does nothing to terminals.
func TestAccessLogLines(t *testing.T) {
	const head, headJSON = `2026-01-02T02:04:05.000006Z `, `{"time":"2026-01-02T02:04:05.000006Z","client":`
	for _, tt := range []struct {
		change     func(*nfsd.Access)
		text, json string
	}{
		{
			nil, `192.0.2.1:800 GETATTR NFS3_OK 0.001235 uid=1000 gid=100 export="/data" object=0000000000000abc`,
			`"192.0.2.1:800","procedure":"GETATTR","status":"NFS3_OK","seconds":0.001235,"uid":1000,"gid":100,"export":"/data","object":"0000000000000abc"}`,
		},
		{
			func(a *nfsd.Access) { a.Proc, a.Offset, a.Bytes, a.AsUID, a.AsGID = nfs.ProcRead, 1<<40, 65536, 1, 2 },
			`192.0.2.1:800 READ NFS3_OK 0.001235 uid=1000 gid=100 as_uid=1 as_gid=2 export="/data" object=0000000000000abc offset=1099511627776 bytes=65536`,
			`"192.0.2.1:800","procedure":"READ","status":"NFS3_OK","seconds":0.001235,"uid":1000,"gid":100,"as_uid":1,"as_gid":2,"export":"/data","object":"0000000000000abc","offset":1099511627776,"bytes":65536}`,
		},
		{
			func(a *nfsd.Access) {
				a.Proc, a.Name, a.NewName, a.To, a.Made, a.Status = nfs.ProcRename, "a", "b", 1<<63, 7, nfs.StatusROFS
			},
			`192.0.2.1:800 RENAME NFS3ERR_ROFS 0.001235 uid=1000 gid=100 export="/data" object=0000000000000abc name="a" to=8000000000000000 new_name="b" found=0000000000000007`,
			`"192.0.2.1:800","procedure":"RENAME","status":"NFS3ERR_ROFS","seconds":0.001235,"uid":1000,"gid":100,"export":"/data","object":"0000000000000abc","name":"a","to":"8000000000000000","new_name":"b","found":"0000000000000007"}`,
		},
		{
			func(a *nfsd.Access) {
				a.Proc, a.Name = nfs.ProcLookup, "x\n2026 [::1]:1 WRITE\r\t\x00\x1b[2J\"\\\x7f\u0085\u202e\xffä\U0001f600"
			},
			`192.0.2.1:800 LOOKUP NFS3_OK 0.001235 uid=1000 gid=100 export="/data" object=0000000000000abc name="x\n2026 [::1]:1 WRITE\r\t\x00\x1b[2J\"\\\x7f\u0085\u202e\xff\u00e4\U0001f600"`,
			`"192.0.2.1:800","procedure":"LOOKUP","status":"NFS3_OK","seconds":0.001235,"uid":1000,"gid":100,"export":"/data","object":"0000000000000abc","name":"x\u000a2026 [::1]:1 WRITE\u000d\u0009\u0000\u001b[2J\"\\\u007f\u0085\u202e\ufffd\u00e4\ud83d\ude00"}`,
		},
		{
			func(a *nfsd.Access) {
				a.Prog, a.Proc, a.Status, a.Export, a.Object, a.Name = nfs.MountProgram, nfs.MountProcMnt, nfs.StatusAcces, nil, 0, "/x"
			},
			`192.0.2.1:800 MNT MNT3ERR_ACCES 0.001235 uid=1000 gid=100 name="/x"`,
			`"192.0.2.1:800","procedure":"MNT","status":"MNT3ERR_ACCES","seconds":0.001235,"uid":1000,"gid":100,"name":"/x"}`,
		},
		{
			func(a *nfsd.Access) {
				*a = nfsd.Access{Time: a.Time, Prog: nfs.MountProgram, Proc: nfs.MountProcUmntAll}
			},
			`unknown UMNTALL SUCCESS 0.000000`, `"unknown","procedure":"UMNTALL","status":"SUCCESS","seconds":0.000000}`,
		},
		{
			func(a *nfsd.Access) {
				*a = nfsd.Access{Time: a.Time, Client: netip.MustParseAddrPort("[2001:db8::1]:9"), Prog: nfs.MountProgram, Proc: 9, Fail: oncrpc.ProcUnavail}
			},
			`[2001:db8::1]:9 MOUNT_9 PROC_UNAVAIL 0.000000`, `"[2001:db8::1]:9","procedure":"MOUNT_9","status":"PROC_UNAVAIL","seconds":0.000000}`,
		},
		{
			func(a *nfsd.Access) { a.Deny, a.Export, a.Object = oncrpc.AuthBadCred, nil, 0 },
			`192.0.2.1:800 GETATTR AUTH_BADCRED 0.001235 uid=1000 gid=100`,
			`"192.0.2.1:800","procedure":"GETATTR","status":"AUTH_BADCRED","seconds":0.001235,"uid":1000,"gid":100}`,
		},
	} {
		a := anAccess(tt.change)
		if got := string(appendAccess(nil, a)); got != head+tt.text+"\n" {
			t.Errorf("%s\nwant %s", got, head+tt.text)
		}
		if got := string(appendAccessJSON(nil, a)); got != headJSON+tt.json+"\n" {
			t.Errorf("%s\nwant %s", got, headJSON+tt.json)
		}
	}
}

// Whatever a name is, it stays within its line, and can be read back.
func FuzzAccessLogNames(f *testing.F) {
	f.Add("a\nb", "\x1b]0;x\a")
	f.Add("\"\\", "\xff\u2028")
	f.Fuzz(func(t *testing.T, name, dir string) {
		a := anAccess(func(a *nfsd.Access) { a.Proc, a.Name, a.Export.Name = nfs.ProcLookup, name, dir })
		for _, line := range [][]byte{appendAccess(nil, a), appendAccessJSON(nil, a)} {
			body := bytes.TrimSuffix(line, []byte("\n"))
			if i := bytes.IndexFunc(body, func(r rune) bool { return r < ' ' || r > '~' }); i >= 0 || len(body) == len(line) {
				t.Errorf("%q and %q make %q", name, dir, line)
			}
		}
		var line struct{ Name, Export string }
		if err := json.Unmarshal(appendAccessJSON(nil, a), &line); err != nil || line.Name != string([]rune(name)) {
			t.Errorf("%q is read as %q, %v", name, line.Name, err)
		}
		if name == "" {
			return
		}
		text := string(appendAccess(nil, a))
		_, quoted, _ := strings.Cut(text, " object=0000000000000abc name=")
		if got, err := strconv.Unquote(strings.TrimSuffix(quoted, "\n")); err != nil || got != name {
			t.Errorf("%q is read as %q, %v", name, got, err)
		}
	})
}

// A disk is where a log is written to, as a test wants it.
type disk struct {
	mu    sync.Mutex
	text  []byte
	err   error         // of writes, after half of what they write
	block chan struct{} // not nil: writes wait for it
	in    chan struct{} // has room for one; a write has begun
}

func newDisk() *disk { return &disk{in: make(chan struct{}, 1)} }

func (d *disk) Write(p []byte) (int, error) {
	select {
	case d.in <- struct{}{}:
	default:
	}
	if d.block != nil {
		<-d.block
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.err != nil {
		p = p[:len(p)/2]
	}
	d.text = append(d.text, p...)
	return len(p), d.err
}

func (d *disk) Close() error { return nil }

func (d *disk) fail(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.err = err
}

func (d *disk) lines() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return strings.SplitAfter(strings.TrimSuffix(string(d.text), "\n"), "\n")
}

func (d *disk) open() (io.WriteCloser, error) { return d, nil }

// A call waits for no disk: lines that there is no room for are counted, and the log has their
// number.
func TestAccessLogSlowDisk(t *testing.T) {
	for _, asJSON := range []bool{false, true} {
		d := newDisk()
		d.block = make(chan struct{})
		l, err := newAccessLog(d.open, asJSON, slog.New(slog.DiscardHandler))
		testutil.Must(t, err)
		a := anAccess(nil)
		l.note(a)
		<-d.in // it hangs
		const calls = 50_000
		for range calls {
			l.note(a)
		}
		if n := len(l.waiting); n > maxAccessWaiting || n < maxAccessWaiting-1000 {
			t.Errorf("%d bytes wait", n)
		}
		close(d.block)
		testutil.Must(t, l.Close())
		lines := d.lines()
		match := regexp.MustCompile(`lost"?[=:](\d+)\}?$`).FindStringSubmatch(lines[len(lines)-1])
		if match == nil {
			t.Fatalf("the last line is %q", lines[len(lines)-1])
		}
		if lost, _ := strconv.Atoi(match[1]); lost == 0 || len(lines)-1+lost != calls+1 {
			t.Errorf("%d lines, and %d lost, of %d calls", len(lines)-1, lost, calls+1)
		}
	}
}

// While the disk is full lines are lost, which is said once, in the program's log, and counted; then
// the log goes on, on a new line.
func TestAccessLogFullDisk(t *testing.T) {
	d := newDisk()
	var said cmdtest.LineBuffer
	l, err := newAccessLog(d.open, false, slog.New(slog.NewTextHandler(&said, nil)))
	testutil.Must(t, err)
	line := string(appendAccess(nil, anAccess(nil)))
	written := func(n int) {
		t.Helper()
		testutil.Eventually(t, fmt.Sprintf("there are %d lines", n), func() bool { return len(d.lines()) == n })
	}
	l.note(anAccess(nil))
	<-d.in
	d.fail(errors.New("full"))
	l.note(anAccess(nil))
	<-d.in
	testutil.Eventually(t, "it is said", func() bool { return strings.Contains(said.String(), "cannot be written") })
	l.note(anAccess(nil))
	<-d.in
	testutil.Eventually(t, "two are lost", func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.lost == 2
	})
	d.fail(nil)
	l.note(anAccess(nil))
	written(4)
	testutil.Must(t, l.Close())
	lines := d.lines()
	if lines[0] != line || lines[1] == line || lines[2] != line || !strings.HasSuffix(lines[3], " lost=2") || strings.Count(said.String(), "\n") != 1 {
		t.Errorf("the log is %q; it is said\n%s", lines, &said)
	}
}

// The end of the server does not wait for a disk that hangs.
func TestAccessLogHangingDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDisk()
		d.block = make(chan struct{})
		l, err := newAccessLog(d.open, false, slog.New(slog.DiscardHandler))
		testutil.Must(t, err)
		l.note(anAccess(nil))
		began := time.Now()
		if err := l.Close(); !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(began) != accessEnd {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		l.note(anAccess(nil)) // by a call that has hung, too
		close(d.block)
		<-l.done
	})
}

func TestAccessLogAllocates(t *testing.T) {
	for _, asJSON := range []bool{false, true} {
		l, err := newAccessLog(newDisk().open, asJSON, slog.New(slog.DiscardHandler))
		testutil.Must(t, err)
		a := anAccess(func(a *nfsd.Access) { a.Proc, a.Name = nfs.ProcRead, "name\n" })
		line := make([]byte, 0, 1000)
		if n := testing.AllocsPerRun(1000, func() { line = l.format(line[:0], a) }); n != 0 {
			t.Errorf("%v allocations, JSON %v", n, asJSON)
		}
		testutil.Must(t, l.Close())
	}
}
