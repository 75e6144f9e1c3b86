// Package pieces transfers an object that is longer than a message as a stream: one call for each piece, several calls
// at a time. A [Reader] reads ahead, and a [Writer] writes without waiting, up to its window.
//
// The interface needs no streaming for this, only a procedure that reads or writes a range of an object, preferably an
// idempotent one. The client resends calls that lost their connection, so a stream continues after a restart of the
// server. Data is placed as in any other call, directly from or into the pieces' buffers.
package pieces

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
)

// Options configure a Reader or Writer. The zero value selects the defaults.
type Options struct {
	// Size is the length of a piece in bytes. Zero is 1 MiB. A piece must fit in a call.
	Size int

	// Window is the maximum number of pieces in memory, each with a call in flight or with data not consumed yet. Zero
	// is 8.
	Window int

	// Offset is where in the object to begin, in bytes.
	Offset int64
}

// Defaults of Options.
const (
	DefaultSize   = 1 << 20
	DefaultWindow = 8
)

// A window is the common part of a Reader and a Writer.
type window struct {
	ctx    context.Context // of the calls
	cancel context.CancelCauseFunc
	slots  []slot
	size   int
	off    int64 // of the next piece
	calls  sync.WaitGroup
}

// A slot holds one piece at a time.
type slot struct {
	buf  []byte
	busy bool        // a call is in flight, or its result has not been received
	done chan result // has capacity one
}

type result struct {
	n   int
	err error
}

func (w *window) init(ctx context.Context, o Options) {
	w.size, w.off = o.Size, o.Offset
	if w.size == 0 {
		w.size = DefaultSize
	}
	if o.Window == 0 {
		o.Window = DefaultWindow
	}
	if w.size < 0 || o.Window < 0 || w.off < 0 {
		panic(fmt.Sprintf("pieces: Size %d, Window %d, Offset %d: want none below zero", o.Size, o.Window, o.Offset))
	}
	w.ctx, w.cancel = context.WithCancelCause(ctx)
	w.slots = make([]slot, o.Window)
}

// memory returns the buffer of a slot. It is allocated when the slot is first used.
func (w *window) memory(s *slot) []byte {
	if s.buf == nil {
		s.buf, s.done = make([]byte, w.size), make(chan result, 1)
	}
	return s.buf
}

// start calls f for the next piece, of n bytes, on a new goroutine.
func (w *window) start(s *slot, n int, f func(ctx context.Context, p []byte, off int64) (int, error)) {
	p, off := w.memory(s)[:n], w.off
	w.off += int64(n)
	s.busy = true
	w.calls.Go(func() {
		n, err := f(w.ctx, p, off)
		s.done <- result{n, err}
	})
}

// wait returns the result of the call in flight.
func (s *slot) wait() result {
	s.busy = false
	return <-s.done
}

// end cancels the calls in flight, and waits until they use no memory.
func (w *window) end(cause error) {
	w.cancel(cause)
	w.calls.Wait()
}

// ---- reading

// A Reader reads an object as a stream. One goroutine at a time may use it. It must be closed.
type Reader struct {
	window
	read  ReadFunc
	next  int    // slot of the oldest piece that has not been consumed
	ahead int    // slots in use from there on; the data of the first is in left
	left  []byte // of the oldest piece
	err   error  // after left: io.EOF, or why reading stopped
}

// A ReadFunc reads a piece of an object at off into p, with a call, and returns the number of bytes read. If that is
// fewer than len(p), it is called again; 0 or io.EOF is the end of the object. p belongs to the Reader: the ReadFunc
// may use it until it returns. Several goroutines call it at once.
type ReadFunc func(ctx context.Context, p []byte, off int64) (int, error)

// NewReader returns a Reader of the object that read reads. The first Read reads the first piece. If there are more,
// they are read ahead from then on. The calls end with ctx.
func NewReader(ctx context.Context, read ReadFunc, o Options) *Reader {
	r := &Reader{read: read}
	r.init(ctx, o)
	return r
}

// Read reads from the next piece. It returns io.EOF at the end of the object, the first error of a call in the order of
// the object, and io.ErrClosedPipe after Close.
func (r *Reader) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	if !r.fill() {
		return 0, r.err
	}
	n := copy(p, r.left)
	r.left = r.left[n:]
	return n, nil
}

// WriteTo writes the rest of the object to w, directly from the pieces' memory.
func (r *Reader) WriteTo(w io.Writer) (n int64, err error) {
	for r.fill() {
		k, err := w.Write(r.left)
		r.left = r.left[k:]
		n += int64(k)
		if err != nil {
			return n, err
		}
	}
	if r.err == io.EOF {
		return n, nil
	}
	return n, r.err
}

// Close cancels the calls in flight, and returns when no call uses memory of the Reader.
func (r *Reader) Close() error {
	if r.err == nil {
		r.err = io.ErrClosedPipe
	}
	r.left = nil
	r.end(io.ErrClosedPipe)
	return nil
}

