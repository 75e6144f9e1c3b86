//go:build linux && cgo

package ibv

import (
	"bytes"
	"errors"
	"io"
	"slices"
	"syscall"
	"testing"

	"github.com/rpcrdma/rpcrdma/cgo/cgotest"
)

// TestFakeRegions: the library gets the memory that a region is of, and work requests have its
// addresses, whether or not it is a Go slice.
func TestFakeRegions(t *testing.T) {
	s := newSet(t)
	buf := mmapped(t, 8192)
	dm := must[*DM](t)(s.c.AllocDM(4096, 6))
	for _, tc := range []struct {
		name   string
		call   string
		make   func() (*MR, error)
		memory cgotest.Memory
	}{
		{
			"a slice", "ibv_reg_mr", func() (*MR, error) { return s.pd.RegMR(buf, AccessLocalWrite) },
			cgotest.Memory{Addr: addrOf(buf), Length: 8192, Iova: addrOf(buf), FD: -1, Access: 1},
		},
		{
			"a slice at another address", "ibv_reg_mr_iova", func() (*MR, error) { return s.pd.RegMRIova(buf, 1<<40, AccessLocalWrite) },
			cgotest.Memory{Addr: addrOf(buf), Length: 8192, Iova: 1 << 40, FD: -1, Access: 1},
		},
		{
			"an address", "ibv_reg_mr_iova", func() (*MR, error) { return s.pd.RegMRAt(addrOf(buf), 4096, 1<<41, 0) },
			cgotest.Memory{Addr: addrOf(buf), Length: 4096, Iova: 1 << 41, FD: -1},
		},
		{
			"a DMA-BUF", "ibv_reg_dmabuf_mr", func() (*MR, error) { return s.pd.RegDmabufMR(77, 4096, 1<<30, 1<<42, AccessRemoteRead) },
			cgotest.Memory{Addr: 4096, Length: 1 << 30, Iova: 1 << 42, FD: 77, Access: 4},
		},
		{"nothing", "ibv_alloc_null_mr", s.pd.AllocNullMR, cgotest.Memory{FD: -1}},
		{
			"device memory", "ibv_reg_dm_mr", func() (*MR, error) { return s.pd.RegDMMR(dm, 64, 128, AccessLocalWrite) },
			cgotest.Memory{Addr: 64, Length: 128, FD: -1, Access: 1 | 1<<5, Device: dm.Raw()},
		},
	} {
		s.lib.Fail(tc.call, syscall.EOPNOTSUPP)
		var e *Error
		if _, err := tc.make(); !errors.As(err, &e) || e.Call != tc.call || !errors.Is(err, syscall.EOPNOTSUPP) {
			t.Errorf("%s: %v", tc.name, err)
		}
		mr, err := tc.make()
		if err != nil {
			t.Errorf("%s: %v", tc.name, err)
			continue
		}
		if got, _ := s.lib.Memory(mr.Raw()); got != tc.memory || mr.Addr() != got.Iova || mr.Len() != got.Length {
			t.Errorf("%s: %+v, want %+v", tc.name, got, tc.memory)
		}
		if err := s.qp.PostSend([]SendWR{{Opcode: OpSend, SGL: []SGE{mr.SGE(32, 16), mr.SGE(5, 0)}}}); err != nil {
			t.Fatal(err)
		}
		send := s.device().Sends()[0]
		if len(send.SGL) != 1 || send.SGL[0].Addr != mr.Addr()+32 || send.SGL[0].Length != 16 || send.SGL[0].LKey != mr.LKey() {
			t.Errorf("%s: a part is %+v", tc.name, send.SGL)
		}
		send.Complete(0)
		var wcs [1]WC
		s.cq.Poll(wcs[:])
		if tc.memory.Device != nil && dm.Close() == nil {
			t.Errorf("%s: it is freed before its region", tc.name)
		}
		if err := mr.Close(); err != nil {
			t.Errorf("%s: %v", tc.name, err)
		}
	}

	bind := SendWR{Opcode: OpBindMW, Bind: &MWBind{MW: s.mw, MR: s.mr, Addr: 1 << 42, Length: 1 << 35}}
	if err := s.qp.PostSend([]SendWR{bind}); err != nil {
		t.Fatal(err)
	}
	if send := s.device().Sends()[0]; send.Arg1 != 1<<42 || send.Arg2 != 1<<35 {
		t.Errorf("a bind of a part that is no slice: %+v", send.SendWR)
	}
}

