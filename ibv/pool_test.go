//go:build linux && cgo

package ibv

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"

	"github.com/rpcrdma/rpcrdma/cgo/cgotest"
)

const poolAccess = AccessLocalWrite | AccessRemoteRead | AccessRemoteWrite

// newPool makes a pool on a fake device.
func newPool(t testing.TB, attr PoolAttr) (*Pool, *cgotest.Library) {
	t.Helper()
	c, lib, _ := fake(t)
	pd := must[*PD](t)(c.AllocPD())
	return must[*Pool](t)(pd.NewPool(attr)), lib
}

// got returns the buffer of a Get that may not fail.
func got(t testing.TB, p *Pool, size int) Buffer {
	t.Helper()
	b, err := p.Get(size)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func put(t testing.TB, p *Pool, bufs ...Buffer) {
	t.Helper()
	for _, b := range bufs {
		if err := p.Put(b); err != nil {
			t.Fatal(err)
		}
	}
}

// TestFakePoolAttr: which pools there can be, and which sizes they have.
func TestFakePoolAttr(t *testing.T) {
	page := os.Getpagesize()
	for _, tt := range []struct {
		attr   PoolAttr
		region int // 0: refused
	}{
		{PoolAttr{}, 0},
		{PoolAttr{Limit: -1}, 0},
		{PoolAttr{Limit: math.MinInt, Region: math.MinInt}, 0},
		{PoolAttr{Limit: page - 1}, 0},
		{PoolAttr{Limit: page}, page},
		{PoolAttr{Limit: 3*page - 1}, page},
		{PoolAttr{Limit: 32 * page}, 2 * page},
		{PoolAttr{Limit: 64*page - 1}, 2 * page},
		{PoolAttr{Limit: math.MaxInt}, 2 << 20},
		{PoolAttr{Limit: 1 << 40, Region: 1 << 30}, 1 << 30},
		{PoolAttr{Limit: 1 << 40, Region: 1 << 31}, 0},
		{PoolAttr{Limit: 1 << 40, Region: page + 1}, 0},
		{PoolAttr{Limit: 1 << 40, Region: page / 2}, 0},
		{PoolAttr{Limit: page, Region: 2 * page}, 0},
		{PoolAttr{Limit: page, Access: AccessZeroBased}, 0},
	} {
		c, _, _ := fake(t)
		pd := must[*PD](t)(c.AllocPD())
		p, err := pd.NewPool(tt.attr)
		if tt.region == 0 {
			if !errors.Is(err, syscall.EINVAL) {
				t.Errorf("%+v: %v", tt.attr, err)
			}
			continue
		}
		closing(t, p)
		for _, size := range []int{math.MinInt, -1, 0, tt.region + 1, math.MaxInt32 + 1, math.MaxInt} {
			if _, err := p.Get(size); !errors.Is(err, syscall.EINVAL) {
				t.Errorf("%+v: %d bytes: %v", tt.attr, size, err)
			}
		}
		if tt.region <= 2<<20 {
			b := got(t, p, tt.region)
			if len(b.Bytes()) != tt.region || p.Stats().Bytes != tt.region {
				t.Errorf("%+v: %d bytes of %+v", tt.attr, len(b.Bytes()), p.Stats())
			}
			put(t, p, b)
		}
	}
}

// A poolModel is what a pool is to do: buffers keep what their users have written, and none has memory
// of another.
type poolModel struct {
	t     *testing.T
	pool  *Pool
	limit int
	inUse []Buffer
	old   []Buffer // put back
	count uint64
}

// check checks a buffer in use.
func (m *poolModel) check(b Buffer) {
	m.t.Helper()
	mem := b.Bytes()
	mr, sge := b.MR(), b.SGE(0, uint32(len(mem)))
	if b.Addr() != addrOf(mem) || sge.Addr != b.Addr() || int(sge.Length) != len(mem) || sge.LKey != mr.LKey() || b.RKey() != mr.RKey() ||
		!slices.Equal(mem, bytes.Repeat(mem[:1], len(mem))) {
		m.t.Errorf("a buffer of %d bytes at %#x, %#x: other memory", len(mem), addrOf(mem), b.Addr())
	}
}

func (m *poolModel) get(size int) {
	b, err := m.pool.Get(size)
	var exhausted *ExhaustedError
	if errors.As(err, &exhausted) {
		if s := m.pool.Stats(); s.Bytes+m.pool.size <= m.limit || s.Empty > 0 || exhausted.Size != size || exhausted.InUse != s.InUse {
			m.t.Errorf("%v: %+v", err, s)
		}
		return
	}
	if err != nil {
		m.t.Fatal(err)
	}
	mem := b.Bytes()
	if len(mem) != size || cap(mem) < max(size, 64) || cap(mem) > max(2*size-1, 64) || addrOf(mem)%uint64(min(cap(mem), 4096)) != 0 {
		m.t.Errorf("%d bytes: length %d, capacity %d, at %#x", size, len(mem), cap(mem), addrOf(mem))
	}
	m.count++
	for i := range mem {
		mem[i] = byte(m.count)
	}
	m.inUse = append(m.inUse, b)
}

func (m *poolModel) put(i int) {
	b := m.inUse[i]
	m.check(b)
	put(m.t, m.pool, b)
	m.inUse = slices.Delete(m.inUse, i, i+1)
	m.old = append(m.old, b)
}

// stats compares the counts.
func (m *poolModel) stats() {
	m.t.Helper()
	inUse := 0
	regions := make(map[*MR]bool)
	for _, b := range m.inUse {
		inUse += cap(b.Bytes())
		regions[b.MR()] = true
	}
	if s := m.pool.Stats(); s.Buffers != len(m.inUse) || s.InUse != inUse || s.Bytes > m.limit || s.Regions-s.Empty != len(regions) {
		m.t.Fatalf("%+v, want %d buffers of %d bytes in %d regions", s, len(m.inUse), inUse, len(regions))
	}
}

// FuzzPool: a pool does as its model does, whatever the program.
func FuzzPool(f *testing.F) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 8 {
		program := make([]byte, 3000)
		for i := range program {
			program[i] = byte(random.Uint32())
		}
		f.Add(program)
	}
	f.Fuzz(func(t *testing.T, program []byte) {
		const region = 16 << 10
		m := &poolModel{t: t, limit: 4*region + 1}
		m.pool, _ = newPool(t, PoolAttr{Access: poolAccess, Limit: m.limit, Region: region})
		for ; len(program) >= 3; program = program[3:] {
			arg := int(binary.BigEndian.Uint16(program[1:]))
			switch op := program[0]; {
			case op < 130:
				m.get(1 + arg&(1<<(op%15)-1))
			case op < 240:
				if n := len(m.inUse); n > 0 {
					m.put(arg % n)
				}
			case op < 250:
				if n := len(m.old); n > 0 {
					if err := m.pool.Put(m.old[arg%n]); !errors.As(err, new(*BufferError)) {
						t.Errorf("put back twice: %v", err)
					}
				}
			default:
				empty := m.pool.Stats().Empty
				if n, err := m.pool.Trim(); n != empty*region || err != nil || m.pool.Stats().Empty != 0 {
					t.Errorf("%d bytes of %d regions are freed, %v", n, empty, err)
				}
			}
			m.stats()
		}
		for len(m.inUse) > 0 {
			m.put(0)
		}
		m.stats()
	})
}

