package rpcbind

import (
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
)

// An answerFunc returns the messages with which a scripted rpcbind answers a call, possibly
// none. call is the whole call.
type answerFunc func(xid uint32, h *oncrpc.CallHeader, call []byte) [][]byte

// newPeer starts a scripted rpcbind on "tcp" or "udp" and returns a Client for it.
func newPeer(t testing.TB, network string, answer answerFunc) Client {
	t.Helper()
	say := func(call []byte) [][]byte {
		var h oncrpc.CallHeader
		if _, err := oncrpc.ConsumeCall(call, &h); err != nil || h.Prog != Program || h.RPCVers != 2 {
			t.Errorf("the call is %x: %v", call, err)
			return nil
		}
		return answer(h.XID, &h, call)
	}
	if network == "udp" {
		c, err := net.ListenPacket("udp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		t.Cleanup(func() { c.Close(); wg.Wait() })
		wg.Go(func() {
			buf := make([]byte, 1<<16)
			for {
				n, from, err := c.ReadFrom(buf)
				if err != nil {
					return
				}
				for _, msg := range say(buf[:n]) {
					c.WriteTo(msg, from)
				}
			}
		})
		return Client{Network: "udp", Addr: c.LocalAddr().String()}
	}
	return newStream(t, func(c net.Conn) {
		for {
			call, err := readRecord(c)
			if err != nil {
				return
			}
			for _, msg := range say(call) {
				c.Write(append(oncrpc.AppendRecordMark(nil, len(msg), true), msg...))
			}
		}
	})
}

// newStream starts a TCP server that calls f with every connection, and closes it afterwards,
// at the latest at the end of the test.
func newStream(t testing.TB, f func(net.Conn)) Client {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var conns []net.Conn
	var wg sync.WaitGroup
	t.Cleanup(func() {
		l.Close()
		mu.Lock()
		for _, c := range conns {
			c.Close()
		}
		mu.Unlock()
		wg.Wait()
	})
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			conns = append(conns, c)
			mu.Unlock()
			wg.Go(func() {
				defer c.Close()
				f(c)
			})
		}
	})
	return Client{Addr: l.Addr().String()}
}

// readRecord reads a record of one fragment.
func readRecord(c net.Conn) ([]byte, error) {
	var mark [oncrpc.RecordMarkSize]byte
	if _, err := io.ReadFull(c, mark[:]); err != nil {
		return nil, err
	}
	size, _, _ := oncrpc.ConsumeRecordMark(mark[:])
	msg := make([]byte, size)
	_, err := io.ReadFull(c, msg)
	return msg, err
}

// forward forwards a call to the rpcbind at addr.
func forward(t testing.TB, network, addr string, call []byte) []byte {
	c, err := net.Dial(network, addr)
	if err != nil {
		t.Error(err)
		return nil
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(time.Minute))
	var msg []byte
	if network == "udp" {
		c.Write(call)
		msg = make([]byte, 1<<16)
		var n int
		n, err = c.Read(msg)
		msg = msg[:n]
	} else {
		c.Write(append(oncrpc.AppendRecordMark(nil, len(call), true), call...))
		msg, err = readRecord(c)
	}
	if err != nil {
		t.Error(err)
	}
	return msg
}

// reply returns an accepted reply, with results for SUCCESS and the highest version for
// PROG_MISMATCH.
func reply(xid uint32, stat oncrpc.AcceptStat, results ...any) []byte {
	h := oncrpc.ReplyHeader{XID: xid, AcceptStat: stat}
	if stat == oncrpc.ProgMismatch {
		h.Low, h.High = 2, results[0].(uint32)
		results = nil
	}
	b := oncrpc.AppendReply(nil, &h)
	for _, r := range results {
		switch r := r.(type) {
		case bool:
			b = xdr.AppendBool(b, r)
		case int:
			b = xdr.AppendUint32(b, uint32(r))
		case string:
			b = xdr.AppendString(b, r)
		case Mapping:
			b = r.append(xdr.AppendBool(b, true))
		case []byte:
			b = append(b, r...)
		}
	}
	return b
}
