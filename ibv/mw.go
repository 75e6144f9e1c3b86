//go:build linux && cgo

package ibv

import (
	"fmt"
	"sync"
	"syscall"

	"github.com/rpcrdma/rpcrdma/cgo"
)

// An MWType is the type of a memory window, see ibv_alloc_mw(3).
type MWType int

// Types of windows.
const (
	MWType1 MWType = 1 // bound by QP.BindMW1, accessible through all queue pairs of the domain
	MWType2 MWType = 2 // bound by OpBindMW, accessible through that queue pair, invalidated by OpLocalInv or the peer
)

func (t MWType) String() string {
	switch t {
	case MWType1:
		return "IBV_MW_TYPE_1"
	case MWType2:
		return "IBV_MW_TYPE_2"
	}
	return fmt.Sprintf("ibv_mw_type %d", int(t))
}

// An MW is a memory window: a separate key for a part of a region. One work request binds it and another invalidates
// it.
//
// Eight bits of the key change with every bind. The library derives the key of a bind from that of the previous one,
// which for type 2 the program has to store; devices reject a bind with any other key. In this package posting a bind
// stores its key: [MW.NextRKey] is the key of the next bind, and after [QP.PostSend] RKey returns it. If the completion
// reports that a bind failed, nothing is bound and the previous key is valid: close the window, or restore the key with
// SetRKey.
//
// The device rxe checks the peer's access rights against the window, but addresses only against the whole region.
type MW struct {
	life
	raw *cgo.MW
	ctx *Context
	typ MWType

	keyMu sync.Mutex // guards the key in raw
}

// AllocMW allocates a window, which is not bound.
//
// Implements: struct ibv_mw *ibv_alloc_mw(struct ibv_pd *pd, enum ibv_mw_type type)
func (pd *PD) AllocMW(typ MWType) (*MW, error) {
	const call = "ibv_alloc_mw"
	if err := pd.enter(call); err != nil {
		return nil, err
	}
	defer pd.leave()
	raw, _, errno := pd.ctx.lib.AllocMW(pd.raw, int(typ))
	if errno != 0 {
		return nil, &Error{Call: call, Device: pd.device, Err: errno}
	}
	mw := &MW{raw: raw, ctx: pd.ctx, typ: typ}
	mw.begin(aMW, pd.device, &pd.life)
	return mw, nil
}

// Raw returns the window for package cgo, valid until Close. Call SetRKey after each bind that is posted through it.
func (mw *MW) Raw() *cgo.MW { return mw.raw }

// Type returns the type of the window.
func (mw *MW) Type() MWType { return mw.typ }

// RKey returns the key for the peer: that of the last bind posted, or 0 if the window is closed.
func (mw *MW) RKey() uint32 {
	if mw.enter("") != nil {
		return 0
	}
	defer mw.leave()
	return mw.key()
}

// NextRKey returns the key that the window has after the next bind.
//
// Implements: uint32_t ibv_inc_rkey(uint32_t rkey)
func (mw *MW) NextRKey() uint32 { return cgo.IncRKey(mw.RKey()) }

// SetRKey stores the key of the window: that of a bind posted by means other than [QP.PostSend], or the previous key
// after a failed bind.
func (mw *MW) SetRKey(rkey uint32) {
	if mw.enter("") != nil {
		return
	}
	defer mw.leave()
	mw.setKey(rkey)
}

func (mw *MW) key() uint32 {
	mw.keyMu.Lock()
	defer mw.keyMu.Unlock()
	return mw.ctx.lib.RKey(mw.raw)
}

func (mw *MW) setKey(rkey uint32) {
	mw.keyMu.Lock()
	defer mw.keyMu.Unlock()
	mw.ctx.lib.SetRKey(mw.raw, rkey)
}

// Close deallocates the window, which ends the peer's access.
//
// Implements: int ibv_dealloc_mw(struct ibv_mw *mw)
func (mw *MW) Close() error {
	return mw.end("ibv_dealloc_mw", func() syscall.Errno { return mw.ctx.lib.DeallocMW(mw.raw) })
}
