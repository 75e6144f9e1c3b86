package house

import "strings"

// Module is the path that all our packages share.
const Module = "github.com/rpcrdma/rpcrdma"

// Room is a directory with all that is below it, and what may be imported there.
// Inside a room everything may import everything.
type Room struct {
	Path string // under the module's root

	// May lists the other rooms that it imports. Tests lists those that its tests
	// import besides. "*" is every room.
	May, Tests []string

	// Third lists modules of others, as path prefixes; tests also have testThird.
	Third []string

	// Library rooms are linked into other people's programs: they have no init
	// functions, no mutable package-level state, and documentation on every
	// exported name.
	Library bool

	// Pure rooms build and pass their tests without cgo.
	Pure bool
}

// Rooms is the table that the import rule enforces. Rows stand in dependency
// order: a room imports only rooms above its own row. Immutable.
var Rooms = []Room{
	{Path: "internal/house"},
	{Path: "internal/leak"},
	{Path: "internal/rdmatest"},
	{Path: "internal/limited"},
	{Path: "internal/pollfd", Library: true, Pure: true},
	{Path: "internal/crc32c", Library: true, Pure: true, Third: []string{"golang.org/x/sys"}},

	{Path: "proto/xdr", Library: true, Pure: true},
	{Path: "proto/oncrpc", Library: true, Pure: true, May: []string{"proto/xdr"}},
	{Path: "proto/rpcrdma", Library: true, Pure: true, May: []string{"proto/xdr"}},
	{Path: "proto/mpa", Library: true, Pure: true, May: []string{"internal/crc32c"}},
	{Path: "proto/ddp", Library: true, Pure: true, May: []string{"proto/mpa"}},
	{Path: "proto/rdmap", Library: true, Pure: true, May: []string{"proto/mpa", "proto/ddp"}},

	{Path: "rpcbind", Library: true, Pure: true, May: []string{"proto/xdr", "proto/oncrpc"}},

	{Path: "fabric", Library: true, Pure: true},
	{Path: "fabric/fabrictest", Library: true, Pure: true, May: []string{"fabric"}, Tests: []string{"iwarp"}},

	{Path: "internal/simfabric", Library: true, Pure: true, May: []string{"fabric"}, Tests: []string{"fabric/fabrictest"}},

	{
		Path: "iwarp", Library: true, Pure: true,
		May:   []string{"fabric", "proto/mpa", "proto/ddp", "proto/rdmap"},
		Tests: []string{"fabric/fabrictest"},
		Third: []string{"golang.org/x/sys"},
	},
	{Path: "cgo", Library: true},
	{Path: "cgo/cgotest", Library: true, May: []string{"cgo"}, Third: []string{"golang.org/x/sys"}},
	{
		Path: "ibv", Library: true, May: []string{"internal/pollfd", "cgo"},
		Tests: []string{"cgo/cgotest"},
		Third: []string{"golang.org/x/sys"},
	},
	{
		Path: "rdmacm", Library: true,
		May:   []string{"internal/pollfd", "fabric", "ibv", "cgo"},
		Tests: []string{"fabric/fabrictest", "cgo/cgotest"},
		Third: []string{"golang.org/x/sys"},
	},

	{
		Path: "transport", Library: true, Pure: true,
		May:   []string{"fabric", "proto/xdr", "proto/oncrpc", "proto/rpcrdma"},
		Tests: []string{"fabric/fabrictest", "internal/simfabric", "iwarp", "rdmacm"},
		Third: []string{"golang.org/x/sync", "golang.org/x/sys"},
	},
	{
		Path: "nfs", Library: true, Pure: true,
		May:   []string{"transport", "fabric", "rpcbind", "proto/xdr", "proto/oncrpc", "proto/rpcrdma"},
		Tests: []string{"fabric/fabrictest", "iwarp", "rdmacm"},
	},

	{Path: "internal/conformance", Tests: []string{"nfs", "rpcbind", "transport", "iwarp", "proto/xdr", "proto/oncrpc"}},

	{Path: "cmd/rpcrdma", May: []string{"*"}, Third: []string{"*"}},
	{Path: "examples", May: []string{"*"}, Third: []string{"*"}},
	{Path: "bench", May: []string{"*"}, Third: []string{"*"}},
	{Path: "interop", May: []string{"*"}, Third: []string{"*"}},
	{Path: "tools", May: []string{"*"}, Third: []string{"github.com/rhysd/actionlint", "github.com/xdrpp/goxdr"}},
}

// testRooms are the rooms that any test may use.
var testRooms = []string{"internal/leak", "internal/rdmatest"}

// testThird is what any test may use of others' modules.
var testThird = []string{"github.com/google/go-cmp", "golang.org/x/sync", "golang.org/x/sys"}

// RoomOf returns the room that the directory dir lies in.
func RoomOf(dir string) (Room, bool) {
	var found Room
	for _, r := range Rooms {
		if below(dir, r.Path) && len(r.Path) > len(found.Path) {
			found = r
		}
	}
	return found, found.Path != ""
}

// below reports whether path is prefix or lies under it.
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
