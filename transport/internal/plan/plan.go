// Package plan decides how messages are put on the wire. Its functions take values and
// return values: they know no connection, move no byte and keep nothing.
//
//   - call.go: where the parts of a call go, and which chunks it offers for its reply (RFC
//     5666 sections 3.4, 4, 5).
//   - reply.go: where the parts of a reply go, and what comes back in its chunks (RFC 5666
//     sections 3.6, 5.2).
//   - grant.go: how many calls may be in flight (RFC 5666 section 3.3, RFC 8166 section
//     3.3).
//   - size.go: how long a message may get (RFC 8797, RFC 5666 section 6, version two
//     section 5).
package plan

// A SizeProblem names what is too long for a message.
type SizeProblem struct {
	What        string
	Size, Limit int // bytes
}

// segments is how many segments of at most max bytes n bytes take.
func segments(n, max int) int {
	if n == 0 {
		return 0
	}
	return 1 + (n-1)/max // n + max may not fit an int
}
