package nfsd

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
	"github.com/rpcrdma/rpcrdma/nfs"
	"github.com/rpcrdma/rpcrdma/rpc"
)

// listEntries is a listing of n entries, each of which takes some time. It notes the owner at each.
func listEntries(ctx context.Context, ts *turns[string, string], k string, n int, each time.Duration, note func(string)) error {
	var h turn[string, string]
	if err := ts.begin(ctx, k, k, &h); err != nil {
		return err
	}
	for range n {
		time.Sleep(each)
		note(k)
		if err := ts.pause(ctx, &h); err != nil {
			return err
		}
	}
	ts.end(&h)
	return nil
}

// idle checks that nothing is left of listings.
func (t *turns[H, K]) idle(tb testing.TB, n int) {
	tb.Helper()
	if t.oldest != nil || t.newest != nil || t.waiting != 0 || t.gate.free != n || len(t.gate.conns) != 0 {
		tb.Errorf("left: %v, %v, %d wait, %d of %d free", t.oldest, t.newest, t.waiting, t.gate.free, n)
	}
}

// Listings take turns by time, one owner after the other, however many each has.
func TestTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ts := newTurns[string, string](1, turnPatience)
		done := make(chan string, 100)
		order := ""
		note := func(k string) { order += k }
		list := func(k string, n int) {
			go func() {
				if err := listEntries(t.Context(), ts, k, n, turnSlice/2, note); err != nil {
					t.Error(err)
				}
				done <- k
			}()
			synctest.Wait()
		}
		for range 5 {
			list("a", 8)
		}
		list("b", 4)
		for range 6 {
			<-done
		}
		synctest.Wait()
		// a has made way after two entries, and so has b.
		if !strings.HasPrefix(order, "aabbaabb") || len(order) != 5*8+4 {
			t.Errorf("entries: %s", order)
		}
		ts.idle(t, 1)
	})
}

// A listing that waits for a disk holds no call up; when it goes on it waits for its turn. One alone
// is not interrupted.
func TestTurnsOfHangingDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ts := newTurns[string, string](1, turnPatience)
		var hangs turn[string, string]
		testutil.Must(t, ts.begin(t.Context(), "hangs", "hangs", &hangs))
		time.Sleep(time.Hour)
		testutil.Must(t, ts.pause(t.Context(), &hangs))
		start := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		done := make(chan struct{})
		go func() {
			if err := listEntries(ctx, ts, "works", 100, time.Millisecond, func(string) {}); err != nil {
				t.Error(err)
			}
			if took := time.Since(start); took > 100*time.Millisecond+turnPatience {
				t.Errorf("the other one took %v", took)
			}
			close(done)
		}()
		time.Sleep(50*time.Millisecond + turnSlice)
		testutil.Must(t, ts.pause(ctx, &hangs)) // goes on
		if !time.Now().After(start.Add(50*time.Millisecond + turnSlice)) {
			t.Error("it goes on at once")
		}
		ts.end(&hangs)
		<-done
		synctest.Wait()
		ts.idle(t, 1)
	})
}

// The listing of a connection that has ended ends with its turn, or without one.
func TestTurnsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ts := newTurns[string, string](1, turnPatience)
		ctx, cancel := context.WithCancel(t.Context())
		failed := make(chan error, 2)
		for range 2 {
			go func() {
				failed <- listEntries(ctx, ts, "a", 1<<30, turnSlice, func(string) {})
			}()
		}
		time.Sleep(time.Second)
		cancel()
		for range 2 {
			if err := <-failed; !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		}
		synctest.Wait()
		ts.idle(t, 1)
	})
}

