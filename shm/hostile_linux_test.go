package shm

import (
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/fabric/fabrictest"
	"github.com/rpcrdma/rpcrdma/internal/llp"
	"github.com/rpcrdma/rpcrdma/internal/testing/leak"
	"github.com/rpcrdma/rpcrdma/iwarp"
)

var mutations = flag.Int("mutations", 4000, "how many of TestHostileMemory")

// mappings counts the memories that this process has mapped.
func mappings(t testing.TB) int {
	t.Helper()
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Count(string(maps), "/memfd:rpcrdma-shm")
}

// An echoer is a server that sends back what it receives, on each connection until that ends.
type echoer struct {
	l    fabric.Listener
	ends chan error // of its connections
}

const echoLen = 4000

func startEchoer(t *testing.T, p *Provider) *echoer {
	t.Helper()
	l, err := p.Listen(context.Background(), "@", fabric.ConnAttr{})
	if err != nil {
		t.Fatal(err)
	}
	e := &echoer{l, make(chan error, 1<<20)}
	go func() {
		for {
			c, err := l.Accept(context.Background())
			if err != nil {
				return
			}
			go func() { e.ends <- e.serve(c) }()
		}
	}()
	return e
}

// serve also exposes memory, so that a peer's segments may have somewhere to go.
func (e *echoer) serve(c fabric.Conn) error {
	defer c.Close()
	const depth = 8
	bufs := make([][]byte, depth)
	for i := range bufs {
		bufs[i] = make([]byte, echoLen)
		if err := c.PostRecv([]fabric.RecvWR{{ID: uint64(i), SGE: fabric.SGE{Buf: bufs[i]}}}); err != nil {
			return err
		}
	}
	if _, err := c.RegMR(make([]byte, 1<<16), fabric.AccessLocalWrite|fabric.AccessRemoteRead|fabric.AccessRemoteWrite); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if err := c.Accept(ctx, nil); err != nil {
		return err
	}
	var wcs [depth]fabric.WC
	for {
		if err := c.Wait(); err != nil {
			return err
		}
		n, err := c.Poll(wcs[:])
		if err != nil {
			return err
		}
		for _, wc := range wcs[:n] {
			switch {
			case wc.Status != fabric.WCSuccess: // the end comes
			case wc.Op == fabric.WCSend:
				err = c.PostRecv([]fabric.RecvWR{{ID: wc.ID, SGE: fabric.SGE{Buf: bufs[wc.ID]}}})
			default:
				err = c.Post([]fabric.SendWR{{ID: wc.ID, Op: fabric.OpSend, Flags: fabric.Signaled, SGL: []fabric.SGE{{Buf: bufs[wc.ID][:wc.Len]}}}})
			}
			if err != nil && !errors.Is(err, net.ErrClosed) {
				return err
			}
		}
	}
}

// A talker calls an echoer.
type talker struct {
	fabric.Conn
	in []byte
}

func talk(p *Provider, addr string) (*talker, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	c, err := p.Resolve(ctx, addr, fabric.ConnAttr{})
	if err != nil {
		return nil, err
	}
	return join(ctx, c)
}

func join(ctx context.Context, c fabric.Conn) (*talker, error) {
	t := &talker{c, make([]byte, echoLen)}
	err := c.PostRecv([]fabric.RecvWR{{SGE: fabric.SGE{Buf: t.in}}})
	if err == nil {
		err = c.Connect(ctx, nil)
	}
	if err != nil {
		c.Close()
		return nil, err
	}
	return t, nil
}

// say sends a message and compares what comes back.
func (t *talker) say(message []byte) error {
	if err := t.Post([]fabric.SendWR{{Op: fabric.OpSend, SGL: []fabric.SGE{{Buf: message}}}}); err != nil {
		return err
	}
	var wcs [2]fabric.WC
	for {
		if err := t.Wait(); err != nil {
			return err
		}
		n, err := t.Poll(wcs[:])
		if err != nil {
			return err
		}
		for _, wc := range wcs[:n] {
			if wc.Status != fabric.WCSuccess {
				return fmt.Errorf("completion: %v", wc.Status)
			}
			if wc.Op == fabric.WCRecv {
				if got := t.in[:wc.Len]; string(got) != string(message) {
					return errors.New("another message comes back")
				}
				return t.PostRecv([]fabric.RecvWR{{SGE: fabric.SGE{Buf: t.in}}})
			}
		}
	}
}

