//go:build linux

package interop

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/rpcrdma/rpcrdma/proto/ddp"
	"github.com/rpcrdma/rpcrdma/proto/mpa"
	"github.com/rpcrdma/rpcrdma/proto/rdmap"
)

// A relay is a TCP proxy between two ends of an iWARP connection. It parses what they send:
// start-up frames, then FPDUs. It needs no permission to capture packets, and it can change
// what it forwards.
type relay struct {
	// change, if set, is called with each FPDU, including the trailer, before it is forwarded.
	change func(from side, fpdu []byte)

	// close stops the relay and waits for its goroutines.
	close func()

	l      net.Listener
	closed chan struct{}
	wg     sync.WaitGroup

	mu    sync.Mutex
	conns []net.Conn
	heard [2]heard // by side; to be looked at after close
}

// A side of a connection: initiator or responder.
type side int

const (
	initiator side = iota
	responder
)

func (s side) String() string { return [...]string{"initiator", "responder"}[s] }

// heard has what the relay has received from one side.
type heard struct {
	start     mpa.Start // its MPA request or reply
	good      int       // FPDUs with a CRC that is right
	zero      int       // FPDUs with a zero in its place
	bad       int       // all others
	terminate *rdmap.Terminate
	err       error // in what it sent
}

// startRelay starts a relay that listens at addr, for one connection.
func startRelay(t *testing.T, addr string, change func(from side, fpdu []byte)) (r *relay, port string) {
	t.Helper()
	l, err := net.Listen("tcp", net.JoinHostPort(addr, "0"))
	if err != nil {
		t.Fatal(err)
	}
	r = &relay{l: l, change: change, closed: make(chan struct{})}
	r.close = sync.OnceFunc(r.stop)
	t.Cleanup(r.close)
	_, port, _ = net.SplitHostPort(l.Addr().String())
	return r, port
}

// passTo forwards the connection to target, as soon as that listens.
func (r *relay) passTo(target string) {
	r.wg.Go(func() {
		from, err := r.l.Accept()
		if err != nil {
			return // closed
		}
		r.keep(from)
		to, err := net.Dial("tcp", target)
		for err != nil {
			select {
			case <-r.closed:
				return
			case <-time.After(10 * time.Millisecond):
			}
			to, err = net.Dial("tcp", target)
		}
		r.keep(to)
		r.wg.Go(func() { r.pass(initiator, from.(*net.TCPConn), to.(*net.TCPConn)) })
		r.wg.Go(func() { r.pass(responder, to.(*net.TCPConn), from.(*net.TCPConn)) })
	})
}

// keep registers c to be closed with the relay.
func (r *relay) keep(c net.Conn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.conns = append(r.conns, c)
	select {
	case <-r.closed:
		c.Close()
	default:
	}
}

func (r *relay) stop() {
	r.l.Close()
	r.mu.Lock()
	close(r.closed)
	for _, c := range r.conns {
		c.Close()
	}
	r.mu.Unlock()
	r.wg.Wait()
}

// pass forwards what one side sends, and how it ends.
func (r *relay) pass(s side, from, to *net.TCPConn) {
	h := &r.heard[s]
	h.err = func() error {
		b := bufio.NewReaderSize(from, 1<<17)
		if err := h.setup(b, to); err != nil {
			return err
		}
		for {
			fpdu, err := nextFPDU(b)
			if err != nil {
				return err
			}
			if err := h.note(fpdu); err != nil {
				return err
			}
			if r.change != nil {
				r.change(s, fpdu)
			}
			if _, err := to.Write(fpdu); err != nil {
				return err
			}
		}
	}()
	if errors.Is(h.err, io.EOF) {
		h.err = nil
		to.CloseWrite()
		return
	}
	// A reset, unless it is orderly.
	to.SetLinger(0)
	to.Close()
}

// setup forwards the start-up frame.
func (h *heard) setup(b *bufio.Reader, to io.Writer) error {
	frame := make([]byte, mpa.StartLen)
	if _, err := io.ReadFull(b, frame); err != nil {
		return err
	}
	if _, err := mpa.ConsumeStart(frame, &h.start); err != nil {
		return err
	}
	frame = append(frame, make([]byte, h.start.PDLength)...)
	if _, err := io.ReadFull(b, frame[mpa.StartLen:]); err != nil {
		return err
	}
	_, err := to.Write(frame)
	return err
}

// nextFPDU reads a whole FPDU: io.EOF is the end between two.
func nextFPDU(b *bufio.Reader) ([]byte, error) {
	l, err := b.Peek(mpa.LengthLen)
	if len(l) == 0 {
		return nil, err
	}
	if err != nil {
		return nil, io.ErrUnexpectedEOF
	}
	fpdu := make([]byte, mpa.FPDULen(int(binary.BigEndian.Uint16(l))))
	if _, err := io.ReadFull(b, fpdu); err != nil {
		return nil, io.ErrUnexpectedEOF
	}
	return fpdu, nil
}

// note records an FPDU.
func (h *heard) note(fpdu []byte) error {
	ulpdu, _, err := mpa.ConsumeFPDU(fpdu, true)
	switch {
	case err == nil:
		h.good++
	case mpa.CRC(fpdu[len(fpdu)-mpa.CRCLen:]) == 0:
		h.zero++
		ulpdu, _, err = mpa.ConsumeFPDU(fpdu, false)
	default:
		h.bad++
		return nil
	}
	if err != nil || len(ulpdu) == 0 {
		return fmt.Errorf("FPDU %x: %v", fpdu, err)
	}
	if ddp.IsTagged(ulpdu) {
		return nil
	}
	var u ddp.Untagged
	n, err := ddp.ConsumeUntagged(ulpdu, &u)
	if err != nil {
		return err
	}
	if u.QN == rdmap.QNTerminate {
		h.terminate = new(rdmap.Terminate)
		if _, err := rdmap.ConsumeTerminate(ulpdu[n:], h.terminate); err != nil {
			return err
		}
	}
	return nil
}
