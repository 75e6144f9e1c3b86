package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
	"github.com/rpcrdma/rpcrdma/iwarp"
	"github.com/rpcrdma/rpcrdma/nfs"
	"github.com/rpcrdma/rpcrdma/nfs/nfsd"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/transport"
)

// asCrowd in the environment makes the test binary many clients of a server, in a process of their
// own: what a crowd is doing, its server, and its number of connections and of calls of each.
const asCrowd = "RPCRDMA_TEST_CROWD"

func init() {
	if what := os.Getenv(asCrowd); what != "" {
		beCrowd(what)
	}
}

// A guest is a client of a server of a directory from fairDir.
type guest struct {
	rpc                          *transport.Client
	root, full, file, work, deep nfs.FileHandle
	gone                         nfs.FileHandle // of a file that has been removed
}

// fairDir makes a directory with a file of 1 MiB, a directory with many entries, and directories as
// deep as that.
func fairDir(t *testing.T, entries, depth int) string {
	dir := publicDir(t)
	testutil.Must(t, os.WriteFile(filepath.Join(dir, "file"), make([]byte, 1<<20), 0o666))
	for _, name := range []string{"full", "work", "deep"} {
		testutil.Must(t, os.Mkdir(filepath.Join(dir, name), 0o777), os.Chmod(filepath.Join(dir, name), 0o777))
	}
	testutil.Must(t, os.Chmod(filepath.Join(dir, "file"), 0o666))
	for i := range entries {
		testutil.Must(t, os.WriteFile(filepath.Join(dir, "full", fmt.Sprintf("file-%06d", i)), nil, 0o666))
	}
	at, err := os.OpenRoot(filepath.Join(dir, "deep")) // a path would become too long
	testutil.Must(t, err)
	for range depth {
		testutil.Must(t, at.Mkdir("d", 0o777))
		below, err := at.OpenRoot("d")
		testutil.Must(t, err, at.Close())
		at = below
	}
	testutil.Must(t, at.Close())
	return dir
}

// newGuest connects to a server, to do what. The caller closes rpc.
func newGuest(ctx context.Context, addr, what string) (*guest, error) {
	p := iwarp.New(iwarp.Config{})
	c, err := nfs.Dial(ctx, p, addr, nil)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	g := &guest{}
	if g.root, err = c.Mnt(ctx, "/"); err != nil {
		return nil, err
	}
	if g.full, _, err = c.Lookup(ctx, g.root, "full"); err != nil {
		return nil, err
	}
	if g.file, _, err = c.Lookup(ctx, g.root, "file"); err != nil {
		return nil, err
	}
	if g.work, _, err = c.Lookup(ctx, g.root, "work"); err != nil {
		return nil, err
	}
	if prepare := doings[what].prepare; prepare != nil {
		if err := prepare(ctx, c, g); err != nil {
			return nil, err
		}
	}
	g.rpc, err = transport.Dial(ctx, p, addr, nil)
	return g, err
}

// A doing is an action of guests.
type doing struct {
	prepare func(ctx context.Context, c *nfs.Client, g *guest) error // or nil
	// call is the i-th call of a caller: procedure, arguments and the largest results.
	call func(g *guest, caller, i int) (proc uint32, args []byte, room int)
}