// TestFakePoolPut: what has not been handed out, or has come back, is refused.
func TestFakePoolPut(t *testing.T) {
	p, _ := newPool(t, PoolAttr{Limit: 1 << 20})
	other, _ := newPool(t, PoolAttr{Limit: 1 << 20})
	once := got(t, p, 4096)
	put(t, p, once)
	again := got(t, p, 4096) // the same memory
	defer put(t, p, again)
	foreign := got(t, other, 4096)
	defer put(t, other, foreign)
	if once.Addr() != again.Addr() {
		t.Fatal("the buffer that is free is not taken first")
	}
	for _, tt := range []struct {
		name    string
		buffer  Buffer
		foreign bool
	}{{"the zero Buffer", Buffer{}, true}, {"of another pool", foreign, true}, {"put back before", once, false}} {
		var e *BufferError
		if err := p.Put(tt.buffer); !errors.As(err, &e) || e.Foreign != tt.foreign || !errors.Is(err, syscall.EINVAL) {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
}

// TestFakePoolFails: memory that cannot be registered leaves nothing, and the pool as it was.
func TestFakePoolFails(t *testing.T) {
	p, lib := newPool(t, PoolAttr{Limit: 1 << 20, Region: 64 << 10})
	before := lib.Live()
	lib.Fail("ibv_reg_mr", syscall.ENOMEM)
	if _, err := p.Get(1); !errors.Is(err, syscall.ENOMEM) {
		t.Errorf("without memory: %v", err)
	}
	if now := lib.Live(); !slices.Equal(now, before) || p.Stats() != (PoolStats{}) {
		t.Errorf("%v is left of %v, %+v", now, before, p.Stats())
	}
	b := got(t, p, 1)
	var busy *BusyError
	if err := p.Close(); !errors.As(err, &busy) || !slices.Equal(busy.Users, []string{"1 buffer"}) {
		t.Errorf("closed with a buffer in use: %v", err)
	}
	if err := p.pd.Close(); !errors.As(err, &busy) || !slices.Equal(busy.Users, []string{"1 memory region", "1 memory pool"}) {
		t.Errorf("the domain: %v", err)
	}
	put(t, p, b)
	for _, end := range []func() error{func() error { _, err := p.Trim(); return err }, p.Close} {
		lib.Fail("ibv_dereg_mr", syscall.EBUSY)
		if err := end(); !errors.As(err, &busy) || p.Stats().Empty != 1 {
			t.Errorf("a region that a window is bound to: %v, %+v", err, p.Stats())
		}
		put(t, p, got(t, p, 1))
	}
	for range 2 {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}
	_, trimmed := p.Trim()
	_, err := p.Get(1)
	if !errors.Is(err, ErrClosed) || !errors.Is(trimmed, ErrClosed) {
		t.Errorf("closed: %v, %v", err, trimmed)
	}
}

// TestFakePoolWait: memory goes to those that wait in their order, and to no call before them.
func TestFakePoolWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const region = 4096
		p, _ := newPool(t, PoolAttr{Limit: 2 * region, Region: region})
		held := []Buffer{got(t, p, region/2), got(t, p, region/2), got(t, p, region)}
		type served struct {
			b   Buffer
			err error
		}
		wait := func(ctx context.Context, size int) <-chan served {
			c := make(chan served, 1)
			go func() {
				b, err := p.Wait(ctx, size)
				c <- served{b, err}
			}()
			synctest.Wait()
			return c
		}
		ctx, cancel := context.WithCancel(t.Context())
		canceled := wait(ctx, 1)
		large := wait(t.Context(), region)
		small := wait(t.Context(), 1)
		if n := p.Stats().Waiting; n != 3 {
			t.Errorf("%d wait", n)
		}
		cancel()
		if s := <-canceled; !errors.Is(s.err, context.Canceled) {
			t.Errorf("canceled: %v", s.err)
		}
		put(t, p, held[0])
		synctest.Wait()
		if _, err := p.Get(1); !errors.As(err, new(*ExhaustedError)) || !errors.Is(err, syscall.ENOBUFS) || len(small) != 0 {
			t.Errorf("before one that waits: %v, %d", err, len(small))
		}
		put(t, p, held[1])
		first := <-large
		if first.err != nil || len(small) != 0 {
			t.Errorf("%v, and %d that came later", first.err, len(small))
		}
		put(t, p, held[2])
		second := <-small
		if second.err != nil || p.Stats().Waiting != 0 {
			t.Errorf("%v, %+v", second.err, p.Stats())
		}
		put(t, p, first.b, second.b)
		if b, err := p.Wait(ctx, 1); err != nil { // a context that is done, and nothing to wait for
			t.Error(err)
		} else {
			put(t, p, b)
		}
	})
}

