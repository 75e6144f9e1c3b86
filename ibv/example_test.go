//go:build linux && cgo

package ibv_test

import (
	"context"
	"fmt"
	"log"

	"github.com/rpcrdma/rpcrdma/ibv"
)

// Lists the devices of this machine with their addresses.
func Example() {
	devices, err := ibv.Devices()
	if err != nil {
		log.Fatal(err)
	}
	for _, d := range devices {
		c, err := ibv.Open(d.Name)
		if err != nil {
			log.Fatal(err)
		}
		defer c.Close()
		table, err := c.GIDTable()
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(d.Name, d.Transport)
		for _, e := range table {
			fmt.Println(" ", e.Port, e.Index, e.Type, e.GID)
		}
	}
}

// Waits for completions: arm, poll until nothing comes, and only then wait.
func ExampleCompChannel_GetEvent() {
	consume := func(ctx context.Context, ch *ibv.CompChannel, cq *ibv.CQ, handle func(*ibv.WC)) error {
		var wcs [16]ibv.WC
		for {
			if err := cq.Arm(false); err != nil {
				return err
			}
			for {
				n, err := cq.Poll(wcs[:])
				if err != nil {
					return err
				}
				if n == 0 {
					break
				}
				for i := range wcs[:n] {
					handle(&wcs[i])
				}
			}
			if _, err := ch.GetEvent(ctx); err != nil {
				return err
			}
		}
	}
	_ = consume
}

// Gives a peer access to a buffer for as long as one request takes: bind a window,
// tell the peer its key, and have the peer take it back with its answer.
func ExampleMW() {
	lend := func(qp *ibv.QP, mw *ibv.MW, mr *ibv.MR, buf []byte, request func(rkey uint32) ibv.SGE) error {
		sgl := []ibv.SGE{request(mw.NextRKey())}
		return qp.PostSend([]ibv.SendWR{
			{Opcode: ibv.OpBindMW, Bind: &ibv.MWBind{MW: mw, MR: mr, Buf: buf, Access: ibv.AccessRemoteWrite}},
			{Opcode: ibv.OpSend, Flags: ibv.SendSignaled, SGL: sgl},
		})
	}
	_ = lend
}

// Sends a message from a buffer of a pool, which is free for another one when the Send is complete.
func ExamplePool() {
	send := func(ctx context.Context, pool *ibv.Pool, qp *ibv.QP, message []byte, completed func() error) error {
		buf, err := pool.Wait(ctx, len(message))
		if err != nil {
			return err
		}
		defer pool.Put(buf)
		copy(buf.Bytes(), message)
		wr := ibv.SendWR{Opcode: ibv.OpSend, Flags: ibv.SendSignaled, SGL: []ibv.SGE{buf.SGE(0, uint32(len(message)))}}
		if err := qp.PostSend([]ibv.SendWR{wr}); err != nil {
			return err
		}
		return completed()
	}
	_ = send
}
