package capture

import (
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rpcrdma/rpcrdma/fabric"
)

// VersionComment is the comment of a packet with an rdma_vers of 2 that was written as 1.
const VersionComment = "RPC-over-RDMA version 2, written as version 1"

// PaddingComment is the comment of a packet with XDR padding that was not written into a chunk. Without it Wireshark
// cannot decode the reply that follows.
const PaddingComment = "XDR padding for Wireshark, not on the wire"

// DroppedComment begins the comment of the first packet after messages and operations, of any connection, were dropped.
// Their number follows.
const DroppedComment = "dropped before this packet: "

// ContinuedComment is the comment of packets that set up, in a later file, a connection that was set up in an earlier
// one.
const ContinuedComment = "set up in an earlier file"

// A Framing is the format of packets.
type Framing uint8

const (
	// IWARP is RDMAP, DDP and MPA over TCP: RFC 5040, RFC 5041, RFC 5044.
	IWARP Framing = iota
	// RoCE is InfiniBand's reliable connections over UDP port 4791, RoCE v2.
	RoCE
)

// String returns the usual spelling of the name.
func (f Framing) String() string {
	switch f {
	case IWARP:
		return "iWARP"
	case RoCE:
		return "RoCE v2"
	}
	return fmt.Sprintf("framing %d", uint8(f))
}

// Config bounds the recording. The zero value is ready for use.
type Config struct {
	// SnapLen is the maximum number of bytes of data kept of each packet, which has up to 60 KiB. Headers of the lower
	// layers are always kept. Wireshark does not reassemble messages from truncated chunks. Zero: everything.
	SnapLen int

	// MaxSize is the maximum size of a file in bytes. Zero: no limit.
	MaxSize int64

	// Files is the maximum number of files of MaxSize: the newest has the name given to [Create], and older ones have
	// ".1", ".2" and so on appended. With 0 or 1 recording ends when the file is full. A [New] Writer has one.
	Files int

	// Queue is the maximum number of bytes waiting for the disk. Events that do not fit are dropped and counted. Zero:
	// 32 MiB.
	Queue int

	// KeepVersion keeps version 2 in messages. Wireshark then shows them as Sends.
	KeepVersion bool

	// Framing is the format of packets.
	Framing Framing
}

const defaultQueue = 32 << 20

// Stats are the counters of a Writer.
type Stats struct {
	Packets uint64 // written
	Bytes   uint64 // written, including block headers
	Dropped uint64 // messages and RDMA operations that did not fit in the queue or the file

	// Unknown counts segments of chunks in memory that is not, or no longer, known at this end. Their data is not in
	// the file.
	Unknown uint64
}

// A Writer records connections in a file. It is safe for concurrent use.
type Writer struct {
	cfg     Config
	out     sink
	unnamed atomic.Uint32 // connections without IP addresses

	mu      sync.Mutex
	queue   []event
	queued  int // bytes of data and overhead in queue
	stats   Stats
	missed  uint64 // dropped since the last event
	closed  bool
	err     error         // of the first failed write, after which nothing is recorded
	pending chan struct{} // holds a token while there is work for run
	done    chan struct{} // closed when run has returned

	// run owns the fields below.
	f   framer
	buf []byte
}

// A sink accepts whole blocks. rotate begins a new file. It returns false if there may be no other file.
type sink interface {
	io.Writer
	rotate() (bool, error)
	Close() error
}

// New returns a Writer that writes a capture to w. A nil cfg is the zero Config. Each Write to w is of whole blocks.
// Close does not close w.
func New(w io.Writer, cfg *Config) *Writer { return newWriter(plain{w}, cfg) }

func newWriter(out sink, cfg *Config) *Writer {
	w := &Writer{out: out, pending: make(chan struct{}, 1), done: make(chan struct{})}
	if cfg != nil {
		w.cfg = *cfg
	}
	if w.cfg.Queue <= 0 {
		w.cfg.Queue = defaultQueue
	}
	w.f.cfg = &w.cfg
	w.f.live = make(map[*stream]struct{})
	w.f.emit = w.put
	w.buf = appendFileHeader(w.buf, w.cfg.Framing.String())
	w.f.written = int64(len(w.buf))
	w.wake()
	go w.run()
	return w
}

// plain is an io.Writer as a sink.
type plain struct{ io.Writer }

func (plain) rotate() (bool, error) { return false, nil }
func (plain) Close() error          { return nil }

// Provider returns a provider that records all connections of p. The result has p's name, and closing it closes p.
// Connections continue to work after the Writer has been closed.
func (w *Writer) Provider(p fabric.Provider) fabric.Provider { return &provider{p, w} }

