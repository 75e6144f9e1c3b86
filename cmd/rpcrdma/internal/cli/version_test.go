package cli

import (
	"runtime/debug"
	"strings"
	"testing"
)

func TestPrintVersion(t *testing.T) {
	info := &debug.BuildInfo{
		GoVersion: "go1.99",
		Main:      debug.Module{Version: "v1.2.3"},
		Settings: []debug.BuildSetting{
			{Key: "CGO_ENABLED", Value: "0"},
			{Key: "vcs.revision", Value: "abc"},
			{Key: "vcs.time", Value: "2026-01-02T03:04:05Z"},
			{Key: "vcs.modified", Value: "true"},
		},
	}
	var out strings.Builder
	if err := printVersion(&out, info); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"rpcrdma v1.2.3, go1.99 ", "without cgo", "revision abc of 2026-01-02T03:04:05Z, with changes"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("output lacks %q:\n%s", want, out.String())
		}
	}
}
