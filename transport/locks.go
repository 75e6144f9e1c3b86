package transport

import "github.com/rpcrdma/rpcrdma/internal/lockorder"

// The locks of this package. Package lockorder defines the order, including the locks of lower packages. Builds with
// the race detector check it.
const (
	rankServer  = lockorder.Server  // Server: its listeners and connections
	rankGroup   = lockorder.Group   // Group: its connections
	rankLink    = lockorder.Link    // a client's or backchannel's succession of connections
	rankConn    = lockorder.Conn    // conn.state
	rankSends   = lockorder.Sends   // conn.sends
	rankAnswers = lockorder.Answers // tcpConn.answers
)