// A spy keeps the stream that a handshake makes.
type spy struct {
	*setup
	made *stream
}

func (s *spy) Connect(ctx context.Context, o llp.Offer) (llp.Stream, llp.Offer, error) {
	made, answer, err := s.setup.Connect(ctx, o)
	s.made, _ = made.(*stream)
	return made, answer, err
}

// TestHostileMemory: a peer changes everything that it may write, while messages go both ways: its
// positions, flags and ring, and it tries to truncate its file. It costs itself its connection, with a typed
// error; others go on.
func TestHostileMemory(t *testing.T) {
	leak.Check(t)
	before := mappings(t)
	p := New(Config{Ring: MinRing})
	e := startEchoer(t, p)
	honest, err := talk(New(Config{Ring: MinRing}), e.l.Addr().String()) // another neighbor
	if err != nil {
		t.Fatal(err)
	}
	attr, err := p.engine.CheckAttr(fabric.ConnAttr{})
	if err != nil {
		t.Fatal(err)
	}
	message := fabrictest.Pattern(echoLen, 7)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	kinds := make(map[string]int)
	conns := 0
	for done := 0; done < *mutations; conns++ {
		s := &spy{setup: &setup{p: p, target: e.l.Addr().String()}}
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		bad, err := join(ctx, p.engine.NewConn(s, attr, nil, e.l.Addr(), nil))
		cancel()
		if err != nil {
			t.Fatal(err)
		}
		talking, words := make(chan struct{}), message[:1+done%echoLen]
		go func() { // until the peer has had enough
			defer close(talking)
			for bad.say(words) == nil {
			}
		}()
		m := s.made.mine
		var end error
		for end == nil && done < *mutations {
			mutate(r, m)
			mutateBoard(r, s.made.at.mine)
			s.made.at.tell(hintOf(s.made.peer, uint32(r.IntN(2))))
			done++
			select {
			case end = <-e.ends:
			case <-time.After(time.Duration(r.IntN(100)) * time.Microsecond):
			}
		}
		bad.Wake()
		bad.Conn.(*iwarp.Conn).Close()
		<-talking
		if end == nil {
			end = <-e.ends
		}
		var ce *fabric.ConnError
		if !errors.As(end, &ce) {
			t.Fatalf("the connection ended with %T: %v", end, end)
		}
		kinds[fmt.Sprintf("%T", ce.Cause)]++
		if err := honest.say(message); err != nil {
			t.Fatalf("an honest connection: %v", err)
		}
	}
	t.Logf("%d connections ended: %v", conns, kinds)
	honest.Close()
	<-e.ends
	p.Close()
	if n := mappings(t); n != before {
		t.Errorf("%d mappings, %d before", n, before)
	}
}

// mutate changes something of what an end has to itself.
func mutate(r *rand.Rand, m memory) {
	size := uint64(len(m.ring))
	jumps := [...]uint64{1, ^uint64(0), size, ^size + 1, size - 1, size + 1, r.Uint64(), 1 << 63}
	jump := jumps[r.IntN(len(jumps))]
	switch r.IntN(7) {
	case 0:
		m.tail.Add(jump)
	case 1:
		m.head.Add(jump)
	case 2:
		m.over.Store(uint32(r.IntN(4)))
	case 3:
		m.readParks.Add(1)
		m.writeParks.Add(1)
	case 4:
		m.placed.Add(jump)
		m.ringLen.Add(jump)
	default: // bytes that may be on their way
		at := m.tail.Load() - uint64(r.IntN(4*echoLen))
		for range 1 + r.IntN(8) {
			m.ring[(at+uint64(r.IntN(64)))&(size-1)] ^= 1 << r.IntN(8)
		}
	}
}

