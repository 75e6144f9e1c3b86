package serving

import (
	"errors"
	"fmt"
	"net/netip"
	"path"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/cli"
	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/connect"
	"github.com/rpcrdma/rpcrdma/nfs/nfsd"
)

// exportSpec is a directory to export, with its options.
type exportSpec struct {
	dir string
	nfsd.Export
	own  map[string]bool // options set for this export, by flag name
	line string          // FILE:LINE of an exports file; empty: command line
}

// failed adds to err where the export is specified.
func (e *exportSpec) failed(err error) error {
	if err == nil || e.line == "" {
		return err
	}
	return &exportsError{e.line, err}
}

// exportFlags holds the flags of serve for exports and their clients.
type exportFlags struct {
	dir      string
	specs    exportSpecs
	file     string
	readOnly bool
	squash   squashValue
	anonUID  uint32
	anonGID  uint32
	allow    prefixes
	state    string
	kerberosFlags

	options []optionLine // options of the file that are in force
}

func (o *exportFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&o.dir, "dir", "", "export the directory `DIR` as \"/\"")
	flags.Var(&o.specs, "export", "export `DIR[=NAME][,OPTION...]`; may be repeated")
	flags.StringVar(&o.file, "exports", "", "export the directories listed in `FILE`, one per line in the form of --export; other options go on separate lines")
	flags.BoolVar(&o.readOnly, "read-only", false, "refuse all changes")
	flags.Var(&o.squash, "squash", "map `WHO` to the anonymous user: none, root or all")
	flags.Uint32Var(&o.anonUID, "anonuid", nfsd.Nobody, "the anonymous user is `UID`")
	flags.Uint32Var(&o.anonGID, "anongid", nfsd.Nobody, "the anonymous user's group is `GID`")
	flags.Var(&o.allow, "allow", "serve NFS only to clients of the network `CIDR`; may be repeated")
	flags.StringVar(&o.state, "state", "", "keep state in `DIR`, so that file handles survive a restart")
	o.kerberosFlags.add(cmd)
	cli.CompleteFlag(cmd, "dir", cli.Directories)
	cli.CompleteFlag(cmd, "state", cli.Directories)
	cli.CompleteFlag(cmd, "export", cli.ExportDirectories)
	cli.CompleteFlag(cmd, "allow", connect.LocalNetworks)
	cli.CompleteFile(cmd, "exports")
}

// exports returns the exports, with the flags' values where a spec has none. It reads the exports file, and passes the
// options in it to set before using the flags.
func (o *exportFlags) exports(set func([]optionLine) error) ([]exportSpec, error) {
	list := append([]exportSpec(nil), o.specs...)
	if o.dir != "" {
		list = append(list, exportSpec{dir: o.dir, Export: nfsd.Export{Name: "/"}})
	}
	if o.file != "" {
		more, options, err := readExports(o.file)
		if err == nil {
			err = set(options)
		}
		if err != nil {
			return nil, err
		}
		list = append(list, more...)
	}
	if len(list) == 0 {
		return nil, errors.New("--dir DIR is missing: which directory?")
	}
	names := make(map[string]*exportSpec)
	for i := range list {
		e := &list[i]
		if err := o.settle(e); err != nil {
			return nil, e.failed(err)
		}
		if other := names[e.Name]; other != nil {
			err := fmt.Errorf("two exports have the name %q", e.Name)
			if other.line != "" {
				err = fmt.Errorf("%w: the other is in %s", err, other.line)
			}
			return nil, e.failed(err)
		}
		names[e.Name] = e
	}
	return list, o.addUsers(list)
}

// settle fills in values that a spec does not set.
func (o *exportFlags) settle(e *exportSpec) error {
	dir, err := filepath.Abs(e.dir)
	if err != nil {
		return err
	}
	if e.Name == "" {
		e.Name = filepath.ToSlash(dir)
	}
	e.Name = path.Clean(e.Name)
	e.ReadOnly = e.ReadOnly || o.readOnly
	if !e.own["squash"] {
		e.Squash = o.squash.Squash
	}
	if !e.own["anonuid"] {
		e.AnonUID = o.anonUID
	}
	if !e.own["anongid"] {
		e.AnonGID = o.anonGID
	}
	if !e.own["allow"] {
		e.Allow = o.allow
	}
	if !e.own["sec"] {
		e.Flavors = o.sec
	}
	// 0 would mean the user nobody.
	if e.AnonUID == 0 || e.AnonGID == 0 {
		return errors.New("the anonymous user cannot be root: --squash none does not take root's rights away")
	}
	return nil
}

