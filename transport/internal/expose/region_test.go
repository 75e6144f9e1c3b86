package expose

import (
	"os"
	"slices"
	"testing"

	"github.com/rpcrdma/rpcrdma/fabric"
)

// region returns an adapter with a set of one Region, of 100 bytes.
func region(t *testing.T, windows bool) (c *card, a *Adapter, m *Region) {
	t.Helper()
	c = &card{}
	a = &Adapter{Conn: c, Windows: windows, Regions: NewRegions()}
	m, err := a.Regions.Add(fabric.SGE{Buf: make([]byte, 100)})
	if err != nil {
		t.Fatal(err)
	}
	return c, a, m
}

// part is so much of the Region, from 10 on.
func part(m *Region, n int) fabric.SGE {
	return fabric.SGE{Buf: m.Bytes()[10:][:n], LKey: fabric.LocalDMAKey}
}

func TestRegion(t *testing.T) {
	t.Run("it is registered once for many loans, and the peer is told of the part", func(t *testing.T) {
		c, a, m := region(t, false)
		l, other := NewLoan(a), NewLoan(a)
		for range 2 {
			if seg := lend(t, &l, nil, part(m, 20), remoteRead); seg != (fabric.Segment{Handle: 1, Length: 20, Offset: 1<<40 + 10}) {
				t.Errorf("named %+v", seg)
			}
			lend(t, &other, nil, part(m, 30), remoteWrite)
			l.End()
			other.End()
		}
		c.said(t, "reg 1: 100 bytes, rights 7")
		if m.Registrations() != 1 {
			t.Errorf("%d adapters know it", m.Registrations())
		}
	})
	t.Run("V1-11-3 under windows it has no rights for the peer", func(t *testing.T) {
		c, a, m := region(t, true)
		l := NewLoan(a)
		for range 2 {
			var wrs []fabric.SendWR
			lend(t, &l, &wrs, part(m, 20), remoteRead)
			l.End()
		}
		c.said(t, "alloc 1", "reg 2: 100 bytes, rights 1",
			"prepare 0x101: 20 bytes of key 2, rights 4", "prepare 0x102: 20 bytes of key 2, rights 4")
	})
	t.Run("an adapter that takes any memory needs no registration of it", func(t *testing.T) {
		c, a, m := region(t, true)
		a.LocalDMA = true
		l := NewLoan(a)
		var wrs []fabric.SendWR
		lend(t, &l, &wrs, part(m, 20), remoteRead)
		c.said(t, "alloc 1", "prepare 0x101: 20 bytes of key 0, rights 4")
	})
	t.Run("memory elsewhere is registered for its loan, whatever the loan used before", func(t *testing.T) {
		c, a, m := region(t, false)
		l := NewLoan(a)
		lend(t, &l, nil, part(m, 20), remoteRead)
		l.End()
		if seg := lend(t, &l, nil, program(8), remoteRead); seg.Handle != 2 || seg.Length != 8 {
			t.Errorf("named %+v", seg)
		}
		l.End()
		c.said(t, "reg 1: 100 bytes, rights 7", "reg 2: 8 bytes, rights 4", "close 2")
	})
	t.Run("Register registers it with an adapter, once for each", func(t *testing.T) {
		c, a, m := region(t, false)
		other := &Adapter{Conn: c, Regions: a.Regions}
		for _, a := range []*Adapter{a, a, other} {
			if err := m.Register(a); err != nil {
				t.Fatal(err)
			}
		}
		c.said(t, "reg 1: 100 bytes, rights 7", "reg 2: 100 bytes, rights 7")
		if m.Registrations() != 2 {
			t.Errorf("%d adapters know it", m.Registrations())
		}
	})
	t.Run("OnRegister is told of each registration, without a lock", func(t *testing.T) {
		_, a, m := region(t, false)
		var told []int
		a.OnRegister = func(n int) {
			told = append(told, n)
			if !m.mu.TryLock() {
				t.Error("the Region is locked")
				return
			}
			m.mu.Unlock()
		}
		l := NewLoan(a)
		for _, mem := range []fabric.SGE{part(m, 20), part(m, 30), program(8)} {
			lend(t, &l, nil, mem, remoteRead)
		}
		if err := m.Register(a); err != nil || !slices.Equal(told, []int{100, 8}) {
			t.Errorf("%v; told of %v bytes", err, told)
		}
	})
	t.Run("the adapter does not take it", func(t *testing.T) {
		c, a, m := region(t, false)
		c.fails = "RegMR"
		l := NewLoan(a)
		if _, err := l.Expose(nil, 5, part(m, 20), remoteRead); err != errScripted || l.Len() != 0 {
			t.Errorf("error %v, %d exposed", err, l.Len())
		}
		if err := m.Register(a); err != errScripted || m.Registrations() != 0 {
			t.Errorf("error %v, %d adapters know it", err, m.Registrations())
		}
		m.Close()
		c.said(t)
	})
}

