package dirfs

import (
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rpcrdma/rpcrdma/nfs"
)

// writing returns calls that write to a file and put it on the disk.
func (w *world) writing(file nfs.FileHandle) (write func(stable nfs.Stable) nfs.WriteRes, commit func() nfs.CommitRes) {
	write = func(stable nfs.Stable) (r nfs.WriteRes) {
		args := nfs.WriteArgs{File: file, Count: 1, Stable: stable, Data: []byte("x")}
		if err := w.call(user(), nfs.ProcWrite, &args, &r); err != nil {
			w.t.Error(err)
		}
		return r
	}
	commit = func() (r nfs.CommitRes) {
		if err := w.call(user(), nfs.ProcCommit, &nfs.CommitArgs{File: file}, &r); err != nil {
			w.t.Error(err)
		}
		return r
	}
	return write, commit
}

// Whichever call learns that written data is lost, the next COMMIT makes the client write it again.
func TestLossIsNoted(t *testing.T) {
	w := newWorld(t, modes()[2].cfg, map[string]string{"file": "", "dir/": ""})
	var failure error
	w.synced(func() error { return failure })
	file, dir := w.lookup("file"), w.lookup("dir")
	write, commit := w.writing(file)
	size := nfs.SetAttr{SetSize: true}
	for _, tt := range []struct {
		what  string
		proc  uint32
		args  message
		noted bool
	}{
		{"COMMIT", nfs.ProcCommit, &nfs.CommitArgs{File: file}, true},
		{"SETATTR of the size", nfs.ProcSetAttr, &nfs.SetAttrArgs{Object: file, Attr: size}, true},
		{"SETATTR of the mode", nfs.ProcSetAttr, &nfs.SetAttrArgs{Object: file, Attr: nfs.SetAttr{SetMode: true, Mode: 0o600}}, true},
		{"CREATE", nfs.ProcCreate, &nfs.CreateArgs{Where: nfs.DirOpArgs{Dir: w.root, Name: "file"}, Attr: size}, true},
		{"SETATTR of a directory", nfs.ProcSetAttr, &nfs.SetAttrArgs{Object: dir, Attr: nfs.SetAttr{SetMode: true, Mode: 0o700}}, false},
	} {
		before := write(nfs.Unstable)
		if r := commit(); r.Status != nfs.StatusOK || r.Verf != before.Verf {
			t.Errorf("before %s: WRITE says %v, COMMIT %v", tt.what, before.Verf, r)
		}
		failure = unix.EIO
		w.want(tt.what, w.do(user(), tt.proc, tt.args), nfs.StatusIO)
		failure = nil
		if r := commit(); r.Status != nfs.StatusOK || (r.Verf != before.Verf) != tt.noted {
			t.Errorf("after %s: WRITE said %v, COMMIT says %v", tt.what, before.Verf, r)
		}
	}
}

// A call does not say that all is well while another one has the error of its data and has not noted
// that yet.
func TestErrorOfAnother(t *testing.T) {
	for _, tt := range []struct {
		what string
		call func(write func(nfs.Stable) nfs.WriteRes, commit func() nfs.CommitRes) (nfs.Status, nfs.Verf)
		want nfs.Status
	}{
		{"COMMIT", func(_ func(nfs.Stable) nfs.WriteRes, commit func() nfs.CommitRes) (nfs.Status, nfs.Verf) {
			r := commit()
			return r.Status, r.Verf
		}, nfs.StatusOK},
		{"WRITE", func(write func(nfs.Stable) nfs.WriteRes, _ func() nfs.CommitRes) (nfs.Status, nfs.Verf) {
			r := write(nfs.FileSync)
			return r.Status, r.Verf
		}, nfs.StatusIO},
	} {
		t.Run(tt.what, func(t *testing.T) {
			w := newWorld(t, modes()[2].cfg, map[string]string{"file": ""})
			write, commit := w.writing(w.lookup("file"))
			before := write(nfs.Unstable)
			told, asked, note := make(chan struct{}), make(chan struct{}), make(chan struct{})
			var calls atomic.Int32
			w.fs.fsync = func(int) error {
				if calls.Add(1) > 1 {
					close(asked)
					return nil
				}
				close(told)
				<-note
				return unix.EIO
			}
			first := make(chan nfs.Status, 1)
			go func() { first <- commit().Status }()
			<-told
			second := make(chan struct{})
			var status nfs.Status
			var verf nfs.Verf
			go func() {
				defer close(second)
				status, verf = tt.call(write, commit)
			}()
			<-asked
			select {
			case <-second:
				t.Error("it has not waited")
			case <-time.After(50 * time.Millisecond):
			}
			close(note)
			<-second
			w.want("the first", <-first, nfs.StatusIO)
			w.want("the second", status, tt.want)
			if status == nfs.StatusOK && verf == before.Verf {
				t.Error("the verifier is that of before")
			}
		})
	}
}
