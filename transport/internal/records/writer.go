package records

import (
	"errors"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/rpcrdma/rpcrdma/internal/lockorder"
)

const (
	// Short is the maximum length in bytes of a record that is copied, including its mark when it is written.
	Short = 4 << 10

	// tick is how long a goroutine with other work waits for the peer.
	tick = 5 * time.Millisecond

	// batchSize is the number of bytes written at once, unless a single record is longer: the memory of a long record
	// is released when its whole batch has been written.
	batchSize = 256 << 10

	// maxKept is the length of the longest buffer for short records that is kept.
	maxKept = 64 << 10

	// turns is the number of batches that a goroutine with other work writes.
	turns = 4

	// patience is how long Withdraw waits for a peer that takes nothing, on a connection with writes that cannot be
	// interrupted.
	patience = time.Second
)

// ErrStuck is why a Writer on a connection that is not Resumable fails: a record was withdrawn, and the peer takes
// nothing.
var ErrStuck = errors.New("peer is not reading, and a half-written record cannot be withdrawn")

// ErrStalled is why a Writer fails if its peer has taken nothing for Options.Stall.
var ErrStalled = errors.New("peer is not reading")

// A Record is a message to be sent. The Writer owns it while it is not idle.
type Record struct {
	// Parts are the record, its mark first. The Writer does not modify them.
	Parts [][]byte

	// Answer: the record counts in Options.Written.
	Answer bool

	// Owner, if not nil, is notified when the parts of a record that Write did not copy are its owner's again: it has
	// been written, or never will be.
	Owner Owner

	state     state
	withdrawn bool
}

// An Owner is notified when the memory of its Record is no longer in use. No lock is held, and it must not wait for the
// Writer.
type Owner interface{ Released() }

type state uint8

const (
	idle state = iota
	queued
	writing
)

// Size returns the length of the record in bytes.
func (r *Record) Size() (n int) {
	for _, p := range r.Parts {
		n += len(p)
	}
	return n
}

// Options are the parameters of a Writer.
type Options struct {
	// Stall is how long the peer may take nothing before the Writer fails with ErrStalled. Zero or less means forever.
	Stall time.Duration

	// Resumable: a write that exceeded its deadline can be continued where it stopped. That is the case on sockets, but
	// not with TLS.
	Resumable bool

	// Failed is called once, after a write has failed. It should close the connection. The Writer then drops all
	// records.
	Failed func(err error)

	// Written is called after each write with the number of short records with Answer in it. Rested is called when
	// nothing is queued or being written, though that may no longer be so. No lock is held. They must not wait for the
	// Writer.
	Written func(answers int)
	Rested  func()
}

// A Writer writes records to a connection, for any number of goroutines.
type Writer struct {
	conn    net.Conn
	opt     Options
	patient func() // writes for as long as it takes

	mu      lockorder.Mutex
	changed sync.Cond // some record is idle again, or no goroutine writes
	short   []byte    // short records, one after the other
	answers int       // replies among them
	queue   []*Record // long records
	busy    bool      // a goroutine writes
	leaving int       // records of the batch being withdrawn
	err     error     // why nothing is written any longer

	// Used by the goroutine that writes; the entries' records under mu.
	batch
}

// A batch is the write in progress.
type batch struct {
	out     []byte // short records
	counted int    // answers among them
	entries []entry
	total   int         // bytes
	wrote   int         // bytes of the batch that have been written
	vec     net.Buffers // the rest, as parts
	store   [][]byte    // memory for vec
	since   time.Time   // when the peer last took something
	ended   []*Record   // scratch
}

// An entry is a long record of a batch.
type entry struct {
	rec   *Record // nil if withdrawn
	parts [][]byte
	at    int // in the batch
	size  int
}

// NewWriter returns a Writer to c.
func NewWriter(c net.Conn, opt Options) *Writer {
	w := &Writer{conn: c, opt: opt}
	w.mu.Init(lockorder.Writer)
	w.changed.L = &w.mu
	w.patient = func() { w.write(false) }
	return w
}

// Write queues a record for the next Flush, or for the goroutine that is currently writing. If it returns true the
// record is already idle: it is short and has been copied, or the Writer has failed.
func (w *Writer) Write(r *Record) (free bool) {
	n := r.Size()
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.err != nil:
		return true
	case n > Short:
		r.state = queued
		w.queue = append(w.queue, r)
		return false
	}
	for _, p := range r.Parts {
		w.short = append(w.short, p...)
	}
	if r.Answer {
		w.answers++
	}
	return true
}