func TestWithdraw(t *testing.T) {
	t.Run("V1-11-3 without windows it ends the registration, for others, too", func(t *testing.T) {
		c, a, m := region(t, false)
		l, other := NewLoan(a), NewLoan(a)
		lend(t, &l, nil, part(m, 20), remoteRead)
		lend(t, &other, nil, part(m, 30), remoteRead)
		l.Withdraw()
		c.said(t, "reg 1: 100 bytes, rights 7", "close 1")
		l.End()
		if seg := lend(t, &l, nil, part(m, 20), remoteRead); seg.Handle != 2 {
			t.Errorf("the next loan has handle %d", seg.Handle)
		}
		other.End() // gives back what is gone, and leaves what is new
		l.End()
		c.said(t, "reg 2: 100 bytes, rights 7")
		m.Close()
		c.said(t, "close 2")
	})
	t.Run("a Region that is closed then keeps the registration that is still used", func(t *testing.T) {
		c, a, m := region(t, false)
		l, other := NewLoan(a), NewLoan(a)
		lend(t, &other, nil, part(m, 30), remoteRead)
		other.Withdraw()
		lend(t, &l, nil, part(m, 20), remoteRead)
		m.Close()
		c.log = nil
		other.End()
		if m.Registrations() != 1 {
			t.Errorf("%d adapters know it", m.Registrations())
		}
		c.log = nil
		l.End()
		c.said(t, "close 2")
	})
	t.Run("windows are closed by themselves", func(t *testing.T) {
		c, a, m := region(t, true)
		l := NewLoan(a)
		var wrs []fabric.SendWR
		lend(t, &l, &wrs, part(m, 20), remoteRead)
		c.log = nil
		l.Withdraw()
		c.said(t)
	})
	t.Run("memory of the loan alone waits for its end", func(t *testing.T) {
		c, a, _ := region(t, false)
		l := NewLoan(a)
		lend(t, &l, nil, program(8), remoteRead)
		l.Withdraw()
		c.said(t, "reg 1: 8 bytes, rights 4")
	})
}

func TestClose(t *testing.T) {
	t.Run("nobody uses it", func(t *testing.T) {
		c, a, m := region(t, false)
		if err := m.Register(a); err != nil {
			t.Fatal(err)
		}
		m.Close()
		m.Close()
		c.said(t, "reg 1: 100 bytes, rights 7", "close 1")
	})
	t.Run("the last of two loans ends the registration", func(t *testing.T) {
		c, a, m := region(t, false)
		l, other := NewLoan(a), NewLoan(a)
		lend(t, &l, nil, part(m, 20), remoteRead)
		lend(t, &other, nil, part(m, 20), remoteRead)
		m.Close()
		l.End()
		c.said(t, "reg 1: 100 bytes, rights 7")
		other.End()
		c.said(t, "close 1")
		if m.Registrations() != 0 {
			t.Errorf("%d adapters know it", m.Registrations())
		}
	})
	t.Run("afterwards the memory is like any other", func(t *testing.T) {
		c, a, m := region(t, false)
		m.Close()
		if err := m.Register(a); err != nil {
			t.Fatal(err)
		}
		l := NewLoan(a)
		lend(t, &l, nil, part(m, 20), remoteRead)
		l.End()
		c.said(t, "reg 1: 20 bytes, rights 4", "close 1")
		if _, err := a.Regions.Add(fabric.SGE{Buf: m.Bytes()}); err != nil {
			t.Error("it cannot be registered again:", err)
		}
	})
	t.Run("it is closed between being found and being borrowed", func(t *testing.T) {
		c, a, m := region(t, false)
		m.closed = true
		l := NewLoan(a)
		lend(t, &l, nil, part(m, 20), remoteRead)
		c.said(t, "reg 1: 20 bytes, rights 4")
	})
}

