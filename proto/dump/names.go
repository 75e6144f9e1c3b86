package dump

import (
	"cmp"
	"slices"
)

// programs names ONC RPC programs and the procedures of their versions, by number.
// Immutable.
var programs = map[uint32]struct {
	name     string
	versions map[uint32][]string
}{
	100000: {"rpcbind", map[uint32][]string{
		2: { // RFC 1833 section 3.2
			"NULL", "SET", "UNSET", "GETPORT", "DUMP", "CALLIT",
		},
		3: { // RFC 1833 section 2.1
			"NULL", "SET", "UNSET", "GETADDR", "DUMP", "CALLIT", "GETTIME", "UADDR2TADDR", "TADDR2UADDR",
		},
		4: { // RFC 1833 section 2.1
			"NULL", "SET", "UNSET", "GETADDR", "DUMP", "BCAST", "GETTIME", "UADDR2TADDR", "TADDR2UADDR",
			"GETVERSADDR", "INDIRECT", "GETADDRLIST", "GETSTAT",
		},
	}},
	100003: {"NFS", map[uint32][]string{
		2: { // RFC 1094 section 2.2
			"NULL", "GETATTR", "SETATTR", "ROOT", "LOOKUP", "READLINK", "READ", "WRITECACHE", "WRITE",
			"CREATE", "REMOVE", "RENAME", "LINK", "SYMLINK", "MKDIR", "RMDIR", "READDIR", "STATFS",
		},
		3: { // RFC 1813 section 3
			"NULL", "GETATTR", "SETATTR", "LOOKUP", "ACCESS", "READLINK", "READ", "WRITE",
			"CREATE", "MKDIR", "SYMLINK", "MKNOD", "REMOVE", "RMDIR", "RENAME", "LINK",
			"READDIR", "READDIRPLUS", "FSSTAT", "FSINFO", "PATHCONF", "COMMIT",
		},
		4: {"NULL", "COMPOUND"}, // RFC 8881 section 16
	}},
	100005: {"MOUNT", map[uint32][]string{
		1: {"NULL", "MNT", "DUMP", "UMNT", "UMNTALL", "EXPORT"}, // RFC 1094 appendix A
		3: {"NULL", "MNT", "DUMP", "UMNT", "UMNTALL", "EXPORT"}, // RFC 1813 section 5.2
	}},
	100021: {"NLM", map[uint32][]string{
		4: { // RFC 1813 section 6.2 and the procedures of NLM version 3
			"NULL", "TEST", "LOCK", "CANCEL", "UNLOCK", "GRANTED",
			"TEST_MSG", "LOCK_MSG", "CANCEL_MSG", "UNLOCK_MSG", "GRANTED_MSG",
			"TEST_RES", "LOCK_RES", "CANCEL_RES", "UNLOCK_RES", "GRANTED_RES",
		},
	}},
	100024: {"NSM", map[uint32][]string{
		1: {"NULL", "STAT", "MON", "UNMON", "UNMON_ALL", "SIMU_CRASH", "NOTIFY"},
	}},
	100227: {"NFSACL", map[uint32][]string{
		3: {"NULL", "GETACL", "SETACL"},
	}},
	// docs/protocol.md: the properties exchange as a call.
	0x20525001: {"RDMA_PROP", map[uint32][]string{
		1: {"NULL", "EXCHANGE"},
	}},
	// The programs of this module: packages loadgen, notify and rpc/stream.
	0x20524442: {"RPCRDMA_BENCH", map[uint32][]string{
		1: {"NULL", "ECHO", "SINK", "SOURCE"},
	}},
	0x2052444e: {"RPCRDMA_NOTIFY", map[uint32][]string{
		1: {"NULL", "WATCH"},
	}},
	0x2553544d: {"STREAM", map[uint32][]string{
		1: {"NULL", "EVENTS"},
	}},
	// A client chooses the number of its callback program. This is the choice of Linux.
	0x40000000: {"NFS callback", map[uint32][]string{
		1: {"NULL", "COMPOUND"}, // RFC 8881 section 20
	}},
}

// Names returns the names of a program and of a procedure in one of its versions. Each is empty if unknown. Procedure 0
// is NULL in every program, by convention.
func Names(prog, vers, proc uint32) (program, procedure string) {
	p := programs[prog]
	if names := p.versions[vers]; uint64(proc) < uint64(len(names)) {
		return p.name, names[proc]
	}
	if proc == 0 {
		return p.name, "NULL"
	}
	return p.name, ""
}

// A Version is one version of a program.
type Version struct {
	Number     uint32   // in RPC calls
	Procedures []string // names of the procedures, by number
}

// Program returns the name of a program and its versions in ascending order, or nothing if the program is unknown. The
// slices belong to the caller.
func Program(prog uint32) (name string, versions []Version) {
	p := programs[prog]
	for n, procedures := range p.versions {
		versions = append(versions, Version{n, slices.Clone(procedures)})
	}
	slices.SortFunc(versions, func(a, b Version) int { return cmp.Compare(a.Number, b.Number) })
	return p.name, versions
}
