package main

import (
	"bytes"
	"encoding/csv"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
	"github.com/rpcrdma/rpcrdma/nfs"
)

// session is the conversation that TestCapture records: a READ into a write chunk, a WRITE from a
// read chunk, a READDIR into a reply chunk, and inline calls.
type session struct {
	server string            // the capture of the server
	client map[string]string // the captures of the commands
	data   []byte            // the file that was fetched and stored
	names  []string          // of the directory
}

// recordSession records a session, with more flags for the server, and for all commands.
func recordSession(t *testing.T, serve []string, flags ...string) *session {
	t.Helper()
	s := &session{client: make(map[string]string)}
	dir, captures := t.TempDir(), t.TempDir()
	s.data = make([]byte, 150_001) // not a multiple of four
	rand.NewChaCha8([32]byte{1}).Read(s.data)
	files := map[string]string{"data.bin": string(s.data), "small.txt": "hello"}
	for i := range 60 {
		files[fmt.Sprintf("file-with-a-rather-long-name-%02d", i)] = ""
	}
	testutil.WriteFiles(t, dir, files)
	for name := range files {
		s.names = append(s.names, name)
	}
	slices.Sort(s.names)

	s.server = filepath.Join(captures, "server.pcapng")
	server := startServer(t, slices.Concat([]string{"--dir", dir, "--capture", s.server}, serve, flags)...)
	run := func(name string, args ...string) {
		s.client[name] = filepath.Join(captures, name+".pcapng")
		mustRun(t, append(append(args, "--capture", s.client[name]), flags...)...)
	}
	out := filepath.Join(t.TempDir(), "out")
	run("ls", "ls", server.url("/"))
	run("get", "get", server.url("/data.bin"), out)
	run("put", "put", out, server.url("/stored.bin"))
	run("cat", "cat", server.url("/small.txt"))
	run("ping", "ping", "-c", "2", server.addr)
	testutil.Must(t, server.stop())
	stored, err := os.ReadFile(filepath.Join(dir, "stored.bin"))
	testutil.Must(t, err)
	if !bytes.Equal(stored, s.data) {
		t.Fatal("the file has changed on its way")
	}
	return s
}

// A tshark reads captures with Wireshark's dissectors. Reassembly takes two passes.
type tshark string

func findTshark(t *testing.T) tshark {
	t.Helper()
	path, err := exec.LookPath("tshark")
	if err != nil {
		t.Skip("tshark is not installed: ", err)
	}
	return tshark(path)
}

// fields returns the fields of the packets that filter selects, those that occur several times
// with commas between.
func (bin tshark) fields(t *testing.T, file, filter string, fields ...string) [][]string {
	t.Helper()
	args := []string{"-r", file, "-2", "-n", "-Y", filter, "-T", "fields", "-E", "separator=;", "-E", "occurrence=a"}
	for _, f := range fields {
		args = append(args, "-e", f)
	}
	cmd := exec.Command(string(bin), args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v: %v\n%s", cmd, err, &stderr)
	}
	r := csv.NewReader(&stdout)
	r.Comma, r.FieldsPerRecord = ';', -1
	rows, err := r.ReadAll()
	testutil.Must(t, err)
	return rows
}

// malformed matches packets that no capture may have: damaged for a dissector, or at odds with those
// before it.
const malformed = "_ws.malformed || _ws.expert.severity >= 6291456 || tcp.analysis.lost_segment || rpcordma.fragment.error"

// problems returns the complaints of tshark. sound is its remark about a good CRC; empty: they do not
// matter.
func (bin tshark) problems(t *testing.T, file, sound string) (all []string) {
	t.Helper()
	for _, row := range bin.fields(t, file, malformed, "frame.number", "_ws.expert.message", "_ws.col.Info") {
		all = append(all, "packet "+strings.Join(row, ": "))
	}
	if sound == "" {
		return all
	}
	text, err := exec.Command(string(bin), "-r", file, "-n", "-O", "iwarp_mpa,infiniband").Output()
	testutil.Must(t, err)
	good := 0
	for line := range strings.Lines(string(text)) {
		switch {
		case strings.Contains(line, sound):
			good++
		case strings.Contains(line, "CRC check"):
			all = append(all, strings.TrimSpace(line))
		}
	}
	if good == 0 {
		all = append(all, "there is nothing with a CRC")
	}
	return all
}

