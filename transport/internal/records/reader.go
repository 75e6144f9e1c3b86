// Package records reads and writes RPC messages on a byte stream: the record marking of RFC 5531 section 11. A [Reader]
// belongs to the goroutine that reads a connection; many goroutines share a [Writer].
//
// # The life of a record that is sent
//
// A record is idle, then queued, then being written, then idle again. A withdrawn record is idle sooner.
//
// A short record is copied into a buffer, which is part of the next write; it is idle again at once. The parts of a
// long record are written in place: they must not change until the record is idle again. The first goroutine to call
// [Writer.Flush] writes for all, with one system call for all records queued meanwhile. No goroutine waits for a peer
// that does not read: a separate goroutine writes data that is not taken within a few milliseconds.
package records

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
)

// BufferSize is the length of a Reader's buffer in bytes. Short records share it.
const BufferSize = 16 << 10

// A SizeError means that the peer has announced a record that is too long.
type SizeError struct {
	Size, Limit int // bytes; Size is the part announced so far
}

func (e *SizeError) Error() string {
	return fmt.Sprintf("a record has more than %d bytes", e.Limit)
}

// ErrEmptyFragment means that a fragment is empty and not the last of its record: a peer could send these forever.
var ErrEmptyFragment = errors.New("an empty fragment that is not the last of its record")

// A Reader reads records. Only one goroutine may use it.
type Reader struct {
	src  source
	buf  *bufio.Reader
	max  int // longest record
	size int // of the current record, as far as announced
	left int // of the current fragment
	last bool
	held int // bytes of the buffer that Whole has returned
}

// leastRate is the number of bytes of a record that a peer has to send in each stall time after the first.
const leastRate = 4 << 20

// NewReader returns a Reader of records of at most max bytes. A peer may take stall for a record, and another stall for
// each 4 MiB of it that it has sent. After that reading fails with an error that matches os.ErrDeadlineExceeded. If
// stall is zero or less, there is no time limit. Between records the Reader waits forever.
func NewReader(c net.Conn, max int, stall time.Duration) *Reader {
	r := &Reader{max: max}
	r.src.conn, r.src.stall = c, stall
	r.buf = bufio.NewReaderSize(&r.src, BufferSize)
	return r
}

// Ready reports whether the whole next record is in the buffer, so that reading it does not block.
func (r *Reader) Ready() bool {
	n := r.buf.Buffered() - r.held
	if n < oncrpc.RecordMarkSize || r.left > r.held {
		return false
	}
	b, _ := r.buf.Peek(r.held + oncrpc.RecordMarkSize)
	size, last, _ := oncrpc.ConsumeRecordMark(b[r.held:])
	return last && int64(size) <= int64(n-oncrpc.RecordMarkSize)
}

// Next waits for the next record. The current one must have been read to its end, or be Whole. For all methods, io.EOF
// is the end of the stream between two records, and io.ErrUnexpectedEOF its end within one.
func (r *Reader) Next() error {
	if r.held > 0 {
		_, _ = r.buf.Discard(r.held)
		r.held, r.left = 0, 0
	}
	r.size, r.last = 0, false
	r.src.within, r.src.begun = false, time.Time{}
	return r.mark(false)
}

// mark reads the mark of a fragment. within reports that it is not the first of its record.
func (r *Reader) mark(within bool) error {
	for n := r.buf.Buffered(); n < oncrpc.RecordMarkSize; n = r.buf.Buffered() {
		r.src.within = within || n > 0
		if _, err := r.buf.Peek(n + 1); err != nil {
			return cutShort(err, r.src.within)
		}
	}
	r.src.within = true
	b, _ := r.buf.Peek(oncrpc.RecordMarkSize)
	size, last, _ := oncrpc.ConsumeRecordMark(b)
	_, _ = r.buf.Discard(oncrpc.RecordMarkSize)
	switch {
	case size == 0 && !last:
		return ErrEmptyFragment
	case int64(size) > int64(r.max-r.size):
		return &SizeError{Size: int(min(int64(size)+int64(r.size), 1<<31-1)), Limit: r.max}
	}
	r.left, r.last = int(size), last
	r.size += r.left
	return nil
}

func cutShort(err error, within bool) error {
	if err == io.EOF && within {
		return io.ErrUnexpectedEOF
	}
	return err
}

// Whole returns the record that Next has found, if it has only one fragment, is Short, and has not been read from. The
// Reader owns the memory, which is valid until Next.
func (r *Reader) Whole() (msg []byte, ok bool, err error) {
	if !r.last || r.size > Short || r.left != r.size {
		return nil, false, nil
	}
	if msg, err = r.buf.Peek(r.left); err != nil {
		return nil, false, cutShort(err, true)
	}
	r.held = r.left
	return msg, true, nil
}

// Buffer waits until n bytes of the current fragment, or the rest of it, are in the buffer, which has room for
// [BufferSize]. They can then be read as usual.
func (r *Reader) Buffer(n int) error {
	_, err := r.buf.Peek(min(n, r.left, BufferSize))
	return cutShort(err, true)
}

// Waited notifies the Reader that its owner has not read for d, so that the peer has that much longer for the current
// record.
func (r *Reader) Waited(d time.Duration) {
	if s := &r.src; !s.begun.IsZero() {
		s.begun = s.begun.Add(d)
	}
}

// Rest returns how many bytes are left of the current fragment, or of the next one if it is at its end, and whether
// that is the last. n is zero only at the end of the record.
func (r *Reader) Rest() (n int, last bool, err error) {
	for r.left == 0 && !r.last {
		if err := r.mark(true); err != nil {
			return 0, false, err
		}
	}
	return r.left, r.last, nil
}

// Read reads from the current record, across its fragments. io.EOF is its end.
func (r *Reader) Read(b []byte) (int, error) {
	left, _, err := r.Rest()
	switch {
	case err != nil:
		return 0, err
	case left == 0:
		return 0, io.EOF
	}
	n, err := r.buf.Read(b[:min(len(b), left)])
	r.left -= n
	return n, cutShort(err, true)
}

// Skip drops the rest of the current record.
func (r *Reader) Skip() error {
	for {
		n, last, err := r.Rest()
		if err != nil {
			return err
		}
		k, err := r.buf.Discard(n)
		if r.left -= k; err != nil {
			return cutShort(err, true)
		}
		if last {
			return nil
		}
	}
}

// A source fills a Reader's buffer from the connection, with a time limit while a record is being received.
type source struct {
	conn   net.Conn
	stall  time.Duration
	within bool // inside a record
	armed  bool // there is a time limit
	begun  time.Time
	got    int64 // bytes since begun
}

func (s *source) Read(b []byte) (int, error) {
	switch {
	case s.within && s.stall > 0:
		if s.begun.IsZero() {
			s.begun, s.got = time.Now(), 0
		}
		_ = s.conn.SetReadDeadline(s.begun.Add(s.stall + s.earned()))
		s.armed = true
	case s.armed:
		_ = s.conn.SetReadDeadline(time.Time{})
		s.armed = false
	}
	n, err := s.conn.Read(b)
	s.got += int64(n)
	return n, err
}

// earned returns how much longer than stall the peer may take, for the bytes it has sent.
func (s *source) earned() time.Duration {
	return time.Duration(float64(s.got) / leastRate * float64(s.stall))
}
