package cli

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
)

// A file goes to standard output complete and in order, and nothing else does.
func TestPlainJSON(t *testing.T) {
	for text, want := range map[string]string{
		"":                                  `""`,
		"plain ünïcödé 文件 😀":                `"plain ünïcödé 文件 😀"`,
		"\x1b[31m":                          `"\u001b[31m"`,
		"del \x7f":                          `"del \u007f"`,
		"csi \u009b31m, nel \u0085, \u0080": `"csi \u009b31m, nel \u0085, \u0080"`,
		"\u202egpj.exe":                     `"\u202egpj.exe"`,
		"\u200e\u200f\u061c\u2066\u2069":    `"\u200e\u200f\u061c\u2066\u2069"`,
		"tag \U000e0041 \\ \"":              `"tag \udb40\udc41 \\ \""`,
		"\xff":                              `"\ufffd"`,
	} {
		var b bytes.Buffer
		testutil.Must(t, NewJSON(&b).Encode(text))
		if got := strings.TrimSpace(b.String()); got != want {
			t.Errorf("%q is printed as %s, want %s", text, got, want)
		}
		var back string
		if err := json.Unmarshal(b.Bytes(), &back); err != nil || back != strings.ToValidUTF8(text, "\ufffd") {
			t.Errorf("%q comes back as %q, %v", text, back, err)
		}
	}
}
