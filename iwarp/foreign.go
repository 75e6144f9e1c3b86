package iwarp

import (
	"fmt"
	"math"
	"unsafe"

	"github.com/rpcrdma/rpcrdma/fabric"
)

// A mapping is foreign memory that is mapped into this process. An adapter in software has no other access to it.
type mapping struct {
	of   fabric.Foreign
	buf  []byte
	file []byte // the mapped part of File, in whole pages
}

// RegForeign implements fabric.Conn. A File is mapped until the region is closed.
func (c *Conn) RegForeign(mem fabric.Foreign, access fabric.Access) (fabric.MR, error) {
	m, err := newMapping(mem)
	if err != nil {
		return nil, err
	}
	mr, err := c.regMR(m.buf, access, m)
	if err != nil {
		m.unmap()
		return nil, err
	}
	return mr, nil
}

func newMapping(mem fabric.Foreign) (*mapping, error) {
	m := &mapping{of: mem}
	switch {
	case mem.Len == 0 || mem.Len > math.MaxInt/2 || mem.Addr > math.MaxInt64-mem.Len:
		return nil, fmt.Errorf("%w: foreign memory of %d bytes at %#x", ErrMisuse, mem.Len, mem.Addr)
	case mem.File != nil:
		return m, m.mapFile()
	case uint64(uintptr(mem.Addr)) != mem.Addr || mem.Addr == 0:
		return nil, fmt.Errorf("%w: foreign memory at %#x", ErrMisuse, mem.Addr)
	}
	m.buf = unsafe.Slice(*(**byte)(unsafe.Pointer(&mem.Addr)), int(mem.Len))
	return m, nil
}

// slice returns the memory of a part. ok is false if the part is not inside the mapping.
func (m *mapping) slice(part *fabric.Foreign) (buf []byte, ok bool) {
	if m == nil || !part.In(m.of) {
		return nil, false
	}
	return m.buf[part.Addr-m.of.Addr:][:part.Len], true
}

// resolve replaces the Foreign of an SGE with the memory of its region.
func (t *entries) resolve(sge *fabric.SGE) bool {
	if sge.Foreign == nil {
		return true
	}
	_, e := t.entry(sge.LKey)
	if e == nil {
		return false
	}
	buf, ok := e.foreign.slice(sge.Foreign)
	sge.Buf, sge.Foreign = buf, nil
	return ok
}

// resolved returns copies of requests in which each Foreign is resolved.
func (c *Conn) resolved(wrs []fabric.SendWR) ([]fabric.SendWR, error) {
	wrs = append([]fabric.SendWR(nil), wrs...)
	for i := range wrs {
		wrs[i].SGL = append([]fabric.SGE(nil), wrs[i].SGL...)
		for j := range wrs[i].SGL {
			ok := c.stags.entries.Lock().resolve(&wrs[i].SGL[j])
			c.stags.entries.Unlock()
			if !ok {
				return nil, ErrBadMemory
			}
		}
	}
	return wrs, nil
}

// resolvedRecvs returns copies of receives in which each Foreign is resolved.
func (c *Conn) resolvedRecvs(wrs []fabric.RecvWR) ([]fabric.RecvWR, error) {
	fresh := false
	for i := range wrs {
		if wrs[i].SGE.Foreign == nil {
			continue
		}
		if !fresh {
			wrs, fresh = append([]fabric.RecvWR(nil), wrs...), true
		}
		ok := c.stags.entries.Lock().resolve(&wrs[i].SGE)
		c.stags.entries.Unlock()
		if !ok {
			return nil, ErrBadMemory
		}
	}
	return wrs, nil
}