// TestCaptureTshark has Wireshark's dissectors read what both ends of a session have recorded.
func TestCaptureTshark(t *testing.T) {
	bin := findTshark(t)
	t.Run("iWARP", func(t *testing.T) {
		s := recordSession(t, nil)
		for _, file := range s.client {
			s.check(t, bin, file, "")
		}
		s.check(t, bin, s.server, "Good CRC32")

		// The check can fail: a byte of the data is wrong, and so is its CRC.
		b, err := os.ReadFile(s.client["get"])
		testutil.Must(t, err)
		b[bytes.Index(b, s.data[1000:1100])] ^= 0x40
		wrong := filepath.Join(t.TempDir(), "wrong.pcapng")
		testutil.Must(t, os.WriteFile(wrong, b, 0o600))
		if p := bin.problems(t, wrong, "Good CRC32"); len(p) != 1 {
			t.Errorf("a wrong byte gives the problems %q", p)
		}

		checkRead(t, bin, s.client["get"], s)
		checkWrite(t, bin, s.client["put"], s)
		checkReaddir(t, bin, s.client["ls"], s)
		null := bin.fields(t, s.client["ping"], "rpc.msgtyp == 0 && rpc.program == 100003 && rpc.procedure == 0", "rpc.xid")
		if len(null) != 3 {
			t.Errorf("tshark sees %d NULL calls, want 3", len(null))
		}
		s.checkServer(t, bin)
	})
	t.Run("RoCE", func(t *testing.T) {
		s := recordSession(t, nil, "--capture-as", "roce")
		s.check(t, bin, s.server, "Invariant CRC")
		s.checkServer(t, bin)
	})
	t.Run("TCP", func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "tcp.pcapng")
		server := startServer(t, "--dir", t.TempDir(), "--tcp-addr", "127.0.0.1:0", "--capture", file)
		c := dialRPC(t, server.tcp)
		c.send(c.message(nfs.Program, nfs.Version, 0, nil), 1<<20)
		c.receive()
		c.Close()
		testutil.Must(t, server.stop())
		if rows := bin.fields(t, file, "tcp && rpc.time && nfs.procedure_v3 == 0", "rpc.xid"); len(rows) != 1 {
			t.Errorf("tshark sees %d NULL calls over TCP", len(rows))
		}
	})
}

// check: a file is for its owner alone, and nothing in it is malformed.
func (s *session) check(t *testing.T, bin tshark, file, sound string) {
	t.Helper()
	st, err := os.Stat(file)
	testutil.Must(t, err)
	if st.Mode() != 0o600 {
		t.Errorf("%s: mode %v", filepath.Base(file), st.Mode())
	}
	for _, problem := range bin.problems(t, file, sound) {
		t.Errorf("%s: %s", filepath.Base(file), problem)
	}
}

// checkServer: what the server has recorded has everything, and tshark matches every reply with its call.
func (s *session) checkServer(t *testing.T, bin tshark) {
	t.Helper()
	checkRead(t, bin, s.server, s)
	checkWrite(t, bin, s.server, s)
	checkReaddir(t, bin, s.server, s)
	calls := bin.fields(t, s.server, "rpc.msgtyp == 0 && rpc.program in {100003, 100005}", "rpc.xid")
	replies := bin.fields(t, s.server, "rpc.msgtyp == 1 && rpc.time && rpc.program in {100003, 100005}", "rpc.xid")
	if len(calls) < 30 || len(calls) != len(replies) {
		t.Errorf("tshark sees %d calls, and replies to %d of them", len(calls), len(replies))
	}
}

// TestCaptureFlags: flags that make no sense are refused before anything is done.
func TestCaptureFlags(t *testing.T) {
	file := filepath.Join(t.TempDir(), "c.pcapng")
	for flags, want := range map[string]string{
		"--capture-snap 1":                     "are for --capture",
		"--capture-as roce":                    "are for --capture",
		"--capture-files 2":                    "are for --capture",
		"--capture FILE --capture-snap=-1":     "--capture-snap is -1",
		"--capture FILE --capture-files 0":     "--capture-files is 0",
		"--capture FILE --capture-files 2":     "--capture-files needs --capture-size",
		"--capture FILE --capture-size 1.5M":   "want a number of bytes",
		"--capture FILE --capture-size 0":      "want a number of bytes",
		"--capture FILE --capture-size 9e9":    "want a number of bytes",
		"--capture FILE --capture-as infinity": "want iwarp or roce",
	} {
		args := append([]string{"ping", "127.0.0.1:1"}, strings.Fields(strings.ReplaceAll(flags, "FILE", file))...)
		mustFail(t, 2, want, args...)
	}
	if _, err := os.Stat(file); err == nil {
		t.Error("a file was made")
	}
	mustFail(t, 1, "no such file or directory", "ping", "127.0.0.1:1", "--capture", filepath.Join(file, "x"))
}

