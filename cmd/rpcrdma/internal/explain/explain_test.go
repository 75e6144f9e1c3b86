package explain

import (
	"io"
	"io/fs"
	"net"
	"os"
	"syscall"
	"testing"

	"github.com/rpcrdma/rpcrdma/nfs"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/rpc/rpcbind"
)

// A path outside of the exports is answered with what they are.
func TestNoExport(t *testing.T) {
	for want, list := range map[string][]nfs.Export{
		"the server exports nothing":                           nil,
		"the server exports only /a":                           {{Dir: "/a"}},
		"the server exports only /a, /b":                       {{Dir: "/a"}, {Dir: "/b"}},
		`the server exports only /a, "\x1b[2J", /c and 2 more`: {{Dir: "/a"}, {Dir: "\x1b[2J"}, {Dir: "/c"}, {Dir: "/d"}, {Dir: "/e"}},
	} {
		if got := Text(&fs.PathError{Op: "mount", Path: "/x", Err: &nfs.NoExportError{Exports: list}}); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// Failures of rpcbind to find the port of MOUNT.
func TestMountPortMessages(t *testing.T) {
	absent := &oncrpc.RPCError{Stat: oncrpc.MsgAccepted, AcceptStat: oncrpc.ProgUnavail, Prog: nfs.MountProgram, Vers: nfs.MountVersion}
	const begin = "no MOUNT on the NFS connection (the server does not have MOUNT (PROG_UNAVAIL)), nor on one of its own: "
	const asking = begin + "asking the rpcbind at server:111 for MOUNT version 3 over tcp: "
	for want, err := range map[string]error{
		begin + "the rpcbind at server:111 has no MOUNT version 3 over tcp registered": rpcbind.ErrNotRegistered,
		asking + "connection refused: nothing listens there":                           &net.OpError{Op: "dial", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)},
		asking + "invalid answer: unexpected EOF":                                      &rpcbind.BadReplyError{Err: io.ErrUnexpectedEOF},
		asking + `invalid answer: address "x" of netid "tcp": is cut short`:            &rpcbind.BadReplyError{Err: &rpcbind.AddrError{Netid: rpcbind.TCP, Addr: "x", What: "is cut short"}},
	} {
		err = &rpcbind.OpError{Op: "GETADDR", Server: "server:111", Prog: nfs.MountProgram, Vers: nfs.MountVersion, Netid: rpcbind.TCP, Err: err}
		if got := Text(&nfs.MountFallbackError{RDMA: absent, TCP: err}); got != want {
			t.Errorf("%s\nwant\n%s", got, want)
		}
	}
}
