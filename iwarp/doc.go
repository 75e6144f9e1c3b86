// Package iwarp is a software RDMA adapter in pure Go: iWARP (RFC 5040, RFC 5041, RFC 5044, RFC 6581) over a TCP
// connection of the operating system. It needs no RDMA hardware, no kernel module, no cgo and no privileges, and it
// talks to Linux's siw and to iWARP adapters that use the plain TCP port.
//
// A [Provider] implements [fabric.Provider], a [Conn] [fabric.Conn]:
//
//	p := iwarp.New(iwarp.Config{})
//	l, err := p.Listen(ctx, ":20049", fabric.ConnAttr{})
//
//	c, err := p.Resolve(ctx, "server:20049", fabric.ConnAttr{})
//	err = c.PostRecv(receives)
//	err = c.Connect(ctx, privateData)
//	err = c.Post(requests)
//	for {
//		err = c.Wait()
//		n, err := c.Poll(wcs[:])
//		...
//	}
//
// # Progress
//
// An idle connection has no goroutine. Poll reads the socket and processes the data that has arrived. So does Wait,
// which parks its own goroutine in the runtime's poller if nothing has arrived. Post writes to the socket on the
// calling goroutine; if another goroutine is already writing, that one sends the new requests as well. Only when the
// socket buffer is full does a separate goroutine wait for space; it exits when the queue is empty.
//
// Wait checks for completions before it parks, so a loop that calls Wait before each Poll never polls in vain. That
// saves a system call for each message.
//
// # Data path
//
// A list of requests becomes one writev of many FPDUs: headers, trailers and payloads up to 4 KiB are copied to a
// buffer of the adapter, longer payloads are sent without a copy. If at least 16 KiB of an incoming payload are
// missing, they are read directly into their destination, together with what follows; everything else goes through a
// buffer of 64 KiB, which a connection holds only while bytes arrive. In the steady state nothing is allocated.
//
// # Completions
//
// The send queue completes in order. A Send or Write completes when the socket has accepted it, not when the peer has:
// a request that the peer refuses may have completed successfully, and then only the end of the connection reports the
// error. A Read completes when its data has arrived. A request that fails ends the connection, as with any queue pair;
// its completion has the reason, and all others are flushed.
//
// A Send for which the peer has posted no receive, or too short a one, ends the connection: iWARP has no
// receiver-not-ready flow control.
//
// # Memory
//
// All memory of the process is registered under [fabric.LocalDMAKey], and Go heap memory may be exposed like any other,
// since only this process accesses it. A peer addresses memory only by STag and tagged offset, which are checked for
// every segment against bounds and rights. They do not depend on addresses, and each registration and each MW.Prepare
// draws new ones: 12 random bits of the STag, and a pseudorandom tagged offset.
//
//   - A guess hits a region of L bytes with a probability of about L / 2^76, and one of 2 GiB or more with 2^-44.
//   - After a region is closed, or a window invalidated, its handle is invalid for the next 2^32 uses of its table
//     entry. This is certain, not just likely: no two uses share a tagged offset.
//   - One wrong handle ends the connection with a Terminate message. Nothing after it is processed, and the next
//     connection has new secrets, so a peer has one guess per connection.
//
// docs/adr/0019 has the arithmetic. A connection has at most 1,048,574 regions and windows; creating another fails with
// a [fabric.CapabilityError].
//
// OpLocalInv, MW.Close, MR.Close and Conn.Close are fences. Data is placed under a lock that is held for one system
// call at a time, and the STag is looked up again whenever the lock is taken in the middle of a segment; the same holds
// for the source of a Read Response. Once a fence has held the locks, nothing accesses the memory; bytes already copied
// from it may still be sent. A peer in the middle of a Write or Read is then refused, which ends the connection.
// OpLocalInv, which is in the send queue, waits for Read Responses that were begun before it.
//
// OpLocalInv succeeds if the peer has invalidated the window in the meantime. It fails for any other handle that is not
// bound.
//
// # Setup
//
// The initiator sends an MPA request of revision 2 with IRD and ORD, and accepts replies of any revision; it decides
// whether CRCs are used. The responder replies in the revision of the request. It must not send before the initiator
// has (RFC 5044 section 7.1.2): its requests stay queued until then, unless the initiator has set Config.PeerToPeer and
// sends a Ready To Receive frame. Binds and invalidations before the first message take effect at once.
//
// As a responder, Linux's siw can miss the first message until another segment arrives. So if the initiator has sent
// something and received nothing within 50 ms, it sends an empty Write, up to five times.
//
// # Ends
//
// A connection ends with a [*fabric.ConnError]. Its cause is nil if an end closed the connection between two messages,
// a [ProtocolError] if the peer violated the protocol, a [TerminateError] if the peer sent a Terminate message, a
// [WorkError] if a request could not be executed, and a [BrokenError] if TCP failed. Connection setup fails with a
// [*fabric.RejectError] or a [SetupError].
//
// # Limitations
//
//   - Linux only; on other systems the package compiles, but Resolve and Listen fail.
//   - No markers (RFC 5044 section 4.3): a peer that demands them is rejected.
//   - No port mapper: adapters with their own TCP stack that depend on one cannot be reached.
//   - A Read has one local buffer, and messages are shorter than 4 GiB.
package iwarp
