// Package calling implements the command call, which calls a procedure declared in a .x file. It encodes JSON arguments
// by the types of the file, and prints the results as JSON.
package calling

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/cli"
	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/connect"
	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/explain"
	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/remote"
	"github.com/rpcrdma/rpcrdma/internal/xdrgen/check"
	"github.com/rpcrdma/rpcrdma/internal/xdrgen/syntax"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/rpc/gen"
	"github.com/rpcrdma/rpcrdma/rpc/rpcsec"
	"github.com/rpcrdma/rpcrdma/transport"
)

// options holds the flags of the command.
type options struct {
	connect.Options
	remote.KerberosOptions
	service string // first component of the server's principal
}

// NewCall returns the command call.
func NewCall() *cobra.Command {
	var o options
	var vers uint32
	var version connect.VersionValue
	cmd := &cobra.Command{
		Use:        "call FILE.x HOST[:PORT] PROCEDURE [JSON]",
		SuggestFor: []string{"invoke", "rpc", "grpcurl"},
		Short:      "Call a procedure that a .x file declares",
		Long: `Call a procedure that a .x file declares, with arguments in JSON, and print its result as
JSON. Arguments and results with the annotation ddp are placed directly if the provider
supports it.

PROCEDURE is the procedure's name in the file, the end of that name after an underscore, or
its number. It may be qualified: PROGRAM.PROCEDURE. JSON is the argument, or an array of
arguments if there are several; - reads it from standard input. A structure is an object with
all of its members; a union is an object with its discriminant and the member of its arm; an
enumerator is its name or number; opaque data is in base64; optional data may be null; a
linked list is an array. The call has an AUTH_SYS credential of the user that runs the
command, or a Kerberos context with --sec.

The default port is 20049, and with --provider tcp the port registered with rpcbind.`,
		Example: `  rpcrdma call mount.x server MNT '"/srv/data"'
  rpcrdma call nfs3.x server LOOKUP '{"dir": "AAEC", "name": "file"}'
  rpcrdma call --provider tcp rpcbind.x server DUMP
  rpcrdma call --sec krb5p --service host my.x server PROC`,
		ValidArgsFunction: cli.Positions(cli.Files, connect.CompleteHost),
		Args:              cli.WantArgs("FILE.x", "HOST[:PORT]", "PROCEDURE", "[JSON]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			spec, err := load(args[0])
			if err != nil {
				return fmt.Errorf("call: %w", err)
			}
			m, err := find(spec, args[2], vers, cmd.Flags().Changed("vers"))
			if err != nil {
				return cli.Usage(cmd, fmt.Errorf("%s: %w", args[0], err))
			}
			text := strings.Join(args[3:], "")
			if text == "-" {
				b, err := io.ReadAll(io.LimitReader(cmd.InOrStdin(), maxText))
				if err != nil {
					return fmt.Errorf("call: standard input: %w", err)
				}
				text = string(b)
			}
			call, err := m.encode(text)
			if err != nil {
				return cli.Usage(cmd, fmt.Errorf("arguments of %s: %w", m.proc.Name, err))
			}
			addr, err := o.CheckAddr(cmd, args[1])
			if err == nil {
				err = o.CheckKerberos(cmd)
			}
			if err != nil {
				return err
			}
			ctx, stop := cli.Interruptible(cmd.Context())
			defer stop()
			return m.make(ctx, cmd, &o, addr, version.Version, call)
		},
	}
	connect.AddOptions(cmd, &o.Options, 10*time.Second, "give up after this time without a connection, or without an answer")
	connect.AddLookupOption(cmd, &o.Options)
	connect.AddVersionOption(cmd, &version)
	remote.AddKerberosOptions(cmd, &o.KerberosOptions)
	cmd.Flags().StringVar(&o.service, "service", "nfs", "with --sec, the server is the principal `NAME`/HOST")
	cmd.Flags().Uint32Var(&vers, "vers", 0, "`VERSION` of the program (default: the latest in the file that has the procedure)")
	return cmd
}

// maxText limits the arguments read from standard input, in bytes.
const maxText = 64 << 20

// load reads a .x file and the files that it includes.
func load(name string) (*check.Spec, error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, explain.Error(err)
	}
	file, err := parse(name, text)
	var spec *check.Spec
	if err == nil {
		spec, err = check.Check(file)
	}
	if err == nil {
		err = check.Stubs(spec)
	}
	if all, ok := err.(interface{ Unwrap() []error }); ok {
		if first := all.Unwrap()[0]; len(all.Unwrap()) > 1 {
			err = fmt.Errorf("%w, and more mistakes follow", first)
		}
	}
	if err != nil {
		return nil, explain.Error(err)
	}
	return spec, nil
}

func parse(name string, text []byte) (*syntax.File, error) {
	return syntax.Parse([]syntax.Source{{Name: name, Text: text}}, syntax.Options{
		Include: func(from, name string) (string, []byte, error) {
			path := filepath.Join(filepath.Dir(from), filepath.FromSlash(name))
			text, err := os.ReadFile(path)
			return path, text, err
		},
	})
}

// method is a procedure of a version of a program.
type method struct {
	program *check.Program
	version *check.Version
	proc    *check.Proc
}

