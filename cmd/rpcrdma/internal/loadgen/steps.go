package loadgen

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/rpcrdma/rpcrdma/transport"
)

// An Op is a kind of call, named after what it does to the client's data.
type Op string

// The kinds of calls.
const (
	Null  Op = "null"  // no data: the round trip of every call
	Echo  Op = "echo"  // data to the server and back, inline if it fits
	Read  Op = "read"  // data from the server, which writes it into the client's memory
	Write Op = "write" // data to the server, which reads it from the client's memory
)

// Ops returns all kinds of calls.
func Ops() []Op { return []Op{Null, Echo, Read, Write} }

// Limits of a [Step].
const (
	// MaxSize is the largest data of a call, in bytes. With the headers of the call it makes the longest message that a
	// server accepts with the default configuration.
	MaxSize = transport.DefaultMaxMessage - 4096
	// MaxDepth is how many credits a server grants with the default configuration.
	MaxDepth = transport.DefaultCredits
)

// A Step is a kind of calls with a fixed number of them outstanding.
type Step struct {
	Op    Op
	Size  int // data of a call in bytes, 1 to MaxSize; 0 for Null
	Depth int // calls outstanding, 1 to MaxDepth
}

func (s Step) String() string {
	if s.Op == Null {
		return fmt.Sprintf("%s, depth %d", s.Op, s.Depth)
	}
	return fmt.Sprintf("%s of %s, depth %d", s.Op, FormatSize(s.Size), s.Depth)
}

// check rejects invalid steps.
func (s Step) check() error {
	switch {
	case !slices.Contains(Ops(), s.Op):
		return fmt.Errorf("op %q: want one of %v", string(s.Op), Ops())
	case s.Depth < 1:
		return fmt.Errorf("%v: the depth must be at least 1", s)
	case s.Size < 0 || s.Size < 1 && s.Op != Null:
		return fmt.Errorf("%v: the size must be at least 1", s)
	}
	return nil
}

// ParseSizes reads numbers such as 64, 4Ki and 1Mi, and ranges of them such as 4Ki..1Mi, which double from the first
// number up to the last. All must be from least to most. It fails if list is empty.
func ParseSizes(list []string, least, most int) ([]int, error) {
	var all []int
	for _, s := range list {
		from, to, ok := strings.Cut(s, "..")
		if !ok {
			to = from
		}
		first, err := parseSize(from)
		last, err2 := parseSize(to)
		switch {
		case err != nil || err2 != nil:
			return nil, fmt.Errorf("%q: want numbers such as 64, 4Ki or 1Mi, or a range of them, 4Ki..1Mi", s)
		case first < least || last > most:
			return nil, fmt.Errorf("%q: want %s to %s", s, FormatSize(least), FormatSize(most))
		case first > last:
			return nil, fmt.Errorf("%q: the range ends before it begins", s)
		}
		for n := first; n < last; n *= 2 {
			all = append(all, n)
		}
		all = append(all, last)
	}
	if len(all) == 0 {
		return nil, errors.New("is empty")
	}
	return all, nil
}

func parseSize(s string) (int, error) {
	shift := 0
	if rest, ok := strings.CutSuffix(s, "Ki"); ok {
		s, shift = rest, 10
	} else if rest, ok := strings.CutSuffix(s, "Mi"); ok {
		s, shift = rest, 20
	}
	n, err := strconv.ParseUint(s, 10, 31-shift)
	return int(n << shift), err
}

// FormatSize returns n in the shortest form that [ParseSizes] reads.
func FormatSize(n int) string {
	switch {
	case n >= 1<<20 && n%(1<<20) == 0:
		return fmt.Sprintf("%dMi", n>>20)
	case n >= 1<<10 && n%(1<<10) == 0:
		return fmt.Sprintf("%dKi", n>>10)
	}
	return strconv.Itoa(n)
}
