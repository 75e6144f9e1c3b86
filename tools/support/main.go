// Support writes docs/reports/support.md, the support matrix, from the results of test runs.
//
//	support                                 write the page from the records
//	support -record NAME                    run a known command, keep a record of it, write the page
//	support -record NAME -- COMMAND ARG...  the same with a command of your own
//	support -add FILE                       keep a report of rpcrdma selftest, write the page
//
// It is run in the root of the repository. A record is docs/reports/support/NAME.json: which tests passed,
// failed and were skipped, and when, where and with what. The known names are those of the list
// runs in this package. For another kernel or machine, record under another name.
//
// The page says "passed" only where a record says that each of the tests passed which the table in
// this package names, and "not run" where there is no record of one.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// Paths of the page and the records, relative to the root of the repository.
const (
	pagePath   = "docs/reports/support.md"
	recordsDir = "docs/reports/support"
)

// run is a command with results that become a record.
type run struct {
	name    string
	what    string
	env     []string
	command []string
}

// runs lists the commands on which the page is based. Immutable.
var runs = []run{
	{
		name: "software", what: "all tests that need no RDMA device",
		command: strings.Fields("go test -json -count=1 -timeout=30m ./... ./cmd/rpcrdma/... ./rpc/otelrpc/... ./rpc/promrpc/... ./rpc/rpcsec/krb5/... ./grpcrdma/... ./tools/bridge"),
	},
	{
		name: "nocgo", what: "the pure Go packages without cgo", env: []string{"CGO_ENABLED=0"},
		command: strings.Fields("go test -json -count=1 -timeout=30m ./proto/... ./rpc/rpcbind ./rpc/names ./fabric/... ./iwarp ./transport/... ./nfs/... ./rpc/middleware ./cmd/rpcrdma/internal/notify ./cmd/rpcrdma/internal/loadgen"),
	},
	{
		name: "oldest", what: "the library alone, with the oldest Go that go.mod allows", env: []string{"GOWORK=off", "GOTOOLCHAIN=go1.25.0"},
		command: strings.Fields("go test -json -count=1 -timeout=30m ./proto/... ./rpc/rpcbind ./rpc/names ./fabric/... ./iwarp ./transport/... ./nfs/... ./rpc/middleware"),
	},
	{name: "builds", what: "builds for other systems and processors", command: []string{"scripts/build-matrix"}},
	{name: "devices", what: "the tests on RDMA devices", command: []string{"scripts/test-rdma", "--verbose"}},
	{
		name: "linux", what: "with Linux's NFS client and server",
		command: strings.Fields("scripts/test-rdma --nfsd --verbose --filter TestRDMALinux ./cmd/rpcrdma ./nfs/nfs41"),
	},
}

func main() {
	if err := support(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintf(os.Stderr, "support: %v\n", err)
		os.Exit(1)
	}
}

// support is the program. A command that fails is an error, but its record is kept too.
func support(args []string, out io.Writer) error {
	flags := flag.NewFlagSet("support", flag.ContinueOnError)
	name := flags.String("record", "", "keep a record under this `NAME` of a run of the command")
	add := flags.String("add", "", "keep the report in `FILE`, of rpcrdma selftest")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if _, err := os.Stat("go.work"); err != nil {
		return errors.New("run it in the root of the repository: go run ./tools/support")
	}
	var failed error
	if *add != "" {
		if err := addAdapter(*add); err != nil {
			return err
		}
	}
	if *name != "" {
		r, err := find(*name, flags.Args())
		if err != nil {
			return err
		}
		rec, err := record(r, out)
		if rec == nil {
			return err
		}
		failed = err
		if err := rec.save(filepath.Join(recordsDir, r.name+".json")); err != nil {
			return err
		}
	} else if flags.NArg() > 0 {
		return errors.New("a command needs -record NAME")
	}
	page, err := page(os.DirFS("."))
	if err == nil {
		err = os.WriteFile(pagePath, []byte(page), 0o666)
	}
	return errors.Join(failed, err)
}

// find returns the run with a name, with another command if one is given.
func find(name string, command []string) (run, error) {
	if name != filepath.Base(name) || strings.HasPrefix(name, ".") {
		return run{}, fmt.Errorf("%q is no name for a record", name)
	}
	for _, r := range runs {
		if r.name == name {
			if len(command) > 0 {
				r.command = command
			}
			return r, nil
		}
	}
	if len(command) == 0 {
		return run{}, fmt.Errorf("there is no run %q: give a command behind --", name)
	}
	return run{name: name, what: name, command: command}, nil
}
