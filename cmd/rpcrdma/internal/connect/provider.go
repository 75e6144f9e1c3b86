package connect

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/cli"
	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/explain"
	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/provider"
	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/iwarp"
	"github.com/rpcrdma/rpcrdma/rdmacm"
	"github.com/rpcrdma/rpcrdma/shm"
	"github.com/rpcrdma/rpcrdma/transport"
)

// ProviderHelp is the help topic about providers.
const ProviderHelp = `--provider chooses the RDMA adapter:

  iwarp  RDMA in software over TCP, which needs no device (default)
  rdma   the RDMA device that has the address, or a route to it
  tcp    no RDMA: any server, or client, of NFS or ONC RPC over TCP
  auto   rdma if there is such a device, otherwise iwarp; a client falls back to iwarp, then
         to tcp. The choice is printed

Over tcp, the command looks up a server without a port with the rpcbind of its machine, and
uses port 2049 if rpcbind does not answer.

'rpcrdma devices' lists the devices. A RoCE or InfiniBand device cannot connect to iwarp, so
both ends need the same kind. A device that speaks iWARP connects to devices of its kind and
to iwarp.

The server chooses the device by the address it listens on, the client by the address it
connects to. The loopback interface has no RDMA device. A build without cgo lacks rdma.

With --shm SOCKET, programs on one machine use shared memory instead of a provider: the
server also listens there, and clients connect there, whatever address they are given.

For a device, --wait selects how to wait: event sleeps, poll keeps a processor busy, and
adaptive polls while that is faster (default). --unsafe-windows uses memory windows even on
devices where they do not protect memory, such as rxe; it is for tests.`

// choice is a flag value with a few possible words.
type choice struct {
	Value string
	from  []string
}

func (c *choice) String() string { return c.Value }

// Type returns the name of the value in the help.
func (c *choice) Type() string { return strings.Join(c.from, "|") }

func (c *choice) Completions() []string { return c.from }

func (c *choice) Set(value string) error {
	if !slices.Contains(c.from, value) {
		last := len(c.from) - 1
		return fmt.Errorf("want %s or %s", strings.Join(c.from[:last], ", "), c.from[last])
	}
	c.Value = value
	return nil
}

// providerOptions selects and configures an RDMA adapter.
type providerOptions struct {
	Provider      choice
	wait          choice
	unsafeWindows bool
	shm           string // for a client: a socket in place of provider and address
	Recording     recording
	tls           tlsOptions
}

// waitModes are the values of --wait, the default first. Immutable.
var waitModes = []rdmacm.WaitMode{rdmacm.WaitAdaptive, rdmacm.WaitEvent, rdmacm.WaitPoll}

func addProviderOptions(cmd *cobra.Command, o *Options) {
	o.Provider = choice{provider.IWARP, []string{provider.IWARP, provider.RDMA, provider.Auto, provider.TCP}}
	o.wait = choice{Value: waitModes[0].String()}
	for _, m := range waitModes {
		o.wait.from = append(o.wait.from, m.String())
	}
	flags := cmd.Flags()
	flags.Var(&o.Provider, "provider", "RDMA adapter to use, see 'rpcrdma help providers'")
	flags.Var(&o.wait, "wait", "how to wait for a device")
	flags.BoolVar(&o.unsafeWindows, "unsafe-windows", false,
		"use memory windows that do not protect memory, for tests")
	o.Recording.add(cmd)
	o.tls.add(cmd)
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) error {
		for _, name := range []string{"wait", "unsafe-windows"} {
			if (o.Provider.Value == provider.IWARP || o.Provider.Value == provider.TCP) && cmd.Flags().Changed(name) {
				return cli.Usage(cmd, fmt.Errorf("--%s is for --provider rdma", name))
			}
		}
		if o.shm != "" {
			for _, name := range []string{"provider", "rpcbind"} {
				if cmd.Flags().Changed(name) {
					return cli.Usage(cmd, fmt.Errorf("--shm and --%s are mutually exclusive", name))
				}
			}
		}
		if o.Provider.Value == provider.TCP && o.Recording.file != "" {
			return cli.Usage(cmd, errors.New("--capture records RDMA, not --provider tcp: use tcpdump"))
		}
		if err := o.CheckTLS(false); err != nil {
			return cli.Usage(cmd, err)
		}
		return nil
	}
}

