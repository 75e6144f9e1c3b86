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
	// Exports lists the exports that clients can mount: at least one. Their names and IDs must differ. See also
	// Server.SetExports.
	Exports []Export

	// Key signs handles. It must be secret, have at least 16 bytes, and stay the same as long as handles are to remain
	// valid. Nil means a random key, which makes all handles stale after a restart.
	Key []byte

	// MaxTransfer is the largest READ and WRITE that FSINFO announces, in bytes, up to 1 GiB. 0 means 1 MiB. It should
	// be below the transport's MaxMessage.
	MaxTransfer int

	// MaxCalls limits the concurrent calls in file systems, and MaxConnCalls those of one connection. 0 means 256, and
	// a quarter of MaxCalls. A host gets at most a third of what other hosts leave free, and a connection half of what
	// others leave to its host.
	MaxCalls, MaxConnCalls int

	// Logger receives what a server's operator should know: that data could not be put on stable storage. Nil means no
	// log.
	Logger *slog.Logger

	// Access is called for every call except NULL, after it was executed or refused and before the reply is sent. It
	// runs on the goroutine of the call, which waits for it, so it must not block and must be safe for concurrent use.
	// The Access is valid until it returns. Nil means that calls are not reported.
	Access func(*Access)
}

// Defaults and limits of Config.
const (
	DefaultMaxTransfer = 1 << 20 // bytes
	DefaultMaxCalls    = 256

	minKey      = 16      // bytes
	maxTransfer = 1 << 30 // bytes
	maxPage     = 1 << 20 // limit of a READDIR or READDIRPLUS in bytes, whatever the client asks for
)

// A Server executes the procedures of NFS version 3 and MOUNT version 3. It has no goroutines of its own. Call Shutdown
// before closing its file systems.
type Server struct {
	exports  atomic.Pointer[exportSet]
	setting  sync.Mutex // serializes SetExports
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

	nfs, mount rpc.Handler // the generated handlers
}

