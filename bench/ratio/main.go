// Command ratio measures pairs of workloads in turns and prints their ratios as a
// Markdown table, with all that has to be known about where they are from.
//
//	go run ./bench/ratio                    all pairs
//	go run ./bench/ratio -run gRPC -check   some, exit status 1 if one misses its floor
//	go run ./bench/ratio -rdma              on RDMA devices, such as those of scripts/vm
package main

import (
	"flag"
	"fmt"
	"os"
	"regexp"
	"strings"
	"time"

	"github.com/rpcrdma/rpcrdma/bench/internal/measure"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "ratio:", err)
		os.Exit(1)
	}
}

func run() error {
	var o measure.Options
	flag.IntVar(&o.Rounds, "rounds", 12, "how often each pair is run")
	flag.DurationVar(&o.Run, "time", 100*time.Millisecond, "how long a run takes")
	match := flag.String("run", "", "only pairs whose line matches the regular `expression`")
	rdma := flag.Bool("rdma", false, "pairs on RDMA devices, against the C programs in bench/cverbs")
	cverbs := flag.String("cverbs", "bench/cverbs/bin", "where those are, built")
	check := flag.Bool("check", false, "fail if a pair misses its floor, undisturbed")
	flag.Parse()
	if flag.NArg() > 0 || o.Rounds < 1 || o.Run <= 0 {
		flag.Usage()
		os.Exit(2)
	}
	re, err := regexp.Compile(*match)
	if err != nil {
		return err
	}

	command := strings.Join(append([]string{"go run ./bench/ratio"}, os.Args[1:]...), " ")
	where := measure.Begin(command, o, "google.golang.org/grpc")
	var results []measure.Result
	var below []string
	list := pairs()
	if *rdma {
		if list, err = devicePairs(*cverbs); err != nil {
			return err
		}
	}
	for _, p := range list {
		if !re.MatchString(p.ID + " " + p.What) {
			continue
		}
		fmt.Fprintf(os.Stderr, "%s: %s\n", p.ID, p.What)
		r, err := measure.Run(p, o)
		if err != nil {
			return fmt.Errorf("%s: %w", p.ID, err)
		}
		results = append(results, r)
		if r.Verdict() == measure.Below {
			below = append(below, p.ID)
		}
	}
	if len(results) == 0 {
		return fmt.Errorf("no pair matches %q", *match)
	}
	where.End()
	if err := measure.Report(os.Stdout, where, results); err != nil {
		return err
	}
	if *check && len(below) > 0 {
		return fmt.Errorf("below the floor: %s", strings.Join(below, ", "))
	}
	return nil
}
