// Package grpcproxy implements the command grpc-proxy, which passes gRPC calls between HTTP/2 and RPC-over-RDMA, in
// either direction. It does not know the services, and passes messages unchanged.
package grpcproxy

import (
	"errors"
	"fmt"
	"math"
	"net"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/cli"
	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/connect"
)

// defaultPort is the port in the examples of gRPC.
const defaultPort = 50051

// defaultMessage is the limit of a message in bytes, as in every implementation of gRPC.
const defaultMessage = 4 << 20

// options are the options of grpc-proxy.
type options struct {
	connect.Options
	addr       string
	to         string // HOST:PORT
	reverse    bool
	maxMessage int64
	cert, key  string // FILE, for serving HTTP/2
	tls        bool   // use TLS on HTTP/2 to the server
	ca         string // FILE
}

// New returns the command grpc-proxy.
func New() *cobra.Command {
	o := &options{maxMessage: defaultMessage}
	cmd := &cobra.Command{
		Use:        "grpc-proxy [--reverse] HOST[:PORT]",
		SuggestFor: []string{"grpc", "proxy", "gateway", "grpcproxy"},
		Short:      "Pass gRPC calls between HTTP/2 and RDMA",
		Long: `Pass gRPC calls between HTTP/2 and RPC-over-RDMA. Clients in any language, and grpcurl, reach
the server at HOST:PORT, which serves over RDMA, shared memory or TCP with package grpcrdma.
With --reverse, clients that use package grpcrdma reach a server that speaks HTTP/2.

The proxy does not know services, so it needs no descriptors. It passes messages, metadata,
deadlines, cancellation, and statuses with their details unchanged. Messages must be Protocol
Buffers. Either side may use compression; the proxy decompresses messages.

A call without a server fails with UNAVAILABLE and the reason. The proxy reconnects when the
server is back.

On HTTP/2, --http-cert and --http-key serve clients over TLS, and --http-tls or --http-ca
connect to servers over TLS. --tls encrypts the other side. Clients are not authenticated,
except with --reverse and --tls-ca: any client that reaches the proxy can call the server.

--shm uses shared memory on the other side, in place of a provider and an address: the
server's socket, or with --reverse the socket to listen on.

The default port is 50051, on either side. When it is ready, the command prints a line that
contains "listening on HOST:PORT". On SIGINT or SIGTERM it stops accepting calls, waits for
those in progress, and exits.`,
		Example: `  rpcrdma grpc-proxy --addr :50051 server
  rpcrdma grpc-proxy --shm /run/greeter.sock localhost
  rpcrdma grpc-proxy --addr :443 --http-cert server.pem --http-key server.key --provider rdma 192.0.2.1
  rpcrdma grpc-proxy --reverse --addr 192.0.2.1:50051 localhost:8080
  rpcrdma grpc-proxy --reverse --shm /run/greeter.sock --http-tls api.example.com:443`,
		ValidArgsFunction: cli.Positions(connect.CompleteHost),
		Args:              cli.WantArgs("HOST[:PORT]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.check(cmd, args[0]); err != nil {
				return cli.Usage(cmd, err)
			}
			ctx, stop := cli.Interruptible(cmd.Context())
			defer stop()
			return o.run(ctx, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	connect.AddOptions(cmd, &o.Options, 10*time.Second,
		"wait this long for a connection to the server, and at the end for calls under way, which are cut off then")
	flags := cmd.Flags()
	flags.Lookup("shm").Usage = "connect over shared memory to the server of this machine with this `SOCKET`, whatever host the address names; with --reverse listen there"
	flags.StringVar(&o.addr, "addr", net.JoinHostPort("127.0.0.1", strconv.Itoa(defaultPort)),
		"listen on `HOST[:PORT]`; no host means all addresses, no port 50051, port 0 a free one")
	flags.BoolVar(&o.reverse, "reverse", false, "listen for clients over RDMA, and pass their calls to a server on HTTP/2")
	flags.Var(connect.NewSize(&o.maxMessage), "max-message", "refuse messages of more than `SIZE` bytes, such as 64M")
	flags.StringVar(&o.cert, "http-cert", "", "serve HTTP/2 over TLS with the certificates in `FILE`, in PEM, the server's own first")
	flags.StringVar(&o.key, "http-key", "", "private key of --http-cert, in PEM, in `FILE`")
	flags.BoolVar(&o.tls, "http-tls", false, "with --reverse, speak TLS to the server")
	flags.StringVar(&o.ca, "http-ca", "", "with --reverse, speak TLS to a server that authorities in `FILE` certify, in PEM, in place of the system's")
	cli.CompleteFlag(cmd, "addr", connect.LocalAddresses(defaultPort))
	for _, name := range []string{"http-cert", "http-key", "http-ca"} {
		cli.CompleteFile(cmd, name)
	}
	return cmd
}

// check checks the options and adds default ports. Errors are usage errors.
func (o *options) check(cmd *cobra.Command, to string) (err error) {
	if o.addr, err = cli.WithPort(o.addr, defaultPort, true); err != nil {
		return fmt.Errorf("--addr: %w", err)
	}
	if o.to, err = cli.WithPort(to, defaultPort, false); err != nil {
		return err
	}
	switch {
	case o.maxMessage > math.MaxInt32/2: // leave room for what the transport adds
		return fmt.Errorf("--max-message is %d, want at most 1023M", o.maxMessage)
	case (o.cert == "") != (o.key == ""):
		return errors.New("--http-cert and --http-key must be given together")
	case o.reverse && o.cert != "":
		return errors.New("--http-cert and --http-key are for serving HTTP/2, which --reverse does not do")
	case !o.reverse && (o.tls || o.ca != ""):
		return errors.New("--http-tls and --http-ca are for --reverse")
	case o.reverse && o.Shm() != "" && cmd.Flags().Changed("addr"):
		return errors.New("--shm and --addr are mutually exclusive")
	case o.reverse:
		return o.CheckTLS(true)
	}
	return nil
}
