package dirfs

import (
	"slices"
	"sync"

	"github.com/rpcrdma/rpcrdma/nfs/nfsd"
)

// A syncing is about fsync(2) of a file. Linux says once to each descriptor that written data could
// not be put on the disk, and calls share one: the others, at the time or after it, are
// answered that all is well.
type syncing struct {
	mu       sync.Mutex
	under    []chan struct{} // one for each that is under way, closed when all know how it has ended
	failures int
	err      error // of the last failure
}

// failed returns how often data could not be put on the disk, and the last error.
func (s *syncing) failed() (failures int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failures, s.err
}

// flush puts a regular file on the disk by sync, of fd. When it returns, errors that sync has
// returned to other calls instead of this one are counted, in the node and in the FS's verifier: flush waits
// for the calls that were under way.
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
