package nfs

import (
	"context"
	"fmt"
	"math"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
	"github.com/rpcrdma/rpcrdma/rpc/rpcbind"
	"github.com/rpcrdma/rpcrdma/transport"
)

// Options configure a Client. The zero value and a nil pointer mean the defaults.
type Options struct {
	// Auth is the AUTH_SYS credential of every call. Nil means the credential of the process:
	// its effective user and group, its supplementary groups, and the host name.
	Auth *oncrpc.AuthSys

	// MountHost is the host of the MOUNT service if the server does not offer it on the RDMA
	// connection. Empty means the connection's remote host.
	MountHost string

	// MountPort is the TCP port of MOUNT on MountHost. Zero means to ask rpcbind.
	MountPort int

	// RPCBindPort is the TCP port of rpcbind on MountHost. Zero means 111.
	RPCBindPort int

	// MaxTransfer is the largest READ or WRITE of the transfer methods, in bytes. It can only
	// lower the server's limits. Zero means 1 MiB.
	MaxTransfer int

	// MaxDirEntries bounds the entries that ReadDir and ListDir return for one directory; they
	// fail with ErrDirectory if it has more. Zero means 1 << 20. Entries and Walk, which keep
	// no list, have no such limit.
	MaxDirEntries int

	// Transport configures the connection that Dial makes. By default a lost connection is
	// made again and outstanding calls are resent; see transport.ClientConfig.NoReconnect. NewClient
	// uses only its MaxMessage.
	Transport *transport.ClientConfig

	// Connections is how many connections Dial may make. With more than one they are a
	// transport.Group: others are added while one has too much to do. Zero means 1. NewClient
	// does not use it.
	Connections int
}

// Defaults of Options.
const (
	DefaultMaxTransfer   = 1 << 20 // bytes
	DefaultMaxDirEntries = 1 << 20
)

// A Client speaks NFS version 3 to one server. Its methods may be called concurrently; the
// calls share one connection, or those of a transport.Group.
type Client struct {
	t    transport.Requester
	opts Options
	cred oncrpc.Auth

	waiting waiting // calls that have no reply yet

	ops  sync.Pool // *op
	bufs sync.Pool // *[]byte, for transfers

	// limits are from the last FSINFO, for transfers; nil before the first.
	limits atomic.Pointer[limits]

	mu          sync.Mutex // not held during calls
	mountAt     mountPlace // where the server offers MOUNT
	mountAbsent error      // why it is not on the RDMA connection
	mountPort   int        // of MOUNT over TCP, from rpcbind; 0: not known yet
	exports     []Export   // results of EXPORT
	exported    bool       // EXPORT has been answered
	roots       map[string]FileHandle
}

// Dial connects to the NFS server at addr ("host:port") with provider p. Nil opts
// are the defaults.
func Dial(ctx context.Context, p fabric.Provider, addr string, opts *Options) (*Client, error) {
	var o Options
	if opts != nil {
		o = *opts
	}
	if o.MountHost == "" {
		// Keep the name, not the address that it resolved to.
		o.MountHost, _, _ = net.SplitHostPort(addr)
	}
	t, err := o.dial(ctx, p, addr)
	if err != nil {
		return nil, err
	}
	return NewClient(t, &o), nil
}

func (o *Options) dial(ctx context.Context, p fabric.Provider, addr string) (transport.Requester, error) {
	if o.Connections == 0 || o.Connections == 1 {
		return transport.Dial(ctx, p, addr, o.Transport)
	}
	cfg := transport.GroupConfig{Connections: o.Connections, Idempotent: Idempotent}
	if o.Transport != nil {
		cfg.ClientConfig = *o.Transport
	}
	return transport.DialGroup(ctx, p, []string{addr}, &cfg)
}

