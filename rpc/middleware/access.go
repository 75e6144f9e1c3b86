package middleware

import (
	"context"
	"log/slog"
	"net/netip"
	"slices"
	"sync"

	"github.com/rpcrdma/rpcrdma/internal/rate"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/rpc"
)

// An Access restricts who may call, by the origin of a call and by its credential. A call must satisfy every field that
// is set: the zero value permits all calls, and From alone restricts only addresses. A nil list does not restrict; an
// empty list that is not nil permits no call.
type Access struct {
	// From are the networks that calls may come from. IPv4 addresses match in either form, plain or mapped. An invalid
	// Prefix contains no address.
	From []netip.Prefix

	// ReservedPorts requires a source port below 1024, which needs privileges on a Unix client. It is
	// for TCP: RDMA adapters choose ports themselves.
	ReservedPorts bool

	// Flavors are the flavors that the credential of a call may have. To require AUTH_SYS, list only oncrpc.FlavorSys.
	// Clients send AUTH_NONE unless they are given a credential.
	Flavors []oncrpc.Flavor

	// UIDs and GIDs are the AUTH_SYS users who may call: those in UIDs, and those with a primary or supplementary group
	// in GIDs. If either is set, calls need AUTH_SYS, or another flavor in Flavors except AUTH_NONE. Other code checks
	// the credentials of such a flavor, such as a wrapper for RPCSEC_GSS.
	UIDs, GIDs []uint32

	// Principals, Certificates and Processes are callers that have been proved: by the Name of a Principal, such as
	// "alice@EXAMPLE.COM"; by one of the names of a certificate, as returned by rpc.CertificateNames, such as
	// "DNS:client.example.org"; and by the user of a process on this machine. See rpc.Peer.
	Principals, Certificates []string
	Processes                []uint32

	// Null also checks calls of procedure 0. Otherwise everyone may make them: they do nothing, and clients use them,
	// with AUTH_NONE, to see whether a server is alive.
	Null bool

	// Logger gets a record, "call refused", for the first call from a host that each rule refuses. The attribute "rule"
	// is the field's name. At most 10 are written per second; "omitted" counts the refused calls without a record
	// before this one. Nil is slog.Default().
	Logger *slog.Logger
}

// highestReserved is the last port that needs privileges to use.
const highestReserved = 1023

// Allow returns a function for rpc.Program.Auth, or [Require], that reports whether a call may be executed:
//
//   - AUTH_BADCRED if a requires AUTH_SYS and the credential cannot be decoded or has trailing bytes;
//   - AUTH_TOOWEAK if a does not permit it, so that clients do not try again.
//
// The function does not refer to the lists of a. It allocates nothing for a call that it permits, and its time depends
// only on the number of different prefix lengths in From.
func Allow(a Access) func(*rpc.Request) oncrpc.AuthStat {
	c := &checker{
		from: newPrefixSet(a.From), reserved: a.ReservedPorts,
		flavors: slices.Clone(a.Flavors), uids: newSet(a.UIDs), gids: newSet(a.GIDs),
		principals: newSet(a.Principals), certificates: newSet(a.Certificates), processes: newSet(a.Processes),
	}
	refused := newRefusals(a.Logger)
	return func(req *rpc.Request) oncrpc.AuthStat {
		if req.Proc == 0 && !a.Null {
			return oncrpc.AuthOK
		}
		stat, r := c.check(req)
		if stat != oncrpc.AuthOK {
			refused.note(req, stat, r)
		}
		return stat
	}
}

// A checker applies an Access.
type checker struct {
	from       *prefixSet
	reserved   bool
	flavors    []oncrpc.Flavor
	uids, gids set[uint32]

	principals, certificates set[string]
	processes                set[uint32]
}

// A rule is the field that refused a call.
type rule uint8

const (
	ruleFrom rule = iota
	rulePorts
	ruleFlavors
	ruleBody
	ruleUsers
	rulePrincipals
	ruleCertificates
	ruleProcesses
)

// String returns the name of the field.
func (r rule) String() string {
	return [...]string{"From", "ReservedPorts", "Flavors", "malformed AUTH_SYS", "UIDs, GIDs", "Principals", "Certificates", "Processes"}[r]
}

// check returns AuthOK if a call is permitted, and otherwise the denial and the rule that refused it.
func (c *checker) check(req *rpc.Request) (oncrpc.AuthStat, rule) {
	if c.from != nil || c.reserved {
		peer := req.Conn().RemoteAddrPort()
		if c.from != nil && !c.from.has(peer.Addr()) {
			return oncrpc.AuthTooWeak, ruleFrom
		}
		if c.reserved && (peer.Port() == 0 || peer.Port() > highestReserved) {
			return oncrpc.AuthTooWeak, rulePorts
		}
	}
	if c.principals != nil || c.certificates != nil || c.processes != nil {
		peer := req.Peer()
		switch {
		case c.principals != nil && (peer.Principal == nil || !c.principals.has(peer.Principal.Name)):
			return oncrpc.AuthTooWeak, rulePrincipals
		case c.certificates != nil && !slices.ContainsFunc(peer.Certificate, c.certificates.has):
			return oncrpc.AuthTooWeak, ruleCertificates
		case c.processes != nil && (peer.Process == nil || !c.processes.has(peer.Process.UID)):
			return oncrpc.AuthTooWeak, ruleProcesses
		}
	}
	users := c.uids != nil || c.gids != nil
	if c.flavors == nil && !users {
		return oncrpc.AuthOK, 0
	}
	switch flavor := req.Cred.Flavor; {
	case c.flavors != nil && !slices.Contains(c.flavors, flavor):
		return oncrpc.AuthTooWeak, ruleFlavors
	case flavor == oncrpc.FlavorSys:
	case c.flavors == nil, users && flavor == oncrpc.FlavorNone:
		return oncrpc.AuthTooWeak, ruleUsers
	default:
		return oncrpc.AuthOK, 0
	}
	sys, ok := req.AuthSys()
	if !ok {
		return oncrpc.AuthBadCred, ruleBody
	}
	if users && !c.uids.has(sys.UID) && !c.gids.has(sys.GID) && !slices.ContainsFunc(sys.GIDs, c.gids.has) {
		return oncrpc.AuthTooWeak, ruleUsers
	}
	return oncrpc.AuthOK, 0
}

