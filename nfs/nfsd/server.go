package nfsd

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/rpcrdma/rpcrdma/nfs"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
	"github.com/rpcrdma/rpcrdma/rpc"
)

// Config configures a Server.
type Config struct {
	// Exports are the exports that clients can mount: at least one. Their names and IDs differ. See
	// also Server.SetExports.
	Exports []Export

	// Key signs handles; at least 16 bytes, secret, and the same for as long as handles are to
	// live. Nil: a random one, so that all handles are stale after a restart.
	Key []byte

	// MaxTransfer is the largest READ and WRITE in bytes that FSINFO promises, at most 1 GiB. 0:
	// 1 MiB. It should be below the transport's MaxMessage.
	MaxTransfer int

	// MaxCalls is how many calls are in the hands of file systems at a time, and MaxConnCalls how
	// many of one connection. 0: 256, and a quarter of MaxCalls. A host has at most a third of what
	// other hosts leave free, and a connection half of what others leave to its host.
	MaxCalls, MaxConnCalls int

	// Logger gets what a server's owner should know: data that could not be put on stable storage.
	// Nil: no log.
	Logger *slog.Logger

	// Access is called for every call except NULL when it has been executed, or refused, and before
	// the reply is sent: by the goroutine of the call, which waits for it. So many goroutines call it
	// at once, and it must not block. The Access is valid until it returns. Nil: calls are not
	// reported.
	Access func(*Access)
}

// Defaults and bounds of Config.
const (
	DefaultMaxTransfer = 1 << 20 // bytes
	DefaultMaxCalls    = 256

	minKey      = 16      // bytes
	maxTransfer = 1 << 30 // bytes
	maxPage     = 1 << 20 // bytes of a READDIR or READDIRPLUS, whatever the client asks for
)

// A Server executes the procedures of NFS version 3 and MOUNT version 3. It has no goroutines
// of its own. Shutdown comes before its file systems are closed.
type Server struct {
	exports  atomic.Pointer[exportSet]
	setting  sync.Mutex // SetExports
	observe  func(*Access)
	seal     *sealer
	transfer uint32
	gate     *gate[host, rpc.Conn]
	listings *turns[host, rpc.Conn]
	turns    [numSorts]*turns[host, rpc.Conn]
	log      *slog.Logger

	changes changeSet
	mounts  mountList
	calls   sync.Pool // *call

	nfs, mount rpc.Handler // the generated ones
}

// New makes a server.
func New(cfg *Config) (*Server, error) {
	exports, err := newExportSet(cfg.Exports)
	if err != nil {
		return nil, err
	}
	exports.release() // there is no set before
	if cfg.Key != nil && len(cfg.Key) < minKey {
		return nil, fmt.Errorf("nfsd: a key of %d bytes, at least %d are needed", len(cfg.Key), minKey)
	}
	if cfg.MaxTransfer < 0 || cfg.MaxTransfer > maxTransfer || cfg.MaxCalls < 0 || cfg.MaxConnCalls < 0 {
		return nil, errors.New("nfsd: a limit is negative or too large")
	}
	s := &Server{
		observe:  cfg.Access,
		transfer: uint32(or(cfg.MaxTransfer, DefaultMaxTransfer)),
		log:      cfg.Logger,
		changes:  changeSet{now: make(map[inode]change)},
	}
	s.exports.Store(exports)
	all := or(cfg.MaxCalls, DefaultMaxCalls)
	s.gate = newGate[host, rpc.Conn](gateLimits{
		all: all, share: min(or(cfg.MaxConnCalls, max(all/4, 1)), all), host: 2, conn: 1,
	})
	// No sort takes all processors: connections have to be moved, too, or no call is seen. Several sorts
	// together may; then the system divides the processors among their threads.
	n := max(runtime.GOMAXPROCS(0)-1, 1)
	s.listings = newTurns[host, rpc.Conn](n, turnPatience)
	s.turns = [numSorts]*turns[host, rpc.Conn]{
		lookups: newTurns[host, rpc.Conn](n, lookupPatience),
		updates: newTurns[host, rpc.Conn](n, lookupPatience),
		climbs:  newTurns[host, rpc.Conn](n, climbPatience),
	}
	key := cfg.Key
	if key == nil {
		key = make([]byte, 32)
		rand.Read(key) // never fails
	}
	s.seal = newSealer(key)
	s.calls.New = func() any { return newCall(s) }
	return s, nil
}

func or(n, otherwise int) int {
	if n == 0 {
		return otherwise
	}
	return n
}

// Programs returns NFS and MOUNT, to be registered with a transport.Server.
func (s *Server) Programs() []rpc.Program {
	v3, mount := nfs.NfsV3Program(procedures{}), nfs.MountV3Program(mounts{})
	s.nfs, v3.Handler = v3.Handler, rpc.HandlerFunc(s.serveNFS)
	s.mount, mount.Handler = mount.Handler, rpc.HandlerFunc(s.serveMount)
	// These look at the server's own lists. A call of a file system may block: on a disk, or forever,
	// if the file system is another machine's.
	mount.Inline = func(_, proc uint32) bool { return proc > nfs.MountProcMnt && proc <= nfs.MountProcExport }
	return []rpc.Program{v3, mount}
}

