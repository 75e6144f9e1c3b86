package grpcrdma

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/rpcrdma/rpcrdma/grpcrdma/internal/wire"
	"github.com/rpcrdma/rpcrdma/rpc"
)

// callInfo holds the options of a call.
type callInfo struct {
	coding
	header, trailer []*metadata.MD
	peer            []*peer.Peer
	creds           credentials.PerRPCCredentials
	waitForReady    bool
	recv, send      int
	onFinish        []func(error)
	into            [][]byte
}

// apply reads the options. Options for the buffers and features of HTTP/2 are ignored.
func (c *callInfo) apply(opts []grpc.CallOption) error {
	for _, o := range opts {
		switch o := o.(type) {
		case grpc.HeaderCallOption:
			c.header = append(c.header, o.HeaderAddr)
		case grpc.TrailerCallOption:
			c.trailer = append(c.trailer, o.TrailerAddr)
		case grpc.PeerCallOption:
			c.peer = append(c.peer, o.PeerAddr)
		case grpc.FailFastCallOption:
			c.waitForReady = !o.FailFast
		case grpc.MaxRecvMsgSizeCallOption:
			c.recv = o.MaxRecvMsgSize
		case grpc.MaxSendMsgSizeCallOption:
			c.send = o.MaxSendMsgSize
		case grpc.PerRPCCredsCallOption:
			c.creds = o.Creds
		case grpc.OnFinishCallOption:
			c.onFinish = append(c.onFinish, o.OnFinish)
		case grpc.CompressorCallOption:
			if o.CompressorType == "" || o.CompressorType == encoding.Identity {
				c.compressor = nil
			} else if c.compressor = encoding.GetCompressor(o.CompressorType); c.compressor == nil {
				return status.Errorf(codes.Internal, "grpc: Compressor is not installed for requested grpc-encoding %q", o.CompressorType)
			}
		case grpc.ContentSubtypeCallOption:
			if o.ContentSubtype == "proto" {
				c.codec = nil
			} else if c.codec = encoding.GetCodecV2(o.ContentSubtype); c.codec == nil {
				return status.Errorf(codes.Internal, "no codec registered for content-subtype %s", o.ContentSubtype)
			}
		case grpc.ForceCodecV2CallOption:
			c.codec = o.CodecV2
		case intoOption:
			c.into = append(c.into, o.bufs...)
		}
	}
	return nil
}

// metadata returns the metadata that the call sends: that of the context, and that of credentials.
func (c *callInfo) metadata(ctx context.Context, conn rpc.Conn, method string) (wire.Metadata, metadata.MD, error) {
	md, _ := metadata.FromOutgoingContext(ctx)
	if c.creds != nil {
		if p := conn.Peer(); c.creds.RequireTransportSecurity() && !p.Private() {
			return nil, nil, status.Error(codes.Unauthenticated, "transport: cannot send secure credentials on an insecure connection")
		}
		more, err := c.creds.GetRequestMetadata(ctx, method)
		if err != nil {
			if _, ok := status.FromError(err); ok {
				return nil, nil, err
			}
			return nil, nil, status.Errorf(codes.Unauthenticated, "transport: per-RPC creds failed due to error: %v", err)
		}
		md = metadata.Join(md, metadata.New(more))
	}
	list, err := pairs(nil, md)
	return list, md, err
}

// ended stores the header and trailer that the caller asked for, and calls its OnFinish callbacks.
func (c *callInfo) ended(header, trailer metadata.MD, err error) {
	for _, at := range c.header {
		*at = given(header)
	}
	for _, at := range c.trailer {
		*at = given(trailer)
	}
	for _, f := range c.onFinish {
		f(err)
	}
}

func (c *callInfo) setPeer(conn rpc.Conn) {
	for _, at := range c.peer {
		*at = peerOf(conn, conn.Peer())
	}
}
