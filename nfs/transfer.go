package nfs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"sync"
	"sync/atomic"
)

// Constants for transfers.
const (
	defaultParallel = 8
	leastTransfer   = 4096 // bytes, for servers that announce less or zero
	transferWindow  = 4096 // WRITEs between two COMMITs
	leastBuffer     = 64 << 10
)

// TransferOptions configure Download and Upload. The zero value and a nil pointer mean the
// defaults.
type TransferOptions struct {
	// Parallel is the number of calls in flight, if the connection has the credits. Zero means
	// 8.
	Parallel int

	// Progress is called with the number of bytes transferred so far. It is called from
	// several goroutines, but never concurrently, and n increases. While it runs, its
	// goroutine makes no calls to the server.
	Progress func(n int64)

	// Offset is where the transfer begins, in bytes. What comes before it is neither read nor written. The number of
	// bytes transferred counts from there.
	Offset int64

	// Before, if not nil, holds the attributes of the file from before a Download. The Download fails with a
	// *ChangedError if they differ after the last byte has been read. See [Attr.SameVersion].
	Before *Attr
}

func (o *TransferOptions) offset() int64 {
	if o == nil {
		return 0
	}
	return o.Offset
}

func (o *TransferOptions) parallel() int {
	if o == nil || o.Parallel <= 0 {
		return defaultParallel
	}
	return o.Parallel
}

// limits holds the sizes of READs and WRITEs, in bytes.
type limits struct {
	read, write int
	dtpref      uint32
}

func newLimits(r *FSInfoRes, most int) *limits {
	return &limits{
		read:   transferSize(r.RTMax, r.RTPref, most),
		write:  transferSize(r.WTMax, r.WTPref, most),
		dtpref: r.DTPref,
	}
}

// transferSize returns the size that the server prefers, but not more than its maximum and most, in whole pages if
// possible.
func transferSize(limit, pref uint32, most int) int {
	size := pref
	if size == 0 || limit != 0 && size > limit {
		size = limit
	}
	n := min(int64(max(size, leastTransfer)), int64(most))
	if n > leastTransfer {
		n -= n % leastTransfer
	}
	return int(n)
}

// transferLimits calls FSINFO once and uses the result for all file systems of the server. Where the limits are lower,
// READ and WRITE are short, which transfers handle.
func (c *Client) transferLimits(ctx context.Context, fh FileHandle) (*limits, error) {
	if l := c.limits.Load(); l != nil {
		return l, nil
	}
	if _, err := c.FSInfo(ctx, fh); err != nil {
		return nil, err
	}
	return c.limits.Load(), nil
}

// parallel calls work for the pieces 0 to n-1, in order, from up to workers goroutines, and waits for all of them. It
// returns the first error, or that of ctx if ctx ended before all pieces had begun. After an error no further piece is
// begun, but those in progress are completed: canceling a call while the server transfers its data costs the
// connection.
func parallel(ctx context.Context, n int64, workers int, work func(i int64) error) error {
	if n == 1 {
		return work(0)
	}
	var (
		next   atomic.Int64
		failed atomic.Bool
		once   sync.Once
		first  error
		wg     sync.WaitGroup
	)
	fail := func(err error) {
		once.Do(func() { first = err })
		failed.Store(true)
	}
	for range min(int64(workers), n) {
		wg.Go(func() {
			for !failed.Load() {
				i := next.Add(1) - 1
				if i >= n {
					return
				}
				err := ctx.Err()
				if err == nil {
					err = work(i)
				}
				if err != nil {
					fail(err)
					return
				}
			}
		})
	}
	wg.Wait()
	return first
}

// pieces returns the number of pieces of size bytes in total bytes.
func pieces(total int64, size int) int64 { return (total-1)/int64(size) + 1 }

// buffer returns a buffer of size bytes from the pool; put returns it to the pool.
func (c *Client) buffer(size int) *[]byte {
	b := c.bufs.Get().(*[]byte)
	resize(b, size)
	return b
}

// resize makes b a buffer of size bytes with arbitrary contents. Files of all sizes are copied with the same buffers.
// Their capacity is a power of two, so that they do not grow by a little each time.
func resize(b *[]byte, size int) {
	if cap(*b) < size {
		*b = make([]byte, size, max(leastBuffer, 1<<bits.Len(uint(size-1))))
	}
	*b = (*b)[:size]
}

