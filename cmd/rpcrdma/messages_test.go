package main

import (
	"bytes"
	"encoding/json"
	"io"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/cli"
	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
	"github.com/rpcrdma/rpcrdma/nfs"
)

// A peer that is no RDMA server is reported as that, and not as a file.
func TestStrangers(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	testutil.Must(t, err)
	var mu sync.Mutex
	var answer func(net.Conn)
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			answer(c)
			mu.Unlock()
			c.Close()
		}
	})
	defer serving.Wait()
	defer l.Close()
	first := func(c net.Conn) { c.Read(make([]byte, 1000)) } // what was sent and not read makes the end a reset
	for _, tt := range []struct {
		name   string
		answer func(net.Conn)
		want   string // one of them, parted by "|"
	}{
		{"hangs up", first, "the other end closed the connection; is there an RDMA server?\n"},
		{"resets", func(c net.Conn) { first(c); c.(*net.TCPConn).SetLinger(0) }, ": the other end closed the connection (connection reset by peer); is there an RDMA server?\n"},
		{"does not read", func(net.Conn) {}, "; is there an RDMA server?\n"},
		{"speaks HTTP", func(c net.Conn) { first(c); io.WriteString(c, "HTTP/1.0 400 Bad Request\r\n\r\n") }, ": not an iWARP server (it answered with HTTP/1.0 400 Bad Request): check the port\n"},
	} {
		mu.Lock()
		answer = tt.answer
		mu.Unlock()
		for _, args := range [][]string{{"ping", l.Addr().String()}, {"ls", "nfs://" + l.Addr().String() + "/"}} {
			r := runCommand(t, args...)
			said := func(want string) bool { return strings.HasSuffix(r.stderr, want) }
			if r.status != 1 || !slices.ContainsFunc(strings.Split(tt.want, "|"), said) || !strings.Contains(r.stderr, "no connection to "+l.Addr().String()+" over iwarp: ") || strings.Contains(r.stderr, "file") {
				t.Errorf("%s to one that %s: status %d, want %q:\n%s", args[0], tt.name, r.status, tt.want, r.stderr)
			}
		}
	}
}

// With --json, errors are JSON, too, on standard error.
func TestErrorsJSON(t *testing.T) {
	h := &hostile{
		entries: map[string][]nfs.DirEntry{"/": {hostileEntry("closed", "closed", nfs.TypeDir), hostileEntry("file", "f", nfs.TypeReg)}},
		data:    "contents",
		denied:  map[string]nfs.Status{"closed": nfs.StatusAcces},
	}
	addr := h.start(t)
	for _, tt := range []struct {
		status int
		want   []string // of each object
		args   []string
	}{
		{1, []string{"no connection to 127.0.0.1:1 over iwarp: connection refused"}, []string{"ping", "--json", "127.0.0.1:1"}},
		{1, []string{"no such file"}, []string{"ls", "--json", "nfs://" + addr + "/nothing"}},
		{1, []string{"permission denied (NFS3ERR_ACCES)", "1 thing was skipped"}, []string{"ls", "-r", "--json", "nfs://" + addr + "/"}},
		{1, []string{"permission denied (NFS3ERR_ACCES)", "1 thing was skipped"}, []string{"get", "-r", "--json", "nfs://" + addr + "/", filepath.Join(t.TempDir(), "x")}},
		{2, []string{"want HOST or HOST:PORT"}, []string{"probe", "--json", "a:b:c"}},
		{2, []string{"unknown flag"}, []string{"ping", "--json", "--no-such-flag"}},
		{2, []string{"unknown flag"}, []string{"ping", "--no-such-flag", "--json"}},
		{2, []string{"unknown command"}, []string{"pingg", "-v", "--json", "host"}},
	} {
		r := runCommand(t, tt.args...)
		d := json.NewDecoder(strings.NewReader(r.stderr))
		for i, want := range tt.want {
			var got struct {
				cli.ErrorJSON
				cli.SkippedJSON
			}
			if err := d.Decode(&got); err != nil {
				t.Fatalf("%q: %v in\n%s", tt.args, err, r.stderr)
			}
			last := i == len(tt.want)-1
			if text := got.Error + got.Reason; !strings.Contains(text, want) || last != (got.Status == tt.status && got.Error != "") || last == (got.Skipped == "closed") {
				t.Errorf("%q: %+v, want %q", tt.args, got, want)
			}
		}
		if r.status != tt.status || d.More() {
			t.Errorf("%q: status %d, want %d:\n%s", tt.args, r.status, tt.status, r.stderr)
		}
	}
}

