package transport

import (
	"github.com/rpcrdma/rpcrdma/internal/origin"
	"github.com/rpcrdma/rpcrdma/transport/internal/arena"
	"github.com/rpcrdma/rpcrdma/transport/internal/budget"
)

// holdings is the memory of an exchange: results, their buffers, and how much counts in the budget. The owner of the
// exchange owns it.
type holdings struct {
	tenant *budget.Tenant
	arena  *arena.Arena

	items  []origin.Item
	mems   []*arena.Buffer // handed out by alloc
	after  []func()        // see Request.WhenReleased
	held   int             // bytes reserved in the budget
	used   int             // bytes of memory in use; bulk data is reserved
	values int             // bytes of decoded arguments, not included in held
}

// alloc returns a buffer of at least n bytes, which is kept until the reply has been sent. Buffers of up to free bytes
// are always granted. The call's reservation has room for all results that fit its chunks and MaxMessage. Results of
// less than half a buffer do not count against it, so that many of them do not exhaust it.
func (h *holdings) alloc(n, free int) (*arena.Buffer, error) {
	size := arena.SizeOf(n)
	more := h.used + size - h.held
	switch {
	case size > 2*n:
		h.held += size
		h.tenant.Charge(int64(size))
	case more > 0 && size > free:
		if !h.tenant.Extend(int64(h.held), int64(more)) {
			return nil, errMemory
		}
		h.held += more
	}
	b, err := h.arena.Get(n)
	if err != nil {
		return nil, err
	}
	h.charge(size)
	h.mems = append(h.mems, b)
	return b, nil
}

// charge counts memory that the exchange holds until its end, or until settle.
func (h *holdings) charge(n int) {
	h.used += n
	if more := h.used - h.held; more > 0 {
		h.held += more
		h.tenant.Charge(int64(more))
	}
}

// settle returns reserved memory that is not needed. taken reports whether that is because the peer has taken the
// reply.
func (h *holdings) settle(taken bool) {
	if n := h.held - h.used; n > 0 {
		h.held = h.used
		h.tenant.Release(int64(n), taken)
	}
}

// TakeValues reserves memory for decoded arguments, which counts until the handler has returned.
func (h *holdings) TakeValues(n int) bool {
	ok := h.tenant.Decode(int64(h.values), int64(n))
	if ok {
		h.values += n
	}
	return ok
}

// dropValues releases the memory of decoded arguments.
func (h *holdings) dropValues() {
	if n := h.values; n > 0 {
		h.values = 0
		h.tenant.Decoded(int64(n))
	}
}

// own returns the buffer that begins with data, or nil.
func (h *holdings) own(data []byte) *arena.Buffer {
	for _, b := range h.mems {
		if len(data) > 0 && &b.Bytes[0] == &data[0] {
			return b
		}
	}
	return nil
}

func (h *holdings) WhenReleased(f func()) { h.after = append(h.after, f) }

func (h *holdings) Items() *[]origin.Item { return &h.items }

// dropItems drops the results that may be chunks.
func (h *holdings) dropItems() {
	for i := range h.items {
		if f := h.items[i].Release; f != nil {
			f()
		}
	}
	clear(h.items)
	h.items = h.items[:0]
}

// dropAll releases all memory except the reservation: see settle.
func (h *holdings) dropAll() {
	h.dropItems()
	h.dropValues()
	h.dropMems()
	for _, f := range h.after {
		f()
	}
	clear(h.after)
	h.after = h.after[:0]
	h.used = 0
}

// dropMems returns the buffers handed out by alloc.
func (h *holdings) dropMems() {
	for _, b := range h.mems {
		h.arena.Put(b)
	}
	clear(h.mems)
	h.mems = h.mems[:0]
}