// TestCaptureRing: the newest files are kept, decode reads each, and a size needs a unit.
func TestCaptureRing(t *testing.T) {
	dir, captures := t.TempDir(), t.TempDir()
	testutil.WriteFiles(t, dir, map[string]string{"data": strings.Repeat("12345678", 100_000)})
	server := startServer(t, "--dir", dir)
	file := filepath.Join(captures, "c.pcapng")
	mustRun(t, "get", server.url("/data"), filepath.Join(t.TempDir(), "out"),
		"--capture", file, "--capture-size", "200K", "--capture-files", "3")
	for _, name := range []string{file, file + ".1", file + ".2"} {
		st, err := os.Stat(name)
		testutil.Must(t, err)
		if st.Size() > 200<<10+100 { // and the statistics
			t.Errorf("%s has %d bytes", name, st.Size())
		}
		r := runCommand(t, "decode", name)
		if r.status != 0 || !strings.Contains(r.stdout, "(iWARP)") {
			t.Errorf("decode %s: status %d\n%s%s", name, r.status, r.stdout, r.stderr)
		}
	}
	if _, err := os.Stat(file + ".3"); err == nil {
		t.Error("there is one file too many")
	}
}

// checkRead: the reply to READ has its data from the write chunk.
func checkRead(t *testing.T, bin tshark, file string, s *session) {
	var data []byte
	for _, row := range bin.fields(t, file, "nfs.procedure_v3 == 6 && rpc.msgtyp == 1 && rpcordma.writes_count == 1 && nfs.count3 > 5",
		"nfs.data", "rpcordma.rdma_length", "nfs.count3", "nfs.status3") {
		part, err := hex.DecodeString(row[0])
		testutil.Must(t, err)
		if row[1] != row[2] || row[3] != "0" {
			t.Errorf("chunk of %s bytes, count %s, status %s", row[1], row[2], row[3])
		}
		data = append(data, part...)
	}
	if !bytes.Equal(data, s.data) {
		t.Errorf("READ has %d bytes, which are not the file's %d", len(data), len(s.data))
	}
}

// checkWrite: the call of WRITE has its data from the read chunk.
func checkWrite(t *testing.T, bin tshark, file string, s *session) {
	var data []byte
	for _, row := range bin.fields(t, file, "nfs.procedure_v3 == 7 && rpc.msgtyp == 0", "nfs.data", "nfs.count3") {
		part, err := hex.DecodeString(row[0])
		testutil.Must(t, err)
		data = append(data, part...)
	}
	if !bytes.Equal(data, s.data) {
		t.Errorf("WRITE has %d bytes, which are not the file's %d", len(data), len(s.data))
	}
	if rows := bin.fields(t, file, "rpcordma.reads_count == 1", "rpcordma.position", "rpcordma.rdma_length"); len(rows) == 0 {
		t.Error("there is no read chunk")
	}
	if rows := bin.fields(t, file, "nfs.procedure_v3 == 14 && rpc.msgtyp == 0", "nfs.name"); len(rows) != 1 || !strings.Contains(rows[0][0], "stored.bin") {
		t.Errorf("RENAME has the names %q", rows)
	}
}

// checkReaddir: the reply to READDIRPLUS is in the reply chunk as a whole.
func checkReaddir(t *testing.T, bin tshark, file string, s *session) {
	rows := bin.fields(t, file, "nfs.procedure_v3 == 17 && rpc.msgtyp == 1 && rpcordma.msg_type == 1", "nfs.readdirplus.entry.name", "rpcordma.rdma_length", "rpcordma.reassembled.length")
	var names []string
	for _, row := range rows {
		names = append(names, strings.Split(row[0], ",")...)
		if row[1] != row[2] {
			t.Errorf("reply chunk of %s bytes, reassembled %s", row[1], row[2])
		}
	}
	names = slices.DeleteFunc(names, func(n string) bool { return n == "." || n == ".." })
	slices.Sort(names)
	if !slices.Equal(names, s.names) {
		t.Errorf("READDIRPLUS has the names %q, want %q", names, s.names)
	}
}
