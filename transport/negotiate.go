package transport

import (
	"context"
	"errors"
	"net"
	"time"

	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/rpcrdma"
	"github.com/rpcrdma/rpcrdma/rpc"
)

// The client's part of what version.go describes: it asks the server for version 2, falls
// back to version 1, and offers its properties.

func (cl *Client) versionKey() string { return cl.provider.Name() + " " + cl.addr }

// firstVersion returns the version of the first message on a new connection.
func (cl *Client) firstVersion() uint32 {
	switch v := cl.cfg.Version; {
	case v == Version2:
		return rpcrdma.Version2
	case v == Version1 || cl.cfg.RFC5666 != nil || cl.versions.has(cl.versionKey()):
		return rpcrdma.Version1
	}
	return rpcrdma.Version2
}

// negotiate determines which version the server speaks. No other goroutine uses the connection yet.
func (cl *Client) negotiate(ctx context.Context, c *conn) error {
	if c.version() == rpcrdma.Version1 {
		return nil
	}
	if c.haveTold() { // during connection setup
		cl.trust.Store(versionTrust)
		return nil
	}
	patience := versionPatience
	if end, ok := ctx.Deadline(); ok {
		patience = min(patience, time.Until(end)/2) // leaves time for version 1
	}
	short, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	own := c.properties(rpcrdma.PropOffer)
	tells := own.RemoteInvalidation || own.SendSize > rpcrdma.DefaultInline2 || own.RecvSize > rpcrdma.DefaultInline2
	call := &rpc.Call{Prog: rpcrdma.ConfigProgram, Vers: rpcrdma.ConfigVersion} // any program will do
	if tells {
		call = &rpc.Call{
			Prog: rpcrdma.PropProgram, Vers: rpcrdma.PropVersion, Proc: rpcrdma.ProcPropExchange,
			Args: rpcrdma.AppendProperties(nil, own), MaxResults: rpcrdma.PropertiesSize,
		}
	}
	asked := pendingOf(call)
	err := c.call(short, asked)
	var denied *oncrpc.RPCError
	var refused *rpc.RDMAError
	var senseless *rpc.BadReplyError
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err == nil || errors.As(err, &denied),
		errors.As(err, &refused) && refused.Code != rpcrdma.ErrVers && asked.replied == rpcrdma.Version2:
		// An error in version 2 is about the call, such as a lack of memory: the server speaks version 2.
		if asked.replied != rpcrdma.Version2 {
			return cl.version1(c, rpcrdma.Version1, rpcrdma.Version1)
		}
		cl.trust.Store(versionTrust)
		c.useVersion2()
		switch {
		case !tells:
			return nil
		case err == nil:
			c.takeProperties(own, call.Results)
			return nil
		}
		offer, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		err = c.offerProperties(offer, own)
		if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
			cl.trust.Store(0) // version 2 requires an answer, even if it is an error
			return &unheardError{err: err}
		}
		return err
	case errors.As(err, &refused) && refused.Code == rpcrdma.ErrVers:
		return cl.version1(c, refused.VersLow, refused.VersHigh)
	case errors.As(err, &refused), errors.As(err, &senseless):
		// The server takes the message for a malformed message of version 1.
		return cl.version1(c, rpcrdma.Version1, rpcrdma.Version1)
	case errors.Is(err, net.ErrClosed):
		return &unheardError{err: err}
	case errors.Is(err, context.DeadlineExceeded):
		return &unheardError{err: err, brief: patience < versionPatience/2}
	}
	return err
}

// version1 continues with version 1, if both ends support it.
func (cl *Client) version1(c *conn, low, high uint32) error {
	if low > rpcrdma.Version1 || high < rpcrdma.Version1 || cl.cfg.Version == Version2 {
		return &rpc.VersionError{Addr: cl.addr, Low: low, High: high}
	}
	cl.versions.note(cl.versionKey())
	c.agreed.version.Store(rpcrdma.Version1)
	return nil
}

// outdated reports whether a server that refuses a call of version 1 speaks version 2, and was away or starting when it
// was asked. outdated then ends the connection, and the next one begins with version 2, as with any server that has
// spoken it: versionTrust more connections may be lost after the first message before version 1 is tried again. The
// call has not been executed.
func (cl *Client) outdated(old connection, err error) bool {
	var refused *rpc.RDMAError
	if !errors.As(err, &refused) || refused.Code != rpcrdma.ErrVers || refused.Vers != rpcrdma.Version1 ||
		refused.VersLow > rpcrdma.Version2 || refused.VersHigh < rpcrdma.Version2 ||
		cl.cfg.Version != VersionAuto || cl.cfg.RFC5666 != nil || cl.cfg.NoReconnect {
		return false
	}
	c, ok := old.(*conn)
	if !ok {
		return false
	}
	cl.versions.forget(cl.versionKey())
	cl.trust.Store(versionTrust)
	// This end breaks the connection off instead of closing it in order, so that pauses grow if this happens again.
	c.breakOff(errOutdated)
	c.await(context.Background(), newWaiter())
	<-c.done
	return true
}

// offerProperties offers properties by the optional operation, to a server of version 2 that may be older and does not
// know the procedure. See docs/protocol.md.
func (c *conn) offerProperties(ctx context.Context, own rpcrdma.Properties) error {
	op := operation{Optional: Optional{Type: rpcrdma.OptProperties, Info: rpcrdma.AppendProperties(nil, own)}, answers: isPropertiesAnswer}
	err := c.call(ctx, &pendingCall{Call: new(rpc.Call), op: &op})
	var refused *rpc.RDMAError
	if errors.As(err, &refused) {
		return nil // it does not know the operation either
	}
	if err != nil {
		return err
	}
	if len(op.answer.Payload) == 0 {
		c.takeProperties(own, op.answer.Info)
	}
	return nil
}

// takeProperties applies the answer to this end's offer. Any answer except an acceptance changes nothing.
func (c *conn) takeProperties(own rpcrdma.Properties, info []byte) {
	if p, err := rpcrdma.ConsumeProperties(info); err == nil && p.Dir == rpcrdma.PropAccept {
		c.useProperties(own, p)
	}
}

// isPropertiesAnswer reports whether info may answer an offer: anything that is not an offer may.
func isPropertiesAnswer(info []byte) bool {
	p, _ := rpcrdma.ConsumeProperties(info)
	return p.Dir != rpcrdma.PropOffer
}