// TestFakeRereg: a region that has been changed is another object, and one that could not be is as it
// was or can only be closed.
func TestFakeRereg(t *testing.T) {
	s := newSet(t)
	other := must[*PD](t)(s.c.AllocPD())
	foreign, _, _ := fake(t)
	elsewhere := must[*PD](t)(foreign.AllocPD())
	mr := must[*MR](t)(s.pd.RegMR(make([]byte, 100), AccessLocalWrite))
	for _, tc := range []struct {
		name   string
		attr   ReregAttr
		errno  syscall.Errno
		usable bool
	}{
		{"to no domain", ReregAttr{Change: ReregPD}, 0, true},
		{"to a domain of another device", ReregAttr{Change: ReregPD, PD: elsewhere}, 0, true},
		{"refused", ReregAttr{Change: ReregAccess}, syscall.EOPNOTSUPP, true},
		{"broken", ReregAttr{Change: ReregAccess}, syscall.EIO, false},
	} {
		if tc.errno != 0 {
			s.lib.Fail("ibv_rereg_mr", tc.errno)
		}
		_, err := mr.Rereg(tc.attr)
		var e *ReregError
		if tc.errno == 0 && !errors.Is(err, syscall.EINVAL) || tc.errno != 0 && (!errors.As(err, &e) || e.Usable != tc.usable || !errors.Is(err, tc.errno)) {
			t.Errorf("%s: %v", tc.name, err)
		}
	}
	buf := make([]byte, 200)
	next, err := mr.Rereg(ReregAttr{Change: ReregTranslation | ReregPD | ReregAccess, Buf: buf, PD: other, Access: AccessRemoteRead})
	if err != nil {
		t.Fatal(err)
	}
	memory, domain := s.lib.Memory(next.Raw())
	if memory.Addr != addrOf(buf) || memory.Length != 200 || memory.Access != int(AccessRemoteRead) || domain != other.Raw() || next.LKey() == mr.LKey() {
		t.Errorf("%+v with key %#x, which was %#x", memory, next.LKey(), mr.LKey())
	}
	if _, err := mr.Rereg(ReregAttr{Change: ReregAccess}); !errors.Is(err, ErrClosed) {
		t.Errorf("the region that there was: %v", err)
	}
	var busy *BusyError
	if err := other.Close(); !errors.As(err, &busy) {
		t.Errorf("the domain that it is in now: %v", err)
	}
	if err := errors.Join(mr.Close(), next.Close(), other.Close()); err != nil {
		t.Error(err)
	}
}

// TestFakeDeviceMemory: bytes that are written to device memory are read from it, within its bounds.
func TestFakeDeviceMemory(t *testing.T) {
	s := newSet(t)
	dm := must[*DM](t)(s.c.AllocDM(100, 0))
	if _, err := dm.WriteAt([]byte("near"), 96); err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(io.NewSectionReader(dm, 90, int64(dm.Len())-90))
	if want := append(make([]byte, 6), "near"...); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%q, %v", got, err)
	}
	for _, offset := range []int64{-1, 97, 1 << 62} {
		if _, err := dm.WriteAt([]byte("near"), offset); !errors.Is(err, syscall.EFAULT) {
			t.Errorf("at %d: %v", offset, err)
		}
		if _, err := dm.ReadAt(make([]byte, 4), offset); !errors.Is(err, syscall.EFAULT) {
			t.Errorf("at %d: %v", offset, err)
		}
	}
	for call, f := range map[string]func() error{
		"ibv_alloc_dm":       func() error { _, err := s.c.AllocDM(1, 0); return err },
		"ibv_memcpy_to_dm":   func() error { _, err := dm.WriteAt([]byte{1}, 0); return err },
		"ibv_memcpy_from_dm": func() error { _, err := dm.ReadAt([]byte{1}, 0); return err },
		"ibv_advise_mr":      func() error { return s.pd.AdviseMR(AdvicePrefetch, true, s.mr.SGE(0, 10)) },
		"ibv_free_dm":        dm.Close,
	} {
		s.lib.Fail(call, syscall.EIO)
		var e *Error
		if err := f(); !errors.As(err, &e) || e.Call != call || !errors.Is(err, syscall.EIO) {
			t.Errorf("%s: %v", call, err)
		}
	}
	if err := s.pd.AdviseMR(AdvicePrefetchWrite, false, s.mr.SGE(0, 10)); err != nil {
		t.Error(err)
	}
	if err := dm.Close(); err != nil {
		t.Error(err)
	}
	if _, err := dm.ReadAt(make([]byte, 1), 0); !errors.Is(err, ErrClosed) {
		t.Errorf("closed: %v", err)
	}
}

