// Package iwarp has what package fabric, beside it, contains and changes from outside.
package iwarp

import (
	"sync/atomic"

	"github.com/rpcrdma/rpcrdma/fabric"
)

// Table contains an atomic.
type Table struct{ uses [4]atomic.Uint32 }

// Rename writes to another package's variable.
func Rename() { fabric.Exported[0] = "b" }
