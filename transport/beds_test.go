package transport_test

import (
	"errors"
	"testing"
	"time"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/internal/testing/rdmatest"
	"github.com/rpcrdma/rpcrdma/iwarp"
	"github.com/rpcrdma/rpcrdma/rdmacm"
	"github.com/rpcrdma/rpcrdma/shm"
)

// A bed is the environment of the tests of both ends together: a provider, and an address to listen
// at.
type bed struct {
	addr string
	open func() (fabric.Provider, live, error)

	// slow divides the counts of tests and multiplies their patience: devices in
	// software, in a machine in software, take their time.
	slow int

	// waits: a Send that finds no receive waits for one. Elsewhere it ends the
	// connection.
	waits bool

	// chunkAllocs bounds the allocations of a call with a chunk in each direction:
	// without windows that can be bound again it registers memory.
	chunkAllocs float64

	// idle bounds the memory of one end of a connection that does nothing, in bytes:
	// on a device the queues, which are as long as the credits allow.
	idle int

	// conns makes the client's end a Group with so many connections, where the tests can
	// have that.
	conns int

	// loses: a listener may be lost without a word (docs/tuning.md).
	loses bool

	// allocates: the adapter itself does, for each request.
	allocates bool

	// refused is in the error of Dial where no server listens.
	refused string
}

// live says what a provider holds open.
type live func() (conns, mrs, mws int)

func (l live) check(t testing.TB) {
	t.Helper()
	if conns, mrs, mws := l(); conns != 0 || mrs != 0 || mws != 0 {
		t.Errorf("left open: %d connections, %d regions, %d windows", conns, mrs, mws)
	}
}

func (b *bed) provider(t testing.TB) (fabric.Provider, live) {
	t.Helper()
	p, l, err := b.open()
	if err != nil {
		t.Fatal(err)
	}
	return p, l
}

// count scales a number of repetitions. With the race detector there are fewer: the same tests run
// without it, too.
func (b *bed) count(n int) int {
	switch {
	case testing.Short():
		n /= 5
	case raceEnabled:
		n /= 2
	}
	return max(n/b.slow, 1)
}

// counts skips a test that counts allocations where they are not those of a call.
func (b *bed) counts(t *testing.T) {
	t.Helper()
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	if b.allocates {
		t.Skip("the adapter is a fake, which allocates for each request")
	}
}

// allocs is how often f allocates in steady state, runs times on a fast machine: the least of three
// measurements, as goroutines of tests that have ended may still allocate.
func (b *bed) allocs(runs int, f func()) float64 {
	n := testing.AllocsPerRun(b.count(runs)/min(b.slow, 2), f)
	for try := 1; n > 0 && try < 3; try++ {
		n = min(n, testing.AllocsPerRun(b.count(runs)/min(b.slow, 2), f))
	}
	return n
}

// patience is how long something may take that takes no time when all is well.
func (b *bed) patience() time.Duration { return 30 * time.Second * time.Duration(min(b.slow, 2)) }

// onIwarp is the software adapter over the loopback interface.
func onIwarp(cfg iwarp.Config) *bed {
	return &bed{
		addr: "127.0.0.1:0", slow: 1, refused: "connection refused", idle: 128 << 10,
		open: func() (fabric.Provider, live, error) {
			p := iwarp.New(cfg)
			return p, func() (conns, mrs, mws int) {
				l := p.OpenObjects()
				return l.Conns, l.MRs, l.MWs
			}, nil
		},
	}
}

// onShm is shared memory.
func onShm() *bed {
	return &bed{
		addr: "@", slow: 1, refused: "connection refused", idle: 128 << 10,
		open: func() (fabric.Provider, live, error) {
			p := shm.New(shm.Config{})
			return p, func() (conns, mrs, mws int) {
				l := p.OpenObjects()
				return l.Conns, l.MRs, l.MWs
			}, nil
		},
	}
}

// onDevice is a device of the kind "rxe" or "siw", if there is one.
func onDevice(t testing.TB, kind string, cfg rdmacm.Config) *bed {
	t.Helper()
	addr := rdmatest.Device(t, kind)
	b := &bed{
		addr: addr + ":0", slow: 10, waits: kind == "rxe", loses: kind == "siw", refused: addr, chunkAllocs: 9, idle: 1 << 20,
		open: func() (fabric.Provider, live, error) {
			p, err := rdmacm.New(cfg)
			if err != nil {
				return nil, nil, err
			}
			return p, func() (conns, mrs, mws int) {
				l := p.OpenObjects()
				return l.Conns, l.MRs, l.MWs
			}, nil
		},
	}
	_, _, err := b.open()
	if errors.Is(err, rdmacm.ErrNotBuilt) {
		rdmatest.Lacking(t, kind, err.Error())
	}
	if err != nil {
		t.Fatal(err)
	}
	return b
}
