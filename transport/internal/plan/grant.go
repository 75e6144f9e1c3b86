package plan

// How many calls may be in flight. A grant is an absolute number, in every reply; receives are posted
// for it, and it is never zero (RFC 5666 section 3.3, RFC 8166 section 3.3.1).

// A Load is how a peer uses what it has been granted.
type Load struct {
	Posted    int  // calls that there are receives for
	Executing int  // calls taken and not answered
	Waiting   int  // calls that wait for memory
	Most      int  // calls to grant, by the configuration
	Crowded   bool // the buffers of all connections take too much memory already
	Halved    int  // how many times the grant is halved: calls wait for processors
}

// Raise is how many calls there should be receives for: twice as many as now, and 16 at least, when
// more than half of them are in use, up to the credits that the peer asks for and what the
// configuration allows. A connection with all credits in use is granted 64 after 52 calls, and 128
// after 116.
func (l *Load) Raise(asked uint32) int {
	if l.Executing <= l.Posted/2 || l.Waiting > 0 || l.Posted >= l.Most || l.Crowded {
		return l.Posted
	}
	return max(l.Posted, min(max(2*l.Posted, LeastPaced), int(min(asked, uint32(l.Most)))))
}

// Start is how many calls a new connection is granted.
const Start = 4

// LoadedShare is by how much the grant falls while a peer's calls wait for memory.
const LoadedShare = 4

// LeastPaced is the least that the number of calls in flight is halved to: fewer calls in flight would share fewer
// system calls and wake-ups.
const LeastPaced = 16

// Paced is how many of most calls may be in flight when that has been halved a number of times.
func Paced(most, halved int) int { return max(most>>halved, min(most, LeastPaced)) }

// Grant returns the grant for a peer: all that there are receives for, or a part of it while its
// calls wait for memory. Calls that are on their way by an earlier grant are accepted all the same.
func (l *Load) Grant() int {
	n := Paced(l.Posted, l.Halved)
	if l.Waiting > 0 {
		n = min(n, max(l.Posted/LoadedShare, 1))
	}
	return n
}

// Takes reports whether an end without credits, over TCP, accepts another call: below Most, paced,
// and while memory is crowded at most as many at once as there have been. Posted is that then, and
// Most is paced already.
func (l *Load) Takes() bool {
	return l.Executing < l.Most && (l.Executing < l.Posted || l.Posted < Start || !l.Crowded)
}

// Accepted returns the value of the peer's grant to an end that has asked for most credits: zero
// counts as one (RFC 8166 section 3.3.1).
func Accepted(credit uint32, most int) int {
	return int(min(max(credit, 1), uint32(most)))
}

// Exchanges is how many calls a peer that obeys its grant can have here at once, replies on their way
// out included: as many as there are receives for, before and after a new grant, and replies with
// Sends, at most depth, that the adapter has not reported as sent.
func Exchanges(posted, slack, depth int) int { return 2*posted + slack + depth }
