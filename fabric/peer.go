package fabric

import "crypto/tls"

// A Process is a process of this machine, as the kernel describes it (SO_PEERCRED in unix(7)): which it
// was when it connected, or began to listen.
type Process struct {
	PID      int // 0: it is in another PID namespace
	UID, GID uint32
}

// A ProcessAddr is implemented by addresses of processes of this machine.
type ProcessAddr interface {
	// Process returns the process for which the kernel vouches; ok is false if it vouches for none.
	Process() (p Process, ok bool)
}

// Private is implemented by Providers that may keep connections out of reach of others.
type Private interface {
	// Private reports whether all connections are encrypted, or do not leave the machine.
	Private() bool
}

// Encrypted is implemented by Conns that may be encrypted.
type Encrypted interface {
	// TLS returns the state of the connection's TLS, nil without. It is final once the connection
	// is established, and must not be modified.
	TLS() *tls.ConnectionState
}