// Shm returns the socket of --shm, or "".
func (o *Options) Shm() string { return o.shm }

// chooseClient returns the name of the RDMA provider for a connection to addr. It prints what auto stands for, and why.
func (o *Options) chooseClient(ctx context.Context, stderr io.Writer, addr string) string {
	if o.Provider.Value != provider.Auto {
		return o.Provider.Value
	}
	c := provider.ForDial(ctx, addr)
	if c.Err != nil {
		printChoice(stderr, c.Name, choiceText(addr, c.Err))
	} else {
		printChoice(stderr, c.Name, fmt.Sprintf("device %s has a route to %s", c.Devices[0], addr))
	}
	return c.Name
}

// NewServer returns the provider for a listener on addr. It prints what auto stands for, and why.
func (o *Options) NewServer(ctx context.Context, stderr io.Writer, addr string) (fabric.Provider, error) {
	if o.Provider.Value != provider.Auto {
		return o.newProvider(stderr, o.Provider.Value)
	}
	c := provider.ForListen(ctx, addr)
	switch {
	case c.Err != nil:
		printChoice(stderr, c.Name, choiceText(addr, c.Err))
	case provider.Unspecified(addr):
		printChoice(stderr, c.Name, fmt.Sprintf("listening on %s, and on no other address of this machine", strings.Join(c.Devices, ", ")))
	default:
		printChoice(stderr, c.Name, fmt.Sprintf("device %s has the address of %s", c.Devices[0], addr))
	}
	return o.newProvider(stderr, c.Name)
}

// printChoice prints which provider auto stands for, and why.
func printChoice(stderr io.Writer, name, why string) {
	fmt.Fprintf(stderr, "rpcrdma: provider %s: %s\n", name, why)
}

// choiceText returns the reason why auto is iwarp for addr.
func choiceText(addr string, err error) string {
	switch {
	case errors.Is(err, provider.ErrLoopback):
		return addr + " is on the loopback interface, which is no RDMA device"
	case errors.Is(err, provider.ErrNoUsableDevice):
		return "none of the RDMA devices can be used: 'rpcrdma devices' says why"
	}
	return explain.Text(err)
}

// newProvider returns the provider called name.
func (o *Options) newProvider(stderr io.Writer, name string) (fabric.Provider, error) {
	tls, err := o.tlsConfig(stderr)
	if err != nil {
		return nil, err
	}
	p, err := provider.New(name, o.rdmaConfig(o.Logger(stderr)), tls)
	if err != nil {
		return nil, fmt.Errorf("provider %s: %s; --provider iwarp needs no device", name, explain.Text(err)) // only rdma fails
	}
	if name == provider.TCP {
		return p, nil // TCP connections are not recorded here
	}
	return o.Recording.wrap(p)
}

func (o *Options) rdmaConfig(log *slog.Logger) rdmacm.Config {
	cfg := rdmacm.Config{UnsafeWindows: o.unsafeWindows, Logger: log}
	for _, m := range waitModes {
		if m.String() == o.wait.Value {
			cfg.Wait = m
		}
	}
	return cfg
}

// NewShared returns the provider over shared memory.
func (o *Options) NewShared() (fabric.Provider, error) {
	return o.Recording.wrap(shm.New(shm.Config{}))
}

// NewServerOn is NewServer on an open socket.
func (o *Options) NewServerOn(stderr io.Writer, l *net.TCPListener) (fabric.Provider, error) {
	if o.Provider.Value == provider.TCP {
		return onSocket{l: l}, nil
	}
	tls, err := o.tlsConfig(stderr)
	if err != nil {
		return nil, err
	}
	p := iwarp.New(iwarp.Config{TLS: tls, ListenTCP: func(context.Context, string) (*net.TCPListener, error) { return l, nil }})
	return o.Recording.wrap(p)
}

// onSocket is TCP on an open socket.
type onSocket struct {
	transport.TCP
	l net.Listener
}

func (p onSocket) ListenStream(context.Context, string) (net.Listener, error) { return p.l, nil }
