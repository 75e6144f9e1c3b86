package lockorder

// The order of the module's locks. A goroutine acquires them in this order, from the outermost to those of the
// adapters. A lower-level package may call back into a higher one with a lock held where the order permits it: the
// reply cache with Waiter.Wait.
const (
	Server     Rank = 1 + iota // transport: a Server's listeners and connections
	Group                      // transport: a Group's connections
	Link                       // transport: the successive connections of a client or backchannel
	ReplyCache                 // transport/internal/replycache
	Conn                       // transport: a connection's state
	Sends                      // transport: a connection's send queue
	Answers                    // transport: the calls executed for a TCP connection
	Writer                     // transport/internal/records
	Budget                     // transport/internal/budget
	Regions                    // transport/internal/expose: a set of Regions
	Region                     // transport/internal/expose: one Region
	Arena                      // transport/internal/arena

	// The adapters. A connection has only one of them.

	IwarpProvider // iwarp: listeners
	IwarpListener // iwarp: handshakes
	IwarpTx       // iwarp: sending side
	IwarpRx       // iwarp: receiving side
	IwarpTable    // iwarp: a connection's STags
	IwarpConn     // iwarp: a connection's state

	RdmacmProvider // rdmacm: devices and listeners
	RdmacmListener // rdmacm: unanswered requests
	RdmacmDevice   // rdmacm: a device's shared completion queues
	RdmacmQueue    // rdmacm: completions
	RdmacmSend     // rdmacm: posted sends
	RdmacmRecv     // rdmacm: posted receives
	RdmacmMemory   // rdmacm: registered memory
	RdmacmConn     // rdmacm: a connection's state
	RdmacmChannel  // rdmacm: an event channel
	RdmacmID       // rdmacm: an ID of an event channel
)
