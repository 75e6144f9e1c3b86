// Package plan decides how messages are put on the wire. Its functions take values and return values: they have no
// connection, no I/O and no state.
//
//   - call.go: where the parts of a call go, and which chunks it offers for its reply (RFC 5666 sections 3.4, 4, 5).
//   - reply.go: where the parts of a reply go, and what its chunks return (RFC 5666 sections 3.6, 5.2).
//   - grant.go: how many calls may be in flight (RFC 5666 section 3.3, RFC 8166 section 3.3).
//   - size.go: how long a message may be (RFC 8797, RFC 5666 section 6, version two section 5).
package plan

// A SizeProblem says what is too long for a message.
type SizeProblem struct {
	What        string
	Size, Limit int // bytes
}

// segments returns the number of segments of at most max bytes needed for n bytes.
func segments(n, max int) int {
	if n == 0 {
		return 0
	}
	return 1 + (n-1)/max // n + max may overflow an int
}
