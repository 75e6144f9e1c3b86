package dirfs

import (
	"encoding/binary"
	"errors"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/rpcrdma/rpcrdma/nfs"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
)

// status is the first word of the results of every procedure.
type status struct {
	nfs.Status
	rest []byte
}

func (s *status) Decode(d *xdr.Decoder) {
	s.Status = nfs.Status(d.Uint32())
	s.rest = d.Rest()
}

// procs are the arguments of all procedures for an object, a directory and a name in it.
func procs(fh nfs.FileHandle, name string) map[uint32]message {
	where := nfs.DirOpArgs{Dir: fh, Name: name}
	return map[uint32]message{
		nfs.ProcGetAttr: &fh, nfs.ProcSetAttr: &nfs.SetAttrArgs{Object: fh},
		nfs.ProcLookup: &where, nfs.ProcAccess: &nfs.AccessArgs{Object: fh, Access: 0x3f},
		nfs.ProcReadLink: &fh, nfs.ProcRead: &nfs.ReadArgs{File: fh, Count: 10},
		nfs.ProcWrite:  &nfs.WriteArgs{File: fh, Count: 1, Data: []byte("x")},
		nfs.ProcCreate: &nfs.CreateArgs{Where: where}, nfs.ProcMkdir: &nfs.MkdirArgs{Where: where},
		nfs.ProcSymlink: &nfs.SymlinkArgs{Where: where, Target: []byte("x")},
		nfs.ProcMknod:   &nfs.MknodArgs{Where: where, Type: nfs.TypeFIFO},
		nfs.ProcRemove:  &where, nfs.ProcRmdir: &where,
		nfs.ProcRename: &nfs.RenameArgs{From: where, To: where}, nfs.ProcLink: &nfs.LinkArgs{File: fh, Link: where},
		nfs.ProcReadDir:     &nfs.ReadDirArgs{Dir: fh, Count: 1000},
		nfs.ProcReadDirPlus: &nfs.ReadDirPlusArgs{Dir: fh, DirCount: 1000, MaxCount: 4000},
		nfs.ProcFSStat:      &fh, nfs.ProcFSInfo: &fh, nfs.ProcPathConf: &fh, nfs.ProcCommit: &nfs.CommitArgs{File: fh},
	}
}

// named are the procedures with a name as an argument.
var named = []uint32{
	nfs.ProcLookup, nfs.ProcCreate, nfs.ProcMkdir, nfs.ProcSymlink, nfs.ProcMknod, nfs.ProcRemove, nfs.ProcRmdir, nfs.ProcRename,
}

