// Package trace reads RPC-over-RDMA conversations from capture files: pcap and pcapng, with iWARP over TCP or RoCE v2.
//
// Each layer has its own file: reader.go reads packets from the file, frame.go parses them up to TCP and UDP, tcp.go
// reassembles streams, iwarp.go and roce.go turn them into RDMA operations, and conversation.go interprets the
// operations as calls and replies.
//
// Files and their contents may be hostile: no length is trusted, and everything kept is bounded.
package trace
