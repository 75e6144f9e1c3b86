package snippets

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// The tree of this project, as seen from this directory.
const top = "../.."

// common is declared for every fragment.
const common = `
var (
	ctx      context.Context
	err      error
	provider fabric.Provider
)
`

// given is declared for the fragments of one document: what its text explains.
var given = map[string]string{
	"docs/migration.md":     "var (server *transport.Server; serveTCP func(net.Listener) error; useTCP func(net.Conn) error)",
	"ibv/doc.go":            "var buf []byte",
	"iwarp/doc.go":          "var (privateData []byte; receives []fabric.RecvWR; requests []fabric.SendWR; wcs [16]fabric.WC)",
	"rpc/middleware/doc.go": "var (check func(*rpc.Request) oncrpc.AuthStat; limiter *middleware.Limiter)",
	"nfs/doc.go":            "var local io.WriterAt",
	"nfs/nfs41/doc.go":      "var transportServer *transport.Server",
	"proto/oncrpc/doc.go":   "var (b, msg []byte; xid uint32)",
	"proto/rpcrdma/doc.go":  "var (b, call []byte; xid uint32; h rpcrdma.Header; answer func(*rpcrdma.HeaderError) error)",
	"proto/xdr/doc.go":      "var b, handle []byte",
	"transport/doc.go":      "var (args, buf []byte; req *rpc.Request; call rpc.Call)",
}

// notGo lists blocks that are no Go, by document and first line, with what they are.
var notGo = map[string]string{
	"internal/testing/generated/generated.go: go test ./bench/xdr -run=Generated -keep=/tmp/xdr":                         "commands",
	"internal/testing/interop/released/doc.go: go test ./internal/testing/interop/released -run TestRecord -record v0.2": "a command",

	"internal/testing/interop/rping/doc.go: client                                      server": "a drawing of the messages",
	"transport/internal/expose/loan.go: unused -> open -> closed -> unused":                     "states",
	"transport/internal/replycache/cache.go: running -> answered -> forgotten":                  "states",
	"proto/rpcrdma/doc.go: read list    1 PHLOO  1 PHLOO ... 0":                                 "the XDR of lists, in words of RFC 8166",
}

// built lists documents with blocks that are files of one program, by the name of the test that
// builds and runs it: a block alone lacks the other files. A single block of this kind, which needs
// another module, is listed with its first line.
var built = map[string]string{
	"docs/getting-started.md": "examples.TestGettingStarted",
	"docs/kerberos.md":        "examples.TestKerberos",
	"docs/grpc.md: func moveServer(ctx context.Context, svc pb.TestServiceServer) error {": "grpcrdma.TestPage",

	"docs/migration.md: package main": "tools/bridge.TestMigrationPage",
}

// broken lists snippets that do not compile and are to be mended, by document and first
// line, with what is wrong. One that compiles again must leave the list.
var broken = map[string]string{}

// TestDocumentation checks every snippet of the project.
func TestDocumentation(t *testing.T) {
	checker, err := NewChecker(top)
	if err != nil {
		t.Fatal(err)
	}
	seen := make(map[string]bool)
	for _, s := range all(t) {
		key := s.File + ": " + s.First()
		seen[key] = true
		if notGo[key] != "" || built[key] != "" || built[s.File] != "" {
			seen[s.File] = true
			continue
		}
		err := checker.Check(s, common+given[s.File])
		switch reason := broken[key]; {
		case reason == "" && err != nil:
			t.Errorf("%v", err)
		case reason != "" && err == nil:
			t.Errorf("%s:%d compiles: remove it from the list of broken snippets", s.File, s.Line)
		}
	}
	for _, list := range []map[string]string{notGo, built, broken} {
		for key := range list {
			if !seen[key] {
				t.Errorf("there is no snippet %q", key)
			}
		}
	}
}