// No JSON has anything that a terminal executes, whatever names files have.
func TestNamesInJSON(t *testing.T) {
	const name = "\u202egpj.\u009b31m\u0085"
	dir, local := t.TempDir(), t.TempDir()
	testutil.WriteFiles(t, dir, map[string]string{name: "x", "dir/" + name: "x", "link": "-> " + name, "dir/out": "-> /" + name})
	s := startServer(t, "--dir", dir)
	w := startWatch(t, "--json", "--count", "1", s.watchURL("/"))
	testutil.Must(t, os.Mkdir(filepath.Join(dir, name+"w"), 0o755))
	if line := w.until("}")[0]; !strings.Contains(line, `\u202egpj.\u009b31m\u0085w`) {
		t.Errorf("watch: %q", line)
	}
	u := s.url("/" + url.PathEscape(name))
	for _, tt := range []struct {
		status int
		args   []string
	}{
		{0, []string{"ls", s.url("/")}}, {0, []string{"ls", "-r", s.url("/")}}, {0, []string{"stat", u, s.url("/link")}},
		{1, []string{"get", "-r", s.url("/dir"), filepath.Join(local, "dir")}}, {0, []string{"get", u, filepath.Join(local, name)}},
		{1, []string{"get", u + "x", local}}, {0, []string{"put", filepath.Join(local, name), s.url("/new")}}, {0, []string{"cp", u, s.url("/new")}},
		{0, []string{"mkdir", u + "d"}}, {0, []string{"mv", s.url("/new"), u + "d"}}, {0, []string{"rm", "-r", u + "d"}},
	} {
		r := runCommand(t, append(tt.args, "--json")...)
		out := r.stdout + r.stderr
		if r.status != tt.status || strings.ContainsFunc(out, func(r rune) bool { return r != '\n' && !strconv.IsPrint(r) }) {
			t.Errorf("%q: status %d, %q", tt.args, r.status, out)
		}
		if !strings.Contains(out, `\u202e`) && !strings.Contains(out, "%E2%80%AE") && out != "" {
			t.Errorf("%q: the name is not in %s", tt.args, out)
		}
	}
}

func TestGetToStdout(t *testing.T) {
	dir := t.TempDir()
	files := map[string]string{"empty": "", "small": "contents", "large": randomText(1, 5<<20+3), "even": randomText(2, 2<<20)}
	testutil.WriteFiles(t, dir, files)
	s := startServer(t, "--dir", dir)
	for name, want := range files {
		for _, parallel := range []string{"1", "3"} {
			if got := mustRun(t, "get", "-P", parallel, s.url("/"+name), "-"); got != want {
				t.Errorf("%s with -P %s: %d bytes, want %d", name, parallel, len(got), len(want))
			}
		}
	}
	here := t.TempDir()
	cmd := command(t.Context(), "get", s.url("/small"), "./-")
	cmd.Dir = here
	cmd.Env = append(cmd.Env, "PWD="+here)
	if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("get to ./-: %v, %q", err, out)
	}
	if b, err := os.ReadFile(filepath.Join(here, "-")); err != nil || !bytes.Equal(b, []byte("contents")) {
		t.Errorf("./- is %q, %v", b, err)
	}
}
