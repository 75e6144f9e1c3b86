package budget

import (
	"fmt"
	"testing"
)

const mib = 1 << 20

// two returns a budget of 1 MiB with a tenant of each of two hosts.
func two() (b *Budget, holds, waits *Tenant) {
	b, holds, waits = New(mib), new(Tenant), new(Tenant)
	b.Join(holds, Terms{Host: "a", Start: mib, Most: mib, Wake: func() {}})
	b.Join(waits, Terms{Host: "b", Start: mib, Most: mib, Wake: func() {}})
	return b, holds, waits
}

// A connection that ends after room was made for it, and before it took it, leaves nothing
// reserved.
func TestEndOfGranted(t *testing.T) {
	b, holds, waits := two()
	if !holds.Reserve(0, mib) || waits.Reserve(0, mib) {
		t.Fatal("there is room for one")
	}
	holds.Release(mib, true)
	if waits.granted != mib {
		t.Fatalf("%d bytes are granted", waits.granted)
	}
	waits.Leave()
	if holds.Leave(); b.Stats().Held != 0 {
		t.Errorf("%d bytes are reserved", b.Stats().Held)
	}
}

// A connection that asks again just when room was made for it reserves once.
func TestAsksWhileGranted(t *testing.T) {
	b, holds, waits := two()
	holds.Reserve(0, mib)
	if waits.Reserve(0, mib/4) {
		t.Fatal("there is room for one")
	}
	holds.Release(mib, true)
	if !waits.Reserve(0, mib/4) || b.Stats().Held != mib/4 {
		t.Errorf("%d bytes are reserved for a call of %d", b.Stats().Held, mib/4)
	}
	waits.Release(mib/4, true)
	if b.Stats().Held != 0 {
		t.Errorf("%d bytes are reserved in the end", b.Stats().Held)
	}
}

// A connection that was granted room for a call, and asks for a call of another size, reserves
// what it asks for.
func TestGrantOfAnotherSize(t *testing.T) {
	for _, n := range []int64{mib / 8, mib / 2} {
		b, holds, waits := two()
		holds.Reserve(0, mib)
		waits.Reserve(0, mib/4)
		holds.Release(mib, true)
		if !waits.Reserve(0, n) || b.Stats().Held != n || waits.Held() != n {
			t.Errorf("%d bytes are reserved for a call of %d", b.Stats().Held, n)
		}
	}
}

// How many of 60 bytes connections reserve that ask for one at a time, in turn, until none gets
// any more.
func TestShares(t *testing.T) {
	for _, tt := range []struct {
		hosts, conns int // of each
		want         int64
	}{
		{1, 1, 12},  // a third of what it leaves to its host, 36 of 48
		{1, 2, 16},  // 8 each; of 44 that remain 28 are the host's, and a third of those is less than 10
		{1, 60, 30}, // the host has as much as it leaves to others
		{2, 1, 20},
		{2, 60, 40},
		{3, 60, 45},
	} {
		t.Run(fmt.Sprintf("%d connections of %d hosts", tt.conns, tt.hosts), func(t *testing.T) {
			b := New(60)
			var tenants []*Tenant
			for range tt.conns {
				for h := range tt.hosts {
					tn := new(Tenant)
					b.Join(tn, Terms{Host: fmt.Sprint(h), Start: 60, Most: 60, Wake: func() {}})
					tenants = append(tenants, tn)
				}
			}
			for more := true; more; {
				more = false
				for _, tn := range tenants {
					more = tn.Reserve(0, 1) || more
				}
			}
			if got := b.Stats().Held; got != tt.want {
				t.Errorf("%d bytes are reserved, want %d", got, tt.want)
			}
		})
	}
}

// A connection begins with Start, and may reserve twice as much each time that its peer has taken
// as much as it may reserve, up to Most.
func TestAllowance(t *testing.T) {
	b, tn := New(1000*mib), new(Tenant)
	b.Join(tn, Terms{Host: "a", Start: 10, Most: 35, Wake: func() {}})
	may := func(what string, want int64) {
		t.Helper()
		n := int64(0)
		for tn.Extend(0, 1) {
			n++
		}
		if tn.Release(n, false); n != want {
			t.Errorf("%s: it may reserve %d bytes, want %d", what, n, want)
		}
	}
	take := func(n int64) {
		tn.Charge(n)
		tn.Release(n, true)
	}
	may("at first", 10)
	take(9)
	may("the peer has taken 9", 10)
	take(1)
	may("the peer has taken 10", 20)
	take(20)
	may("it has taken 20 more", 35)
	take(100)
	may("it has taken more than that", 35)
	tn.Restart()
	may("it takes nothing", 10)
}

