package middleware

import (
	"context"
	"net/netip"
	"slices"

	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/rpc"
)

// An Access says who may call, by where a call comes from and by its AUTH_SYS credential. A call must
// pass all of it. The zero value permits every call with such a credential. A nil list does not
// restrict; a list that is empty, but not nil, permits no call.
type Access struct {
	// From are the networks that calls may come from. Addresses of IPv4 are compared as such,
	// however they are written. A Prefix that is not valid has no address in it.
	From []netip.Prefix

	// UIDs and GIDs are the users who may call: those in UIDs, and those with a group in GIDs as their
	// group or among their other groups. If both are nil every user may.
	UIDs, GIDs []uint32

	// None permits calls with AUTH_NONE, unless UIDs or GIDs is set.
	None bool

	// Others are flavors that are permitted as well, whatever their credentials say: other code checks
	// them, such as a wrapper for RPCSEC_GSS.
	Others []oncrpc.Flavor

	// ReservedPorts requires a source port below 1024, which needs privileges on a Unix client. It is
	// for TCP: RDMA adapters choose ports themselves.
	ReservedPorts bool

	// Null checks calls of procedure 0, too. Otherwise everyone may make them: they do nothing, and
	// clients use them, with AUTH_NONE, to see whether a server is alive.
	Null bool
}

// highestReserved is the last port that takes privileges to use.
const highestReserved = 1023

// Allow returns a function for rpc.Program.Auth, or [Require], that reports whether a call may
// be executed:
//
//   - AUTH_BADCRED if its AUTH_SYS credential cannot be decoded, or has bytes after it;
//   - AUTH_TOOWEAK if a does not permit it, so that clients do not try again.
//
// The function does not use the lists of a afterwards. It allocates nothing, and its time depends
// only on the number of different prefix lengths in From.
func Allow(a Access) func(*rpc.Request) oncrpc.AuthStat {
	from, uids, gids := newPrefixSet(a.From), newSet(a.UIDs), newSet(a.GIDs)
	others := slices.Clone(a.Others)
	anybody := uids == nil && gids == nil
	return func(req *rpc.Request) oncrpc.AuthStat {
		if req.Proc == 0 && !a.Null {
			return oncrpc.AuthOK
		}
		if from != nil || a.ReservedPorts {
			peer := req.Conn().RemoteAddrPort()
			if from != nil && !from.has(peer.Addr()) {
				return oncrpc.AuthTooWeak
			}
			if a.ReservedPorts && (peer.Port() == 0 || peer.Port() > highestReserved) {
				return oncrpc.AuthTooWeak
			}
		}
		flavor := req.Cred.Flavor
		switch {
		case slices.Contains(others, flavor):
			return oncrpc.AuthOK
		case flavor == oncrpc.FlavorNone && a.None && anybody:
			return oncrpc.AuthOK
		case flavor != oncrpc.FlavorSys:
			return oncrpc.AuthTooWeak
		}
		sys, ok := req.AuthSys()
		if !ok {
			return oncrpc.AuthBadCred
		}
		if anybody || uids.has(sys.UID) || gids.has(sys.GID) || slices.ContainsFunc(sys.GIDs, gids.has) {
			return oncrpc.AuthOK
		}
		return oncrpc.AuthTooWeak
	}
}

// Require returns a wrapper that denies the calls that check refuses, without calling the inner
// handler. It replaces rpc.Program.Auth where an outer wrapper is to see refused calls, and for
// bridged servers (transport.Server.Bridge). It does not see calls that the reply cache answers, nor
// procedure 0, unless rpc.Program.Null is set or the server is bridged.
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

// A set is a set of ids; nil has none.
type set map[uint32]struct{}

// newSet returns nil for a nil list.
func newSet(list []uint32) set {
	if list == nil {
		return nil
	}
	s := make(set, len(list))
	for _, id := range list {
		s[id] = struct{}{}
	}
	return s
}

func (s set) has(id uint32) bool {
	_, ok := s[id]
	return ok
}

// A prefixSet is a set of networks.
type prefixSet struct {
	bits []int // the lengths that there are
	nets map[netip.Prefix]struct{}
}

// newPrefixSet returns nil for a nil list.
func newPrefixSet(list []netip.Prefix) *prefixSet {
	if list == nil {
		return nil
	}
	s := &prefixSet{nets: make(map[netip.Prefix]struct{})}
	const mapped = 96 // bits in front of an IPv4 address in IPv6
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
