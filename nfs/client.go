package nfs

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/rpc/rpcbind"
	"github.com/rpcrdma/rpcrdma/rpc/rpcsec"
	"github.com/rpcrdma/rpcrdma/transport"
)

// Options configure a Client. The zero value and a nil pointer mean the defaults.
type Options struct {
	// Auth is the AUTH_SYS credential of every call. Nil means the credential of the process:
	// its effective user and group, its supplementary groups, and the host name.
	Auth *oncrpc.AuthSys

	// Security makes calls of NFS use RPCSEC_GSS in place of Auth, for instance with Kerberos. Calls of MOUNT, which
	// return the handles of exports, use Auth, as with other clients. Shutdown ends the security contexts at the server
	// if no calls are outstanding. Otherwise they remain until they expire. Nil means no RPCSEC_GSS.
	Security *rpcsec.ClientConfig

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

	// Transport configures the connection that Dial makes. By default a lost connection is reestablished and
	// outstanding calls are resent; see transport.ClientConfig.NoReconnect. NewClient uses only its MaxMessage and its
	// TLS, which also applies to the connection to MOUNT.
	Transport *transport.ClientConfig

	// Connections is how many connections Dial may make. With more than one they are a transport.Group, which adds
	// connections when the existing ones are overloaded. Zero means 1. NewClient does not use it.
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
	sec  *rpcsec.Client // for NFS calls on t; nil without Options.Security
	opts Options
	cred oncrpc.Auth

	v3      *nfsV3Client
	mounter *mountV3Client // MOUNT on the same connection

	waiting waiting   // calls without a reply
	bufs    sync.Pool // *[]byte, for transfers

	// limits are from the last FSINFO, for transfers; nil before the first.
	limits atomic.Pointer[limits]

	mu          sync.Mutex // not held during calls
	mountAt     mountPlace // where the server offers MOUNT
	mountAbsent error      // why MOUNT is not on the RDMA connection
	mountPort   int        // of MOUNT over TCP, from rpcbind; 0: unknown
	exports     []Export   // results of EXPORT
	exported    bool       // EXPORT has been answered
	roots       map[string]FileHandle
}

// Dial connects to the NFS server at addr ("host:port") with provider p. Over [transport.TCP] it binds a local port
// below 1024 if the process may. Nil opts are the defaults.
func Dial(ctx context.Context, p fabric.Provider, addr string, opts *Options) (*Client, error) {
	var o Options
	if opts != nil {
		o = *opts
	}
	if o.MountHost == "" {
		// Keep the name, not the address it resolved to.
		o.MountHost, _, _ = net.SplitHostPort(addr)
	}
	t, err := o.dial(ctx, p, addr)
	if err != nil {
		return nil, err
	}
	return NewClient(t, &o), nil
}

func (o *Options) dial(ctx context.Context, p fabric.Provider, addr string) (transport.Requester, error) {
	switch p.(type) {
	case transport.TCP, *transport.TCP:
		p = reservedTCP{}
	}
	if o.Connections == 0 || o.Connections == 1 {
		return transport.Dial(ctx, p, addr, o.Transport)
	}
	var cfg transport.ClientConfig
	if o.Transport != nil {
		cfg = *o.Transport
	}
	cfg.Connections, cfg.Idempotent = o.Connections, Idempotent
	return transport.DialGroup(ctx, p, []string{addr}, &cfg)
}

// NewClient returns a Client on a connection, a transport.Client, or on several, a transport.Group. The Client owns t.
// The configuration of a Group should set Idempotent. Nil opts are the defaults.
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
		auth = oncrpc.ProcessAuthSys()
	}
	c.cred = auth.Auth()
	if c.opts.Security != nil {
		c.sec = rpcsec.NewClient(t, *c.opts.Security)
	}
	c.v3, c.mounter = newNfsV3Client((*caller)(c)), newMountV3Client((*caller)(c))
	c.v3.Cred, c.mounter.Cred = c.cred, c.cred
	c.bufs.New = func() any { return new([]byte) }
	return c
}

// Transport returns the underlying connection, or connections.
func (c *Client) Transport() transport.Requester { return c.t }

// Close ends the connection at once, as transport.Client.Close does.
func (c *Client) Close() error { return c.t.Close() }

// Shutdown waits for outstanding calls and closes the connection gracefully, as transport.Client.Shutdown does.
func (c *Client) Shutdown(ctx context.Context) error {
	if c.sec != nil && len(c.Pending()) == 0 { // otherwise the server would refuse what is outstanding
		_ = c.sec.Close(ctx) // contexts that remain at the server expire
	}
	return c.t.Shutdown(ctx)
}

