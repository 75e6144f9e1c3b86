package rpcrdma

import "github.com/rpcrdma/rpcrdma/proto/xdr"

//go:generate go run github.com/rpcrdma/rpcrdma/cmd/xdrgen -types -o ccp_xdr.go ccp.x

// The Connection Configuration Protocol is a separate RPC program with which a client announces its requirements for a
// connection and learns the server's limits. RFC 5666 sections 6.2 and 12; RFC 8166 removed it. ccp.x defines it.

// ConfigSize is the size of config_rdma_req and of config_rdma_reply in bytes. RFC 5666
// section 6.2.
const ConfigSize = 12

// AppendConfigCall appends the [ConfigSize] octets of c.
func AppendConfigCall(b []byte, c ConfigCall) []byte { return c.Append(b) }

// ConsumeConfigCall reads the arguments at the start of b and returns their length.
// The error is an *xdr.DecodeError.
func ConsumeConfigCall(b []byte) (c ConfigCall, n int, err error) {
	if len(b) < ConfigSize {
		return c, 0, &xdr.DecodeError{Offset: len(b), What: "config_rdma_req is cut short"}
	}
	d := xdr.NewDecoder(b)
	c.Decode(&d)
	return c, ConfigSize, nil
}

// AppendConfigReply appends the [ConfigSize] octets of r.
func AppendConfigReply(b []byte, r ConfigReply) []byte { return r.Append(b) }

// ConsumeConfigReply reads the results at the start of b and returns their length. The
// error is an *xdr.DecodeError.
func ConsumeConfigReply(b []byte) (r ConfigReply, n int, err error) {
	if len(b) < ConfigSize {
		return r, 0, &xdr.DecodeError{Offset: len(b), What: "config_rdma_reply is cut short"}
	}
	d := xdr.NewDecoder(b)
	r.Decode(&d)
	return r, ConfigSize, nil
}
