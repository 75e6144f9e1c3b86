package grpcrdma

import (
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"

	"github.com/rpcrdma/rpcrdma/rpc"
)

// An AuthInfo is the AuthInfo of a peer.Peer that the kernel or a security flavor vouches for: of a connection over
// shared memory, and of a handler's caller with a Principal. With TLS alone it is a credentials.TLSInfo, and without any
// of them nil.
type AuthInfo struct {
	credentials.CommonAuthInfo

	// Peer is constant: see [rpc.Peer] for what proves which of its fields.
	Peer rpc.Peer
}

// AuthType implements credentials.AuthInfo. It returns "process", or the mechanism of the Principal, such as "krb5".
func (a AuthInfo) AuthType() string {
	if a.Peer.Principal != nil {
		return a.Peer.Principal.Mechanism
	}
	return "process"
}

// peerOf returns the other end of conn, of which p is known.
func peerOf(conn rpc.Conn, p rpc.Peer) peer.Peer {
	at := peer.Peer{Addr: conn.RemoteAddr(), LocalAddr: conn.Info().LocalAddr}
	level := credentials.CommonAuthInfo{SecurityLevel: credentials.NoSecurity}
	switch {
	case p.Private():
		level.SecurityLevel = credentials.PrivacyAndIntegrity
	case p.Principal != nil && p.Principal.Service == rpc.ServiceIntegrity:
		level.SecurityLevel = credentials.IntegrityOnly
	}
	switch {
	case p.Principal != nil || p.Process != nil:
		at.AuthInfo = AuthInfo{level, p}
	case p.TLS != nil:
		at.AuthInfo = credentials.TLSInfo{State: *p.TLS, CommonAuthInfo: level}
	}
	return at
}

// caller returns the other end as the handler of a call sees it, which may change it.
func (l *link) caller(req *rpc.Request) *peer.Peer {
	p := l.peer
	if from := req.Peer(); from.Principal != nil {
		p = peerOf(l.conn, from)
	}
	return &p
}
