package serving

import (
	"os"
	"testing"

	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/cmdtest"
)

func TestMain(m *testing.M) { os.Exit(cmdtest.Main(m)) }
