package main

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"io"
	"io/fs"
	"net"
	"path"
	"slices"
	"sync"
	"time"

	"github.com/go-git/go-billy/v5"
	gonfs "github.com/willscott/go-nfs"

	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
)

// A lane is an NFS server of the go-nfs library that executes one call at a time,
// on a connection that exists in memory only. The library works its way through a
// connection's calls one after the other; several lanes make that parallel.
type lane struct {
	view *view

	calls   chan []byte // records
	replies chan []byte
	closed  chan struct{}
	once    sync.Once

	in  []byte // of the library's reader: what is left of the call
	out []byte // of the library's writer: the reply as far as it is written
}

// newLane starts a lane. verifier is the write verifier of this run of the server.
func newLane(e *export, listings *listings, verifier [8]byte) *lane {
	l := &lane{
		view:    &view{export: e},
		calls:   make(chan []byte),
		replies: make(chan []byte),
		closed:  make(chan struct{}),
	}
	server := &gonfs.Server{Handler: &handler{view: l.view, listings: listings}, ID: verifier}
	// Serve returns at once: its listener has a single connection.
	_ = server.Serve(&onlyConn{l})
	return l
}

// errLane says that the library has given its connection up.
var errLane = errors.New("the NFS server closed its connection")

// call has a call executed and returns the reply, both with their record marks.
// The reply is the caller's, who gives it back with putRecord. Only the lane's
// current user may call it.
func (l *lane) call(record []byte) ([]byte, error) {
	l.view.err = nil
	select {
	case l.calls <- record:
	case <-l.closed:
		return nil, errLane
	}
	select {
	case reply := <-l.replies:
		return reply, nil
	case <-l.closed:
		return nil, errLane
	}
}

// Read gives the library the bytes of calls.
func (l *lane) Read(b []byte) (int, error) {
	if len(l.in) == 0 {
		select {
		case l.in = <-l.calls:
		case <-l.closed:
			return 0, io.EOF
		}
	}
	n := copy(b, l.in)
	l.in = l.in[n:]
	return n, nil
}

// Write takes the bytes of replies.
func (l *lane) Write(b []byte) (int, error) {
	if len(l.out) == 0 && len(b) >= oncrpc.RecordMarkSize {
		size, _, _ := oncrpc.ConsumeRecordMark(b)
		l.out = getRecord(oncrpc.RecordMarkSize + int(size))
	}
	l.out = append(l.out, b...)
	size, _, n := oncrpc.ConsumeRecordMark(l.out)
	if n < 0 || len(l.out) < n+int(size) {
		return len(b), nil
	}
	reply := l.out
	l.out = nil
	select {
	case l.replies <- reply:
		return len(b), nil
	case <-l.closed:
		return 0, net.ErrClosed
	}
}

// Large records come and go too fast to leave them to the garbage collector.
const (
	largeRecord = 64 << 10 // bytes
	recordRoom  = 4 << 10  // for headers, on top of a power of two
)

var records sync.Pool // *[]byte of transferSize and recordRoom, or more

// getRecord returns an empty slice with room for n bytes.
func getRecord(n int) []byte {
	if n >= largeRecord {
		if b, ok := records.Get().(*[]byte); ok && cap(*b) >= n {
			return (*b)[:0]
		}
		return make([]byte, 0, max(n, transferSize+recordRoom))
	}
	return make([]byte, 0, n)
}

// putRecord takes memory back that getRecord returned, or other memory. Nobody may
// use it any more.
func putRecord(b []byte) {
	if cap(b) >= transferSize+recordRoom {
		records.Put(&b)
	}
}

// Close ends the lane.
func (l *lane) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

func (l *lane) LocalAddr() net.Addr              { return laneAddr{} }
func (l *lane) RemoteAddr() net.Addr             { return laneAddr{} }
func (l *lane) SetDeadline(time.Time) error      { return nil }
func (l *lane) SetReadDeadline(time.Time) error  { return nil }
func (l *lane) SetWriteDeadline(time.Time) error { return nil }

type laneAddr struct{}

func (laneAddr) Network() string { return "memory" }
func (laneAddr) String() string  { return "lane" }

// onlyConn is a listener with one connection to accept.
type onlyConn struct{ l *lane }

func (o *onlyConn) Accept() (net.Conn, error) {
	if o.l == nil {
		return nil, net.ErrClosed
	}
	l := o.l
	o.l = nil
	return l, nil
}

func (o *onlyConn) Close() error   { return nil }
func (o *onlyConn) Addr() net.Addr { return laneAddr{} }

// A handler tells the library about the export.
type handler struct {
	view     *view
	listings *listings
}

