package names_test

import (
	"fmt"
	"log"

	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/rpc/names"
)

// Counters for the procedures of a program, and one for everything that peers make up.
func Example() {
	table, err := names.New(&oncrpc.Program{
		Number: 0x20000055, Vers: 1, Name: "MOVE", Procedures: []string{"NULL", "PUT", "GET"},
	})
	if err != nil {
		log.Fatal(err)
	}
	counts := make([]int, table.Len())
	for _, proc := range []uint32{2, 1, 2, 4711} {
		counts[table.Index(0x20000055, 1, proc)]++
	}
	counts[table.Index(99, 9, 9)]++
	for i, n := range counts {
		if e := table.At(i); n > 0 {
			fmt.Println(e.Program, e.Procedure, n)
		}
	}
	// Output:
	// MOVE PUT 1
	// MOVE GET 2
	// MOVE other 1
	// other other 1
}
