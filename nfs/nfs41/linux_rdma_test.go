//go:build linux

package nfs41

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/rpcrdma/rpcrdma/fabric/fabrictest"
	"github.com/rpcrdma/rpcrdma/internal/testing/rdmatest"
	"github.com/rpcrdma/rpcrdma/internal/testing/testbed"
)

// nfsd returns the directory that the kernel's NFS server exports, and its RDMA port, as set
// up by scripts/vm --nfsd.
func nfsd(t *testing.T) (dir, port string) {
	t.Helper()
	dir, port = os.Getenv("RPCRDMA_NFSD_DIR"), os.Getenv("RPCRDMA_NFSD_PORT")
	if dir == "" || port == "" {
		t.Skip("RPCRDMA_NFSD_DIR and RPCRDMA_NFSD_PORT do not tell of a kernel's NFS server: run it with scripts/test-rdma --nfsd")
	}
	return dir, port
}

// onDevices runs a test on each kind of device, and with the software adapter against siw.
func onDevices(t *testing.T, test func(t *testing.T, b *bed)) {
	for _, kind := range rdmatest.Kinds() {
		t.Run(kind, func(t *testing.T) { test(t, &bed{Bed: testbed.Device(t, kind)}) })
	}
	t.Run("iwarp", func(t *testing.T) {
		b := &bed{Bed: testbed.Iwarp()}
		b.Host = rdmatest.Device(t, "siw")
		test(t, b)
	})
}

// infoOf returns the kernel's information about an NFS client, and its directory in /proc.
func infoOf(t *testing.T, owner []byte) (info, dir string) {
	t.Helper()
	files, err := filepath.Glob("/proc/fs/nfsd/clients/*/info")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		b, err := os.ReadFile(name)
		if errors.Is(err, os.ErrNotExist) {
			continue // forgotten meanwhile
		}
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(b), fmt.Sprintf("name: %q", owner)) {
			return string(b), filepath.Dir(name)
		}
	}
	return "", ""
}

// endGrace ends the grace periods of the kernel's NFS server and of its lock manager, during
// which it grants no delegations. No client has anything to reclaim.
func endGrace(t *testing.T) {
	t.Helper()
	for _, name := range []string{"/proc/fs/nfsd/v4_end_grace", "/proc/fs/lockd/nlm_end_grace"} {
		if over, err := os.ReadFile(name); err != nil {
			t.Fatal(err)
		} else if bytes.HasPrefix(over, []byte("Y")) {
			continue
		}
		if err := os.WriteFile(name, []byte("Y\n"), 0); err != nil {
			t.Fatal(err)
		}
	}
}

