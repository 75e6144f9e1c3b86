package serving

import (
	"errors"
	"io"
	"log/slog"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/rpcrdma/rpcrdma/nfs"
	"github.com/rpcrdma/rpcrdma/nfs/nfsd"
	"github.com/rpcrdma/rpcrdma/nfs/nfsd/dirfs"
)

// OpenDir opens a directory for export. s may be nil.
func OpenDir(dir string, async bool, s *State, log *slog.Logger) (nfsd.FS, io.Closer, error) {
	cfg := dirfs.Config{Async: async, Logger: log}
	if s != nil {
		cfg.Store = storeOf(s)
	}
	f, err := dirfs.Open(dir, &cfg)
	if err != nil {
		return nil, nil, err
	}
	return f, f, nil
}

// places adapts a State to dirfs.Store.
type places struct{ *State }

func storeOf(s *State) dirfs.Store { return places{s} }

// Put stores pairs.
func (p places) Put(pairs []dirfs.Pair) error {
	return p.update(func(put func(key, value []byte) error) error {
		for _, pair := range pairs {
			if err := put(pair.Key, pair.Value); err != nil {
				return err
			}
		}
		return nil
	})
}

// permits reports whether the mode of a directory permits a caller to look up names in it and, with list, to list it.
// If the directory has an ACL, only its owner is permitted: the group bits of the mode are then the ACL's mask.
func permits(dir *os.File, list bool, who *nfsd.Caller) bool {
	info, err := dir.Stat()
	if err != nil {
		return false
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return false
	}
	if _, err := unix.Fgetxattr(int(dir.Fd()), "system.posix_acl_access", nil); !errors.Is(err, unix.ENODATA) && !errors.Is(err, unix.EOPNOTSUPP) &&
		who.UID != stat.Uid && who.UID != 0 {
		return false
	}
	want := uint32(nfs.AccessLookup)
	if list {
		want |= nfs.AccessRead
	}
	attr := nfs.Attr{Type: nfs.TypeDir, Mode: uint32(info.Mode().Perm()), UID: stat.Uid, GID: stat.Gid}
	return nfsd.ModeAccess(&attr, who, want) == want
}
