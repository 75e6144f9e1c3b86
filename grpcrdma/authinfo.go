package grpcrdma

import (
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"

	"github.com/rpcrdma/rpcrdma/rpc"
)

// AuthInfo is the AuthInfo of a peer.Peer identified by the kernel or by a security flavor: the other end of a
// shared-memory connection, or a handler's caller that has a Principal. A peer authenticated by TLS alone has a
// credentials.TLSInfo instead, and an unauthenticated peer has nil.
type AuthInfo struct {
	credentials.CommonAuthInfo

	// Peer must not be modified. See [rpc.Peer] for what proves each field.
	Peer rpc.Peer
}

// AuthType implements credentials.AuthInfo. It returns "process", or the mechanism of the Principal, such as "krb5".
func (a AuthInfo) AuthType() string {
	if a.Peer.Principal != nil {
		return a.Peer.Principal.Mechanism
	}
	return "process"
}

// peerOf returns the other end of conn, described by p.
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

// caller returns the caller of req as its handler sees it. The handler may modify the result.
func (l *link) caller(req *rpc.Request) *peer.Peer {
	p := l.peer
	if from := req.Peer(); from.Principal != nil {
		p = peerOf(l.conn, from)
	}
	return &p
}