// find returns the method called name, of the latest version that has it.
func find(spec *check.Spec, name string, vers uint32, only bool) (*method, error) {
	program, proc, qualified := strings.Cut(name, ".")
	if !qualified {
		program, proc = "", name
	}
	var found []*method
	var names, programs, versions []string
	for _, p := range spec.Programs {
		programs = append(programs, p.Name)
		if program != "" && !strings.EqualFold(p.Name, program) {
			continue
		}
		var latest *method
		for _, v := range p.Versions {
			versions = append(versions, fmt.Sprint(v.Number))
			if only && v.Number != vers || latest != nil && latest.version.Number > v.Number {
				continue
			}
			for _, x := range v.Procs {
				names = append(names, x.Name)
				if called(x, proc) {
					latest = &method{p, v, x}
				}
			}
		}
		if latest != nil {
			found = append(found, latest)
		}
	}
	switch len(found) {
	case 1:
		return found[0], nil
	case 0:
		switch {
		case programs == nil:
			return nil, errors.New("it declares no program")
		case versions == nil:
			return nil, missing("program "+program, programs)
		case names == nil:
			return nil, missing(fmt.Sprintf("version %d", vers), versions)
		}
		return nil, missing("procedure "+proc, names)
	}
	return nil, fmt.Errorf("several programs have a procedure %s: name one, such as %s.%s", proc, found[0].program.Name, proc)
}

// called reports whether name is the name of a procedure, with or without the program's prefix, or its number.
func called(p *check.Proc, name string) bool {
	own, name := strings.ToUpper(p.Name), strings.ToUpper(name)
	return name == own || strings.HasSuffix(own, "_"+name) || name == strconv.FormatUint(uint64(p.Number), 10)
}

// missing returns the error for something that is not one of names.
func missing(what string, names []string) error {
	const most = 8
	slices.Sort(names)
	names = slices.Compact(names)
	switch more := len(names) - most; {
	case len(names) == 0:
		return fmt.Errorf("no %s, nor any other", what)
	case more > 0:
		return fmt.Errorf("no %s: it has %s and %d more", what, strings.Join(names[:most], ", "), more)
	}
	return fmt.Errorf("no %s: it has %s", what, strings.Join(names, ", "))
}

// make makes the call and prints the result.
func (m *method) make(ctx context.Context, cmd *cobra.Command, o *options, addr string, version transport.Version, call *rpc.Call) error {
	stderr := cmd.ErrOrStderr()
	log := o.Logger(stderr)
	cfg := transport.Config{Version: version, MaxMessage: messages(call)}
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		host = addr
	}
	security, err := o.Security(o.service + "@" + host)
	if err != nil {
		return fmt.Errorf("call: %w", explain.Error(err))
	}
	c, at, err := o.DialAddr(ctx, stderr, addr, call.Prog, call.Vers, &transport.ClientConfig{Config: cfg})
	if err != nil {
		return fmt.Errorf("call: %w", explain.Error(err))
	}
	defer c.Close()
	connect.LogInfo(log, c.Info())
	name := fmt.Sprintf("call %s %s", at, m.proc.Name)
	waiting, cancel := connect.Within(ctx, o.Timeout, func() error { return o.Stalled(stderr, m.proc.Name, c) })
	defer cancel()
	var caller rpc.Caller = c
	if security != nil {
		sec := rpcsec.NewClient(c, *security)
		defer sec.Close(waiting)
		caller = sec
	}
	if err := caller.Call(waiting, call); err != nil {
		if waiting.Err() != nil && errors.Is(err, waiting.Err()) {
			err = context.Cause(waiting)
		}
		return fmt.Errorf("%s: %w", name, explain.Error(err))
	}
	connect.LogStats(log, c.Stats())
	result, err := m.decode(call)
	if err != nil {
		return fmt.Errorf("%s: its result is not what the file declares: %w", name, err)
	}
	return cli.PrintJSON(cmd.OutOrStdout(), result)
}

// messages returns a limit for the messages of a call and its reply, in bytes.
func messages(call *rpc.Call) int {
	const heads = 1 << 16
	sent, received := heads+len(call.Args), heads+call.MaxResults
	for _, item := range call.ReadItems {
		sent += xdr.Padded(len(item.Data))
	}
	for _, item := range call.WriteItems {
		received += xdr.Padded(len(item.Buf))
	}
	return max(transport.DefaultMaxMessage, sent, received)
}

// newCall returns a call of a method. args holds its arguments, on which the size of the results may depend.
func (m *method) newCall(args []any) *rpc.Call {
	call := &rpc.Call{
		Prog: m.program.Number, Vers: m.version.Number, Proc: m.proc.Number,
		Names: m.names(), Cred: oncrpc.ProcessAuthSys().Auth(),
		MaxResults: m.size(m.proc.Bound, args),
	}
	for _, r := range m.proc.Received {
		call.Receive(make([]byte, m.size(r.Bound, args)))
	}
	return call
}

// size returns how many bytes b permits, for results of a call with args.
func (m *method) size(b check.Bound, args []any) int {
	size := int(b.Bytes)
	for _, paths := range b.Counts {
		most := 0
		for _, path := range paths {
			i := slices.Index(m.proc.Args, path[0])
			v := args[i]
			for _, member := range path[1:] {
				fields, _ := v.(map[string]any)
				v = fields[member.Name]
			}
			n, _ := strconv.ParseInt(fmt.Sprint(v), 0, 64)
			most = max(most, gen.Counted(n))
		}
		size += most
	}
	return size
}

// maxNamed is the largest procedure number that errors name, because names are in a slice.
const maxNamed = 1000

// names returns the names of the version, for errors.
func (m *method) names() *oncrpc.Program {
	p := &oncrpc.Program{Number: m.program.Number, Vers: m.version.Number, Name: m.program.Name}
	if n := m.proc.Number; n <= maxNamed {
		p.Procedures = make([]string, n+1)
		p.Procedures[n] = m.proc.Name
	}
	return p
}