// NFS3ERR_JUKEBOX asks the client to try again later. RFC 1813 section 2.6 does not say when.
const (
	jukeboxTries    = 12
	jukeboxFirst    = 100 * time.Millisecond
	jukeboxLongest  = 5 * time.Second
	jukeboxDoubling = 2
)

// caller is a Client as the Caller of generated clients.
type caller Client

// Call makes a call, and repeats it while the server returns NFS3ERR_JUKEBOX.
func (c *caller) Call(ctx context.Context, call *rpc.Call) error {
	op := "MOUNT"
	if call.Prog == Program {
		op = ProcName(call.Proc)
	}
	delay := jukeboxFirst
	for try := 1; ; try++ {
		for i := range call.WriteItems {
			call.WriteItems[i].Chunked, call.WriteItems[i].N = false, 0
		}
		if err := c.do(ctx, call); errors.As(err, new(*oncrpc.RPCError)) { // the error already names the procedure
			return fmt.Errorf("nfs: %w", err)
		} else if err != nil {
			return fmt.Errorf("nfs: %s: %w", op, err)
		}
		// All results of NFS begin with a status.
		status, _ := xdr.ConsumeUint32(call.Results)
		if call.Prog != Program || Status(status) != StatusJukebox || try == jukeboxTries {
			return nil
		}
		// The call was not executed, so any procedure may be repeated.
		timer := time.NewTimer(delay)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return fmt.Errorf("nfs: %s: %w", op, ctx.Err())
		}
		delay = min(delay*jukeboxDoubling, jukeboxLongest)
	}
}

// result returns the error of a call: an *Error if its status is not OK.
func result(proc uint32, status Status, err error) error {
	switch {
	case err != nil:
		return failure(ProcName(proc), err)
	case status != StatusOK:
		return &Error{Op: ProcName(proc), Status: status}
	}
	return nil
}

// failure converts err, returned by a method of a generated client, to an error of this package.
func failure(op string, err error) error {
	var results *xdr.DecodeError
	var args *xdr.CheckError
	switch {
	case errors.As(err, &results):
		return &BadReplyError{Op: op, Reason: results.Error()}
	case errors.As(err, &args):
		return fmt.Errorf("nfs: %s: %w", op, err)
	}
	return err
}

// Null calls the procedure that does nothing. RFC 1813 section 3.3.0.
func (c *Client) Null(ctx context.Context) error { return c.null(ctx, Program, Version) }

// GetAttr returns the attributes of an object. RFC 1813 section 3.3.1.
func (c *Client) GetAttr(ctx context.Context, fh FileHandle) (Attr, error) {
	res, err := c.v3.Getattr(ctx, fh)
	return res.Attr, result(ProcGetAttr, res.Status, err)
}

// SetAttr changes the attributes of an object. RFC 1813 section 3.3.2.
func (c *Client) SetAttr(ctx context.Context, fh FileHandle, attr *SetAttr) error {
	res, err := c.v3.Setattr(ctx, &SetAttrArgs{Object: fh, Attr: *attr})
	return result(ProcSetAttr, res.Status, err)
}

// Lookup finds a name in a directory. RFC 1813 section 3.3.3.
func (c *Client) Lookup(ctx context.Context, dir FileHandle, name string) (FileHandle, PostOpAttr, error) {
	res, err := c.v3.Lookup(ctx, &DirOpArgs{Dir: dir, Name: name})
	return res.Object, res.Attr, result(ProcLookup, res.Status, err)
}

// Access asks which of the rights in want the server would grant. RFC 1813 section
// 3.3.4.
func (c *Client) Access(ctx context.Context, fh FileHandle, want uint32) (uint32, error) {
	res, err := c.v3.Access(ctx, &AccessArgs{Object: fh, Access: want})
	return res.Access & want, result(ProcAccess, res.Status, err)
}

// ReadLink returns the target of a symbolic link. It comes from the server and may contain
// anything. RFC 1813 section 3.3.5.
func (c *Client) ReadLink(ctx context.Context, fh FileHandle) (string, error) {
	res, err := c.v3.Readlink(ctx, fh, make([]byte, MaxPath))
	if err = result(ProcReadLink, res.Status, err); err != nil {
		return "", err
	}
	return string(res.Target), nil
}

