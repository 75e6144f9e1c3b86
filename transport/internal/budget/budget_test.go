package budget

import "testing"

const mib = 1 << 20

// two returns a budget of 1 MiB with a tenant of each of two hosts.
func two() (b *Budget, holds, waits *Tenant) {
	b, holds, waits = New(mib), new(Tenant), new(Tenant)
	b.Join(holds, Terms{Host: "a", Start: mib, Most: mib})
	b.Join(waits, Terms{Host: "b", Start: mib, Most: mib, Wake: func() {}})
	return b, holds, waits
}

// A connection that ends after room was made for it, and before it took it, leaves nothing
// reserved.
func TestEndOfGranted(t *testing.T) {
	b, holds, waits := two()
	if !holds.Reserve(mib) || waits.Reserve(mib) {
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
	holds.Reserve(mib)
	if waits.Reserve(mib / 4) {
		t.Fatal("there is room for one")
	}
	holds.Release(mib, true)
	if !waits.Reserve(mib/4) || b.Stats().Held != mib/4 {
		t.Errorf("%d bytes are reserved for a call of %d", b.Stats().Held, mib/4)
	}
	waits.Release(mib/4, true)
	if b.Stats().Held != 0 {
		t.Errorf("%d bytes are reserved in the end", b.Stats().Held)
	}
}