// NewClient returns a Client on a connection, a transport.Client, or on several, a
// transport.Group, which it owns from then on. A Group should have been told which calls are
// Idempotent. Nil opts are the defaults.
func NewClient(t transport.Requester, opts *Options) *Client {
	c := &Client{t: t, roots: make(map[string]FileHandle)}
	if opts != nil {
		c.opts = *opts
	}
	if c.opts.MaxTransfer <= 0 {
		c.opts.MaxTransfer = DefaultMaxTransfer
	}
	message := transport.DefaultMaxMessage
	if tc := c.opts.Transport; tc != nil && tc.MaxMessage > 0 {
		message = tc.MaxMessage
	}
	// Upper bound of a READ reply and a WRITE call without the data, RPC headers included.
	const overhead = 1024
	c.opts.MaxTransfer = max(min(c.opts.MaxTransfer, message-overhead), 1)
	if c.opts.MaxDirEntries <= 0 {
		c.opts.MaxDirEntries = DefaultMaxDirEntries
	}
	if c.opts.MountHost == "" {
		if a := t.Info().RemoteAddr; a != nil {
			c.opts.MountHost, _, _ = net.SplitHostPort(a.String())
		}
	}
	if c.opts.RPCBindPort == 0 {
		c.opts.RPCBindPort = rpcbind.Port
	}
	auth := c.opts.Auth
	if auth == nil {
		auth = processAuth()
	}
	c.cred = auth.Auth()
	c.ops.New = func() any { return new(op) }
	c.bufs.New = func() any { return new([]byte) }
	return c
}

// processAuth returns the credential of the process.
func processAuth() *oncrpc.AuthSys {
	const nobody = 65534
	id := func(v int) uint32 {
		if v < 0 { // the system has no user and group ids
			return nobody
		}
		return uint32(v)
	}
	host, _ := os.Hostname()
	if len(host) > oncrpc.MaxMachineName {
		host = host[:oncrpc.MaxMachineName]
	}
	a := &oncrpc.AuthSys{
		Stamp:   uint32(time.Now().Unix()),
		Machine: host,
		UID:     id(os.Geteuid()),
		GID:     id(os.Getegid()),
	}
	groups, _ := os.Getgroups()
	for _, g := range groups[:min(len(groups), oncrpc.MaxGIDs)] {
		a.GIDs = append(a.GIDs, id(g))
	}
	return a
}

// Transport returns the underlying connection, or connections.
func (c *Client) Transport() transport.Requester { return c.t }

// Close ends the connection at once, as transport.Client.Close does.
func (c *Client) Close() error { return c.t.Close() }

// Shutdown waits for outstanding calls and closes the connection in order, as
// transport.Client.Shutdown does.
func (c *Client) Shutdown(ctx context.Context) error { return c.t.Shutdown(ctx) }

// An op is the memory of one call. It is reused.
type op struct {
	call transport.Call
	ri   [1]transport.ReadItem
	wi   [1]transport.WriteItem
	d    xdr.Decoder

	read  readReply
	write WriteRes

	// While the call is outstanding: see Client.Pending.
	since          time.Time
	earlier, later *op
}

// waiting is a list of outstanding calls, oldest first.
type waiting struct {
	sync.Mutex
	oldest, latest *op
}

func (w *waiting) begin(o *op) {
	w.Lock()
	defer w.Unlock()
	o.since, o.earlier, o.later = time.Now(), w.latest, nil
	if w.latest == nil {
		w.oldest = o
	} else {
		w.latest.later = o
	}
	w.latest = o
}

func (w *waiting) end(o *op) {
	w.Lock()
	defer w.Unlock()
	if o.earlier == nil {
		w.oldest = o.later
	} else {
		o.earlier.later = o.later
	}
	if o.later == nil {
		w.latest = o.earlier
	} else {
		o.later.earlier = o.earlier
	}
	o.earlier, o.later = nil, nil
}

// results decodes the results of a procedure.
type results interface{ Decode(*xdr.Decoder) }

// begin returns an op for a procedure. The caller appends the arguments to o.call.Args.
func (c *Client) begin(proc uint32) *op {
	o := c.ops.Get().(*op)
	o.call.Prog, o.call.Vers, o.call.Proc = Program, Version, proc
	o.call.Cred = c.cred
	o.call.Args = o.call.Args[:0]
	o.call.ReadItems = nil
	o.call.WriteItems = nil
	o.call.MaxResults = resultBound[proc]
	return o
}

// end returns the op to the pool, and clears its references to the caller's memory.
func (c *Client) end(o *op) {
	o.ri[0] = transport.ReadItem{}
	o.wi[0] = transport.WriteItem{}
	o.read = readReply{}
	o.d = xdr.Decoder{}
	c.ops.Put(o)
}