// Flush ensures that everything will be written, without waiting for the peer for longer than a few milliseconds.
func (w *Writer) Flush() {
	w.mu.Lock()
	if w.busy || w.err != nil || w.empty() {
		w.mu.Unlock()
		return
	}
	w.busy = true
	w.mu.Unlock()
	if w.opt.Resumable {
		w.write(true)
	} else {
		go w.patient()
	}
}

// Rests reports whether nothing is queued and no goroutine is writing.
func (w *Writer) Rests() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return !w.busy && w.empty()
}

// Since returns since when the peer has taken nothing of the data being written; ok is false if nothing is being
// written.
func (w *Writer) Since() (t time.Time, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.since, w.busy
}

// empty reports whether nothing is queued. mu is held.
func (w *Writer) empty() bool { return len(w.short)+len(w.queue) == 0 }

// write writes until nothing is left or, in a hurry, for a while: another goroutine then continues. The caller has made
// the Writer busy.
func (w *Writer) write(hurry bool) {
	for n := 1; ; n++ {
		if w.wrote == w.total && !w.begin() {
			return
		}
		if hurry && n > turns {
			go w.patient()
			return
		}
		for w.wrote < w.total {
			if !w.prepare(hurry) {
				continue // a record has been withdrawn
			}
			err := w.some()
			switch {
			case err == nil:
			case !timedOut(err):
				w.fail(err)
				return
			case !w.opt.Resumable:
				w.fail(ErrStalled)
				return
			case hurry:
				go w.patient()
				return
			case w.opt.Stall > 0 && time.Since(w.sinceThen()) >= w.opt.Stall:
				w.fail(ErrStalled)
				return
			}
		}
		w.end()
	}
}

func timedOut(err error) bool {
	var e net.Error
	return errors.As(err, &e) && e.Timeout()
}

func (w *Writer) sinceThen() time.Time {
	t, _ := w.Since()
	return t
}

// some writes part of the batch.
func (w *Writer) some() error {
	var n int64
	var err error
	if w.opt.Resumable {
		n, err = w.vec.WriteTo(w.conn)
	} else {
		// In pieces, each with its own time limit.
		var k int
		p := w.vec[0]
		k, err = w.conn.Write(p[:min(len(p), batchSize)])
		n = int64(k)
		if w.vec[0] = p[k:]; len(w.vec[0]) == 0 {
			w.vec = w.vec[1:]
		}
	}
	w.mu.Lock()
	w.wrote += int(n)
	if n > 0 {
		w.since = time.Now()
	}
	w.mu.Unlock()
	return err
}

// begin makes a batch of the queued records. It returns false if nothing is queued.
func (w *Writer) begin() bool {
	w.mu.Lock()
	if w.empty() || w.err != nil {
		w.busy = false
		w.changed.Broadcast()
		w.mu.Unlock()
		w.opt.Rested()
		return false
	}
	defer w.mu.Unlock()
	b := &w.batch
	b.out, w.short = w.short, b.out[:0]
	b.counted, w.answers = w.answers, 0
	b.total, b.wrote = len(b.out), 0
	n := 0
	for _, r := range w.queue {
		if b.total >= batchSize {
			break
		}
		e := entry{rec: r, parts: r.Parts, at: b.total, size: r.Size()}
		r.state = writing
		b.entries = append(b.entries, e)
		b.total += e.size
		n++
	}
	w.queue = slices.Delete(w.queue, 0, n)
	b.since = time.Now()
	b.list()
	return true
}

// list sets vec to the rest of the batch.
func (b *batch) list() {
	vec := b.store[:0]
	skip := b.wrote
	add := func(p []byte) {
		k := min(skip, len(p))
		skip -= k
		if p = p[k:]; len(p) > 0 {
			vec = append(vec, p)
		}
	}
	add(b.out)
	for i := range b.entries {
		e := &b.entries[i]
		if skip >= e.size { // its parts may already be reused
			skip -= e.size
			continue
		}
		for _, p := range e.parts {
			add(p)
		}
	}
	b.store, b.vec = vec, vec
}

// prepare sets the time limit of a write. If records have been withdrawn, it removes them from the batch instead, and
// returns false.
func (w *Writer) prepare(hurry bool) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.leaving > 0 && w.opt.Resumable {
		w.drop()
		return false
	}
	switch {
	case hurry:
		_ = w.conn.SetWriteDeadline(time.Now().Add(tick))
	case w.opt.Stall > 0:
		_ = w.conn.SetWriteDeadline(w.since.Add(w.opt.Stall))
	default:
		_ = w.conn.SetWriteDeadline(time.Time{})
	}
	return true
}

