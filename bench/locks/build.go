package main

import (
	"context"
	_ "embed" // of the overlay
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/rpcrdma/rpcrdma/internal/limited"
)

//go:embed overlay/measured.go.txt
var overlay string

const (
	module = "github.com/rpcrdma/rpcrdma/"

	// The field of sync.Mutex to replace.
	plainField    = "\tmu isync.Mutex\n"
	measuredField = "\tmu measuredMutex\n"

	childLimit = 3 * time.Minute
)

// measured builds this program with measuring mutexes, runs it and returns its output.
func measured(ctx context.Context) ([]byte, error) {
	dir, err := os.MkdirTemp("", "locks")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	program, err := build(ctx, dir)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(program)
	cmd.Env = append(os.Environ(), childVariable+"=1")
	r, err := (&limited.Program{Cmd: cmd, Limit: childLimit, MaxOutput: 256 << 20}).Run(ctx)
	if err != nil {
		return nil, fmt.Errorf("%w\n%s", err, r.Stderr)
	}
	return r.Stdout, nil
}

// withMeasured changes the source of sync.Mutex.
func withMeasured(source string) (string, error) {
	changed := strings.Replace(source, plainField, measuredField, 1)
	changed = strings.Replace(changed, "import (\n\tisync \"internal/sync\"\n)\n", "", 1)
	if !strings.Contains(changed, measuredField) || strings.Contains(changed, "isync") {
		return "", fmt.Errorf("it is not what it was when this was written: a Mutex has no %q", strings.TrimSpace(plainField))
	}
	return changed, nil
}

// packageSync returns the directory of the standard library's package.
func packageSync(ctx context.Context) (string, error) {
	root, err := exec.CommandContext(ctx, "go", "env", "GOROOT").Output()
	return filepath.Join(strings.TrimSpace(string(root)), "src", "sync"), err
}

func build(ctx context.Context, dir string) (program string, err error) {
	sync, err := packageSync(ctx)
	if err != nil {
		return "", err
	}
	mutex := filepath.Join(sync, "mutex.go")
	source, err := os.ReadFile(mutex)
	if err != nil {
		return "", err
	}
	changed, err := withMeasured(string(source))
	if err != nil {
		return "", fmt.Errorf("%s: %w", mutex, err)
	}
	replace := make(map[string]string)
	for name, text := range map[string]string{"mutex.go": changed, "measured.go": overlay} {
		replace[filepath.Join(sync, name)] = filepath.Join(dir, name)
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			return "", err
		}
	}
	b, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	list := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(list, b, 0o600); err != nil {
		return "", err
	}
	program = filepath.Join(dir, "program")
	cmd := exec.CommandContext(ctx, "go", "build", "-buildvcs=false", "-overlay", list, "-tags", "measuredlocks", "-o", program, module+"bench/locks")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build: %w\n%s", err, out)
	}
	return program, nil
}