// Stats returns the counters so far.
func (w *Writer) Stats() Stats {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.stats
}

// Close writes the queued packets and the counters, and closes the file. It returns the first write error. It may be
// called more than once, from any goroutine.
func (w *Writer) Close() error {
	w.mu.Lock()
	w.closed = true
	w.mu.Unlock()
	w.wake()
	<-w.done
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}

func (w *Writer) wake() {
	select {
	case w.pending <- struct{}{}:
	default:
	}
}

// overhead is the size of an event in the queue without its data, in bytes.
const overhead = 256

// room reports whether the queue has room for n bytes of data. If not, it counts an event as dropped. It is called
// before data is copied, so that dropping is cheap.
func (w *Writer) room(n int) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed || w.err != nil {
		return false
	}
	if w.queued+n+overhead > w.cfg.Queue {
		w.stats.Dropped++
		w.missed++
		return false
	}
	return true
}

// add queues events, in order. It never drops the setup or the end of a connection.
func (w *Writer) add(events ...event) {
	if len(events) == 0 {
		return
	}
	w.mu.Lock()
	for i := range events {
		e := &events[i]
		n := len(e.data) + overhead
		switch {
		case w.closed || w.err != nil:
		case w.queued+n > w.cfg.Queue && e.kind != kindUp && e.kind != kindDown:
			w.stats.Dropped++
			w.missed++
		default:
			e.missed, w.missed = w.missed, 0
			w.queue = append(w.queue, *e)
			w.queued += n
		}
	}
	w.mu.Unlock()
	w.wake()
}

// unknown counts a segment whose memory is not known.
func (w *Writer) unknown() {
	w.mu.Lock()
	w.stats.Unknown++
	w.mu.Unlock()
}

// chunk is the number of buffered bytes that makes run write the buffer.
const chunk = 256 << 10

// run writes events until the Writer is closed.
func (w *Writer) run() {
	defer close(w.done)
	var batch []event
	for range w.pending {
		w.mu.Lock()
		batch, w.queue = w.queue, batch[:0]
		closed := w.closed
		w.mu.Unlock()
		for i := range batch {
			w.f.event(&batch[i])
			w.taken(len(batch[i].data) + overhead)
			batch[i] = event{}
			if len(w.buf) >= chunk {
				w.flush()
			}
		}
		if closed {
			s := w.Stats()
			w.buf = appendStatistics(w.buf, time.Now().UnixNano(), s.Packets+s.Dropped, s.Dropped)
		}
		// Flush while idle, so that the file is up to date if the process is killed.
		w.flush()
		if closed {
			w.fail(w.out.Close())
			return
		}
	}
}

func (w *Writer) taken(n int) {
	w.mu.Lock()
	w.queued = max(0, w.queued-n) // zero after a failure
	w.mu.Unlock()
}

// put appends a packet to the file, or to the next file if the current one is full.
func (w *Writer) put(p *packet) {
	start := len(w.buf)
	w.buf = appendPacket(w.buf, p)
	n := int64(len(w.buf) - start)
	// The setup of the current connections is written even if it exceeds the maximum size.
	full := w.cfg.MaxSize > 0 && w.f.written+n > w.cfg.MaxSize && !w.f.starting
	if !full && !w.f.over {
		w.f.written += n
		w.mu.Lock()
		w.stats.Packets++
		w.mu.Unlock()
		return
	}
	w.buf = w.buf[:start]
	if !w.f.over {
		w.flush()
		again, err := w.out.rotate()
		w.fail(err)
		w.f.over = err != nil || !again
	}
	if w.f.over {
		w.mu.Lock()
		w.stats.Dropped++
		w.mu.Unlock()
		return
	}
	w.buf = appendFileHeader(w.buf, w.cfg.Framing.String())
	w.f.written = int64(len(w.buf))
	w.f.restart(p)
}

// flush writes the buffer, which always contains whole blocks.
func (w *Writer) flush() {
	if len(w.buf) == 0 {
		return
	}
	w.mu.Lock()
	failed := w.err != nil
	w.mu.Unlock()
	if !failed {
		n, err := w.out.Write(w.buf)
		w.mu.Lock()
		w.stats.Bytes += uint64(n)
		w.mu.Unlock()
		w.fail(err)
	}
	w.buf = w.buf[:0]
}

// fail records the first error.
func (w *Writer) fail(err error) {
	if err == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err == nil {
		w.err = fmt.Errorf("capture: %w", err)
		w.queue, w.queued = nil, 0
	}
}