// No name leads anywhere but to an entry of the directory.
func TestHostileNames(t *testing.T) {
	each(t, func(t *testing.T, m mode) {
		w := newWorld(t, m.cfg, map[string]string{"sub/file": "x", "out": "-> /", "up": "-> .."})
		sub := w.lookup("sub")
		for _, tt := range []struct {
			name string
			want map[uint32]nfs.Status // 0: of all others
		}{
			{"", map[uint32]nfs.Status{0: nfs.StatusInval}},
			{"a/b", map[uint32]nfs.Status{0: nfs.StatusInval}},
			{"/", map[uint32]nfs.Status{0: nfs.StatusInval}},
			{"../../etc/passwd", map[uint32]nfs.Status{0: nfs.StatusInval}},
			{"/etc/passwd", map[uint32]nfs.Status{0: nfs.StatusInval}},
			{"file\x00", map[uint32]nfs.Status{0: nfs.StatusInval}},
			{"\x00", map[uint32]nfs.Status{0: nfs.StatusInval}},
			{".", map[uint32]nfs.Status{0: nfs.StatusExist, nfs.ProcLookup: nfs.StatusOK, nfs.ProcRemove: nfs.StatusInval, nfs.ProcRmdir: nfs.StatusInval, nfs.ProcRename: nfs.StatusInval}},
			{"..", map[uint32]nfs.Status{0: nfs.StatusExist, nfs.ProcLookup: nfs.StatusOK, nfs.ProcRemove: nfs.StatusInval, nfs.ProcRmdir: nfs.StatusExist, nfs.ProcRename: nfs.StatusInval}},
			{strings.Repeat("n", 256), map[uint32]nfs.Status{0: nfs.StatusNameTooLong}},
			{strings.Repeat("n", 1024), map[uint32]nfs.Status{0: nfs.StatusNameTooLong}},
		} {
			for _, proc := range named {
				want, ok := tt.want[proc]
				if !ok {
					want = tt.want[0]
				}
				var res status
				w.must(user(), proc, procs(sub, tt.name)[proc], &res)
				if res.Status != want {
					t.Errorf("%s of %.20q: %v, want %v", nfs.ProcName(proc), tt.name, res.Status, want)
				}
			}
		}
		for _, proc := range named {
			err := w.call(user(), proc, procs(sub, strings.Repeat("n", 1025))[proc], &status{})
			var refused *oncrpc.RPCError
			if !errors.As(err, &refused) || refused.AcceptStat != oncrpc.GarbageArgs {
				t.Errorf("%s of a name of 1025 bytes: %v", nfs.ProcName(proc), err)
			}
		}
		// A link is an object, and nothing to go through.
		for _, name := range []string{"out", "up"} {
			fh := w.lookup(name)
			for _, proc := range append(named, nfs.ProcReadDir, nfs.ProcReadDirPlus) {
				var res status
				w.must(user(), proc, procs(fh, "etc")[proc], &res)
				w.want(nfs.ProcName(proc)+" in a link", res.Status, nfs.StatusNotDir)
			}
			for _, proc := range []uint32{nfs.ProcRead, nfs.ProcWrite, nfs.ProcCommit} {
				var res status
				w.must(user(), proc, procs(fh, "")[proc], &res)
				w.want(nfs.ProcName(proc)+" of a link", res.Status, nfs.StatusInval)
			}
		}
		if entries, _ := os.ReadDir(w.path("sub")); len(entries) != 1 {
			t.Errorf("the directory has %v", entries)
		}
	})
}

// A handle that the server has not given out leads to nothing, whatever it says.
func TestForgedHandles(t *testing.T) {
	each(t, func(t *testing.T, m mode) {
		w := newWorld(t, m.cfg, map[string]string{"file": "x"})
		good := w.lookup("file").Bytes()
		outside := t.TempDir()
		f, err := Open(outside, &m.cfg)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		forged := map[string][]byte{
			"empty": {}, "a byte": {1}, "zeros": make([]byte, 64), "another version": append([]byte{9}, good[1:]...),
			"shorter": good[:len(good)-1], "longer": append(append([]byte(nil), good...), 0),
			"the inode of another file": f.root.AppendHandle(append([]byte(nil), good[:21]...)),
		}
		for i := range good {
			b := append([]byte(nil), good...)
			b[i] ^= 1
			forged["byte "+nfs.ProcName(uint32(i))] = b
		}
		for name, b := range forged {
			fh, _ := nfs.NewFileHandle(b)
			for proc, args := range procs(fh, "x") {
				var res status
				w.must(user(), proc, args, &res)
				if res.Status != nfs.StatusStale && res.Status != nfs.StatusBadHandle {
					t.Errorf("%s with a handle %s: %v", nfs.ProcName(proc), name, res.Status)
				}
			}
		}
		// After the signature is accepted, the file system itself refuses what is not one of its
		// inodes.
		for name, b := range forged {
			if n, err := w.fs.Node(t.Context(), b); err == nil {
				t.Errorf("a handle %s leads to %v", name, n)
			}
		}
		other, _ := nfs.NewFileHandle(append(binary.BigEndian.AppendUint32(nil, w.fs.volume), make([]byte, 20)...))
		if _, err := w.fs.Node(t.Context(), other.Bytes()); err == nil {
			t.Error("an inode 0 has been found")
		}
	})
}

