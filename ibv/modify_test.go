//go:build linux && cgo

package ibv

import (
	"errors"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// TestJudge checks masks against the table of ibv_modify_qp(3) for IBV_QPT_RC.
func TestJudge(t *testing.T) {
	const (
		toInit = AttrState | AttrPkeyIndex | AttrPort | AttrAccessFlags
		toRTR  = AttrState | AttrAV | AttrPathMTU | AttrDestQPN | AttrRQPSN | AttrMaxDestRdAtomic | AttrMinRNRTimer
		toRTS  = AttrState | AttrSQPSN | AttrMaxQPRdAtomic | AttrRetryCnt | AttrRNRRetry | AttrTimeout
	)
	for _, tt := range []struct {
		from, to         QPState
		mask             AttrMask
		missing, invalid AttrMask
		possible         bool
	}{
		{QPSReset, QPSInit, toInit, 0, 0, true},
		{QPSReset, QPSInit, AttrState, toInit &^ AttrState, 0, true},
		{QPSReset, QPSInit, toInit | AttrAV, 0, AttrAV, true},
		{QPSReset, QPSRTR, toRTR, 0, 0, false},
		{QPSReset, QPSReset, AttrState, 0, 0, true},
		{QPSReset, QPSErr, AttrState, 0, 0, true},
		{QPSInit, QPSInit, AttrAccessFlags, 0, 0, true},
		{QPSInit, QPSRTR, toRTR, 0, 0, true},
		{QPSInit, QPSRTR, toRTR | AttrPkeyIndex | AttrAccessFlags | AttrAltPath, 0, 0, true},
		{QPSInit, QPSRTR, toRTR&^AttrRQPSN | AttrSQPSN | AttrTimeout, AttrRQPSN, AttrSQPSN | AttrTimeout, true},
		{QPSInit, QPSRTS, toRTS, 0, 0, false},
		{QPSRTR, QPSRTS, toRTS, 0, 0, true},
		{QPSRTR, QPSRTS, toRTS | AttrMinRNRTimer | AttrAccessFlags | AttrCurState, 0, 0, true},
		{QPSRTR, QPSRTS, AttrState | AttrQkey, toRTS &^ AttrState, AttrQkey, true},
		{QPSRTS, QPSRTS, AttrMinRNRTimer, 0, 0, true},
		{QPSRTS, QPSRTS, AttrTimeout, 0, AttrTimeout, true},
		{QPSRTS, QPSSQD, AttrState | AttrEnSQDAsyncNotify, 0, 0, true},
		{QPSSQD, QPSSQD, AttrTimeout | AttrAV, 0, 0, true},
		{QPSSQD, QPSRTS, AttrState, 0, 0, true},
		{QPSRTS, QPSErr, AttrState, 0, 0, true},
		{QPSErr, QPSReset, AttrState, 0, 0, true},
		{QPSErr, QPSRTS, toRTS, 0, 0, false},
		{QPSErr, QPSErr, AttrState | AttrPort, 0, AttrPort, true},
	} {
		missing, invalid, possible := judge(QPTypeRC, tt.from, tt.to, tt.mask)
		if missing != tt.missing || invalid != tt.invalid || possible != tt.possible {
			t.Errorf("%v to %v with %v: missing %v, invalid %v, possible %v", tt.from, tt.to, tt.mask, missing, invalid, possible)
		}
	}
}

func TestModifyErrorString(t *testing.T) {
	for _, tt := range []struct {
		transport Transport
		to        QPState
		mask      AttrMask
		want      string
	}{
		{
			TransportIB, QPSInit, AttrState | AttrPkeyIndex | AttrAccessFlags | AttrAV | AttrSQPSN,
			"ibv: ibv_modify_qp on rxe0: IBV_QPS_RESET to IBV_QPS_INIT: invalid argument: missing IBV_QP_PORT; not allowed IBV_QP_AV|IBV_QP_SQ_PSN",
		},
		{TransportIB, QPSRTS, AttrState, "ibv: ibv_modify_qp on rxe0: IBV_QPS_RESET to IBV_QPS_RTS: invalid argument: there is no such change of state"},
		{
			TransportIB, QPSInit, AttrState | AttrPkeyIndex | AttrAccessFlags | AttrPort,
			"ibv: ibv_modify_qp on rxe0: IBV_QPS_RESET to IBV_QPS_INIT: invalid argument: the mask is right, so a value in it is not",
		},
		{
			TransportIWARP, QPSInit, AttrState,
			"ibv: ibv_modify_qp on rxe0: IBV_QPS_RESET to IBV_QPS_INIT: invalid argument: the rules of which attributes go with which state are the device's own",
		},
	} {
		err := modifyError("rxe0", tt.transport, QPTypeRC, QPSReset, tt.to, tt.mask, syscall.EINVAL)
		if err.Error() != tt.want || !errors.Is(err, syscall.EINVAL) {
			t.Errorf("got  %v\nwant %s", err, tt.want)
		}
	}
}

// TestModifyRDMA: the device and our table agree about every single bit.
func TestModifyRDMA(t *testing.T) {
	onDevices(t, []string{"rxe"}, func(t *testing.T, c *Context) {
		pd := must[*PD](t)(c.AllocPD())
		cq := must[*CQ](t)(c.CreateCQ(16, nil, 0))
		typ := QPTypeRC
		newQP := func() *QP {
			qp, err := pd.CreateQP(QPInitAttr{Type: typ, SendCQ: cq, RecvCQ: cq, Cap: QPCap{MaxSendWR: 4, MaxRecvWR: 4, MaxSendSGE: 1, MaxRecvSGE: 1}})
			if err != nil {
				t.Fatal(err)
			}
			return qp
		}
		attr := QPAttr{State: QPSInit, PortNum: 1}
		toInit := AttrState | AttrPkeyIndex | AttrPort | AttrAccessFlags
		for i := range 3 * 20 {
			bit := AttrCurState << (i / 3) // up to AttrDestQPN
			typ, toInit = QPTypeRC+QPType(i%3), AttrState|AttrPkeyIndex|AttrPort|AttrAccessFlags
			if typ == QPTypeUD {
				toInit ^= AttrAccessFlags | AttrQkey
			}
			qp := newQP()
			err := qp.Modify(attr, toInit^bit)
			var e *ModifyError
			switch {
			case !errors.As(err, &e) || !errors.Is(err, syscall.EINVAL):
				t.Errorf("%v: %v", toInit^bit, err)
			case e.From != QPSReset || e.To != QPSInit || e.Mask != toInit^bit:
				t.Errorf("%v: %+v", toInit^bit, e)
			case bit == AttrCurState: // the state is thought to be what it is, but not from this state
			case toInit&bit != 0 && (e.Missing != bit || e.Invalid != 0), toInit&bit == 0 && (e.Missing != 0 || e.Invalid != bit):
				t.Errorf("%v: %v", toInit^bit, err)
			}
			if err := qp.Modify(attr, toInit); err != nil {
				t.Errorf("after a refused step: %v", err)
			}
			if err := qp.Close(); err != nil {
				t.Error(err)
			}
		}

		typ, toInit = QPTypeRC, AttrState|AttrPkeyIndex|AttrPort|AttrAccessFlags
		qp := newQP()
		closing(t, qp)
		var e *ModifyError
		if err := qp.Modify(QPAttr{State: QPSInit, PortNum: 77}, toInit); !errors.As(err, &e) || e.Missing != 0 || e.Invalid != 0 {
			t.Errorf("port 77: %v", err)
		}
		if err := qp.Modify(QPAttr{State: QPSRTS}, AttrState); !errors.As(err, &e) || !strings.Contains(err.Error(), "no such change") {
			t.Errorf("to RTS at once: %v", err)
		}
	})
}

// TestQueryQPRDMA: what was set can be asked for.
func TestQueryQPRDMA(t *testing.T) {
	onDevices(t, []string{"rxe"}, func(t *testing.T, c *Context) {
		p := newPair(t, c, nil)
		a, err := p.a.qp.Query(AttrState | AttrAV | AttrPathMTU | AttrTimeout | AttrRetryCnt | AttrRNRRetry | AttrMinRNRTimer |
			AttrDestQPN | AttrMaxQPRdAtomic | AttrMaxDestRdAtomic | AttrAccessFlags | AttrPort | AttrCap)
		if err != nil {
			t.Fatal(err)
		}
		gids, err := c.GIDTable()
		if err != nil {
			t.Fatal(err)
		}
		if a.State != QPSRTS || a.DestQPNum != p.b.qp.Num() || a.Timeout != 14 || a.RetryCnt != 7 || a.RNRRetry != 7 || a.MinRNRTimer != 12 ||
			a.MaxRdAtomic != 16 || a.MaxDestRdAtomic != 16 || a.PortNum != 1 || a.Access&AccessRemoteAtomic == 0 || a.Cap.MaxSendWR < 256 {
			t.Errorf("%+v", a)
		}
		if !a.AH.IsGlobal || a.AH.GRH.HopLimit != 64 || !slices.ContainsFunc(gids, func(g GIDEntry) bool {
			return g.GID == a.AH.GRH.DGID && g.Index == int(a.AH.GRH.SGIDIndex)
		}) {
			t.Errorf("%+v", a.AH)
		}
	})
}
