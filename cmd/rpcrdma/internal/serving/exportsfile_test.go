package serving

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
)

// An exports file has the form of --export, and an error says where it is and what was expected.
func TestExportsFile(t *testing.T) {
	const want = "want DIR[=/NAME][,OPTION...]"
	for _, tt := range []struct {
		text string
		want string // exports, or the error after "FILE"
	}{
		{"/a\n", "/a as /a"},
		{"/a", "/a as /a"},
		{"# all\n\n \t# that there is\r\n/a=/x,ro,squash=all\r\n  /b \t # and this\n", "/a as /x ro all | /b as /b"},
		{`/with\ space=/with\ space,ro` + "\n" + `/with#number`, "/with space as /with space ro | /with#number as /with#number"},
		{`/comma\,equals\=back\\slash\#`, `/comma,equals=back\slash# as /comma,equals=back\slash#`},
		{"/Ã\u00a0\u0085/à", "/Ã\u00a0\u0085/à as /Ã\u00a0\u0085/à"}, // no byte is a space here
		{"/a,allow=192.0.2.0/24,allow=2001:db8::1", "/a as /a [192.0.2.0/24 2001:db8::1/128]"},
		{"", ": no exports: " + want},
		{"#\n\n", ": no exports: " + want},
		{"/a\n/b rw\n", ":2: " + want + " without spaces"},
		{"/srv 192.0.2.0/24(rw,no_root_squash)", ":1: " + want + " without spaces"},
		{"/a\n\n# x\n=/b\n", ":4: " + want},
		{"/a=b", ":1: " + want},
		{"/a\x00", ":1: " + want},
		{"a/b", `:1: want the whole path of a directory, not "a/b"`},
		{"/a,rw", `:1: want ro, squash=, anonuid=, anongid=, allow= or sec=, not "rw"`},
		{"/a,\x1b[31m", `:1: want ro, squash=, anonuid=, anongid=, allow= or sec=, not "\x1b[31m"`},
		{"/a\n/b,squash=some", ":2: squash: want none, root or all"},
		{"/a,allow=host.example", ":1: allow: want a network such as"},
		{"/a,anonuid=4294967296", `:1: anonuid: "4294967296" is not a number`},
		{"/a,sec=krb6", `:1: sec: want some of krb5p, krb5i, krb5 and sys, not "krb6"`},
		{"/a,sec=", ":1: sec: want some of krb5p, krb5i, krb5 and sys"},
		{"/a,sec=sys:krb5:sys", ":1: sec: sys is there twice"},
		{"/a,anonuid=0", ":1: the anonymous user cannot be root"},
		{"/a\\", ":1: a backslash at the end escapes nothing"},
		{"/a=/x\n/b\n/c=/x", `:3: two exports have the name "/x": the other is in FILE:1`},
		{"/a\n" + strings.Repeat("x", 1<<16), ": a line is longer than 65536 bytes"},
		{strings.Repeat("#"+strings.Repeat("x", 1000)+"\n", 1100), ": the file is larger than 1048576 bytes"},
	} {
		file := filepath.Join(t.TempDir(), "exports")
		testutil.Must(t, os.WriteFile(file, []byte(tt.text), 0o600))
		got, err := exportsOf("--exports", file)
		if err != nil {
			got = strings.ReplaceAll(strings.TrimPrefix(err.Error(), file), file, "FILE")
		}
		if err == nil && got != tt.want || err != nil && (!strings.HasPrefix(got, tt.want) || tt.want == "") {
			t.Errorf("%.100q: %s, want %s", tt.text, got, tt.want)
		}
	}
	if _, err := exportsOf("--exports", "/none/such"); err == nil || err.Error() != "/none/such: no such file or directory" {
		t.Error(err)
	}
}

// exportsOf returns the exports that arguments ask for.
func exportsOf(args ...string) (string, error) {
	var o exportFlags
	cmd := &cobra.Command{}
	o.add(cmd)
	cmd.Flags().String("addr", "", "")
	if err := cmd.Flags().Parse(args); err != nil {
		return "", err
	}
	list, err := o.exports(func(options []optionLine) error { return o.setOptions(cmd.Flags(), options) })
	var got []string
	for _, e := range list {
		text := e.dir + " as " + e.Name
		if e.ReadOnly {
			text += " ro"
		}
		if e.own["squash"] {
			text += " " + e.Squash.String()
		}
		if e.Allow != nil {
			text += fmt.Sprint(" ", e.Allow)
		}
		got = append(got, text)
	}
	return strings.Join(got, " | "), err
}

