package iwarp

import (
	"os"
	"testing"

	"github.com/rpcrdma/rpcrdma/internal/testing/leak"
)

func TestMain(m *testing.M) { os.Exit(leak.Main(m)) }
