//go:build linux && cgo

package verbs

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"slices"
	"time"

	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/provider"
	"github.com/rpcrdma/rpcrdma/ibv"
	"github.com/rpcrdma/rpcrdma/rdmacm"
)

// end is one side of a test: a queue pair, and memory for one message in each direction. A single goroutine owns it.
type end struct {
	h    hello
	dev  *ibv.Context
	pd   *ibv.PD
	ch   *ibv.CompChannel
	cq   *ibv.CQ
	mr   *ibv.MR
	qp   *ibv.QP
	path ibv.PathAttr
	mem  []byte // Size bytes to send; received messages from inAt on
	inAt int
	addr ibv.QPAddr

	to  *ibv.Destination // for datagrams
	wcs []ibv.WC         // for polling
	wrs []ibv.SendWR     // a list of requests posted together
	sgl [1]ibv.SGE

	silence *time.Timer // ends a client's wait for a message that an unreliable transport has lost

	closers []func() error
}

// batch is how many requests are posted, and completions polled, together.
const batch = 16

const qkey = 0x11111111

// made registers an object for close.
func made[T interface{ Close() error }](e *end, o T, err error) (T, error) {
	if err == nil {
		e.closers = append(e.closers, o.Close)
	}
	return o, err
}

// close destroys the objects, children first.
func (e *end) close() (err error) {
	for _, c := range slices.Backward(e.closers) {
		err = errors.Join(err, c())
	}
	e.closers = nil
	return err
}

// device returns the device for one end: by its name, or by the local address.
func device(ctx context.Context, devices []provider.Device, name string, local net.Addr) (_ *provider.Device, err error) {
	host, _, _ := net.SplitHostPort(local.String())
	if name == "" {
		if name, err = provider.DeviceAt(ctx, net.JoinHostPort(host, "0")); err != nil {
			return nil, fmt.Errorf("the address %s leads to no device, and --device names none: %w", host, err)
		}
	}
	i := slices.IndexFunc(devices, func(d provider.Device) bool { return d.Name == name })
	if i < 0 {
		return nil, fmt.Errorf("there is no device %q: 'rpcrdma devices' lists them", name)
	}
	return &devices[i], devices[i].Err
}

// newEnd creates the objects of an end except the queue pair.
func newEnd(dev *ibv.Context, h hello) (e *end, err error) {
	e = &end{h: h, dev: dev, wcs: make([]ibv.WC, batch), wrs: make([]ibv.SendWR, 0, batch)}
	defer func() {
		if err != nil {
			e.close()
		}
	}()
	if e.pd, err = dev.AllocPD(); err == nil {
		e.closers = append(e.closers, e.pd.Close)
	} else {
		return nil, err
	}
	ch, err := dev.CreateCompChannel()
	if e.ch, err = made(e, ch, err); err != nil {
		return nil, err
	}
	cq, err := dev.CreateCQ(2*(h.Depth+batch), e.ch, 0)
	if e.cq, err = made(e, cq, err); err != nil {
		return nil, err
	}
	e.inAt = (h.Size + 63) &^ 63
	e.mem = make([]byte, e.inAt+h.Size+ibv.GRHSize)
	access := ibv.AccessLocalWrite | ibv.AccessRemoteWrite
	if h.Transport == "rc" {
		access |= ibv.AccessRemoteRead
	}
	if atomic(h.Op) {
		access |= ibv.AccessRemoteAtomic
	}
	e.path = ibv.PathAttr{Access: access &^ ibv.AccessLocalWrite, Depth: 16}
	mr, err := e.pd.RegMR(e.mem, access)
	e.mr, err = made(e, mr, err)
	return e, err
}

// qpAttr returns the attributes of the queue pair.
func (e *end) qpAttr() ibv.QPInitAttr {
	typ := map[string]ibv.QPType{"rc": ibv.QPTypeRC, "uc": ibv.QPTypeUC, "ud": ibv.QPTypeUD}[e.h.Transport]
	n := uint32(e.h.Depth + batch)
	return ibv.QPInitAttr{Type: typ, SendCQ: e.cq, RecvCQ: e.cq, Cap: ibv.QPCap{MaxSendWR: n, MaxRecvWR: n, MaxSendSGE: 1, MaxRecvSGE: 1}}
}

// createQP creates a queue pair that is connected by the addresses that the ends exchange.
func (e *end) createQP() error {
	qp, err := e.pd.CreateQP(e.qpAttr())
	if e.qp, err = made(e, qp, err); err != nil {
		return err
	}
	var psn [4]byte
	rand.Read(psn[:])
	e.addr, err = e.qp.Addr(e.path, binary.BigEndian.Uint32(psn[:]))
	return err
}

