package main

import (
	"bytes"
	"errors"
	"strings"
	"testing"
)

func TestExitStatus(t *testing.T) {
	tests := []struct {
		name   string
		args   []string
		status int
		stderr string // a part of it
	}{
		{"no command prints help", nil, 0, ""},
		{"version", []string{"version"}, 0, ""},
		{"version as a flag", []string{"--version"}, 0, ""},
		{"unknown command", []string{"versio"}, 2, `did you mean "version"?`},
		{"unknown flag", []string{"--volume=11"}, 2, "unknown flag --volume"},
		{"too many arguments", []string{"version", "1"}, 2, "Run 'rpcrdma version --help'"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			if got := run(tt.args, strings.NewReader(""), &stdout, &stderr); got != tt.status {
				t.Errorf("exit status %d, want %d\n%s", got, tt.status, &stderr)
			}
			if !strings.Contains(stderr.String(), tt.stderr) {
				t.Errorf("stderr lacks %q:\n%s", tt.stderr, &stderr)
			}
			if tt.status == 0 && (stdout.Len() == 0 || stderr.Len() != 0) {
				t.Errorf("success with stdout %q, stderr %q", &stdout, &stderr)
			}
		})
	}
}

// A full is a device without room.
type full struct{}

func (full) Write([]byte) (int, error) { return 0, errors.New("no space left on device") }

// Help that cannot be printed is a failure, of every command.
func TestHelpUnprinted(t *testing.T) {
	lines := [][]string{{}, {"--help"}, {"help"}, {"help", "ls"}}
	for _, cmd := range newRoot().Commands() {
		lines = append(lines, []string{cmd.Name(), "--help"})
	}
	for _, args := range lines {
		var stdout, stderr bytes.Buffer
		if status := run(args, strings.NewReader(""), &stdout, &stderr); status != 0 || stdout.Len() == 0 || stderr.Len() > 0 {
			t.Errorf("%q: status %d, %d bytes, and: %s", args, status, stdout.Len(), &stderr)
		}
		if status := run(args, strings.NewReader(""), full{}, &stderr); status != 1 || stderr.String() != "rpcrdma: no space left on device\n" {
			t.Errorf("%q to a full device: status %d, and: %s", args, status, &stderr)
		}
	}
}
