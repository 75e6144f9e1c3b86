package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
)

// TestGenerated: go generate reproduces every file of the tree that this command made.
func TestGenerated(t *testing.T) {
	root, err := filepath.Abs("../..")
	testutil.Must(t, err)
	found := 0
	testutil.Must(t, filepath.WalkDir(filepath.Join(root, "grpcrdma"), func(path string, e fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".go") {
			return err
		}
		text, err := os.ReadFile(path)
		testutil.Must(t, err)
		for line := range strings.Lines(string(text)) {
			source, ok := strings.CutPrefix(line, "//go:generate go run github.com/rpcrdma/rpcrdma/tools/protogen ")
			if !ok {
				continue
			}
			found++
			t.Run(source, func(t *testing.T) {
				t.Chdir(filepath.Dir(path))
				files, err := generate(t.Context(), strings.TrimSpace(source))
				testutil.Must(t, err)
				for name, want := range files {
					if have, err := os.ReadFile(name); err != nil || string(have) != string(want) {
						t.Errorf("%s is out of date: make generate writes it (%v)", name, err)
					}
				}
			})
		}
		return nil
	}))
	if found == 0 {
		t.Error("no file is generated")
	}
}
