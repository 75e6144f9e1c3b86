package transport

import "github.com/rpcrdma/rpcrdma/proto/rpcrdma"

// Data that the ends exchange while they connect: private data of RFC 8797, and after it, for peers that know it, the
// version of the protocol and the properties of version 2 (docs/protocol.md, At setup). If its offer is accepted, a
// client needs no message to learn the server's version and properties.

// greeting returns this end's private data for connecting, nil for none. It includes setup if that is not nil and there
// is room.
func (c *conn) greeting(setup *rpcrdma.Setup) []byte {
	b := c.privateData()
	if setup != nil {
		b = rpcrdma.AppendSetup(b, *setup)
	}
	return b
}

// canSetUp reports whether this end may send a setup message.
func (c *conn) canSetUp() bool {
	return c.privateData() != nil && c.caps.MaxPrivateData >= rpcrdma.PrivateDataSize+rpcrdma.SetupSize &&
		c.cfg.Limits.Versions.High >= rpcrdma.Version2 && c.cfg.RFC5666 == nil
}

// offersSetup returns a client's offer. If it returns nil, the connection begins with version 1.
func (c *conn) offersSetup() *rpcrdma.Setup {
	if c.version() != rpcrdma.Version2 || !c.canSetUp() {
		return nil
	}
	return &rpcrdma.Setup{Credit: uint32(c.cfg.Credits), Properties: c.properties(rpcrdma.PropOffer)}
}

// takeSetup applies the server's acceptance of this client's offer, if there is one.
func (l *leader) takeSetup(offer *rpcrdma.Setup) {
	if offer == nil {
		return
	}
	c := l.c
	accepted, ok := rpcrdma.FindSetup(c.fc.PeerPrivateData(), rpcrdma.PropAccept)
	if !ok {
		return
	}
	c.useVersion2()
	c.useProperties(offer.Properties, accepted.Properties)
	l.setGrant(accepted.Credit)
}

// acceptSetup returns a server's acceptance of the client's offer, and applies both. It returns nil if there is no
// offer, or none that this end accepts: then the client asks with a message. Receives are posted for the calls that the
// client is granted.
func (l *leader) acceptSetup() *rpcrdma.Setup {
	c := l.c
	if !c.canSetUp() {
		return nil
	}
	offer, ok := rpcrdma.FindSetup(c.fc.PeerPrivateData(), rpcrdma.PropOffer)
	if !ok {
		return nil
	}
	own := c.properties(rpcrdma.PropAccept)
	c.useVersion2()
	c.replySent() // the client's receives are from the start as long as version 2 requires
	l.accepted(own, offer.Properties)
	return &rpcrdma.Setup{Credit: uint32(min(c.grant.Load(), int64(offer.Credit))), Properties: own}
}
