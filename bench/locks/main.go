// Command locks measures the locks of calls: how often each is acquired, how long it is held, how long others wait for
// it, and what that implies for many processors.
//
//	go run ./bench/locks            print the page
//	go run ./bench/locks -o FILE    write it
//
// The program rebuilds itself with a package sync that measures its mutexes: go build -overlay adds a file to the
// standard library's, and changes one line of it. All locks are covered, and the measured packages are unchanged.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"time"

	"github.com/rpcrdma/rpcrdma/bench/internal/measure"
)

const childVariable = "RPCRDMA_LOCKS_CHILD"

func main() {
	if os.Getenv(childVariable) != "" {
		if err := child(os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, "locks:", err)
			os.Exit(1)
		}
		return
	}
	out := flag.String("o", "", "write the page to `FILE`")
	flag.Parse()
	if flag.NArg() > 0 {
		flag.Usage()
		os.Exit(2)
	}
	if err := run(*out); err != nil {
		fmt.Fprintln(os.Stderr, "locks:", err)
		os.Exit(1)
	}
}

func run(out string) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	p := measure.Begin("make locks", measure.Options{Rounds: 1, Run: time.Second})
	others := measure.Others()
	text, err := measured(ctx)
	if err != nil {
		return err
	}
	used, busy := others()
	p.Idle, p.Busy = used, busy
	var samples []sample
	if err := json.Unmarshal(text, &samples); err != nil {
		return err
	}
	page, err := page(p, workloads(), samples)
	if err != nil {
		return err
	}
	if out == "" {
		_, err := fmt.Print(page)
		return err
	}
	return os.WriteFile(out, []byte(page), 0o666)
}
