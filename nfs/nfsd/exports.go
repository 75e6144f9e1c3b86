package nfsd

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync/atomic"

	"github.com/rpcrdma/rpcrdma/nfs"
)

// exportSet holds all exports at a point in time. It is immutable; SetExports makes a new one. A call uses the set that
// is current when it begins.
type exportSet struct {
	list   []Export
	byID   map[uint32]*Export
	public bool // some export permits everyone

	// uses counts the calls, plus one while this is the current set, plus one while the previous set is in use. At
	// zero, which is final, idle is closed and the use in next, which is set by then, is released. The predecessors of
	// an idle set are therefore idle too.
	uses atomic.Int64
	idle chan struct{}
	next *exportSet
}

// newExportSet checks exports.
func newExportSet(list []Export) (*exportSet, error) {
	if len(list) == 0 {
		return nil, errors.New("nfsd: no exports")
	}
	s := emptySet()
	s.list = slices.Clone(list)
	names := make(map[string]bool)
	for i := range s.list {
		e := &s.list[i]
		if err := e.settle(); err != nil {
			return nil, err
		}
		if other := s.byID[e.ID]; other != nil || names[e.Name] {
			return nil, fmt.Errorf("nfsd: two exports have the name %q or the same ID", e.Name)
		}
		s.byID[e.ID], names[e.Name] = e, true
		s.public = s.public || e.Allow == nil
	}
	return s, nil
}

// emptySet returns a set without exports. It has the uses of a current set with a predecessor.
func emptySet() *exportSet {
	s := &exportSet{byID: make(map[uint32]*Export), idle: make(chan struct{})}
	s.uses.Store(2)
	return s
}

// knows reports whether any export allows a client.
func (s *exportSet) knows(host netip.Addr) bool {
	return s.public || slices.ContainsFunc(s.list, func(e Export) bool { return e.allows(host) })
}

// find returns the innermost export that contains a clean path, and the rest of the path. It returns nil if none
// exists.
func (s *exportSet) find(dir string) (found *Export, below string) {
	for i := range s.list {
		e := &s.list[i]
		rest, ok := within(dir, e.Name)
		if ok && (found == nil || len(e.Name) > len(found.Name)) {
			found, below = e, rest
		}
	}
	return found, below
}

// use returns the current exports. The caller must release them.
func (s *Server) use() *exportSet {
	for {
		set := s.exports.Load()
		for n := set.uses.Load(); n > 0; n = set.uses.Load() {
			if set.uses.CompareAndSwap(n, n+1) {
				return set
			}
		}
	}
}

// release ends a use.
func (s *exportSet) release() {
	for set := s; set != nil && set.uses.Add(-1) == 0; set = set.next {
		close(set.idle)
	}
}

// SetExports replaces all exports, which are checked as by New. If it fails, nothing changes. Calls in progress
// continue with the previous exports. For all later calls, handles of removed exports are stale. A handle stays valid
// if the list has an export with its ID, or one without ID and with its Name, in any position, with an FS that has the
// object.
//
// idle is closed when the last call that uses the previous exports has ended. The caller may then close what is no
// longer exported.
func (s *Server) SetExports(list []Export) (idle <-chan struct{}, err error) {
	set, err := newExportSet(list)
	if err != nil {
		return nil, err
	}
	old := s.replace(set)
	s.mounts.retain(func(m nfs.MountEntry) bool {
		e, _ := set.find(m.Dir)
		return e != nil
	})
	return old.idle, nil
}

// replace makes set the current set and returns the previous one.
func (s *Server) replace(set *exportSet) (old *exportSet) {
	s.setting.Lock()
	old = s.exports.Load()
	for id, e := range set.byID {
		if before := old.byID[id]; before != nil {
			e.verf = before.verf
		}
	}
	old.next = set
	s.exports.Store(set)
	s.setting.Unlock()
	old.release()
	return old
}

// Shutdown rejects new calls and waits until those in progress have ended. The file systems may then be closed;
// transport.Server.Close alone does not wait for calls. If ctx ends first, Shutdown returns its error: calls hang in a
// file system, which must not be closed.
func (s *Server) Shutdown(ctx context.Context) error {
	old := s.replace(emptySet())
	select {
	case <-old.idle:
		return nil
	default:
	}
	select {
	case <-old.idle:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
