package interop

import (
	"fmt"
	"os/exec"
	"testing"

	"github.com/rpcrdma/rpcrdma/internal/testing/rdmatest"
)

// requireProgram returns the path of a program that a test on a device of this kind runs.
// Without the program the test is skipped, or fails if rdmatest requires the device.
func requireProgram(t *testing.T, kind, name, debian string) (path string) {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		rdmatest.Lacking(t, kind, fmt.Sprintf("%v (Debian package %s)", err, debian))
	}
	return path
}
