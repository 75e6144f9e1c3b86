// Package pieces moves an object that is longer than a message as a stream: one call for each piece,
// several calls at a time. A [Reader] reads ahead, and a [Writer] writes on, as far as its window goes.
//
// The interface needs no stream for it, only a procedure that reads, or writes, so many bytes of an object at
// an offset; best it is idempotent. The client makes a call that has lost its connection again, so a stream goes
// on when a server has restarted. Data is placed as in any other call: the pieces' buffers are what the calls
// are given.
package pieces

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
)

// Options are what a Reader or Writer can choose. The zero value is the default.
type Options struct {
	// Size is the length of a piece in bytes. Zero is 1 MiB. Calls have to have room for it.
	Size int

	// Window is how many pieces there may be in memory, each with a call under way or with data that
	// has not been consumed. Zero is 8.
	Window int

	// Offset is where the object begins or goes on, in bytes.
	Offset int64
}

// Defaults of Options.
const (
	DefaultSize   = 1 << 20
	DefaultWindow = 8
)

// A window is what a Reader and a Writer have in common.
type window struct {
	ctx    context.Context // of the calls
	cancel context.CancelCauseFunc
	slots  []slot
	size   int
	off    int64 // of the next piece
	calls  sync.WaitGroup
}

// A slot has one piece after another.
type slot struct {
	buf  []byte
	busy bool        // a call is under way, or its result has not been received
	done chan result // has room for one
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

// memory returns the buffer of a slot, which is made when the slot is first used.
func (w *window) memory(s *slot) []byte {
	if s.buf == nil {
		s.buf, s.done = make([]byte, w.size), make(chan result, 1)
	}
	return s.buf
}

// start calls f, on a goroutine of its own, for the next piece, of n bytes.
func (w *window) start(s *slot, n int, f func(ctx context.Context, p []byte, off int64) (int, error)) {
	p, off := w.memory(s)[:n], w.off
	w.off += int64(n)
	s.busy = true
	w.calls.Go(func() {
		n, err := f(w.ctx, p, off)
		s.done <- result{n, err}
	})
}

// wait returns the result of the call that is under way.
func (s *slot) wait() result {
	s.busy = false
	return <-s.done
}

// end has the calls that are under way given up, and waits until they use no memory.
func (w *window) end(cause error) {
	w.cancel(cause)
	w.calls.Wait()
}

// ---- reading

// A Reader is an object as a stream. It is used by one goroutine at a time, and closed at the end.
type Reader struct {
	window
	read  ReadFunc
	next  int    // slot of the oldest piece that has not been consumed
	ahead int    // slots in use from there on; the first has its data in left
	left  []byte // of the oldest piece
	err   error  // after left: io.EOF, or why there is no more
}

// A ReadFunc reads the piece of an object at off into p, with a call, and returns how many bytes there are.
// For fewer than len(p) it is called again; none, or io.EOF, are the end of the object. p is the
// Reader's: it may be used until the ReadFunc returns. Several goroutines call it at once.
type ReadFunc func(ctx context.Context, p []byte, off int64) (int, error)

// NewReader returns a Reader of the object that read reads. The first piece is read with the first Read, and
// further ones ahead when that shows that there are some. The calls end with ctx.
func NewReader(ctx context.Context, read ReadFunc, o Options) *Reader {
	r := &Reader{read: read}
	r.init(ctx, o)
	return r
}

// Read reads what there is of the next piece. It returns io.EOF at the end of the object, the first error
// of a call in the order of the object, and io.ErrClosedPipe after Close.
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

// WriteTo writes the rest of the object to w, from the pieces' own memory.
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

// Close gives up the calls that are under way, and returns when no call uses memory of the Reader.
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
		if r.ahead > 0 { // the oldest piece is consumed
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

// readFull reads a piece. The error is not nil if it is less than whole: io.EOF at the end of the object.
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
		err = nil // the next piece meets it again
	}
	return n, err
}

// ---- writing

// A Writer is an object to be written, as a stream. It is used by one goroutine at a time. The object is whole
// when Close has returned nil.
type Writer struct {
	window
	write  WriteFunc
	next   int // slot of the piece that is being filled
	filled int // bytes in it
	err    error
}

// A WriteFunc writes the piece p of an object at off, with a call. p is the Writer's: it may be used until the
// WriteFunc returns. Several goroutines call it at once, for pieces in any order.
type WriteFunc func(ctx context.Context, p []byte, off int64) error

// NewWriter returns a Writer of the object that write writes. The calls end with ctx.
func NewWriter(ctx context.Context, write WriteFunc, o Options) *Writer {
	w := &Writer{write: write}
	w.init(ctx, o)
	return w
}

// Write copies p to pieces, and starts a call for each that is full. It waits when the window is. The error
// is that of a call, of an earlier Write most often; after it the object is not whole.
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

// ReadFrom writes what r has until its end, from the pieces' own memory. An error of r is returned, and the
// calls go on.
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

// Close writes the last piece, and returns when all calls have: with the first error, or nil if the object is
// whole. To give an object up, end ctx before.
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
		return nil // closed before
	}
	return err
}

// room returns where the next bytes go. It starts a call if the piece is full, and waits for the next slot.
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

// startWrite starts the call of the piece that was being filled.
func (w *Writer) startWrite() {
	w.start(&w.slots[w.next], w.filled, func(ctx context.Context, p []byte, off int64) (int, error) {
		err := w.write(ctx, p, off)
		if err != nil {
			w.cancel(err) // the object is not whole any more
		}
		return 0, err
	})
	w.next, w.filled = (w.next+1)%len(w.slots), 0
}

// wait waits until no call uses the slot.
func (w *Writer) wait(s *slot) {
	if s.busy && s.wait().err != nil && w.err == nil {
		w.err = context.Cause(w.ctx) // which is the first of all
	}
}