// progress counts the bytes transferred by all workers.
type progress struct {
	mu sync.Mutex
	n  int64
	f  func(int64)
}

func (o *TransferOptions) progress() *progress {
	p := new(progress)
	if o != nil {
		p.f = o.Progress
	}
	return p
}

func (p *progress) add(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.n += int64(n)
	if p.f != nil && n > 0 {
		p.f(p.n)
	}
}

// readFull reads len(p) bytes at off, in several READs if they are short. At the end of the file it returns the bytes
// before it and io.EOF. after holds the attributes from the last READ.
func (c *Client) readFull(ctx context.Context, fh FileHandle, p []byte, off int64) (done int, after PostOpAttr, err error) {
	for done < len(p) {
		n, eof, attr, err := c.read(ctx, fh, uint64(off)+uint64(done), p[done:])
		done += n
		after = attr
		switch {
		case err != nil:
			return done, after, err
		case done == len(p):
		case eof:
			return done, after, io.EOF
		case n == 0:
			return done, after, fmt.Errorf("nfs: READ of %d bytes at %d: %w", len(p)-done, off+int64(done), io.ErrNoProgress)
		}
	}
	return done, after, nil
}

// ReadAt reads len(p) bytes at offset off, in bytes, directly into p, with several calls in flight if p is long. If it
// reads fewer bytes, the error says why; at the end of the file it is io.EOF. p belongs to the call until it returns.
func (c *Client) ReadAt(ctx context.Context, fh FileHandle, p []byte, off int64) (int, error) {
	if off < 0 {
		return 0, errNegative
	}
	if len(p) == 0 {
		return 0, nil
	}
	lim, err := c.transferLimits(ctx, fh)
	if err != nil {
		return 0, err
	}
	// The result counts the bytes before the first gap.
	var mu sync.Mutex
	end := int64(len(p))
	var endErr error
	short := func(at int64, err error) {
		mu.Lock()
		defer mu.Unlock()
		if at < end {
			end, endErr = at, err
		}
	}
	err = parallel(ctx, pieces(int64(len(p)), lim.read), defaultParallel, func(i int64) error {
		from := i * int64(lim.read)
		n, _, err := c.readFull(ctx, fh, p[from:min(from+int64(lim.read), int64(len(p)))], off+from)
		if err == nil {
			return nil
		}
		short(from+int64(n), err)
		if err == io.EOF {
			return nil // earlier pieces are still in progress
		}
		return err
	})
	switch {
	case endErr == io.EOF:
		// Pieces begin in order, so everything before the end was requested, and none of it failed.
		return int(end), io.EOF
	case err != nil && endErr == nil:
		return 0, err // ctx ended before a piece began
	case err != nil:
		return int(end), endErr
	}
	return len(p), nil
}

// Download copies the first size bytes of a file to w, with several calls in flight, and returns the number of bytes
// written. w must support parallel calls for different offsets, as *os.File does. If the file is shorter than size, the
// error is io.ErrUnexpectedEOF. After an error w may hold any part of the file.
func (c *Client) Download(ctx context.Context, fh FileHandle, size int64, w io.WriterAt, opts *TransferOptions) (int64, error) {
	first := opts.offset()
	if size < 0 || first < 0 {
		return 0, errNegative
	}
	var last PostOpAttr // from a READ that returned everything
	if size <= first {
		return 0, c.unchanged(ctx, fh, last, opts)
	}
	lim, err := c.transferLimits(ctx, fh)
	if err != nil {
		return 0, err
	}
	done := opts.progress()
	total := pieces(size-first, lim.read)
	err = parallel(ctx, total, opts.parallel(), func(i int64) error {
		off := first + i*int64(lim.read)
		want := int(min(int64(lim.read), size-off))
		buf := c.buffer(want)
		defer c.bufs.Put(buf)
		n, after, err := c.readFull(ctx, fh, *buf, off)
		if err == io.EOF {
			err = fmt.Errorf("nfs: file ends at %d, expected %d bytes: %w", off+int64(n), size, io.ErrUnexpectedEOF)
		}
		if err != nil {
			return err
		}
		if total == 1 {
			last = after
		}
		n, err = w.WriteAt(*buf, off)
		done.add(n)
		return err
	})
	if err == nil {
		err = c.unchanged(ctx, fh, last, opts)
	}
	return done.n, err
}

