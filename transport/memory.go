package transport

import (
	"errors"
	"net"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/transport/internal/expose"
)

// A Memory is program memory that stays registered with the connections of a Client: see [Client.RegisterMemory].
type Memory struct{ region *expose.Region }

// RegisterMemory keeps mem registered with the client's adapter, on this connection and on those that replace it, until
// the Memory is closed. Calls with ReadItems and WriteItems anywhere in it then need not register them, which costs two
// system calls per item and time that grows with the item's size. Nor are short items copied through bounce buffers
// (Config.BounceMax). mem must not be empty, and must not overlap memory that is already registered. The Memory keeps
// mem from being garbage collected.
//
// The exposure depends on the adapter (ConnInfo.Capabilities). With MemoryWindows a call opens a window over its own
// items, as always. Without them the server can read and write all of mem at any time until Close has returned: use
// this only with servers that you trust with it. Call remains a fence: a canceled call withdraws the registration, and
// the next call renews it. Other calls with items in mem at that moment lose their connection. Adapters with LocalDMA
// accept any memory, and nothing is registered.
//
// RegisterMemory fails when registration does: on devices with an *ibv.MemlockError if the limit of locked memory is
// too low.
func (cl *Client) RegisterMemory(mem []byte) (*Memory, error) {
	return registerWith(cl.regions, fabric.SGE{Buf: mem}, cl.latest())
}

// RegisterForeign is RegisterMemory for foreign memory. LocalDMA does not cover it, so it is registered with every
// adapter. Items in it name the same File, which must stay open: later connections register it again.
func (cl *Client) RegisterForeign(mem fabric.Foreign) (*Memory, error) {
	return registerWith(cl.regions, fabric.SGE{Foreign: &mem}, cl.latest())
}

// registerWith adds mem to a set, and registers it with the existing connections.
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

// Close ends the registration. When it returns, no peer can reach the memory, as far as the adapter revokes access
// (Capabilities.WeakRevocation), except for the items of calls in flight: the registration ends when the last of them
// returns. Closing twice is harmless.
func (m *Memory) Close() error {
	m.region.Close()
	return nil
}
