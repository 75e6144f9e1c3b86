package dirfs

import (
	"slices"
	"sync"

	"github.com/rpcrdma/rpcrdma/nfs/nfsd"
)

// syncing coordinates fsync(2) of a file. Linux reports once per descriptor that written data could not be stored, but
// calls share a descriptor: all others, concurrent or later, get no error.
type syncing struct {
	mu       sync.Mutex
	under    []chan struct{} // one for each fsync in progress, closed when its result is recorded
	failures int
	err      error // last failure
}

// failed returns how often data could not be stored, and the last error.
func (s *syncing) failed() (failures int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failures, s.err
}

// flush stores a regular file by calling sync with fd. Before it returns, it waits for the calls of sync that were in
// progress, so that errors which they received in its place are counted, in the node and in the FS's verifier.
func (n *node) flush(who *nfsd.Caller, fd int, sync func(fd int) error) error {
	s := &n.syncing
	ended := make(chan struct{})
	s.mu.Lock()
	s.under = append(s.under, ended)
	s.mu.Unlock()

	err := who.Wait(func() error { return retry(func() error { return sync(fd) }) })

	s.mu.Lock()
	if err != nil {
		s.failures++
		s.err = err
		n.fs.verf.Add(1)
	}
	at := slices.Index(s.under, ended)
	s.under = slices.Delete(s.under, at, at+1)
	others := slices.Clone(s.under)
	s.mu.Unlock()
	close(ended)
	if err != nil {
		n.fs.log("data could not be put on the disk", "inode", n.id.ino, "err", err)
		return err
	}
	for _, other := range others {
		<-other
	}
	return nil
}
