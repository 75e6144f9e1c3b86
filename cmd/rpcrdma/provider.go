package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/iwarp"
	"github.com/rpcrdma/rpcrdma/rdmacm"
	"github.com/rpcrdma/rpcrdma/transport"
)

// What --provider takes. The default works everywhere, and never changes because
// somebody plugs in an adapter: the two providers reach different servers.
const (
	providerIWARP = "iwarp"
	providerRDMA  = "rdma"
	providerAuto  = "auto"
)

// providerHelp is the part of a command's help that is about providers.
const providerHelp = `--provider iwarp is RDMA in software over TCP, which needs no device. --provider rdma
uses the RDMA device that has the address, or a route to it: 'rpcrdma devices' lists
them. --provider auto is rdma if there is such a device, otherwise iwarp, and says
which. RoCE and InfiniBand devices reach no iwarp server, and the other way round;
devices that speak iWARP do.`

// A choice is an option whose value is one of a few words.
type choice struct {
	value string
	from  []string
}

func (c *choice) String() string { return c.value }

// Type is what the help calls the value.
func (c *choice) Type() string { return strings.Join(c.from, "|") }

func (c *choice) Set(value string) error {
	if !slices.Contains(c.from, value) {
		last := len(c.from) - 1
		return fmt.Errorf("want %s or %s", strings.Join(c.from[:last], ", "), c.from[last])
	}
	c.value = value
	return nil
}

// providerOptions choose an RDMA adapter and set it up.
type providerOptions struct {
	provider      choice
	wait          choice
	unsafeWindows bool
}

// waitModes are what --wait takes, the default first. Immutable.
var waitModes = []rdmacm.WaitMode{rdmacm.WaitAdaptive, rdmacm.WaitEvent, rdmacm.WaitPoll}

func addProviderOptions(cmd *cobra.Command, o *providerOptions) {
	o.provider = choice{providerIWARP, []string{providerIWARP, providerRDMA, providerAuto}}
	o.wait = choice{value: waitModes[0].String()}
	for _, m := range waitModes {
		o.wait.from = append(o.wait.from, m.String())
	}
	flags := cmd.Flags()
	flags.Var(&o.provider, "provider", "the RDMA adapter to use, see above")
	flags.Var(&o.wait, "wait", "how to wait for a device: adaptive polls while that pays, event never does, poll takes a processor")
	flags.BoolVar(&o.unsafeWindows, "unsafe-windows", false,
		"use memory windows even where they do not protect memory, as on rxe; for tests")
	cmd.Long += "\n\n" + providerHelp
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) error {
		for _, name := range []string{"wait", "unsafe-windows"} {
			if o.provider.value == providerIWARP && cmd.Flags().Changed(name) {
				return &usageError{command: cmd.CommandPath(), err: fmt.Errorf("--%s is for --provider rdma", name)}
			}
		}
		return nil
	}
}

// newClient makes the provider for a connection to addr.
func (o *options) newClient(ctx context.Context, stderr io.Writer, addr string) (fabric.Provider, error) {
	return o.newProvider(stderr, func() (string, string) { return providerTo(ctx, addr) })
}

// newServer makes the provider for a listener on addr.
func (o *options) newServer(ctx context.Context, stderr io.Writer, addr string) (fabric.Provider, error) {
	return o.newProvider(stderr, func() (string, string) { return providerAt(ctx, addr) })
}

// newProvider makes the provider that was asked for. auto makes the choice if there
// is one, and says why.
func (o *options) newProvider(stderr io.Writer, auto func() (name, why string)) (fabric.Provider, error) {
	name := o.provider.value
	if name == providerAuto {
		var why string
		name, why = auto()
		fmt.Fprintf(stderr, "rpcrdma: provider %s: %s\n", name, why)
	}
	if name == providerIWARP {
		return iwarp.New(iwarp.Config{}), nil
	}
	p, err := rdmacm.New(o.rdmaConfig(o.logger(stderr)))
	if err != nil {
		return nil, fmt.Errorf("provider rdma: %w", explained(err))
	}
	return p, nil
}

func (o *options) rdmaConfig(log *slog.Logger) rdmacm.Config {
	cfg := rdmacm.Config{UnsafeWindows: o.unsafeWindows, Logger: log}
	for _, m := range waitModes {
		if m.String() == o.wait.value {
			cfg.Wait = m
		}
	}
	return cfg
}

// providerTo chooses the provider for a connection to addr.
func providerTo(ctx context.Context, addr string) (name, why string) {
	// The connection manager takes any device for such an address, and finds no route.
	if unspecified(addr) || loopback(addr) {
		return providerIWARP, addr + " is on the loopback interface, which is no RDMA device"
	}
	device, err := deviceTo(ctx, addr)
	if err != nil {
		return providerIWARP, explain(err)
	}
	return providerRDMA, fmt.Sprintf("device %s has a route to %s", device, addr)
}

// providerAt chooses the provider for a listener on addr. All addresses of a machine
// with RDMA devices means theirs: iwarp on all addresses is the default, and who
// says auto wants the devices.
func providerAt(ctx context.Context, addr string) (name, why string) {
	if unspecified(addr) {
		devices, err := listDevices()
		if err != nil {
			return providerIWARP, explain(err)
		}
		if names := usableDevices(devices); len(names) > 0 {
			return providerRDMA, fmt.Sprintf("listening on %s, and on no other address of this machine", strings.Join(names, ", "))
		}
		return providerIWARP, "none of the RDMA devices can be used: 'rpcrdma devices' says why"
	}
	device, err := deviceAt(ctx, addr)
	if err != nil {
		return providerIWARP, explain(err)
	}
	return providerRDMA, fmt.Sprintf("device %s has the address of %s", device, addr)
}

// unspecified reports whether addr has no host, or one that stands for all.
func unspecified(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return false
	}
	ip, err := netip.ParseAddr(host)
	return host == "" || err == nil && ip.IsUnspecified()
}

// lookup turns HOST:PORT into addresses.
func lookup(ctx context.Context, addr string) (addrs []netip.AddrPort, err error) {
	host, service, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	port, err := net.DefaultResolver.LookupPort(ctx, "tcp", service)
	if err != nil {
		return nil, err
	}
	ips, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return nil, err
	}
	for _, ip := range ips {
		addrs = append(addrs, netip.AddrPortFrom(ip.Unmap(), uint16(port)))
	}
	return addrs, nil
}

// otherProvider is what to try when nobody is found at an address over a provider, as
// the end of a sentence, or nothing.
func otherProvider(e *transport.DialError) string {
	refused := errors.Is(e.Err, syscall.ECONNREFUSED)
	switch {
	case e.Provider == providerRDMA && (refused || noAnswer(e.Err)):
		return "; a server that speaks iWARP over TCP is reached with --provider iwarp"
	case e.Provider == providerIWARP && refused && hasDevices() && !loopback(e.Addr):
		return "; a server on an RDMA device is reached with --provider rdma"
	}
	return ""
}

// loopback reports whether addr is one of the loopback interface.
func loopback(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return false
	}
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.Unmap().IsLoopback()
}