// Memory that others have mapped and do not use is unmapped when a call needs the room, that of
// the connection of the call last.
func TestReclaim(t *testing.T) {
	for _, tt := range []struct {
		name             string
		idle, theirs     int // bytes mapped and not in use: all, and of the other connection
		reserve          int64
		fromThem, fromUs int // bytes that have to be released
	}{
		{"there is room", 40, 40, 60, 0, 0},
		{"a byte is missing", 40, 40, 61, 1, 0},
		{"all of it", 40, 40, 100, 40, 0},
		{"the other has too little", 40, 10, 80, 20, 10},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b, us, them := New(100), new(Tenant), new(Tenant)
			b.Usage().Idle.Store(int64(tt.idle))
			fromThem, fromUs := 0, 0
			b.Join(us, Terms{Host: "a", Start: 100, Most: 100, Trim: func(n int) int { fromUs = n; return n }})
			b.Join(them, Terms{Host: "b", Start: 100, Most: 100, Trim: func(n int) int { fromThem = n; return min(n, tt.theirs) }})
			if !us.Reserve(0, tt.reserve) {
				t.Fatal("idle memory keeps a call waiting")
			}
			if fromThem != tt.fromThem || fromUs != tt.fromUs {
				t.Errorf("asked to unmap %d and %d bytes, want %d and %d", fromThem, fromUs, tt.fromThem, tt.fromUs)
			}
		})
	}
}

// Of calls that wait and hold all there is between them, one gets more than the limit at a time.
func TestAllParked(t *testing.T) {
	b, one, other := two()
	if !one.Reserve(0, mib/2) || !other.Reserve(0, mib/2) {
		t.Fatal("there is room for both")
	}
	if one.Reserve(mib/2, mib/4) {
		t.Fatal("the other call can run to its end, and release what it holds")
	}
	if !other.Reserve(mib/2, mib/4) {
		t.Fatal("both wait")
	}
	if one.Reserve(mib/2, mib/4) || b.Stats().Held != mib+mib/4 {
		t.Errorf("%d bytes are reserved", b.Stats().Held)
	}
	other.Release(mib/2+mib/4, true)
	if !one.Reserve(mib/2, mib/4) {
		t.Error("there is room")
	}
	one.Release(mib/2+mib/4, true)
	if one.Reserve(0, mib); b.Stats().Held != mib || b.parked != 0 {
		t.Errorf("in the end %d bytes are reserved, and %d parked", b.Stats().Held, b.parked)
	}
}

// A call that is read ahead may go beyond the bound of its connection, and not beyond that of all.
func TestAhead(t *testing.T) {
	b, one, other := two()
	one.cfg.Most = mib / 8
	other.Reserve(0, mib/2)
	if !one.Ahead(mib/8) || one.Ahead(1) {
		t.Error("a connection may take as much again as its bound")
	}
	if other.Ahead(mib / 4) {
		t.Error("a host may take no more than it leaves to others")
	}
	one.Proceed(mib/8, mib/8)
	if b.parked != 0 || !one.Ahead(mib/8) {
		t.Errorf("%d bytes are parked after the calls have proceeded", b.parked)
	}
}

// Values that calls decode do not take the room of what a connection's calls reserve, and the shares of
// hosts and of all bound them.
func TestDecode(t *testing.T) {
	b, one, other := two()
	one.cfg.Most = mib / 8
	if !one.Reserve(0, mib/8) || !one.Decode(0, mib/8) || one.Decode(0, 1) {
		t.Error("a connection may decode as much as it may reserve")
	}
	one.Decoded(mib / 8)
	if !one.Decode(0, mib/8) || !one.Decode(mib/8, mib/8) || one.Decode(0, 1) {
		t.Error("a single call may decode more, and no other call beside it")
	}
	if one.Decode(mib/4, mib/4) || other.Decode(0, mib/2) {
		t.Error("a host may take no more than it leaves to others")
	}
	one.Decoded(mib / 4)
	one.Release(mib/8, true)
	if one.Leave(); one.Held() != 0 || b.Stats().Held != 0 || !other.Decode(0, mib/2) {
		t.Errorf("in the end %d bytes are held", b.Stats().Held)
	}
}
