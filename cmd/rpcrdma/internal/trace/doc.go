// Package trace reads conversations in RPC-over-RDMA from capture files: pcap and pcapng, with iWARP
// over TCP or RoCE v2.
//
// The layers, each in its own file: reader.go takes packets from the file, frame.go takes them apart
// up to TCP and UDP, tcp.go puts streams together, iwarp.go and roce.go make RDMA operations of them,
// and conversation.go looks at the operations as calls and replies.
//
// Files and what is in them are hostile: no length is believed, and all that is kept is bounded.
package trace
