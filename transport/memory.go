package transport

import (
	"errors"
	"net"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/transport/internal/expose"
)

// A Memory is memory of the program that stays registered with the connections of a
// Client: see [Client.RegisterMemory].
type Memory struct{ region *expose.Region }

// RegisterMemory keeps mem registered with the client's adapter, on this connection and on those that
// replace it, until the Memory is closed. Calls with ReadItems and WriteItems anywhere in it then
// need neither register them, which costs two system calls for each item and time that grows with the
// item, nor copy short ones through bounce buffers (Config.BounceMax). mem must not be empty, nor
// overlap memory that is registered already. The Memory keeps mem from being collected.
//
// The exposure depends on the adapter (ConnInfo.Capabilities). With MemoryWindows a call opens a
// window over its own items, as always. Without them the server can read and write all of mem at any
// time until Close has returned: do this only with servers that are trusted with it. Call still is a
// fence, in so far as a call that is given up takes the registration with it and the next one renews
// it; other calls with items in mem at that moment lose their connection. Adapters with LocalDMA take
// any memory as it is, and nothing is registered.
//
// It fails as registering does: with an *ibv.MemlockError on devices when the limit of
// locked memory is too low.
func (cl *Client) RegisterMemory(mem []byte) (*Memory, error) {
	return registerWith(cl.regions, fabric.SGE{Buf: mem}, cl.latest())
}

// RegisterForeign is RegisterMemory for foreign memory, which LocalDMA is not for: it is registered with
// every adapter. Items in it name the same File, which stays open: connections to come register it anew.
func (cl *Client) RegisterForeign(mem fabric.Foreign) (*Memory, error) {
	return registerWith(cl.regions, fabric.SGE{Foreign: &mem}, cl.latest())
}

// registerWith adds mem to a set, and registers it with the connections that there are.
func registerWith(set *expose.Regions, mem fabric.SGE, conns ...connection) (*Memory, error) {
	r, err := set.Add(mem)
	if err != nil {
		return nil, err
	}
	for _, c := range conns {
		c, ok := c.(*conn)
		if !ok || c.caps.LocalDMA && mem.Foreign == nil {
			continue
		}
		// A connection that has ended is no reason to fail: calls register with the next one.
		if err := r.Register(&c.exposes); err != nil && !errors.Is(err, net.ErrClosed) {
			r.Close()
			return nil, err
		}
	}
	return &Memory{r}, nil
}

// Bytes returns the registered memory, nil if it is foreign.
func (m *Memory) Bytes() []byte { return m.region.Bytes() }

// Close ends the registration. On return no peer can reach the memory, as far as the
// adapter revokes (Capabilities.WeakRevocation), except for the items of calls under way:
// the end of the last call ends the registration when it returns. Closing twice is
// harmless.
func (m *Memory) Close() error {
	m.region.Close()
	return nil
}
