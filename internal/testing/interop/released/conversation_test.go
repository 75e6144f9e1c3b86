package released

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"

	"github.com/rpcrdma/rpcrdma/proto/ddp"
	"github.com/rpcrdma/rpcrdma/proto/mpa"
	"github.com/rpcrdma/rpcrdma/proto/rdmap"
)

// A side is an end of a connection.
type side int

const (
	client side = iota
	server
)

func (s side) String() string { return [...]string{"client", "server"}[s] }

// A unit is a message of one end: a start-up frame, or an FPDU.
type unit struct {
	from  side
	bytes []byte
}

// readStart reads a start-up frame (RFC 5044 section 7.1).
func readStart(r io.Reader) ([]byte, mpa.Start, error) {
	var start mpa.Start
	frame := make([]byte, mpa.StartLen)
	if _, err := io.ReadFull(r, frame); err != nil {
		return nil, start, err
	}
	if _, err := mpa.ConsumeStart(frame, &start); err != nil {
		return nil, start, err
	}
	frame = append(frame, make([]byte, start.PDLength)...)
	_, err := io.ReadFull(r, frame[mpa.StartLen:])
	return frame, start, err
}

// readFPDU reads an FPDU (RFC 5044 section 4).
func readFPDU(r *bufio.Reader) ([]byte, error) {
	head, err := r.Peek(mpa.LengthLen)
	if err != nil {
		return nil, err
	}
	fpdu := make([]byte, mpa.FPDULen(int(binary.BigEndian.Uint16(head))))
	_, err = io.ReadFull(r, fpdu)
	return fpdu, err
}

// A segment is an FPDU without framing and CRC, which these conversations do not have.
type segment struct {
	op       rdmap.Opcode
	tagged   ddp.Tagged   // of a Write or a Read Response
	untagged ddp.Untagged // of the others
	payload  []byte
}

// last reports whether the segment is the last one of its message.
func (s *segment) last() bool { return s.tagged.Last || s.untagged.Last }

func parse(fpdu []byte) (*segment, error) {
	ulpdu, _, err := mpa.ConsumeFPDU(fpdu, false)
	if err != nil {
		return nil, err
	}
	s := new(segment)
	var n int
	var control uint8
	if ddp.IsTagged(ulpdu) {
		n, err = ddp.ConsumeTagged(ulpdu, &s.tagged)
		control = s.tagged.ULP
	} else {
		n, err = ddp.ConsumeUntagged(ulpdu, &s.untagged)
		control = s.untagged.ULP
	}
	if err != nil {
		return nil, err
	}
	s.payload = bytes.Clone(ulpdu[n:])
	s.op, err = rdmap.ParseControl(control)
	return s, err
}

// build is the reverse of parse.
func (s *segment) build() []byte {
	var ulpdu []byte
	if s.op.Tagged() {
		ulpdu = ddp.AppendTagged(ulpdu, &s.tagged)
	} else {
		ulpdu = ddp.AppendUntagged(ulpdu, &s.untagged)
	}
	return mpa.AppendFPDU(nil, append(ulpdu, s.payload...), false)
}

// A relay forwards one connection and keeps what passes, in the order in which it arrived here.
type relay struct {
	l  net.Listener
	wg sync.WaitGroup

	mu    sync.Mutex
	units []unit
	err   error
}

// newRelay starts a relay to a server.
func newRelay(target string) (*relay, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	r := &relay{l: l}
	r.wg.Go(func() {
		from, err := l.Accept()
		if err != nil {
			r.note(err)
			return
		}
		to, err := net.Dial("tcp", target)
		if err != nil {
			from.Close()
			r.note(err)
			return
		}
		r.wg.Go(func() { r.pass(client, from, to) })
		r.wg.Go(func() { r.pass(server, to, from) })
	})
	return r, nil
}

// note keeps the first error. The end of a connection does not count.
func (r *relay) note(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err == nil && !errors.Is(err, io.EOF) && !errors.Is(err, net.ErrClosed) {
		r.err = err
	}
}

func (r *relay) pass(s side, from, to net.Conn) {
	defer from.Close()
	defer to.Close()
	in := bufio.NewReaderSize(from, 1<<17)
	b, _, err := readStart(in)
	for err == nil {
		// A unit is kept before it is forwarded, and so before every answer to it.
		r.mu.Lock()
		r.units = append(r.units, unit{s, b})
		r.mu.Unlock()
		if _, err = to.Write(b); err == nil {
			b, err = readFPDU(in)
		}
	}
	r.note(err)
}

// stop waits for the end of the connection and returns what passed.
func (r *relay) stop() ([]unit, error) {
	r.l.Close()
	r.wg.Wait()
	return r.units, r.err
}

// store writes a conversation to a file.
func store(name, title string, units []unit) error {
	var b strings.Builder
	fmt.Fprintf(&b, "# %s\n", title)
	for _, u := range units {
		fmt.Fprintf(&b, "%s %x\n", u.from, u.bytes)
	}
	return os.WriteFile(name, []byte(b.String()), 0o666)
}

// fetch reads a conversation.
func fetch(name string) (units []unit, err error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(text)) {
		who, digits, _ := strings.Cut(strings.TrimSpace(line), " ")
		var u unit
		switch who {
		case "#":
			continue
		case "client":
		case "server":
			u.from = server
		default:
			return nil, fmt.Errorf("%s: %q is no side", name, who)
		}
		if u.bytes, err = hex.DecodeString(digits); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		units = append(units, u)
	}
	return units, nil
}
