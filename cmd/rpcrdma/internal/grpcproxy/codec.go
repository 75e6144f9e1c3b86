package grpcproxy

import (
	"fmt"

	"google.golang.org/grpc/mem"

	"github.com/rpcrdma/rpcrdma/grpcrdma"
)

// rawCodec passes HTTP/2 messages unchanged: each is a *grpcrdma.RawMessage.
type rawCodec struct{}

// Name returns the name of the encoding in the content-type of HTTP/2.
func (rawCodec) Name() string { return "proto" }

// Marshal does not copy, because the memory of a message is not used otherwise.
func (rawCodec) Marshal(v any) (mem.BufferSlice, error) {
	raw, ok := v.(*grpcrdma.RawMessage)
	if !ok {
		return nil, fmt.Errorf("cannot pass a message of type %T", v)
	}
	return mem.BufferSlice{mem.SliceBuffer(*raw)}, nil
}

// Unmarshal copies, because the buffers return to their pool.
func (rawCodec) Unmarshal(data mem.BufferSlice, v any) error {
	raw, ok := v.(*grpcrdma.RawMessage)
	if !ok {
		return fmt.Errorf("cannot pass a message of type %T", v)
	}
	*raw = data.Materialize()
	return nil
}