// TestRegionsRDMA: a region has the address that it was given, for its owner and for the peer, and a
// device that cannot do something says so.
func TestRegionsRDMA(t *testing.T) {
	onDevices(t, []string{"rxe"}, func(t *testing.T, c *Context) {
		p := newPair(t, c, nil)
		a, b := p.a, p.b
		const iova = 1 << 40
		far := must[*MR](t)(p.pd.RegMRIova(b.buf, iova, everything))
		near := must[*MR](t)(p.pd.RegMRAt(addrOf(a.buf), endMemory, 2*iova, everything))
		fill(a.buf[:30_000], 5)
		a.post(SendWR{ID: 1, Opcode: OpRDMAWrite, SGL: []SGE{near.SGE(100, 20_000)}, RemoteAddr: iova + 3, RKey: far.RKey()})
		a.done(1, WCRDMAWrite)
		if !bytes.Equal(b.buf[3:20_003], a.buf[100:20_100]) || b.buf[20_003] != 0 {
			t.Error("other bytes have been written")
		}
		a.post(SendWR{ID: 2, Opcode: OpRDMARead, SGL: []SGE{near.SGE(40_000, 5000)}, RemoteAddr: iova + 10_000, RKey: far.RKey()})
		a.done(2, WCRDMARead)
		if !bytes.Equal(a.buf[40_000:45_000], b.buf[10_000:15_000]) {
			t.Error("other bytes have been read")
		}
		a.post(SendWR{ID: 3, Opcode: OpRDMAWrite, SGL: []SGE{near.SGE(0, 1)}, RemoteAddr: addrOf(b.buf), RKey: far.RKey()})
		a.failed(3, WCRemAccessErr)
	})
	onDevices(t, []string{"rxe", "siw"}, func(t *testing.T, c *Context) {
		pd := must[*PD](t)(c.AllocPD())
		mr := must[*MR](t)(pd.RegMR(mmapped(t, 4096), AccessLocalWrite))
		// Without an operation of the provider it is the library's answer, whatever the descriptor.
		for _, fd := range []int{-1, 0} {
			if _, err := pd.RegDmabufMR(fd, 0, 4096, 0, AccessLocalWrite); !errors.Is(err, syscall.EOPNOTSUPP) {
				t.Errorf("ibv_reg_dmabuf_mr of descriptor %d: %v", fd, err)
			}
		}
		for call, f := range map[string]func() error{
			"ibv_alloc_null_mr": func() error { _, err := pd.AllocNullMR(); return err },
			"ibv_rereg_mr":      func() error { _, err := mr.Rereg(ReregAttr{Change: ReregAccess}); return err },
			"ibv_advise_mr":     func() error { return pd.AdviseMR(AdvicePrefetch, true, mr.SGE(0, 4096)) },
			"ibv_alloc_dm":      func() error { _, err := c.AllocDM(64, 0); return err },
		} {
			var errno syscall.Errno
			if err := f(); !errors.As(err, &errno) || !slices.Contains([]syscall.Errno{syscall.EOPNOTSUPP, syscall.ENOSYS, syscall.EPROTONOSUPPORT}, errno) {
				t.Errorf("%s: %v", call, err)
			}
		}
	})
}
