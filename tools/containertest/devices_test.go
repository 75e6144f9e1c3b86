//go:build linux

package main

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestObstacle(t *testing.T) {
	all := situation{devices: true, root: true, vm: true, podman: true, qemu: true, kernel: true}
	with := func(change func(*situation)) situation {
		s := all
		change(&s)
		return s
	}
	for _, c := range []struct {
		situation
		want string // empty: the checks run
	}{
		{all, ""},
		{with(func(s *situation) { s.devices = false }), ""},
		{with(func(s *situation) { s.devices, s.root = false, false }), ""},
		{with(func(s *situation) { s.vm, s.qemu, s.kernel = false, false, false }), ""},
		{with(func(s *situation) { s.podman = false }), "no podman"},
		{with(func(s *situation) { s.root = false }), "root runs it"},
		{with(func(s *situation) { s.devices, s.qemu = false, false }), "no qemu"},
		{with(func(s *situation) { s.devices, s.vm = false, false }), "--without-vm"},
		{with(func(s *situation) { s.devices, s.kernel = false, false }), "no kernel"},
	} {
		if got := c.obstacle(); c.want == "" && got != "" || !strings.Contains(got, c.want) {
			t.Errorf("%+v: %q, want %q", c.situation, got, c.want)
		}
	}
}

func TestActiveAddresses(t *testing.T) {
	const status = `rxe0     ACTIVE   rdma-rxe        10.9.9.1 fd09:9::1
siw0     ACTIVE   rdma-siw        10.9.8.1
mlx5_0   DOWN     eth0            192.0.2.1
mlx5_1   ACTIVE   -
`
	if got := activeAddresses(status); !slices.Equal(got, []string{"10.9.9.1", "10.9.8.1"}) {
		t.Errorf("%v", got)
	}
}

// TestHasKernel: the cache of scripts/vm is where scripts/vm looks for it.
func TestHasKernel(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "apt-cache"), "#!/bin/sh\nexit 100\n")
	t.Setenv("PATH", dir)
	t.Setenv("RPCRDMA_VM_CACHE", dir)
	if hasKernel(t.Context()) {
		t.Error("there is one in an empty cache")
	}
	write(t, filepath.Join(dir, vmKernel), "")
	if !hasKernel(t.Context()) {
		t.Error("the one in the cache is not found")
	}
	t.Setenv("RPCRDMA_VM_CACHE", "")
	t.Setenv("XDG_CACHE_HOME", dir)
	if hasKernel(t.Context()) {
		t.Error("there is one in another cache")
	}
	write(t, filepath.Join(dir, "apt-cache"), "#!/bin/sh\n")
	if !hasKernel(t.Context()) {
		t.Error("the one that can be fetched is not found")
	}
}

// TestAppears waits in fake time.
func TestAppears(t *testing.T) {
	file := filepath.Join(t.TempDir(), "socket")
	for name, c := range map[string]struct {
		made, ended, over time.Duration // 0: never
		want              bool
	}{
		"it appears":            {made: 2 * time.Second, over: 2 * time.Second, want: true},
		"the service ends":      {ended: 3 * time.Second, over: 3 * time.Second},
		"the service is silent": {over: serviceLimit},
	} {
		path := file + strings.ReplaceAll(name, " ", "-")
		synctest.Test(t, func(t *testing.T) {
			begin, ended := time.Now(), make(chan struct{})
			if c.made > 0 {
				time.AfterFunc(c.made, func() { write(t, path, "") })
			}
			if c.ended > 0 {
				time.AfterFunc(c.ended, func() { close(ended) })
			}
			got := appears(path, ended, serviceLimit)
			if took := time.Since(begin); got != c.want || took < c.over || took > c.over+100*time.Millisecond {
				t.Errorf("%s: %t after %v", name, got, took)
			}
		})
	}
}