func TestForget(t *testing.T) {
	c, a, m := region(t, false)
	other := &Adapter{Conn: c, Regions: a.Regions}
	l := NewLoan(a)
	lend(t, &l, nil, part(m, 20), remoteRead)
	if err := m.Register(other); err != nil {
		t.Fatal(err)
	}
	c.log = nil
	a.Regions.Forget(a)
	c.said(t) // the connection has ended, and with it what was registered
	if m.Registrations() != 1 || m.registrations[other] == nil {
		t.Errorf("%d adapters know the Region, not the other one", m.Registrations())
	}
	l.End()
	c.said(t)
	m.Close()
	c.said(t, "close 2")
}

func TestRegions(t *testing.T) {
	mem := make([]byte, 400)
	s := NewRegions()
	add := func(from, to int) *Region {
		m, err := s.Add(fabric.SGE{Buf: mem[from:to]})
		if err != nil {
			t.Fatalf("%d to %d: %v", from, to, err)
		}
		return m
	}
	c, a, b := add(300, 350), add(100, 150), add(150, 200) // a and b are neighbors
	names := map[*Region]string{nil: "none", a: "a", b: "b", c: "c"}
	for _, tt := range []struct {
		name     string
		from, to int
		want     *Region
	}{
		{"all of it", 100, 150, a},
		{"its first byte", 100, 101, a},
		{"its last byte", 149, 150, a},
		{"the first byte of its neighbor", 150, 151, b},
		{"all of its neighbor", 150, 200, b},
		{"a part of both neighbors", 149, 151, nil},
		{"all of both neighbors", 100, 200, nil},
		{"the byte in front", 99, 100, nil},
		{"the byte in front and the first", 99, 101, nil},
		{"the last byte and the one behind", 199, 201, nil},
		{"the byte behind", 200, 201, nil},
		{"between two", 240, 250, nil},
		{"the last Region", 300, 350, c},
		{"behind the last", 350, 400, nil},
		{"nothing", 120, 120, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := s.find(&fabric.SGE{Buf: mem[tt.from:tt.to]}); got != tt.want {
				t.Errorf("%s, want %s", names[got], names[tt.want])
			}
		})
	}
	for _, tt := range []struct {
		name     string
		from, to int
	}{
		{"no memory", 10, 10},
		{"the same", 100, 150},
		{"a part", 110, 120},
		{"more on both sides", 90, 210},
		{"the last byte", 199, 210},
		{"the first byte", 290, 301},
		{"two neighbors", 140, 160},
	} {
		t.Run("refused: "+tt.name, func(t *testing.T) {
			if _, err := s.Add(fabric.SGE{Buf: mem[tt.from:tt.to]}); err == nil {
				t.Error("it was added")
			}
		})
	}
	t.Run("one that is closed is found no more, and its place is free", func(t *testing.T) {
		a.Close()
		if s.find(&fabric.SGE{Buf: mem[100:110]}) != nil || s.find(&fabric.SGE{Buf: mem[150:160]}) != b {
			t.Error("the wrong one is gone")
		}
		add(90, 150)
	})
	t.Run("an empty set", func(t *testing.T) {
		if NewRegions().find(&fabric.SGE{Buf: mem}) != nil {
			t.Error("something was found")
		}
	})
	t.Run("foreign memory: addresses of this process, and offsets in each file", func(t *testing.T) {
		s := NewRegions()
		one, other := new(os.File), new(os.File)
		at := func(f *os.File, addr, n uint64) fabric.SGE {
			return fabric.SGE{Foreign: &fabric.Foreign{File: f, Addr: addr, Len: n}}
		}
		var all []*Region
		for _, mem := range []fabric.SGE{at(one, 0, 100), at(other, 50, 100), at(nil, 0x1000, 100), at(one, 100, 50)} {
			m, err := s.Add(mem)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, m)
		}
		for _, tt := range []struct {
			mem  fabric.SGE
			want *Region
		}{
			{at(one, 0, 100), all[0]}, {at(one, 99, 1), all[0]}, {at(one, 99, 2), nil}, {at(one, 100, 50), all[3]},
			{at(other, 50, 1), all[1]}, {at(other, 49, 1), nil}, {at(other, 0, 10), nil},
			{at(nil, 0x1000, 100), all[2]}, {at(nil, 50, 10), nil}, {at(new(os.File), 50, 10), nil},
		} {
			if got := s.find(&tt.mem); got != tt.want {
				t.Errorf("%+v: %v", *tt.mem.Foreign, got)
			}
		}
		if _, err := s.Add(at(one, 149, 10)); err == nil {
			t.Error("an overlap was added")
		}
	})
}