// Arguments that are cut off or go on are refused, for every procedure.
func TestGarbage(t *testing.T) {
	w := newWorld(t, modes()[2].cfg, map[string]string{"file": "x"})
	for proc, args := range procs(w.lookup("file"), "x") {
		good := args.Append(nil)
		for n := range len(good) / 4 {
			w.garbage(proc, good[:4*n])
		}
		w.garbage(proc, append(good, 0, 0, 0, 1))
		w.garbage(proc, binary.BigEndian.AppendUint32(nil, 1<<32-1))
	}
	for _, proc := range []uint32{22, 23, 1<<32 - 1} {
		err := w.callBytes(user(), proc, nil, &status{})
		var refused *oncrpc.RPCError
		if !errors.As(err, &refused) || refused.AcceptStat != oncrpc.ProcUnavail {
			t.Errorf("procedure %d: %v", proc, err)
		}
	}
	if err := w.Null(t.Context()); err != nil {
		t.Error(err)
	}
}

func (w *world) garbage(proc uint32, args []byte) {
	w.t.Helper()
	err := w.callBytes(user(), proc, args, &status{})
	var refused *oncrpc.RPCError
	if !errors.As(err, &refused) || refused.AcceptStat != oncrpc.GarbageArgs {
		w.t.Errorf("%s with %x: %v", nfs.ProcName(proc), args, err)
	}
}

// A directory that is exchanged for a symbolic link, over and over, while its files are looked
// up, never leads to what the link names.
func TestLinkRace(t *testing.T) {
	each(t, func(t *testing.T, m mode) {
		outside := t.TempDir()
		for _, dir := range []string{outside, outside + "/sub"} {
			os.Mkdir(dir, 0o777)
			os.Chmod(dir, 0o777)
			if err := os.WriteFile(dir+"/secret", []byte("secret"), 0o666); err != nil {
				t.Fatal(err)
			}
		}
		w := newWorld(t, m.cfg, map[string]string{"dir/sub/secret": "inside", "other": "-> " + outside})
		dir := w.lookup("dir")
		var done atomic.Bool
		var swaps atomic.Int64
		var wg sync.WaitGroup
		wg.Go(func() {
			for ; !done.Load(); swaps.Add(1) {
				os.Rename(w.path("dir"), w.path("aside"))
				os.Rename(w.path("other"), w.path("dir"))
				os.Rename(w.path("dir"), w.path("other"))
				os.Rename(w.path("aside"), w.path("dir"))
			}
		})
		found, enough := 0, often(200)
		for found < enough || swaps.Load() < int64(enough)/2 {
			for _, start := range []nfs.FileHandle{w.root, dir} {
				text, ok := w.readSecret(start, start == w.root)
				if text == "secret" {
					t.Fatal("read what is outside")
				}
				if ok {
					found++
				}
			}
			w.fs.cache.clear()
		}
		done.Store(true)
		wg.Wait()
	})
}

// readSecret reads sub/secret in a directory, or below its "dir". It returns false if it is not
// there at the moment.
func (w *world) readSecret(fh nfs.FileHandle, top bool) (string, bool) {
	names := []string{"sub", "secret"}
	if top {
		names = []string{"dir", "sub", "secret"}
	}
	for _, name := range names {
		var res nfs.LookupRes
		w.must(user(), nfs.ProcLookup, &nfs.DirOpArgs{Dir: fh, Name: name}, &res)
		if res.Status != nfs.StatusOK {
			return "", false
		}
		fh = res.Object
	}
	var res nfs.ReadRes
	w.must(user(), nfs.ProcRead, &nfs.ReadArgs{File: fh, Count: 100}, &res)
	return string(res.Data), res.Status == nfs.StatusOK
}

// clear closes what is not in use, so that the next call has to open it again.
func (c *cache) clear() {
	c.mu.Lock()
	most := c.max
	c.max = 0
	list := c.evict()
	c.max = most
	c.mu.Unlock()
	closeNodes(list)
}
