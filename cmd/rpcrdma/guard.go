package main

import (
	"bufio"
	"cmp"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"os"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	gonfs "github.com/willscott/go-nfs"

	"github.com/rpcrdma/rpcrdma/nfs"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
	"github.com/rpcrdma/rpcrdma/transport"
)

// A guard stands between connections and the go-nfs library. The library trusts
// what it is sent: it takes memory for any length word, does not look at versions,
// and reads calls that it does not know as others. So only calls that decode, of
// programs that it has, are passed on; and where it answers otherwise than RFC 1813
// says, the guard mends the answer or gives it by itself:
//
//   - MOUNT's DUMP, UMNTALL and EXPORT, which the library lacks;
//   - LINK and MKNOD, which are not supported, and exclusive CREATE likewise;
//   - the stability of WRITE and COMMIT, which the library claims but does not see
//     to;
//   - REMOVE of directories and RMDIR of files;
//   - sizes: those of FSINFO, and READs that are longer than messages can be;
//   - failures: their status, and their attributes, which it often leaves out.
//
// Calls of one connection run in parallel, and replies go out in any order. The
// number of calls that run at a time, from all connections, is that of the lanes.
type guard struct {
	export *export
	async  bool // answer before data is on stable storage
	log    *slog.Logger

	listings listings
	verifier [8]byte
	lanes    chan *lane // those without a call

	mu     sync.Mutex
	conns  map[net.Conn]struct{}
	drain  bool
	served sync.WaitGroup // connections
}

// Bounds of the NFS service.
const (
	// transferSize is the largest READ and WRITE, in bytes: what Linux clients
	// use at most, and well below the transport's largest message.
	transferSize = 1 << 20
	// listingSize is the largest READDIR and READDIRPLUS.
	listingSize = 256 << 10
	// maxRecord bounds a call.
	maxRecord = transport.DefaultMaxMessage
	// maxTCPConns bounds the connections on TCP. Those on RDMA are the
	// transport's to bound.
	maxTCPConns = 1024
	// tcpParallel and rdmaParallel bound the calls under way on a connection.
	tcpParallel, rdmaParallel = 8, 64
	// maxHead bounds a call without the data of a WRITE. The library takes what
	// one read gives for the whole of an item; what one read gives is this.
	maxHead = 4096
)

func newGuard(e *export, async bool, log *slog.Logger) *guard {
	// The library writes to a log of its own what clients are told anyway.
	gonfs.Log.SetLevel(gonfs.PanicLevel)
	g := &guard{export: e, async: async, log: log, conns: make(map[net.Conn]struct{})}
	rand.Read(g.verifier[:]) // never fails
	n := max(4*runtime.GOMAXPROCS(0), 8)
	g.lanes = make(chan *lane, n)
	for range n {
		g.lanes <- newLane(e, &g.listings, g.verifier)
	}
	return g
}

// serveTCP takes connections from l until it is closed.
func (g *guard) serveTCP(l net.Listener) error { return g.serve(l, maxTCPConns, tcpParallel) }

// serveRDMA is serveTCP for a transport's bridge.
func (g *guard) serveRDMA(l net.Listener) error { return g.serve(l, math.MaxInt, rdmaParallel) }

func (g *guard) serve(l net.Listener, limit, parallel int) error {
	var delay time.Duration
	for {
		conn, err := l.Accept()
		var ne net.Error
		switch {
		case errors.As(err, &ne) && ne.Timeout(), errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE):
			// No descriptors, for now.
			delay = min(max(2*delay, 5*time.Millisecond), time.Second)
			time.Sleep(delay)
			continue
		case err != nil:
			return err
		}
		delay = 0
		g.mu.Lock()
		full := g.drain || len(g.conns) >= limit
		if !full {
			g.conns[conn] = struct{}{}
			g.served.Add(1)
		}
		g.mu.Unlock()
		if full {
			conn.Close()
			continue
		}
		go func() {
			defer g.served.Done()
			err := g.serveConn(conn, parallel)
			if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, net.ErrClosed) && !errors.Is(err, os.ErrDeadlineExceeded) {
				g.log.Debug("connection ended", "peer", conn.RemoteAddr(), "err", err)
			}
			g.mu.Lock()
			delete(g.conns, conn)
			g.mu.Unlock()
		}()
	}
}

// stop lets the calls under way finish and closes the connections, at the latest
// when timeout has passed. No new connection is taken any more.
func (g *guard) stop(timeout time.Duration) {
	g.mu.Lock()
	g.drain = true
	for conn := range g.conns {
		conn.SetReadDeadline(time.Now())
	}
	g.mu.Unlock()
	cut := time.AfterFunc(timeout, func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		for conn := range g.conns {
			conn.Close()
		}
	})
	defer cut.Stop()
	g.served.Wait()
	for range cap(g.lanes) {
		(<-g.lanes).Close()
	}
}

