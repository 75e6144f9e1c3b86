package look

import (
	"errors"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/cli"
	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/connect"
	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/explain"
	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/provider"
	"github.com/rpcrdma/rpcrdma/nfs"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/transport"
)

// NewProbe returns the command probe.
func NewProbe() *cobra.Command {
	var o connect.Options
	var ccp bool
	var version connect.VersionValue
	cmd := &cobra.Command{
		Use:        "probe HOST[:PORT]",
		SuggestFor: []string{"connect", "inspect"},
		Short:      "Show what a connection to a server agrees on",
		Long: `Connect to a server, make one NULL call to NFS version 3, and print what the two ends agreed
on. The server need not serve NFS: its refusal also grants credits. The default port is
20049.`,
		Example: `  rpcrdma probe server
  rpcrdma probe --json server:20049 | jq .credits`,
		ValidArgsFunction: cli.Positions(connect.CompleteHost),
		Args:              cli.WantArgs("HOST[:PORT]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			at, err := o.CheckAddr(cmd, args[0])
			if err != nil {
				return err
			}
			if ccp && version.Version == transport.Version2 {
				return cli.Usage(cmd, errors.New("--ccp is for --version 1"))
			}
			ctx, stop := cli.Interruptible(cmd.Context())
			defer stop()
			log := o.Logger(cmd.ErrOrStderr())
			c, addr, err := o.DialAddr(ctx, cmd.ErrOrStderr(), at, nfs.Program, nfs.Version, probeConfig(ccp, version.Version))
			if err != nil {
				return fmt.Errorf("probe: %w", explain.Error(err))
			}
			defer c.Close()
			err = o.Null(ctx, cmd.ErrOrStderr(), c, nfs.Program, nfs.Version)
			var refused *oncrpc.RPCError
			if err != nil && !errors.As(err, &refused) {
				return fmt.Errorf("probe %s: %w", addr, explain.Error(err))
			}
			answer := "answered"
			if refused != nil {
				answer = explain.Text(refused)
			}
			connect.LogStats(log, c.Stats())
			info := newInfoJSON(c.Info(), answer)
			if info.Provider == provider.RDMA {
				info.Device, _ = provider.DeviceAt(ctx, info.Local)
			}
			if o.JSON {
				return cli.PrintJSON(cmd.OutOrStdout(), info)
			}
			return info.print(cmd.OutOrStdout())
		},
	}
	connect.AddOptions(cmd, &o, 10*time.Second, "give up after this time without a connection, or without an answer")
	connect.AddLookupOption(cmd, &o)
	connect.AddVersionOption(cmd, &version)
	cmd.Flags().BoolVar(&ccp, "ccp", false, "configure the connection with the protocol of RFC 5666 section 6; for version 1")
	return cmd
}

func probeConfig(ccp bool, version transport.Version) *transport.ClientConfig {
	cfg := &transport.ClientConfig{Config: transport.Config{Version: version}}
	if ccp {
		cfg.RFC5666 = &transport.RFC5666{ConfigProtocol: &transport.ConfigProtocol{}}
	}
	return cfg
}

// InfoJSON is rpc.ConnInfo for --json. Sizes are in bytes.
type InfoJSON struct {
	Provider           string `json:"provider"`
	Device             string `json:"device,omitempty"` // for provider rdma
	Local              string `json:"local"`
	Remote             string `json:"remote"`
	Version            uint32 `json:"version"`
	Properties         bool   `json:"properties"`
	PrivateData        bool   `json:"private_data"`
	PeerSend           int    `json:"peer_send,omitempty"`
	PeerRecv           int    `json:"peer_recv,omitempty"`
	InlineSend         int    `json:"inline_send"`
	InlineRecv         int    `json:"inline_recv"`
	RemoteInvalidation bool   `json:"remote_invalidation"`
	Credits            int    `json:"credits"`
	BackwardCredits    int    `json:"backward_credits"`
	NullCall           string `json:"null_call"`

	// Results of the Connection Configuration Protocol.
	Configured  bool   `json:"configured"`
	PeerReads   *int   `json:"peer_reads,omitempty"` // if configured
	PeerAlign   *int   `json:"peer_align,omitempty"`
	ConfigError string `json:"config_error,omitempty"` // why the server did not take part

	Capabilities capabilitiesJSON `json:"capabilities"`
}

