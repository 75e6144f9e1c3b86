package nfs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"strconv"
	"strings"

	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/rpc/rpcbind"
	"github.com/rpcrdma/rpcrdma/transport"
)

// A Mount is the export that contains a path.
type Mount struct {
	Export string     // the directory of the export, such as "/srv/data"
	Root   FileHandle // of that directory
	Rest   string     // the path relative to the export; empty: the export itself
}

// Mnt requests the root handle of an exported directory. RFC 1813 section 5.2.1.
func (c *Client) Mnt(ctx context.Context, dir string) (FileHandle, error) {
	if len(dir) > MaxMountPath {
		return FileHandle{}, &MountError{Dir: dir, Status: MountNameTooLong}
	}
	var res MntRes
	err := c.mount(ctx, func(ctx context.Context, m *mountV3Client) (err error) {
		res, err = m.Mnt(ctx, DirPath(dir))
		return err
	})
	if err != nil {
		return FileHandle{}, err
	}
	if res.Status != MountOK {
		return FileHandle{}, &MountError{Dir: dir, Status: res.Status}
	}
	return res.Handle, nil
}

// Umnt removes a directory from the server's list of mounts, which is informational. RFC 1813
// section 5.2.3.
func (c *Client) Umnt(ctx context.Context, dir string) error {
	if len(dir) > MaxMountPath {
		return &MountError{Dir: dir, Status: MountNameTooLong}
	}
	return c.mount(ctx, func(ctx context.Context, m *mountV3Client) error { return m.Umnt(ctx, DirPath(dir)) })
}

// Exports returns the server's exports. RFC 1813 section 5.2.5.
func (c *Client) Exports(ctx context.Context) ([]Export, error) {
	var res ExportRes
	err := c.mount(ctx, func(ctx context.Context, m *mountV3Client) (err error) {
		res, err = m.Export(ctx)
		return err
	})
	return res.Exports, err
}

// Mounts returns the server's list of mounts, which is informational. RFC 1813 section 5.2.2.
func (c *Client) Mounts(ctx context.Context) ([]MountEntry, error) {
	var res DumpRes
	err := c.mount(ctx, func(ctx context.Context, m *mountV3Client) (err error) {
		res, err = m.Dump(ctx)
		return err
	})
	return res.Entries, err
}

// mountPlace is where a server offers MOUNT.
type mountPlace uint8

const (
	mountUnknown mountPlace = iota
	mountOnRDMA             // on the NFS connection
	mountOnTCP              // elsewhere, as on Linux
)

// mount makes a call of the MOUNT program, wherever the server offers it.
func (c *Client) mount(ctx context.Context, call func(ctx context.Context, m *mountV3Client) error) error {
	place, absent, err := c.findMount(ctx)
	if err != nil {
		return err
	}
	if place == mountOnRDMA {
		return failure("MOUNT", call(ctx, c.mounter))
	}
	err = c.mountOverTCP(ctx, call)
	var lookup *rpcbind.OpError // errors of rpcbind are not MOUNT's
	var denied *oncrpc.RPCError
	if errors.As(err, &lookup) || err != nil && !errors.As(err, &denied) {
		// Report also why the RDMA connection was not used.
		err = &MountFallbackError{RDMA: absent, TCP: err}
	}
	return err
}

// findMount determines whether the server offers MOUNT on the RDMA connection, by calling NULL. It caches the result.
// absent is the reason if the server does not.
func (c *Client) findMount(ctx context.Context) (place mountPlace, absent, err error) {
	c.mu.Lock()
	place, absent = c.mountAt, c.mountAbsent
	c.mu.Unlock()
	if place != mountUnknown {
		return place, absent, nil
	}
	place = mountOnRDMA
	if absent = c.null(ctx, MountProgram, MountVersion); absent != nil {
		if !refusal(absent) {
			return 0, nil, fmt.Errorf("nfs: MOUNT: %w", absent)
		}
		place = mountOnTCP
	}
	c.mu.Lock()
	c.mountAt, c.mountAbsent = place, absent
	c.mu.Unlock()
	return place, absent, nil
}

// refusal reports whether the server refused a call or sent a malformed reply.
func refusal(err error) bool {
	var denied *oncrpc.RPCError
	var bad *BadReplyError
	var reply *rpc.BadReplyError
	var rdma *rpc.RDMAError
	var peer *rpc.PeerError // over TCP, nothing after a malformed reply can be read
	return errors.As(err, &denied) || errors.As(err, &bad) || errors.As(err, &reply) || errors.As(err, &rdma) || errors.As(err, &peer)
}