// Read reads up to len(p) bytes at offset off, in bytes, into p, through a write chunk if the
// server uses it. n may be less than len(p) at any time; eof reports that the read reached the
// end of the file. p belongs to the call until it returns. RFC 1813 section 3.3.6.
func (c *Client) Read(ctx context.Context, fh FileHandle, off uint64, p []byte) (n int, eof bool, err error) {
	n, eof, _, err = c.read(ctx, fh, off, p)
	return n, eof, err
}

// read is Read, but also returns the file's attributes, which the server may omit.
func (c *Client) read(ctx context.Context, fh FileHandle, off uint64, p []byte) (n int, eof bool, after PostOpAttr, err error) {
	if uint64(len(p)) > math.MaxUint32 {
		p = p[:math.MaxInt32]
	}
	res, err := c.v3.Read(ctx, &ReadArgs{File: fh, Offset: off, Count: uint32(len(p))}, p)
	switch err = result(ProcRead, res.Status, err); {
	case err != nil:
		return 0, false, PostOpAttr{}, err
	case uint64(len(res.Data)) != uint64(res.Count):
		return 0, false, PostOpAttr{}, &BadReplyError{Op: "READ", Reason: fmt.Sprintf("%d bytes read, but %d bytes of data", res.Count, len(res.Data))}
	}
	return int(res.Count), res.EOF, res.Attr, nil
}

// Write writes p at offset off, in bytes, through a read chunk unless it is small. The result
// has the number of bytes written, which may be less than len(p), and their stability. p
// belongs to the call until it returns and must not change meanwhile. RFC 1813 section 3.3.7.
func (c *Client) Write(ctx context.Context, fh FileHandle, off uint64, p []byte, stable Stable) (WriteRes, error) {
	if uint64(len(p)) > math.MaxUint32 {
		p = p[:math.MaxInt32]
	}
	res, err := c.v3.Write(ctx, &WriteArgs{File: fh, Offset: off, Count: uint32(len(p)), Stable: stable, Data: p})
	switch err = result(ProcWrite, res.Status, err); {
	case err != nil:
		return WriteRes{Status: res.Status, Wcc: res.Wcc}, err
	case uint64(res.Count) > uint64(len(p)):
		return WriteRes{}, &BadReplyError{Op: "WRITE", Reason: fmt.Sprintf("%d bytes written of %d", res.Count, len(p))}
	case res.Committed < stable:
		return WriteRes{}, &BadReplyError{Op: "WRITE", Reason: fmt.Sprintf("stability %d, asked for %d", res.Committed, stable)}
	}
	return res, nil
}

// Create makes a regular file. RFC 1813 section 3.3.8.
func (c *Client) Create(ctx context.Context, args *CreateArgs) (FileHandle, PostOpAttr, error) {
	res, err := c.v3.Create(ctx, args)
	return c.made(ctx, &args.Where, &res, result(ProcCreate, res.Status, err))
}

// Mkdir makes a directory. RFC 1813 section 3.3.9.
func (c *Client) Mkdir(ctx context.Context, dir FileHandle, name string, attr *SetAttr) (FileHandle, PostOpAttr, error) {
	where := DirOpArgs{Dir: dir, Name: name}
	res, err := c.v3.Mkdir(ctx, &MkdirArgs{Where: where, Attr: *attr})
	return c.made(ctx, &where, &res, result(ProcMkdir, res.Status, err))
}

// Symlink makes a symbolic link to target. RFC 1813 section 3.3.10.
func (c *Client) Symlink(ctx context.Context, dir FileHandle, name, target string, attr *SetAttr) (FileHandle, PostOpAttr, error) {
	where := DirOpArgs{Dir: dir, Name: name}
	res, err := c.v3.Symlink(ctx, &SymlinkArgs{Where: where, Attr: *attr, Target: []byte(target)})
	return c.made(ctx, &where, &res, result(ProcSymlink, res.Status, err))
}

// Mknod makes a device, a socket or a fifo. RFC 1813 section 3.3.11.
func (c *Client) Mknod(ctx context.Context, args *MknodArgs) (FileHandle, PostOpAttr, error) {
	res, err := c.v3.Mknod(ctx, args)
	return c.made(ctx, &args.Where, &res, result(ProcMknod, res.Status, err))
}

