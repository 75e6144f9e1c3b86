package serving

import (
	"io"
	"log/slog"

	"github.com/rpcrdma/rpcrdma/nfs/nfsd"
	"github.com/rpcrdma/rpcrdma/nfs/nfsd/dirfs"
)

// OpenDir opens a directory to be exported. s may be nil.
func OpenDir(dir string, async bool, s *State, log *slog.Logger) (nfsd.FS, io.Closer, error) {
	cfg := dirfs.Config{Async: async, Logger: log}
	if s != nil {
		cfg.Store = storeOf(s)
	}
	f, err := dirfs.Open(dir, &cfg)
	if err != nil {
		return nil, nil, err
	}
	return f, f, nil
}

// places is a state as a dirfs.Store.
type places struct{ *State }

func storeOf(s *State) dirfs.Store { return places{s} }

// Put stores pairs.
func (p places) Put(pairs []dirfs.Pair) error {
	return p.update(func(put func(key, value []byte) error) error {
		for _, pair := range pairs {
			if err := put(pair.Key, pair.Value); err != nil {
				return err
			}
		}
		return nil
	})
}
