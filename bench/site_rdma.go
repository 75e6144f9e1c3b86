//go:build linux && cgo

package bench

import (
	"errors"
	"net/netip"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/ibv"
	"github.com/rpcrdma/rpcrdma/rdmacm"
)

// deviceCounters returns the counters of a connection on an RDMA device.
func deviceCounters(c fabric.Conn) Counters {
	dev, ok := c.(*rdmacm.Conn)
	if !ok {
		return Counters{}
	}
	s := dev.Stats()
	return Counters{Doorbells: s.SendCalls, CgoCalls: s.SendCalls + s.RecvCalls + s.Calls, Wakes: s.Events}
}

// extendedQueues does what the C program extended does, with package ibv: it posts a list of Sends on an extended queue
// pair to another, and polls their completions on extended queues.
func extendedQueues(host string, list int) (*Instance, error) {
	var closers []func() error
	in := &Instance{Close: func() (err error) {
		for i := len(closers) - 1; i >= 0; i-- {
			err = errors.Join(err, closers[i]())
		}
		return err
	}}
	if err := in.extendedQueues(host, list, func(f func() error) { closers = append(closers, f) }); err != nil {
		return nil, errors.Join(err, in.Close())
	}
	return in, nil
}

func (in *Instance) extendedQueues(host string, list int, closing func(func() error)) error {
	const size, maxList = 64, 64
	dev, err := deviceOf(host)
	if err != nil {
		return err
	}
	closing(dev.Close)
	pd, err := dev.AllocPD()
	if err != nil {
		return err
	}
	closing(pd.Close)
	mr, err := pd.RegMR(make([]byte, 2*size), ibv.AccessLocalWrite)
	if err != nil {
		return err
	}
	closing(mr.Close)
	var cqs [2]*ibv.CQ
	var qps [2]*ibv.QP
	var addrs [2]ibv.QPAddr
	for i := range qps {
		cqs[i], err = dev.CreateCQEx(ibv.CQInitAttr{Entries: 2 * maxList, Fields: ibv.WCStandardFields})
		if err != nil {
			return err
		}
		closing(cqs[i].Close)
		qps[i], err = pd.CreateQP(ibv.QPInitAttr{
			SendCQ: cqs[i], RecvCQ: cqs[i], SendOps: ibv.SendOpsOf(ibv.OpSend),
			Cap: ibv.QPCap{MaxSendWR: 2 * maxList, MaxRecvWR: 2 * maxList, MaxSendSGE: 1, MaxRecvSGE: 1}, // rxe frees entries late
		})
		if err != nil {
			return err
		}
		closing(qps[i].Close)
		if addrs[i], err = qps[i].Addr(ibv.PathAttr{}, 100); err != nil {
			return err
		}
	}
	for i := range qps {
		if err := qps[i].ConnectTo(addrs[i], addrs[1-i], ibv.PathAttr{}); err != nil {
			return err
		}
	}
	sends, recvs := make([]ibv.SendWR, list), make([]ibv.RecvWR, list)
	for i := range list {
		sends[i] = ibv.SendWR{ID: uint64(i), Opcode: ibv.OpSend, Flags: ibv.SendSignaled, SGL: []ibv.SGE{mr.SGE(0, size)}}
		recvs[i] = ibv.RecvWR{ID: uint64(i), SGL: []ibv.SGE{mr.SGE(size, size)}}
	}
	wcs := make([]ibv.WCEx, 2*maxList)
	in.Call = func(int) error {
		if err := errors.Join(qps[1].PostRecv(recvs), qps[0].PostSend(sends)); err != nil {
			return err
		}
		for _, cq := range []*ibv.CQ{cqs[1], cqs[0]} {
			for got := 0; got < list; {
				n, err := cq.PollEx(wcs)
				if err != nil {
					return err
				}
				for i := range wcs[:n] {
					if err := wcs[i].Err(); err != nil {
						return err
					}
				}
				got += n
			}
		}
		return nil
	}
	return nil
}

// deviceOf opens the device with an address.
func deviceOf(host string) (*ibv.Context, error) {
	ch, err := rdmacm.NewEventChannel()
	if err != nil {
		return nil, err
	}
	defer ch.Close()
	id, err := ch.NewID()
	if err != nil {
		return nil, err
	}
	defer id.Close()
	addr, err := netip.ParseAddr(host)
	if err != nil {
		return nil, err
	}
	if err := id.BindAddr(netip.AddrPortFrom(addr, 0)); err != nil {
		return nil, err
	}
	return ibv.Open(id.Verbs().Info().Name)
}
