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
	// Async makes methods return before changes are on disk. A crash of the host may then lose changes that clients
	// believe to be safe.
	Async bool

	// MaxOpen limits the descriptors that are kept open. Operations in progress may need more. 0 means a quarter of the
	// process's limit, but not more than 16384.
	MaxOpen int

	// Idle is how long an unused descriptor stays open. 0 means 10 s.
	Idle time.Duration

	// MaxPlaces limits the memory for the places of files, in bytes, if handles need them: see the package comment. 0
	// means 64 MiB, enough for about 300,000 files.
	MaxPlaces int

	// Store keeps the places of files that exceed MaxPlaces, also for later runs. The caller owns it and closes it
	// after the FS. If it is nil, forgotten files must be searched for.
	Store Store

	// Logger receives problems that the operator should know about, such as errors of the Store. It may be nil.
	Logger *slog.Logger

	// For tests: behave as in a process without privileges, or as on an old kernel.
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
	ctx    context.Context // canceled by Close
	cancel context.CancelFunc

	self    *self // nil: operations run as the process itself
	process nfsd.Caller
	volume  uint32 // volume number in handles: see volumeOf
	verf    atomic.Uint64
	ids     identifier
	direct  bool // open_by_handle_at works
	at      opener
	byMode  bool // faccessat2(2) is missing: decide permissions by mode
	limits  nfsd.Limits
	joint   bool // fsync of a new file also stores its name

	fsync, fdatasync func(fd int) error // of package unix, except in tests that observe it
	opened           func(name string)  // test hook: called after a name was opened or created
	chmod            func(path string, mode uint32) error

	mount int // descriptor of the root for open_by_handle_at, not O_PATH
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

// Open returns the FS of a directory. A nil cfg means the default configuration. As root, it fails if threads cannot
// assume the identity of callers.
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

// settle fills in defaults.
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

// probe determines which of the system calls added in Linux 5.6 and 5.8 are available.
func (f *FS) probe(fd int, st *unix.Stat_t) {
	f.at.dev = uint64(st.Dev)
	again, err := f.at.open(fd, ".", unix.O_PATH)
	if err == nil {
		unix.Close(again)
	}
	f.at.plain = err != nil || f.cfg.old
	f.byMode = unix.Faccessat2(fd, "", unix.F_OK, unix.AT_EACCESS|unix.AT_EMPTY_PATH) != nil || f.cfg.old
}

// warn logs the guarantees of handles that the file system does not provide.
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

// volumeOf returns a number that identifies the file system and the directory on it. If another directory is exported
// next time, none of the old handles is valid.
func volumeOf(root *id) uint32 {
	h := fnv.New32a()
	h.Write(root.append(nil))
	return h.Sum32()
}

// isJoint reports whether the file system stores all changes of one system call as one journal entry, so that fsync(2)
// of a new file includes its name. Linux's own server relies on this too: it flushes the file and then the directory,
// and the second flush has nothing left to do; here it would cost a disk flush. fsync(2) does not guarantee it, so only
// file systems known to do it are listed. rename(2) between directories does not rely on it, because without a journal
// nothing in ext4 stores the second directory.
func isJoint(fd int) bool {
	switch fileSystem(fd) {
	case "ext3", "ext4": // ext4_create uses one handle; without a journal, fsync calls ext4_sync_parent
		return true
	case "xfs": // xfs_create uses one transaction
		return true
	}
	return false
}

// fileSystem returns the type of the file system of fd, or "" if unknown.
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
	// The mount ID is first, and the type is after the dash that follows the optional fields: proc(5).
	for line := range strings.Lines(string(mounts)) {
		if id, rest, _ := strings.Cut(line, " "); id == mount {
			_, rest, _ = strings.Cut(rest, " - ")
			name, _, _ := strings.Cut(rest, " ")
			return name
		}
	}
	return ""
}

// Close closes all descriptors. It must not be called before all operations have returned.
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

// handleHead is the length of a handle's part before the id: the volume.
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
		return nil, err // not n: a nil *node would be a non-nil Node
	}
	return n, nil
}

func (f *FS) parseHandle(handle []byte) (id id, ok bool) {
	if len(handle) < handleHead || binary.BigEndian.Uint32(handle) != f.volume {
		return id, false
	}
	return parseID(handle[handleHead:])
}

// find returns the object with an id. The caller must release it.
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

// adopt returns the node of the object open at fd, which it takes over. by is the id with which it was opened, or nil
// if it was found by name. dir and name say where it was found, and for which caller.
func (f *FS) adopt(fd int, by *id, dir *node, name string, who *nfsd.Caller) (*node, error) {
	var st unix.Stat_t
	err := fstat(fd, &st)
	var id id
	switch {
	case err != nil:
	case by != nil && by.ino == st.Ino && typeOf(st.Mode) == nfs.TypeReg:
		// Another kernel may have encoded the handle differently. That would only create a second node, but directories
		// are compared by their ids.
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

// Verifier returns a number that increases when written data could not be stored.
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

// limitsOf returns the limits that the kernel does not report, by the type of the file system.
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