// A call is the memory of one call, and the context that the generated handler passes to its procedure. It
// is reused.
type call struct {
	*Server
	context.Context // of the request
	req             *rpc.Request
	res             *rpc.Response

	who     Caller
	claim   claim
	exports *exportSet
	export  *Export // of the first handle

	inodes  [2]inode // that the call changes
	changed int      // how many

	told told // of which there is an Access in the end

	fh   []byte // a handle being read or written
	page page
	from host
	turn turn[host, rpc.Conn] // of a listing, or of the sort that is in runs
	runs sort                 // which the call has a turn of
	list func(*Entry) bool    // page.add
	lend func()               // endTurn
}

func newCall(s *Server) *call {
	c := &call{Server: s, fh: make([]byte, 0, xdr.Unit+nfs.MaxHandle)}
	c.list, c.lend = c.page.add, c.endTurn
	return c
}

// begin returns a call for a request. If the credential or the client is not acceptable, it denies the
// request and returns nil.
func (s *Server) begin(ctx context.Context, req *rpc.Request, res *rpc.Response) *call {
	c := s.calls.Get().(*call)
	c.Context, c.req, c.res, c.exports, c.export = ctx, req, res, s.use(), nil
	if s.observe != nil {
		c.told.begin(len(res.Results))
	}
	c.who = Caller{Host: req.Conn().RemoteAddrPort().Addr(), Net: req.Conn().Host(), lend: c.lend}
	c.from = hostOf(req.Conn(), c.who.Net)
	valid := c.claim.read(req)
	// MOUNT shows everybody all exports, and refuses by itself.
	if !valid || req.Prog == nfs.Program && !c.exports.knows(c.who.Host) {
		res.Deny(oncrpc.AuthBadCred)
		c.end()
		return nil
	}
	return c
}

// end gives the call back, without references to memory of others.
func (c *call) end() {
	if c.observe != nil {
		c.tell()
	}
	c.endTurn()
	c.unchange()
	c.exports.release()
	c.Context, c.req, c.res, c.exports, c.export = nil, nil, nil, nil, nil
	c.page = page{}
	c.calls.Put(c)
}

// procedures executes calls of NFS: the contexts of its methods are calls. READDIR and READDIRPLUS are not
// among them, as they write their results themselves.
type procedures struct{ nfs.UnimplementedNfsV3Server }

func (s *Server) serveNFS(ctx context.Context, req *rpc.Request, res *rpc.Response) {
	if req.Proc == nfs.ProcNull {
		res.Fail(oncrpc.ProcUnavail)
		return
	}
	growStack()
	c := s.begin(ctx, req, res)
	if c == nil {
		return
	}
	defer c.end()
	place, err := s.gate.enter(ctx, c.from, req.Conn())
	if err != nil {
		res.Fail(oncrpc.SystemErr) // to a connection that has ended
		return
	}
	defer s.gate.leave(place)
	switch req.Proc {
	case nfs.ProcReadDir:
		c.readDir()
	case nfs.ProcReadDirPlus:
		c.readDirPlus()
	default:
		s.nfs.ServeRPC(c, req, res)
	}
}

// start begins a procedure. object and name are the beginning of its arguments. It waits for the turn
// of the call.
func (c *call) start(of sort, object *nfs.FileHandle, name string) error {
	if c.observe != nil {
		c.told.access.Object, c.told.access.Name = c.objectIn(object), name
	}
	if c.beginTurn(of) != nil {
		return oncrpc.SystemErr // to a connection that has ended
	}
	return nil
}

// beginTurn waits for the turn of the call. It lasts until the call ends or waits: see Caller.Wait.
func (c *call) beginTurn(of sort) error {
	if of == noTurns {
		return nil
	}
	err := c.turns[of].begin(c.Context, c.from, c.req.Conn(), &c.turn)
	if err == nil {
		c.runs = of
	}
	return err
}

// endTurn ends the turn of the call, if that has one.
func (c *call) endTurn() {
	if of := c.runs; of != noTurns {
		c.runs = noTurns
		c.turns[of].end(&c.turn)
	}
}

// growStack gives the goroutine at once the stack that a procedure needs. Each call has a new
// goroutine; otherwise its stack would be doubled two or three times on the way down, and copied with
// more frames each time.
//
//go:noinline
func growStack() {
	var room [stackRoom]byte
	runtime.KeepAlive(&room)
}

const stackRoom = 4 << 10 // bytes

// A sort of calls takes turns of its own, so that calls of one sort do not wait for those of another,
// which use a processor for longer.
type sort uint8

const (
	noTurns sort = iota // listings have theirs, and data waits for disks
	lookups             // and others that use a processor for some microseconds
	updates             // which also need a processor for the file system's journal; a synchronous WRITE is one
	climbs              // LOOKUPs of parents, which use a processor for longer in a deep tree
	numSorts
)

