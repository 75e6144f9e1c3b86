package transport

import "github.com/rpcrdma/rpcrdma/internal/lockorder"

// The locks of this package. Package lockorder has the order, and the locks of the packages
// below; builds with the race detector check it.
const (
	rankServer  = lockorder.Server  // Server: its listeners and connections
	rankGroup   = lockorder.Group   // Group: its connections
	rankLink    = lockorder.Link    // a client's or backchannel's succession of connections
	rankConn    = lockorder.Conn    // conn.state
	rankSends   = lockorder.Sends   // conn.sends
	rankAnswers = lockorder.Answers // tcpConn.answers
)
