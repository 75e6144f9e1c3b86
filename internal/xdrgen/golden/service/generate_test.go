//go:build !generated

package service

import (
	"os/exec"
	"testing"

	"github.com/rpcrdma/rpcrdma/internal/testing/generated"
	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
)

// TestGenerated runs the tests with what xdrgen makes of store.x.
func TestGenerated(t *testing.T) {
	code, err := exec.Command("go", "run", "../../../../cmd/xdrgen", "-package", "service", "-o", "-", "store.x").Output()
	testutil.Must(t, err)
	generated.Run(t, map[string][]byte{"store.go": code})
}
