package capture

import (
	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/proto/rpcrdma"
)

// An exposure is memory that the peer can access with a segment.
type exposure struct {
	mem    []byte
	offset uint64 // of its first byte
	turn   uint64 // number of the last message that named it
	next   int    // index after the memory that the message named last
}

// expose records memory that has a handle for the peer.
func (c *conn) expose(mem []byte, seg fabric.Segment) {
	if seg.Handle == 0 && seg.Length == 0 {
		return // without remote rights
	}
	c.mu.Lock()
	c.exposed[seg.Handle] = &exposure{mem: mem, offset: seg.Offset}
	c.mu.Unlock()
}

// conceal removes exposed memory. When it returns, the memory is not being read.
func (c *conn) conceal(seg fabric.Segment, mem []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	// The handle may have been assigned to other memory in the meantime.
	if e := c.exposed[seg.Handle]; e != nil && len(e.mem) == len(mem) && (len(mem) == 0 || &e.mem[0] == &mem[0]) {
		delete(c.exposed, seg.Handle)
	}
}

// find returns the memory of a segment that a message names. Within a message, segments of an exposure must be in
// ascending order and must not overlap, so that the exposed memory bounds how much a peer can make this end copy.
func (c *conn) find(seg *rpcrdma.Segment) ([]byte, bool) {
	e := c.exposed[seg.Handle]
	if e == nil {
		return nil, false
	}
	if e.turn != c.turn {
		e.turn, e.next = c.turn, 0
	}
	at, n := seg.Offset-e.offset, uint64(seg.Length)
	if at < uint64(e.next) || at > uint64(len(e.mem)) || n > uint64(len(e.mem))-at {
		return nil, false
	}
	e.next = int(at + n)
	return e.mem[at:][:n], true
}

// RegMR records the memory that the region exposes to the peer.
func (c *conn) RegMR(buf []byte, access fabric.Access) (fabric.MR, error) {
	mr, err := c.Conn.RegMR(buf, access)
	if err != nil || access&(fabric.AccessRemoteRead|fabric.AccessRemoteWrite) == 0 {
		return mr, err
	}
	c.expose(buf, mr.Segment())
	return &region{mr, c}, nil
}

// region is a region that the peer can access.
type region struct {
	fabric.MR
	c *conn
}

func (r *region) Close() error {
	r.c.conceal(r.MR.Segment(), r.MR.Bytes())
	return r.MR.Close()
}

// AllocMW returns a window that records the memory that it exposes.
func (c *conn) AllocMW() (fabric.MW, error) {
	mw, err := c.Conn.AllocMW()
	if err != nil {
		return nil, err
	}
	return &window{MW: mw, c: c}, nil
}

// window is a memory window. seg and mem are its segment and memory since the last Prepare.
type window struct {
	fabric.MW
	c   *conn
	seg fabric.Segment
	mem []byte
}

func (w *window) Prepare(mem fabric.SGE, access fabric.Access) (fabric.Segment, error) {
	seg, err := w.MW.Prepare(mem, access)
	if err != nil {
		return seg, err
	}
	w.c.conceal(w.seg, w.mem)
	w.seg, w.mem = seg, mem.Buf
	w.c.expose(mem.Buf, seg)
	return seg, nil
}

func (w *window) Close() error {
	w.c.conceal(w.seg, w.mem)
	return w.MW.Close()
}

// unwrapped returns the requests with the adapter's windows in place of the recorded ones. The result is valid until the
// next call.
func (c *conn) unwrapped(wrs []fabric.SendWR) []fabric.SendWR {
	for i := range wrs {
		if _, ok := wrs[i].MW.(*window); !ok {
			continue
		}
		c.wrs = append(c.wrs[:0], wrs...)
		for j := range c.wrs {
			if w, ok := c.wrs[j].MW.(*window); ok {
				c.wrs[j].MW = w.MW
			}
		}
		return c.wrs
	}
	return wrs
}
