package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the golden files anew")

// golden compares got with a file under testdata.
func golden(t *testing.T, file string, got []byte) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, got, 0o666); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("not what %s has; got\n%s", file, got)
	}
}

// TestDecodeGolden prints the messages in testdata/decode both ways. Standard
// error follows standard output in the golden files.
func TestDecodeGolden(t *testing.T) {
	for _, tt := range []struct {
		file   string
		status int
	}{
		{"nfs.xxd", 0},
		{"long.hexdump", 0},
		{"short.txt", 0},
		{"broken.txt", 1},
		{"version2.txt", 0},
		{"broken2.txt", 1},
	} {
		t.Run(tt.file, func(t *testing.T) {
			file := filepath.Join("testdata", "decode", tt.file)

			var both bytes.Buffer
			if got := run([]string{"decode", file}, nil, &both, &both); got != tt.status {
				t.Errorf("exit status %d, want %d", got, tt.status)
			}
			golden(t, file+".golden", both.Bytes())

			var stdout, stderr bytes.Buffer
			if got := run([]string{"decode", "--json", file}, nil, &stdout, &stderr); got != tt.status {
				t.Errorf("exit status with --json %d, want %d", got, tt.status)
			}
			for line := range bytes.Lines(stdout.Bytes()) {
				if !json.Valid(line) {
					t.Errorf("not JSON: %s", line)
				}
			}
			golden(t, file+".json.golden", stdout.Bytes())
			if problems := strings.Count(both.String(), "rpcrdma: message "); strings.Count(stderr.String(), "\n") != problems {
				t.Errorf("with --json, standard error has\n%swant %d lines", &stderr, problems)
			}
		})
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

func TestDecodeRefuses(t *testing.T) {
	tests := []struct {
		name   string
		args   []string
		in     string
		status int
		stderr string
	}{
		{"two files", []string{"a", "b"}, "", 2, "accepts at most 1 arg"},
		{"unknown flag", []string{"--xml"}, "", 2, "unknown flag: --xml"},
		{"no such file", []string{"testdata/none"}, "", 1, "no such file"},
		{"nothing", nil, "", 1, "standard input: no message"},
		{"only comments", nil, "# nothing\n\n# at all\n", 1, "standard input: no message"},
		{"no digits", nil, "00000001\nhello\n", 1, `standard input:2: "hello" is `},
		{"half a byte", nil, "000", 1, `standard input:1: "000" is half a byte short`},
		{"swapped bytes", nil, "0000000 0000 0100 0000 0100\n", 1, "hexdump needs the option -C"},
		{"a line is missing", nil, "00000000: 00000001\n00000008: 00000001\n", 1, "standard input:2: offset 0x8, but byte 0x4 is next"},
		{"an offset is missing", nil, "00000000: 00000001\nhello\n", 1, "standard input:2: \"hello\" has no offset"},
		{"an offset runs away", nil, "00000000: 00000001\n*\nffffffffffffffff\n", 1, "far from the one of the first line"},
		{"a message without end", nil, strings.Repeat("00000000\n", maxMessage/4+1), 1, "message is longer than 1048576 bytes"},
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

// TestReadHex reads one message in all the forms that it can have.
func TestReadHex(t *testing.T) {
	want := append([]byte{0, 0, 0, 1, 0, 0, 0, 2, 0xde, 0xad, 0xbe, 0xef, '|', '|', '|', '|'}, make([]byte, 36)...)
	forms := map[string]string{
		"plain": "00000001 00000002 deadbeef 7c7c7c7c" + strings.Repeat("\n0000", 18),
		"xxd": `00000000: 0000 0001 0000 0002 dead beef 7c7c 7c7c  ............||||
00000010: 0000 0000 0000 0000 0000 0000 0000 0000  ................
00000020: 0000 0000 0000 0000 0000 0000 0000 0000  ................
00000030: 0000 0000                                ....
`,
		"hexdump -C": `00000000  00 00 00 01 00 00 00 02  de ad be ef 7c 7c 7c 7c  |............|||||
00000010  00 00 00 00 00 00 00 00  00 00 00 00 00 00 00 00  |................|
*
00000030  00 00 00 00                                       |....|
00000034
`,
		"tcpdump": "\t0x0000:  0000 0001 0000 0002 dead beef 7c7c 7c7c  ............||||\r\n" +
			"\t0x0010:  0000 0000 0000 0000 0000 0000 0000 0000  ................\r\n" +
			"\t0x0020:  0000 0000 0000 0000 0000 0000 0000 0000  ................\r\n" +
			"\t0x0030:  0000 0000                                ....\r\n",
		"Wireshark": `0000   00 00 00 01 00 00 00 02 de ad be ef 7c 7c 7c 7c   ............||||
0010   00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00   ................
0020   00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00   ................
0030   00 00 00 00                                       ....
`,
		"part of a larger dump": `00000040: 0000 0001 0000 0002 dead beef 7c7c 7c7c  ............||||
00000050: 0000 0000 0000 0000 0000 0000 0000 0000  ................
00000060: 0000 0000 0000 0000 0000 0000 0000 0000  ................
00000070: 0000 0000                                ....
`,
		"C": "{ 0x00, 0x00, 0x00, 0x01, 0x00, 0x00, 0x00, 0x02,\n0xDE, 0xAD, 0xBE, 0xEF, 0x7c, 0x7c, 0x7c, 0x7c" +
			strings.Repeat(", 0x00", 36) + " };",
		"string": `\x00\x00\x00\x01\x00\x00\x00\x02\xde\xad\xbe\xef\x7c\x7c\x7c\x7c` + strings.Repeat(`\x00`, 36),
	}
	for name, form := range forms {
		t.Run(name, func(t *testing.T) {
			got, err := readHex(strings.NewReader("\n\n"+form+"\n\n# again\n"+form), "input")
			if err != nil {
				t.Fatal(err)
			}
			if len(got) != 2 || !bytes.Equal(got[0], want) || !bytes.Equal(got[1], want) {
				t.Errorf("got %x, want twice %x", got, want)
			}
		})
	}
}

// FuzzDecode: whatever the input, the command comes back with a status, and what
// it prints as JSON is JSON.
func FuzzDecode(f *testing.F) {
	files, err := filepath.Glob("testdata/decode/*")
	if err != nil {
		f.Fatal(err)
	}
	for _, file := range files {
		if strings.HasSuffix(file, ".golden") {
			continue
		}
		text, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(text))
	}
	f.Fuzz(func(t *testing.T, in string) {
		var stdout, stderr bytes.Buffer
		status := run([]string{"decode", "--json"}, strings.NewReader(in), &stdout, &stderr)
		if status != 0 && status != 1 || (status == 0) != (stderr.Len() == 0) {
			t.Errorf("exit status %d, standard error %q", status, &stderr)
		}
		for line := range bytes.Lines(stdout.Bytes()) {
			if !json.Valid(line) {
				t.Errorf("not JSON: %s", line)
			}
		}
		if run([]string{"decode"}, strings.NewReader(in), &stdout, &stderr) != status {
			t.Errorf("exit status is not %d without --json", status)
		}
	})
}

// TestReadme runs the example in the README and compares the output.
func TestReadme(t *testing.T) {
	text, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, example, ok1 := strings.Cut(string(text), "rpcrdma decode <<'END'\n")
	in, rest, ok2 := strings.Cut(example, "END\n")
	want, _, ok3 := strings.Cut(rest, "```")
	if !ok1 || !ok2 || !ok3 {
		t.Fatal("the README has no example of decode")
	}
	var stdout, stderr bytes.Buffer
	if status := run([]string{"decode"}, strings.NewReader(in), &stdout, &stderr); status != 0 || stdout.String() != want {
		t.Errorf("exit status %d\n%s%s", status, &stdout, &stderr)
	}
}
