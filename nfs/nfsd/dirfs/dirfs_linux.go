package dirfs

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rpcrdma/rpcrdma/nfs"
	"github.com/rpcrdma/rpcrdma/nfs/nfsd"
	"github.com/rpcrdma/rpcrdma/rpc"
)

// Config configures an FS. The zero value and a nil pointer mean the defaults.
type Config struct {
	// Async makes methods return before changes are on the disk. A crash of the host can then lose
	// what clients believe to be safe.
	Async bool

	// MaxOpen bounds the descriptors that are kept open. Operations under way may need more. 0: a
	// quarter of what the process may have, at most 16384.
	MaxOpen int

	// Idle is how long a descriptor stays open without use. 0: 10 s.
	Idle time.Duration

	// MaxPlaces bounds the memory for places of files in bytes, where handles need them: see the
	// package comment. 0: 64 MiB, which is about 300,000 files.
	MaxPlaces int

	// Store keeps the places of files that MaxPlaces has no room for, and for the next run. It
	// belongs to the caller, which closes it after the FS. Nil: what is forgotten has to be searched.
	Store Store

	// Logger gets what the owner should know, such as errors of the Store. Or nil.
	Logger *slog.Logger

	// For tests: do as a process without rights would do, and as on an old kernel.
	noHandles, asProcess, old bool
}

// Defaults of Config.
const (
	DefaultIdle      = 10 * time.Second
	DefaultMaxPlaces = 64 << 20 // bytes
	mostOpen         = 16384
)

// An FS is a directory as a file system of package nfsd.
type FS struct {
	cfg    Config
	ctx    context.Context // ends with Close
	cancel context.CancelFunc

	self    *self // nil: operations are the process's own
	process nfsd.Caller
	volume  uint32 // of the handles: see volumeOf
	verf    atomic.Uint64
	ids     identifier
	direct  bool // open_by_handle_at works
	at      opener
	byMode  bool // there is no faccessat2(2): modes decide on permissions
	limits  nfsd.Limits
	joint   bool // a new file's name is on the disk when the file is

	fsync, fdatasync func(fd int) error // of package unix, unless a test looks on
	opened           func(name string)  // a test's: called after a name was opened or made
	chmod            func(path string, mode uint32) error

	mount int // descriptor of the root, not O_PATH, for open_by_handle_at
	root  *node
	cache *cache

	places *places // nil: not needed
	seeker *seeker
}

var (
	_ nfsd.FS       = (*FS)(nil)
	_ nfsd.Spacer   = (*FS)(nil)
	_ nfsd.Limiter  = (*FS)(nil)
	_ nfsd.Verifier = (*FS)(nil)
)

// Open returns the FS of a directory. A nil cfg is the default configuration. It fails as root
// if threads cannot take the identity of callers.
func Open(dir string, cfg *Config) (*FS, error) {
	f := &FS{mount: -1, fsync: unix.Fsync, fdatasync: unix.Fdatasync, chmod: unix.Chmod}
	f.verf.Store(rand.Uint64())
	if cfg != nil {
		f.cfg = *cfg
	}
	if err := f.settle(); err != nil {
		return nil, err
	}
	f.ctx, f.cancel = context.WithCancel(context.Background())
	if err := f.open(dir); err != nil {
		f.Close()
		return nil, &os.PathError{Op: "export", Path: dir, Err: err}
	}
	return f, nil
}

// processCaller is the identity of the process itself.
func processCaller() (c nfsd.Caller, err error) {
	c.UID, c.GID = uint32(os.Geteuid()), uint32(os.Getegid())
	groups, err := unix.Getgroups()
	for _, g := range groups {
		c.GIDs = append(c.GIDs, uint32(g))
	}
	return c, err
}

// settle fills in the defaults.
func (f *FS) settle() error {
	c := &f.cfg
	if c.MaxOpen < 0 || c.Idle < 0 || c.MaxPlaces < 0 {
		return errors.New("dirfs: a limit is negative")
	}
	if c.MaxOpen == 0 {
		var limit unix.Rlimit
		if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
			return fmt.Errorf("dirfs: limit of descriptors: %w", err)
		}
		c.MaxOpen = int(min(limit.Cur/4, mostOpen))
	}
	if c.Idle == 0 {
		c.Idle = DefaultIdle
	}
	if c.MaxPlaces == 0 {
		c.MaxPlaces = DefaultMaxPlaces
	}
	return nil
}