var (
	_ gonfs.Handler        = (*handler)(nil)
	_ gonfs.CachingHandler = (*handler)(nil)
)

// A mounted is what MNT has found: a directory of the export.
type mounted struct {
	*view
	path []string
}

// Mount finds a directory. The export's name is "/"; what is in it can be mounted,
// too.
func (h *handler) Mount(_ context.Context, _ net.Conn, req gonfs.MountRequest) (gonfs.MountStatus, billy.Filesystem, []gonfs.AuthFlavor) {
	dir := path.Clean("/" + string(req.Dirpath))
	info, err := h.view.Lstat(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return gonfs.MountStatusErrNoEnt, h.view, nil
	case err != nil:
		return gonfs.MountStatusErrAcces, h.view, nil
	case !info.IsDir():
		return gonfs.MountStatusErrNotDir, h.view, nil
	}
	return gonfs.MountStatusOk, &mounted{view: h.view, path: split(dir)},
		[]gonfs.AuthFlavor{gonfs.AuthFlavorUnix, gonfs.AuthFlavorNull}
}

// Change returns what changes attributes; the view refuses if it must.
func (h *handler) Change(billy.Filesystem) billy.Change { return h.view }

// FSStat tells how full the file system is.
func (h *handler) FSStat(_ context.Context, _ billy.Filesystem, s *gonfs.FSStat) error {
	return h.view.stat(s)
}

// ToHandle returns the handle of a path.
func (h *handler) ToHandle(f billy.Filesystem, path []string) []byte {
	if m, ok := f.(*mounted); ok {
		path = slices.Concat(m.path, path)
	}
	return h.view.handles.handle(path)
}

// FromHandle returns the path of a handle.
func (h *handler) FromHandle(handle []byte) (billy.Filesystem, []string, error) {
	path, ok := h.view.handles.path(handle)
	if !ok {
		return nil, nil, &gonfs.NFSStatusError{NFSStatus: gonfs.NFSStatusStale}
	}
	return h.view, path, nil
}

// InvalidateHandle does nothing: the view's Remove and Rename have done it.
func (h *handler) InvalidateHandle(billy.Filesystem, []byte) error { return nil }

// HandleLimit is how many handles are valid at a time.
func (h *handler) HandleLimit() int { return maxHandles }

// VerifierFor keeps a directory's listing for the questions that continue it.
func (h *handler) VerifierFor(path string, contents []fs.FileInfo) uint64 {
	return h.listings.keep(path, contents)
}

// DataForVerifier returns a listing, nil if it is not kept any more.
func (h *handler) DataForVerifier(path string, verifier uint64) []fs.FileInfo {
	return h.listings.find(path, verifier)
}

// Bounds on the listings that are kept between the questions of one reading.
const (
	maxListings   = 32
	maxListed     = 1 << 18 // entries in all of them
	listingMaxAge = 10 * time.Second
)

// listings are directories that clients are reading, page by page.
type listings struct {
	mu   sync.Mutex
	list []listing // oldest first
	size int       // entries in all of them
}

type listing struct {
	path     string
	verifier uint64
	contents []fs.FileInfo
	taken    time.Time
}

// keep stores a listing and returns its verifier, a digest of the names: a client
// whose listing is gone goes on in a fresh one as long as no name has changed.
func (c *listings) keep(path string, contents []fs.FileInfo) uint64 {
	digest := sha256.New()
	digest.Write(binary.BigEndian.AppendUint64(nil, uint64(len(path))))
	io.WriteString(digest, path)
	for _, info := range contents {
		io.WriteString(digest, info.Name())
		digest.Write([]byte{0})
	}
	l := listing{path, binary.BigEndian.Uint64(digest.Sum(nil)), contents, time.Now()}

	c.mu.Lock()
	defer c.mu.Unlock()
	c.drop(func(old *listing) bool { return old.path == path && old.verifier == l.verifier })
	c.list = append(c.list, l)
	c.size += len(contents)
	for len(c.list) > maxListings || c.size > maxListed && len(c.list) > 1 {
		c.size -= len(c.list[0].contents)
		c.list = slices.Delete(c.list, 0, 1)
	}
	return l.verifier
}

func (c *listings) find(path string, verifier uint64) []fs.FileInfo {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.drop(func(l *listing) bool { return time.Since(l.taken) > listingMaxAge })
	for _, l := range c.list {
		if l.path == path && l.verifier == verifier {
			return l.contents
		}
	}
	return nil
}

// drop forgets some of the listings. mu is held.
func (c *listings) drop(which func(*listing) bool) {
	c.list = slices.DeleteFunc(c.list, func(l listing) bool {
		if which(&l) {
			c.size -= len(l.contents)
			return true
		}
		return false
	})
}