// connectTo connects the queue pair to the peer's, or prepares it for sending datagrams to it.
func (e *end) connectTo(text string) error {
	var peer ibv.QPAddr
	if err := peer.UnmarshalText([]byte(text)); err != nil {
		return err
	}
	if e.h.Transport != "ud" {
		return e.qp.ConnectTo(e.addr, peer, e.path)
	}
	if err := e.qp.StartDatagrams(e.path.Port, qkey, e.addr.PSN); err != nil {
		return err
	}
	ah, err := e.pd.CreateAHTo(peer, e.path)
	if ah, err = made(e, ah, err); err != nil {
		return err
	}
	e.to = &ibv.Destination{AH: ah, QPNum: peer.QPNum, Qkey: qkey}
	return nil
}

// param returns the parameters for the connection manager.
func (e *end) param() rdmacm.ConnParam {
	return rdmacm.ConnParam{ResponderResources: int(e.path.Depth), InitiatorDepth: int(e.path.Depth), RetryCount: 7, RNRRetryCount: 7}
}

// own creates the queue pair of an ID. The end closes both.
func (e *end) own(id *rdmacm.ID) (err error) {
	e.closers = append(e.closers, id.Close)
	qp, err := id.CreateQP(e.pd, e.qpAttr())
	if e.qp, err = made(e, qp, err); err == nil {
		e.closers = append(e.closers, func() error { id.Disconnect(); return nil })
	}
	return err
}

// receive posts n receives into the same memory.
func (e *end) receive(n int) error {
	length := e.h.Size
	if e.h.Transport == "ud" {
		length += ibv.GRHSize
	}
	var recvs [batch]ibv.RecvWR
	sgl := []ibv.SGE{e.mr.SGE(uint64(e.inAt), uint32(length))}
	for i := range recvs {
		recvs[i] = ibv.RecvWR{ID: receiveID, SGL: sgl}
	}
	for ; n > 0; n -= batch {
		if err := e.qp.PostRecv(recvs[:min(n, batch)]); err != nil {
			return err
		}
	}
	return nil
}

// Request IDs.
const (
	sendID    = 1
	receiveID = 2
)

// in returns the last received message.
func (e *end) in() []byte {
	at := e.inAt
	if e.h.Transport == "ud" {
		at += ibv.GRHSize
	}
	return e.mem[at:][:e.h.Size]
}

// out returns the memory to send, or for the result of a Read or an atomic operation.
func (e *end) out() []byte { return e.mem[:e.h.Size] }

// await waits for completions, by polling or by events, and returns the available ones.
func (e *end) await(ctx context.Context) ([]ibv.WC, error) {
	for try := 1; ; try++ {
		n, err := e.cq.Poll(e.wcs)
		if err != nil {
			return nil, err
		}
		if n > 0 {
			if e.silence != nil {
				e.silence.Reset(patience)
			}
			for i := range e.wcs[:n] {
				if err := e.wcs[i].Err(); err != nil {
					return nil, err
				}
			}
			return e.wcs[:n], nil
		}
		switch {
		case !e.h.Events:
			if try%1024 == 0 && ctx.Err() != nil {
				return nil, context.Cause(ctx)
			}
		case try%2 == 1: // arm the queue and poll again
			if err := e.cq.Arm(false); err != nil {
				return nil, err
			}
		default:
			if _, err := e.ch.GetEvent(ctx); err != nil {
				if ctx.Err() != nil {
					err = context.Cause(ctx)
				}
				return nil, err
			}
		}
	}
}

// opcodes of the operations. Immutable.
var opcodes = map[string]ibv.Opcode{
	"send": ibv.OpSend, "write": ibv.OpRDMAWrite, "write-imm": ibv.OpRDMAWriteWithImm, "read": ibv.OpRDMARead,
	"fetch-add": ibv.OpAtomicFetchAdd, "cmp-swap": ibv.OpAtomicCmpSwp,
}

// send posts a Send of this length, independent of the test.
func (e *end) send(length int) error {
	e.sgl[0] = e.mr.SGE(0, uint32(length))
	e.wrs = append(e.wrs[:0], ibv.SendWR{ID: sendID, Opcode: ibv.OpSend, Flags: ibv.SendSignaled, SGL: e.sgl[:], To: e.to})
	return e.qp.PostSend(e.wrs)
}

// post posts n operations, the last of which is signaled.
func (e *end) post(n int, a *answer) error {
	e.sgl[0] = e.mr.SGE(0, uint32(e.h.Size))
	e.wrs = e.wrs[:0]
	for range n {
		e.wrs = append(e.wrs, ibv.SendWR{
			ID: sendID, Opcode: opcodes[e.h.Op], SGL: e.sgl[:], RKey: a.RKey, RemoteAddr: a.Remote, CompareAdd: 1, Swap: 1, To: e.to,
		})
	}
	e.wrs[n-1].Flags = ibv.SendSignaled
	return e.qp.PostSend(e.wrs)
}
