package nfsd

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
	"github.com/rpcrdma/rpcrdma/nfs"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/rpc"
)

// isIdle reports whether idle has been closed.
func isIdle(idle <-chan struct{}) bool {
	select {
	case <-idle:
		return true
	default:
		return false
	}
}

// When exports are replaced, handles of those that stay are good, wherever they are in the list,
// and those of the others are stale.
func TestSetExports(t *testing.T) {
	a, b := newPlain(), newPlain()
	c := newSite(t, &Config{Exports: []Export{{Name: "/a", FS: a}, {Name: "/b", FS: b}}})
	inA, inB := c.lookup(c.mnt("/a").Handle, "top"), c.lookup(c.mnt("/b/dir").Handle, "file")
	set := func(list ...Export) <-chan struct{} {
		t.Helper()
		idle, err := c.server.SetExports(list)
		testutil.Must(t, err)
		return idle
	}
	want := func(what string, fh nfs.FileHandle, want nfs.Status) {
		t.Helper()
		if got := c.status(nfs.ProcGetAttr, &fh); got != want {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	}
	set(Export{Name: "/c", FS: newPlain()}, Export{Name: "/b", FS: b, ReadOnly: true}, Export{Name: "/a", FS: a})
	want("a handle of an export that is third now", inA, nfs.StatusOK)
	want("a handle of an export that is read-only now", inB, nfs.StatusOK)
	if got := c.status(nfs.ProcSetAttr, &nfs.SetAttrArgs{Object: inB}); got != nfs.StatusROFS {
		t.Errorf("SETATTR in an export that is read-only now: %v", got)
	}
	idle := set(Export{Name: "/a", FS: a})
	testutil.Eventually(t, "nobody uses what was exported before", func() bool { return isIdle(idle) })
	want("a handle of an export that stays", inA, nfs.StatusOK)
	want("a handle of an export that is gone", inB, nfs.StatusStale)
	if got := c.mnt("/b"); got.Status != nfs.MountAcces {
		t.Errorf("MNT of an export that is gone: %v", got.Status)
	}
	var list nfs.ExportRes
	var dump nfs.DumpRes
	testutil.Must(t, c.call(someone(), nfs.MountProgram, nfs.MountProcExport, nil, &list),
		c.call(someone(), nfs.MountProgram, nfs.MountProcDump, nil, &dump))
	if fmt.Sprint(list.Exports) != "[{/a []}]" || fmt.Sprint(dump.Entries) != "[{127.0.0.1 /a}]" {
		t.Errorf("EXPORT: %v, DUMP: %v", list.Exports, dump.Entries)
	}
	for name, bad := range map[string][]Export{
		"no exports": nil, "no file system": {{Name: "/a", FS: a}, {Name: "/x"}}, "one name twice": {{Name: "/x", FS: a}, {Name: "/x/", FS: b}},
	} {
		if _, err := c.server.SetExports(bad); err == nil {
			t.Errorf("%s: no error", name)
		}
		want("a handle after an error", inA, nfs.StatusOK)
	}
	set(Export{Name: "/b", FS: b})
	want("a handle of an export that is back", inB, nfs.StatusOK)
	want("a handle of an export that has gone", inA, nfs.StatusStale)
	testutil.Eventually(t, "every node is released", func() bool { return a.uses.Load()+b.uses.Load() == 0 })
}

// An export is for the callers that its Auth accepts.
func TestExportAuth(t *testing.T) {
	f := newPlain()
	refuse := false
	c := newSite(t, &Config{Exports: []Export{{Name: "/a", FS: f, Auth: func(req *rpc.Request) oncrpc.AuthStat {
		if refuse || req.Peer().Addr == nil {
			return oncrpc.AuthTooWeak
		}
		return oncrpc.AuthOK
	}}}})
	fh := c.lookup(c.mnt("/a").Handle, "top")
	if got := c.status(nfs.ProcGetAttr, &fh); got != nfs.StatusOK {
		t.Error(got)
	}
	refuse = true
	if got, mnt := c.status(nfs.ProcGetAttr, &fh), c.mnt("/a"); got != nfs.StatusStale || mnt.Status != nfs.MountAcces {
		t.Errorf("GETATTR %v, MNT %v", got, mnt.Status)
	}
}

// Exports are not idle as long as a call is in one of them, however often they are replaced.
func TestSetExportsWhileUsed(t *testing.T) {
	f, other := newPlain(), newPlain()
	f.block = make(chan struct{})
	c := newSite(t, &Config{Exports: []Export{{Name: "/hangs", FS: f}}})
	hangs, err := f.Root(t.Context())
	testutil.Must(t, err)
	hangs.Release()
	handle, _ := nfs.NewFileHandle(c.server.seal.append(nil, c.server.exports.Load().list[0].ID, hangs))
	var wg sync.WaitGroup
	wg.Go(func() {
		var got statusRes
		if err := c.call(someone(), nfs.Program, nfs.ProcGetAttr, &handle, &got); err != nil || nfs.Status(got) != nfs.StatusOK {
			t.Errorf("a call that had begun: %v, %v", nfs.Status(got), err)
		}
	})
	testutil.Eventually(t, "the call hangs", func() bool { return f.blocked.Load() == 1 })
	var idle [3]<-chan struct{}
	for i := range idle {
		if idle[i], err = c.server.SetExports([]Export{{Name: "/other", FS: other}}); err != nil {
			t.Fatal(err)
		}
	}
	if got := c.status(nfs.ProcGetAttr, &handle); got != nfs.StatusStale {
		t.Errorf("a call that begins: %v", got)
	}
	for i := range idle {
		if isIdle(idle[i]) {
			t.Errorf("after %d changes the exports are idle though a call hangs in them", i+1)
		}
	}
	close(f.block)
	wg.Wait()
	for i := range idle {
		testutil.Eventually(t, "the exports are idle", func() bool { return isIdle(idle[i]) })
	}
}

// Shutdown waits for the calls that have begun, as long as it may, and refuses others.
func TestShutdown(t *testing.T) {
	f := newPlain()
	c := newSite(t, &Config{Exports: []Export{{Name: "/", FS: f}}})
	root := c.mnt("/").Handle
	f.block = make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		var got statusRes
		if err := c.call(someone(), nfs.Program, nfs.ProcGetAttr, &root, &got); err != nil || nfs.Status(got) != nfs.StatusOK {
			t.Errorf("a call that had begun: %v, %v", nfs.Status(got), err)
		}
	})
	testutil.Eventually(t, "the call hangs", func() bool { return f.blocked.Load() == 1 })
	gone, cancel := context.WithCancelCause(t.Context())
	why := errors.New("it takes too long")
	cancel(why)
	for range 2 {
		if err := c.server.Shutdown(gone); !errors.Is(err, why) {
			t.Errorf("Shutdown while a call hangs: %v", err)
		}
	}
	if err := c.call(someone(), nfs.Program, nfs.ProcGetAttr, &root, new(statusRes)); err == nil {
		t.Error("a call after Shutdown is answered")
	}
	if got := c.mnt("/").Status; got != nfs.MountAcces {
		t.Errorf("MNT after Shutdown: %v", got)
	}
	close(f.block)
	testutil.Must(t, c.server.Shutdown(t.Context()))
	// The call that has ended tells one set of exports after the other.
	testutil.Eventually(t, "without calls Shutdown does not wait", func() bool { return c.server.Shutdown(gone) == nil })
	wg.Wait()
	if n := f.uses.Load(); n != 0 {
		t.Errorf("%d nodes are in use", n)
	}
}