// doings have names. Immutable.
var doings = map[string]doing{
	"honest": {call: func(g *guest, _, i int) (uint32, []byte, int) {
		switch i % 3 {
		case 0:
			return nfs.ProcGetAttr, g.file.Append(nil), 1024
		case 1:
			return nfs.ProcLookup, (&nfs.DirOpArgs{Dir: g.root, Name: "file"}).Append(nil), 1024
		}
		return nfs.ProcRead, (&nfs.ReadArgs{File: g.file, Count: 4096}).Append(nil), 4096 + 1024
	}},
	"READDIRPLUS": {call: func(g *guest, _, _ int) (uint32, []byte, int) {
		args := nfs.ReadDirPlusArgs{Dir: g.full, DirCount: 1 << 20, MaxCount: 1 << 20}
		return nfs.ProcReadDirPlus, args.Append(nil), 1 << 20
	}},
	"READ": {call: func(g *guest, _, _ int) (uint32, []byte, int) {
		return nfs.ProcRead, (&nfs.ReadArgs{File: g.file, Count: 1 << 20}).Append(nil), 1<<20 + 1024
	}},
	"LOOKUP": {call: func(g *guest, _, i int) (uint32, []byte, int) {
		args := nfs.DirOpArgs{Dir: g.full, Name: fmt.Sprintf("file-%06d", i%1000)}
		return nfs.ProcLookup, args.Append(nil), 1024
	}},
	"LOOKUP of the parent": {
		prepare: func(ctx context.Context, c *nfs.Client, g *guest) (err error) {
			g.deep, _, err = c.Lookup(ctx, g.root, "deep")
			for err == nil {
				var below nfs.FileHandle
				if below, _, err = c.Lookup(ctx, g.deep, "d"); err == nil {
					g.deep = below
				}
			}
			if errors.Is(err, fs.ErrNotExist) {
				err = nil
			}
			return err
		},
		call: func(g *guest, _, _ int) (uint32, []byte, int) {
			return nfs.ProcLookup, (&nfs.DirOpArgs{Dir: g.deep, Name: ".."}).Append(nil), 1024
		},
	},
	"CREATE and REMOVE": {call: func(g *guest, caller, i int) (uint32, []byte, int) {
		where := nfs.DirOpArgs{Dir: g.work, Name: fmt.Sprintf("%d-%p-%d", os.Getpid(), g, caller)}
		if i%2 == 0 {
			return nfs.ProcCreate, (&nfs.CreateArgs{Where: where, Mode: nfs.Guarded}).Append(nil), 1024
		}
		return nfs.ProcRemove, where.Append(nil), 1024
	}},
	"synchronous WRITE": {call: func(g *guest, caller, _ int) (uint32, []byte, int) {
		args := nfs.WriteArgs{File: g.file, Offset: uint64(caller) << 12, Count: 4096, Stable: nfs.FileSync, Data: make([]byte, 4096)}
		return nfs.ProcWrite, args.Append(nil), 1024
	}},
	"GETATTR of a removed file": {
		prepare: func(ctx context.Context, c *nfs.Client, g *guest) error {
			where := nfs.DirOpArgs{Dir: g.work, Name: fmt.Sprintf("%d-%p", os.Getpid(), g)}
			handle, _, err := c.Create(ctx, &nfs.CreateArgs{Where: where, Mode: nfs.Guarded})
			if err != nil {
				return err
			}
			g.gone = handle
			return c.Remove(ctx, g.work, where.Name)
		},
		call: func(g *guest, _, _ int) (uint32, []byte, int) { return nfs.ProcGetAttr, g.gone.Append(nil), 1024 },
	},
}

// repeat makes n calls at a time until ctx ends, and counts them.
func (g *guest) repeat(ctx context.Context, n int, what string, count *atomic.Int64) error {
	failed := make(chan error, n)
	auth := &oncrpc.AuthSys{Machine: what, UID: 1000, GID: 1000}
	for caller := range n {
		go func() {
			for i := 0; ctx.Err() == nil; i++ {
				proc, args, room := doings[what].call(g, caller, i)
				call := rpc.Call{Prog: nfs.Program, Vers: nfs.Version, Proc: proc, Args: args, MaxResults: room, Cred: auth.Auth()}
				if err := g.rpc.Call(ctx, &call); err != nil && ctx.Err() == nil {
					failed <- fmt.Errorf("%s: %w", nfs.ProcName(proc), err)
					return
				}
				count.Add(1)
			}
			failed <- nil
		}()
	}
	var err error
	for range n {
		err = cmp.Or(err, <-failed)
	}
	return err
}

// beCrowd is the process of a crowd. It says so when all of it are busy, and ends with standard
// input.
func beCrowd(what string) {
	var addr string
	var conns, calls int
	fail := func(err error) {
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
	}
	_, err := fmt.Sscanf(what, "%q %s %d %d", &what, &addr, &conns, &calls)
	fail(err)
	if attack := attacks[what]; attack != nil {
		fail(attack(addr, conns))
		conns = 0
	}
	var busy sync.WaitGroup
	for range conns {
		busy.Go(func() {
			g, err := newGuest(context.Background(), addr, what)
			fail(err)
			var count atomic.Int64
			go func() { fail(g.repeat(context.Background(), calls, what, &count)) }()
			for count.Load() == 0 {
				time.Sleep(time.Millisecond)
			}
		})
	}
	busy.Wait()
	fmt.Println("busy")
	io.Copy(io.Discard, os.Stdin)
	os.Exit(0)
}

// startCrowd runs a crowd until stop.
func startCrowd(t *testing.T, what, addr string, conns, calls int) (stop func()) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%q %s %d %d", asCrowd, what, addr, conns, calls), quickEnd())
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	testutil.Must(t, err)
	out, err := cmd.StdoutPipe()
	testutil.Must(t, err, cmd.Start())
	r := bufio.NewReader(out)
	if line, err := r.ReadString('\n'); line != "busy\n" {
		t.Fatalf("a crowd says %q, %v", line, err)
	}
	return func() {
		in.Close()
		rest, _ := io.ReadAll(r)
		if err := cmd.Wait(); err != nil {
			t.Errorf("a crowd ends with %v: %s", err, rest)
		}
	}
}

