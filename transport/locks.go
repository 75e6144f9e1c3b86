package transport

import "github.com/rpcrdma/rpcrdma/internal/lockorder"

// The order of locks. A goroutine takes them in this order; builds with the race detector
// check that it does. The locks of the packages below (the arena, the budget, the reply
// cache, registered regions, the adapter) come after these, and are held for no call back
// into this package but replycache.Waiter.Wait.
const (
	rankServer  lockorder.Rank = 1 + iota // Server: its listeners and connections
	rankGroup                             // Group: its connections
	rankLink                              // a client's or backchannel's succession of connections
	rankConn                              // conn.state
	rankSends                             // conn.sends
	rankAnswers                           // tcpConn.answers
)