// drop removes the withdrawn records from the batch. The rest of a half-written one is copied, because the peer expects
// it. mu is held.
func (w *Writer) drop() {
	b := &w.batch
	kept := b.entries[:0]
	at := len(b.out)
	for _, e := range b.entries {
		gone := false
		if r := e.rec; r != nil && r.withdrawn {
			switch written := b.wrote - e.at; {
			case written <= 0:
				gone = true
			case written < e.size:
				rest := slices.Concat(e.parts...)
				e.parts = [][]byte{rest}
			}
			e.rec = nil
			r.state, r.withdrawn = idle, false
		}
		if !gone {
			e.at = at
			at += e.size
			kept = append(kept, e)
		}
	}
	clear(b.entries[len(kept):])
	b.entries, b.total = kept, at
	w.leaving = 0
	b.list()
	w.changed.Broadcast()
}

// end ends a batch that has been written.
func (w *Writer) end() {
	b := &w.batch
	w.mu.Lock()
	answers := b.counted
	ended := w.settle(b.ended[:0])
	w.mu.Unlock()
	w.opt.Written(answers)
	for i, r := range ended {
		ended[i] = nil
		r.Owner.Released()
	}
	b.ended = ended[:0]
}

// settle makes the records of the batch idle. Those with an owner are appended to ended. mu is
// held.
func (w *Writer) settle(ended []*Record) []*Record {
	b := &w.batch
	for i := range b.entries {
		if r := b.entries[i].rec; r != nil {
			r.state, r.withdrawn = idle, false
			if r.Owner != nil {
				ended = append(ended, r)
			}
		}
	}
	clear(b.entries)
	b.entries = b.entries[:0]
	clear(b.store)
	b.out, b.counted, b.vec = b.out[:0], 0, nil
	if cap(b.out) > maxKept {
		b.out = nil
	}
	w.leaving, b.total, b.wrote = 0, 0, 0
	w.changed.Broadcast()
	return ended
}

// fail ends the Writer. The caller is the one that writes.
func (w *Writer) fail(err error) {
	w.mu.Lock()
	first := w.err == nil
	if first {
		w.err = err
	}
	ended := w.settle(nil)
	w.mu.Unlock()
	w.dropQueue()
	for _, r := range ended {
		r.Owner.Released()
	}
	if first {
		w.opt.Failed(err)
	}
	w.mu.Lock()
	w.busy = false
	w.changed.Broadcast()
	w.mu.Unlock()
}

// dropQueue drops the queued records.
func (w *Writer) dropQueue() {
	w.mu.Lock()
	queue := w.queue
	w.queue, w.short, w.answers = nil, nil, 0
	for _, r := range queue {
		r.state = idle
	}
	w.changed.Broadcast()
	w.mu.Unlock()
	for _, r := range queue {
		if r.Owner != nil {
			r.Owner.Released()
		}
	}
}

// Withdraw makes a record idle because its owner needs the memory back. If it has not been started it is not sent, and
// if it is half written the rest is copied. On a connection that is not Resumable, withdrawing a started record ends
// the connection, unless the peer takes the record within a second.
func (w *Writer) Withdraw(r *Record) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if r.state == queued {
		i := slices.Index(w.queue, r)
		w.queue = slices.Delete(w.queue, i, i+1)
		r.state = idle
	}
	if r.state == idle {
		return
	}
	r.withdrawn = true
	w.leaving++
	if w.opt.Resumable {
		_ = w.conn.SetWriteDeadline(time.Unix(1, 0))
	} else {
		t := time.AfterFunc(patience, func() { w.giveUp(r) })
		defer t.Stop()
	}
	for r.state != idle {
		w.changed.Wait()
	}
}

// giveUp ends the connection if r is still being written.
func (w *Writer) giveUp(r *Record) {
	w.mu.Lock()
	stuck := r.state == writing && r.withdrawn && w.err == nil
	if stuck {
		w.err = ErrStuck
	}
	w.mu.Unlock()
	if stuck {
		w.opt.Failed(ErrStuck)
	}
}

// Close drops everything that has not been written. The connection must have been closed. When Close returns, no
// goroutine uses the connection, and all records are idle.
func (w *Writer) Close() {
	w.mu.Lock()
	if w.err == nil {
		w.err = net.ErrClosed
	}
	for w.busy {
		w.changed.Wait()
	}
	w.mu.Unlock()
	w.dropQueue()
}
