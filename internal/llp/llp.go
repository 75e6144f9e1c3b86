// Package llp is what the engine of package iwarp needs from the lower layer protocol (RFC 5041 section
// 1.1) that carries a connection: TCP, or shared memory.
package llp

import (
	"context"
	"net"
	"time"
)

// A Stream carries the bytes of a connection in order, both ways. Ready, Readv and ArmRead are called by
// one goroutine at a time, Writev, ArmWrite, CloseWrite and Abort by one at a time, and none after Close.
type Stream interface {
	// Readv reads into v without waiting, and Writev writes what there is room for. An EAGAIN says
	// that nothing could be moved. Readv returns 0 at the end of the stream.
	Readv(v []Iovec) (int, error)
	Writev(v []Iovec) (int, error)

	// Ready reports, at the cost of a load, whether Readv would return something.
	Ready() bool

	// ArmRead and ArmWrite announce that a goroutine parks in Parker until Readv, or Writev, can go on.
	// They return true if it can already.
	ArmRead() bool
	ArmWrite() bool

	// CloseWrite ends the stream in order. Abort ends it at once: the peer reads an error.
	CloseWrite()
	Abort()

	// Parker calls a goroutine that parks there whenever there is reason to look again. The owner of the
	// stream closes it, before Close.
	Parker() Parker
	Close()
}

// A Parker is where goroutines park, as in the methods of syscall.RawConn and os.File with these names. One
// goroutine at a time parks in Read, and one in Write. Close ends both, and waits for that. Deadlines of a
// stream that is set up are times that have passed, or zero.
type Parker interface {
	Read(step func(fd uintptr) (done bool)) error
	Write(step func(fd uintptr) (done bool)) error
	SetDeadline(t time.Time) error
	SetReadDeadline(t time.Time) error
	SetWriteDeadline(t time.Time) error
	Close() error
}

// A Sharer is a Stream between two ends of which each has mapped memory of the other, to read: bulk data
// goes past the stream, which names where it is. Lend and the use of what it returns are the writer's,
// Lent and Placed the reader's; the others may be called by any goroutine.
type Sharer interface {
	Stream

	// Alloc returns n bytes that the peer has mapped, with undefined content. Free gives them back, also
	// after Close.
	Alloc(n int) ([]byte, error)
	Free(b []byte)

	// Lend returns where the peer finds b, which must be part of one piece of Alloc. It counts: each time
	// it has returned true, the stream is to name that place, once, in the same order.
	Lend(b []byte) (at uint64, ok bool)
	// Lends is how often Lend has returned true. The memory of the nth loan is the caller's again once
	// Returned is n, or the stream has ended by Abort.
	Lends() uint64
	Returned() uint64

	// Lent returns memory of the peer, nil if it has mapped nothing there. Placed reports that the data of
	// one more loan has been taken from there. It returns false if the loan had ended before that.
	Lent(at, n uint64) []byte
	Placed() bool
}

// A Setup makes the stream of one connection. Connect is for the end that asks, Accept and Reject for
// the one that is asked, and one of them is called, once, or none.
type Setup interface {
	// Connect sends the offer and waits for the answer. It returns no stream if that is a rejection.
	Connect(ctx context.Context, o Offer) (Stream, Offer, error)
	Accept(ctx context.Context, o Offer) (Stream, error)
	Reject(privateData []byte) error

	// Addrs returns the addresses of the two ends, once there is a stream.
	Addrs() (local, remote net.Addr)

	// Close releases what no stream has taken over. It may be called twice.
	Close()
}

// An Offer is what one end tells the other at connection setup.
type Offer struct {
	IRD, ORD    int // as in fabric.ConnAttr; in an answer, what it grants
	PrivateData []byte
}
