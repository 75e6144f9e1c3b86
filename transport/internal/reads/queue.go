package reads

import "github.com/rpcrdma/rpcrdma/fabric"

// A Poster posts RDMA Reads to the adapter. The slice is valid during the call, and the memory it refers to until the
// Read has completed.
type Poster interface {
	PostRead(wrs []fabric.SendWR)
}

// A Queue holds the messages of a connection with unfinished Reads, in order of arrival. The goroutine that drives the
// connection owns it.
type Queue struct {
	// Most is the maximum number of Reads posted at once. Zero: no Reads.
	Most int

	poster  Poster
	posted  int // and not completed
	waiting []*Message
	wr      [1]fabric.SendWR // scratch
}

// Init sets the Poster of the Reads, and Most.
func (q *Queue) Init(p Poster, most int) { q.poster, q.Most = p, most }

// Len returns how many Reads are posted and how many messages are in the queue.
func (q *Queue) Len() (posted, waiting int) { return q.posted, len(q.waiting) }

// Start queues the Reads of a message, which has at least one.
func (q *Queue) Start(m *Message) {
	q.waiting = append(q.waiting, m)
	q.post()
}

// post posts as many Reads as are allowed at once.
func (q *Queue) post() {
	for q.posted < q.Most && len(q.waiting) > 0 {
		m := q.waiting[0]
		if m.next == len(m.pulls) {
			q.waiting = append(q.waiting[:0], q.waiting[1:]...)
			continue
		}
		p := &m.pulls[m.next]
		m.next++
		m.underway++
		q.posted++
		q.wr[0] = fabric.SendWR{
			ID: m.id, Op: fabric.OpRead, Flags: fabric.Signaled,
			SGL: p.dst[:], RKey: p.handle, RemoteOffset: p.offset,
		}
		q.poster.PostRead(q.wr[:])
	}
}

// Completed processes the completion of a Read of m. It returns true if that was the last one and the message is
// complete. A Read that fails ends the connection, so nothing is done for its message.
func (q *Queue) Completed(m *Message, wc *fabric.WC) (whole bool) {
	q.posted--
	m.underway--
	whole = wc.Status == fabric.WCSuccess && m.underway == 0 && m.next == len(m.pulls)
	q.post()
	return whole
}
