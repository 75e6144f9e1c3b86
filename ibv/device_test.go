//go:build linux && cgo

package ibv

import (
	"errors"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// TestNoDevices: without devices there is an error that says what may be missing.
func TestNoDevices(t *testing.T) {
	if names := inKernel(); len(names) > 0 {
		t.Skipf("the kernel has RDMA devices: %q", names)
	}
	list, err := Devices()
	var none *NoDeviceError
	if len(list) != 0 || !errors.As(err, &none) || !errors.Is(err, syscall.ENODEV) {
		t.Fatalf("Devices: %v, %v", list, err)
	}
	if !strings.Contains(err.Error(), "rdma link add") {
		t.Errorf("the error helps nobody: %v", err)
	}
	if _, err := Open("rxe0"); !errors.As(err, &none) || none.Name != "rxe0" {
		t.Errorf("Open: %v", err)
	}
}

func TestDevicesRDMA(t *testing.T) {
	names := deviceNames(t)
	list, err := Devices()
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range list {
		if !slices.Contains(names, d.Name) {
			t.Errorf("%s is not in %s", d.Name, sysDevices)
		}
		t.Logf("%+v", d)
		guid, err := os.ReadFile("/sys/class/infiniband/" + d.Name + "/node_guid")
		if err == nil && strings.TrimSpace(string(guid)) != d.GUID.String() {
			t.Errorf("%s has GUID %s, not %v", d.Name, guid, d.GUID)
		}
		want := map[string]Transport{"rxe": TransportIB, "siw": TransportIWARP}
		if tr, ok := want[kindOf(d.Name)]; ok && d.Transport != tr {
			t.Errorf("%s is of transport %v", d.Name, d.Transport)
		}
	}
	_, err = Open("nosuch0")
	var none *NoDeviceError
	if !errors.As(err, &none) || none.Name != "nosuch0" || len(none.Devices) != len(list) {
		t.Errorf("Open of an unknown device: %v", err)
	}
}

func TestQueryRDMA(t *testing.T) {
	onDevices(t, nil, func(t *testing.T, c *Context) {
		a, err := c.Query()
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%+v, %d vectors", a, c.NumCompVectors())
		if a.MaxQP == 0 || a.MaxCQE == 0 || a.MaxMR == 0 || a.PhysPortCount == 0 || c.NumCompVectors() == 0 {
			t.Errorf("a device without anything: %+v", a)
		}
		windows := kindOf(c.Info().Name) == "rxe"
		if a.MemoryWindowType2() != windows || a.MemoryWindowType1() != windows {
			t.Errorf("memory windows: type 1 %v, type 2 %v", a.MemoryWindowType1(), a.MemoryWindowType2())
		}
		for port := range a.PhysPortCount {
			p, err := c.QueryPort(uint8(port + 1))
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("%+v", p)
			if p.State != PortActive || p.ActiveMTU.Bytes() == 0 || p.MaxMsgSize == 0 {
				t.Errorf("port %d: %+v", port+1, p)
			}
		}
		if _, err := c.QueryPort(200); err == nil {
			t.Error("port 200 exists")
		}
		if kindOf(c.Info().Name) == "rxe" {
			if key, err := c.QueryPkey(1, 0); err != nil || key != 0xffff {
				t.Errorf("partition key %#x, %v", key, err)
			}
		}
	})
}

func TestGIDTableRDMA(t *testing.T) {
	onDevices(t, nil, func(t *testing.T, c *Context) {
		table, err := c.GIDTable()
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%v", table)
		if len(table) == 0 {
			t.Fatal("no GID")
		}
		if kindOf(c.Info().Name) != "rxe" {
			return
		}
		i := slices.IndexFunc(table, func(e GIDEntry) bool {
			return e.GID.Addr().String() == os.Getenv("RPCRDMA_RXE_ADDR")
		})
		if addr := os.Getenv("RPCRDMA_RXE_ADDR"); addr != "" && (i < 0 || table[i].Type != GIDTypeRoCEv2 || table[i].NetdevIndex == 0) {
			t.Errorf("the table lacks %s", addr)
		}
		// Ports that were found without the kernel's table are the same.
		p, err := c.QueryPort(1)
		if err != nil {
			t.Fatal(err)
		}
		slow, err := c.gidsOneByOne([]int{p.GIDTableLen})
		if err != nil || !slices.Equal(slow, table) {
			t.Errorf("one by one: %v, %v", slow, err)
		}
	})
}

// TestPermissionRDMA: a device file without rights is named in the error.
func TestPermissionRDMA(t *testing.T) {
	for _, name := range deviceNames(t) {
		path := verbsPath(name)
		if path == devVerbs {
			t.Fatalf("no device file for %s", name)
		}
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if os.Geteuid() != 0 {
			t.Skipf("only root can change the rights of %s", path)
		}
		// Root's own file with no rights opens for a capability alone.
		if err := os.Chmod(path, 0); err != nil {
			t.Fatal(err)
		}
		withoutCaps(t, func() {
			c, err := Open(name)
			if c != nil {
				c.Close()
			}
			var denied *PermissionError
			if !errors.As(err, &denied) || denied.Path != path || !errors.Is(err, syscall.EACCES) {
				t.Errorf("Open: %v", err)
			}
			if err != nil && strings.Contains(err.Error(), "\n") {
				t.Errorf("more than one line: %v", err)
			}
		})
		if err := os.Chmod(path, info.Mode().Perm()); err != nil {
			t.Fatal(err)
		}
	}
}

func TestOpenError(t *testing.T) {
	if err := openError("rxe0", syscall.EMFILE); !errors.Is(err, syscall.EMFILE) || err.Error() != "ibv: ibv_open_device on rxe0: too many open files" {
		t.Error(err)
	}
	err := openError("rxe0", syscall.EACCES)
	if !errors.Is(err, syscall.EACCES) || !strings.Contains(err.Error(), "/dev/infiniband") {
		t.Error(err)
	}
}

// TestLifeRDMA: the wrong order closes nothing, the right one everything, and twice
// is once.
func TestLifeRDMA(t *testing.T) { onDevices(t, nil, livesInOrder) }

func livesInOrder(t *testing.T, c *Context) {
	pd := must[*PD](t)(c.AllocPD())
	mr := must[*MR](t)(pd.RegMR(make([]byte, 4096), AccessLocalWrite))
	ch := must[*CompChannel](t)(c.CreateCompChannel())
	cq := must[*CQ](t)(c.CreateCQ(16, ch, 0))
	qp := must[*QP](t)(pd.CreateQP(QPInitAttr{SendCQ: cq, RecvCQ: cq, Cap: QPCap{MaxSendWR: 4, MaxRecvWR: 4, MaxSendSGE: 1, MaxRecvSGE: 1}}))
	for _, tt := range []struct {
		closer interface{ Close() error }
		users  []string
	}{
		{c, []string{"1 protection domain", "1 completion channel", "1 completion queue"}},
		{pd, []string{"1 memory region", "1 queue pair"}},
		{ch, []string{"1 completion queue"}},
		{cq, []string{"1 queue pair"}},
	} {
		err := tt.closer.Close()
		var busy *BusyError
		if !errors.As(err, &busy) || !errors.Is(err, syscall.EBUSY) || !slices.Equal(busy.Users, tt.users) {
			t.Errorf("closing %T: %v", tt.closer, err)
		}
	}
	// Nothing was closed.
	if _, err := cq.Poll(make([]WC, 1)); err != nil {
		t.Error(err)
	}
	for _, closer := range []interface{ Close() error }{qp, cq, ch, mr, pd, c} {
		for range 2 {
			if err := closer.Close(); err != nil {
				t.Errorf("closing %T: %v", closer, err)
			}
		}
	}
	calls := map[string]func() error{
		"AllocPD":   func() error { _, err := c.AllocPD(); return err },
		"CreateCQ":  func() error { _, err := c.CreateCQ(1, nil, 0); return err },
		"Query":     func() error { _, err := c.Query(); return err },
		"QueryPort": func() error { _, err := c.QueryPort(1); return err },
		"GIDTable":  func() error { _, err := c.GIDTable(); return err },
		"AsyncEvent": func() error {
			_, err := c.AsyncEvent(soon(t))
			return err
		},
		"RegMR":     func() error { _, err := pd.RegMR(make([]byte, 1), 0); return err },
		"CreateSRQ": func() error { _, err := pd.CreateSRQ(SRQAttr{MaxWR: 1, MaxSGE: 1}); return err },
		"CreateQP":  func() error { _, err := pd.CreateQP(QPInitAttr{SendCQ: cq, RecvCQ: cq}); return err },
		"Poll":      func() error { _, err := cq.Poll(make([]WC, 1)); return err },
		"Arm":       func() error { return cq.Arm(false) },
		"Resize":    func() error { return cq.Resize(10) },
		"Await":     func() error { return ch.Await(func() bool { return true }) },
		"GetEvent":  func() error { _, err := ch.GetEvent(soon(t)); return err },
		"PostSend":  func() error { return qp.PostSend([]SendWR{{Opcode: OpSend}}) },
		"PostRecv":  func() error { return qp.PostRecv([]RecvWR{{}}) },
		"Modify":    func() error { return qp.Modify(QPAttr{}, AttrState) },
		"QP.State":  func() error { _, err := qp.State(); return err },
	}
	for name, call := range calls {
		if err := call(); !errors.Is(err, ErrClosed) {
			t.Errorf("%s on what is closed: %v", name, err)
		}
	}
	cq.AckEvents(1)
	ch.Wake()
	if cq.Size() != 0 {
		t.Error("a closed queue has a size")
	}
}

// TestWrapRDMA: a wrapped context is not closed by us.
func TestWrapRDMA(t *testing.T) {
	onDevices(t, nil, func(t *testing.T, c *Context) {
		w := Wrap(c.Raw())
		if w.Info() != c.Info() {
			t.Errorf("%v is not %v", w.Info(), c.Info())
		}
		pd, err := w.AllocPD()
		if err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); !errors.Is(err, syscall.EBUSY) {
			t.Errorf("closing with a protection domain: %v", err)
		}
		if err := errors.Join(pd.Close(), w.Close()); err != nil {
			t.Error(err)
		}
		if _, err := w.Query(); !errors.Is(err, ErrClosed) {
			t.Errorf("after Close: %v", err)
		}
		if _, err := c.Query(); err != nil {
			t.Errorf("the owner's: %v", err)
		}
	})
}