// serveConn answers the calls on a connection until it ends, and closes it.
func (g *guard) serveConn(conn net.Conn, parallel int) error {
	defer conn.Close()
	var calls sync.WaitGroup
	defer calls.Wait()
	var writing sync.Mutex
	slots := make(chan struct{}, parallel)
	r := bufio.NewReaderSize(conn, 32<<10)
	for {
		record, err := readRecord(r)
		if err != nil {
			return err
		}
		var h oncrpc.CallHeader
		n, err := oncrpc.ConsumeCall(record[oncrpc.RecordMarkSize:], &h)
		if err != nil {
			return fmt.Errorf("not an RPC call: %w", err)
		}
		slots <- struct{}{}
		calls.Go(func() {
			reply := g.answer(&h, record, oncrpc.RecordMarkSize+n)
			writing.Lock()
			_, err := conn.Write(reply)
			writing.Unlock()
			putRecord(reply)
			putRecord(record)
			if err != nil {
				conn.Close() // which ends the loop, too
			}
			<-slots
		})
	}
}

// readRecord reads a record and returns it as one fragment, with its mark. Memory is
// taken as data arrives, and not for the asking.
func readRecord(r io.Reader) ([]byte, error) {
	record := getRecord(512)[:oncrpc.RecordMarkSize]
	for last := false; !last; {
		var mark [oncrpc.RecordMarkSize]byte
		if _, err := io.ReadFull(r, mark[:]); err != nil {
			return nil, err
		}
		var size uint32
		size, last, _ = oncrpc.ConsumeRecordMark(mark[:])
		if int64(len(record))+int64(size) > maxRecord {
			return nil, fmt.Errorf("a call of more than %d bytes", maxRecord)
		}
		if size == 0 && !last {
			return nil, errors.New("an empty fragment")
		}
		for left := int(size); left > 0; {
			n := min(left, largeRecord)
			if len(record)+n > cap(record) {
				record = append(getRecord(len(record)+n), record...)
			}
			at := len(record)
			record = record[:at+n]
			if _, err := io.ReadFull(r, record[at:]); err != nil {
				return nil, noEOF(err)
			}
			left -= n
		}
	}
	binary.BigEndian.PutUint32(record, oncrpc.LastFragment|uint32(len(record)-oncrpc.RecordMarkSize))
	return record, nil
}