// unchanged checks the attributes of a file after a Download. They are last if the server has sent them.
func (c *Client) unchanged(ctx context.Context, fh FileHandle, last PostOpAttr, opts *TransferOptions) error {
	if opts == nil || opts.Before == nil {
		return nil
	}
	if !last.Present {
		var err error
		if last.Attr, err = c.GetAttr(ctx, fh); err != nil {
			return err
		}
	}
	if !opts.Before.SameVersion(&last.Attr) {
		return &ChangedError{Before: *opts.Before, After: last.Attr}
	}
	return nil
}

// writeFull writes all of p at off, in several WRITEs if they are short, and returns the state
// of the data.
func (c *Client) writeFull(ctx context.Context, fh FileHandle, p []byte, off int64, stable Stable) (state piece, err error) {
	first := true
	for done := 0; done < len(p); {
		res, err := c.Write(ctx, fh, uint64(off)+uint64(done), p[done:], stable)
		if err != nil {
			return piece{}, err
		}
		if res.Count == 0 {
			return piece{}, fmt.Errorf("nfs: WRITE of %d bytes at %d: %w", len(p)-done, off+int64(done), io.ErrShortWrite)
		}
		done += int(res.Count)
		switch {
		case res.Committed == FileSync || res.Committed == DataSync:
			if first {
				state = piece{state: pieceStable}
			}
		case first || state.state == pieceStable:
			state = piece{state: pieceWritten, verf: res.Verf}
		case state.verf != res.Verf:
			state.mixed = true
		}
		first = false
	}
	return state, nil
}

// piece is the state of one part of a file being written.
type piece struct {
	state pieceState
	mixed bool // its WRITEs returned different verifiers
	verf  Verf // pieceWritten
}

type pieceState uint8

const (
	piecePending pieceState = iota
	pieceWritten            // in the server's memory, with verf
	pieceStable             // on stable storage
)

// source returns n bytes at off of the data to write. It may read them into buf.
type source func(buf *[]byte, off int64, n int) ([]byte, error)

// writeAll writes size bytes from src at off: Unstable, in windows that each end with a COMMIT. Data with a verifier
// other than the COMMIT's is written again, the second time with FileSync, because the server may keep losing data. If
// a COMMIT fails, it is unknown which WRITE failed: the whole window is then written again with FileSync, so that each
// WRITE reports its own error. RFC 1813 sections 3.3.7 and 3.3.21.
func (c *Client) writeAll(ctx context.Context, fh FileHandle, off, size int64, src source, opts *TransferOptions) (int64, error) {
	if off < 0 || size < 0 {
		return 0, errNegative
	}
	if size == 0 {
		return 0, nil
	}
	lim, err := c.transferLimits(ctx, fh)
	if err != nil {
		return 0, err
	}
	done := opts.progress()
	total := pieces(size, lim.write)
	stable := Unstable
	if total == 1 {
		stable = FileSync // one round trip instead of two
	}
	window := make([]piece, min(total, transferWindow))
	for first := int64(0); first < total; first += int64(len(window)) {
		window = window[:min(int64(len(window)), total-first)]
		clear(window)
		stable := stable
		for try := 0; ; try++ { // three times at most, because FileSync leaves nothing to lose
			err := parallel(ctx, int64(len(window)), opts.parallel(), func(i int64) error {
				p := &window[i]
				if p.state != piecePending {
					return nil
				}
				at := (first + i) * int64(lim.write)
				n := int(min(int64(lim.write), size-at))
				buf := c.bufs.Get().(*[]byte)
				defer c.bufs.Put(buf)
				data, err := src(buf, at, n)
				if err != nil {
					return err
				}
				if *p, err = c.writeFull(ctx, fh, data, off+at, stable); err == nil && try == 0 {
					done.add(n)
				}
				return err
			})
			if err != nil {
				return done.n, err
			}
			lost, failed, err := c.commitWindow(ctx, fh, window)
			if err != nil {
				return done.n, err
			}
			if failed || try > 0 {
				stable = FileSync
			}
			if !lost {
				break
			}
		}
	}
	return done.n, nil
}