// rate returns how many calls an honest client makes in a second for some time.
func rate(t *testing.T, addr string, window time.Duration) float64 {
	t.Helper()
	g, err := newGuest(t.Context(), addr, "honest")
	testutil.Must(t, err)
	defer g.rpc.Close()
	ctx, cancel := context.WithTimeout(t.Context(), window)
	defer cancel()
	var count atomic.Int64
	start := time.Now()
	testutil.Must(t, g.repeat(ctx, 1, "honest", &count))
	return float64(count.Load()) / time.Since(start).Seconds()
}

// leastShare is the part of its fair share that busy clients leave to an honest one. The short run asks
// for less with LOOKUP: a client's costs as much as the server's, so that a crowd takes the machine's
// processors itself, from the honest client, too.
const (
	leastShare  = 0.8
	leastLookup = 0.5
)

// The fair share of one among n is the rate that it gets when the others are like it, or one part in
// n of what it gets alone, whichever is less. With RPCRDMA_FAIR=1 there are more hostile connections,
// with more calls each, and more kinds of them.
func TestFairShare(t *testing.T) {
	long := os.Getenv("RPCRDMA_FAIR") != ""
	entries, depth, window := 4000, 0, 200*time.Millisecond
	if long {
		entries, depth, window = 100_000, 3900, 3*time.Second
	}
	dir := fairDir(t, entries, depth)
	s := startServer(t, "--dir", dir)
	user := ""
	if long && os.Geteuid() == 0 {
		user = startOrdinary(t, dir).addr
	}
	for _, tt := range []struct {
		what         string
		conns, calls int
		short        int     // connections of the short run, 0: it leaves this out
		least        float64 // of the short run
		addr         string
	}{
		{"READDIRPLUS", 20, 64, 6, leastShare, s.addr},
		{"READ", 20, 64, 6, leastShare, s.addr},
		{"LOOKUP", 20, 64, 6, leastLookup, s.addr},
		{"LOOKUP", 1, 64, 0, 0, s.addr},
		{"LOOKUP of the parent", 1, 64, 0, 0, s.addr},
		{"CREATE and REMOVE", 1, 64, 0, 0, s.addr},
		{"CREATE and REMOVE", 20, 64, 0, 0, s.addr},
		{"synchronous WRITE", 20, 16, 0, 0, s.addr},
		{"GETATTR of a removed file", 1, 128, 0, 0, user},
		{"GETATTR of a removed file", 300, 1, 0, 0, user},
	} {
		t.Run(fmt.Sprintf("%s/%d", tt.what, tt.conns), func(t *testing.T) {
			conns, calls, least := tt.conns, tt.calls, leastShare
			switch {
			case !long && tt.short == 0:
				t.Skip("the short run has the cheap ones only: set RPCRDMA_FAIR=1")
			case tt.addr == "":
				t.Skip("only root can start a server of an ordinary user")
			case !long:
				conns, calls, least = tt.short, tt.calls/2, tt.least
			}
			// In turns, as the machine does other work, too. One good round is enough, and unfair
			// servers have none.
			var alone float64 // the best, as something of a crowd may be left
			var ratios []float64
			for range 5 {
				alone = max(alone, rate(t, tt.addr, window/2))
				stop := startCrowd(t, "honest", tt.addr, conns, 1)
				beside := rate(t, tt.addr, window)
				stop()
				stop = startCrowd(t, tt.what, tt.addr, conns, calls)
				got := rate(t, tt.addr, window)
				stop()
				ratio := got / min(beside, alone/float64(conns+1))
				t.Logf("%6.0f calls a second, %.2f of the fair share; %.0f beside honest clients, %.0f alone", got, ratio, beside, alone)
				if ratios = append(ratios, ratio); ratio >= least && !long {
					return
				}
			}
			slices.Sort(ratios)
			t.Logf("of the fair share: %.2f", ratios)
			if best := ratios[len(ratios)-1]; best < least {
				t.Errorf("an honest client gets at most %.2f of its fair share, want %.1f", best, least)
			}
		})
	}
}

// startOrdinary starts a server of an ordinary user, which cannot open files by their handles.
func startOrdinary(t *testing.T, dir string) *testServer {
	t.Helper()
	self, err := os.Open("/proc/self/exe") // the directory of the test binary is root's
	testutil.Must(t, err)
	defer self.Close()
	cmd := command(context.Background(), "serve", "--addr", "127.0.0.1:0", "--dir", dir)
	cmd.Path, cmd.ExtraFiles = "/proc/self/fd/3", []*os.File{self}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nfsd.Nobody, Gid: nfsd.Nobody}}
	return startServing(t, cmd)
}
