//go:build linux && cgo

package ibv

import (
	"cmp"
	"encoding/hex"
	"fmt"
	"slices"
	"syscall"
)

// A QPAddr is what the peer of a queue pair needs to connect to it without a connection manager. Its text form, that of
// ibv_rc_pingpong(1), is "lid:qpn:psn:gid" in hexadecimal digits. The program exchanges it by any means.
type QPAddr struct {
	LID   uint16 // of the port; InfiniBand only
	QPNum uint32
	PSN   uint32 // of the first packet sent, 24 bits
	GID   GID    // zero without a global route
}

// MarshalText returns the text form of an address, 51 characters.
func (a QPAddr) MarshalText() ([]byte, error) {
	return fmt.Appendf(nil, "%04x:%06x:%06x:%x", a.LID, a.QPNum&0xffffff, a.PSN&0xffffff, a.GID[:]), nil
}

// UnmarshalText parses the output of MarshalText, and nothing else.
func (a *QPAddr) UnmarshalText(text []byte) error {
	const length = len("0000:000000:000000:") + 2*len(a.GID)
	var b QPAddr
	if len(text) != length {
		return fmt.Errorf("ibv: the address of a queue pair has %d characters, not %d", length, len(text))
	}
	if n, err := fmt.Sscanf(string(text[:19]), "%04x:%06x:%06x:", &b.LID, &b.QPNum, &b.PSN); n != 3 || err != nil {
		return fmt.Errorf("ibv: %q is not the address of a queue pair", text)
	}
	if _, err := hex.Decode(b.GID[:], text[19:]); err != nil {
		return fmt.Errorf("ibv: %q is not the address of a queue pair", text)
	}
	*a = b
	return nil
}

// A PathAttr describes the path to a peer and the capabilities of the queue pair. The zero PathAttr is the first port
// with its best address, the port's MTU, and no remote access.
type PathAttr struct {
	Port     uint8 // 1 is the first
	GIDIndex *int  // nil: on Ethernet a RoCE v2 address, IPv4 if available; otherwise none
	MTU      MTU   // zero: the port's MTU; the smaller value of both ends applies
	SL       uint8 // service level
	HopLimit uint8 // zero: 64
	Access   Access
	Depth    uint8 // concurrent Reads and atomics in each direction; zero: 1
}

// source returns the port and the row of its GID table that packets leave from. A row of -1 means none.
func (p *PathAttr) source(c *Context) (port PortAttr, num uint8, row int, gid GID, err error) {
	num = cmp.Or(p.Port, 1)
	if port, err = c.QueryPort(num); err != nil {
		return port, num, 0, gid, err
	}
	rows, err := c.GIDTable()
	if err != nil {
		return port, num, 0, gid, err
	}
	rows = slices.DeleteFunc(rows, func(g GIDEntry) bool { return g.Port != num })
	best := -1
	for i, g := range rows {
		switch {
		case p.GIDIndex != nil && g.Index == *p.GIDIndex:
			return port, num, g.Index, g.GID, nil
		case p.GIDIndex == nil && g.Type == GIDTypeRoCEv2 && (best < 0 || g.GID.Addr().Is4() && !rows[best].GID.Addr().Is4()):
			best = i
		}
	}
	switch {
	case best >= 0:
		return port, num, rows[best].Index, rows[best].GID, nil
	case p.GIDIndex != nil || port.LinkLayer == LinkLayerEthernet:
		return port, num, 0, gid, &Error{Call: "ibv_query_gid_table", Device: c.device, Err: syscall.EADDRNOTAVAIL}
	}
	return port, num, -1, gid, nil
}

// to returns the address vector for packets to a peer.
func (p *PathAttr) to(c *Context, peer QPAddr) (AHAttr, error) {
	_, num, row, _, err := p.source(c)
	ah := AHAttr{DLID: peer.LID, SL: p.SL, PortNum: num}
	if row >= 0 && peer.GID != (GID{}) {
		ah.IsGlobal, ah.GRH = true, GlobalRoute{DGID: peer.GID, SGIDIndex: uint8(row), HopLimit: cmp.Or(p.HopLimit, 64)}
	}
	return ah, err
}

// Addr returns the address of the queue pair for its peer. psn is the first packet sequence number, preferably random.
func (qp *QP) Addr(p PathAttr, psn uint32) (QPAddr, error) {
	port, _, _, gid, err := p.source(qp.ctx)
	return QPAddr{LID: port.LID, QPNum: qp.num, PSN: psn & 0xffffff, GID: gid}, err
}

// ConnectTo moves a connected queue pair from QPSReset to QPSRTS. Each end passes its own address and the peer's, both
// from [QP.Addr]. Receives may be posted before; the peer must be connected before it is sent anything.
func (qp *QP) ConnectTo(local, peer QPAddr, p PathAttr) error {
	port, num, _, _, err := p.source(qp.ctx)
	if err != nil {
		return err
	}
	ah, err := p.to(qp.ctx, peer)
	if err != nil {
		return err
	}
	depth := cmp.Or(p.Depth, 1)
	steps := []step{
		{QPAttr{State: QPSInit, PortNum: num, Access: p.Access}, AttrState | AttrPkeyIndex | AttrPort | AttrAccessFlags},
		{
			QPAttr{State: QPSRTR, PathMTU: cmp.Or(p.MTU, port.ActiveMTU), DestQPNum: peer.QPNum, RQPSN: peer.PSN, MaxDestRdAtomic: depth, MinRNRTimer: 12, AH: ah},
			AttrState | AttrAV | AttrPathMTU | AttrDestQPN | AttrRQPSN | AttrMaxDestRdAtomic | AttrMinRNRTimer,
		},
		{
			QPAttr{State: QPSRTS, Timeout: 14, RetryCnt: 7, RNRRetry: 7, SQPSN: local.PSN, MaxRdAtomic: depth},
			AttrState | AttrTimeout | AttrRetryCnt | AttrRNRRetry | AttrSQPSN | AttrMaxQPRdAtomic,
		},
	}
	if qp.typ == QPTypeUC { // UC has no acknowledgements and no Reads
		for i := range steps {
			steps[i].mask &^= AttrMaxDestRdAtomic | AttrMinRNRTimer | AttrTimeout | AttrRetryCnt | AttrRNRRetry | AttrMaxQPRdAtomic
		}
	}
	return qp.take(steps)
}

// StartDatagrams moves a datagram queue pair from QPSReset to QPSRTS. It receives datagrams that have qkey.
func (qp *QP) StartDatagrams(port uint8, qkey, psn uint32) error {
	return qp.take([]step{
		{QPAttr{State: QPSInit, PortNum: cmp.Or(port, 1), Qkey: qkey}, AttrState | AttrPkeyIndex | AttrPort | AttrQkey},
		{QPAttr{State: QPSRTR}, AttrState},
		{QPAttr{State: QPSRTS, SQPSN: psn & 0xffffff}, AttrState | AttrSQPSN},
	})
}

// A step is a transition of a queue pair.
type step struct {
	attr QPAttr
	mask AttrMask
}

func (qp *QP) take(steps []step) error {
	for _, s := range steps {
		if err := qp.Modify(s.attr, s.mask); err != nil {
			return err
		}
	}
	return nil
}

// CreateAHTo creates an address handle for datagrams to the peer's port. The queue pair number and the PSN of peer do
// not matter.
func (pd *PD) CreateAHTo(peer QPAddr, p PathAttr) (*AH, error) {
	attr, err := p.to(pd.ctx, peer)
	if err != nil {
		return nil, err
	}
	return pd.CreateAH(attr)
}
