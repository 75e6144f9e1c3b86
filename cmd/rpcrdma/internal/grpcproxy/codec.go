package grpcproxy

import (
	"fmt"

	"google.golang.org/grpc/mem"

	"github.com/rpcrdma/rpcrdma/grpcrdma"
)

// rawCodec passes messages on HTTP/2 as they are: each is a *grpcrdma.RawMessage.
type rawCodec struct{}

// Name is what the content-type of HTTP/2 calls the messages.
func (rawCodec) Name() string { return "proto" }

// Marshal does not copy: the memory of a message has no other use.
func (rawCodec) Marshal(v any) (mem.BufferSlice, error) {
	raw, ok := v.(*grpcrdma.RawMessage)
	if !ok {
		return nil, fmt.Errorf("%T is no message that passes", v)
	}
	return mem.BufferSlice{mem.SliceBuffer(*raw)}, nil
}

// Unmarshal copies: the buffers go back to their pool.
func (rawCodec) Unmarshal(data mem.BufferSlice, v any) error {
	raw, ok := v.(*grpcrdma.RawMessage)
	if !ok {
		return fmt.Errorf("%T is no message that passes", v)
	}
	*raw = data.Materialize()
	return nil
}
