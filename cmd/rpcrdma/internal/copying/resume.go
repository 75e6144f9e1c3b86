package copying

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/explain"
	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/remote"
	"github.com/rpcrdma/rpcrdma/nfs"
)

// How --resume continues an interrupted copy.
//
// A complete copy has the size and modification time of its original. The incomplete copy of a large file is kept
// beside the target under its own name, with a record in the user's cache. The record says which version of the
// original it is of, and how many bytes are safe, on the local disk or by COMMIT on the server's. The record is not
// beside the copy, because it could not be protected from others writing the same file there, and it would be lost with
// the server.
//
// A record is locked while its copy is running, and is valid only if the original is still the same version. Bytes
// after the safe ones are copied again.

const (
	// resumeStep is how many bytes are copied between two updates of a record.
	resumeStep = 16 << 20

	// ResumeLeast is the size below which an interrupted copy of a file starts over.
	ResumeLeast = 8 << 20

	maxRecord = 64 << 10 // bytes
)

// recordJSON is the contents of a record.
type recordJSON struct {
	Done   int64   `json:"done"` // safe bytes; first, so that no write tears it
	From   string  `json:"from"`
	To     string  `json:"to"`
	Source version `json:"source"`
	Part   string  `json:"part"`             // name of the incomplete copy, beside the target
	PartID uint64  `json:"partid,omitempty"` // its file id on a server
}

// record is an open record. It must not be used concurrently.
type record struct {
	recordJSON
	stale string // incomplete copy of another version, to be removed
	file  *os.File
	path  string
}

// errUnderWay means that a record is locked.
var errUnderWay = errors.New("another copy of it with --resume is under way")

// resumeDir returns the directory of the records, and creates it if necessary.
func resumeDir() (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("--resume needs a place for its records: %w", err)
	}
	dir := filepath.Join(cache, "rpcrdma", "resume")
	return dir, os.MkdirAll(dir, 0o700)
}

// recordPath returns the file name of a record.
func recordPath(dir, from, to string) string {
	sum := sha256.Sum256([]byte(from + "\x00" + to))
	return filepath.Join(dir, hex.EncodeToString(sum[:16])+".json")
}

// dropRecord removes the record of a copy that is now too small for one, and calls remove for its incomplete copy.
func dropRecord(dir, from, to string, remove func(part string)) error {
	if _, err := os.Lstat(recordPath(dir, from, to)); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	rec, err := openRecord(dir, from, to, version{})
	if err != nil {
		return err
	}
	if part := rec.anew(); part != "" {
		remove(part)
	}
	rec.close(false)
	return nil
}

// openRecord opens and locks the record of a copy. Part is empty if there is no record for this version of the
// original.
func openRecord(dir, from, to string, v version) (*record, error) {
	r := &record{path: recordPath(dir, from, to)}
	for {
		f, err := os.OpenFile(r.path, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			return nil, err
		}
		if err := lockFile(f); err != nil {
			f.Close()
			return nil, err
		}
		// The process that held the lock may have removed the record.
		mine, err := f.Stat()
		if err == nil {
			var there fs.FileInfo
			if there, err = os.Stat(r.path); err == nil && os.SameFile(mine, there) {
				r.file = f
				break
			}
		}
		f.Close()
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
	text, err := io.ReadAll(io.LimitReader(r.file, maxRecord))
	if err != nil {
		r.file.Close()
		return nil, err
	}
	var old recordJSON
	if json.Unmarshal(text, &old) == nil && old.From == from && old.To == to && remote.IsPart(old.Part) {
		if old.Source.same(v) && old.Done >= 0 && old.Done <= v.Size {
			r.recordJSON = old
			return r, nil
		}
		r.stale = old.Part
	}
	r.recordJSON = recordJSON{From: from, To: to, Source: v}
	return r, nil
}

// anew abandons the incomplete copy of the record. It returns the name of the one to remove, if any.
func (r *record) anew() (stale string) {
	if r.Part != "" {
		r.stale = r.Part
	}
	r.Part, r.PartID, r.Done = "", 0, 0
	stale, r.stale = r.stale, ""
	return stale
}

// save records that the first done bytes are safe.
func (r *record) save(done int64) error {
	r.Done = done
	text, err := json.Marshal(r.recordJSON)
	if err != nil {
		return err
	}
	// Use a single write: a record truncated by a crash does not decode, and neither does one followed by the end of a
	// longer previous one.
	if _, err := r.file.WriteAt(text, 0); err != nil {
		return err
	}
	return r.file.Truncate(int64(len(text)))
}

// close closes the record, and removes it unless keep is set.
func (r *record) close(keep bool) {
	if !keep {
		os.Remove(r.path) // before the lock is released
	}
	r.file.Close()
}

// resumeHelp explains --resume in the help of the commands that have it.
const resumeHelp = `With --resume, copies get the modification times of their originals. A file is not copied
again if its copy has the same size and time. An interrupted copy of a large file continues
where it is safely stored, unless the original has changed meanwhile. Give --resume from the
first run on.`

// keptError is the error of a copy that can be resumed.
type keptError struct {
	err  error
	done int64
}

func (e *keptError) Error() string { return e.err.Error() + e.Hint() }

func (e *keptError) Unwrap() error { return e.err }

func (e *keptError) Explain() string { return explain.Text(e.err) + e.Hint() }

// Hint returns the end of a sentence.
func (e *keptError) Hint() string {
	return fmt.Sprintf("; %d MiB are kept, and the same command goes on from there", e.done>>20)
}

// steps calls f for the ranges copied between two updates of a record, starting at done.
func steps(done, size int64, f func(from, to int64) error) error {
	for done < size {
		next := min(size, done+resumeStep-done%resumeStep)
		if err := f(done, next); err != nil {
			return err
		}
		done = next
	}
	return nil
}

// isCopy reports whether a file of this size and time counts as a complete copy of v.
func (v version) isCopy(size int64, mtime nfs.Time) bool { return v.Size == size && v.MTime == mtime }
