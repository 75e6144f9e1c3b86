package grpcrdma

import (
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/rpcrdma/rpcrdma/grpcrdma/internal/wire"
)

// pairOverhead is what a pair counts in addition to its key and value, as in HTTP/2 (RFC 9113 section 10.5.1).
const pairOverhead = 32

// pairs encodes metadata. It omits keys reserved for gRPC. The error is a status.
func pairs(b wire.Metadata, md metadata.MD) (wire.Metadata, error) {
	if len(md) == 0 {
		return b, checkPairs(b)
	}
	for k, values := range md {
		k = strings.ToLower(k)
		if reserved(k) || !validKey(k) {
			continue
		}
		for _, v := range values {
			b = append(b, wire.Pair{Key: k, Value: []byte(v)})
		}
	}
	return b, checkPairs(b)
}

// reserved reports whether k is reserved for gRPC, by grpc-go's rules: other keys that begin with grpc- are metadata.
func reserved(k string) bool {
	switch k {
	case "content-type", "user-agent", "te", "grpc-message-type", "grpc-encoding", "grpc-message", "grpc-status", "grpc-timeout":
		return true
	}
	return strings.HasPrefix(k, ":")
}

// sizeOf returns the length of metadata, in bytes.
func sizeOf(b wire.Metadata) (n int) {
	for i := range b {
		n += len(b[i].Key) + len(b[i].Value) + pairOverhead
	}
	return n
}

// checkPairs returns an error if the metadata is too long. The error is a status.
func checkPairs(b wire.Metadata) error {
	size := sizeOf(b)
	if size > wire.MaxMetadata || len(b) > wire.MaxPairs {
		return status.Errorf(codes.ResourceExhausted, "metadata of %d bytes in %d pairs, the limits are %d and %d", size, len(b), wire.MaxMetadata, wire.MaxPairs)
	}
	return nil
}

// given returns md, or empty metadata if md is nil.
func given(md metadata.MD) metadata.MD {
	if md == nil {
		return metadata.MD{}
	}
	return md
}

func validKey(k string) bool {
	for i := range len(k) {
		c := k[i]
		if !(c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '-' || c == '_' || c == '.') {
			return false
		}
	}
	return k != ""
}

// fromPairs decodes metadata into a copy. It returns nil for an empty list.
func fromPairs(list wire.Metadata) metadata.MD {
	if len(list) == 0 {
		return nil
	}
	md := make(metadata.MD, len(list))
	for i := range list {
		p := &list[i]
		md[p.Key] = append(md[p.Key], string(p.Value))
	}
	return md
}
