package records

import (
	"bytes"
	"cmp"
	"errors"
	"io"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/rpc"
)

// A Parser assembles records from a byte stream.
type Parser struct {
	Max    int    // maximum bytes of a record
	mark   []byte // bytes of the record mark read so far
	left   int    // bytes of the fragment still to come
	last   bool   // it is the record's last
	record []byte
}

// Write accepts bytes of the stream and calls done with each complete record. done then owns the record.
func (p *Parser) Write(b []byte, done func([]byte) error) error {
	for len(b) > 0 {
		if p.left == 0 {
			n := min(oncrpc.RecordMarkSize-len(p.mark), len(b))
			p.mark = append(p.mark, b[:n]...)
			b = b[n:]
			if len(p.mark) < oncrpc.RecordMarkSize {
				return nil
			}
			length, last, _ := oncrpc.ConsumeRecordMark(p.mark)
			p.mark = p.mark[:0]
			if int64(length)+int64(len(p.record)) > int64(p.Max) {
				return &rpc.SizeError{What: "the record", Size: int(length) + len(p.record), Limit: p.Max}
			}
			p.left, p.last = int(length), last
			p.record = slices.Grow(p.record, p.left)
		}
		n := min(p.left, len(b))
		p.record = append(p.record, b[:n]...)
		p.left -= n
		b = b[n:]
		if p.left == 0 && p.last {
			r := p.record
			p.record, p.last = nil, false
			if err := done(r); err != nil {
				return err
			}
		}
	}
	return nil
}

// A Stream is the reading side of a net.Conn: records, the read deadline, and the error after the end. Records are
// pushed as they arrive, and read as bytes.
type Stream struct {
	mu       sync.Mutex
	records  []pushed // those from first on are still to be read
	first    int
	last     uint64 // the place of the latest record
	changed  chan struct{}
	deadline time.Time // for reading
	timer    *time.Timer
	err      error // set when closed
}

// A pushed record is the part of it that is still to be read.
type pushed struct {
	place      uint64 // ascends from record to record
	begun      bool   // some of it has been read
	head, rest []byte
}

// keep replaces the rest by a copy that the stream owns.
func (r *pushed) keep() { r.rest = bytes.Clone(r.rest) }

// NewStream returns a Stream with nothing to read.
func NewStream() *Stream { return &Stream{changed: make(chan struct{})} }

// notify wakes readers. mu is held.
func (s *Stream) notify() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// Push makes a record readable that begins with head, its mark, and ends with rest, which may be empty. The stream owns
// both until they have been read, or until Release or Drop is called for the place that Push returns.
func (s *Stream) Push(head, rest []byte) (place uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.first > 0 && len(s.records) == cap(s.records) {
		s.records, s.first = slices.Delete(s.records, 0, s.first), 0
	}
	s.last++
	s.records = append(s.records, pushed{place: s.last, head: head, rest: rest})
	s.notify()
	return s.last
}

// find returns the index of a record that has not been read completely. mu is held.
func (s *Stream) find(place uint64) (i int, ok bool) {
	i, ok = slices.BinarySearchFunc(s.records[s.first:], place, func(r pushed, place uint64) int {
		return cmp.Compare(r.place, place)
	})
	return s.first + i, ok
}

// Release gives the rest of a pushed record back to its owner: the unread part is copied.
func (s *Stream) Release(place uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i, ok := s.find(place); ok {
		s.records[i].keep()
	}
}

// Drop is Release for a record that no longer needs to be read. If reading has begun, it must continue.
func (s *Stream) Drop(place uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i, ok := s.find(place)
	switch {
	case !ok:
	case s.records[i].begun:
		s.records[i].keep()
	default:
		s.records = slices.Delete(s.records, i, i+1)
	}
}

// Fail ends the stream. err is what Read returns after all records have been read, or io.EOF if err means that the peer
// closed in order.
func (s *Stream) Fail(err error) {
	s.mu.Lock()
	if s.err == nil {
		s.err = err
		if s.timer != nil {
			s.timer.Stop()
		}
		s.notify()
	}
	s.mu.Unlock()
}

// Failed returns why the stream ended, nil before that.
func (s *Stream) Failed() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// Unread returns how many records have not been read completely, and how many bytes are left in them.
func (s *Stream) Unread() (records, bytes int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.records[s.first:] {
		bytes += len(r.head) + len(r.rest)
	}
	return len(s.records) - s.first, bytes
}

// Read implements net.Conn.
func (s *Stream) Read(b []byte) (int, error) {
	for {
		s.mu.Lock()
		if s.first < len(s.records) {
			n := s.take(b)
			s.mu.Unlock()
			return n, nil
		}
		if s.err != nil {
			defer s.mu.Unlock()
			return 0, endOfStream(s.err)
		}
		if !s.deadline.IsZero() && !time.Now().Before(s.deadline) {
			s.mu.Unlock()
			return 0, os.ErrDeadlineExceeded
		}
		changed := s.changed
		s.mu.Unlock()
		<-changed
	}
}

// take copies the available bytes to b. mu is held.
func (s *Stream) take(b []byte) (n int) {
	for n < len(b) && s.first < len(s.records) {
		r := &s.records[s.first]
		r.begun = true
		k := copy(b[n:], r.head)
		r.head = r.head[k:]
		n += k
		k = copy(b[n:], r.rest)
		r.rest = r.rest[k:]
		n += k
		if len(r.head)+len(r.rest) == 0 {
			*r = pushed{}
			s.first++
		}
	}
	if s.first == len(s.records) {
		s.records, s.first = s.records[:0], 0
	}
	return n
}

// endOfStream returns the error of Read after the end: as on TCP, io.EOF if the peer closed in order.
func endOfStream(err error) error {
	var ce *fabric.ConnError
	if errors.As(err, &ce) && ce.Remote && ce.Clean {
		return io.EOF
	}
	return err
}

// SetReadDeadline implements net.Conn.
func (s *Stream) SetReadDeadline(t time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return s.err
	}
	s.deadline = t
	if s.timer != nil {
		s.timer.Stop()
		s.timer = nil
	}
	if !t.IsZero() {
		s.timer = time.AfterFunc(time.Until(t), func() {
			s.mu.Lock()
			s.notify()
			s.mu.Unlock()
		})
	}
	s.notify()
	return nil
}

// SetWriteDeadline does nothing: writing never waits for the peer.
func (s *Stream) SetWriteDeadline(time.Time) error { return s.Failed() }

// SetDeadline is SetReadDeadline.
func (s *Stream) SetDeadline(t time.Time) error { return s.SetReadDeadline(t) }