// mutateBoard changes something of what an end has to itself for all of its connections.
func mutateBoard(r *rand.Rand, b *board) {
	switch r.IntN(4) {
	case 0:
		b.tail.Add([...]uint64{1, ^uint64(0), boardHints - 1, boardHints, r.Uint64()}[r.IntN(5)])
	case 1:
		b.parks.Add(r.Uint32())
	default:
		b.hints[(b.tail.Load()+uint64(r.IntN(8)))%boardHints].Store(r.Uint32() >> r.IntN(32))
	}
}

// TestHostileSetup: what does not begin with a request, or passes other descriptors than those of a request,
// is not served, and leaves nothing open.
func TestHostileSetup(t *testing.T) {
	leak.Check(t)
	p := New(Config{})
	e := startEchoer(t, p)
	defer p.Close()
	memory := func(size int64, ring uint64, flags, seal int) int {
		fd, err := unix.MemfdCreate("hostile", unix.MFD_CLOEXEC|flags)
		if err == nil {
			err = unix.Ftruncate(fd, size)
		}
		if err == nil && size > pageLen {
			_, err = unix.Pwrite(fd, binary.NativeEndian.AppendUint64(nil, ring), int64(unsafe.Offsetof(page{}.ringLen)))
		}
		if err == nil && seal != 0 {
			_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seal)
		}
		if err != nil {
			t.Logf("%v", err)
		}
		return fd
	}
	file, err := os.Create(filepath.Join(t.TempDir(), "file"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	file.Truncate(pageLen + MinRing)
	memfd := func(size int64, flags, seal int) int { return memory(size, MinRing, flags, seal) }
	const good = pageLen + MinRing
	huge := memfd(0, unix.MFD_ALLOW_SEALING|unix.MFD_HUGETLB, 0)
	unix.Ftruncate(huge, 2<<20)
	unix.FcntlInt(uintptr(huge), unix.F_ADD_SEALS, seals)
	bell, theirs, err := newBell()
	if err != nil {
		t.Fatal(err)
	}
	event, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	ok := memfd(good, unix.MFD_ALLOW_SEALING, seals)
	board := memfd(int64(boardLen), unix.MFD_ALLOW_SEALING, seals)
	all := []int{ok, huge, bell, theirs, event, board}
	hello := func(kind, pd int) string {
		return magic + string([]byte{0, byte(kind), 0, 8, 0, 8, byte(pd >> 8), byte(pd), 0, 0, 0, 0})
	}
	for _, tt := range []struct {
		name string
		send string
		fds  []int
	}{
		{"nothing", "", nil},
		{"another protocol", "GET / HTTP/1.1\r\n\r\n", nil},
		{"half a request", hello(1, 0)[:9], []int{ok, board, theirs}},
		{"an acceptance", hello(2, 0), []int{ok, board}},
		{"more than a request", hello(1, 0) + "x", []int{ok, board, theirs}},
		{"too much private data", hello(1, 60000), []int{ok, board, theirs}},
		{"less than it announces", hello(1, 10) + "123", []int{ok, board, theirs}},
		{"no descriptors", hello(1, 0), nil},
		{"two descriptors", hello(1, 0), []int{ok, board}},
		{"four descriptors", hello(1, 0), []int{ok, board, theirs, ok}},
		{"forty descriptors", hello(1, 0), []int{
			ok, ok, ok, ok, ok, ok, ok, ok, ok, ok, ok, ok, ok, ok, ok, ok, ok, ok, ok, ok,
			ok, ok, ok, ok, ok, ok, ok, ok, ok, ok, ok, ok, ok, ok, ok, ok, ok, ok, ok, ok,
		}},
		{"a bell that is an eventfd", hello(1, 0), []int{ok, board, event}},
		{"memory that is not sealed", hello(1, 0), []int{memfd(good, unix.MFD_ALLOW_SEALING, 0), board, theirs}},
		{"memory that may shrink", hello(1, 0), []int{memfd(good, unix.MFD_ALLOW_SEALING, unix.F_SEAL_GROW|unix.F_SEAL_SEAL), board, theirs}},
		{"memory that cannot be sealed", hello(1, 0), []int{memfd(good, 0, 0), board, theirs}},
		{"huge pages", hello(1, 0), []int{huge, board, theirs}},
		{"a file", hello(1, 0), []int{int(file.Fd()), board, theirs}},
		{"an empty memory", hello(1, 0), []int{memfd(0, unix.MFD_ALLOW_SEALING, seals), board, theirs}},
		{"no ring", hello(1, 0), []int{memory(good, 0, unix.MFD_ALLOW_SEALING, seals), board, theirs}},
		{"a ring of no power of two", hello(1, 0), []int{memory(good+4096, MinRing+4096, unix.MFD_ALLOW_SEALING, seals), board, theirs}},
		{"a ring that is too large", hello(1, 0), []int{memory(pageLen+2*MaxRing, 2*MaxRing, unix.MFD_ALLOW_SEALING, seals), board, theirs}},
		{"a ring longer than its memory", hello(1, 0), []int{memory(good+4096, 2*MinRing, unix.MFD_ALLOW_SEALING, seals), board, theirs}},
		{"an arena that is too large", hello(1, 0), []int{memfd(pageLen+MaxRing+MaxArena+4096, unix.MFD_ALLOW_SEALING, seals), board, theirs}},
		{"a board that is not sealed", hello(1, 0), []int{ok, memfd(int64(boardLen), unix.MFD_ALLOW_SEALING, 0), theirs}},
		{"a board that is too small", hello(1, 0), []int{ok, memfd(int64(boardLen)-4096, unix.MFD_ALLOW_SEALING, seals), theirs}},
		{"a board that is too large", hello(1, 0), []int{ok, ok, theirs}},
		{"a neighbor that is not known", hello(4, 0), []int{ok, board}},
		{"a neighbor without a board", hello(4, 0), []int{ok, event}},
		{"a neighbor with a bell", hello(4, 0), []int{ok, board, theirs}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: e.l.Addr().String(), Net: "unix"})
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if tt.send != "" {
				if _, _, err := c.WriteMsgUnix([]byte(tt.send), unix.UnixRights(tt.fds...), nil); err != nil {
					t.Fatal(err)
				}
			}
			c.CloseWrite()
			c.SetDeadline(time.Now().Add(10 * time.Second))
			if k, _, fds, err := hear(c, accept); err == nil {
				closeAll(fds)
				t.Errorf("it has been answered: kind %d", k)
			} else if errors.Is(err, os.ErrDeadlineExceeded) {
				t.Error("the server waits")
			}
			for _, fd := range tt.fds {
				if fd != int(file.Fd()) {
					all = append(all, fd)
				}
			}
		})
	}
	seen := make(map[int]bool)
	for _, fd := range all {
		if !seen[fd] {
			unix.Close(fd)
		}
		seen[fd] = true
	}
	honest, err := talk(p, e.l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	if err := honest.say([]byte("still there")); err != nil {
		t.Error(err)
	}
	honest.Close()
	p.Close()
	for range 2 { // the accepting loop's last end may be one of a request above
		select {
		case <-e.ends:
		case <-time.After(time.Second):
		}
	}
}

// FuzzHello: whatever a peer says in set-up, only what a message has is kept of it.
func FuzzHello(f *testing.F) {
	f.Add([]byte(magic + "\x00\x01\x00\x08\x00\x08\x00\x00"))
	f.Add([]byte(magic + "\x00\x03\x00\x08\x00\x08\x00\x03abc"))
	f.Add([]byte("GET / HTTP/1.1\r\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		from := os.NewFile(uintptr(pair[0]), "from")
		to := os.NewFile(uintptr(pair[1]), "to")
		defer from.Close()
		c, err := net.FileConn(to)
		to.Close()
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		c.SetDeadline(time.Now().Add(5 * time.Second))
		go func() {
			from.Write(b)
			from.Close()
		}()
		k, o, fds, err := hear(c.(*net.UnixConn), request, accept, reject)
		closeAll(fds)
		if err == nil && (k != reject || len(o.PrivateData) > iwarp.MaxPrivateData || !strings.HasPrefix(string(b), magic)) {
			t.Errorf("kind %d with %d bytes from %q", k, len(o.PrivateData), b)
		}
	})
}