// made returns the handle and the attributes of an object created by a call. If the server did not return the handle,
// made looks it up.
func (c *Client) made(ctx context.Context, where *DirOpArgs, res *CreateRes, err error) (FileHandle, PostOpAttr, error) {
	if err != nil {
		return FileHandle{}, PostOpAttr{}, err
	}
	if !res.Object.Present {
		return c.Lookup(ctx, where.Dir, where.Name)
	}
	return res.Object.Handle, res.Attr, nil
}

// Remove removes a name that does not refer to a directory. RFC 1813 section 3.3.12.
func (c *Client) Remove(ctx context.Context, dir FileHandle, name string) error {
	res, err := c.v3.Remove(ctx, &DirOpArgs{Dir: dir, Name: name})
	return result(ProcRemove, res.Status, err)
}

// Rmdir removes an empty directory. RFC 1813 section 3.3.13.
func (c *Client) Rmdir(ctx context.Context, dir FileHandle, name string) error {
	res, err := c.v3.Rmdir(ctx, &DirOpArgs{Dir: dir, Name: name})
	return result(ProcRmdir, res.Status, err)
}

// Rename renames an object. It replaces an existing object with the new name if the server can. RFC 1813 section
// 3.3.14.
func (c *Client) Rename(ctx context.Context, fromDir FileHandle, from string, toDir FileHandle, to string) error {
	res, err := c.v3.Rename(ctx, &RenameArgs{From: DirOpArgs{Dir: fromDir, Name: from}, To: DirOpArgs{Dir: toDir, Name: to}})
	return result(ProcRename, res.Status, err)
}

// Link creates another name for a file. RFC 1813 section 3.3.15.
func (c *Client) Link(ctx context.Context, fh, dir FileHandle, name string) error {
	res, err := c.v3.Link(ctx, &LinkArgs{File: fh, Link: DirOpArgs{Dir: dir, Name: name}})
	return result(ProcLink, res.Status, err)
}

// ReadDirNames reads part of a directory without attributes and handles: READDIR. It decodes into the memory of res.
// RFC 1813 section 3.3.16.
func (c *Client) ReadDirNames(ctx context.Context, args *ReadDirArgs, res *ReadDirRes) error {
	call, err := c.v3.readdirCall(args)
	if err == nil {
		if err = c.v3.caller.Call(ctx, call); err == nil {
			d := call.Decoder()
			res.Decode(&d.Decoder)
			err = d.End()
		}
		c.v3.calls.Put(call)
	}
	return result(ProcReadDir, res.Status, err)
}

// ReadDirPlus reads part of a directory with attributes and handles. It decodes into the memory of res. RFC 1813
// section 3.3.17.
func (c *Client) ReadDirPlus(ctx context.Context, args *ReadDirPlusArgs, res *ReadDirPlusRes) error {
	call, err := c.v3.readdirplusCall(args)
	if err == nil {
		if err = c.v3.caller.Call(ctx, call); err == nil {
			d := call.Decoder()
			res.Decode(&d.Decoder)
			err = d.End()
		}
		c.v3.calls.Put(call)
	}
	return result(ProcReadDirPlus, res.Status, err)
}

// FSStat returns the size and usage of a file system. RFC 1813 section 3.3.18.
func (c *Client) FSStat(ctx context.Context, fh FileHandle) (FSStatRes, error) {
	res, err := c.v3.Fsstat(ctx, fh)
	return res, result(ProcFSStat, res.Status, err)
}

// FSInfo returns the limits of a file system. RFC 1813 section 3.3.19.
func (c *Client) FSInfo(ctx context.Context, fh FileHandle) (FSInfoRes, error) {
	res, err := c.v3.Fsinfo(ctx, fh)
	if err = result(ProcFSInfo, res.Status, err); err == nil {
		c.limits.Store(newLimits(&res, c.opts.MaxTransfer))
	}
	return res, err
}

// PathConf returns the limits on names and links of an object's file system. RFC 1813 section
// 3.3.20.
func (c *Client) PathConf(ctx context.Context, fh FileHandle) (PathConfRes, error) {
	res, err := c.v3.Pathconf(ctx, fh)
	return res, result(ProcPathConf, res.Status, err)
}

// Commit flushes Unstable writes to stable storage: count bytes from off, or everything from off if count is zero. The
// verifier equals that of the writes unless the server has lost some of them. RFC 1813 section 3.3.21.
func (c *Client) Commit(ctx context.Context, fh FileHandle, off uint64, count uint32) (Verf, error) {
	res, err := c.v3.Commit(ctx, &CommitArgs{File: fh, Offset: off, Count: count})
	return res.Verf, result(ProcCommit, res.Status, err)
}