// NFS3ERR_JUKEBOX asks the client to try again later. RFC 1813 section 2.6 does not say when.
const (
	jukeboxTries    = 12
	jukeboxFirst    = 100 * time.Millisecond
	jukeboxLongest  = 5 * time.Second
	jukeboxDoubling = 2
)

// invoke makes the call and decodes its results into res, with the status in *status. A status
// other than OK is an *Error.
func (c *Client) invoke(ctx context.Context, o *op, res results, status *Status) error {
	name := procNames[o.call.Proc]
	delay := jukeboxFirst
	for try := 1; ; try++ {
		o.wi[0].Chunked, o.wi[0].N = false, 0
		if err := c.do(ctx, o); err != nil {
			return fmt.Errorf("nfs: %s: %w", name, err)
		}
		o.d = xdr.NewDecoder(o.call.Results)
		res.Decode(&o.d)
		if err := o.d.End(); err != nil {
			return &BadReplyError{Op: name, Reason: err.Error()}
		}
		switch {
		case *status == StatusOK:
			return nil
		case *status != StatusJukebox || try == jukeboxTries:
			return &Error{Op: name, Status: *status}
		}
		// NFS3ERR_JUKEBOX: the call was not executed, so any procedure may be repeated.
		timer := time.NewTimer(delay)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return fmt.Errorf("nfs: %s: %w", name, ctx.Err())
		}
		delay = min(delay*jukeboxDoubling, jukeboxLongest)
	}
}

// Null calls the procedure that does nothing. RFC 1813 section 3.3.0.
func (c *Client) Null(ctx context.Context) error { return c.null(ctx, Program, Version) }

// GetAttr returns the attributes of an object. RFC 1813 section 3.3.1.
func (c *Client) GetAttr(ctx context.Context, fh FileHandle) (Attr, error) {
	o := c.begin(ProcGetAttr)
	defer c.end(o)
	o.call.Args = fh.Append(o.call.Args)
	var res GetAttrRes
	err := c.invoke(ctx, o, &res, &res.Status)
	return res.Attr, err
}

// SetAttr changes the attributes of an object. RFC 1813 section 3.3.2.
func (c *Client) SetAttr(ctx context.Context, fh FileHandle, attr *SetAttr) error {
	o := c.begin(ProcSetAttr)
	defer c.end(o)
	args := SetAttrArgs{Object: fh, Attr: *attr}
	o.call.Args = args.Append(o.call.Args)
	var res WccRes
	return c.invoke(ctx, o, &res, &res.Status)
}

// Lookup finds a name in a directory. RFC 1813 section 3.3.3.
func (c *Client) Lookup(ctx context.Context, dir FileHandle, name string) (FileHandle, PostOpAttr, error) {
	o := c.begin(ProcLookup)
	defer c.end(o)
	args := DirOpArgs{Dir: dir, Name: name}
	o.call.Args = args.Append(o.call.Args)
	var res LookupRes
	err := c.invoke(ctx, o, &res, &res.Status)
	return res.Object, res.Attr, err
}

// Access asks which of the rights in want the server would grant. RFC 1813 section
// 3.3.4.
func (c *Client) Access(ctx context.Context, fh FileHandle, want uint32) (uint32, error) {
	o := c.begin(ProcAccess)
	defer c.end(o)
	args := AccessArgs{Object: fh, Access: want}
	o.call.Args = args.Append(o.call.Args)
	var res AccessRes
	err := c.invoke(ctx, o, &res, &res.Status)
	return res.Access & want, err
}

// ReadLink returns the target of a symbolic link. It comes from the server and may contain
// anything. RFC 1813 section 3.3.5.
func (c *Client) ReadLink(ctx context.Context, fh FileHandle) (string, error) {
	o := c.begin(ProcReadLink)
	defer c.end(o)
	o.call.Args = fh.Append(o.call.Args)
	o.wi[0] = transport.WriteItem{Buf: make([]byte, MaxPath)}
	o.call.WriteItems = o.wi[:]
	res := linkReply{item: &o.wi[0]}
	if err := c.invoke(ctx, o, &res, &res.Status); err != nil {
		return "", err
	}
	return string(res.Target), nil
}

