package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/rpcrdma/rpcrdma/proto/dump"
)

func newDecode() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "decode [FILE]",
		Short: "Print RPC-over-RDMA messages field by field",
		Long: `Print RPC-over-RDMA messages of versions 1 and 2 field by field, with the RPC header in
them, and the private data of connections.

The input is hexadecimal, from FILE or standard input: plain digits with or without 0x,
commas and spaces, or the output of xxd, hexdump -C, tcpdump -x or Wireshark. An empty
line ends a message; lines that begin with # are comments.

A damaged message is printed up to the damage. What is wrong with it goes to standard
error, and the exit status is 1.`,
		Example: `  echo 00000001 00000001 00000020 00000000 00000000 00000000 00000000 | rpcrdma decode
  xxd message.bin | rpcrdma decode --json`,
		Args: wantArgs("[FILE]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			in, name := cmd.InOrStdin(), "standard input"
			if len(args) == 1 && args[0] != "-" {
				f, err := os.Open(args[0])
				if err != nil {
					return err
				}
				defer f.Close()
				in, name = f, args[0]
			}
			return decode(in, name, asJSON, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object per message and line")
	return cmd
}

// decode prints the messages that in holds in hexadecimal. Problems go to stderr, each
// after its message, and make the result errReported.
func decode(in io.Reader, name string, asJSON bool, stdout, stderr io.Writer) error {
	messages, err := dump.ReadHex(in, name)
	if err != nil {
		return err
	}
	if len(messages) == 0 {
		return fmt.Errorf("%s: no message", name)
	}
	var d dump.Decoder
	var result error
	for i, b := range messages {
		m := d.Decode(b)
		switch {
		case asJSON:
			err = json.NewEncoder(stdout).Encode(m)
		case i > 0:
			_, err = fmt.Fprintf(stdout, "\n%v", m)
		default:
			_, err = fmt.Fprint(stdout, m)
		}
		if err != nil {
			return err
		}
		if m.Problem != "" {
			fmt.Fprintf(stderr, "rpcrdma: message %d: %s\n", m.Number, m.Problem)
			result = errReported
		}
	}
	return result
}
