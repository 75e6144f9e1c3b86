package nfs

import "github.com/rpcrdma/rpcrdma/rpc"

// Binding is the upper-layer binding of NFS version 3 and MOUNT version 3 (RFC 8267 section 4,
// RFC 5667 section 4). These data items may be sent as chunks:
//
//	READ      the file's data, in the results    write chunk
//	READLINK  the link's path, in the results    write chunk
//	WRITE     the file's data, in the arguments  read chunk
//	SYMLINK   the link's path, in the arguments  read chunk
//
// MOUNT has none. Messages of other programs and versions, and messages that do not decode
// completely, have none either.
type Binding struct{}

var (
	_ rpc.Binding     = Binding{}
	_ rpc.Idempotence = Binding{}
)

// Call returns the data of WRITE and the path of SYMLINK, and derives a bound on the results from the arguments.
func (Binding) Call(p rpc.Procedure, args []byte, items []rpc.Range) ([]rpc.Range, rpc.ReplyBounds) {
	if p.Prog == MountProgram {
		return mountV3Binding{}.Call(p, args, items)
	}
	return nfsV3Binding{}.Call(p, args, items)
}

// Reply returns the data of READ and the path of READLINK, or, in reduced results, their position.
func (Binding) Reply(p rpc.Procedure, results []byte, reduced bool, items []rpc.Range) []rpc.Range {
	return nfsV3Binding{}.Reply(p, results, reduced, items)
}

// Idempotent reports whether a procedure may be executed again. That is the case for those that change nothing, and for
// WRITE and COMMIT, which change nothing when repeated. RFC 1813 section 4.5.
func (Binding) Idempotent(p rpc.Procedure) bool {
	return p.Proc == ProcNull || nfsV3Binding{}.Idempotent(p) || mountV3Binding{}.Idempotent(p)
}

// Idempotent is Binding.Idempotent for transport.ClientConfig: it reports which calls may be repeated over another
// connection. A WRITE that was outstanding when its connection was lost may be executed again after it has been
// answered. A client that has written to the same place in the meantime must be aware of that, just as after a
// reconnect.
func Idempotent(prog, vers, proc uint32) bool {
	return Binding{}.Idempotent(rpc.Procedure{Prog: prog, Vers: vers, Proc: proc})
}
