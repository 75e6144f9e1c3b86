// Package verbs implements the command verbs, which measures RDMA operations between two machines, without RPC.
package verbs

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"slices"
	"time"
)

// DefaultPort is the TCP port of serve: that of ibv_rc_pingpong(1).
const DefaultPort = 18515

// protocol is the version of the protocol that the two ends speak over TCP.
const protocol = 1

// Limits for what a peer may request.
const (
	maxSize  = 64 << 20 // bytes of a message
	maxDepth = 1024     // requests
	maxLine  = 1024     // bytes
)

// patience limits the setup, and how long the peer may be silent during it.
const patience = 10 * time.Second

// hello is the first message from the client. Each side sends one JSON line.
type hello struct {
	Protocol  int    `json:"protocol"`
	Transport string `json:"transport"` // rc, uc, ud
	Op        string `json:"op"`        // one of ops
	Echo      bool   `json:"echo"`      // the server sends back what was sent
	Size      int    `json:"size"`      // bytes of a message, at least 1
	Depth     int    `json:"depth"`     // receives that the server keeps posted
	Ack       int    `json:"ack"`       // the server sends a message of one byte after this many, if not 0
	Events    bool   `json:"events"`    // the server waits for events instead of polling
	Addr      string `json:"addr"`      // of the client's queue pair; "" with the connection manager
}

// answer is the server's reply to a hello.
type answer struct {
	Error string `json:"error,omitempty"` // why there is no test

	Addr string `json:"addr,omitempty"` // of the server's queue pair
	CM   string `json:"cm,omitempty"`   // or the address of its connection manager

	Remote uint64 `json:"remote"` // address of the server's memory of Size bytes
	RKey   uint32 `json:"rkey"`
}

// Transports and operations. Immutable.
var (
	transports = []string{"rc", "uc", "ud"}
	ops        = []string{"send", "write", "write-imm", "read", "fetch-add", "cmp-swap"}
)

// has reports whether a transport supports an operation.
func has(transport, op string) bool {
	switch transport {
	case "ud":
		return op == "send"
	case "uc":
		return op == "send" || op == "write" || op == "write-imm"
	}
	return true
}

// messages reports whether an operation consumes a receive of the server.
func messages(op string) bool { return op == "send" || op == "write-imm" }

func atomic(op string) bool { return op == "fetch-add" || op == "cmp-swap" }

// overIWARP rejects what an iWARP device does not support (RFC 5040 section 1.1).
func (h *hello) overIWARP(device string) error {
	what := h.Op
	switch {
	case h.Transport != "rc":
		what = h.Transport
	case h.Op != "write-imm" && !atomic(h.Op):
		return nil
	}
	return fmt.Errorf("%s is an iWARP device, which does not support %s", device, what)
}

// check rejects invalid tests.
func (h *hello) check() error {
	switch {
	case h.Protocol != protocol:
		return fmt.Errorf("the client speaks version %d of the exchange, this server version %d", h.Protocol, protocol)
	case !slices.Contains(transports, h.Transport):
		return fmt.Errorf("transport %q: want rc, uc or ud", h.Transport)
	case !slices.Contains(ops, h.Op):
		return fmt.Errorf("operation %q is not known", h.Op)
	case !has(h.Transport, h.Op):
		return fmt.Errorf("%s has no %s", h.Transport, h.Op)
	case h.Size < 1 || h.Size > maxSize:
		return fmt.Errorf("messages of %d bytes: want 1 to %d", h.Size, maxSize)
	case atomic(h.Op) && h.Size != 8:
		return fmt.Errorf("an atomic operation of %d bytes: want 8", h.Size)
	case h.Depth < 1 || h.Depth > maxDepth:
		return fmt.Errorf("%d requests at once: want 1 to %d", h.Depth, maxDepth)
	case h.Echo && h.Op != "send":
		return errors.New("only what is sent can be sent back")
	case h.Ack < 0 || h.Ack > h.Depth || h.Ack > 0 && (h.Echo || !messages(h.Op)):
		return fmt.Errorf("acknowledgments of %d messages", h.Ack)
	}
	return nil
}

// talk is the TCP connection of a test. The test ends with it.
type talk struct {
	net.Conn
	r *bufio.Reader
}

func newTalk(c net.Conn) *talk { return &talk{c, bufio.NewReaderSize(c, maxLine)} }

// say sends a line.
func (t *talk) say(v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if err := t.SetWriteDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	_, err = t.Write(append(b, '\n'))
	return err
}

// hear reads a line.
func (t *talk) hear(v any) error {
	if err := t.SetReadDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	line, err := t.r.ReadSlice('\n')
	if err != nil {
		if errors.Is(err, bufio.ErrBufferFull) {
			return errors.New("the peer speaks another language")
		}
		if errors.Is(err, io.EOF) {
			return errHungUp
		}
		return err
	}
	if err := json.Unmarshal(line, v); err != nil {
		return fmt.Errorf("the peer speaks another language: %w", err)
	}
	return nil
}

// watch cancels a context when the peer hangs up.
func (t *talk) watch(parent context.Context) (ctx context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(parent)
	if err := t.SetReadDeadline(time.Time{}); err != nil {
		cancel(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, err := t.r.ReadByte()
		if err == nil {
			err = errors.New("the peer speaks out of turn")
		}
		cancel(fmt.Errorf("%w: %w", errHungUp, err))
	}()
	return ctx, func() {
		cancel(nil)
		t.Close()
		<-done
	}
}

// errHungUp is the error when the peer closes the connection.
var errHungUp = errors.New("the peer has hung up")

// rate returns n operations in time d as a rate per second.
func rate(n uint64, d time.Duration) float64 {
	return float64(n) / math.Max(d.Seconds(), 1e-9)
}
