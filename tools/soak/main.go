// Soak keeps clients and servers busy for a long time while others come and go, and wants
// every reply right and memory, descriptors, goroutines and verbs objects flat.
//
// Four processes of this program call each other. Two stay to the end: a server and a client, which
// are measured. The two others are their peers: they are killed and started again, and stopped for a
// while. They speak RPC-over-RDMA and RPC over TCP, and make calls of every kind: nothing, inline,
// read chunks, write chunks, long replies, many at once, calls back under which the client calls
// again, calls that are given up, calls that must not be executed twice although their connection is
// cut meanwhile, and handlers that panic or end their goroutine. Clients and Groups come and go all
// the time, each closed by four goroutines at once, with middleware and with Observers that ask their
// connections. Results are compared with the expected ones.
//
//	go run ./tools/soak -time 30m                 on the software adapter
//	go run ./tools/soak -time 10m -vm             on rxe and siw of a virtual machine
//	go run ./tools/soak -time 10m -rdma           on this machine's: RPCRDMA_RXE_ADDR, RPCRDMA_SIW_ADDR
//
// On devices, which is for root, these are also removed and made again, their network
// goes down, loses packets and changes their order, and a client runs with little memory
// that it may lock.
//
// Flat is: after a warm-up of a tenth of the time, the most in the last third is not more
// than the most in the first third and a slack, which the summary shows.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/rpcrdma/rpcrdma/internal/limited"
)

func main() {
	if text, ok := os.LookupEnv(roleVariable); ok {
		if err := play(text); err != nil {
			fmt.Fprintln(os.Stderr, "soak:", err)
			os.Exit(1)
		}
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "soak:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	length := flag.Duration("time", 30*time.Minute, "how long")
	every := flag.Duration("every", 0, "how often all is looked at; 0 is a hundredth of the time")
	seed := flag.Uint64("seed", 0, "what happens to the peers, and in which order; 0 takes another each time")
	rdma := flag.Bool("rdma", false, "on RDMA devices")
	vm := flag.Bool("vm", false, "on those of a virtual machine, which scripts/vm boots")
	devices := flag.String("dev", "both", "its devices: rxe, siw or both")
	flag.Parse()
	if flag.NArg() > 0 || *length < 10*time.Second {
		flag.Usage()
		os.Exit(2)
	}
	if *vm {
		return inVM(ctx, *length, *devices)
	}
	for *seed == 0 {
		*seed = rand.Uint64()
	}
	if *every == 0 {
		*every = max(*length/100, 500*time.Millisecond)
	}
	s := &soak{length: *length, every: *every, rng: rand.New(rand.NewPCG(*seed, 0)), addrs: []string{"127.0.0.1"}, faults: softwareFaults}
	if *rdma {
		s.addrs, s.faults, s.rdma = nil, append(softwareFaults, deviceFaults...), true
		for _, kind := range []string{"RXE", "SIW"} {
			if addr := os.Getenv("RPCRDMA_" + kind + "_ADDR"); addr != "" {
				s.addrs = append(s.addrs, addr)
			}
		}
		if len(s.addrs) == 0 {
			return errors.New("neither RPCRDMA_RXE_ADDR nor RPCRDMA_SIW_ADDR tells the address of an RDMA device; -vm has some")
		}
	}
	fmt.Printf("soak: %v on %s, -seed %d\n", *length, strings.Join(s.addrs, " and "), *seed)
	return s.run(ctx)
}

// vmSetup is how long starting and stopping the virtual machine may take.
const vmSetup = 5 * time.Minute

// inVM runs this program with -rdma in a virtual machine.
func inVM(ctx context.Context, length time.Duration, devices string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	args := []string{"--dev", devices, "--timeout", fmt.Sprint(int((length + vmSetup).Seconds())), "--", self, "-rdma"}
	flag.Visit(func(f *flag.Flag) {
		if f.Name != "vm" && f.Name != "dev" {
			args = append(args, "-"+f.Name+"="+f.Value.String())
		}
	})
	cmd := exec.Command("scripts/vm", args...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	_, err = (&limited.Program{Cmd: cmd, Limit: length + 2*vmSetup}).Run(ctx)
	if err != nil {
		return fmt.Errorf("in the virtual machine: %w", err)
	}
	return nil
}
