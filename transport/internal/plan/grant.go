package plan

// How many calls may be in flight. A grant is an absolute number in every reply. Receives are posted for it, and it is
// never zero (RFC 5666 section 3.3, RFC 8166 section 3.3.1).

// A Load describes how a peer uses its grant.
type Load struct {
	Posted    int  // calls that receives are posted for
	Executing int  // calls accepted and not answered
	Waiting   int  // calls that wait for memory
	Most      int  // calls to grant, by the configuration
	Crowded   bool // the buffers of all connections already use too much memory
	Halved    int  // number of times the grant is halved: calls wait for processors
}

// Raise returns the number of calls that receives should be posted for: twice as many as now, and at least 16, if more
// than half of them are in use, up to the credits that the peer asks for and the configured limit. A connection with
// all credits in use is granted 64 after 52 calls, and 128 after 116.
func (l *Load) Raise(asked uint32) int {
	if l.Executing <= l.Posted/2 || l.Waiting > 0 || l.Posted >= l.Most || l.Crowded {
		return l.Posted
	}
	return max(l.Posted, min(max(2*l.Posted, LeastPaced), int(min(asked, uint32(l.Most)))))
}

// Start is the grant of a new connection.
const Start = 4

// LoadedShare is the factor by which the grant falls while a peer's calls wait for memory.
const LoadedShare = 4

// LeastPaced is the lower bound when the number of calls in flight is halved: with fewer calls in flight, fewer would
// share a system call or wake-up.
const LeastPaced = 16

// Paced returns how many of most calls may be in flight after that number has been halved halved times.
func Paced(most, halved int) int { return max(most>>halved, min(most, LeastPaced)) }

// Grant returns the grant for a peer: all calls that receives are posted for, or a part of them while its calls wait
// for memory. Calls that are already on their way under an earlier grant are still accepted.
func (l *Load) Grant() int {
	n := Paced(l.Posted, l.Halved)
	if l.Waiting > 0 {
		n = min(n, max(l.Posted/LoadedShare, 1))
	}
	return n
}

// Takes reports whether an end without credits, over TCP, accepts another call: below Most, paced, and while memory is
// crowded at most as many at once as before. In this case Posted is that number, and Most is already paced.
func (l *Load) Takes() bool {
	return l.Executing < l.Most && (l.Executing < l.Posted || l.Posted < Start || !l.Crowded)
}

// Accepted returns the effective value of the peer's grant for an end that has asked for most credits: zero counts as
// one (RFC 8166 section 3.3.1).
func Accepted(credit uint32, most int) int {
	return int(min(max(credit, 1), uint32(most)))
}

// Exchanges returns how many calls a peer that obeys its grant can have here at once, including replies being sent: as
// many as there are receives for, before and after a new grant, and replies with Sends, at most depth, that the adapter
// has not reported as sent.
func Exchanges(posted, slack, depth int) int { return 2*posted + slack + depth }
