package serving

import (
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	bolt "go.etcd.io/bbolt"
	bolterr "go.etcd.io/bbolt/errors"

	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/explain"
)

// A State survives restarts of a server: the key that signs its handles, and the places of files. Only one server at a
// time can use it.
type State struct {
	key []byte
	db  *bolt.DB
}

const (
	stateKey    = "key"       // file with the key, with which a process can forge handles
	statePlaces = "places.db" // a bbolt database
	keySize     = 32          // bytes
)

// placesBucket is the database bucket for the places of files.
const placesBucket = "places"

// openState opens the state in dir, which it creates if necessary.
func openState(dir string) (*State, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	path := filepath.Join(dir, statePlaces)
	db, err := bolt.Open(path, 0o600, &bolt.Options{Timeout: time.Second})
	if errors.Is(err, bolterr.ErrTimeout) {
		return nil, fmt.Errorf("another server uses %s", explain.Printable(dir))
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", explain.Printable(path), err)
	}
	s := &State{db: db}
	err = db.Update(func(tx *bolt.Tx) error {
		_, err := tx.CreateBucketIfNotExists([]byte(placesBucket))
		return err
	})
	if err == nil {
		s.key, err = openKey(dir)
	}
	if err != nil {
		db.Close()
		return nil, err
	}
	return s, nil
}

// openKey reads the key, or creates one. The database's lock excludes other processes.
func openKey(dir string) ([]byte, error) {
	path := filepath.Join(dir, stateKey)
	key, err := os.ReadFile(path)
	if err == nil && len(key) != keySize {
		return nil, fmt.Errorf("%s has %d bytes, not %d: remove it, and handles that clients have become stale", explain.Printable(path), len(key), keySize)
	}
	if !errors.Is(err, os.ErrNotExist) {
		return key, err
	}
	key = make([]byte, keySize)
	rand.Read(key) // never fails
	// Write to another name first, so that nothing finds an incomplete key.
	temp, err := os.CreateTemp(dir, stateKey+"-*")
	if err != nil {
		return nil, err
	}
	defer os.Remove(temp.Name())
	_, err = temp.Write(key)
	if err := errors.Join(err, temp.Sync(), temp.Close()); err != nil {
		return nil, err
	}
	if err := os.Rename(temp.Name(), path); err != nil {
		return nil, err
	}
	return key, syncDir(dir)
}

// syncDir stores the names of a directory on the disk.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	// EINVAL: the file system need not store anything for a directory.
	if err := d.Sync(); !errors.Is(err, syscall.EINVAL) {
		return err
	}
	return nil
}

// Close closes the database.
func (s *State) Close() error { return s.db.Close() }

// Get returns the value of a key, or nil if none exists.
func (s *State) Get(key []byte) (value []byte, err error) {
	err = s.db.View(func(tx *bolt.Tx) error {
		value = append(value, tx.Bucket([]byte(placesBucket)).Get(key)...)
		return nil
	})
	return value, err
}

// update stores the pairs that f puts, all or none. A nil value removes a pair.
func (s *State) update(f func(put func(key, value []byte) error) error) error {
	return s.db.Update(func(tx *bolt.Tx) error {
		b := tx.Bucket([]byte(placesBucket))
		return f(func(key, value []byte) error {
			if value == nil {
				return b.Delete(key)
			}
			return b.Put(key, value)
		})
	})
}

// outside checks that an option's file is not in an exported directory, where clients could read the key of handles, or
// write an exports file.
func outside(option, path, dir string) error {
	at, err := filepath.Abs(path)
	if err != nil {
		return err
	}
	for { // find the part of it that exists
		real, err := filepath.EvalSymlinks(at)
		if err == nil {
			at = real
			break
		}
		if !errors.Is(err, os.ErrNotExist) || filepath.Dir(at) == at {
			return err
		}
		at = filepath.Dir(at)
	}
	exported, err := os.Stat(dir)
	if err != nil {
		return err
	}
	for {
		if info, err := os.Stat(at); err == nil && os.SameFile(info, exported) {
			return fmt.Errorf("%s %s is in %s, which is exported", option, explain.Printable(path), explain.Printable(dir))
		}
		above := filepath.Dir(at)
		if above == at {
			return nil
		}
		at = above
	}
}