// Options of the command line are defaults for what the file does not say, and exports of both are
// exported.
func TestExportsFileAndFlags(t *testing.T) {
	file := filepath.Join(t.TempDir(), "exports")
	testutil.Must(t, os.WriteFile(file, []byte("/a,squash=none\n/b\n"), 0o600))
	got, err := exportsOf("--exports", file, "--export", "/c=/d,ro", "--allow", "192.0.2.1")
	if want := "/c as /d ro [192.0.2.1/32] | /a as /a none [192.0.2.1/32] | /b as /b [192.0.2.1/32]"; err != nil || got != want {
		t.Errorf("%s, %v, want %s", got, err, want)
	}
	if got, err = exportsOf("--exports", file, "--read-only"); err != nil || got != "/a as /a ro none | /b as /b ro" {
		t.Errorf("%s, %v", got, err)
	}
	if _, err = exportsOf("--exports", file, "--export", "/x=/a"); err == nil || err.Error() != file+`:1: two exports have the name "/a"` {
		t.Error(err)
	}
}

// A file may have options, which the command line overrides.
func TestExportsFileOptions(t *testing.T) {
	file := filepath.Join(t.TempDir(), "exports")
	for _, tt := range []struct{ text, args, want string }{
		{"--read-only\n--allow 192.0.2.1 # one\n--allow=192.0.2.2\n--squash\tall\n/a\n", "", "/a as /a ro [192.0.2.1/32 192.0.2.2/32]"},
		{"/a\n--allow 192.0.2.1\n", "--allow 192.0.2.3", "/a as /a [192.0.2.3/32]"},
		{"--read-only false\n/a\n", "", "/a as /a"},
		{"/a\n--readonly\n", "", "error: :2: 'rpcrdma serve' has no option --readonly"},
		{"/a\n--export /b\n", "", "error: :2: --export is for the command line: a line here is DIR[=/NAME][,OPTION...]"},
		{"--anonuid x\n/a\n", "", "error: :1: invalid argument"},
		{"/a\n--state\n", "", "error: :2: --state needs a value"},
		{"--allow 192.0.2.1\n", "", "error: : no exports"},
	} {
		testutil.Must(t, os.WriteFile(file, []byte(tt.text), 0o600))
		got, err := exportsOf(append(strings.Fields(tt.args), "--exports", file)...)
		if want, fails := strings.CutPrefix(tt.want, "error: "); fails != (err != nil) || fails && !strings.HasPrefix(err.Error(), file+want) || !fails && got != want {
			t.Errorf("%q: %s, %v, want %s", tt.text, got, err, tt.want)
		}
	}
}

// Whatever is in an exports file, it is read, or refused with its name.
func FuzzExportsFile(f *testing.F) {
	f.Add("/a=/b,ro,squash=all,allow=192.0.2.0/24 # x\n")
	f.Add("/a\\ b\\\\\\=c\n\n#\n")
	f.Add("/a,anonuid=1,anongid=2,allow=::1\r\n")
	f.Add("=\n\x00,")
	file := filepath.Join(f.TempDir(), "exports")
	f.Fuzz(func(t *testing.T, text string) {
		testutil.Must(t, os.WriteFile(file, []byte(text), 0o600))
		list, _, err := readExports(file)
		if err != nil {
			if !strings.HasPrefix(err.Error(), file+":") || strings.ContainsAny(err.Error(), "\n\x1b") {
				t.Errorf("%q: %v", text, err)
			}
			return
		}
		for _, e := range list {
			if !strings.HasPrefix(e.dir, "/") || e.Name != "" && !strings.HasPrefix(e.Name, "/") || strings.ContainsAny(e.dir+e.Name, "\n\x00") {
				t.Errorf("%q: %+v", text, e)
			}
		}
	})
}
