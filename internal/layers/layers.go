package layers

import "strings"

// Module is the path of the main module.
const Module = "github.com/rpcrdma/rpcrdma"

// A Layer is a directory tree and what its packages may import. Within a layer there are no restrictions.
type Layer struct {
	Path string // relative to the module's root

	// May lists the other layers that it may import, and Tests those that its tests may import in addition. "*" is
	// every layer.
	May, Tests []string

	// External lists permitted packages of other modules, as path prefixes. Tests may import testExternal as well.
	External []string

	// Library layers are linked into users' programs. They must have no init functions, no mutable package-level state,
	// and a comment on every exported name.
	Library bool

	// Pure layers build and pass their tests without cgo.
	Pure bool
}

// Layers is the table that rule "imports" enforces, in dependency order: a layer imports
// only layers of earlier rows. Immutable.
var Layers = []Layer{
	{Path: "internal/golist"},
	{Path: "internal/layers", Tests: []string{"internal/golist"}},
	{Path: "internal/snippets", May: []string{"internal/golist"}},
	{Path: "internal/testing/leak"},
	{Path: "internal/testing/rdmatest"},
	{Path: "internal/testing/kdctest", May: []string{"internal/testing/rdmatest"}},
	{Path: "internal/limited"},
	{Path: "internal/testing/testutil"},
	{Path: "internal/testing/generated", May: []string{"internal/testing/testutil"}},
	{Path: "internal/testing/cprog", May: []string{"internal/testing/testutil", "internal/testing/rdmatest"}},
	{Path: "internal/testing/posixtest", External: []string{"golang.org/x/sys"}},
	{Path: "internal/lockorder", Library: true, Pure: true},
	{Path: "internal/baton", Library: true, Pure: true},
	{Path: "internal/pollfd", Library: true, Pure: true},
	{Path: "internal/rate", Library: true, Pure: true},
	{Path: "internal/spin", Library: true, Pure: true},
	{Path: "internal/crc32c", Library: true, Pure: true, External: []string{"golang.org/x/sys"}},

	{Path: "proto/xdr", Library: true, Pure: true},
	{Path: "proto/oncrpc", Library: true, Pure: true, May: []string{"proto/xdr"}},
	{Path: "proto/rpcrdma", Library: true, Pure: true, May: []string{"proto/xdr"}},
	{Path: "proto/dump", Library: true, Pure: true, May: []string{"proto/xdr", "proto/oncrpc", "proto/rpcrdma"}},
	{Path: "rpc/names", Library: true, Pure: true, May: []string{"proto/dump", "proto/oncrpc"}},
	{Path: "proto/mpa", Library: true, Pure: true, May: []string{"internal/crc32c"}},
	{Path: "proto/ddp", Library: true, Pure: true, May: []string{"proto/mpa"}},
	{Path: "proto/rdmap", Library: true, Pure: true, May: []string{"proto/mpa", "proto/ddp"}},

	{Path: "internal/xdrgen", Library: true, Pure: true, Tests: []string{"proto/xdr"}},
	{Path: "cmd/xdrgen", Pure: true, May: []string{"internal/xdrgen"}},

	{Path: "rpc/rpcbind", Library: true, Pure: true, May: []string{"proto/xdr", "proto/oncrpc"}},

	{Path: "fabric", Library: true, Pure: true, Tests: []string{"iwarp"}},
	{Path: "internal/tlsproto", Library: true, Pure: true},
	{Path: "internal/llp", Library: true, Pure: true, May: []string{"fabric"}},
	{Path: "fabric/fabrictest", Library: true, Pure: true, May: []string{"fabric"}, Tests: []string{"iwarp"}},

	{Path: "internal/testing/simfabric", Library: true, Pure: true, May: []string{"fabric"}, Tests: []string{"fabric/fabrictest"}},

	{
		Path: "iwarp", Library: true, Pure: true,
		May:      []string{"internal/lockorder", "internal/spin", "internal/llp", "internal/tlsproto", "fabric", "proto/mpa", "proto/ddp", "proto/rdmap"},
		Tests:    []string{"fabric/fabrictest"},
		External: []string{"golang.org/x/sys"},
	},
	{
		Path: "shm", Library: true, Pure: true,
		May:      []string{"internal/llp", "fabric", "iwarp"},
		Tests:    []string{"fabric/fabrictest", "transport", "rpc"},
		External: []string{"golang.org/x/sys"},
	},
	{
		Path: "fabric/capture", Library: true, Pure: true,
		May:   []string{"fabric", "proto/oncrpc", "proto/rpcrdma", "proto/mpa", "proto/ddp", "proto/rdmap"},
		Tests: []string{"fabric/fabrictest", "iwarp"},
	},
	{Path: "cgo", Library: true},
	{Path: "cgo/cgotest", Library: true, May: []string{"cgo"}, External: []string{"golang.org/x/sys"}},
	{
		Path: "ibv", Library: true, May: []string{"internal/pollfd", "cgo"},
		Tests:    []string{"cgo/cgotest"},
		External: []string{"golang.org/x/sys"},
	},
	{
		Path: "rdmacm", Library: true,
		May:      []string{"internal/lockorder", "internal/baton", "internal/pollfd", "internal/spin", "fabric", "ibv", "cgo"},
		Tests:    []string{"fabric/fabrictest", "cgo/cgotest", "rpc", "transport"},
		External: []string{"golang.org/x/sys"},
	},

	{Path: "internal/origin", Library: true, Pure: true, May: []string{"proto/xdr", "proto/oncrpc"}},
	{
		Path: "rpc", Library: true, Pure: true,
		May: []string{"internal/origin", "fabric", "proto/xdr", "proto/oncrpc", "proto/rpcrdma"},
	},
	{
		Path: "rpc/gen", Library: true, Pure: true,
		May: []string{"rpc", "proto/xdr", "proto/oncrpc"}, Tests: []string{"internal/testing/testutil"},
	},
	{
		Path: "rpc/stream", Library: true, Pure: true,
		May: []string{"rpc", "rpc/gen", "proto/xdr", "proto/oncrpc"}, Tests: []string{"iwarp", "transport", "transport/transporttest", "examples"},
	},
	{
		Path: "rpc/pieces", Library: true, Pure: true,
		Tests: []string{"rpc", "transport", "fabric", "iwarp", "rdmacm", "proto/xdr", "proto/oncrpc"},
	},
	{
		Path: "transport", Library: true, Pure: true,
		May:      []string{"internal/lockorder", "internal/baton", "internal/rate", "internal/origin", "internal/tlsproto", "rpc", "rpc/stream", "fabric", "proto/xdr", "proto/oncrpc", "proto/rpcrdma"},
		Tests:    []string{"fabric/fabrictest", "internal/testing/simfabric", "iwarp", "shm", "rdmacm", "cgo/cgotest"},
		External: []string{"golang.org/x/sync", "golang.org/x/sys"},
	},
	{
		Path: "transport/transporttest", Library: true, Pure: true,
		May:   []string{"rpc", "transport", "fabric", "internal/testing/simfabric"},
		Tests: []string{"proto/xdr"},
	},
	{Path: "internal/connset", Library: true, Pure: true, May: []string{"rpc"}, Tests: []string{"transport", "iwarp"}},
	{
		Path: "rpc/status", Library: true, Pure: true,
		May:   []string{"internal/connset", "rpc", "rpc/names", "fabric"},
		Tests: []string{"transport", "iwarp", "proto/oncrpc"},
	},
	{
		Path: "rpc/rpcsec", Library: true, Pure: true,
		May:   []string{"rpc", "proto/xdr", "proto/oncrpc"},
		Tests: []string{"transport", "iwarp", "shm", "rdmacm", "fabric", "internal/testing/leak", "internal/testing/rdmatest"},
	},
	{
		Path: "rpc/rpcsec/krb5", Library: true, Pure: true,
		May:      []string{"rpc/rpcsec"},
		Tests:    []string{"rpc", "transport", "iwarp", "fabric", "proto/oncrpc", "proto/xdr"},
		External: []string{"github.com/jcmturner/gokrb5", "github.com/jcmturner/gofork"},
	},
	{
		Path: "rpc/promrpc", Library: true, Pure: true,
		May:      []string{"internal/connset", "rpc", "rpc/names"},
		Tests:    []string{"transport", "iwarp", "proto/oncrpc", "examples"},
		External: []string{"github.com/prometheus"},
	},
	{
		Path: "rpc/otelrpc", Library: true, Pure: true,
		May:      []string{"internal/connset", "rpc", "rpc/names", "proto/xdr", "proto/oncrpc"},
		Tests:    []string{"transport", "iwarp", "examples"},
		External: []string{"go.opentelemetry.io/otel"},
	},
	{
		Path: "grpcrdma/rpcrdma", Pure: true, // generated; its runtime keeps state
		Tests:    []string{"grpcrdma/examples"},
		External: []string{"google.golang.org/protobuf"},
	},
	{
		Path: "grpcrdma", Library: true, Pure: true,
		May:      []string{"grpcrdma/rpcrdma", "rpc", "rpc/gen", "rpc/stream", "transport", "fabric", "proto/xdr", "proto/oncrpc", "proto/rpcrdma"},
		Tests:    []string{"iwarp", "shm", "rdmacm", "rpc/names"},
		External: []string{"google.golang.org/grpc", "google.golang.org/protobuf", "google.golang.org/genproto", "github.com/fullstorydev/grpchan", "github.com/grpc-ecosystem/go-grpc-middleware", "go.opentelemetry.io"},
	},
	{
		Path: "rpc/middleware", Library: true, Pure: true,
		May:   []string{"internal/rate", "rpc", "proto/oncrpc"},
		Tests: []string{"transport", "iwarp"},
	},
	{
		Path: "nfs", Library: true, Pure: true,
		May:   []string{"rpc/gen", "rpc", "transport", "fabric", "rpc/rpcbind", "rpc/rpcsec", "proto/xdr", "proto/oncrpc", "proto/rpcrdma"},
		Tests: []string{"fabric/fabrictest", "iwarp", "rdmacm"},
	},
	{
		Path: "nfs/nfsd", Library: true, Pure: true,
		May:   []string{"nfs", "rpc", "proto/xdr", "proto/oncrpc"},
		Tests: []string{"transport", "iwarp"},
	},
	{
		Path: "nfs/nfsd/dirfs", Library: true, Pure: true,
		May:      []string{"nfs", "nfs/nfsd", "rpc"},
		Tests:    []string{"transport", "proto/xdr", "proto/oncrpc", "iwarp"},
		External: []string{"golang.org/x/sys"},
	},

	{
		Path: "internal/xdrgen/golden", Library: true, Pure: true,
		May:   []string{"rpc", "proto/xdr", "proto/oncrpc"},
		Tests: []string{"internal/xdrgen", "transport", "iwarp"},
	},

	{Path: "cmd/rpcrdma/internal/provider", Library: true, May: []string{"fabric", "iwarp", "ibv", "rdmacm", "transport"}, External: []string{"golang.org/x/sys"}},
	{
		Path: "cmd/rpcrdma/internal/loadgen", Library: true, Pure: true,
		May:   []string{"rpc", "transport", "proto/xdr", "proto/oncrpc"},
		Tests: []string{"iwarp"},
	},
	{
		Path: "cmd/rpcrdma/internal/notify", Library: true, Pure: true,
		May:   []string{"rpc", "rpc/gen", "rpc/stream", "proto/xdr", "proto/oncrpc"},
		Tests: []string{"transport", "iwarp"},
	},

	{
		Path: "examples", Pure: true, May: []string{"rpc/gen", "rpc/stream", "rpc", "transport", "fabric", "iwarp", "proto/xdr", "proto/oncrpc"},
		Tests: []string{"rpc/middleware", "transport/transporttest"},
	},
	{
		Path: "grpcrdma/examples", Pure: true, May: []string{"grpcrdma", "grpcrdma/rpcrdma", "iwarp"}, Tests: []string{"fabric", "transport"},
		External: []string{"google.golang.org/grpc", "google.golang.org/protobuf"},
	},
	{Path: "examples/verbs", May: []string{"cgo", "ibv", "rdmacm"}},

	{Path: "internal/testing/testbed", May: []string{"*"}},
	{Path: "internal/conformance", Tests: []string{"nfs", "rpc", "rpc/rpcbind", "transport", "iwarp", "proto/xdr", "proto/oncrpc"}},

	{Path: "cmd/rpcrdma", May: []string{"*"}, External: []string{"*"}},
	{Path: "bench", May: []string{"*"}, External: []string{"*"}},
	{Path: "internal/testing/interop", May: []string{"*"}, External: []string{"*"}},
	{Path: "tools", May: []string{"*"}, External: []string{"github.com/go-git/go-billy", "github.com/willscott/go-nfs", "github.com/xdrpp/goxdr", "golang.org/x/mod", "github.com/bufbuild/protocompile", "google.golang.org/protobuf"}},
}

// testLayers lists the layers that any test may import.
var testLayers = []string{"internal/testing/cprog", "internal/testing/generated", "internal/testing/kdctest", "internal/testing/leak", "internal/testing/rdmatest", "internal/testing/testbed", "internal/testing/testutil"}

// testExternal lists the packages of other modules that any test may import.
var testExternal = []string{"github.com/google/go-cmp", "golang.org/x/sync", "golang.org/x/sys"}

// LayerOf returns the layer that directory dir belongs to.
func LayerOf(dir string) (Layer, bool) {
	var found Layer
	for _, r := range Layers {
		if below(dir, r.Path) && len(r.Path) > len(found.Path) {
			found = r
		}
	}
	return found, found.Path != ""
}

// below reports whether path is prefix or below it.
func below(path, prefix string) bool {
	return path == prefix || strings.HasPrefix(path, prefix+"/")
}

// covers reports whether one of the listed prefixes covers path.
func covers(list []string, path string) bool {
	for _, prefix := range list {
		if prefix == "*" || below(path, prefix) {
			return true
		}
	}
	return false
}
