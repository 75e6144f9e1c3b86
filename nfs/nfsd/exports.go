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

// An exportSet is all exports at a time. It does not change; SetExports makes another one. A call
// uses the set that is the current one when it begins.
type exportSet struct {
	list   []Export
	byID   map[uint32]*Export
	public bool // an export is everybody's

	// uses counts the calls, one for the set before as long as that is in use, and one as long
	// as this is the current set. At zero it stays there, idle is closed, and next, which is set by
	// then, has a use less: so the idle set's predecessors are idle, too.
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

// emptySet returns a set without exports. It has the uses of the current one and of a predecessor.
func emptySet() *exportSet {
	s := &exportSet{byID: make(map[uint32]*Export), idle: make(chan struct{})}
	s.uses.Store(2)
	return s
}

// knows reports whether any export is for a client.
func (s *exportSet) knows(host netip.Addr) bool {
	return s.public || slices.ContainsFunc(s.list, func(e Export) bool { return e.allows(host) })
}

// find returns the export that a clean path is in, the innermost, and the rest of the path; nil:
// none.
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

// use returns the current exports, for the caller to release.
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

// SetExports replaces all exports, which are checked as by New. If it fails, nothing has changed.
// Calls that have begun end with the exports that there were; handles of exports that are not in
// the list are stale for all others. A handle is as good as before if the list has an export with
// its ID, or without one with its Name, wherever in the list, and an FS that has the object.
//
// idle is closed when the last call has ended that uses an export from before. Then the caller
// may close what is not exported any more.
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

// replace makes set the current one and returns the one before.
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

// Shutdown refuses all further calls, and returns when those that have begun have ended. Then the
// file systems may be closed: transport.Server.Close alone does not wait for calls. If ctx ends first,
// the error is ctx's: calls hang in a file system, which must not be closed.
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
