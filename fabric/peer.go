package fabric

import "crypto/tls"

// A Process is a process on this machine, as the kernel describes it (SO_PEERCRED in unix(7)): as it was when it
// connected, or began to listen.
type Process struct {
	PID      int // 0: in another PID namespace
	UID, GID uint32
}

// ProcessAddr is implemented by the addresses of processes on this machine.
type ProcessAddr interface {
	// Process returns the process that the kernel vouches for; ok is false if it vouches for no process.
	Process() (p Process, ok bool)
}

// Private is implemented by Providers that may have private connections.
type Private interface {
	// Private reports whether all connections are encrypted or do not leave the machine.
	Private() bool
}

// Encrypted is implemented by Conns that may be encrypted.
type Encrypted interface {
	// TLS returns the TLS state of the connection, or nil without TLS. It is final once the connection is established,
	// and must not be modified.
	TLS() *tls.ConnectionState
}