// New returns a new Server.
func New(cfg *Config) (*Server, error) {
	exports, err := newExportSet(cfg.Exports)
	if err != nil {
		return nil, err
	}
	exports.release() // there is no previous set
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
	// No sort of call uses all processors, because connections need one too: otherwise no call would be read. Several
	// sorts together may use all; the operating system then divides the processors among their threads.
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

// Programs returns NFS and MOUNT, for registering with a transport.Server.
func (s *Server) Programs() []rpc.Program {
	v3, mount := nfs.NfsV3Program(procedures{}), nfs.MountV3Program(mounts{})
	s.nfs, v3.Handler = v3.Handler, rpc.HandlerFunc(s.serveNFS)
	s.mount, mount.Handler = mount.Handler, rpc.HandlerFunc(s.serveMount)
	// These use only the server's own lists. Calls of a file system may block: on a disk, or forever if it is another
	// machine's.
	mount.Inline = func(_, proc uint32) bool { return proc > nfs.MountProcMnt && proc <= nfs.MountProcExport }
	return []rpc.Program{v3, mount}
}

// call is the memory of one call, and the context that the generated handler passes to its procedure. It is reused.
type call struct {
	*Server
	context.Context // of the request
	req             *rpc.Request
	res             *rpc.Response

	who     Caller
	claim   claim
	exports *exportSet
	export  *Export // export of the first handle

	inodes  [2]inode // objects that the call changes
	changed int      // number of them

	told told // collected for its Access

	fh   []byte // a handle being decoded or encoded
	page page
	from host
	turn turn[host, rpc.Conn] // turn of a listing, or of the sort in runs
	runs sort                 // the sort in which the call has a turn
	list func(*Entry) bool    // method value page.add
	lend func()               // method value endTurn
}

func newCall(s *Server) *call {
	c := &call{Server: s, fh: make([]byte, 0, xdr.Unit+nfs.MaxHandle)}
	c.list, c.lend = c.page.add, c.endTurn
	return c
}

// begin returns a call for a request. If the credential or the client is not acceptable, it denies the request and
// returns nil.
func (s *Server) begin(ctx context.Context, req *rpc.Request, res *rpc.Response) *call {
	c := s.calls.Get().(*call)
	c.Context, c.req, c.res, c.exports, c.export = ctx, req, res, s.use(), nil
	if s.observe != nil {
		c.told.begin(len(res.Results))
	}
	c.who = Caller{Host: req.Conn().RemoteAddrPort().Addr(), Net: req.Conn().Host(), lend: c.lend}
	c.from = hostOf(req.Conn(), c.who.Net)
	valid := c.claim.read(req)
	// MOUNT shows all exports to everyone, and checks clients itself.
	if !valid || req.Prog == nfs.Program && !c.exports.knows(c.who.Host) {
		res.Deny(oncrpc.AuthBadCred)
		c.end()
		return nil
	}
	return c
}

// end returns the call to the pool, without references to memory of others.
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

// procedures executes NFS calls. The contexts of its methods are *calls. READDIR and READDIRPLUS are missing because
// they write their results themselves.
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
		res.Fail(oncrpc.SystemErr) // the connection has ended
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

// start begins a procedure. object and name are the first arguments. It waits for a turn.
func (c *call) start(of sort, object *nfs.FileHandle, name string) error {
	if c.observe != nil {
		c.told.access.Object, c.told.access.Name = c.objectIn(object), name
	}
	if c.beginTurn(of) != nil {
		return oncrpc.SystemErr // the connection has ended
	}
	return nil
}

// beginTurn waits for a turn. The turn lasts until the call ends or waits: see Caller.Wait.
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

// endTurn ends the turn of the call, if it has one.
func (c *call) endTurn() {
	if of := c.runs; of != noTurns {
		c.runs = noTurns
		c.turns[of].end(&c.turn)
	}
}

// growStack grows the goroutine's stack at once to the size that a procedure needs. Each call has a new goroutine. Its
// stack would otherwise be doubled two or three times on the way down, and copied with more frames each time.
//
//go:noinline
func growStack() {
	var room [stackRoom]byte
	runtime.KeepAlive(&room)
}

const stackRoom = 4 << 10 // bytes

// sort is a class of calls with its own turns, so that calls of one sort do not wait for those of another, which use a
// processor for longer.
type sort uint8

const (
	noTurns sort = iota // listings have their own turns, and data waits for disks
	lookups             // and other calls that use a processor for some microseconds
	updates             // calls that also run the file system's journal, including synchronous WRITEs
	climbs              // LOOKUPs of parents, which use a processor for longer in deep trees
	numSorts
)

// node returns the object of a handle. The first handle of a call determines the export and the caller; other handles
// must be of the same export: RFC 1813 sections 3.3.14 and 3.3.15, NFS3ERR_XDEV. If the status is StatusOK, the caller
// must release the node.
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
		return nil, nfs.StatusStale // no longer exported
	case !e.permits(c.req, c.who.Host):
		return nil, nfs.StatusStale // never exported to this client, which need not know more
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

// mounting reports whether the call is one that clients make with any flavor while mounting (RFC 2623 section 2.3.2):
// GETATTR or FSINFO of the export's root. handle is the file system's handle of the object.
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

// changing is node for procedures that change the object.
func (c *call) changing(fh *nfs.FileHandle) (Node, nfs.Status) {
	n, status := c.node(fh)
	if status == nfs.StatusOK && c.export.ReadOnly {
		n.Release()
		return nil, nfs.StatusROFS
	}
	return n, status
}

// status is StatusOf for the call's procedure.
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

// post returns the attributes of n for a result, if available.
func (c *call) post(n Node) (p nfs.PostOpAttr) {
	a, err := n.Attr(c.Context, &c.who)
	if err == nil {
		p.Present, p.Attr = true, a
	}
	return p
}

// checkName rejects names that are not a single path element.
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

// validSet checks whether attributes can be set at all. RFC 1813 section 2.5.
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

// verifier returns the current write verifier of the export. Both parts only increase, so their sum changes whenever
// one does.
func (c *call) verifier() (v nfs.Verf) {
	sum := c.export.verf.Load()
	if fs, ok := c.export.FS.(Verifier); ok {
		sum += fs.Verifier()
	}
	binary.BigEndian.PutUint64(v[:], sum)
	return v
}
