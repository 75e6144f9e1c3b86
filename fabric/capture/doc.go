// Package capture records what crosses the seam between the transport and an RDMA adapter, in a
// pcapng file that Wireshark and tshark read as RPC-over-RDMA. Kernel bypass hides RDMA traffic
// from packet capture on the host; this package sees it on every provider, devices included.
//
//	w, err := capture.Create("calls.pcapng", nil)
//	...
//	defer w.Close()
//	p := w.Provider(iwarp.New(iwarp.Config{}))
//
// The provider that [Writer.Provider] returns replaces the one it wraps. A program that does not wrap
// its provider pays nothing.
//
// # Contents of a recording
//
//   - The private data of both ends when a connection is set up.
//   - Every Send of this end, and every message that it has received.
//   - RDMA Writes and RDMA Reads that this end has posted, with their data.
//   - Accesses of the peer to the memory of this end, which no adapter reports: the RDMA Reads of a
//     chunk are recorded after the message with the read list that names it. RDMA Writes are recorded
//     before the reply with the write list or reply chunk that says how much was written. The data
//     are those in the memory at that time.
//   - The end of the connection, with its reason as a packet comment.
//
// # What packets look like
//
// The packets were never on a wire. They are written as iWARP over TCP (RFC 5040, RFC 5041, RFC
// 5044), whatever the adapter speaks, since Wireshark reassembles chunks and messages from that; or
// as RoCE v2, see [Framing]. Addresses and ports are those of the connection; one without IP, as over
// shared memory, gets some of the loopback interface. Each packet is one segment of a message, up to
// 60 KiB of data; there are no acknowledgements on their own, TCP checksums are zero, and sequence
// numbers begin at an arbitrary place.
//
// Wireshark knows only version 1 of RPC-over-RDMA. RDMA_MSG, RDMA_NOMSG and RDMA_ERROR have the same
// form in version 2, so they are written with a 1 in rdma_vers, and the packet has the comment
// [VersionComment]. [Config].KeepVersion leaves version 2 in place.
//
// # Bounds
//
// Recording never waits. Events wait for the disk in a queue of [Config].Queue bytes; what does not
// fit is dropped and counted, and leaves no gap in the sequence numbers. [Config].SnapLen bounds the
// data that is kept of each packet, MaxSize and Files the files. A file is intact up to the last
// block written, even if the process was killed.
//
// # Privacy
//
// A capture has the credentials and data of all users of the connections. [Create] makes files that
// only their owner can read.
//
// # Limitations
//
//   - Memory that a peer has accessed without a message that says so is not seen.
//   - Data that the peer has read is recorded as it was when the message was sent.
//   - If both ends of a connection are recorded into one file, everything is in it twice.
package capture
