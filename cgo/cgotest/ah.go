//go:build linux && cgo

package cgotest

import (
	"syscall"
	"unsafe"

	"github.com/rpcrdma/rpcrdma/cgo"
)

// An AH is an address handle.
type AH struct {
	object
	Attr cgo.AHAttr
}

// AH returns the address handle for a word of a request.
func (f *Library) AH(word uint64) *AH {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.ahs[word]
}

// CreateAH implements cgo.Verbs.
func (f *Library) CreateAH(pd *cgo.PD, attr *cgo.AHAttr) (*cgo.AH, syscall.Errno) {
	errno := f.enter("ibv_create_ah")
	defer f.mu.Unlock()
	if errno != 0 {
		return nil, errno
	}
	ah := &AH{Attr: *attr}
	f.begin(&ah.object, "ah", &domainOf(pd).object)
	h := (*cgo.AH)(unsafe.Pointer(ah))
	f.ahs[h.Word()] = ah
	return h, 0
}

// InitAHFromWC implements cgo.Verbs. The sender's address is read from where a GRH has it.
func (f *Library) InitAHFromWC(ctx *cgo.Context, port uint8, wc *cgo.WC, grh *[40]byte) (a cgo.AHAttr, errno syscall.Errno) {
	errno = f.enter("ibv_init_ah_from_wc")
	defer f.mu.Unlock()
	f.usable(&contextOf(ctx).object)
	a.PortNum, a.DLID, a.SL = port, wc.SLID, wc.SL
	if wc.Flags&wcGRH != 0 {
		a.IsGlobal, a.HopLimit = 1, 0xff
		copy(a.DGID[:], grh[8:24])
	}
	return a, errno
}

// DestroyAH implements cgo.Verbs.
func (f *Library) DestroyAH(ah *cgo.AH) syscall.Errno {
	errno := f.destroy("ibv_destroy_ah", &(*AH)(unsafe.Pointer(ah)).object)
	if errno == 0 {
		f.mu.Lock()
		delete(f.ahs, ah.Word())
		f.mu.Unlock()
	}
	return errno
}

// AttachMcast implements cgo.Verbs.
func (f *Library) AttachMcast(qp *cgo.QP, gid [16]byte, _ uint16) syscall.Errno {
	errno := f.enter("ibv_attach_mcast")
	defer f.mu.Unlock()
	f.usable(&f.QP(qp).object)
	if errno == 0 {
		f.QP(qp).groups[gid] = true
	}
	return errno
}

// DetachMcast implements cgo.Verbs.
func (f *Library) DetachMcast(qp *cgo.QP, gid [16]byte, _ uint16) syscall.Errno {
	errno := f.enter("ibv_detach_mcast")
	defer f.mu.Unlock()
	f.usable(&f.QP(qp).object)
	switch {
	case errno != 0:
	case !f.QP(qp).groups[gid]:
		errno = syscall.EINVAL
	default:
		delete(f.QP(qp).groups, gid)
	}
	return errno
}