// Changes, synchronous WRITEs and lookups take turns, but not while they wait for a disk. READ, and WRITE
// to memory, take none.
func TestChangesTakeTurns(t *testing.T) {
	f := newSpool()
	c := newSite(t, &Config{Exports: []Export{{Name: "/", FS: f}}})
	turns := newTurns[host, rpc.Conn](1, time.Hour)
	c.server.turns[lookups], c.server.turns[updates] = turns, turns
	root := c.mnt("/").Handle
	file := c.lookup(root, "top")
	set := nfs.SetAttrArgs{Object: file}
	f.during = func() { c.status(nfs.ProcGetAttr, &file) }
	c.status(nfs.ProcSetAttr, &set)

	x := nfs.DirOpArgs{Dir: root, Name: "x"}
	write := nfs.WriteArgs{File: file, Count: 1, Data: []byte("x")}
	var held turn[host, rpc.Conn]
	testutil.Must(t, turns.begin(t.Context(), host{}, nil, &held))
	c.status(nfs.ProcRead, &nfs.ReadArgs{File: file, Count: 1})
	c.status(nfs.ProcWrite, &write)
	turns.end(&held)
	write.Stable = nfs.DataSync
	for proc, args := range map[uint32]message{
		nfs.ProcSetAttr: &set, nfs.ProcWrite: &write, nfs.ProcCreate: &nfs.CreateArgs{Where: x}, nfs.ProcMkdir: &nfs.MkdirArgs{Where: x},
		nfs.ProcSymlink: &nfs.SymlinkArgs{Where: x, Target: []byte("t")}, nfs.ProcMknod: &nfs.MknodArgs{Where: x, Type: nfs.TypeFIFO},
		nfs.ProcRemove: &x, nfs.ProcRmdir: &x, nfs.ProcRename: &nfs.RenameArgs{From: x, To: x}, nfs.ProcLink: &nfs.LinkArgs{File: file, Link: x},
	} {
		testutil.Must(t, turns.begin(t.Context(), host{}, nil, &held))
		was := f.clock.Load()
		done := make(chan nfs.Status, 1)
		go func() { done <- c.status(proc, args) }()
		testutil.Eventually(t, nfs.ProcName(proc)+" waits", func() bool {
			turns.mu.Lock()
			defer turns.mu.Unlock()
			return turns.waiting == 1
		})
		if f.clock.Load() != was {
			t.Errorf("%s has not waited for its turn", nfs.ProcName(proc))
		}
		turns.end(&held)
		if s := <-done; s != nfs.StatusOK || f.clock.Load() == was {
			t.Errorf("%s: %v", nfs.ProcName(proc), s)
		}
	}
	testutil.Eventually(t, "all turns end", func() bool {
		turns.mu.Lock()
		defer turns.mu.Unlock()
		return turns.oldest == nil
	})
}

// A call of one sort takes turns with others of its sort, and no call of another sort waits for it.
func TestSortsApart(t *testing.T) {
	c := newSite(t, &Config{Exports: []Export{{Name: "/", FS: newSpool()}}})
	root := c.mnt("/").Handle
	for i, turns := range c.server.turns {
		if slices.Contains(c.server.turns[:i], turns) {
			t.Errorf("sort %d shares its turns with another", i)
		}
	}
	for sort, do := range map[sort]func() nfs.Status{
		lookups: func() nfs.Status { return c.status(nfs.ProcGetAttr, &root) },
		updates: func() nfs.Status { return c.status(nfs.ProcSetAttr, &nfs.SetAttrArgs{Object: root}) },
		climbs:  func() nfs.Status { return c.status(nfs.ProcLookup, &nfs.DirOpArgs{Dir: root, Name: ".."}) },
	} {
		for of := lookups; of < numSorts; of++ {
			turns := newTurns[host, rpc.Conn](1, time.Hour)
			c.server.turns[of] = turns
			var held turn[host, rpc.Conn]
			testutil.Must(t, turns.begin(t.Context(), host{}, nil, &held))
			waits := of == sort
			done := make(chan nfs.Status, 1)
			go func() { done <- do() }()
			if waits {
				testutil.Eventually(t, "the call waits", func() bool {
					turns.mu.Lock()
					defer turns.mu.Unlock()
					return turns.waiting == 1
				})
				turns.end(&held)
			}
			select {
			case s := <-done:
				if s != nfs.StatusOK {
					t.Errorf("a call of sort %d beside a turn of sort %d: %v", sort, of, s)
				}
			case <-time.After(10 * time.Second):
				t.Fatalf("a call of sort %d waits for a turn of sort %d", sort, of)
			}
			if !waits {
				turns.end(&held)
			}
		}
	}
}
