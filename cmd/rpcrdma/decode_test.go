package main

import (
	"bytes"
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/loadgen"
	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/notify"
	"github.com/rpcrdma/rpcrdma/proto/dump"
	"github.com/rpcrdma/rpcrdma/rpc/stream"
)

// TestDecodeStatus prints one message that is whole and one that is damaged, as text and
// as JSON.
func TestDecodeStatus(t *testing.T) {
	const whole, damaged = "00000001 00000001 00000020 00000003\n", "00000001 00000001 00000020\n"
	for _, asJSON := range []bool{false, true} {
		for in, want := range map[string]int{whole: 0, damaged: 1, whole + "\n" + damaged: 1, damaged + "\n" + whole: 1} {
			args := []string{"decode"}
			if asJSON {
				args = append(args, "--json")
			}
			var stdout, stderr bytes.Buffer
			if got := run(args, strings.NewReader(in), &stdout, &stderr); got != want {
				t.Errorf("%q: exit status %d, want %d", in, got, want)
			}
			if n := strings.Count(stderr.String(), "rpcrdma: message "); n != want || strings.Count(stderr.String(), "\n") != want {
				t.Errorf("%q: standard error has\n%s", in, &stderr)
			}
			for line := range bytes.Lines(stdout.Bytes()) {
				if asJSON && !json.Valid(line) {
					t.Errorf("not JSON: %s", line)
				}
			}
		}
	}
}

// TestDecodeStdin: without a file, and with a dash for one, the input is standard
// input.
func TestDecodeStdin(t *testing.T) {
	const done = "0x00000001 0x00000001, 0x00000020 00:00:00:03\n"
	for _, args := range [][]string{{"decode"}, {"decode", "-"}} {
		var stdout, stderr bytes.Buffer
		if got := run(args, strings.NewReader(done), &stdout, &stderr); got != 0 || !strings.Contains(stdout.String(), "RDMA_DONE") {
			t.Errorf("%q: exit status %d\n%s%s", args, got, &stdout, &stderr)
		}
	}
}

// TestDecodeCapture: a capture is recognized, from a file and from standard input, and the exit
// status says what is wrong with it.
func TestDecodeCapture(t *testing.T) {
	whole, err := os.ReadFile("internal/trace/testdata/iwarp.pcapng")
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name   string
		in     []byte
		args   []string
		status int
		stdout string
		stderr string
	}{
		{"text", whole, nil, 0, "NFS v3 READDIRPLUS\n", ""},
		{"calls", whole, []string{"--calls"}, 0, ", SUCCESS, write chunk, 5001 bytes written\n", ""},
		{"JSON", whole, []string{"--json"}, 0, `"name":"NFS v3 READ"`, ""},
		{"cut short", whole[:len(whole)-100], nil, 1, "NFS v3 READ\n", "rpcrdma: standard input: the file is cut short\n"},
		{"a wrong byte", bytes.Replace(whole, []byte("\x00\x00\x13\x89"), []byte("\x00\x00\x33\x89"), 1), nil, 1, "the CRC of an FPDU is wrong", "anomalies: 1\n"},
		{"nothing of ours, and cut short", whole[:300], nil, 1, "", "; the file is cut short\n"},
		{"no capture", whole[:10], nil, 1, "", "no pcap or pcapng file"},
	} {
		var stdout, stderr bytes.Buffer
		status := run(append([]string{"decode"}, tt.args...), bytes.NewReader(tt.in), &stdout, &stderr)
		if status != tt.status || !strings.Contains(stdout.String(), tt.stdout) || !strings.Contains(stderr.String(), tt.stderr) || tt.stderr == "" && stderr.Len() > 0 {
			t.Errorf("%s: status %d, want %d\n%s%s", tt.name, status, tt.status, &stdout, &stderr)
		}
	}
}

func TestDecodeRefuses(t *testing.T) {
	tests := []struct {
		name   string
		args   []string
		in     string
		status int
		stderr string
	}{
		{"two files", []string{"a", "b"}, "", 2, `unexpected argument "b"`},
		{"unknown flag", []string{"--xml"}, "", 2, "unknown flag --xml"},
		{"no such file", []string{"testdata/none"}, "", 1, "no such file"},
		{"nothing", nil, "", 1, "standard input: no message"},
		{"only comments", nil, "# nothing\n\n# at all\n", 1, "standard input: no message"},
		{"no digits", nil, "00000001\nhello\n", 1, `standard input:2: "hello" is `},
		{"half a byte", nil, "000", 1, `standard input:1: "000" is half a byte short`},
		{"swapped bytes", nil, "0000000 0000 0100 0000 0100\n", 1, "hexdump needs the option -C"},
		{"a line is missing", nil, "00000000: 00000001\n00000008: 00000001\n", 1, "standard input:2: offset 0x8, but byte 0x4 is next"},
		{"an offset is missing", nil, "00000000: 00000001\nhello\n", 1, "standard input:2: \"hello\" has no offset"},
		{"an offset runs away", nil, "00000000: 00000001\n*\nffffffffffffffff\n", 1, "far from the one of the first line"},
		{"a message without end", nil, strings.Repeat("00000000\n", dump.MaxMessage/4+1), 1, "message is longer than 1048576 bytes"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			got := run(append([]string{"decode"}, tt.args...), strings.NewReader(tt.in), &stdout, &stderr)
			if got != tt.status || !strings.Contains(stderr.String(), tt.stderr) {
				t.Errorf("exit status %d, want %d; standard error %q, want %q in it", got, tt.status, &stderr, tt.stderr)
			}
			if stdout.Len() > 0 {
				t.Errorf("standard output has %q", &stdout)
			}
		})
	}
}

// decode knows the names of this module's own programs.
func TestOwnProgramNames(t *testing.T) {
	for _, tt := range []struct {
		prog, vers, proc uint32
		want             string
	}{
		{loadgen.ProgramNumber, loadgen.ProgramVersion, loadgen.ProcEcho, "RPCRDMA_BENCH ECHO"},
		{loadgen.ProgramNumber, loadgen.ProgramVersion, loadgen.ProcSink, "RPCRDMA_BENCH SINK"},
		{loadgen.ProgramNumber, loadgen.ProgramVersion, loadgen.ProcSource, "RPCRDMA_BENCH SOURCE"},
		{notify.RpcrdmaNotify, notify.NotifyV1, notify.NotifyWatch, "RPCRDMA_NOTIFY WATCH"},
		{stream.ProgramNumber, 1, 1, "STREAM EVENTS"},
	} {
		if prog, proc := dump.Names(tt.prog, tt.vers, tt.proc); prog+" "+proc != tt.want {
			t.Errorf("%#x version %d procedure %d is %s %s, want %s", tt.prog, tt.vers, tt.proc, prog, proc, tt.want)
		}
	}
}

// TestCommandPage runs the example of docs/command.md and compares the output.
func TestCommandPage(t *testing.T) {
	text, err := os.ReadFile("../../docs/command.md")
	if err != nil {
		t.Fatal(err)
	}
	_, example, ok1 := strings.Cut(string(text), "rpcrdma decode <<'END'\n")
	in, rest, ok2 := strings.Cut(example, "END\n")
	want, _, ok3 := strings.Cut(rest, "```")
	if !ok1 || !ok2 || !ok3 {
		t.Fatal("the page has no example of decode")
	}
	var stdout, stderr bytes.Buffer
	if status := run([]string{"decode"}, strings.NewReader(in), &stdout, &stderr); status != 0 || stdout.String() != want {
		t.Errorf("exit status %d\n%s%s", status, &stdout, &stderr)
	}
}
