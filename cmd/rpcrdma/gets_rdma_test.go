//go:build linux && cgo

package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rpcrdma/rpcrdma/internal/testing/rdmatest"
	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
)

// TestRDMALinuxGets: every get from the kernel's NFS server ends, four at a time, while twice
// as many other processes compute as there are processors. RPCRDMA_GETS is the number of
// gets over each device, by default 8. One that does not end leaves the stacks of its
// goroutines, and the state of its connection in the system.
func TestRDMALinuxGets(t *testing.T) {
	dir, port := kernelServer(t)
	gets := 8
	if s := os.Getenv("RPCRDMA_GETS"); s != "" {
		var err error
		if gets, err = strconv.Atoi(s); err != nil {
			t.Fatalf("RPCRDMA_GETS: %v", err)
		}
	}
	there, err := os.MkdirTemp(dir, "test")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(there)
	text := randomText(3, 1<<20+1)
	testutil.WriteFiles(t, there, map[string]string{"file": text})
	keepBusy(t, 2*runtime.NumCPU())
	rdmatest.OnDevices(t, func(t *testing.T, kind, addr string) {
		url, local := "nfs://"+net.JoinHostPort(addr, port)+there+"/file", t.TempDir()
		until, limited := t.Deadline()
		var mu sync.Mutex
		next, done, longest := 0, 0, time.Duration(0)
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				for {
					mu.Lock()
					no := next
					next++
					mu.Unlock()
					if no >= gets || t.Failed() || limited && time.Until(until) < getPatience+10*time.Second {
						return
					}
					took := oneGet(t, no, url, filepath.Join(local, strconv.Itoa(no)), text)
					mu.Lock()
					done++
					if longest = max(longest, took); done%25 == 0 || done == gets {
						t.Logf("%d of %d gets have ended, the longest took %v", done, gets, longest.Round(time.Millisecond))
					}
					mu.Unlock()
				}
			})
		}
		wg.Wait()
		if done < gets {
			t.Errorf("%d of %d gets were made, the longest took %v", done, gets, longest.Round(time.Millisecond))
		}
	})
}

// oneGet copies a file and checks the copy, and returns how long it took.
func oneGet(t *testing.T, no int, url, local, text string) time.Duration {
	wait := []string{"adaptive", "adaptive", "event"}[no%3]
	g := watchGet(t, "--provider", "rdma", "--wait", wait, url, local)
	if g.state != "" {
		t.Logf("get %d, --wait %s, took %v:\n%s\nwhen it was slow:\n%s", no+1, wait, g.took, g.out, g.state)
	}
	if !g.ended {
		t.Errorf("get %d, --wait %s, has not ended after %v", no+1, wait, g.took)
		return g.took
	}
	got, err := os.ReadFile(local)
	if err != nil || string(got) != text {
		t.Errorf("get %d, --wait %s, after %v: %v, %d bytes of %d\n%s", no+1, wait, g.took, err, len(got), len(text), g.out)
	}
	os.Remove(local)
	return g.took
}

// keepBusy has n processes compute until the test ends.
func keepBusy(t *testing.T, n int) {
	for range n {
		cmd := exec.Command("sh", "-c", "while :; do :; done")
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		started := make(chan error)
		over := make(chan struct{})
		go func() {
			// The signal comes when the thread ends.
			runtime.LockOSThread()
			started <- cmd.Start()
			<-over
		}()
		if err := <-started; err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			cmd.Process.Kill()
			cmd.Wait()
			close(over)
		})
	}
}

const (
	// getSlow is after how long the state of a get is recorded.
	getSlow = 15 * time.Second
	// getPatience is how long a get may take. On an idle machine it takes one second. It is longer
	// than every timeout of the command.
	getPatience = 2 * time.Minute
)

// A getRun is the result of a get.
type getRun struct {
	out   string // its output; after a signal it ends with the stacks of all goroutines
	state string // of the system, when it took long
	took  time.Duration
	ended bool // by itself
}

// watchGet runs a get. It returns even if the process cannot be killed because it is stuck
// in the kernel.
func watchGet(t *testing.T, args ...string) (g getRun) {
	file, err := os.CreateTemp(t.TempDir(), "output")
	if err != nil {
		t.Error(err)
		return g
	}
	defer file.Close()
	cmd := command(context.Background(), append([]string{"get", "-v"}, args...)...)
	cmd.Stdout, cmd.Stderr = file, file // files: Wait then waits for the process alone
	start := time.Now()
	if err := cmd.Start(); err != nil {
		t.Error(err)
		return g
	}
	done := make(chan time.Duration, 1) // when it ended, not when we looked
	go func() {
		cmd.Wait() // what came of it is in ProcessState
		done <- time.Since(start).Round(time.Millisecond)
	}()
	status := "the process is there still"
	over := func(patience time.Duration) (ended bool) {
		select {
		case g.took = <-done:
			status = cmd.ProcessState.String()
			return true
		case <-time.After(patience):
			g.took = time.Since(start).Round(time.Millisecond)
			return false
		}
	}
	if g.ended = over(getSlow); !g.ended {
		g.state = connections(cmd.Process.Pid)
		g.ended = over(getPatience - getSlow)
	}
	if !g.ended {
		g.state += connections(cmd.Process.Pid)
		cmd.Process.Signal(syscall.SIGQUIT)
		if !over(20 * time.Second) {
			cmd.Process.Kill()
			g.state += "\nSIGQUIT does not end it"
		}
	}
	printed, _ := os.ReadFile(file.Name())
	g.out = fmt.Sprintf("%s\n%s", status, printed)
	return g
}

// connections describes the RDMA connections of the system, and where in the kernel the
// threads of a process are, and all uninterruptible threads.
func connections(pid int) string {
	var b strings.Builder
	threads, _ := filepath.Glob("/proc/[0-9]*/task/[0-9]*")
	for _, dir := range threads {
		read := func(name string) string {
			text, _ := os.ReadFile(filepath.Join(dir, name))
			return strings.TrimSpace(string(text))
		}
		_, stat, _ := strings.Cut(read("stat"), ") ")
		if strings.HasPrefix(stat, "D") || strings.HasPrefix(dir, fmt.Sprintf("/proc/%d/", pid)) {
			fmt.Fprintf(&b, "%s %s, state %.1s\n%s\n", dir, read("comm"), stat, read("stack"))
		}
	}
	for _, args := range [][]string{
		{"rdma", "resource", "show", "qp"}, {"rdma", "resource", "show", "cm_id"}, {"ss", "-tnpieo"},
		{"cat", "/proc/net/rpc/nfsd", "/proc/fs/nfsd/pool_stats"}, {"dmesg"},
	} {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		out, err := exec.CommandContext(ctx, args[0], args[1:]...).CombinedOutput()
		cancel()
		fmt.Fprintf(&b, "%v: %v\n%s\n", args, err, out[max(0, len(out)-8000):])
	}
	return b.String()
}
