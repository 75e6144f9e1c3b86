package transport

import (
	"github.com/rpcrdma/rpcrdma/proto/rpcrdma"
	"github.com/rpcrdma/rpcrdma/transport/internal/plan"
)

// What the two ends of a connection agree on: the inline thresholds and the use of remote invalidation, by private data
// (RFC 8797) and by the protocol version.

// version returns the protocol version of the connection, 0 before the first call.
func (c *conn) version() uint32 { return c.agreed.version.Load() }

// sendMax and recvMax return the inline thresholds: the longest Sends that this end and the peer may make, in bytes.
func (c *conn) sendMax() int { return int(c.agreed.sendLimit.Load()) }
func (c *conn) recvMax() int { return int(c.agreed.recvLimit.Load()) }

func (c *conn) sizes() plan.Sizes { return plan.Sizes{Send: c.sendMax(), Recv: c.recvMax()} }

func (c *conn) setSizes(s plan.Sizes) {
	c.agreed.sendLimit.Store(int32(s.Send))
	c.agreed.recvLimit.Store(int32(s.Recv))
}

// privateData returns the offer of this end, nil if it sends none.
func (c *conn) privateData() []byte {
	if c.cfg.NoPrivateData || c.caps.MaxPrivateData < rpcrdma.PrivateDataSize {
		return nil
	}
	return rpcrdma.AppendPrivateData(nil, rpcrdma.PrivateData{
		RemoteInvalidation: c.offersInvalidation(),
		SendSize:           c.cfg.InlineSend,
		RecvSize:           c.cfg.InlineRecv,
	})
}

// offersInvalidation reports whether this end sets the R bit. For the requester the bit promises that every handle of
// the connection may be invalidated (RFC 8797 section 3.2), for the responder that it is able to invalidate.
func (c *conn) offersInvalidation() bool {
	return !c.cfg.NoRemoteInvalidation && c.caps.RemoteInvalidate && (c.role == roleServer || c.exposes.Invalidatable())
}

// agree determines the thresholds and the use of remote invalidation from the private data (RFC 8797 sections 4.1, 4.2,
// 5.1).
func (c *conn) agree() {
	told := c.privateData() != nil
	var peer *rpcrdma.PrivateData
	if c.hasPriv {
		peer = &c.priv
	}
	c.setSizes(plan.Agree(plan.Sizes{Send: c.cfg.InlineSend, Recv: c.cfg.InlineRecv}, told, peer))
	c.agreed.remoteInv.Store(c.hasPriv && c.priv.RemoteInvalidation && told && c.offersInvalidation())
}

// useVersion2 switches the connection to version 2.
func (c *conn) useVersion2() {
	sizes := plan.Version2(c.sizes(), c.hasPriv && c.privateData() != nil)
	a := &c.agreed
	if c.role == roleServer {
		// The first reply still uses the thresholds of version 1: see replySent.
		a.raise.Store(int32(sizes.Send))
		sizes.Send = rpcrdma.DefaultInline
	}
	c.setSizes(sizes)
	a.remoteInv.Store(false)
	a.version.Store(rpcrdma.Version2)
}

// replySent is called for each reply that is sent. After the first one in version 2 the thresholds of version 2 apply
// (version two section 5.1).
func (c *conn) replySent() {
	a := &c.agreed
	if n := a.raise.Load(); n != 0 && a.raise.CompareAndSwap(n, 0) {
		a.sendLimit.Store(n)
	}
}

// properties returns the properties of this end.
func (c *conn) properties(dir rpcrdma.PropDir) rpcrdma.Properties {
	return rpcrdma.Properties{
		Dir: dir, SendSize: uint32(c.cfg.sendSize), RecvSize: uint32(c.cfg.recvSize),
		RemoteInvalidation: c.offersInvalidation(),
	}
}

// useProperties applies the properties of both ends, except those that would lower a threshold raised by private data.
func (c *conn) useProperties(own, peer rpcrdma.Properties) {
	st := c.state.Lock()
	defer c.state.Unlock()
	st.told = true
	c.setSizes(plan.Raised(c.sizes(), own, peer))
	c.agreed.remoteInv.Store(own.RemoteInvalidation && peer.RemoteInvalidation)
}

// haveTold reports whether the ends have exchanged their properties.
func (c *conn) haveTold() bool {
	defer c.state.Unlock()
	return c.state.Lock().told
}
