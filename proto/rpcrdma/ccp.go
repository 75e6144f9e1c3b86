package rpcrdma

import "github.com/rpcrdma/rpcrdma/proto/xdr"

//go:generate go run github.com/rpcrdma/rpcrdma/cmd/xdrgen -o ccp_xdr.go ccp.x

// The Connection Configuration Protocol is a separate RPC program, with which a client
// announces its requirements for a connection and learns the server's limits. RFC 5666
// sections 6.2 and 12; RFC 8166 removed it. What it consists of is in ccp.x.

// ConfigSize is the size of config_rdma_req and of config_rdma_reply in bytes. RFC 5666
// section 6.2.
const ConfigSize = 12

// AppendConfigCall appends the [ConfigSize] octets of c.
func AppendConfigCall(b []byte, c ConfigCall) []byte { return c.Append(b) }

// ConsumeConfigCall reads the arguments at the start of b and returns their length.
// The error is an *xdr.DecodeError.
func ConsumeConfigCall(b []byte) (c ConfigCall, n int, err error) {
	d, err := configDecoder(b, "config_rdma_req is cut short")
	if err != nil {
		return c, 0, err
	}
	c.Decode(&d)
	return c, ConfigSize, nil
}

// AppendConfigReply appends the [ConfigSize] octets of r.
func AppendConfigReply(b []byte, r ConfigReply) []byte { return r.Append(b) }

// ConsumeConfigReply reads the results at the start of b and returns their length. The
// error is an *xdr.DecodeError.
func ConsumeConfigReply(b []byte) (r ConfigReply, n int, err error) {
	d, err := configDecoder(b, "config_rdma_reply is cut short")
	if err != nil {
		return r, 0, err
	}
	r.Decode(&d)
	return r, ConfigSize, nil
}

// configDecoder returns a Decoder that [ConfigSize] octets are left for, or an error.
func configDecoder(b []byte, short string) (xdr.Decoder, error) {
	if len(b) < ConfigSize {
		return xdr.Decoder{}, &xdr.DecodeError{Offset: len(b), What: short}
	}
	return xdr.NewDecoder(b), nil
}
