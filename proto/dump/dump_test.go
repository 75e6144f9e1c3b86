package dump

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
)

// dump returns the messages in hexadecimal input as text and as lines of JSON. Problems
// follow their message in the text.
func dump(in []byte, name string) (text, jsons bytes.Buffer, err error) {
	messages, err := ReadHex(bytes.NewReader(in), name)
	var d Decoder
	for i, b := range messages {
		m := d.Decode(b)
		if i > 0 {
			text.WriteByte('\n')
		}
		text.WriteString(m.String())
		if m.Problem != "" {
			fmt.Fprintf(&text, "rpcrdma: message %d: %s\n", m.Number, m.Problem)
		}
		err = errors.Join(err, json.NewEncoder(&jsons).Encode(m))
	}
	return text, jsons, err
}

// TestDecodeGolden describes the messages in testdata both ways.
func TestDecodeGolden(t *testing.T) {
	for _, name := range []string{
		"nfs.xxd", "long.hexdump", "short.txt", "broken.txt", "version2.txt", "broken2.txt", "private.txt",
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join("testdata", name)
			in, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			text, jsons, err := dump(in, name)
			if err != nil {
				t.Fatal(err)
			}
			testutil.Golden(t, file+".golden", text.Bytes())
			testutil.Golden(t, file+".json.golden", jsons.Bytes())
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
			got, err := ReadHex(strings.NewReader("\n\n"+form+"\n\n# again\n"+form), "input")
			if err != nil {
				t.Fatal(err)
			}
			if len(got) != 2 || !bytes.Equal(got[0], want) || !bytes.Equal(got[1], want) {
				t.Errorf("got %x, want twice %x", got, want)
			}
		})
	}
}

// FuzzDecode decodes whatever can be read. Each message has a description in JSON, and
// decodes the same from a copy.
func FuzzDecode(f *testing.F) {
	files, err := filepath.Glob("testdata/*")
	if err != nil {
		f.Fatal(err)
	}
	for _, file := range files {
		if filepath.Ext(file) == ".golden" {
			continue
		}
		if text, err := os.ReadFile(file); err == nil {
			f.Add(text)
		}
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		messages, err := ReadHex(bytes.NewReader(in), "input")
		if err != nil {
			return
		}
		var d Decoder
		for i, b := range messages {
			m := d.Decode(b)
			text, err := json.Marshal(m)
			if err != nil {
				t.Fatalf("%x: %v", b, err)
			}
			if m.Number != i+1 || m.Size != len(b) || !strings.HasPrefix(m.String(), fmt.Sprintf("message %d, %d bytes\n", i+1, len(b))) {
				t.Errorf("%x is %s and %s", b, text, m)
			}
			if m.Problem == "" && m.XID == nil && m.PrivateData == nil {
				t.Errorf("%x is nothing, and no problem", b)
			}
		}
	})
}