// fill waits until there is data in left. It returns false at the end, which is in err.
func (r *Reader) fill() bool {
	for len(r.left) == 0 {
		if r.err != nil {
			return false
		}
		if r.ahead > 0 { // the oldest piece has been consumed
			r.startRead(r.next)
			r.next = (r.next + 1) % len(r.slots)
		} else {
			r.startRead(r.next)
			r.ahead = 1
		}
		s := &r.slots[r.next]
		got := s.wait()
		r.left, r.err = s.buf[:got.n], got.err
		if r.err != nil {
			r.cancel(r.err) // no later piece matters
			continue
		}
		for ; r.ahead < len(r.slots); r.ahead++ {
			r.startRead((r.next + r.ahead) % len(r.slots))
		}
	}
	return true
}

// startRead starts to read the next piece, into slot i.
func (r *Reader) startRead(i int) { r.start(&r.slots[i], r.size, r.readFull) }

// readFull reads a piece. If the piece is incomplete, it returns an error: io.EOF at the end of the object.
func (r *Reader) readFull(ctx context.Context, p []byte, off int64) (n int, err error) {
	for n < len(p) && err == nil {
		var k int
		k, err = r.read(ctx, p[n:], off+int64(n))
		if k < 0 || k > len(p)-n {
			panic(fmt.Sprintf("pieces: a ReadFunc returned %d bytes, and had room for %d", k, len(p)-n))
		}
		if k == 0 && err == nil {
			err = io.EOF
		}
		n += k
	}
	if n == len(p) && err == io.EOF {
		err = nil // the next piece sees it again
	}
	return n, err
}

// ---- writing

// A Writer writes an object as a stream. One goroutine at a time may use it. The object is complete when Close has
// returned nil.
type Writer struct {
	window
	write  WriteFunc
	next   int // slot of the piece that is being filled
	filled int // bytes in it
	err    error
}

// A WriteFunc writes the piece p of an object at off, with a call. p belongs to the Writer: the WriteFunc may use it
// until it returns. Several goroutines call it at once, for pieces in any order.
type WriteFunc func(ctx context.Context, p []byte, off int64) error

// NewWriter returns a Writer of the object that write writes. The calls end with ctx.
func NewWriter(ctx context.Context, write WriteFunc, o Options) *Writer {
	w := &Writer{write: write}
	w.init(ctx, o)
	return w
}

// Write copies p into pieces, and starts a call for each full one. It blocks while the window is full. The error is
// that of a call, usually started by an earlier Write; after an error the object is incomplete.
func (w *Writer) Write(p []byte) (n int, err error) {
	for len(p) > 0 {
		room, err := w.room()
		if err != nil {
			return n, err
		}
		k := copy(room, p)
		w.filled += k
		n, p = n+k, p[k:]
	}
	return n, nil
}

// ReadFrom reads from r until EOF, directly into the pieces' memory, and writes the data. An error of r is returned,
// and the calls continue.
func (w *Writer) ReadFrom(r io.Reader) (n int64, err error) {
	for {
		room, err := w.room()
		if err != nil {
			return n, err
		}
		k, err := r.Read(room)
		w.filled += k
		n += int64(k)
		if err == io.EOF {
			return n, nil
		}
		if err != nil {
			return n, err
		}
	}
}

// Close writes the last piece, and returns when all calls have ended: the first error, or nil if the object is
// complete. To abandon an object, cancel ctx before Close.
func (w *Writer) Close() error {
	if w.err == nil && w.filled > 0 {
		w.startWrite()
	}
	for i := range w.slots {
		w.wait(&w.slots[i])
	}
	err := w.err
	w.end(io.ErrClosedPipe)
	if err == nil {
		w.err = io.ErrClosedPipe
	} else if errors.Is(err, io.ErrClosedPipe) {
		return nil // already closed
	}
	return err
}

// room returns the place for the next bytes. If the piece is full, it starts its call and waits for the next slot.
func (w *Writer) room() ([]byte, error) {
	if w.err == nil && w.filled == w.size {
		w.startWrite()
	}
	if w.filled == 0 {
		w.wait(&w.slots[w.next])
	}
	if w.err != nil {
		return nil, w.err
	}
	return w.memory(&w.slots[w.next])[w.filled:], nil
}

// startWrite starts the call for the piece being filled.
func (w *Writer) startWrite() {
	w.start(&w.slots[w.next], w.filled, func(ctx context.Context, p []byte, off int64) (int, error) {
		err := w.write(ctx, p, off)
		if err != nil {
			w.cancel(err) // the object is incomplete from now on
		}
		return 0, err
	})
	w.next, w.filled = (w.next+1)%len(w.slots), 0
}

// wait waits until no call uses the slot.
func (w *Writer) wait(s *slot) {
	if s.busy && s.wait().err != nil && w.err == nil {
		w.err = context.Cause(w.ctx) // the first error of all
	}
}
