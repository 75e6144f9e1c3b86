package rpc

import (
	"crypto/tls"
	"net"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/internal/origin"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
)

// Functions for transports, not for programs. The types in the signatures are internal.

// StateOf returns the state that the transport making a call keeps in it. It is for transports.
func StateOf(call *Call) *origin.State { return &call.state }

// Arrived makes r the Request of a call that o received on c. It is for transports. The arguments are at offset at of
// msg, with the padding of an RDMA_MSGP. Arrived reuses the memory of the previous Request in r.
func Arrived(r *Request, c Conn, o origin.Origin, call *oncrpc.CallHeader, msg []byte, at int, pad xdr.Padding, kept bool) {
	p := Procedure{call.Prog, call.Vers, call.Proc}
	*r = Request{
		Procedure: p, Observed: p,
		XID: call.XID, Cred: call.Cred, Verf: call.Verf,
		Args: msg[at:], at: at, pad: pad, kept: kept, o: o, c: c, sys: r.sys,
	}
}

// PeerOf returns the Peer at the other end of a connection: its address, and the state of TLS or nil. It is for
// transports.
func PeerOf(addr net.Addr, state *tls.ConnectionState) *Peer {
	p := &Peer{Addr: addr, TLS: state}
	if state != nil && len(state.VerifiedChains) > 0 {
		p.Certificate = CertificateNames(state.VerifiedChains[0][0])
	}
	if a, ok := addr.(fabric.ProcessAddr); ok {
		if process, ok := a.Process(); ok {
			p.Process = &process
		}
	}
	return p
}

// OriginOf returns the Origin that Arrived was given. It is for transports.
func OriginOf(r *Request) origin.Origin { return r.o }

// Answering returns the Response to a call that o received. It is for transports. Results are built in results, which
// is empty.
func Answering(o origin.Origin, results []byte) Response { return Response{Results: results, o: o} }

// Lingers reports whether a handler has called Linger.
func Lingers(w *Response) bool { return w.lingers }