type capabilitiesJSON struct {
	SendDepth        int    `json:"send_depth"`
	MaxSendSGE       int    `json:"max_send_sge"`
	MaxReadSGE       int    `json:"max_read_sge"`
	MaxMessage       uint64 `json:"max_message"`
	MaxPrivateData   int    `json:"max_private_data"`
	MemoryWindows    bool   `json:"memory_windows"`
	RemoteInvalidate bool   `json:"remote_invalidate"`
	LocalDMA         bool   `json:"local_dma"`
	WeakRevocation   bool   `json:"weak_revocation"`
	InboundReads     int    `json:"inbound_reads"`
	OutboundReads    int    `json:"outbound_reads"`
}

func newInfoJSON(i rpc.ConnInfo, nullCall string) InfoJSON {
	c := i.Capabilities
	j := InfoJSON{
		Provider: i.Provider, Local: i.LocalAddr.String(), Remote: i.RemoteAddr.String(), Version: i.Version, Properties: i.Properties,
		PrivateData: i.PrivateData, PeerSend: i.PeerSend, PeerRecv: i.PeerRecv,
		InlineSend: i.InlineSend, InlineRecv: i.InlineRecv,
		RemoteInvalidation: i.RemoteInvalidation, Credits: i.Credits, BackwardCredits: i.BackwardCredits, NullCall: nullCall,
		Configured: i.Configured,
		Capabilities: capabilitiesJSON{
			SendDepth: c.SendDepth, MaxSendSGE: c.MaxSendSGE, MaxReadSGE: c.MaxReadSGE, MaxMessage: c.MaxMessage,
			MaxPrivateData: c.MaxPrivateData, MemoryWindows: c.MemoryWindows,
			RemoteInvalidate: c.RemoteInvalidate, LocalDMA: c.LocalDMA, WeakRevocation: c.WeakRevocation,
			InboundReads: c.InboundReads, OutboundReads: c.OutboundReads,
		},
	}
	if i.Configured {
		j.PeerReads, j.PeerAlign = &i.PeerReads, &i.PeerAlign
	}
	if i.ConfigError != nil {
		j.ConfigError = explain.Text(i.ConfigError)
	}
	return j
}

func (i *InfoJSON) print(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	row := func(name, format string, args ...any) {
		fmt.Fprintf(w, "%s\t"+format+"\n", append([]any{name}, args...)...)
	}
	row("provider", "%s", i.Provider)
	if i.Device != "" {
		row("device", "%s", i.Device)
	}
	row("connection", "%s to %s", i.Local, i.Remote)
	if i.Provider == provider.TCP {
		row("NULL call", "%s", i.NullCall)
		return w.Flush()
	}
	row("RPC-over-RDMA version", "%d", i.Version)
	switch {
	case i.PrivateData:
		row("private data", "yes: the server sends up to %d bytes inline, receives %d", i.PeerSend, i.PeerRecv)
	case i.Configured, i.Version > 1:
		row("private data", "none from the server")
	default:
		row("private data", "none from the server, so 1024 bytes inline")
	}
	if i.Version > 1 {
		row("properties exchanged", "%s", yesNo(i.Properties))
	}
	row("inline, sent", "up to %d bytes", i.InlineSend)
	row("inline, received", "up to %d bytes", i.InlineRecv)
	switch {
	case i.Configured:
		row("configured", "yes: the server serves %d RDMA Reads at once, recommends alignment %d", *i.PeerReads, *i.PeerAlign)
	case i.ConfigError != "":
		row("configured", "no: %s", i.ConfigError)
	}
	row("remote invalidation", "%s", yesNo(i.RemoteInvalidation))
	row("credits granted", "%d", i.Credits)
	row("NULL call", "%s", i.NullCall)
	c := &i.Capabilities
	row("memory windows", "%s", yesNo(c.MemoryWindows))
	row("RDMA Reads at once", "%d served, %d made", c.InboundReads, c.OutboundReads)
	row("gather, scatter", "%d elements of a Send or Write, %d of a Read", c.MaxSendSGE, c.MaxReadSGE)
	return w.Flush()
}
