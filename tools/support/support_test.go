package main

import (
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

// top is the root of the repository.
const top = "../.."

// TestPage: the page is the one that the records make.
func TestPage(t *testing.T) {
	want, err := page(os.DirFS(top))
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(filepath.Join(top, pagePath))
	if err != nil || string(got) != want {
		t.Errorf("%s is not what the records make (%v): go run ./tools/support", pagePath, err)
	}
}

// TestNames: the tests that the tables name are there.
func TestNames(t *testing.T) {
	for test := range named() {
		dir, function := packageOf(test)
		files, err := filepath.Glob(filepath.Join(top, dir, "*_test.go"))
		if err != nil || len(files) == 0 {
			t.Errorf("%s: there is no package %s with tests", test, dir)
			continue
		}
		declared := regexp.MustCompile(`(?m)^func ` + function + `\(`)
		if !slices.ContainsFunc(files, func(file string) bool {
			b, err := os.ReadFile(file)
			return err == nil && declared.Match(b)
		}) {
			t.Errorf("%s: there is no such test", test)
		}
	}
}

// Lines as the commands print them.
const (
	jsonLines = `{"Action":"start","Package":"github.com/rpcrdma/rpcrdma/transport"}
{"Action":"run","Package":"github.com/rpcrdma/rpcrdma/transport","Test":"TestTCPSizes"}
{"Action":"output","Package":"github.com/rpcrdma/rpcrdma/transport","Test":"TestTCPSizes","Output":"--- FAIL: TestTCPSizes (0.00s)\n"}
{"Action":"pass","Package":"github.com/rpcrdma/rpcrdma/transport","Test":"TestTCPSizes","Elapsed":0.1}
{"Action":"skip","Package":"github.com/rpcrdma/rpcrdma/transport","Test":"TestRDMATransport/rxe"}
{"Action":"pass","Package":"github.com/rpcrdma/rpcrdma/transport","Test":"TestRDMATransport"}
{"Action":"output","Package":"github.com/rpcrdma/rpcrdma/transport","Test":"TestCredits","Output":"why it failed\n"}
{"Action":"fail","Package":"github.com/rpcrdma/rpcrdma/transport","Test":"TestCredits"}
{"Action":"fail","Package":"github.com/rpcrdma/rpcrdma/transport"}
`
	textLines = `test-rdma: kernel: Linux 6.1.0-56-amd64 x86_64
test-rdma: devices: rxe0 (10.9.9.1), siw0 (10.9.8.1)
== transport
=== RUN   TestRDMATransport
    --- PASS: TestRDMATransport/rxe (1.00s)
        --- PASS: TestRDMATransport/rxe/Sizes (1.00s)
        --- SKIP: TestRDMATransport/siw/Sizes (1.00s)
--- PASS: TestRDMATransport (2.00s)
FAIL  transport                      12 s, status 2
`
	buildLines = "build-matrix: linux/arm64 without cgo\nbuild-matrix: left out: hiding the headers\nbuild-matrix: windows/amd64 without cgo\n"
)

// TestRead: what the commands print becomes results. A test without a subtest that ran was skipped.
func TestRead(t *testing.T) {
	for _, tt := range []struct {
		name, in string
		ok       bool
		tests    testResults
		failed   []string
		builds   []string
		kernel   string
	}{
		{"go test -json", jsonLines, false, testResults{
			"transport.TestTCPSizes": passed, "transport.TestRDMATransport": skipped, "transport.TestCredits": failed,
		}, []string{"transport"}, nil, ""},
		{"test-rdma", textLines, false, testResults{
			"transport.TestRDMATransport": passed, "transport.TestRDMATransport/rxe/Sizes": passed, "transport.TestRDMATransport/siw/Sizes": skipped,
		}, []string{"transport"}, nil, "Linux 6.1.0-56-amd64 x86_64"},
		{"build-matrix", buildLines, true, testResults{}, nil, []string{"linux/arm64 without cgo", "windows/amd64 without cgo"}, ""},
		{"build-matrix that failed", buildLines, false, testResults{}, nil, []string{"linux/arm64 without cgo"}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := &rec{OK: tt.ok, Tests: make(testResults)}
			var out strings.Builder
			if err := c.read(strings.NewReader(tt.in), &out); err != nil {
				t.Fatal(err)
			}
			if strings.Contains(tt.in, "why it failed") && !strings.Contains(out.String(), "why it failed") {
				t.Errorf("it is not shown why a test failed: %q", &out)
			}
			if strings.Contains(out.String(), "TestTCPSizes") {
				t.Errorf("what a test that passed has printed is shown: %q", &out)
			}
			c.end()
			if !maps.Equal(c.Tests, tt.tests) || !slices.Equal(c.Failed, tt.failed) || !slices.Equal(c.Builds, tt.builds) || c.Kernel != tt.kernel {
				t.Errorf("got %+v", c)
			}
		})
	}
}

