package gen_test

import (
	"fmt"

	"github.com/rpcrdma/rpcrdma/proto/xdr"
	"github.com/rpcrdma/rpcrdma/rpc/gen"
)

// A Binding finds the data of arguments that are a string and an opaque which may be a chunk.
func ExampleWalk() {
	args := xdr.AppendString(nil, "key")
	args = xdr.AppendOpaque(args, []byte("value"))

	w := gen.NewWalk(args, false, nil)
	w.String(255)
	w.Item(1 << 20)
	fmt.Println(w.Items())
	// Output: [{12 5}] true
}
