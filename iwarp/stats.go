package iwarp

// Stats counts what a connection has done. Bytes are those of FPDUs, headers
// included.
type Stats struct {
	Doorbells  uint64 // Post calls that put work into the send queue
	Writev     uint64 // write system calls, those that found no room included
	WriteFull  uint64 // of these, how many found no room
	TxFPDUs    uint64
	TxBytes    uint64
	Writers    uint64 // times that a full socket was left to a goroutine
	Readv      uint64 // read system calls, those that found nothing included
	ReadEmpty  uint64 // of these, how many found nothing
	ReadDirect uint64 // of these, how many read straight into their place
	RxFPDUs    uint64
	RxBytes    uint64
	Wakes      uint64 // times that a waiter was woken by something not from the wire
}

// Stats returns the counters. It waits for what is in the adapter's hands at
// the moment, so it belongs into tests and monitors.
func (c *Conn) Stats() Stats {
	c.mu.Lock()
	s := Stats{Doorbells: c.doorbells}
	c.mu.Unlock()
	c.txMu.Lock()
	s.Writev, s.WriteFull, s.TxFPDUs, s.TxBytes, s.Writers = c.tx.stats.writev, c.tx.stats.full, c.tx.stats.fpdus, c.tx.stats.bytes, c.tx.stats.writers
	c.unlockTx()
	c.rxMu.Lock()
	s.Readv, s.ReadEmpty, s.ReadDirect, s.RxFPDUs, s.RxBytes = c.rx.stats.readv, c.rx.stats.empty, c.rx.stats.direct, c.rx.stats.fpdus, c.rx.stats.bytes
	c.rxMu.Unlock()
	s.Wakes = c.wakes.Load()
	return s
}