// commitWindow sends a COMMIT and marks the pieces that the server has lost as pending. failed is set if the server
// refused the COMMIT.
func (c *Client) commitWindow(ctx context.Context, fh FileHandle, window []piece) (lost, failed bool, err error) {
	needed := false
	for i := range window {
		needed = needed || window[i].state == pieceWritten
	}
	if !needed {
		return false, false, nil
	}
	// Offset 0 and count 0 mean the whole file.
	verf, err := c.Commit(ctx, fh, 0, 0)
	var status *Error
	if errors.As(err, &status) {
		failed = true
	} else if err != nil {
		return false, false, err
	}
	for i := range window {
		p := &window[i]
		if p.state == pieceWritten && (failed || p.mixed || p.verf != verf) {
			*p = piece{}
			lost = true
		}
	}
	return lost, failed, nil
}

// WriteAt writes p at offset off, in bytes, directly from p, with several calls in flight if p is long, and returns
// when the data is on stable storage. p belongs to the call until it returns and must not change meanwhile. If not all
// of p is written, the error says why, and it is unknown which bytes were written.
func (c *Client) WriteAt(ctx context.Context, fh FileHandle, p []byte, off int64) (int, error) {
	n, err := c.writeAll(ctx, fh, off, int64(len(p)), func(_ *[]byte, at int64, n int) ([]byte, error) {
		return p[at:][:n], nil
	}, nil)
	return int(n), err
}

// Upload copies size bytes from r to the start of a file, with several calls in flight, and returns the number of bytes
// written when they are on stable storage. r must support parallel calls, as every io.ReaderAt does, and return the
// same bytes when read again: data that the server loses before COMMIT is read and written again. Upload does not
// truncate the file. If r is shorter than size, the error is io.ErrUnexpectedEOF. After an error the file may hold any
// part of r.
func (c *Client) Upload(ctx context.Context, fh FileHandle, r io.ReaderAt, size int64, opts *TransferOptions) (int64, error) {
	first := opts.offset()
	if size < 0 || first < 0 {
		return 0, errNegative
	}
	return c.writeAll(ctx, fh, first, max(0, size-first), func(buf *[]byte, at int64, n int) ([]byte, error) {
		resize(buf, n)
		b := *buf
		// A ReaderAt may return io.EOF with the last bytes.
		if got, err := r.ReadAt(b, first+at); got < n {
			return nil, fmt.Errorf("nfs: reading the data to write at %d: %w", first+at+int64(got), noEOF(err))
		}
		return b, nil
	}, opts)
}

var errNegative = errors.New("nfs: negative offset or size")

// ReadAt is Client.ReadAt for the file.
func (f *File) ReadAt(ctx context.Context, p []byte, off int64) (int, error) {
	n, err := f.c.ReadAt(ctx, f.Handle, p, off)
	return n, withPath(err, f.Path)
}

// WriteAt is Client.WriteAt for the file.
func (f *File) WriteAt(ctx context.Context, p []byte, off int64) (int, error) {
	n, err := f.c.WriteAt(ctx, f.Handle, p, off)
	return n, withPath(err, f.Path)
}

// Download is Client.Download of as many bytes as the file had when it was opened.
func (f *File) Download(ctx context.Context, w io.WriterAt, opts *TransferOptions) (int64, error) {
	if f.Attr.Size > maxFileSize {
		return 0, &Error{Op: "READ", Path: f.Path, Status: StatusFBig}
	}
	n, err := f.c.Download(ctx, f.Handle, int64(f.Attr.Size), w, opts)
	return n, withPath(err, f.Path)
}

// Upload is Client.Upload to the file.
func (f *File) Upload(ctx context.Context, r io.ReaderAt, size int64, opts *TransferOptions) (int64, error) {
	n, err := f.c.Upload(ctx, f.Handle, r, size, opts)
	return n, withPath(err, f.Path)
}

// maxFileSize is the size of the largest file with offsets that all fit an int64.
const maxFileSize = 1<<63 - 1