// node returns the object that a handle of a call names. The first handle decides on the export
// and the caller, and others have to be of the same one: RFC 1813 sections 3.3.14 and 3.3.15,
// NFS3ERR_XDEV. The node is to be released if the status is StatusOK.
func (c *call) node(fh *nfs.FileHandle) (Node, nfs.Status) {
	c.fh = fh.Append(c.fh[:0])
	b := c.fh[xdr.Unit:][:binary.BigEndian.Uint32(c.fh)]
	id, handle, status := c.seal.open(b)
	if status != nfs.StatusOK {
		return nil, status
	}
	e := c.exports.byID[id]
	switch {
	case e == nil:
		return nil, nfs.StatusStale // it is not exported any more
	case !e.permits(c.req, c.who.Host):
		return nil, nfs.StatusStale // it never was, to this client: it need not know more
	case c.export == nil:
		c.export = e
		e.squash(&c.who, &c.claim)
	}
	if e != c.export {
		return nil, nfs.StatusXDev
	}
	if !e.accepts(&c.claim) && !c.mounting(handle) {
		return nil, nfs.StatusAcces
	}
	n, err := e.FS.Node(c.Context, handle)
	if status = StatusOf(err); status == nfs.StatusNoEnt {
		status = nfs.StatusStale
	}
	return n, status
}

// mounting reports whether the call is one that clients make while they mount, with whatever flavor (RFC 2623 section
// 2.3.2): of the object that the file system calls handle, GETATTR or FSINFO if that is the export's root.
func (c *call) mounting(handle []byte) bool {
	if c.req.Proc != nfs.ProcGetAttr && c.req.Proc != nfs.ProcFSInfo {
		return false
	}
	root, err := c.export.FS.Root(c.Context)
	if err != nil {
		return false
	}
	defer root.Release()
	return bytes.Equal(root.AppendHandle(nil), handle)
}

// changing is node for a procedure that changes the object.
func (c *call) changing(fh *nfs.FileHandle) (Node, nfs.Status) {
	n, status := c.node(fh)
	if status == nfs.StatusOK && c.export.ReadOnly {
		n.Release()
		return nil, nfs.StatusROFS
	}
	return n, status
}

// status is StatusOf for the procedure of the call.
func (c *call) status(err error) nfs.Status { return fits(c.req.Proc, StatusOf(err)) }

// handle returns the handle of n as clients see it.
func (c *call) handle(n Node) nfs.FileHandle {
	c.fh = c.seal.append(c.fh[:0], c.export.ID, n)
	if c.observe != nil {
		c.told.access.Made = objectOf(c.fh)
	}
	fh, _ := nfs.NewFileHandle(c.fh)
	return fh
}

// post returns the attributes of n for a result, if they can be had.
func (c *call) post(n Node) (p nfs.PostOpAttr) {
	a, err := n.Attr(c.Context, &c.who)
	if err == nil {
		p.Present, p.Attr = true, a
	}
	return p
}

// checkName refuses names that are not one element of a path.
func checkName(proc uint32, name string) nfs.Status {
	switch {
	case name == "" || strings.ContainsAny(name, "/\x00"):
		return nfs.StatusInval
	case name != "." && name != "..":
		return nfs.StatusOK
	}
	switch proc {
	case nfs.ProcLookup:
		return nfs.StatusOK
	case nfs.ProcCreate, nfs.ProcMkdir, nfs.ProcSymlink, nfs.ProcMknod, nfs.ProcLink:
		return nfs.StatusExist // RFC 1813 sections 3.3.8 to 3.3.11
	case nfs.ProcRmdir:
		if name == ".." {
			return nfs.StatusExist // RFC 1813 section 3.3.13
		}
	}
	return nfs.StatusInval // RFC 1813 sections 3.3.13 and 3.3.14
}

// validSet reports whether attributes can be set at all. RFC 1813 section 2.5.
func validSet(s *nfs.SetAttr) nfs.Status {
	const second = 1_000_000_000 // ns
	switch {
	case !s.ATimeHow.Valid() || !s.MTimeHow.Valid(),
		s.ATimeHow == nfs.SetToClientTime && s.ATime.Nsec >= second,
		s.MTimeHow == nfs.SetToClientTime && s.MTime.Nsec >= second,
		s.SetUID && s.UID == noID, s.SetGID && s.GID == noID:
		return nfs.StatusInval
	case s.SetSize && s.Size > math.MaxInt64:
		return nfs.StatusFBig
	}
	return nfs.StatusOK
}

// verifier returns the write verifier of the export at the moment. Both parts only grow, so that
// their sum is another one whichever does.
func (c *call) verifier() (v nfs.Verf) {
	sum := c.export.verf.Load()
	if fs, ok := c.export.FS.(Verifier); ok {
		sum += fs.Verifier()
	}
	binary.BigEndian.PutUint64(v[:], sum)
	return v
}