// all returns the snippets of the README, of the documents beside it and in docs, and of
// the comments of all packages but commands.
func all(t *testing.T) []Snippet {
	var list []Snippet
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/*/*.md", "docs/*/*/*.md"} {
		files, err := filepath.Glob(filepath.Join(top, pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			name, src := read(t, file)
			list = append(list, Markdown(name, src)...)
		}
	}
	out, err := exec.Command("go", "list", "-C", top, "-f", `{{if ne .Name "main"}}{{range .GoFiles}}{{$.Dir}}/{{.}}
{{end}}{{range .CgoFiles}}{{$.Dir}}/{{.}}
{{end}}{{end}}`, "./...").Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range strings.Fields(string(out)) {
		name, src := read(t, file)
		found, err := PackageComment(name, src)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, found...)
	}
	return list
}

// read returns a file and its name as seen from the top.
func read(t *testing.T, file string) (name string, src []byte) {
	t.Helper()
	src, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	abs, err := filepath.Abs(top)
	if err != nil {
		t.Fatal(err)
	}
	if file, err = filepath.Abs(file); err != nil {
		t.Fatal(err)
	}
	name, err = filepath.Rel(abs, file)
	if err != nil {
		t.Fatal(err)
	}
	return filepath.ToSlash(name), src
}

// TestCheck: what compiles passes, and what is broken is found, in the right line.
func TestCheck(t *testing.T) {
	checker, err := NewChecker(top)
	if err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name, code, want string
	}{
		{"a fragment", "p := iwarp.New(iwarp.Config{})\nl, err := p.Listen(ctx, \":20049\", fabric.ConnAttr{})\n", ""},
		{"a fragment that returns", "if err != nil {\n\treturn err\n}\n", ""},
		{"something left out", "c := xdr.NewDecoder(nil)\n...\nx := iwarp.Config{...}\n", ""},
		{"declarations", "type T struct{ d *xdr.Decoder }\n\nfunc (t T) err() error { return t.d.Err() }\n", ""},
		{"a file", "package main\n\nimport \"fmt\"\n\nfunc main() { fmt.Println() }\n", ""},

		{"a wrong argument", "p := 1\nq := iwarp.New(nil)\n", "x.md:8: cannot use nil"},
		{"a name that is gone", "n, err := xdr.Gone(nil)\n", "x.md:7: undefined: xdr.Gone"},
		{"a variable that nothing explains", "b = xdr.AppendUint32(b, 7)\n", "x.md:7: undefined: b"},
		{"a variable that is declared twice", "a := 1\na := 2\n", "x.md:8: no new variables"},
		{"a package that is unknown", "gone.Do()\n", "x.md:7: undefined: gone"},
		{"no Go", "read list 1\n", "x.md:7: expected ';'"},
		{"a file that lacks an import", "package main\n\nfunc main() { fmt.Println() }\n", "x.md:9: undefined: fmt"},
		{"a file with a variable that is not used", "package main\n\nfunc main() { x := 1 }\n", "x.md:9: declared and not used: x"},
		{"a file that imports what is not there", "package main\n\nimport _ \"example.org/gone\"\n\nfunc main() {}\n", "x.md:9: could not import example.org/gone"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			doc := "# Title\n\n```\nmake test\n```\n```go\n" + tt.code + "```\ntext\n"
			list := Markdown("x.md", []byte(doc))
			if len(list) != 1 {
				t.Fatalf("%d snippets", len(list))
			}
			got := fmt.Sprint(checker.Check(list[0], common))
			if tt.want == "" && got != "<nil>" || !strings.HasPrefix(got, tt.want) {
				t.Errorf("%s, want %q", got, tt.want)
			}
		})
	}
}

// TestPackageComment: blocks that empty lines divide are one, text ends them.
func TestPackageComment(t *testing.T) {
	const src = "// Package p is here for a test:\n//\n//\ta := 1\n//\n//\tb := a\n//\n// Text.\n//\n//\tc := 2\npackage p\n"
	list, err := PackageComment("p/doc.go", []byte(src))
	if err != nil {
		t.Fatal(err)
	}
	want := []Snippet{{"p/doc.go", 3, "a := 1\n\nb := a\n"}, {"p/doc.go", 9, "c := 2\n"}}
	if fmt.Sprint(list) != fmt.Sprint(want) {
		t.Errorf("got %v, want %v", list, want)
	}
}