// linkReply decodes READLINK3res with the path inline or in the write chunk.
type linkReply struct {
	ReadLinkRes
	item *transport.WriteItem
}

func (r *linkReply) Decode(d *xdr.Decoder) {
	if r.DecodeHead(d); r.Status == StatusOK {
		r.Target = chunkedOpaque(d, r.item)
	}
}

// chunkedOpaque reads an opaque that may have been sent in the write chunk item: then its
// length word is in the stream and its data in item.Buf. The result is a view of either.
func chunkedOpaque(d *xdr.Decoder, item *transport.WriteItem) []byte {
	if item == nil || !item.Chunked || item.N == 0 {
		return d.Opaque(maxData)
	}
	size := d.Uint32()
	if item.N > len(item.Buf) || uint64(size) > uint64(item.N) {
		d.Fail(fmt.Sprintf("item of %d bytes, but %d came by write chunk", size, item.N))
		return nil
	}
	// A server may write the XDR padding as well. RFC 8166 section 3.4.6.2.
	if n := int(size); item.N != n && item.N != min(xdr.Padded(n), len(item.Buf)) {
		d.Fail(fmt.Sprintf("item of %d bytes, but %d came by write chunk", size, item.N))
		return nil
	}
	return item.Buf[:size]
}

// Read reads up to len(p) bytes at offset off, in bytes, into p, through a write chunk if the
// server uses it. n may be less than len(p) at any time; eof reports that the read reached the
// end of the file. p belongs to the call until it returns. RFC 1813 section 3.3.6.
func (c *Client) Read(ctx context.Context, fh FileHandle, off uint64, p []byte) (n int, eof bool, err error) {
	n, eof, _, err = c.read(ctx, fh, off, p)
	return n, eof, err
}

// read is Read with the file's attributes, which the server may leave out.
func (c *Client) read(ctx context.Context, fh FileHandle, off uint64, p []byte) (n int, eof bool, after PostOpAttr, err error) {
	if uint64(len(p)) > math.MaxUint32 {
		p = p[:math.MaxInt32]
	}
	o := c.begin(ProcRead)
	defer c.end(o)
	args := ReadArgs{File: fh, Offset: off, Count: uint32(len(p))}
	o.call.Args = args.Append(o.call.Args)
	if len(p) > 0 {
		o.wi[0] = transport.WriteItem{Buf: p}
		o.call.WriteItems = o.wi[:]
		o.read.item = &o.wi[0]
	}
	o.read.limit = len(p)
	if err := c.invoke(ctx, o, &o.read, &o.read.Status); err != nil {
		return 0, false, PostOpAttr{}, err
	}
	if item := o.read.item; item == nil || !item.Chunked || item.N == 0 {
		copy(p, o.read.Data)
	}
	return int(o.read.Count), o.read.EOF, o.read.Attr, nil
}

// readReply decodes READ3res with the data inline or in the write chunk, and checks it against
// the request.
type readReply struct {
	ReadRes
	item  *transport.WriteItem
	limit int
}

func (r *readReply) Decode(d *xdr.Decoder) {
	if r.DecodeHead(d); r.Status != StatusOK {
		return
	}
	if uint64(r.Count) > uint64(r.limit) {
		d.Fail(fmt.Sprintf("%d bytes read, asked for %d", r.Count, r.limit))
		return
	}
	r.Data = chunkedOpaque(d, r.item)
	if d.Err() == nil && len(r.Data) != int(r.Count) {
		d.Fail(fmt.Sprintf("%d bytes read, but %d bytes of data", r.Count, len(r.Data)))
	}
}