// TestResourcesRDMA: the leak check of TestMain would notice an object.
func TestResourcesRDMA(t *testing.T) {
	onDevices(t, nil, func(t *testing.T, c *Context) {
		before := resources()
		if before == "" {
			t.Fatal("the tool rdma (of iproute2) tells nothing")
		}
		pd, err := c.AllocPD()
		if err != nil {
			t.Fatal(err)
		}
		if resources() == before {
			t.Error("a protection domain goes unnoticed")
		}
		if err := pd.Close(); err != nil {
			t.Fatal(err)
		}
		for end := time.Now().Add(patience); resources() != before; {
			if time.Now().After(end) {
				t.Fatalf("before\n%safter\n%s", before, resources())
			}
		}
	})
}

// TestCloseDuringUseRDMA: closing waits for calls that are in the library, and refuses later ones.
func TestCloseDuringUseRDMA(t *testing.T) {
	onDevices(t, nil, func(t *testing.T, c *Context) {
		pd := must[*PD](t)(c.AllocPD())
		for range 3 {
			e := newEnd(t, pd, nil)
			var busy sync.WaitGroup
			use := func(call func() error) {
				busy.Go(func() {
					for {
						if err := call(); errors.Is(err, ErrClosed) {
							return
						}
					}
				})
			}
			use(func() error { _, err := e.cq.Poll(make([]WC, 4)); return err })
			use(func() error { return e.cq.Arm(false) })
			use(func() error { return e.qp.PostRecv([]RecvWR{{SGL: e.sge(0, 8)}}) })
			use(func() error { _, err := e.qp.State(); return err })
			use(func() error { _, err := e.ch.GetEvent(soon(t)); return err })
			for _, closer := range []interface{ Close() error }{e.qp, e.cq, e.ch} {
				for range 3 {
					busy.Go(func() {
						// The channel's turn comes after the queue has been destroyed, and so on.
						for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
							err := closer.Close()
							if err == nil {
								return
							}
							if !errors.Is(err, syscall.EBUSY) || time.Now().After(end) {
								t.Errorf("closing %T: %v", closer, err)
								return
							}
						}
					})
				}
			}
			busy.Wait()
		}
	})
}
