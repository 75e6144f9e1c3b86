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
	MWType1 MWType = 1 // bound by QP.BindMW1, reachable through all queue pairs of the domain
	MWType2 MWType = 2 // bound by OpBindMW, reachable through that queue pair, invalidated by OpLocalInv and the peer
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

// An MW is a memory window: a key of its own for a part of a region, which costs a
// work request to give out and one to take back.
//
// A window's key has eight bits that change with every bind. The library expects
// each bind to name the key of the last one, and for type 2 leaves remembering it to
// the program; devices fail the bind of one that forgets. Here posting the bind
// remembers. So after [QP.PostSend] RKey is the new key, and before it NextRKey
// is. If the completion of a bind says that it failed, nothing was bound and the
// window has the key of before: Close it, or tell it that key with SetRKey.
//
// The device rxe checks the peer's rights against the window, and addresses
// against the whole region under it only.
type MW struct {
	life
	raw *cgo.MW
	ctx *Context
	typ MWType

	keyMu sync.Mutex // the key in raw
}

// AllocMW makes a window, not bound to anything.
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

// Raw is the window as package cgo takes it, valid until Close. Who posts binds
// with it calls SetRKey after each.
func (mw *MW) Raw() *cgo.MW { return mw.raw }

// Type is the type that the window was allocated with.
func (mw *MW) Type() MWType { return mw.typ }

// RKey is the key for the peer: of the last bind that was posted. It is 0 when the
// window is closed.
func (mw *MW) RKey() uint32 {
	if mw.enter("") != nil {
		return 0
	}
	defer mw.leave()
	return mw.key()
}

// NextRKey is the key that the next bind gives the window.
//
// Implements: uint32_t ibv_inc_rkey(uint32_t rkey)
func (mw *MW) NextRKey() uint32 { return cgo.IncRKey(mw.RKey()) }

// SetRKey notes the key that the window has: after a bind that was posted by other
// means than [QP.PostSend], or the key of before after a bind that failed.
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

// Close destroys the window and with it the peer's access.
//
// Implements: int ibv_dealloc_mw(struct ibv_mw *mw)
func (mw *MW) Close() error {
	return mw.end("ibv_dealloc_mw", func() syscall.Errno { return mw.ctx.lib.DeallocMW(mw.raw) })
}
