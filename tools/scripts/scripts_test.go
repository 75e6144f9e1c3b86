// Package scripts has tests of the shell scripts in scripts.
package scripts

import (
	"os/exec"
	"strings"
	"testing"
)

const root = "../.."

// TestHindrance: what container runtimes say when they cannot start a container, word for
// word, and what scripts/container-test makes of it.
func TestHindrance(t *testing.T) {
	if _, err := exec.LookPath("bash"); err != nil {
		t.Skip("bash is not installed, which the scripts are for")
	}
	for said, want := range map[string]string{
		"Error: crun: setrlimit `RLIMIT_NOFILE`: Operation not permitted: OCI permission denied": "limits",
		"Error: runc: runc create failed: unable to start container process: error during container init: " +
			"error setting rlimits for ready process: error setting rlimit type 7: operation not permitted: OCI permission denied": "limits",
		"docker: Error response from daemon: failed to create task for container: failed to create shim task: OCI runtime create failed: " +
			"runc create failed: unable to start container process: error setting rlimit type 8: operation not permitted: unknown": "limits",
		"Error: crun: cgroups in hybrid mode not supported, drop all controllers from cgroup v1: OCI runtime error":                        "cgroups",
		"Error: crun: executable file `/none` not found: No such file or directory: OCI runtime attempted to invoke a command":             "",
		"Error: runc: exec failed: unable to start container process: exec: \"/none\": stat /none: no such file or directory: OCI runtime": "",
		"": "",
	} {
		cmd := exec.Command("scripts/container-test", "--hindrance", said)
		cmd.Dir = root
		out, err := cmd.CombinedOutput()
		if got := strings.TrimSpace(string(out)); err != nil || got != want {
			t.Errorf("%q is %q, %v; want %q", said, got, err, want)
		}
	}
}