// TestFakePoolConcurrent: goroutines share a pool that has too little for all of them.
func TestFakePoolConcurrent(t *testing.T) {
	const region, goroutines, rounds = 4096, 8, 300
	p, _ := newPool(t, PoolAttr{Limit: 3 * region, Region: region})
	var all sync.WaitGroup
	for g := range goroutines {
		all.Go(func() {
			random := rand.New(rand.NewPCG(uint64(g), 0))
			for range rounds {
				size := 1 + random.IntN(1<<random.IntN(13))
				b, err := p.Wait(soon(t), size)
				if err != nil {
					t.Error(err)
					return
				}
				mem := b.Bytes()
				mem[0], mem[size-1] = byte(g), byte(g)
				if size%7 == 0 {
					if _, err := p.Trim(); err != nil {
						t.Error(err)
					}
				}
				if mem[0] != byte(g) || mem[size-1] != byte(g) {
					t.Errorf("goroutine %d has memory of another", g)
				}
				if err := p.Put(b); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
}

// TestFakePoolAllocs: neither Get nor Put allocates once there is memory, not even for buffers of
// another size.
func TestFakePoolAllocs(t *testing.T) {
	p, _ := newPool(t, PoolAttr{Limit: 64 << 10, Region: 64 << 10})
	round := func() {
		for size := 32; size <= 64<<10; size *= 2 {
			put(t, p, got(t, p, size))
		}
	}
	round()
	if n := testing.AllocsPerRun(100, round); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestPoolHugePagesRDMA: a region is of huge pages while the kernel has some. Then as without.
func TestPoolHugePagesRDMA(t *testing.T) {
	const file = "/proc/sys/vm/nr_hugepages"
	onDevices(t, nil, func(t *testing.T, c *Context) {
		before, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte("1"), 0); err != nil {
			t.Fatal(err)
		}
		defer os.WriteFile(file, before, 0)
		pd := must[*PD](t)(c.AllocPD())
		p := must[*Pool](t)(pd.NewPool(PoolAttr{Access: poolAccess, Limit: 8 << 20, Region: 2 << 20, HugePages: true}))
		bufs := []Buffer{got(t, p, 2<<20), got(t, p, 2<<20)}
		if s := p.Stats(); s.HugePages != 1 || s.Regions != 2 {
			t.Errorf("%+v, with 1 huge page", s)
		}
		for _, b := range bufs {
			fill(b.Bytes(), 1)
		}
		put(t, p, bufs...)
		if n, err := p.Trim(); n != 4<<20 || err != nil || p.Stats() != (PoolStats{}) {
			t.Errorf("%d bytes are freed, %v: %+v", n, err, p.Stats())
		}
	})
}

// BenchmarkPool compares a buffer of a pool with one that is made and registered, as programs without a
// pool do.
func BenchmarkPool(b *testing.B) {
	run := func(b *testing.B, c *Context) {
		pd := must[*PD](b)(c.AllocPD())
		pool := must[*Pool](b)(pd.NewPool(PoolAttr{Access: poolAccess, Limit: 64 << 20}))
		b.Run("Get", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				buf, err := pool.Get(4096)
				if err != nil {
					b.Fatal(err)
				}
				if err := pool.Put(buf); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run("RegMR", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				mr, err := pd.RegMR(make([]byte, 4096), poolAccess)
				if err != nil {
					b.Fatal(err)
				}
				if err := mr.Close(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	for _, name := range inKernel() {
		b.Run(name, func(b *testing.B) { run(b, must[*Context](b)(Open(name))) })
	}
	b.Run("fake", func(b *testing.B) {
		c, _, _ := fake(b)
		run(b, c)
	})
}