// noEOF is err where an end of input comes too early.
func noEOF(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

// answer executes a call and returns the reply as a record. The arguments begin at
// record[at].
func (g *guard) answer(h *oncrpc.CallHeader, record []byte, at int) []byte {
	refuse := func(r oncrpc.ReplyHeader) []byte {
		r.XID = h.XID
		b := oncrpc.AppendRecordMark(nil, r.Size(), true)
		return oncrpc.AppendReply(b, &r)
	}
	success := func(results []byte) []byte {
		r := oncrpc.ReplyHeader{XID: h.XID}
		b := oncrpc.AppendRecordMark(nil, r.Size()+len(results), true)
		return append(oncrpc.AppendReply(b, &r), results...)
	}
	if h.RPCVers != oncrpc.Version {
		return refuse(oncrpc.ReplyHeader{
			Stat: oncrpc.MsgDenied, RejectStat: oncrpc.RPCMismatch, Low: oncrpc.Version, High: oncrpc.Version,
		})
	}
	var procs uint32
	switch h.Prog {
	case nfs.Program:
		procs = nfs.ProcCommit
	case nfs.MountProgram:
		procs = nfs.MountProcExport
	default:
		return refuse(oncrpc.ReplyHeader{AcceptStat: oncrpc.ProgUnavail})
	}
	switch {
	case h.Vers != nfs.Version: // MOUNT has the same number
		return refuse(oncrpc.ReplyHeader{AcceptStat: oncrpc.ProgMismatch, Low: nfs.Version, High: nfs.Version})
	case h.Proc > procs:
		return refuse(oncrpc.ReplyHeader{AcceptStat: oncrpc.ProcUnavail})
	case !knownCred(&h.Cred) && h.Proc != nfs.ProcNull:
		return refuse(oncrpc.ReplyHeader{
			Stat: oncrpc.MsgDenied, RejectStat: oncrpc.AuthError, AuthStat: oncrpc.AuthBadCred,
		})
	}

	var c *nfsCall
	if h.Prog == nfs.MountProgram {
		results, done, err := mountCall(h.Proc, record[at:])
		switch {
		case err != nil:
			return refuse(oncrpc.ReplyHeader{AcceptStat: oncrpc.GarbageArgs})
		case done:
			return success(results)
		}
	} else {
		c = &nfsCall{proc: h.Proc}
		if err := c.decode(record[at:]); err != nil {
			return refuse(oncrpc.ReplyHeader{AcceptStat: oncrpc.GarbageArgs})
		}
		if status := g.check(c, record[at:]); status != nfs.StatusOK {
			return success(failure(h.Proc, status))
		}
		if c.proc != nfs.ProcWrite && len(record) > maxHead {
			return success(failure(h.Proc, nfs.StatusNameTooLong)) // SYMLINK: nothing else gets so long
		}
	}

	l := <-g.lanes
	reply, err := l.call(record)
	fsErr := l.view.err
	if err != nil {
		l = newLane(g.export, &g.listings, g.verifier)
	}
	g.lanes <- l

	var r oncrpc.ReplyHeader
	n := 0
	if err == nil {
		n, err = oncrpc.ConsumeReply(reply[oncrpc.RecordMarkSize:], &r)
	}
	switch {
	case err == nil && r.Err() != nil && c != nil && fsErr != nil:
		// It has no status for some of the errors of a file system.
		return success(failure(h.Proc, statusOf(fsErr)))
	case err != nil || r.XID != h.XID || r.Err() != nil:
		// What the library says instead has the numbers of other errors.
		g.log.Error("NFS server failed", "prog", h.Prog, "proc", h.Proc, "err", cmp.Or(err, r.Err()))
		return refuse(oncrpc.ReplyHeader{AcceptStat: oncrpc.SystemErr})
	case c == nil:
		return reply
	}
	results := reply[oncrpc.RecordMarkSize+n:]
	if mended := g.mend(c, results, fsErr); mended != nil {
		return success(mended)
	}
	return reply
}

// knownCred tells whether a credential is one that means something here: none, or
// AUTH_SYS, which is believed by nobody.
func knownCred(cred *oncrpc.Auth) bool {
	switch cred.Flavor {
	case oncrpc.FlavorNone:
		return true
	case oncrpc.FlavorSys:
		var sys oncrpc.AuthSys
		_, err := oncrpc.ConsumeAuthSys(cred.Body, &sys)
		return err == nil
	}
	return false
}

// mountCall checks a call to MOUNT. done tells that the results are the answer.
func mountCall(proc uint32, args []byte) (results []byte, done bool, err error) {
	d := xdr.NewDecoder(args)
	switch proc {
	case nfs.MountProcMnt, nfs.MountProcUmnt:
		var dir nfs.DirPath
		if dir.Decode(&d); dir == "" && proc == nfs.MountProcMnt {
			res := nfs.MntRes{Status: nfs.MountNoEnt} // the library wants a path
			results, done = res.Append(nil), true
		}
	case nfs.MountProcDump:
		var res nfs.DumpRes // nobody keeps a list
		results, done = res.Append(nil), true
	case nfs.MountProcUmntAll:
		done = true
	case nfs.MountProcExport:
		res := nfs.ExportRes{Exports: []nfs.Export{{Dir: "/"}}}
		results, done = res.Append(nil), true
	}
	return results, done, d.End()
}

// An nfsCall is what the guard needs to know of a call.
type nfsCall struct {
	proc   uint32
	object nfs.FileHandle // what the call is about, or the directory
	to     nfs.FileHandle // RENAME, LINK: the other one
	names  []string

	data   []byte     // WRITE
	offset uint64     // READ, WRITE
	count  uint32     // READ, WRITE
	stable nfs.Stable // WRITE

	mode nfs.CreateMode // CREATE
}

// decode reads the arguments. An error means that they are not what the procedure
// takes.
func (c *nfsCall) decode(args []byte) error {
	d := xdr.NewDecoder(args)
	dirOp := func(where nfs.DirOpArgs) { c.object, c.names = where.Dir, []string{where.Name} }
	switch c.proc {
	case nfs.ProcNull:
	case nfs.ProcSetAttr:
		var a nfs.SetAttrArgs
		a.Decode(&d)
		c.object = a.Object
	case nfs.ProcLookup, nfs.ProcRemove, nfs.ProcRmdir:
		var a nfs.DirOpArgs
		a.Decode(&d)
		dirOp(a)
	case nfs.ProcAccess:
		var a nfs.AccessArgs
		a.Decode(&d)
		c.object = a.Object
	case nfs.ProcRead:
		var a nfs.ReadArgs
		a.Decode(&d)
		c.object, c.offset, c.count = a.File, a.Offset, a.Count
	case nfs.ProcWrite:
		var a nfs.WriteArgs
		a.Decode(&d)
		c.object, c.offset, c.count, c.stable, c.data = a.File, a.Offset, a.Count, a.Stable, a.Data
	case nfs.ProcCreate:
		var a nfs.CreateArgs
		a.Decode(&d)
		dirOp(a.Where)
		c.mode = a.Mode
	case nfs.ProcMkdir:
		var a nfs.MkdirArgs
		a.Decode(&d)
		dirOp(a.Where)
	case nfs.ProcSymlink:
		var a nfs.SymlinkArgs
		a.Decode(&d)
		dirOp(a.Where)
	case nfs.ProcMknod:
		var a nfs.MknodArgs
		a.Decode(&d)
		dirOp(a.Where)
	case nfs.ProcRename:
		var a nfs.RenameArgs
		a.Decode(&d)
		c.object, c.to, c.names = a.From.Dir, a.To.Dir, []string{a.From.Name, a.To.Name}
	case nfs.ProcLink:
		var a nfs.LinkArgs
		a.Decode(&d)
		c.object, c.to, c.names = a.File, a.Link.Dir, []string{a.Link.Name}
	case nfs.ProcReadDir:
		var a nfs.ReadDirArgs
		a.Decode(&d)
		c.object, c.count = a.Dir, a.Count
	case nfs.ProcReadDirPlus:
		var a nfs.ReadDirPlusArgs
		a.Decode(&d)
		c.object, c.count = a.Dir, a.MaxCount
	case nfs.ProcCommit:
		var a nfs.CommitArgs
		a.Decode(&d)
		c.object = a.File
	default: // GETATTR, READLINK, FSSTAT, FSINFO, PATHCONF
		c.object.Decode(&d)
	}
	return d.End()
}

// check says why a call must not get to the library; StatusOK: it may. It shortens
// what the arguments ask for, in place.
func (g *guard) check(c *nfsCall, args []byte) nfs.Status {
	if c.proc == nfs.ProcNull {
		return nfs.StatusOK
	}
	path, status := g.lookup(c.object)
	if status != nfs.StatusOK {
		return status
	}
	if c.proc == nfs.ProcRename || c.proc == nfs.ProcLink {
		if _, status := g.lookup(c.to); status != nfs.StatusOK {
			return status
		}
	}
	for _, name := range c.names {
		if status := checkName(c.proc, name); status != nfs.StatusOK {
			return status
		}
	}
	// The count is the last word of READ, READDIR and READDIRPLUS.
	limit := func(most uint32) {
		if c.count > most {
			binary.BigEndian.PutUint32(args[len(args)-xdr.Unit:], most)
		}
	}
	switch c.proc {
	case nfs.ProcRead:
		if int64(c.offset) < 0 {
			return nfs.StatusInval
		}
		limit(transferSize)
	case nfs.ProcReadDir, nfs.ProcReadDirPlus:
		limit(listingSize)
	case nfs.ProcWrite:
		// RFC 1813 section 3.3.7: the count is that of the data.
		if int(c.count) != len(c.data) || c.stable > nfs.FileSync {
			return nfs.StatusInval
		}
		if int64(c.offset) < 0 || int64(c.offset)+int64(c.count) < 0 {
			return nfs.StatusFBig
		}
	case nfs.ProcCreate:
		if c.mode == nfs.Exclusive {
			return g.unsupported()
		}
	case nfs.ProcLink, nfs.ProcMknod:
		return g.unsupported()
	case nfs.ProcCommit:
		if g.export.readOnly {
			return nfs.StatusROFS
		}
		if !g.async {
			if err := g.export.sync(path); err != nil {
				return statusOf(err)
			}
		}
	case nfs.ProcRemove, nfs.ProcRmdir:
		if g.export.readOnly {
			return nfs.StatusROFS
		}
		info, err := g.export.root.Lstat(local(path + "/" + c.names[0]))
		switch {
		case err != nil:
			return statusOf(err)
		case c.proc == nfs.ProcRemove && info.IsDir():
			return nfs.StatusIsDir
		case c.proc == nfs.ProcRmdir && !info.IsDir():
			return nfs.StatusNotDir
		}
	}
	return nfs.StatusOK
}

// unsupported is the answer to changes that this server does not make.
func (g *guard) unsupported() nfs.Status {
	if g.export.readOnly {
		return nfs.StatusROFS
	}
	return nfs.StatusNotSupp
}

// lookup returns the path of a handle.
func (g *guard) lookup(fh nfs.FileHandle) (string, nfs.Status) {
	b := fh.Bytes()
	if len(b) != handleSize {
		return "", nfs.StatusBadHandle
	}
	path, ok := g.export.handles.path(b)
	if !ok {
		return "", nfs.StatusStale
	}
	return strings.Join(path, "/"), nfs.StatusOK
}

// checkName refuses names that are not one path element.
func checkName(proc uint32, name string) nfs.Status {
	switch {
	case name == "" || strings.ContainsAny(name, "/\x00"):
		return nfs.StatusInval
	case len(name) > gonfs.PathNameMax:
		return nfs.StatusNameTooLong
	case name != "." && name != "..":
		return nfs.StatusOK
	}
	switch proc {
	case nfs.ProcLookup:
		return nfs.StatusOK // the library knows them, and where the root is
	case nfs.ProcCreate, nfs.ProcMkdir, nfs.ProcSymlink, nfs.ProcMknod, nfs.ProcLink:
		return nfs.StatusExist
	}
	return nfs.StatusInval // RFC 1813 sections 3.3.12 to 3.3.14
}

// mend returns the results that a call should have had, nil if results are right.
// fsErr is what the export said last.
func (g *guard) mend(c *nfsCall, results []byte, fsErr error) []byte {
	if c.proc == nfs.ProcNull {
		return nil
	}
	word, n := xdr.ConsumeUint32(results)
	if n < 0 {
		return failure(c.proc, nfs.StatusServerFault)
	}
	status := nfs.Status(word)
	if status != nfs.StatusOK {
		if fsErr != nil {
			status = statusOf(fsErr)
		}
		if status == nfs.StatusNoEnt && len(c.names) == 0 {
			status = nfs.StatusStale // there is no name that could be missing
		}
		return failure(c.proc, status)
	}
	d := xdr.NewDecoder(results)
	switch c.proc {
	case nfs.ProcWrite:
		var res nfs.WriteRes
		if res.Decode(&d); d.End() != nil {
			return failure(c.proc, nfs.StatusServerFault)
		}
		switch {
		case c.stable == nfs.Unstable:
			res.Committed = nfs.Unstable
		case !g.async:
			path, status := g.lookup(c.object)
			if status != nfs.StatusOK {
				return failure(c.proc, status)
			}
			if err := g.export.sync(path); err != nil {
				return failure(c.proc, statusOf(err))
			}
		}
		return res.Append(nil)
	case nfs.ProcFSInfo:
		var res nfs.FSInfoRes
		if res.Decode(&d); d.End() != nil {
			return failure(c.proc, nfs.StatusServerFault)
		}
		res.RTMax, res.RTPref = transferSize, transferSize
		res.WTMax, res.WTPref = transferSize, transferSize
		res.DTPref = 64 << 10
		res.MaxFileSize = 1<<63 - 1
		res.Properties &^= nfs.FSFLink
		return res.Append(nil)
	case nfs.ProcFSStat:
		// The library writes invarsec, the last word, as two.
		if len(results) < xdr.Unit {
			return failure(c.proc, nfs.StatusServerFault)
		}
		var res nfs.FSStatRes
		d := xdr.NewDecoder(results[:len(results)-xdr.Unit])
		if res.Decode(&d); d.End() != nil {
			return failure(c.proc, nfs.StatusServerFault)
		}
		return res.Append(nil)
	}
	return nil
}

// failure is the results of a procedure that has failed, without the attributes
// that may go with it.
func failure(proc uint32, status nfs.Status) []byte {
	b := xdr.AppendUint32(nil, uint32(status))
	for range absent[proc] {
		b = xdr.AppendBool(b, false)
	}
	return b
}

// absent is how many pre_op_attr and post_op_attr the results of a procedure that
// has failed have. RFC 1813 section 3.3. Immutable.
var absent = [...]int{
	nfs.ProcGetAttr:     0,
	nfs.ProcSetAttr:     2,
	nfs.ProcLookup:      1,
	nfs.ProcAccess:      1,
	nfs.ProcReadLink:    1,
	nfs.ProcRead:        1,
	nfs.ProcWrite:       2,
	nfs.ProcCreate:      2,
	nfs.ProcMkdir:       2,
	nfs.ProcSymlink:     2,
	nfs.ProcMknod:       2,
	nfs.ProcRemove:      2,
	nfs.ProcRmdir:       2,
	nfs.ProcRename:      4,
	nfs.ProcLink:        3,
	nfs.ProcReadDir:     1,
	nfs.ProcReadDirPlus: 1,
	nfs.ProcFSStat:      1,
	nfs.ProcFSInfo:      1,
	nfs.ProcPathConf:    1,
	nfs.ProcCommit:      2,
}
