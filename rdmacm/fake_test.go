//go:build linux && cgo

package rdmacm_test

import (
	"errors"
	"net"
	"net/netip"
	"slices"
	"testing"

	"github.com/rpcrdma/rpcrdma/cgo"
	"github.com/rpcrdma/rpcrdma/cgo/cgotest"
	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/rdmacm"
)

// Addresses of the fake device and of a peer that does not exist.
var (
	fakeAddr = netip.MustParseAddr("192.0.2.1") // immutable
	fakePeer = "192.0.2.2:20049"                // immutable
)

// A rig is a provider on a fake library with one device.
type rig struct {
	t   testing.TB
	lib *cgotest.Library
	dev *cgotest.Device
	p   *rdmacm.Provider
}

// An option changes the fake before it is used.
type option func(*cgotest.Library, *cgotest.Device)

func asSIW(_ *cgotest.Library, d *cgotest.Device) {
	d.Info.Transport, d.Attr.VendorID, d.Attr.MaxMW = cgotest.TransportIWARP, cgotest.VendorSIW, 0
}

func asIWARP(_ *cgotest.Library, d *cgotest.Device) {
	d.Info.Transport = cgotest.TransportIWARP
}

func asRXE(_ *cgotest.Library, d *cgotest.Device) { d.Attr.VendorID = cgotest.VendorRXE }

// cleaning is a device that takes the completions of a queue pair away with it.
func cleaning(_ *cgotest.Library, d *cgotest.Device) { d.CleansCQ = true }

func newRig(t testing.TB, cfg rdmacm.Config, options ...option) *rig {
	t.Helper()
	r := &rig{t: t, lib: cgotest.New(t)}
	r.dev = r.lib.AddDevice("fake0", fakeAddr)
	for _, o := range options {
		o(r.lib, r.dev)
	}
	p, err := rdmacm.NewOn(r.lib, cfg)
	if err != nil {
		t.Fatal(err)
	}
	r.p = p
	t.Cleanup(func() {
		if !t.Failed() && p.OpenObjects() != (rdmacm.OpenObjects{}) {
			t.Errorf("the provider still has %+v", p.OpenObjects())
		}
		p.Close()
	})
	return r
}

// A link is a connection with the test as its other end.
type link struct {
	fabric.Conn
	t  testing.TB
	r  *rig
	qp *cgotest.QP
	cq *cgotest.CQ
	id *cgotest.ID
	mr fabric.MR // local memory
}

// resolve makes a connection that has not been offered to the peer.
func (r *rig) resolve(attr fabric.ConnAttr) *link {
	r.t.Helper()
	c, err := r.p.Resolve(soon(r.t), fakePeer, attr)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { c.Close() })
	l := &link{Conn: c, t: r.t, r: r}
	qp, cq, id := rdmacm.Handles(c)
	l.qp, l.cq, l.id = r.lib.QP(qp), r.lib.CQ(cq), r.lib.ID(id)
	if l.mr, err = c.RegMR(make([]byte, 64<<10), fabric.AccessLocalWrite); err != nil {
		r.t.Fatal(err)
	}
	return l
}

// connect makes a connection that is up.
func (r *rig) connect(attr fabric.ConnAttr) *link {
	r.t.Helper()
	l := r.resolve(attr)
	if err := l.Connect(soon(r.t), nil); err != nil {
		r.t.Fatal(err)
	}
	return l
}

// wr is a request of n bytes. RDMA operations name memory that does not exist.
func (l *link) wr(id uint64, op fabric.Opcode, n int, flags fabric.SendFlags) fabric.SendWR {
	wr := fabric.SendWR{ID: id, Op: op, Flags: flags}
	if n > 0 {
		wr.SGL = []fabric.SGE{{Buf: l.mr.Bytes()[:n], LKey: l.mr.LKey()}}
	}
	return wr
}

// post posts requests, which must succeed.
func (l *link) post(wrs ...fabric.SendWR) {
	l.t.Helper()
	if err := l.Post(wrs); err != nil {
		l.t.Fatal(err)
	}
}

// recv posts receives of 64 bytes.
func (l *link) recv(ids ...uint64) {
	l.t.Helper()
	for _, id := range ids {
		err := l.PostRecv([]fabric.RecvWR{{ID: id, SGE: fabric.SGE{Buf: l.mr.Bytes()[:64], LKey: l.mr.LKey()}}})
		if err != nil {
			l.t.Fatal(err)
		}
	}
}

// An outcome is the completion that a test wants.
type outcome struct {
	ID     uint64
	Op     fabric.WCOpcode
	Status fabric.WCStatus
}

// polled polls until nothing comes and returns what came, and how the connection
// ended if it did.
func (l *link) polled() (got []outcome, err error) {
	var wcs [4]fabric.WC
	for {
		n, err := l.Poll(wcs[:])
		for _, wc := range wcs[:n] {
			got = append(got, outcome{wc.ID, wc.Op, wc.Status})
		}
		if n == 0 {
			return got, err
		}
	}
}

// want polls for exactly these completions, on a connection that goes on.
func (l *link) want(want ...outcome) {
	l.t.Helper()
	if got, err := l.polled(); !slices.Equal(got, want) || err != nil {
		l.t.Fatalf("polled %v, %v; want %v", got, err, want)
	}
}

// wantEnd polls for exactly these completions and the end of the connection.
func (l *link) wantEnd(want ...outcome) *fabric.ConnError {
	l.t.Helper()
	got, err := l.polled()
	if !slices.Equal(got, want) {
		l.t.Errorf("polled %v, want %v", got, want)
	}
	var end *fabric.ConnError
	if !errors.As(err, &end) || !errors.Is(err, net.ErrClosed) {
		l.t.Fatalf("the connection has ended with %v", err)
	}
	return end
}

// opcodes are the opcodes of requests that the device has, as in enum ibv_wr_opcode.
func (l *link) opcodes() (ops []uint32) {
	for _, s := range l.qp.Sends() {
		ops = append(ops, s.Opcode)
	}
	return ops
}

// disconnected is the peer's end of the connection.
func (l *link) disconnected() { l.id.Raise(cgo.CMEvent{Type: cgotest.Disconnected}) }

// ending waits until the connection knows of its end.
func (l *link) ending() {
	l.t.Helper()
	comes(l.t, "the end is known", func() bool { return l.Post(nil) != nil })
}
