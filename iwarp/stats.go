package iwarp

import "github.com/rpcrdma/rpcrdma/fabric"

// Stats counts the operations of a connection. Bytes are those of FPDUs, headers included.
type Stats struct {
	Doorbells  uint64 // Post calls that put work into the send queue
	Writev     uint64 // write system calls, including those that found the buffer full
	WriteFull  uint64 // writes that found the buffer full
	TxFPDUs    uint64
	TxBytes    uint64
	Writers    uint64 // times that a writer goroutine was started
	Readv      uint64 // read system calls, including those that found nothing
	ReadEmpty  uint64 // reads that found nothing
	ReadDirect uint64 // reads that went directly into their destination
	RxFPDUs    uint64
	RxBytes    uint64
	Wakes      uint64 // times that a waiter was woken by something other than the socket
}

// Stats returns the counters. It takes the locks of the data path, so it is for tests and
// monitoring.
func (c *Conn) Stats() Stats {
	s := Stats{Doorbells: c.state.Lock().doorbells}
	c.state.Unlock()
	t := c.tx.Lock()
	s.Writev, s.WriteFull, s.TxFPDUs, s.TxBytes, s.Writers = t.stats.writev, t.stats.full, t.stats.fpdus, t.stats.bytes, t.stats.writers
	c.unlockTx()
	x := c.rx.Lock()
	s.Readv, s.ReadEmpty, s.ReadDirect, s.RxFPDUs, s.RxBytes = x.stats.readv, x.stats.empty, x.stats.direct, x.stats.fpdus, x.stats.bytes
	c.rx.Unlock()
	s.Wakes = c.wakes.Load()
	return s
}

var _ fabric.Counting = (*Conn)(nil)

// Counters implements fabric.Counting: Stats under names.
func (c *Conn) Counters() []fabric.Counter {
	s := c.Stats()
	return []fabric.Counter{
		{Name: "doorbells", Value: s.Doorbells},
		{Name: "write_calls", Value: s.Writev},
		{Name: "write_calls_full", Value: s.WriteFull},
		{Name: "sent_fpdus", Value: s.TxFPDUs},
		{Name: "sent_bytes", Value: s.TxBytes},
		{Name: "writers_started", Value: s.Writers},
		{Name: "read_calls", Value: s.Readv},
		{Name: "read_calls_empty", Value: s.ReadEmpty},
		{Name: "read_calls_direct", Value: s.ReadDirect},
		{Name: "received_fpdus", Value: s.RxFPDUs},
		{Name: "received_bytes", Value: s.RxBytes},
		{Name: "wakes", Value: s.Wakes},
	}
}
