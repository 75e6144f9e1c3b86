package main

import (
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"github.com/rpcrdma/rpcrdma/nfs/nfsd"
)

// An exportSpec is a directory that serve exports, and how.
type exportSpec struct {
	dir string
	nfsd.Export
	own map[string]bool // options that are the export's own, by the name of their flag
}

// exportFlags are the flags of serve that say what is exported to whom.
type exportFlags struct {
	dir      string
	specs    exportSpecs
	readOnly bool
	squash   squashValue
	anonUID  uint32
	anonGID  uint32
	allow    prefixes
	state    string
}

func (o *exportFlags) add(flags *pflag.FlagSet) {
	flags.StringVar(&o.dir, "dir", "", "export the directory `DIR` as \"/\"")
	flags.Var(&o.specs, "export", "export `DIR[=NAME][,OPTION...]`; may be given many times")
	flags.BoolVar(&o.readOnly, "read-only", false, "refuse all changes")
	flags.Var(&o.squash, "squash", "take `WHO` for the anonymous user: none, root or all")
	flags.Uint32Var(&o.anonUID, "anonuid", nfsd.Nobody, "the anonymous user is `UID`")
	flags.Uint32Var(&o.anonGID, "anongid", nfsd.Nobody, "the anonymous user's group is `GID`")
	flags.Var(&o.allow, "allow", "serve NFS to clients of the network `CIDR` alone; may be given many times")
	flags.StringVar(&o.state, "state", "", "keep in `DIR` what handles need to outlive the server")
}

// exports returns what is to be exported, with the flags' values where a spec has none.
func (o *exportFlags) exports() ([]exportSpec, error) {
	list := append([]exportSpec(nil), o.specs...)
	if o.dir != "" {
		list = append(list, exportSpec{dir: o.dir, Export: nfsd.Export{Name: "/"}})
	}
	if len(list) == 0 {
		return nil, errors.New("--dir DIR is missing: which directory?")
	}
	for i := range list {
		e := &list[i]
		if e.Name == "" {
			dir, err := filepath.Abs(e.dir)
			if err != nil {
				return nil, err
			}
			e.Name = filepath.ToSlash(dir)
		}
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
		// Zero would stand for nobody.
		if e.AnonUID == 0 || e.AnonGID == 0 {
			return nil, errors.New("the anonymous user cannot be root: --squash none does not take root's rights away")
		}
	}
	return list, nil
}

// exportSpecs is the value of --export.
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
	fields := strings.Split(s, ",")
	dir, name, named := strings.Cut(fields[0], "=")
	if dir == "" || named && !strings.HasPrefix(name, "/") {
		return errors.New("want DIR[=/NAME][,OPTION...]")
	}
	e := exportSpec{dir: dir, Export: nfsd.Export{Name: name}, own: make(map[string]bool)}
	for _, option := range fields[1:] {
		if err := e.set(option); err != nil {
			return err
		}
	}
	*l = append(*l, e)
	return nil
}

// set sets an option of one export.
func (e *exportSpec) set(option string) (err error) {
	name, value, _ := strings.Cut(option, "=")
	e.own[name] = true
	switch name {
	case "ro":
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
	default:
		return fmt.Errorf("want ro, squash=, anonuid=, anongid= or allow=, not %q", option)
	}
	return err
}

func parseID(s string) (uint32, error) {
	n, err := strconv.ParseUint(s, 10, 32)
	if err != nil {
		return 0, fmt.Errorf("%q is not a number of a user or group", s)
	}
	return uint32(n), nil
}

// squashValue is a Squash as a flag.
type squashValue struct{ nfsd.Squash }

func (v *squashValue) Type() string { return "WHO" }

func (v *squashValue) Set(s string) error {
	for _, known := range []nfsd.Squash{nfsd.SquashNone, nfsd.SquashRoot, nfsd.SquashAll} {
		if s == known.String() {
			v.Squash = known
			return nil
		}
	}
	return errors.New("want none, root or all")
}

// prefixes is a list of networks as a flag. An address alone is a network of one.
type prefixes []netip.Prefix

func (l *prefixes) Type() string   { return "CIDR" }
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
	*l = append(*l, p)
	return nil
}
