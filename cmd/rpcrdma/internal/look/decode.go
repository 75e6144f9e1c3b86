package look

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/cli"
	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/explain"
	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/trace"
	"github.com/rpcrdma/rpcrdma/proto/dump"
)

// NewDecode returns the command decode.
func NewDecode() *cobra.Command {
	var asJSON, calls bool
	cmd := &cobra.Command{
		Use:        "decode [FILE]",
		SuggestFor: []string{"dump", "parse", "pcap"},
		Short:      "Print RPC-over-RDMA messages field by field, or sum up a capture",
		Long: `Print RPC-over-RDMA messages of versions 1 and 2 field by field, with their RPC headers, and
the private data of connections. Or summarize the conversations in a capture file.

Messages are hexadecimal, from FILE or standard input: plain digits with or without 0x,
commas and spaces, or the output of xxd, hexdump -C, tcpdump -x or Wireshark. An empty
line ends a message; lines that begin with # are comments.

A damaged message is printed up to the damage. The reason goes to standard error, and the
exit status is 1.

A capture is a file of --capture, tcpdump or Wireshark, pcap or pcapng, with iWARP over TCP
or RoCE v2. For each connection the command prints the calls by procedure: how many, how
long they took, how their data traveled, and with --calls each call; then violations of the
specifications, with the rule's id in docs/reports/conformance.md. The exit status is 1 if
there are violations, or if the capture has no RPC-over-RDMA.`,
		Example: `  echo 00000001 00000001 00000020 00000000 00000000 00000000 00000000 | rpcrdma decode
  xxd message.bin | rpcrdma decode --json
  rpcrdma get --capture get.pcapng nfs://server/file && rpcrdma decode get.pcapng
  tcpdump -w - port 20049 | rpcrdma decode --calls`,
		ValidArgsFunction: cli.Positions(cli.Files),
		Args:              cli.WantArgs("[FILE]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			in, name := cmd.InOrStdin(), "standard input"
			if len(args) == 1 && args[0] != "-" {
				f, err := os.Open(args[0])
				if err != nil {
					return fmt.Errorf("decode: %w", explain.Error(err))
				}
				if info, err := f.Stat(); err == nil && info.IsDir() {
					f.Close()
					return fmt.Errorf("decode: %s is a directory", explain.Printable(args[0]))
				}
				defer f.Close()
				in, name = f, args[0]
			}
			b := bufio.NewReader(in)
			if magic, _ := b.Peek(4); trace.IsCapture(magic) {
				return decodeCapture(b, name, asJSON, calls, cmd.OutOrStdout(), cmd.ErrOrStderr())
			}
			return decode(b, name, asJSON, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object per message or connection, on a line")
	cmd.Flags().BoolVar(&calls, "calls", false, "list the calls of a capture")
	return cmd
}

// decode prints the messages that in holds in hexadecimal. It prints problems to stderr, each after its message, and
// then returns cli.ErrReported.
func decode(in *bufio.Reader, name string, asJSON bool, stdout, stderr io.Writer) error {
	start, _ := in.Peek(512) // errors occur again on reading
	messages, err := dump.ReadHex(in, name)
	switch {
	case err != nil && !isText(start):
		return fmt.Errorf("decode: %s is neither a capture, pcap or pcapng, nor hexadecimal text", explain.Printable(name))
	case err != nil:
		return fmt.Errorf("decode: %s", explain.OneLine(err))
	case len(messages) == 0:
		return fmt.Errorf("decode: %s: no message: want hexadecimal digits, or a capture", explain.Printable(name))
	}
	var d dump.Decoder
	var result error
	for i, b := range messages {
		m := d.Decode(b)
		switch {
		case asJSON:
			err = cli.NewJSON(stdout).Encode(m)
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
			result = cli.ErrReported
		}
	}
	return result
}

// isText reports whether b may be the beginning of text.
func isText(b []byte) bool {
	return !bytes.ContainsFunc(b, func(r rune) bool {
		return r == utf8.RuneError || r < ' ' && r != '\t' && r != '\n' && r != '\r' && r != '\f'
	})
}

// decodeCapture summarizes a capture file.
func decodeCapture(in io.Reader, name string, asJSON, calls bool, stdout, stderr io.Writer) error {
	f, err := trace.Read(in, calls)
	if err != nil {
		return fmt.Errorf("decode: %s: %w", explain.Printable(name), err)
	}
	if len(f.Conversations) == 0 {
		if f.Err != nil {
			return fmt.Errorf("decode: %s: %s; %w", explain.Printable(name), f.Nothing(), f.Err)
		}
		return fmt.Errorf("decode: %s: %s", explain.Printable(name), f.Nothing())
	}
	if asJSON {
		err = f.JSON(cli.PlainOutput(stdout))
	} else {
		err = f.Text(stdout)
	}
	if err != nil {
		return err
	}
	var result error
	anomalies := 0
	for _, c := range f.Conversations {
		for _, n := range c.Rules {
			anomalies += n
		}
	}
	if anomalies > 0 {
		fmt.Fprintf(stderr, "rpcrdma: %s: anomalies: %d\n", name, anomalies)
		result = cli.ErrReported
	}
	if f.Err != nil {
		fmt.Fprintf(stderr, "rpcrdma: %s: %v\n", name, f.Err)
		result = cli.ErrReported
	}
	return result
}
