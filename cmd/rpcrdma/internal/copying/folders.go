package copying

import (
	"os"
	"sync"
)

// folders holds the open directories of a local tree from which files are being copied. Files come one directory after
// the other. Each directory is opened once, and its files are opened relative to it, whereas os.Root would walk from
// the top for every system call.
type folders struct {
	top *os.Root

	mu   sync.Mutex
	open map[string]*folder // by path below top
	last *folder            // stays open for the next file, even without users
}

// folder is an open directory. It remains the same directory, whatever happens to its name.
type folder struct {
	*os.Root
	path  string
	users int
}

func newFolders(top *os.Root) *folders {
	return &folders{top: top, open: make(map[string]*folder)}
}

// enter opens the directory at a path below the top, "." for the top. If it returns no error, the caller must call
// leave.
func (s *folders) enter(path string) (*folder, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.open[path]
	if f == nil {
		root, err := s.top.OpenRoot(path)
		if err != nil {
			return nil, err
		}
		f = &folder{Root: root, path: path}
		s.open[path] = f
	}
	f.users++
	if old := s.last; old != f {
		s.last = f
		s.drop(old)
	}
	return f, nil
}

// leave undoes one enter.
func (s *folders) leave(f *folder) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f.users--
	s.drop(f)
}

// drop closes a folder that is no longer needed. mu is held.
func (s *folders) drop(f *folder) {
	if f != nil && f.users == 0 && f != s.last {
		delete(s.open, f.path)
		f.Close() // nothing was written to it
	}
}

// close closes the remaining folders, none of which is in use.
func (s *folders) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.last
	s.last = nil
	s.drop(old)
}
