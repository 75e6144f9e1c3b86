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
	"testing"
	"time"
)

// nfsd returns the folder that the kernel's NFS server exports, and its port for RDMA,
// as scripts/vm --nfsd sets it up.
func nfsd(t *testing.T) (dir, port string) {
	t.Helper()
	dir, port = os.Getenv("RPCRDMA_NFSD_DIR"), os.Getenv("RPCRDMA_NFSD_PORT")
	if dir == "" || port == "" {
		t.Skip("RPCRDMA_NFSD_DIR and RPCRDMA_NFSD_PORT do not tell of a kernel's NFS server: run it with scripts/test-rdma --nfsd")
	}
	return dir, port
}

// onDevices runs a test on each kind of device, and with the software adapter against
// the kernel's iWARP.
func onDevices(t *testing.T, test func(t *testing.T, b *bed)) {
	for _, kind := range []string{"rxe", "siw"} {
		t.Run(kind, func(t *testing.T) { test(t, onDevice(t, kind)) })
	}
	t.Run("iwarp", func(t *testing.T) {
		b := onIwarp()
		b.host = device(t, "siw")
		test(t, b)
	})
}

// infoOf returns what the kernel's NFS server tells about a client, and the folder of
// that in /proc.
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

// endGrace ends the grace periods of the kernel's NFS server and of its lock manager:
// before that it gives no delegations. It has started with the machine, and nobody has
// anything to reclaim.
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

// TestRDMALinuxServer: BIDI-3.2-1 the kernel's NFS server has our backchannel after
// CREATE_SESSION, and calls: it wants a delegation back.
func TestRDMALinuxServer(t *testing.T) {
	dir, port := nfsd(t)
	endGrace(t)
	onDevices(t, func(t *testing.T, b *bed) {
		b.check(t)
		ctx, cancel := context.WithTimeout(bg, patience)
		defer cancel()
		name := "delegated-" + filepath.Base(t.Name())
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte("old"), 0o666); err != nil {
			t.Fatal(err)
		}
		defer os.Remove(file)

		recalls := make(chan CBRecallArgs, 1)
		owner := []byte("nfs41 " + t.Name())
		s, err := Dial(ctx, b.provider, net.JoinHostPort(b.host, port), &Config{
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
		if flags, err := s.Sequence(ctx); err != nil || flags != 0 {
			t.Fatalf("SEQUENCE: %v, %v", flags, err)
		}

		// The server gives delegations only to clients whose callback path is up.
		open := OpenArgs{Access: OpenRead | WantReadDeleg, ClientID: info.ClientID, Owner: []byte("owner"), Name: name}
		var fh FileHandle
		var opened OpenRes
		err = s.Compound(ctx, Operation{Op: OpPutRootFH}, Operation{OpOpen, &open, &opened}, Operation{Op: OpGetFH, Result: &fh})
		if err != nil {
			t.Fatal(err)
		}
		fh = bytes.Clone(fh)
		if opened.Delegation != DelegateRead {
			t.Fatalf("no delegation: %+v", opened)
		}
		if told, _ := infoOf(t, owner); !strings.Contains(told, "callback state: UP") {
			t.Errorf("the server says:\n%s", told)
		}

		// Somebody else writes. He has to wait until we have given the delegation back,
		// which the server asks us for.
		written := make(chan error, 1)
		go func() { written <- os.WriteFile(file, []byte("new"), 0o666) }()
		var recall CBRecallArgs
		select {
		case recall = <-recalls:
		case <-ctx.Done():
			t.Fatal("no CB_RECALL has come")
		}
		if recall.StateID.Other != opened.Deleg.Other || !bytes.Equal(recall.Handle, fh) {
			t.Errorf("CB_RECALL of %+v, the delegation is %+v of %v", recall, opened.Deleg, fh)
		}
		select {
		case err := <-written:
			t.Errorf("written although there is a delegation: %v", err)
		default:
		}
		err = s.Compound(ctx, Operation{OpPutFH, &fh, nil}, Operation{OpDelegReturn, &recall.StateID, nil})
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
		var closed StateID
		err = s.Compound(ctx, Operation{OpPutFH, &fh, nil}, Operation{OpClose, &CloseArgs{StateID: opened.StateID}, &closed})
		if err != nil {
			t.Error(err)
		}
		if st := s.CallbackStats(); st.Sequences == 0 || st.Refused != 0 {
			t.Errorf("%+v", st)
		}
		if flags, err := s.Sequence(ctx); err != nil || flags != 0 {
			t.Errorf("SEQUENCE: %v, %v", flags, err)
		}

		// The server forgets us: another session takes the place of this one.
		_, proc := infoOf(t, owner)
		if err := os.WriteFile(filepath.Join(proc, "ctl"), []byte("expire\n"), 0); err != nil {
			t.Fatal(err)
		}
		if flags, err := s.Sequence(ctx); err != nil || flags != 0 {
			t.Errorf("SEQUENCE after the server has forgotten us: %v, %v", flags, err)
		}
		again, err := s.Info(ctx)
		if err != nil || again.ID == info.ID || again.Flags&SessionConnBackChan == 0 {
			t.Errorf("%+v, %v", again, err)
		}
		if err := s.Destroy(ctx); err != nil {
			t.Error(err)
		}
		if told, _ := infoOf(t, owner); told != "" {
			t.Errorf("the server still knows:\n%s", told)
		}
	})
}

// TestRDMALinuxClient: BIDI-3.2-1 the kernel's NFS client mounts our server, and answers
// our calls on its connection.
func TestRDMALinuxClient(t *testing.T) {
	nfsd(t) // with it the modules of the client are there, too
	onDevices(t, func(t *testing.T, b *bed) {
		b.check(t)
		w := b.start(t, &ServerConfig{Lease: 10 * time.Second})
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
		sh("mount", "-t", "nfs", "-o", "vers=4.1,proto=rdma,port="+port, b.host+":/", dir)
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
		sh("umount", dir)
		mounted = false
		// The client destroys its session, and its id, in the background.
		for end := time.Now().Add(patience); len(w.srv.Sessions()) > 0; {
			if time.Now().After(end) {
				t.Fatal("the client has not destroyed its session")
			}
			time.Sleep(10 * time.Millisecond)
		}
	})
}
