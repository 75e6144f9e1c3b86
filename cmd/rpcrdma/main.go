// Command rpcrdma inspects, tests and uses RPC-over-RDMA from a shell.
//
// The exit status is 0 for success, 1 if the work failed, and 2 if the command line was invalid. Errors go to standard
// error, with --json as JSON objects.
package main

import (
	"io"
	"log"
	"os"

	"github.com/spf13/cobra"

	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/calling"
	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/cli"
	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/connect"
	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/copying"
	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/grpcproxy"
	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/look"
	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/selftest"
	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/serving"
	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/tree"
	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/verbs"
)

func main() {
	log.SetOutput(io.Discard) // net/http logs there what a peer has done; we report it ourselves
	os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// run is main with its environment as arguments. It returns the exit status.
func run(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	return cli.Run(newRoot(), args, stdin, stdout, stderr)
}

// newRoot builds the command tree. Every command has a line here, and is listed nowhere else.
func newRoot() *cobra.Command {
	return cli.Root([]cli.Group{
		{ID: "serve", Title: "Serve files:", Commands: []*cobra.Command{serving.New()}},
		{ID: "files", Title: "Use the files of a server:", Commands: []*cobra.Command{
			tree.NewExports(), tree.NewLs(), tree.NewStat(), copying.NewCat(), copying.NewGet(), copying.NewPut(), copying.NewCp(), tree.NewMv(), tree.NewMkdir(), tree.NewRm(), look.NewWatch(),
		}},
		{ID: "look", Title: "Look and measure:", Commands: []*cobra.Command{
			look.NewPing(), look.NewProbe(), calling.NewCall(), look.NewBench(), look.NewStats(), look.NewDevices(), selftest.New(), verbs.New(), look.NewDecode(),
		}},
		{ID: "grpc", Title: "Reach gRPC services:", Commands: []*cobra.Command{grpcproxy.New()}},
		{Commands: []*cobra.Command{
			cli.NewVersion(),
			cli.NewMan(),
			cli.NewCompletion(),
			cli.NewTopic("providers", "The RDMA adapters that --provider chooses from", connect.ProviderHelp),
			cli.NewTopic("tls", "Encryption and certificates with --tls", connect.TLSHelp),
			cli.NewTopic("rpcbind", "Finding a server's port with --rpcbind", connect.RPCBindHelp),
		}},
	})
}
