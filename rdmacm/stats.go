//go:build linux && cgo

package rdmacm

import "github.com/rpcrdma/rpcrdma/fabric"

// PostCounts counts the requests that a connection has posted.
type PostCounts struct {
	SendCalls, Sends uint64 // calls into C, each with one doorbell for up to 128 requests; requests
	RecvCalls, Recvs uint64
}

// PollCounts counts the polling of a completion queue.
type PollCounts struct {
	Calls  uint64 // calls into C
	Empty  uint64 // calls that found no completion
	Arms   uint64 // times the queue was armed
	Events uint64 // completion events taken
}

// Stats counts the C calls of the data path since the connection was made. With a shared completion queue it includes
// the polling for all connections of the queue.
type Stats struct {
	PostCounts
	PollCounts
}

// Stats returns the counters.
func (c *Conn) Stats() Stats {
	polls := c.q.polling.Lock().stats
	c.q.polling.Unlock()
	t, r := c.send.Lock(), c.recv.Lock()
	posts := PostCounts{t.posted.calls, t.posted.requests, r.posted.calls, r.posted.requests}
	c.recv.Unlock()
	c.send.Unlock()
	return Stats{posts, polls}
}

var _ fabric.Counting = (*Conn)(nil)

// Counters implements fabric.Counting. It returns Stats as named counters.
func (c *Conn) Counters() []fabric.Counter {
	s := c.Stats()
	return []fabric.Counter{
		{Name: "post_send_calls", Value: s.SendCalls, Help: "Calls of ibv_post_send."},
		{Name: "sends", Value: s.Sends, Help: "Work requests posted to the send queue."},
		{Name: "post_recv_calls", Value: s.RecvCalls, Help: "Calls of ibv_post_recv."},
		{Name: "receives", Value: s.Recvs, Help: "Receives posted."},
		{Name: "poll_calls", Value: s.Calls, Help: "Calls of ibv_poll_cq."},
		{Name: "poll_calls_empty", Value: s.Empty, Help: "Polls that found no completion."},
		{Name: "arms", Value: s.Arms, Help: "Requests for a completion event."},
		{Name: "completion_events", Value: s.Events, Help: "Completion events."},
	}
}
