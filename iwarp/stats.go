package iwarp

import "github.com/rpcrdma/rpcrdma/fabric"

// Stats counts the operations of a connection. Bytes count whole FPDUs, including headers.
type Stats struct {
	Doorbells  uint64 // Post calls that put work into the send queue
	Writev     uint64 // write system calls, including those that found the buffer full
	WriteFull  uint64 // writes that found the buffer full
	TxFPDUs    uint64
	TxBytes    uint64
	TxLent     uint64 // bytes that the peer copies from memory it has mapped
	Writers    uint64 // times a writer goroutine was started
	Readv      uint64 // read system calls, including those that found nothing
	ReadEmpty  uint64 // reads that found nothing
	ReadDirect uint64 // reads that went directly into their destination
	RxFPDUs    uint64
	RxBytes    uint64
	Wakes      uint64 // times a waiter was woken by something other than the socket
}

// Stats returns the counters. It acquires the locks of the data path, so it is for tests and monitoring.
func (c *Conn) Stats() Stats {
	s := Stats{Doorbells: c.state.Lock().doorbells}
	c.state.Unlock()
	t := c.tx.Lock()
	s.Writev, s.WriteFull, s.TxFPDUs, s.TxBytes, s.TxLent, s.Writers = t.stats.writev, t.stats.full, t.stats.fpdus, t.stats.bytes, t.stats.lent, t.stats.writers
	c.unlockTx()
	x := c.rx.Lock()
	s.Readv, s.ReadEmpty, s.ReadDirect, s.RxFPDUs, s.RxBytes = x.stats.readv, x.stats.empty, x.stats.direct, x.stats.fpdus, x.stats.bytes
	c.rx.Unlock()
	s.Wakes = c.wakes.Load()
	return s
}

var _ fabric.Counting = (*Conn)(nil)

// Counters implements fabric.Counting. It returns Stats as named counters.
func (c *Conn) Counters() []fabric.Counter {
	s := c.Stats()
	return []fabric.Counter{
		{Name: "doorbells", Value: s.Doorbells, Help: "Posts that put work into the send queue."},
		{Name: "write_calls", Value: s.Writev, Help: "System calls that write."},
		{Name: "write_calls_full", Value: s.WriteFull, Help: "Writes that found the buffer of the socket full."},
		{Name: "sent_fpdus", Value: s.TxFPDUs, Help: "FPDUs sent."},
		{Name: "sent_bytes", Value: s.TxBytes, Help: "Bytes sent in FPDUs."},
		{Name: "lent_bytes", Value: s.TxLent, Help: "Bytes that the peer takes from memory that it has mapped."},
		{Name: "writers_started", Value: s.Writers, Help: "Times that a goroutine took over writing."},
		{Name: "read_calls", Value: s.Readv, Help: "System calls that read."},
		{Name: "read_calls_empty", Value: s.ReadEmpty, Help: "Reads that found nothing."},
		{Name: "read_calls_direct", Value: s.ReadDirect, Help: "Reads directly into the memory that the data is for."},
		{Name: "received_fpdus", Value: s.RxFPDUs, Help: "FPDUs received."},
		{Name: "received_bytes", Value: s.RxBytes, Help: "Bytes received in FPDUs."},
		{Name: "wakes", Value: s.Wakes, Help: "Times that a waiter was woken by another goroutine."},
	}
}
