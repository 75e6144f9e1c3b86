// Package llp defines what the engine of package iwarp needs from the lower layer protocol (RFC 5041 section 1.1) of a
// connection: TCP, or shared memory.
package llp

import (
	"context"
	"net"
	"time"
)

// A Stream carries the bytes of a connection in order, in both directions. Only one goroutine at a time calls Ready,
// Readv and ArmRead, and only one at a time Writev, ArmWrite, CloseWrite and Abort. None is called after Close.
type Stream interface {
	// Readv reads into v without blocking, and Writev writes as much as there is room for. EAGAIN means that nothing
	// could be moved. Readv returns 0 at the end of the stream.
	Readv(v []Iovec) (int, error)
	Writev(v []Iovec) (int, error)

	// Ready reports whether Readv would return something. It costs one load.
	Ready() bool

	// ArmRead and ArmWrite announce that a goroutine will park in Parker until Readv, or Writev, can proceed. They
	// return true if it already can.
	ArmRead() bool
	ArmWrite() bool

	// CloseWrite ends the stream in order. Abort ends it at once: the peer reads an error.
	CloseWrite()
	Abort()

	// Parker returns the place where goroutines park. It wakes a parked goroutine whenever there is a reason to look
	// again. The owner of the stream closes the Parker before it calls Close.
	Parker() Parker
	Close()
}

// A Parker is where goroutines park: its methods are those of syscall.RawConn and os.File with the same names. One
// goroutine at a time parks in Read, and one in Write. Close ends both, and waits until they have returned. On a stream
// that has been set up, deadlines are only times in the past or zero.
type Parker interface {
	Read(step func(fd uintptr) (done bool)) error
	Write(step func(fd uintptr) (done bool)) error
	SetDeadline(t time.Time) error
	SetReadDeadline(t time.Time) error
	SetWriteDeadline(t time.Time) error
	Close() error
}

// A Sharer is a Stream between two ends that have each mapped memory of the other for reading. Bulk data bypasses the
// stream, which only carries its location. The writer calls Lend and uses its result; the reader calls Lent and Placed.
// Any goroutine may call the other methods.
type Sharer interface {
	Stream

	// Alloc returns n bytes that the peer has mapped, with undefined content. Free returns them, also after Close.
	Alloc(n int) ([]byte, error)
	Free(b []byte)

	// Lend returns the location at which the peer finds b, which must be part of one piece from Alloc. Loans are
	// counted: each time Lend has returned true, the stream must carry that location once, in the same order.
	Lend(b []byte) (at uint64, ok bool)
	// Lends returns how often Lend has returned true. The caller owns the memory of the nth loan again when Returned is
	// n, or after Abort has ended the stream.
	Lends() uint64
	Returned() uint64

	// Lent returns memory of the peer, nil if nothing is mapped there. Placed reports that the data of one more loan
	// has been copied from there. It returns false if the loan had already ended.
	Lent(at, n uint64) []byte
	Placed() bool
}

// A Setup makes the stream of one connection. The end that asks calls Connect, and the end that is asked calls Accept
// or Reject. At most one of them is called, once.
type Setup interface {
	// Connect sends the offer and waits for the answer. It returns no stream if the answer is a rejection.
	Connect(ctx context.Context, o Offer) (Stream, Offer, error)
	Accept(ctx context.Context, o Offer) (Stream, error)
	Reject(privateData []byte) error

	// Addrs returns the addresses of the two ends, once there is a stream.
	Addrs() (local, remote net.Addr)

	// Close releases everything that no stream owns. It may be called more than once.
	Close()
}

// An Offer is what one end sends the other at connection setup.
type Offer struct {
	IRD, ORD    int // as in fabric.ConnAttr; in an answer, the granted values
	PrivateData []byte
}
