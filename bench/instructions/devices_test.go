package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const (
	someMaps = `00400000-00900000 r-xp 00000000 08:01 11 /tmp/program
7f0000001000-7f0000003000 r--p 00000000 08:01 12 /usr/lib/libibverbs.so.1.14
7f0000003000-7f0000009000 r-xp 00003000 08:01 12 /usr/lib/libibverbs.so.1.14
7f0000009000-7f000000b000 r-xp 00000000 00:00 0
7ffd00000000-7ffd00002000 r-xp 00000000 00:00 0 [vdso]
ffffffffff600000-ffffffffff601000 r-xp 00000000 00:00 0 [vsyscall]
`
	someKernel = `0000000000001000 A some_offset
ffffffff81000000 T _stext
ffffffff81000000 T startup_64
ffffffff81000100 t do_syscall_64
ffffffff81000180 d not_code
ffffffffc0600000 t rxe_requester	[rdma_rxe]
`
)

// Each address has the name of what it belongs to, and this has its part.
func TestNames(t *testing.T) {
	libraries, err := librarySpans(strings.NewReader(someMaps), "/tmp/program")
	if err != nil {
		t.Fatal(err)
	}
	kernel, err := kernelSpans(strings.NewReader(someKernel))
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		s        spans
		pc       uint64
		name     string
		packages string
		part     string
	}{
		{libraries, 0x400000, "", "", ""},
		{libraries, 0x7f0000002fff, "", "", ""},
		{libraries, 0x7f0000003000, "C/libibverbs", "C/libibverbs", partC},
		{libraries, 0x7f0000008fff, "C/libibverbs", "C/libibverbs", partC},
		{libraries, 0x7f0000009000, "", "", ""},
		{libraries, 0x7ffd00000001, "C/[vdso]", "C/[vdso]", partC},
		{libraries, 0xffffffffff600000, "", "", ""},
		{kernel, 0x1000, "", "", ""},
		{kernel, 0xffffffff810000ff, "kernel/_stext", "kernel", partKernel},
		{kernel, 0xffffffff81000190, "kernel/do_syscall_64", "kernel", partKernel},
		{kernel, 0xffffffffc0600001, "kernel/rdma_rxe/rxe_requester", "kernel/rdma_rxe", partDevice},
	} {
		name, ok := tt.s.at(tt.pc)
		if name != tt.name || ok != (name != "") {
			t.Errorf("%#x is %q, want %q", tt.pc, name, tt.name)
		}
		if ok && (packageOf(name) != tt.packages || partOf(name) != tt.part) {
			t.Errorf("%q is of %q and %q, want %q and %q", name, packageOf(name), partOf(name), tt.packages, tt.part)
		}
	}
	for name, part := range map[string]string{
		module + "rdmacm.(*Conn).Post": partAdapter, module + "cgo.Progress": partAdapter, module + "transport.(*slot).build": partTransport,
		"runtime.cgocall": partSockets, repetitions: partRepeats, elsewhere: partOthers, "C/rr_progress": partC,
	} {
		if got := partOf(name); got != part {
			t.Errorf("%s is of %s, want %s", name, got, part)
		}
	}
	// A kernel that hides its addresses prints zeros.
	if _, err := kernelSpans(strings.NewReader("0000000000000000 T _stext\n")); err == nil {
		t.Error("a kernel without addresses has been understood")
	}
	if _, err := librarySpans(strings.NewReader("x-y r-xp 0 0 0 /lib/x.so\n"), ""); err == nil {
		t.Error("addresses that are no numbers have been understood")
	}
}

// The row is the median of its counts, without repetitions, which are of their own.
func TestDeviceRows(t *testing.T) {
	all := make(tallies)
	set := func(mark int, instructions, repeats int64) {
		all[mark] = tally{functions: map[string]int64{module + "transport.f": instructions, repetitions: repeats}}
	}
	var told told
	for i := range len(devices) * len(deviceKinds) {
		n := int64(deviceKinds[i%len(deviceKinds)].n)
		for again, per := range []int64{300, 100, 110} {
			set((i*times+again)*marksOfRow+markFirst, 7+per*n, 10*n)
			set((i*times+again)*marksOfRow+markSecond, 7+2*per*n, 20*n)
		}
		told.Allocs, told.C = append(told.Allocs, 0), append(told.C, 60)
	}
	r := new(record)
	if err := all.deviceRows(r, told); err != nil {
		t.Fatal(err)
	}
	x := r.row("NULL, with events", "siw")
	if x == nil || x.Instructions != 110 || x.Least != 100 || x.Most != 300 || x.Repeats != 10 || x.C != 60 || x.own() != 110 || len(x.Top) != 1 {
		t.Fatalf("%+v", x)
	}
	if got := x.cells(); got != "60 | **2.00** | ≤ 1.50" {
		t.Errorf("time over C: %s", got)
	}
	if got := r.row("echo of 64 B, 32 outstanding", "rxe").cells(); got != "60 | **0.50** | ≥ 0.60" {
		t.Errorf("rate over C: %s", got)
	}
	if err := r.breaches(); err == nil || !strings.Contains(err.Error(), "siw 2 (2.00, floor 1.50)") {
		t.Errorf("the floors: %v", err)
	}
	for i := range r.Rows {
		x := &r.Rows[i]
		x.C = (x.Instructions + x.Repeats) / 1.2
		if !x.slower() {
			x.C *= 1.2
		}
	}
	if err := r.breaches(); err != nil {
		t.Error(err)
	}
	told.C = told.C[1:]
	if err := all.deviceRows(new(record), told); err == nil {
		t.Error("a child that lacks rows has been understood")
	}
}

// The record has a row for each kind of call on each device.
func TestDevicesRecorded(t *testing.T) {
	r, err := load(filepath.Join(root, devicesFile))
	if err != nil {
		t.Fatal(err)
	}
	for _, device := range devices {
		for _, k := range deviceKinds {
			if r.row(k.name, device) == nil {
				t.Errorf("nothing is recorded of %s on %s", k.name, device)
			}
		}
	}
	b, err := os.ReadFile(filepath.Join(root, pageFile))
	if err != nil {
		t.Fatal(err)
	}
	if whole, err := wholePage(root); err != nil || string(b) != whole {
		t.Errorf("%s is out of date: make instructions writes it anew (%v)", pageFile, err)
	}
}