func (f *FS) open(dir string) (err error) {
	if f.mount, err = unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil {
		return err
	}
	if f.process, err = processCaller(); err != nil {
		return err
	}
	if f.process.UID == 0 && !f.cfg.asProcess {
		if f.self, err = newSelf(); err != nil {
			return fmt.Errorf("take the identity of callers: %w", err)
		}
	}
	fd, err := openat(f.mount, ".", unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	var st unix.Stat_t
	if err := fstat(fd, &st); err != nil {
		unix.Close(fd)
		return err
	}
	f.probe(fd, &st)
	var proc unix.Stat_t
	if err := unix.Stat(procPath(fd), &proc); err != nil || !same(&proc, &st) {
		unix.Close(fd)
		return errors.New("/proc is not there")
	}
	f.ids = newIdentifier(fd)
	f.warn(dir)
	id, err := f.ids.of(fd, "", &st)
	if err != nil {
		unix.Close(fd)
		return err
	}
	f.volume = volumeOf(&id)
	f.cache = newCache(f.cfg.MaxOpen, f.cfg.Idle)
	f.root = f.cache.add(newNode(f, id, nfs.TypeDir, fd)) // stays in use
	f.limits = limitsOf(f.mount)
	f.joint = isJoint(f.mount)
	if again, err := f.ids.open(f.mount, &id, unix.O_PATH); err == nil {
		unix.Close(again)
		f.direct = !f.cfg.noHandles
	}
	if !f.direct {
		f.places = newPlaces(f)
		f.seeker = newSeeker(f)
	}
	return nil
}

// probe finds out which of the system calls that are not older than Linux 5.6 and 5.8 there are.
func (f *FS) probe(fd int, st *unix.Stat_t) {
	f.at.dev = uint64(st.Dev)
	again, err := f.at.open(fd, ".", unix.O_PATH)
	if err == nil {
		unix.Close(again)
	}
	f.at.plain = err != nil || f.cfg.old
	f.byMode = unix.Faccessat2(fd, "", unix.F_OK, unix.AT_EACCESS|unix.AT_EMPTY_PATH) != nil || f.cfg.old
}

// warn names the promises of handles that the file system does not keep.
func (f *FS) warn(dir string) {
	if f.cfg.Logger == nil {
		return
	}
	var st unix.Statfs_t
	switch {
	case f.ids.weak:
		f.cfg.Logger.Warn("the file system knows inodes by their numbers alone: when a file was removed, a handle that a client keeps can lead to a new one", "dir", dir)
	case f.ids.birth && unix.Fstatfs(f.mount, &st) == nil && int64(st.Type) == unix.OVERLAYFS_SUPER_MAGIC:
		f.cfg.Logger.Warn("an overlay file system without handles (they need Linux 6.5): the handle of a file from a lower layer is stale after the first write", "dir", dir)
	}
}

// volumeOf tells file systems apart, and the directories on them: if another one is exported
// the next time, none of the old handles is any good.
func volumeOf(root *id) uint32 {
	h := fnv.New32a()
	h.Write(root.append(nil))
	return h.Sum32()
}

// isJoint reports whether the file system writes what one system call has changed as one entry of its
// journal: fsync(2) of a new file then includes its name. Linux's own server depends on the same when
// it puts first the file and then the directory on the disk, and the second has nothing left to do;
// but here it would be a flush of the disk. fsync(2) promises less, so only file systems are named
// that are known for it. rename(2) between directories is not left to it: without a journal ext4 has
// nothing that puts the second directory on the disk.
func isJoint(fd int) bool {
	switch fileSystem(fd) {
	case "ext3", "ext4": // ext4_create has one handle; without a journal, fsync has ext4_sync_parent
		return true
	case "xfs": // xfs_create is one transaction
		return true
	}
	return false
}

// fileSystem returns the type of the file system that fd is on; "" if it is unknown.
func fileSystem(fd int) string {
	info, err := os.ReadFile("/proc/self/fdinfo/" + strconv.Itoa(fd))
	if err != nil {
		return ""
	}
	mount := ""
	for line := range strings.Lines(string(info)) {
		if id, ok := strings.CutPrefix(line, "mnt_id:"); ok {
			mount = strings.TrimSpace(id)
		}
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return ""
	}
	// The mount's ID is first, and the type after a dash that follows optional fields: proc(5).
	for line := range strings.Lines(string(mounts)) {
		if id, rest, _ := strings.Cut(line, " "); id == mount {
			_, rest, _ = strings.Cut(rest, " - ")
			name, _, _ := strings.Cut(rest, " ")
			return name
		}
	}
	return ""
}

// Close closes all descriptors. No operation may be under way or follow.
func (f *FS) Close() error {
	f.cancel()
	if f.seeker != nil {
		f.seeker.done.Wait()
	}
	var err error
	if f.places != nil {
		err = f.places.close()
	}
	if f.cache != nil {
		f.cache.close()
	}
	if f.self != nil {
		f.self.close()
	}
	if f.mount >= 0 {
		unix.Close(f.mount)
		f.mount = -1
	}
	return err
}

// Root returns the directory.
func (f *FS) Root(context.Context) (nfsd.Node, error) {
	f.cache.use(f.root)
	return f.root, nil
}

// handleHead is the size of the part of a handle before the id: the volume.
const handleHead = 4

// appendHandle appends the handle of an object to b.
func (f *FS) appendHandle(b []byte, id *id) []byte {
	return id.append(binary.BigEndian.AppendUint32(b, f.volume))
}

// Node returns the object with a handle.
func (f *FS) Node(ctx context.Context, handle []byte) (nfsd.Node, error) {
	id, ok := f.parseHandle(handle)
	if !ok {
		return nil, unix.ESTALE
	}
	n, err := f.find(ctx, &id)
	if err != nil {
		return nil, err // not n, which would be a Node that is not nil
	}
	return n, nil
}

func (f *FS) parseHandle(handle []byte) (id id, ok bool) {
	if len(handle) < handleHead || binary.BigEndian.Uint32(handle) != f.volume {
		return id, false
	}
	return parseID(handle[handleHead:])
}

// find returns the object with an id, for the caller to release.
func (f *FS) find(ctx context.Context, id *id) (*node, error) {
	if n := f.cache.get(id); n != nil {
		return n, nil
	}
	if !f.direct {
		var host netip.Prefix
		if conn := rpc.ConnFromContext(ctx); conn != nil {
			host = conn.Host()
		}
		return f.locate(ctx, host, id)
	}
	fd, err := f.ids.open(f.mount, id, unix.O_PATH)
	if err != nil {
		return nil, err
	}
	return f.adopt(fd, id, nil, "", nil)
}

// adopt returns the node of what fd, which it takes, is open for. by is the id that it has been
// opened by; nil: it has been found by its name. dir and name say where, and for which caller.
func (f *FS) adopt(fd int, by *id, dir *node, name string, who *nfsd.Caller) (*node, error) {
	var st unix.Stat_t
	err := fstat(fd, &st)
	var id id
	switch {
	case err != nil:
	case by != nil && by.ino == st.Ino && typeOf(st.Mode) == nfs.TypeReg:
		// Another kernel may have made the handle in another way. That would only be a second
		// node; but directories are compared by their ids.
		id = *by
	default:
		id, err = f.ids.of(fd, "", &st)
	}
	if err == nil && st.Nlink == 0 {
		err = unix.ESTALE
	}
	if err != nil {
		unix.Close(fd)
		return nil, err
	}
	if f.places != nil && dir != nil {
		f.places.note(&id, &dir.id, name, who)
	}
	return f.cache.add(newNode(f, id, typeOf(st.Mode), fd)), nil
}

// Verifier returns a number that grows when the disk has not taken written data.
func (f *FS) Verifier() uint64 { return f.verf.Load() }

// Space returns the usage of the file system.
func (f *FS) Space(context.Context, *nfsd.Caller) (nfsd.Space, error) {
	var st unix.Statfs_t
	if err := unix.Fstatfs(f.mount, &st); err != nil {
		return nfsd.Space{}, err
	}
	block := uint64(st.Frsize)
	if block == 0 {
		block = uint64(st.Bsize)
	}
	return nfsd.Space{
		TotalBytes: st.Blocks * block, FreeBytes: st.Bfree * block, AvailBytes: st.Bavail * block,
		TotalFiles: st.Files, FreeFiles: st.Ffree, AvailFiles: st.Ffree,
	}, nil
}

// Limits returns the limits of the file system.
func (f *FS) Limits() nfsd.Limits { return f.limits }

// limitsOf finds out the limits that the kernel does not report, by the type of the file system.
func limitsOf(fd int) nfsd.Limits {
	l := nfsd.Limits{TimeDelta: nfs.Time{Nsec: 1}, MaxName: 255, MaxLinks: 127}
	var st unix.Statfs_t
	if unix.Fstatfs(fd, &st) != nil {
		return l
	}
	if st.Namelen > 0 {
		l.MaxName = uint32(min(st.Namelen, nfs.MaxName))
	}
	switch int64(st.Type) {
	case unix.EXT4_SUPER_MAGIC: // also ext2 and ext3
		l.MaxLinks = 65000
	case unix.BTRFS_SUPER_MAGIC:
		l.MaxLinks = 65535
	case unix.XFS_SUPER_MAGIC, unix.TMPFS_MAGIC:
		l.MaxLinks = 1<<31 - 1
	}
	return l
}

func (f *FS) log(msg string, args ...any) {
	if f.cfg.Logger != nil {
		f.cfg.Logger.Error(msg, args...)
	}
}
