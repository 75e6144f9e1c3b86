// Package capture records the traffic between the transport and an RDMA adapter in a pcapng file that Wireshark and
// tshark decode as RPC-over-RDMA. Kernel bypass hides RDMA traffic from packet capture on the host; this package sees
// it on every provider, devices included.
//
//	w, err := capture.Create("calls.pcapng", nil)
//	...
//	defer w.Close()
//	p := w.Provider(iwarp.New(iwarp.Config{}))
//
// Use the provider that [Writer.Provider] returns in place of the one it wraps. Without a wrapped provider there is no
// cost.
//
// # Contents of a recording
//
//   - The private data of both ends when a connection is set up.
//   - Every Send of this end, and every message that it receives.
//   - RDMA Writes and RDMA Reads that this end posts, with their data.
//   - The peer's accesses to the memory of this end, which no adapter reports. The RDMA Reads of a chunk are recorded
//     after the message with the read list that contains it. RDMA Writes are recorded before the reply with the write
//     list or reply chunk that gives the length written. The data is the content of the memory at that time.
//   - The end of the connection, with its reason as a packet comment.
//
// # What packets look like
//
// The packets were never on a wire. They are written as iWARP over TCP (RFC 5040, RFC 5041, RFC 5044), whatever
// protocol the adapter uses, because Wireshark reassembles chunks and messages from that; or as RoCE v2, see [Framing].
// Addresses and ports are those of the connection. A connection without IP, as over shared memory, is given loopback
// addresses. Each packet is one segment of a message, with up to 60 KiB of data. There are no separate
// acknowledgements, TCP checksums are zero, and sequence numbers begin at an arbitrary value.
//
// Wireshark knows only version 1 of RPC-over-RDMA. RDMA_MSG, RDMA_NOMSG and RDMA_ERROR have the same form in version 2,
// so they are written with 1 in rdma_vers, and the packet has the comment [VersionComment]. [Config].KeepVersion keeps
// version 2.
//
// # Bounds
//
// Recording never blocks. Events wait for the disk in a queue of [Config].Queue bytes. Events that do not fit are
// dropped and counted, and leave no gap in the sequence numbers. [Config].SnapLen bounds the data kept of each packet,
// and MaxSize and Files bound the files. A file is intact up to the last block written, even if the process was killed.
//
// # Privacy
//
// A capture contains the credentials and data of all users of the connections. [Create] makes files that only their
// owner can read.
//
// # Limitations
//
//   - Accesses of a peer that no message mentions are not recorded.
//   - Data that the peer reads is recorded as it was when the message was sent.
//   - If both ends of a connection are recorded into one file, it contains everything twice.
package capture