// Write writes p at offset off, in bytes, through a read chunk unless it is small. The result
// has the number of bytes written, which may be less than len(p), and their stability. p
// belongs to the call until it returns and must not change meanwhile. RFC 1813 section 3.3.7.
func (c *Client) Write(ctx context.Context, fh FileHandle, off uint64, p []byte, stable Stable) (WriteRes, error) {
	if uint64(len(p)) > math.MaxUint32 {
		p = p[:math.MaxInt32]
	}
	o := c.begin(ProcWrite)
	defer c.end(o)
	args := WriteArgs{File: fh, Offset: off, Count: uint32(len(p)), Stable: stable}
	b := args.AppendHead(o.call.Args)
	b = xdr.AppendUint32(b, uint32(len(p)))
	o.call.Args = b
	if len(p) > 0 {
		o.ri[0] = transport.ReadItem{Offset: len(b), Data: p}
		o.call.ReadItems = o.ri[:]
	}
	if err := c.invoke(ctx, o, &o.write, &o.write.Status); err != nil {
		return WriteRes{Status: o.write.Status, Wcc: o.write.Wcc}, err
	}
	switch res := &o.write; {
	case uint64(res.Count) > uint64(len(p)):
		return WriteRes{}, &BadReplyError{Op: "WRITE", Reason: fmt.Sprintf("%d bytes written of %d", res.Count, len(p))}
	case res.Committed < stable:
		return WriteRes{}, &BadReplyError{Op: "WRITE", Reason: fmt.Sprintf("stability %d, asked for %d", res.Committed, stable)}
	}
	return o.write, nil
}

// Create makes a regular file. RFC 1813 section 3.3.8.
func (c *Client) Create(ctx context.Context, args *CreateArgs) (FileHandle, PostOpAttr, error) {
	o := c.begin(ProcCreate)
	o.call.Args = args.Append(o.call.Args)
	return c.makeObject(ctx, o, &args.Where)
}

// Mkdir makes a directory. RFC 1813 section 3.3.9.
func (c *Client) Mkdir(ctx context.Context, dir FileHandle, name string, attr *SetAttr) (FileHandle, PostOpAttr, error) {
	o := c.begin(ProcMkdir)
	args := MkdirArgs{Where: DirOpArgs{Dir: dir, Name: name}, Attr: *attr}
	o.call.Args = args.Append(o.call.Args)
	return c.makeObject(ctx, o, &args.Where)
}

// Symlink makes a symbolic link to target. RFC 1813 section 3.3.10.
func (c *Client) Symlink(ctx context.Context, dir FileHandle, name, target string, attr *SetAttr) (FileHandle, PostOpAttr, error) {
	o := c.begin(ProcSymlink)
	args := SymlinkArgs{Where: DirOpArgs{Dir: dir, Name: name}, Attr: *attr}
	b := args.AppendHead(o.call.Args)
	b = xdr.AppendUint32(b, uint32(len(target)))
	o.call.Args = b
	if target != "" {
		o.ri[0] = transport.ReadItem{Offset: len(b), Data: []byte(target)}
		o.call.ReadItems = o.ri[:]
	}
	return c.makeObject(ctx, o, &args.Where)
}

// makeObject calls a procedure that creates an object, and ends o. If the server does not
// return the handle it is looked up.
func (c *Client) makeObject(ctx context.Context, o *op, where *DirOpArgs) (FileHandle, PostOpAttr, error) {
	var res CreateRes
	err := c.invoke(ctx, o, &res, &res.Status)
	c.end(o)
	if err != nil {
		return FileHandle{}, PostOpAttr{}, err
	}
	if !res.Object.Present {
		return c.Lookup(ctx, where.Dir, where.Name)
	}
	return res.Object.Handle, res.Attr, nil
}

// Mknod makes a device, a socket or a fifo. RFC 1813 section 3.3.11.
func (c *Client) Mknod(ctx context.Context, args *MknodArgs) (FileHandle, PostOpAttr, error) {
	o := c.begin(ProcMknod)
	o.call.Args = args.Append(o.call.Args)
	return c.makeObject(ctx, o, &args.Where)
}

// Remove removes a name that is not a directory's. RFC 1813 section 3.3.12.
func (c *Client) Remove(ctx context.Context, dir FileHandle, name string) error {
	return c.remove(ctx, ProcRemove, dir, name)
}

// Rmdir removes an empty directory. RFC 1813 section 3.3.13.
func (c *Client) Rmdir(ctx context.Context, dir FileHandle, name string) error {
	return c.remove(ctx, ProcRmdir, dir, name)
}

func (c *Client) remove(ctx context.Context, proc uint32, dir FileHandle, name string) error {
	o := c.begin(proc)
	defer c.end(o)
	args := DirOpArgs{Dir: dir, Name: name}
	o.call.Args = args.Append(o.call.Args)
	var res WccRes
	return c.invoke(ctx, o, &res, &res.Status)
}

