package rpcrdma

import "github.com/rpcrdma/rpcrdma/proto/xdr"

// The Connection Configuration Protocol is a separate RPC program, with which a client
// announces its requirements for a connection and learns the server's limits. RFC 5666
// sections 6.2 and 12; RFC 8166 removed it.
const (
	ConfigProgram = 100417 // CONFIG_RDMA_PROG, sections 6.2 and 12
	ConfigVersion = 1      // VERS1, section 6.2
	ProcConfRDMA  = 1      // CONF_RDMA, its only procedure beside 0, section 6.2

	ConfigSize = 12 // config_rdma_req and config_rdma_reply in bytes, section 6.2
)

// A ConfigCall is config_rdma_req, the arguments of CONF_RDMA. RFC 5666 section 6.2.
// Sizes are those of whole messages, the transport header included.
type ConfigCall struct {
	MaxCall  uint32 // maxcall_sendsize: longest inline call that the client would send, in bytes
	MaxReply uint32 // maxreply_sendsize: longest inline reply that the client accepts, in bytes
	MaxReads uint32 // maxrdmaread: most RDMA Reads active at the client; 0: none at all
}

// A ConfigReply is config_rdma_reply, the results of CONF_RDMA. RFC 5666 section 6.2.
type ConfigReply struct {
	MaxCall  uint32 // maxcall_sendsize: longest inline call that the server accepts, in bytes
	Align    uint32 // align: recommended for the beginning of opaque data, in bytes
	MaxReads uint32 // maxrdmaread: most RDMA Reads active at the server; 0: none at all
}

// AppendConfigCall appends the [ConfigSize] octets of c.
func AppendConfigCall(b []byte, c ConfigCall) []byte {
	return appendWords(b, c.MaxCall, c.MaxReply, c.MaxReads)
}

// ConsumeConfigCall reads the arguments at the start of b and returns their length.
// The error is an *xdr.DecodeError.
func ConsumeConfigCall(b []byte) (c ConfigCall, n int, err error) {
	w, n, err := consumeWords(b, "config_rdma_req is cut short")
	return ConfigCall{MaxCall: w[0], MaxReply: w[1], MaxReads: w[2]}, n, err
}

// AppendConfigReply appends the [ConfigSize] octets of r.
func AppendConfigReply(b []byte, r ConfigReply) []byte {
	return appendWords(b, r.MaxCall, r.Align, r.MaxReads)
}

// ConsumeConfigReply reads the results at the start of b and returns their length. The
// error is an *xdr.DecodeError.
func ConsumeConfigReply(b []byte) (r ConfigReply, n int, err error) {
	w, n, err := consumeWords(b, "config_rdma_reply is cut short")
	return ConfigReply{MaxCall: w[0], Align: w[1], MaxReads: w[2]}, n, err
}

func appendWords(b []byte, v ...uint32) []byte {
	for _, w := range v {
		b = xdr.AppendUint32(b, w)
	}
	return b
}

// consumeWords reads three words, all or none.
func consumeWords(b []byte, short string) (w [3]uint32, n int, err error) {
	if len(b) < ConfigSize {
		return w, 0, &xdr.DecodeError{Offset: len(b), What: short}
	}
	for i := range w {
		v, k := xdr.ConsumeUint32(b[n:])
		w[i], n = v, n+k
	}
	return w, n, nil
}
