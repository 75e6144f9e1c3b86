package capture

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
)

// Create returns a Writer to a new file with this name, which only its owner can read. An existing
// file is replaced: a process that has it open keeps the old one. A nil cfg is the zero Config.
func Create(name string, cfg *Config) (*Writer, error) {
	f := &files{name: name, keep: 1}
	if cfg != nil {
		f.keep = max(cfg.Files, 1)
	}
	if err := f.create(); err != nil {
		return nil, err
	}
	return newWriter(f, cfg), nil
}

// files is the sink that writes the newest of a series of files.
type files struct {
	*os.File
	name string
	keep int
}

// create creates the newest file. It removes an old file of that name instead of truncating it, because other users may
// have permission to read the old file.
func (f *files) create() (err error) {
	switch st, err := os.Lstat(f.name); {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return err
	case !st.Mode().IsRegular():
		return fmt.Errorf("%s exists and is no file", f.name)
	default:
		if err := os.Remove(f.name); err != nil {
			return err
		}
	}
	f.File, err = os.OpenFile(f.name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	return err
}

// rotate renames the files and begins a new one.
func (f *files) rotate() (bool, error) {
	if f.keep < 2 {
		return false, nil
	}
	if err := f.File.Close(); err != nil {
		return false, err
	}
	for i := f.keep - 1; i > 0; i-- {
		from := f.name
		if i > 1 {
			from = fmt.Sprintf("%s.%d", f.name, i-1)
		}
		err := os.Rename(from, fmt.Sprintf("%s.%d", f.name, i))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return false, err
		}
	}
	return true, f.create()
}
