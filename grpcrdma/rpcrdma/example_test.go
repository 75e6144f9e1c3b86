package rpcrdma_test

import (
	"fmt"

	"google.golang.org/protobuf/proto"

	"github.com/rpcrdma/rpcrdma/grpcrdma/examples/files/pb"
	"github.com/rpcrdma/rpcrdma/grpcrdma/rpcrdma"
)

// The chunks of a store of files are placed, and the last one of a file is, however short it is.
func Example() {
	fields := new(pb.Chunk).ProtoReflect().Descriptor().Fields()
	for i := range fields.Len() {
		options := fields.Get(i).Options()
		fmt.Println(fields.Get(i).Name(), proto.GetExtension(options, rpcrdma.E_Placed))
	}
	// Output:
	// name false
	// data true
}
