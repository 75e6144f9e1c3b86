package grpcrdma

import (
	"bytes"
	"fmt"
	"io"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/protoadapt"

	"github.com/rpcrdma/rpcrdma/grpcrdma/internal/wire"
)

// packed is an encoded message.
type packed struct {
	layout wire.Layout
	body   []byte
	items  [][]byte // memory of the message itself
}

func (p *packed) size() int { return len(p.body) + sumOf(p.items) }

// coding says how the messages of a call are encoded. With only shapes set, it is uncompressed Protocol Buffers.
type coding struct {
	shapes     *shapes
	codec      encoding.CodecV2
	compressor encoding.Compressor
}

// of returns the coding of a received message. Errors are statuses.
func (c coding) of(l *wire.Layout) (coding, error) {
	err := c.as(l)
	return c, err
}

// as makes c the coding that l describes. Errors are statuses.
func (c *coding) as(l *wire.Layout) error {
	if l.Subtype != "" && (c.codec == nil || c.codec.Name() != l.Subtype) {
		if c.codec = encoding.GetCodecV2(l.Subtype); c.codec == nil {
			return status.Errorf(codes.Internal, "grpcrdma: no codec registered for content-subtype %v", l.Subtype)
		}
	}
	if l.Encoding != "" && (c.compressor == nil || c.compressor.Name() != l.Encoding) {
		if c.compressor = encoding.GetCompressor(l.Encoding); c.compressor == nil {
			return status.Errorf(codes.Unimplemented, "grpcrdma: Decompressor is not installed for grpc-encoding %q", l.Encoding)
		}
	}
	return nil
}

// RawMessage is a marshalled Protocol Buffers message, for programs that forward messages without knowing their types.
// Calls and streams accept a *RawMessage in place of a message, at either end. It is sent in one piece. A received
// RawMessage contains the fields that were placed beside it.
type RawMessage []byte

// layout describes the coding to the other end.
func (c *coding) layout() (l wire.Layout) {
	if c.codec != nil {
		l.Subtype = c.codec.Name()
	}
	if c.compressor != nil {
		l.Encoding = c.compressor.Name()
	}
	return l
}

// messageOf returns v as a Protocol Buffers message.
func messageOf(v any) (proto.Message, bool) {
	switch v := v.(type) {
	case proto.Message:
		return v, true
	case protoadapt.MessageV1:
		return protoadapt.MessageV2Of(v), true
	}
	return nil, false
}

// pack encodes v. It appends the body to b. Errors are statuses.
func (c *coding) pack(b []byte, v any, max int) (p packed, err error) {
	m, ok := messageOf(v)
	p.layout = c.layout()
	switch raw, isRaw := v.(*RawMessage); {
	case isRaw:
		p.body = append(b, *raw...)
	case c.codec != nil:
		var parts mem.BufferSlice
		if parts, err = c.codec.Marshal(v); err == nil {
			p.body = append(b, parts.Materialize()...)
			parts.Free()
		}
	case !ok:
		err = fmt.Errorf("%T is not a Protocol Buffers message", v)
	case c.compressor != nil:
		p.body, err = proto.MarshalOptions{}.MarshalAppend(b, m)
	default:
		p.body, p.layout.Places, p.items, err = strip(c.shapes, b, m)
	}
	if err == nil && c.compressor != nil {
		p.body, err = compress(c.compressor, p.body)
	}
	if err != nil {
		return p, status.Errorf(codes.Internal, "grpcrdma: error while marshaling: %v", err)
	}
	if n := p.size(); n > max {
		return p, status.Errorf(codes.ResourceExhausted, "grpcrdma: trying to send message larger than max (%d vs. %d)", n, max)
	}
	return p, nil
}

// unpack decodes a received message with coding c into v. v then refers to the items, but not to the body. Errors are
// statuses.
func (c *coding) unpack(p *packed, v any, max int) error {
	if n := p.size(); n > max {
		return status.Errorf(codes.ResourceExhausted, "grpcrdma: received message larger than max (%d vs. %d)", n, max)
	}
	body := p.body
	if p.layout.Encoding != "" {
		var err error
		if body, err = decompress(c.compressor, body, max); err != nil {
			return err
		}
	}
	if raw, ok := v.(*RawMessage); ok {
		if len(p.layout.Places) != len(p.items) {
			return status.Error(codes.Internal, errPlaces.Error())
		}
		whole, err := splice(nil, body, gather(p.layout.Places, p.items))
		if err != nil {
			return status.Error(codes.Internal, err.Error())
		}
		*raw = whole
		return nil
	}
	if p.layout.Subtype != "" {
		body = bytes.Clone(body) // a codec may keep it
		parts := mem.BufferSlice{mem.SliceBuffer(body)}
		if err := c.codec.Unmarshal(parts, v); err != nil {
			return status.Errorf(codes.Internal, "grpcrdma: failed to unmarshal the received message: %v", err)
		}
		return nil
	}
	m, ok := messageOf(v)
	if !ok {
		return status.Errorf(codes.Internal, "grpcrdma: %T is not a Protocol Buffers message", v)
	}
	if err := join(m, body, p.layout.Places, p.items); err != nil {
		return status.Errorf(codes.Internal, "grpcrdma: failed to unmarshal the received message: %v", err)
	}
	return nil
}

func compress(z encoding.Compressor, b []byte) ([]byte, error) {
	var out bytes.Buffer
	w, err := z.Compress(&out)
	if err == nil {
		if _, err = w.Write(b); err == nil {
			err = w.Close()
		}
	}
	return out.Bytes(), err
}

func decompress(z encoding.Compressor, b []byte, max int) ([]byte, error) {
	r, err := z.Decompress(bytes.NewReader(b))
	var out []byte
	if err == nil {
		out, err = io.ReadAll(io.LimitReader(r, int64(max)+1))
	}
	if err != nil {
		return nil, status.Errorf(codes.Internal, "grpcrdma: failed to decompress the received message: %v", err)
	}
	if len(out) > max {
		return nil, status.Errorf(codes.ResourceExhausted, "grpcrdma: received message after decompression larger than max %d", max)
	}
	return out, nil
}

// cloneAll replaces items in the transport's memory with copies.
func cloneAll(items [][]byte) {
	for i := range items {
		items[i] = bytes.Clone(items[i])
	}
}