// TestRecord: a run that fails is recorded, and is an error.
func TestRecord(t *testing.T) {
	r, err := find("some name", []string{"sh", "-c", "echo '== transport'; echo '--- PASS: TestCredits (0.00s)'; exit 3"})
	if err != nil {
		t.Fatal(err)
	}
	c, err := record(r, io.Discard)
	if c == nil || err == nil || c.OK || c.Tests["transport.TestCredits"] != passed || c.Commit == "" || c.Go == "" || c.Date.IsZero() {
		t.Errorf("%+v, %v", c, err)
	}
	for _, name := range []string{"", "a/b", ".hidden"} {
		if _, err := find(name, []string{"true"}); err == nil {
			t.Errorf("%q is taken for a name", name)
		}
	}
	if _, err := find("unknown", nil); err == nil {
		t.Error("a run that is unknown has a command")
	}
}

// TestVerdicts: nothing is claimed that no run has shown.
func TestVerdicts(t *testing.T) {
	m := merge([]namedRec{
		{rec: rec{Tests: testResults{"a": passed, "b": skipped, "c": failed, "d": skipped}}},
		{rec: rec{Tests: testResults{"a": skipped, "b": passed, "c": passed}}},
	})
	for list, want := range map[string]string{
		"a b": "passed", "a c": "**failed**", "d": "not run", "gone": "not run", "a d": "not all run", "c gone": "**failed**",
	} {
		if got := verdict(m, strings.Fields(list)); got != want {
			t.Errorf("%s: %s, want %s", list, got, want)
		}
	}
}

// TestOrder: records of known runs come in the order of the list, others after them.
func TestOrder(t *testing.T) {
	root := make(fstest.MapFS)
	for _, name := range []string{"linux", "another", "software"} {
		root[recordsDir+"/"+name+".json"] = &fstest.MapFile{Data: []byte(`{"tests":{"a/b":{"passed":"TestX TestY/z.1","failed":"TestZ"}}}`)}
	}
	list, err := load(root)
	if err != nil || len(list) != 3 || list[0].name != "software" || list[1].name != "linux" || list[2].name != "another" {
		t.Errorf("%v, %v", list, err)
	}
	if want := (testResults{"a/b.TestX": passed, "a/b.TestY/z.1": passed, "a/b.TestZ": failed}); err == nil && !maps.Equal(list[0].Tests, want) {
		t.Errorf("the tests are %v, want %v", list[0].Tests, want)
	}
	if b, err := list[0].Tests.MarshalJSON(); err != nil || string(b) != `{"a/b":{"failed":"TestZ","passed":"TestX TestY/z.1"}}` {
		t.Errorf("written again they are %s, %v", b, err)
	}
	root[recordsDir+"/bad.json"] = &fstest.MapFile{Data: []byte("{")}
	if _, err := load(root); err == nil || !strings.Contains(err.Error(), "bad.json") {
		t.Errorf("a broken record: %v", err)
	}
}

// TestOldestGo: the run with the oldest Go uses the one of go.mod.
func TestOldestGo(t *testing.T) {
	mod, err := os.ReadFile(filepath.Join(top, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`(?m)^go (\S+)$`).FindSubmatch(mod)
	r, err := find("oldest", nil)
	if m == nil || err != nil || !slices.Contains(r.env, "GOTOOLCHAIN=go"+string(m[1])) {
		t.Errorf("the environment is %q, %v, and go.mod has %q", r.env, err, m)
	}
}
