package lockorder

// The order of the module's locks. A goroutine takes them in this order, from the outermost to
// those of the adapters. A package that is below another may call back into it with a lock held
// where the order says so: the reply cache with Waiter.Wait.
const (
	Server     Rank = 1 + iota // transport: a Server's listeners and connections
	Group                      // transport: a Group's connections
	Link                       // transport: a client's or backchannel's succession of connections
	ReplyCache                 // transport/internal/replycache
	Conn                       // transport: a connection's state
	Sends                      // transport: a connection's send queue
	Answers                    // transport: the calls that a TCP connection executes
	Writer                     // transport/internal/records
	Budget                     // transport/internal/budget
	Regions                    // transport/internal/expose: a set of Regions
	Region                     // transport/internal/expose: one of them
	Arena                      // transport/internal/arena

	// The adapters, of which a connection has one.

	IwarpProvider // iwarp: listeners
	IwarpListener // iwarp: handshakes
	IwarpTx       // iwarp: what is sent
	IwarpRx       // iwarp: the receiving side
	IwarpTable    // iwarp: a connection's STags
	IwarpConn     // iwarp: its state

	RdmacmProvider // rdmacm: devices and listeners
	RdmacmListener // rdmacm: requests without an answer
	RdmacmDevice   // rdmacm: a device's shared completion queues
	RdmacmQueue    // rdmacm: completions
	RdmacmSend     // rdmacm: posted sends
	RdmacmRecv     // rdmacm: posted receives
	RdmacmMemory   // rdmacm: registered memory
	RdmacmConn     // rdmacm: a connection's state
	RdmacmChannel  // rdmacm: an event channel
	RdmacmID       // rdmacm: one of its IDs
)
