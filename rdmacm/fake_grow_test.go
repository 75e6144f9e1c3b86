//go:build linux && cgo

package rdmacm_test

import (
	"errors"
	"syscall"
	"testing"

	"github.com/rpcrdma/rpcrdma/cgo/cgotest"
	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/rdmacm"
)

// entries is how many completions the queue of a connection has room for.
func entries(l *link) int {
	_, cq, _ := rdmacm.Handles(l.Conn)
	return l.r.lib.CQSize(cq)
}

// TestFakeQueueGrows: a completion queue has an entry for each request that may be outstanding, and few
// while few are, where the device can make it longer.
func TestFakeQueueGrows(t *testing.T) {
	attr := fabric.ConnAttr{SendDepth: 60, RecvDepth: 200}
	const all = 60 + 200 + 1
	for _, tc := range []struct {
		name    string
		cfg     rdmacm.Config
		options []option
		first   int
	}{
		{"a device that can", rdmacm.Config{}, nil, 15},
		{"siw, which cannot", rdmacm.Config{}, []option{asSIW}, all},
		{"another that cannot", rdmacm.Config{}, []option{func(l *cgotest.Library, _ *cgotest.Device) { l.Fail("ibv_resize_cq", syscall.EOPNOTSUPP) }}, all},
		{"a shared queue", rdmacm.Config{SharedCQ: 1000}, nil, 1000},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newRig(t, tc.cfg, tc.options...)
			l := r.connect(attr)
			if n := entries(l); n != tc.first {
				t.Errorf("a connection begins with %d entries, want %d", n, tc.first)
			}
			for id := range uint64(200) {
				l.recv(id)
				if n := entries(l); n < int(id)+1 {
					t.Fatalf("%d entries for %d receives", n, id+1)
				}
			}
			for id := range uint64(60) {
				l.post(l.wr(id, fabric.OpSend, 8, fabric.Signaled))
				if n := entries(l); n < 200+int(id)+1 {
					t.Fatalf("%d entries for 200 receives and %d sends", n, id+1)
				}
			}
			if n := entries(l); n != max(all, tc.first) {
				t.Errorf("it has %d entries in the end", n)
			}
		})
	}

	t.Run("without memory what does not fit is refused, and posted later", func(t *testing.T) {
		r := newRig(t, rdmacm.Config{})
		l := r.connect(attr)
		for id := range uint64(6) {
			l.recv(id)
		}
		wr := []fabric.RecvWR{{ID: 6, SGE: fabric.SGE{Buf: l.mr.Bytes()[:64], LKey: l.mr.LKey()}}}
		sends := make([]fabric.SendWR, 20)
		for i := range sends {
			sends[i] = l.wr(uint64(i), fabric.OpSend, 8, fabric.Signaled)
		}
		for what, post := range map[string]func() error{
			"receive": func() error { return l.PostRecv(wr) }, "sends": func() error { return l.Post(sends) },
		} {
			r.lib.Fail("ibv_resize_cq", syscall.ENOMEM)
			if err := post(); !errors.Is(err, syscall.ENOMEM) {
				t.Errorf("%s: %v", what, err)
			}
		}
		if n, m := len(l.qp.Recvs()), len(l.qp.Sends()); n != 6 || m != 0 {
			t.Fatalf("%d receives and %d sends are posted", n, m)
		}
		l.recv(6)
		l.post(sends...)
	})
}