// exportSpecs is the flag value of --export.
type exportSpecs []exportSpec

func (l *exportSpecs) Type() string { return "SPEC" }

func (l *exportSpecs) String() string {
	var names []string
	for _, e := range *l {
		names = append(names, e.dir)
	}
	return strings.Join(names, " ")
}

// Set adds DIR[=NAME][,OPTION...].
func (l *exportSpecs) Set(s string) error {
	e, err := parseExport(s)
	if err == nil {
		*l = append(*l, e)
	}
	return err
}

// parseExport parses DIR[=NAME][,OPTION...]. A character after a backslash is part of a name.
func parseExport(s string) (exportSpec, error) {
	e := exportSpec{own: make(map[string]bool)}
	what, options, more := cutUnescaped(s, ',')
	dir, name, named := cutUnescaped(what, '=')
	if dir == "" || named && !strings.HasPrefix(name, "/") || strings.ContainsRune(s, 0) {
		return e, errors.New("want DIR[=/NAME][,OPTION...]")
	}
	if (len(s)-len(strings.TrimRight(s, `\`)))%2 == 1 {
		return e, errors.New("a backslash at the end escapes nothing")
	}
	e.dir, e.Name = unescape(dir), unescape(name)
	for more {
		var option string
		option, options, more = cutUnescaped(options, ',')
		if err := e.set(option); err != nil {
			return e, err
		}
	}
	return e, nil
}

// cutUnescaped is strings.Cut at the first sep without a backslash before it.
func cutUnescaped(s string, sep byte) (before, after string, found bool) {
	for i := 0; i < len(s); i++ {
		switch s[i] {
		case '\\':
			i++
		case sep:
			return s[:i], s[i+1:], true
		}
	}
	return s, "", false
}

// unescape removes backslashes; of two in a row it removes the first.
func unescape(s string) string {
	b := make([]byte, 0, len(s))
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+1 < len(s) {
			i++
		}
		b = append(b, s[i])
	}
	return string(b)
}

// set sets an option of one export.
func (e *exportSpec) set(option string) (err error) {
	name, value, valued := strings.Cut(option, "=")
	e.own[name] = true
	switch name {
	case "ro":
		if valued {
			return errors.New("ro takes no value")
		}
		e.ReadOnly = true
	case "squash":
		var v squashValue
		err = v.Set(value)
		e.Squash = v.Squash
	case "anonuid":
		e.AnonUID, err = parseID(value)
	case "anongid":
		e.AnonGID, err = parseID(value)
	case "allow":
		var v prefixes
		err = v.Set(value)
		e.Allow = append(e.Allow, v...)
	case "sec":
		var v flavors
		err = v.Set(value)
		e.Flavors = v
	default:
		return fmt.Errorf("want ro, squash=, anonuid=, anongid=, allow= or sec=, not %q", option)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

func parseID(s string) (uint32, error) {
	n, err := strconv.ParseUint(s, 10, 32)
	if err != nil {
		return 0, fmt.Errorf("%q is not a number of a user or group", s)
	}
	return uint32(n), nil
}

// squashValue is a flag value for a Squash.
type squashValue struct{ nfsd.Squash }

func (v *squashValue) Type() string { return "WHO" }

func (v *squashValue) Completions() []string {
	return []string{nfsd.SquashNone.String(), nfsd.SquashRoot.String(), nfsd.SquashAll.String()}
}

func (v *squashValue) Set(s string) error {
	for _, known := range []nfsd.Squash{nfsd.SquashNone, nfsd.SquashRoot, nfsd.SquashAll} {
		if s == known.String() {
			v.Squash = known
			return nil
		}
	}
	return errors.New("want none, root or all")
}

// prefixes is a flag value for a list of networks. A single address is a network of one.
type prefixes []netip.Prefix

func (l *prefixes) Type() string { return "CIDR" }

func (l *prefixes) String() string { return strings.Trim(fmt.Sprint([]netip.Prefix(*l)), "[]") }

func (l *prefixes) Set(s string) error {
	p, err := netip.ParsePrefix(s)
	if err != nil {
		a, addrErr := netip.ParseAddr(s)
		if addrErr != nil {
			return errors.New("want a network such as 192.0.2.0/24, or an address")
		}
		p = netip.PrefixFrom(a, a.BitLen())
	}
	if p.Addr().Is4In6() { // clients' addresses never have this form
		if p.Bits() < 96 {
			return errors.New("want a network of IPv4 or of IPv6, not of both")
		}
		p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
	}
	*l = append(*l, p.Masked())
	return nil
}