// Rename renames an object, and replaces an existing object of the new name if the server can.
// RFC 1813 section 3.3.14.
func (c *Client) Rename(ctx context.Context, fromDir FileHandle, from string, toDir FileHandle, to string) error {
	o := c.begin(ProcRename)
	defer c.end(o)
	args := RenameArgs{From: DirOpArgs{Dir: fromDir, Name: from}, To: DirOpArgs{Dir: toDir, Name: to}}
	o.call.Args = args.Append(o.call.Args)
	var res RenameRes
	return c.invoke(ctx, o, &res, &res.Status)
}

// Link makes another name for a file. RFC 1813 section 3.3.15.
func (c *Client) Link(ctx context.Context, fh, dir FileHandle, name string) error {
	o := c.begin(ProcLink)
	defer c.end(o)
	args := LinkArgs{File: fh, Link: DirOpArgs{Dir: dir, Name: name}}
	o.call.Args = args.Append(o.call.Args)
	var res LinkRes
	return c.invoke(ctx, o, &res, &res.Status)
}

// ReadDirNames reads part of a directory without attributes and handles: READDIR.
// RFC 1813 section 3.3.16.
func (c *Client) ReadDirNames(ctx context.Context, args *ReadDirArgs, res *ReadDirRes) error {
	o := c.begin(ProcReadDir)
	defer c.end(o)
	o.call.Args = args.Append(o.call.Args)
	o.call.MaxResults += transferBound(args.Count)
	return c.invoke(ctx, o, res, &res.Status)
}

// ReadDirPlus reads part of a directory with attributes and handles. RFC 1813
// section 3.3.17.
func (c *Client) ReadDirPlus(ctx context.Context, args *ReadDirPlusArgs, res *ReadDirPlusRes) error {
	o := c.begin(ProcReadDirPlus)
	defer c.end(o)
	o.call.Args = args.Append(o.call.Args)
	o.call.MaxResults += transferBound(max(args.DirCount, args.MaxCount))
	return c.invoke(ctx, o, res, &res.Status)
}

// FSStat returns the size and usage of a file system. RFC 1813 section 3.3.18.
func (c *Client) FSStat(ctx context.Context, fh FileHandle) (FSStatRes, error) {
	o := c.begin(ProcFSStat)
	defer c.end(o)
	o.call.Args = fh.Append(o.call.Args)
	var res FSStatRes
	err := c.invoke(ctx, o, &res, &res.Status)
	return res, err
}

// FSInfo returns the limits of a file system. RFC 1813 section 3.3.19.
func (c *Client) FSInfo(ctx context.Context, fh FileHandle) (FSInfoRes, error) {
	o := c.begin(ProcFSInfo)
	defer c.end(o)
	o.call.Args = fh.Append(o.call.Args)
	var res FSInfoRes
	if err := c.invoke(ctx, o, &res, &res.Status); err != nil {
		return res, err
	}
	c.limits.Store(newLimits(&res, c.opts.MaxTransfer))
	return res, nil
}

// PathConf returns the limits on names and links of an object's file system. RFC 1813 section
// 3.3.20.
func (c *Client) PathConf(ctx context.Context, fh FileHandle) (PathConfRes, error) {
	o := c.begin(ProcPathConf)
	defer c.end(o)
	o.call.Args = fh.Append(o.call.Args)
	var res PathConfRes
	err := c.invoke(ctx, o, &res, &res.Status)
	return res, err
}

// Commit flushes Unstable writes to stable storage: count bytes from off, or everything from
// off if count is zero. The verifier is that of the writes, unless the server has lost some of
// them. RFC 1813 section 3.3.21.
func (c *Client) Commit(ctx context.Context, fh FileHandle, off uint64, count uint32) (Verf, error) {
	o := c.begin(ProcCommit)
	defer c.end(o)
	args := CommitArgs{File: fh, Offset: off, Count: count}
	o.call.Args = args.Append(o.call.Args)
	var res CommitRes
	err := c.invoke(ctx, o, &res, &res.Status)
	return res.Verf, err
}
