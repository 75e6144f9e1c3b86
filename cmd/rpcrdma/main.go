// Command rpcrdma inspects, tests and uses RPC-over-RDMA from a shell.
//
// The exit status is 0 for success, 1 if the work failed, and 2 if the command line made
// no sense. Errors go to standard error, with --json as JSON objects.
package main

import (
	"io"
	"log"
	"os"

	"github.com/spf13/cobra"
)

func main() {
	log.SetOutput(io.Discard) // where net/http writes what a peer has done; we tell it ourselves
	os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// run is main with its environment as arguments. It returns the exit status.
func run(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	return execute(newRoot(), args, stdin, stdout, stderr)
}

// newRoot builds the command tree. Every command is a line here: nothing else knows them all.
func newRoot() *cobra.Command {
	return assemble([]group{
		{id: "serve", title: "Serve files:", commands: []*cobra.Command{newServe()}},
		{id: "files", title: "Use the files of a server:", commands: []*cobra.Command{
			newLs(), newStat(), newCat(), newGet(), newPut(), newCp(), newMv(), newMkdir(), newRm(), newWatch(),
		}},
		{id: "look", title: "Look and measure:", commands: []*cobra.Command{
			newPing(), newProbe(), newBench(), newStats(), newDevices(), newDecode(),
		}},
		{commands: []*cobra.Command{
			newVersion(),
			newMan(),
			newCompletion(),
			newTopic("providers", "The RDMA adapters that --provider chooses from", providerHelp),
			newTopic("rpcbind", "Finding a server's port with --rpcbind", rpcbindHelp),
		}},
	})
}
