package copying

import (
	"os"
	"sync"
)

// The folders of a local tree are its directories with files that are being copied. Files come one
// directory after the other: so each is opened once, and its files are reached from there, where
// os.Root would go the whole way from the top for every system call.
type folders struct {
	top *os.Root

	mu   sync.Mutex
	open map[string]*folder // by path below top
	last *folder            // stays open for the next file, also without users
}

// A folder is a directory. It stays the one that was opened, whatever happens to its name.
type folder struct {
	*os.Root
	path  string
	users int
}

func newFolders(top *os.Root) *folders {
	return &folders{top: top, open: make(map[string]*folder)}
}

// enter opens the directory with a path below the top, "." being the top. leave has to follow if the
// error is nil.
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

// leave ends one use of a folder.
func (s *folders) leave(f *folder) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f.users--
	s.drop(f)
}

// drop closes a folder that is not needed any more. mu is held.
func (s *folders) drop(f *folder) {
	if f != nil && f.users == 0 && f != s.last {
		delete(s.open, f.path)
		f.Close() // nothing was written to it
	}
}

// close closes what is still open, when it is not in use.
func (s *folders) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.last
	s.last = nil
	s.drop(old)
}