func (c *Client) mountOverTCP(ctx context.Context, call func(ctx context.Context, m *mountV3Client) error) error {
	port, err := c.findMountPort(ctx)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, tcpTimeout)
	defer cancel()
	cfg := transport.ClientConfig{NoReconnect: true}
	if of := c.opts.Transport; of != nil {
		cfg.TLS = of.TLS // MOUNT must be encrypted if NFS is: it returns file handles
	}
	t, err := transport.Dial(ctx, reservedTCP{}, hostPort(c.opts.MountHost, port), &cfg)
	if err != nil {
		return err
	}
	defer t.Close()
	m := newMountV3Client(longResults{t})
	m.Cred = c.cred
	return failure("RPC over TCP", call(ctx, m))
}

// findMountPort returns the TCP port of MOUNT: from Options, or else from rpcbind, which is asked only once.
func (c *Client) findMountPort(ctx context.Context) (int, error) {
	if c.opts.MountPort != 0 {
		return c.opts.MountPort, nil
	}
	c.mu.Lock()
	port := c.mountPort
	c.mu.Unlock()
	if port != 0 {
		return port, nil
	}
	rb := rpcbind.Client{Addr: hostPort(c.opts.MountHost, c.opts.RPCBindPort)}
	at, err := rb.GetAddr(ctx, MountProgram, MountVersion, mountNetid(c.opts.MountHost))
	if err != nil {
		return 0, err
	}
	port = int(at.Port()) // use the same host, whatever address rpcbind returns
	c.mu.Lock()
	c.mountPort = port
	c.mu.Unlock()
	return port, nil
}

// mountNetid returns TCP for the IP version of the host's address. For host names that is IPv4, which every rpcbind
// supports.
func mountNetid(host string) rpcbind.Netid {
	if a, err := netip.ParseAddr(host); err == nil {
		return rpcbind.TCP.For(a)
	}
	return rpcbind.TCP
}

func hostPort(host string, port int) string { return net.JoinHostPort(host, strconv.Itoa(port)) }

// Mount finds the export that contains path, the longest one if there are several, and mounts
// it. Results are cached. If the server does not answer EXPORT, Mount tries each directory on
// path, from the root down, until one can be mounted.
func (c *Client) Mount(ctx context.Context, path string) (Mount, error) {
	path = cleanPath(path)
	c.mu.Lock()
	exports, known := c.exports, c.exported
	// Handles found without EXPORT count as exports.
	dir, ok := "", false
	if !known {
		for d := range c.roots {
			if within(path, d) && (!ok || len(d) > len(dir)) {
				dir, ok = d, true
			}
		}
	}
	c.mu.Unlock()

	if !known && !ok {
		var err error
		exports, err = c.Exports(ctx)
		var fallback *MountFallbackError
		switch {
		case err == nil:
			c.mu.Lock()
			c.exports, c.exported = exports, true
			c.mu.Unlock()
			known = true
		case refusal(err) && !errors.As(err, &fallback):
			// The server has MOUNT, but not EXPORT; or the list is too long.
			return c.probe(ctx, path)
		default:
			return Mount{}, err
		}
	}
	if known {
		for _, e := range exports {
			if d := cleanPath(e.Dir); within(path, d) && (!ok || len(d) > len(dir)) {
				dir, ok = d, true
			}
		}
	}
	if !ok {
		return Mount{}, &fs.PathError{Op: "mount", Path: path, Err: &NoExportError{exports}}
	}
	return c.root(ctx, path, dir)
}

// probe mounts the first directory on path that the server permits.
func (c *Client) probe(ctx context.Context, path string) (Mount, error) {
	for end := 1; ; {
		m, err := c.root(ctx, path, path[:end])
		var refused *MountError
		if err == nil || !errors.As(err, &refused) {
			return m, err
		}
		if end == len(path) {
			return Mount{}, &fs.PathError{Op: "mount", Path: path, Err: errors.Join(ErrNoExport, err)}
		}
		// Add one element. The first attempt is "/".
		from := end
		if end > 1 {
			from++
		}
		if next := strings.IndexByte(path[from:], '/'); next >= 0 {
			end = from + next
		} else {
			end = len(path)
		}
	}
}

// root returns the Mount of an export. It uses the cache if possible.
func (c *Client) root(ctx context.Context, path, dir string) (Mount, error) {
	c.mu.Lock()
	fh, ok := c.roots[dir]
	c.mu.Unlock()
	if !ok {
		var err error
		if fh, err = c.Mnt(ctx, dir); err != nil {
			return Mount{}, err
		}
		c.mu.Lock()
		c.roots[dir] = fh
		c.mu.Unlock()
	}
	return Mount{Export: dir, Root: fh, Rest: below(path, dir)}, nil
}

// within reports whether the directory contains the path. Both are clean.
func within(path, dir string) bool {
	return dir == "/" || path == dir || strings.HasPrefix(path, dir) && path[len(dir)] == '/'
}

// below returns the part of path after dir, which contains it.
func below(path, dir string) string {
	return strings.TrimPrefix(strings.TrimPrefix(path, dir), "/")
}
