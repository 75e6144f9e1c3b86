//go:build linux && cgo

package cgo

import (
	"slices"
	"testing"
	"unsafe"
)

// The order is that of the table in progress.c.
func TestLayout(t *testing.T) {
	var (
		s SendWR
		r RecvWR
		g SGE
		w WC
		o Outcome
		c CMEvent
		a AsyncEvent
		e WCEx
	)
	goLayout := []uintptr{
		unsafe.Sizeof(s), unsafe.Offsetof(s.ID), unsafe.Offsetof(s.RemoteAddr), unsafe.Offsetof(s.Arg1),
		unsafe.Offsetof(s.Arg2), unsafe.Offsetof(s.MW), unsafe.Offsetof(s.MR), unsafe.Offsetof(s.Opcode),
		unsafe.Offsetof(s.Flags), unsafe.Offsetof(s.RKey), unsafe.Offsetof(s.Imm), unsafe.Offsetof(s.FirstSGE),
		unsafe.Offsetof(s.NumSGE), unsafe.Offsetof(s.BindAccess), unsafe.Offsetof(s.SRQNum),

		unsafe.Sizeof(r), unsafe.Offsetof(r.ID), unsafe.Offsetof(r.FirstSGE), unsafe.Offsetof(r.NumSGE),

		unsafe.Sizeof(g), unsafe.Offsetof(g.Addr), unsafe.Offsetof(g.Length), unsafe.Offsetof(g.LKey),

		unsafe.Sizeof(w), unsafe.Offsetof(w.ID), unsafe.Offsetof(w.Status), unsafe.Offsetof(w.Opcode),
		unsafe.Offsetof(w.VendorErr), unsafe.Offsetof(w.ByteLen), unsafe.Offsetof(w.Imm), unsafe.Offsetof(w.QPNum),
		unsafe.Offsetof(w.SrcQP), unsafe.Offsetof(w.Flags), unsafe.Offsetof(w.PkeyIndex), unsafe.Offsetof(w.SLID),
		unsafe.Offsetof(w.SL), unsafe.Offsetof(w.DLIDPath),

		unsafe.Sizeof(o), unsafe.Offsetof(o.Recvs), unsafe.Offsetof(o.Sends), unsafe.Offsetof(o.RecvErr),
		unsafe.Offsetof(o.SendErr), unsafe.Offsetof(o.PollErr), unsafe.Offsetof(o.WCs), unsafe.Offsetof(o.Events),
		unsafe.Offsetof(o.Armed),

		unsafe.Sizeof(c), unsafe.Offsetof(c.ID), unsafe.Offsetof(c.Context), unsafe.Offsetof(c.Type),
		unsafe.Offsetof(c.Status), unsafe.Offsetof(c.QPNum), unsafe.Offsetof(c.ResponderResources),
		unsafe.Offsetof(c.InitiatorDepth), unsafe.Offsetof(c.PrivateDataLen), unsafe.Offsetof(c.HasVerbs),
		unsafe.Offsetof(c.PrivateData), unsafe.Offsetof(c.Qkey), unsafe.Offsetof(c.AH), unsafe.Offsetof(c.AH) + unsafe.Offsetof(c.AH.FlowLabel),
		unsafe.Offsetof(c.AH) + unsafe.Offsetof(c.AH.SGIDIndex), unsafe.Offsetof(c.AH) + unsafe.Offsetof(c.AH.DLID),
		unsafe.Offsetof(c.AH) + unsafe.Offsetof(c.AH.SL), unsafe.Offsetof(c.AH) + unsafe.Offsetof(c.AH.PortNum),

		unsafe.Sizeof(a), unsafe.Offsetof(a.Element), unsafe.Offsetof(a.Type), unsafe.Offsetof(a.Type) + 4,

		unsafe.Sizeof(e), unsafe.Offsetof(e.WC), unsafe.Offsetof(e.Timestamp), unsafe.Offsetof(e.WallClock), unsafe.Offsetof(e.Tag),
		unsafe.Offsetof(e.TagPriv), unsafe.Offsetof(e.FlowTag), unsafe.Offsetof(e.CVLAN), unsafe.Offsetof(e.CVLAN) + 2,
	}
	cLayout := make([]uintptr, 0, len(goLayout))
	for _, v := range layout() {
		cLayout = append(cLayout, uintptr(v))
	}
	if !slices.Equal(goLayout, cLayout) {
		t.Errorf("layouts differ:\n Go %v\n C  %v", goLayout, cLayout)
	}
}
