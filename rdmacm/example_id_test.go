//go:build linux && cgo

package rdmacm_test

import (
	"context"
	"fmt"
	"log"
	"net/netip"
	"time"

	"github.com/rpcrdma/rpcrdma/ibv"
	"github.com/rpcrdma/rpcrdma/rdmacm"
)

// The connection manager alone: which device has a route to an address.
func ExampleID() {
	channel, err := rdmacm.NewEventChannel()
	if err != nil {
		log.Fatal(err)
	}
	defer channel.Close()
	id, err := channel.NewID()
	if err != nil {
		log.Fatal(err)
	}
	defer id.Close()
	ctx, to := context.Background(), netip.MustParseAddrPort("10.9.9.1:20049")
	if err := id.ResolveAddr(ctx, netip.AddrPort{}, to, time.Second); err != nil {
		log.Fatal(err)
	}
	if err := id.ResolveRoute(ctx, time.Second); err != nil {
		log.Fatal(err)
	}
	fmt.Println(id.Verbs().Info().Name, "port", id.Port(), "from", id.LocalAddr())
}

// A chat by multicast: what a member of the group sends all members receive.
func ExampleID_JoinMulticast() {
	channel, err := rdmacm.NewEventChannel()
	if err != nil {
		log.Fatal(err)
	}
	defer channel.Close()
	id, err := channel.NewIDOf(rdmacm.PortSpaceUDP)
	if err != nil {
		log.Fatal(err)
	}
	defer id.Close()
	if err := id.BindAddr(netip.MustParseAddrPort("10.9.9.1:0")); err != nil {
		log.Fatal(err)
	}
	pd, err := id.Verbs().AllocPD()
	if err != nil {
		log.Fatal(err)
	}
	defer pd.Close()
	cq, err := pd.Context().CreateCQ(16, nil, 0)
	if err != nil {
		log.Fatal(err)
	}
	defer cq.Close()
	mr, err := pd.RegMR(make([]byte, 2048), ibv.AccessLocalWrite)
	if err != nil {
		log.Fatal(err)
	}
	defer mr.Close()
	qp, err := id.CreateQP(pd, ibv.QPInitAttr{
		Type: ibv.QPTypeUD, SendCQ: cq, RecvCQ: cq, Cap: ibv.QPCap{MaxSendWR: 8, MaxRecvWR: 8, MaxSendSGE: 1, MaxRecvSGE: 1},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer qp.Close()
	all, err := id.JoinMulticast(context.Background(), netip.MustParseAddr("239.7.7.7"), rdmacm.JoinFull)
	if err != nil {
		log.Fatal(err)
	}
	ah, err := pd.CreateAH(all.AH)
	if err != nil {
		log.Fatal(err)
	}
	defer ah.Close()

	// The first 40 bytes of a received datagram are its global route.
	if err := qp.PostRecv([]ibv.RecvWR{{ID: 1, SGL: []ibv.SGE{mr.SGE(1024, 1024)}}}); err != nil {
		log.Fatal(err)
	}
	n := copy(mr.Bytes(), "hello, all")
	if err := qp.PostSend([]ibv.SendWR{{
		ID: 2, Opcode: ibv.OpSend, Flags: ibv.SendSignaled, SGL: []ibv.SGE{mr.SGE(0, uint32(n))},
		To: &ibv.Destination{AH: ah, QPNum: all.QPNum, Qkey: all.Qkey},
	}}); err != nil {
		log.Fatal(err)
	}
	for heard := false; !heard; {
		var wcs [4]ibv.WC
		n, err := cq.Poll(wcs[:])
		if err != nil {
			log.Fatal(err)
		}
		for _, wc := range wcs[:n] {
			if err := wc.Err(); err != nil {
				log.Fatal(err)
			}
			if wc.ID == 1 {
				fmt.Printf("%d: %s\n", wc.SrcQP, mr.Bytes()[1024+ibv.GRHSize:1024+wc.ByteLen])
				heard = true
			}
		}
	}
}