// TestRDMALinuxServer: BIDI-3.2-1 the kernel's NFS server uses our backchannel after
// CREATE_SESSION, and on a new connection after BIND_CONN_TO_SESSION, to recall delegations.
func TestRDMALinuxServer(t *testing.T) {
	dir, port := nfsd(t)
	endGrace(t)
	onDevices(t, func(t *testing.T, b *bed) {
		b.Check(t)
		ctx, cancel := context.WithTimeout(bg, patience)
		defer cancel()
		var lose atomic.Bool
		provider := fabrictest.Faulty(b.Provider, fabrictest.Plan{{
			At: fabrictest.AtRequest, Do: fabrictest.Break, Every: true,
			Match: func(fabrictest.Passage) bool { return lose.CompareAndSwap(true, false) },
		}})
		recalls := make(chan CBRecallArgs, 1)
		owner := []byte("nfs41 " + t.Name())
		s, err := Dial(ctx, provider, net.JoinHostPort(b.Host, port), &Config{
			Owner: owner,
			Renew: true,
			Callback: func(_ context.Context, op uint32, args Message) Status {
				r, ok := args.(*CBRecallArgs)
				if !ok {
					return StatusNotSupp
				}
				recalls <- CBRecallArgs{StateID: r.StateID, Handle: bytes.Clone(r.Handle)}
				return StatusOK
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		info, err := s.Info(ctx)
		if err != nil || info.Flags&SessionConnBackChan == 0 {
			t.Fatalf("no backchannel: %+v, %v", info, err)
		}
		wantFlags(t, s, 0)
		wantRecall(t, s, dir, recalls)

		// The connection is lost during a call. The session continues on the next one.
		lose.Store(true)
		if _, err := s.LeaseTime(ctx); err != nil {
			t.Error(err)
		}
		if lose.Load() || provider.Struck(0) != 1 {
			t.Error("the connection has not been lost")
		}
		s.waitUp(t)
		wantRecall(t, s, dir, recalls)
		if again, err := s.Info(ctx); err != nil || again.ID != info.ID {
			t.Errorf("%+v, %v, before %+v", again, err, info)
		}
		if st := s.CallbackStats(); st.Sequences < 2 || st.Refused != 0 {
			t.Errorf("%+v", st)
		}

		// The server forgets the client: the session is replaced.
		_, proc := infoOf(t, owner)
		if err := os.WriteFile(filepath.Join(proc, "ctl"), []byte("expire\n"), 0); err != nil {
			t.Fatal(err)
		}
		wantFlags(t, s, 0)
		again, err := s.Info(ctx)
		if err != nil || again.ID == info.ID || again.Flags&SessionConnBackChan == 0 {
			t.Errorf("%+v, %v", again, err)
		}
		wantRecall(t, s, dir, recalls)
		if err := s.Destroy(ctx); err != nil {
			t.Error(err)
		}
		if told, _ := infoOf(t, owner); told != "" {
			t.Errorf("the server still knows:\n%s", told)
		}
	})
}

// wantRecall makes the kernel's server call: it recalls the delegation of a file in dir when
// another process writes to it.
func wantRecall(t *testing.T, s *Session, dir string, recalls <-chan CBRecallArgs) {
	t.Helper()
	ctx := patient(t)
	file, fh, opened := delegated(t, s, dir)
	defer os.Remove(file)
	// Another process writes. It has to wait until the client has returned the delegation,
	// which the server recalls.
	written := make(chan error, 1)
	go func() { written <- os.WriteFile(file, []byte("new"), 0o666) }()
	var recall CBRecallArgs
	select {
	case recall = <-recalls:
	case <-ctx.Done():
		t.Fatal("no CB_RECALL has come")
	}
	if told, _ := infoOf(t, s.cfg.Owner); !strings.Contains(told, "callback state: UP") {
		t.Errorf("the server has called, and says:\n%s", told)
	}
	if recall.StateID.Other != opened.Deleg.Other || !bytes.Equal(recall.Handle, fh) {
		t.Errorf("CB_RECALL of %+v, the delegation is %+v of %v", recall, opened.Deleg, fh)
	}
	select {
	case err := <-written:
		t.Errorf("written although there is a delegation: %v", err)
	default:
	}
	err := s.Compound(ctx, Operation{OpPutFH, &fh, nil}, Operation{OpDelegReturn, &recall.StateID, nil})
	if err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-written:
		if err != nil {
			t.Error(err)
		}
	case <-ctx.Done():
		t.Fatal("the file cannot be written although there is no delegation")
	}
	closeFile(t, s, fh, opened)
	wantFlags(t, s, 0)
}

// delegated creates a file in dir and opens it so that the client gets a delegation.
func delegated(t *testing.T, s *Session, dir string) (string, FileHandle, OpenRes) {
	t.Helper()
	ctx := patient(t)
	info, err := s.Info(ctx)
	if err != nil {
		t.Fatal(err)
	}
	var opened OpenRes
	// The kernel remembers files with recalled delegations in a Bloom filter of 256 bits,
	// which sometimes matches another file.
	for range 20 {
		file, err := os.CreateTemp(dir, "delegated")
		if err != nil {
			t.Fatal(err)
		}
		file.Close()
		open := OpenArgs{
			Access: OpenRead | WantReadDeleg, ClientID: info.ClientID,
			Owner: []byte("owner"), Name: filepath.Base(file.Name()),
		}
		var fh FileHandle
		// The kernel reports the end of the grace period slightly too early: it still runs a
		// helper.
		for {
			err = s.Compound(ctx, Operation{Op: OpPutRootFH}, Operation{OpOpen, &open, &opened}, Operation{Op: OpGetFH, Result: &fh})
			var refused *Error
			if !errors.As(err, &refused) || refused.Status != StatusGrace {
				break
			}
		}
		if err != nil {
			t.Fatal(err)
		}
		// The server grants delegations only to clients with a working callback path.
		if opened.Delegation == DelegateRead {
			return file.Name(), fh, opened
		}
		closeFile(t, s, fh, opened)
		os.Remove(file.Name())
	}
	t.Fatalf("no delegation: %+v", opened)
	return "", nil, opened
}

func closeFile(t *testing.T, s *Session, fh FileHandle, opened OpenRes) {
	t.Helper()
	err := s.Compound(patient(t), Operation{OpPutFH, &fh, nil}, Operation{OpClose, &CloseArgs{StateID: opened.StateID}, new(StateID)})
	if err != nil {
		t.Error(err)
	}
}

// TestRDMALinuxClient: BIDI-3.2-1 the kernel's NFS client mounts our server, and executes our
// callbacks on its connection.
func TestRDMALinuxClient(t *testing.T) {
	nfsd(t) // with it the modules of the client are there, too
	onDevices(t, func(t *testing.T, b *bed) {
		b.Check(t)
		w := start(t, b, &ServerConfig{Lease: 10 * time.Second})
		ctx, cancel := context.WithTimeout(bg, patience)
		defer cancel()
		sh := func(name string, args ...string) string {
			t.Helper()
			out, err := exec.CommandContext(ctx, name, args...).CombinedOutput()
			if err != nil {
				t.Fatalf("%s %v: %v\n%s", name, args, err, out)
			}
			return string(out)
		}
		dir := t.TempDir()
		_, port, _ := net.SplitHostPort(w.addr)
		sh("mount", "-t", "nfs", "-o", "vers=4.1,proto=rdma,actimeo=0,port="+port, b.Host+":/", dir)
		mounted := true
		defer func() {
			if mounted {
				exec.Command("umount", "-f", "-l", dir).Run()
			}
		}()
		if out := sh("ls", "-la", dir); !strings.Contains(out, "dr-xr-xr-x") {
			t.Errorf("ls -la:\n%s", out)
		}
		if entries, err := os.ReadDir(dir); err != nil || len(entries) != 0 {
			t.Errorf("%v, %v", entries, err)
		}
		if _, err := os.Stat(filepath.Join(dir, "x")); !errors.Is(err, os.ErrNotExist) {
			t.Error(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "x"), nil, 0o666); err == nil {
			t.Error("a file has been made")
		}
		var fs syscall.Statfs_t
		if err := syscall.Statfs(dir, &fs); err != nil || fs.Namelen != 255 || fs.Blocks != 0 {
			t.Errorf("statfs: %+v, %v", fs, err)
		}
		ss := w.next(t)
		if back := ss.Back(); back.MaxRequest > 4096 || back.MaxRequests == 0 {
			t.Errorf("backchannel: %+v", back)
		}
		for range 3 {
			if err := ss.Null(ctx); err != nil {
				t.Fatalf("CB_NULL: %v", err)
			}
		}
		for range 20 {
			if err := ss.Callback(ctx); err != nil {
				t.Fatalf("CB_SEQUENCE: %v", err)
			}
		}
		any := CBRecallAnyArgs{Keep: 1, Mask: Bits(0)}
		if err := ss.Callback(ctx, Operation{OpCBRecallAny, &any, nil}); err != nil {
			t.Errorf("CB_RECALL_ANY: %v", err)
		}
		if err := ss.Callback(ctx, Operation{Op: 99}); !hasStatus(err, StatusOpIllegal) {
			t.Errorf("an operation that does not exist: %v", err)
		}
		if err := ss.Callback(ctx); err != nil {
			t.Errorf("CB_SEQUENCE at the end: %v", err)
		}
		w.srv.mu.Lock()
		flags := ss.flags()
		w.srv.mu.Unlock()
		if flags != 0 {
			t.Errorf("the client is told %v", flags)
		}

		// The connection is lost. The client reconnects for its next call, learns that the
		// backchannel is down, and binds it.
		for range 2 {
			ss.lose()
			if _, err := os.Stat(dir); err != nil {
				t.Error(err)
			}
			wantCallbacks(t, ss)
		}
		if list := w.srv.Sessions(); len(list) != 1 || list[0] != ss {
			t.Errorf("%v", list)
		}
		sh("umount", dir)
		mounted = false
		w.waitGone(t)

		// Without an explicit version it tries 4.2 first.
		sh("mount", "-t", "nfs", "-o", "proto=rdma,port="+port, b.Host+":/", dir)
		mounted = true
		wantCallbacks(t, w.next(t))
		sh("umount", dir)
		mounted = false
		w.waitGone(t)
	})
}

// waitGone waits until the kernel's client has destroyed its session and client id, which it
// does in the background after the unmount.
func (w *world) waitGone(t *testing.T) {
	t.Helper()
	clients := func() int {
		w.srv.mu.Lock()
		defer w.srv.mu.Unlock()
		return len(w.srv.clients)
	}
	for end := time.Now().Add(patience); clients() > 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the client has not destroyed its session and its id")
		}
	}
}
