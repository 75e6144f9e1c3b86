//go:build linux && cgo

// Chat sends each line of its input to a multicast group, and prints the lines of all members, itself included.
//
//	chat -addr 10.9.9.1 -group 239.7.7.7
package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net/netip"
	"os"

	"github.com/rpcrdma/rpcrdma/ibv"
	"github.com/rpcrdma/rpcrdma/rdmacm"
)

func main() {
	addr := flag.String("addr", "", "own `address`, of an RDMA device")
	group := flag.String("group", "239.7.7.7", "`address` of the group")
	flag.Parse()
	ip, err := netip.ParseAddr(*addr)
	if err != nil {
		log.Fatal(err)
	}
	to, err := netip.ParseAddr(*group)
	if err != nil {
		log.Fatal(err)
	}
	m, err := join(context.Background(), ip, to)
	if err != nil {
		log.Fatal(err)
	}
	defer m.Close()
	go m.listen(context.Background(), os.Stdout)
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		if err := m.say(in.Bytes()); err != nil {
			log.Fatal(err)
		}
	}
}

// A datagram holds one line. A receive buffer also has room for the global route header.
const (
	lineSize = 1024
	slotSize = ibv.GRHSize + lineSize
	slots    = 16
)

// member is a member of the group. It has a buffer for each receive request, by request ID, and takes one from a pool
// for each line that it sends.
type member struct {
	qp      *ibv.QP
	sends   *ibv.CQ
	recvs   *ibv.CQ
	arrival *ibv.CompChannel
	pool    *ibv.Pool
	bufs    [slots]ibv.Buffer
	all     ibv.Destination
	closers []func() error
}

// opened registers o to be closed by Close.
func opened[T interface{ Close() error }](m *member, o T, err error) (T, error) {
	if err == nil {
		m.closers = append(m.closers, o.Close)
	}
	return o, err
}

// Close leaves the group.
func (m *member) Close() (err error) {
	for i := len(m.closers) - 1; i >= 0; i-- {
		err = errors.Join(err, m.closers[i]())
	}
	return err
}

func join(ctx context.Context, addr, group netip.Addr) (m *member, err error) {
	m = new(member)
	defer func() {
		if err != nil {
			m.Close()
		}
	}()
	channel, err := rdmacm.NewEventChannel()
	if channel, err = opened(m, channel, err); err != nil {
		return m, err
	}
	id, err := channel.NewIDOf(rdmacm.PortSpaceUDP)
	if id, err = opened(m, id, err); err != nil {
		return m, err
	}
	if err := id.BindAddr(netip.AddrPortFrom(addr, 0)); err != nil {
		return m, err
	}
	dev, _ := opened(m, id.Verbs(), nil)
	pd, err := dev.AllocPD()
	if pd, err = opened(m, pd, err); err != nil {
		return m, err
	}
	m.arrival, err = dev.CreateCompChannel()
	if m.arrival, err = opened(m, m.arrival, err); err != nil {
		return m, err
	}
	m.recvs, err = dev.CreateCQ(slots, m.arrival, 0)
	if m.recvs, err = opened(m, m.recvs, err); err != nil {
		return m, err
	}
	m.sends, err = dev.CreateCQ(1, nil, 0)
	if m.sends, err = opened(m, m.sends, err); err != nil {
		return m, err
	}
	m.pool, err = pd.NewPool(ibv.PoolAttr{Access: ibv.AccessLocalWrite, Limit: 1 << 20})
	if m.pool, err = opened(m, m.pool, err); err != nil {
		return m, err
	}
	for i := range m.bufs {
		if m.bufs[i], err = m.pool.Get(slotSize); err != nil {
			return m, err
		}
		m.closers = append(m.closers, func() error { return m.pool.Put(m.bufs[i]) })
	}
	m.qp, err = id.CreateQP(pd, ibv.QPInitAttr{
		Type: ibv.QPTypeUD, SendCQ: m.sends, RecvCQ: m.recvs, Cap: ibv.QPCap{MaxSendWR: 1, MaxRecvWR: slots, MaxSendSGE: 1, MaxRecvSGE: 1},
	})
	if m.qp, err = opened(m, m.qp, err); err != nil {
		return m, err
	}
	for i := range m.bufs {
		if err := m.receive(uint64(i)); err != nil {
			return m, err
		}
	}
	to, err := id.JoinMulticast(ctx, group, rdmacm.JoinFull)
	if err != nil {
		return m, err
	}
	ah, err := pd.CreateAH(to.AH)
	if ah, err = opened(m, ah, err); err != nil {
		return m, err
	}
	m.all = ibv.Destination{AH: ah, QPNum: to.QPNum, Qkey: to.Qkey}
	return m, nil
}

func (m *member) receive(slot uint64) error {
	return m.qp.PostRecv([]ibv.RecvWR{{ID: slot, SGL: []ibv.SGE{m.bufs[slot].SGE(0, slotSize)}}})
}

// say sends a line to all members and waits until it has been sent. Datagrams are not acknowledged.
func (m *member) say(line []byte) error {
	buf, err := m.pool.Get(lineSize)
	if err != nil {
		return err
	}
	defer m.pool.Put(buf) // the request has completed, or was never posted
	n := copy(buf.Bytes(), line)
	err = m.qp.PostSend([]ibv.SendWR{{Opcode: ibv.OpSend, Flags: ibv.SendSignaled, SGL: []ibv.SGE{buf.SGE(0, uint32(n))}, To: &m.all}})
	for err == nil {
		var wcs [1]ibv.WC
		var done int
		if done, err = m.sends.Poll(wcs[:]); done == 1 {
			return wcs[0].Err()
		}
	}
	return err
}

// listen prints the lines that arrive, with the sender's number, until ctx ends or the member is closed.
func (m *member) listen(ctx context.Context, out io.Writer) error {
	for {
		if err := m.recvs.Arm(false); err != nil {
			return err
		}
		for {
			var wcs [1]ibv.WC
			n, err := m.recvs.Poll(wcs[:])
			if err != nil {
				return err
			}
			if n == 0 {
				break
			}
			wc := &wcs[0]
			if err := wc.Err(); err != nil {
				return err
			}
			line := m.bufs[wc.ID].Bytes()[ibv.GRHSize:wc.ByteLen]
			fmt.Fprintf(out, "%d: %s\n", wc.SrcQP, line)
			if err := m.receive(wc.ID); err != nil {
				return err
			}
		}
		if _, err := m.arrival.GetEvent(ctx); err != nil {
			return err
		}
	}
}
