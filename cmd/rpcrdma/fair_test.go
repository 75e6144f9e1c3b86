package main

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rpcrdma/rpcrdma/internal/testutil"
	"github.com/rpcrdma/rpcrdma/iwarp"
	"github.com/rpcrdma/rpcrdma/nfs"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/transport"
)

// asCrowd in the environment makes the test binary many clients of a server, in a process of their
// own: what a crowd is doing, its server, and its number of connections and of calls of each.
const asCrowd = "RPCRDMA_TEST_CROWD"

// A guest is a client of a server of a directory from fairDir.
type guest struct {
	rpc              *transport.Client
	root, full, file nfs.FileHandle
}

// fairDir makes a directory with a file of 1 MiB and a directory with many.
func fairDir(t *testing.T, entries int) string {
	dir := t.TempDir()
	testutil.Must(t, os.WriteFile(filepath.Join(dir, "file"), make([]byte, 1<<20), 0o666), os.Mkdir(filepath.Join(dir, "full"), 0o777))
	for i := range entries {
		testutil.Must(t, os.WriteFile(filepath.Join(dir, "full", fmt.Sprintf("file-%06d", i)), nil, 0o666))
	}
	return dir
}

// newGuest connects to a server. The caller closes rpc.
func newGuest(ctx context.Context, addr string) (*guest, error) {
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
	g.rpc, err = transport.Dial(ctx, p, addr, nil)
	return g, err
}

// doings are what guests do: procedure, arguments and the largest results of the i-th call.
// Immutable.
var doings = map[string]func(g *guest, i int) (proc uint32, args []byte, room int){
	"honest": func(g *guest, i int) (uint32, []byte, int) {
		switch i % 3 {
		case 0:
			return nfs.ProcGetAttr, g.file.Append(nil), 1024
		case 1:
			return nfs.ProcLookup, (&nfs.DirOpArgs{Dir: g.root, Name: "file"}).Append(nil), 1024
		}
		return nfs.ProcRead, (&nfs.ReadArgs{File: g.file, Count: 4096}).Append(nil), 4096 + 1024
	},
	"READDIRPLUS": func(g *guest, _ int) (uint32, []byte, int) {
		args := nfs.ReadDirPlusArgs{Dir: g.full, DirCount: 1 << 20, MaxCount: 1 << 20}
		return nfs.ProcReadDirPlus, args.Append(nil), 1 << 20
	},
	"READ": func(g *guest, _ int) (uint32, []byte, int) {
		return nfs.ProcRead, (&nfs.ReadArgs{File: g.file, Count: 1 << 20}).Append(nil), 1<<20 + 1024
	},
	"LOOKUP": func(g *guest, i int) (uint32, []byte, int) {
		args := nfs.DirOpArgs{Dir: g.full, Name: fmt.Sprintf("file-%06d", i%1000)}
		return nfs.ProcLookup, args.Append(nil), 1024
	},
}

// repeat makes n calls at a time until ctx ends, and counts them.
func (g *guest) repeat(ctx context.Context, n int, what string, count *atomic.Int64) error {
	failed := make(chan error, n)
	auth := &oncrpc.AuthSys{Machine: what, UID: 1000, GID: 1000}
	for range n {
		go func() {
			for i := 0; ctx.Err() == nil; i++ {
				proc, args, room := doings[what](g, i)
				call := transport.Call{Prog: nfs.Program, Vers: nfs.Version, Proc: proc, Args: args, MaxResults: room, Cred: auth.Auth()}
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
	_, err := fmt.Sscan(what, &what, &addr, &conns, &calls)
	fail(err)
	var busy sync.WaitGroup
	for range conns {
		busy.Go(func() {
			g, err := newGuest(context.Background(), addr)
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
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s %s %d %d", asCrowd, what, addr, conns, calls), quickEnd())
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
	g, err := newGuest(t.Context(), addr)
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

// The fair share of one among n is what it gets when the others are like it, or one part in n of what
// it gets alone, whichever is less. With RPCRDMA_FAIR=1 there are 20 hostile connections of 64 calls
// each, on 100,000 entries.
func TestFairShare(t *testing.T) {
	entries, conns, calls, window := 4000, 6, 32, 200*time.Millisecond
	long := os.Getenv("RPCRDMA_FAIR") != ""
	if long {
		entries, conns, calls, window = 100_000, 20, 64, 3*time.Second
	}
	s := startServer(t, "--dir", fairDir(t, entries), "--read-only")
	for _, what := range []string{"READDIRPLUS", "READ", "LOOKUP"} {
		t.Run(what, func(t *testing.T) {
			least := leastShare
			if what == "LOOKUP" && !long {
				least = leastLookup
			}
			// In turns, as the machine does other work, too. One good round is enough, and unfair
			// servers have none.
			var alone float64 // the best, as something of a crowd may be left
			var ratios []float64
			for range 5 {
				alone = max(alone, rate(t, s.addr, window/2))
				stop := startCrowd(t, "honest", s.addr, conns, 1)
				beside := rate(t, s.addr, window)
				stop()
				stop = startCrowd(t, what, s.addr, conns, calls)
				got := rate(t, s.addr, window)
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