// Exports that are replaced over and over under load: no call sees one that has been closed.
func TestSetExportsStorm(t *testing.T) {
	c := newSite(t, &Config{Exports: []Export{{Name: "/keep", FS: newPlain()}}})
	keep := c.mnt("/keep").Handle
	var done atomic.Bool
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			changes := nfs.DirPath("/changes/dir")
			for !done.Load() {
				var got statusRes
				err := c.call(someone(), nfs.Program, nfs.ProcGetAttr, &keep, &got)
				if err == nil {
					err = c.call(someone(), nfs.MountProgram, nfs.MountProcMnt, &changes, new(nfs.MntRes))
				}
				if err != nil || nfs.Status(got) != nfs.StatusOK {
					t.Error(nfs.Status(got), err)
					return
				}
			}
		})
	}
	kept := newPlain()
	for range 200 {
		f := newPlain()
		_, err := c.server.SetExports([]Export{{Name: "/changes", FS: f}, {Name: "/keep", FS: kept}})
		testutil.Must(t, err)
		c.mnt("/changes")
		idle, err := c.server.SetExports([]Export{{Name: "/keep", FS: kept}})
		testutil.Must(t, err)
		<-idle
		if n := f.uses.Load(); n != 0 {
			t.Fatalf("%d nodes are in use of a file system that is idle", n)
		}
	}
	done.Store(true)
	wg.Wait()
}

// A client that no export is for is refused as by Linux's server, except that it can ask what
// there is.
func TestUnknownClients(t *testing.T) {
	f := newPlain()
	elsewhere := []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}
	c := newSite(t, &Config{Exports: []Export{{Name: "/a", FS: f, Allow: elsewhere}, {Name: "/b", FS: f, Allow: elsewhere}}})
	handle, _ := nfs.NewFileHandle(c.server.seal.append(nil, c.server.exports.Load().list[0].ID, f.objects[0]))
	for proc, args := range map[uint32]message{nfs.ProcGetAttr: &handle, nfs.ProcRead: &nfs.ReadArgs{File: handle}, nfs.ProcFSInfo: &handle} {
		err := c.call(someone(), nfs.Program, proc, args, new(statusRes))
		var refused *oncrpc.RPCError
		if !errors.As(err, &refused) || refused.AuthStat != oncrpc.AuthBadCred {
			t.Errorf("%s: %v", nfs.ProcName(proc), err)
		}
	}
	for _, dir := range []string{"/a", "/a/dir", "/b", "/none"} {
		if got := c.mnt(dir).Status; got != nfs.MountAcces {
			t.Errorf("MNT of %s: %v", dir, got)
		}
	}
	var list nfs.ExportRes
	if err := c.call(someone(), nfs.MountProgram, nfs.MountProcExport, nil, &list); err != nil || fmt.Sprint(list.Exports) != "[{/a [192.0.2.0/24]} {/b [192.0.2.0/24]}]" {
		t.Errorf("EXPORT: %v, %v", list.Exports, err)
	}
	testutil.Must(t, c.rpc.Null(t.Context(), nfs.Program, nfs.Version))
	// One export is enough to be known.
	_, err := c.server.SetExports([]Export{{Name: "/a", FS: f, Allow: elsewhere}, {Name: "/b", FS: f}})
	testutil.Must(t, err)
	if got := c.status(nfs.ProcGetAttr, &handle); got != nfs.StatusStale {
		t.Errorf("GETATTR in an export for others: %v", got)
	}
	if got := c.mnt("/b").Status; got != nfs.MountOK {
		t.Errorf("MNT: %v", got)
	}
}