const (
	refusedHosts   = 1024 // hosts remembered; beyond that all are forgotten
	refusedRecords = 10   // per second
)

// refusals are the hosts that have a record of a refused call.
type refusals struct {
	log  *slog.Logger // nil: slog.Default()
	gate *rate.Gate

	mu    sync.Mutex
	hosts map[netip.Prefix]uint16 // 1 << rule
}

func newRefusals(log *slog.Logger) *refusals {
	r, _ := rate.New(refusedRecords, 0)
	return &refusals{log: log, gate: rate.NewGate(r), hosts: make(map[netip.Prefix]uint16)}
}

// note writes the record of a refused call, unless its host already has one for the rule.
func (f *refusals) note(req *rpc.Request, stat oncrpc.AuthStat, r rule) {
	log := f.log
	if log == nil {
		log = slog.Default()
	}
	ctx := context.Background()
	if !log.Enabled(ctx, slog.LevelWarn) {
		return
	}
	omitted, ok := f.first(req.Conn().Host(), r)
	if !ok {
		return
	}
	attrs := append(make([]slog.Attr, 0, 16),
		slog.String("rule", r.String()), slog.String("peer", req.Conn().RemoteAddrPort().String()),
		slog.String("status", stat.String()), slog.String("flavor", req.Cred.Flavor.String()),
	)
	attrs = append(callerAttrs(attrs, req), slog.String("proc", oncrpc.Program{Number: req.Prog, Vers: req.Vers}.CallName(req.Proc)))
	if omitted > 0 {
		attrs = append(attrs, slog.Int("omitted", omitted))
	}
	log.LogAttrs(ctx, slog.LevelWarn, "call refused", attrs...)
}

// first reports whether a rule's refusal of a host gets a record, and returns how many refusals before it got none.
func (f *refusals) first(host netip.Prefix, r rule) (omitted int, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	known := f.hosts[host]
	if known&(1<<r) != 0 {
		return 0, false
	}
	if omitted, ok = f.gate.Pass(); !ok {
		return 0, false
	}
	if known == 0 && len(f.hosts) >= refusedHosts {
		clear(f.hosts)
	}
	f.hosts[host] = known | 1<<r
	return omitted, true
}

// Require returns a wrapper that denies the calls that check refuses, without calling the inner handler. It replaces
// rpc.Program.Auth where an outer wrapper is to see refused calls, and for bridged servers (transport.Server.Bridge).
// It sees neither calls that the reply cache answers nor procedure 0, unless rpc.Program.Null is set or the server is
// bridged.
func Require(check func(*rpc.Request) oncrpc.AuthStat) rpc.Middleware {
	return func(next rpc.Handler) rpc.Handler {
		return rpc.HandlerFunc(func(ctx context.Context, req *rpc.Request, res *rpc.Response) {
			if stat := check(req); stat != oncrpc.AuthOK {
				res.Deny(stat)
				return
			}
			next.ServeRPC(ctx, req, res)
		})
	}
}

// A set is a set of ids or names; nil has none.
type set[T comparable] map[T]struct{}

// newSet returns nil for a nil list.
func newSet[T comparable](list []T) set[T] {
	if list == nil {
		return nil
	}
	s := make(set[T], len(list))
	for _, id := range list {
		s[id] = struct{}{}
	}
	return s
}

func (s set[T]) has(id T) bool {
	_, ok := s[id]
	return ok
}

// A prefixSet is a set of networks.
type prefixSet struct {
	bits []int // the prefix lengths in use
	nets map[netip.Prefix]struct{}
}

// newPrefixSet returns nil for a nil list.
func newPrefixSet(list []netip.Prefix) *prefixSet {
	if list == nil {
		return nil
	}
	s := &prefixSet{nets: make(map[netip.Prefix]struct{})}
	const mapped = 96 // bits before an IPv4 address mapped to IPv6
	for _, p := range list {
		if p.Addr().Is4In6() && p.Bits() >= mapped {
			p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-mapped)
		}
		if p = p.Masked(); p.IsValid() {
			if !slices.Contains(s.bits, p.Bits()) {
				s.bits = append(s.bits, p.Bits())
			}
			s.nets[p] = struct{}{}
		}
	}
	return s
}

func (s *prefixSet) has(a netip.Addr) bool {
	for _, bits := range s.bits {
		if p, err := a.Prefix(bits); err == nil {
			if _, ok := s.nets[p]; ok {
				return true
			}
		}
	}
	return false
}
