// Package dump describes RPC-over-RDMA messages for people and programs: the transport header of versions 1 and 2 (RFC
// 8166), the RPC header after it, and the private data that peers exchange when they connect (RFC 8797).
//
// A [Decoder] takes the messages of one connection as bytes and returns a [Message] for each, which prints as text and
// marshals to JSON. A damaged message is described up to the damage. [ReadHex] reads messages from the hexadecimal
// output of common tools.
package dump
