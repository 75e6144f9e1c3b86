// Package iwarp is a software RDMA adapter in pure Go: iWARP (RFC 5040, RFC
// 5041, RFC 5044, RFC 6581) over a TCP connection of the operating system. It
// needs no RDMA hardware, no kernel module, no cgo and no privileges, and it
// talks to Linux's siw and to iWARP adapters that use the plain TCP port.
//
// A [Provider] implements fabric.Provider, a [Conn] fabric.Conn:
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
// There is no goroutine behind a connection. Poll reads the socket and handles
// what has come; Wait does, too, and parks its own goroutine in the runtime's
// poller when nothing has. Post writes on the goroutine that posts; who comes
// while somebody else is writing leaves that one the work. Only when the socket
// takes no more does a goroutine wait for room, and ends when all has left.
//
// Wait looks for completions before it parks, so a loop of Wait and Poll needs
// no Poll that finds nothing: that saves a system call for each message.
//
// # Data path
//
// A list of requests becomes one writev of many FPDUs: headers, trailers and
// payloads up to 4 KiB lie in a buffer of the adapter, longer payloads are taken
// from where they are. Incoming payloads of which at least 16 KiB are still to come
// are read straight into their place, together with what follows them; the rest
// goes through a buffer of 64 KiB that a connection has while bytes are coming
// in. In steady state nothing is allocated.
//
// # Completions
//
// The send queue completes in order. A Send, and a Write, completes when the
// socket has taken it, not when the peer has: what the peer refuses may have
// completed well, and only the end of the connection tells then. A Read
// completes with its data. A request that fails ends the connection, as with
// any queue pair; its completion says why, all others are flushed.
//
// A Send for which the peer has posted no receive, or too short a one, ends the
// connection: iWARP has no way to ask for patience.
//
// # Memory
//
// All memory of the process is registered under fabric.LocalDMAKey, and memory
// of the Go heap may be exposed like any other: nobody but this process touches
// it. STag and tagged offset are the peer's only names for memory, checked for
// every segment against bounds and rights. They say nothing about addresses, and
// each registration and each MW.Prepare draws others: 12 random bits of the STag,
// and a tagged offset that looks random in all its bits.
//
//   - A guess hits L bytes with a probability of about L / 2^76, and those of 2 GiB
//     and more with 2^-44.
//   - A handle whose region was closed or whose window was invalidated opens
//     nothing for the next 2^32 uses of its entry in the table. That is no matter of
//     chance: no two of them have a tagged offset in common.
//   - One wrong handle ends the connection with a Terminate message. Nothing behind
//     it is looked at, and the next connection has other secrets: a peer has one
//     guess for each connection that it can get.
//
// docs/adr/0019 has the arithmetic. A connection has 1,048,574 regions and windows
// at most; one more is refused with a fabric.CapabilityError.
//
// OpLocalInv, MW.Close, MR.Close and Conn.Close are fences. Placement happens
// under a lock, for one system call at a time, and the STag is looked up again
// when the lock is taken again in the middle of a segment; so is what an answer
// to a Read takes its bytes from. When a fence has taken the locks once, nobody
// uses the memory; what has been copied from it before may still be sent. A peer that is in the middle of a Write or Read then is
// refused, which ends the connection; OpLocalInv, being in the send queue,
// waits for answers to Reads that were begun before it.
//
// OpLocalInv of a window that the peer has invalidated in the meantime
// succeeds; of any other name that is not bound it fails.
//
// # Set-up
//
// The side that connects sends an MPA request of revision 2 with IRD and ORD
// and takes replies of any revision; it decides whether CRCs are used. The side
// that accepts answers each peer as it was asked. It may not send before the
// other side has (RFC 5044 section 7.1.2): what it posts is kept until then,
// unless Config.PeerToPeer of the other side has agreed on a frame for that.
// Binds and invalidations in front of the first message take effect at once.
//
// Linux's siw can miss the first message of a side that connects until more
// comes. So if the peer has been sent something and has not been heard within
// 50 ms, the side that connects sends a Write of no bytes, up to five times.
//
// # Ends
//
// A connection ends with a *fabric.ConnError. Its cause is nil when a side has
// closed between two messages, a [ProtocolError] when the peer broke the
// protocol and was told so by a Terminate message, a [TerminateError] when the
// peer said that of us, a [WorkError] when a request could not be executed, and
// a [BrokenError] when TCP failed. Set-up fails with a *fabric.RejectError or a
// [SetupError].
//
// # Limitations
//
//   - Linux only, so far; elsewhere the package compiles and refuses.
//   - No markers (RFC 5044 section 4.3): a peer that demands them is rejected.
//   - No port mapper: adapters with a TCP stack of their own that need one
//     cannot be reached.
//   - Reads have one local buffer each, and no message is 4 GiB or longer.
package iwarp
