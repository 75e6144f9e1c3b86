//go:build !generated

package rpcgen

import (
	"os/exec"
	"testing"

	"github.com/rpcrdma/rpcrdma/internal/testing/generated"
	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
)

// TestGenerated runs the tests with what cmd/xdrgen makes of echo.x, which rpcgen reads as well.
func TestGenerated(t *testing.T) {
	code, err := exec.Command("go", "run", "github.com/rpcrdma/rpcrdma/cmd/xdrgen", "-package", "rpcgen", "-o", "-", "echo.x").Output()
	testutil.Must(t, err)
	generated.Run(t, map[string][]byte{"echo.go": code})
}
