package syntax

import (
	"fmt"
	"strconv"
	"strings"
)

// An Int is an integer from -2^63 to 2^64-1, the range of all integer types of XDR. Ints with the same value are equal
// by ==.
type Int struct {
	neg bool // unset for zero
	abs uint64
}

// IntOf returns v as an Int.
func IntOf(v int64) Int {
	if v < 0 {
		return Int{true, -uint64(v)}
	}
	return Int{abs: uint64(v)}
}

// Int64 returns the value if it is in the range of an int64.
func (n Int) Int64() (v int64, ok bool) {
	if n.neg {
		return -int64(n.abs), true
	}
	return int64(n.abs), n.abs < 1<<63
}

// Uint64 returns the value if it is not negative.
func (n Int) Uint64() (v uint64, ok bool) { return n.abs, !n.neg }

// In reports whether lo <= n <= hi. lo must not be less than -2^63 nor hi greater than 2^63-1.
func (n Int) In(lo, hi int64) bool {
	v, ok := n.Int64()
	return ok && lo <= v && v <= hi
}

// Next returns n+1 if that is in the range of an Int.
func (n Int) Next() (next Int, ok bool) {
	switch {
	case n.neg && n.abs == 1:
		return Int{}, true
	case n.neg:
		return Int{true, n.abs - 1}, true
	}
	return Int{abs: n.abs + 1}, n.abs+1 != 0
}

// String returns the number in decimal.
func (n Int) String() string {
	s := strconv.FormatUint(n.abs, 10)
	if n.neg {
		return "-" + s
	}
	return s
}

// parseInt reads a constant of RFC 4506 section 6.2: decimal, hexadecimal after 0x, or octal
// after 0, each after an optional minus sign.
func parseInt(text string) (Int, error) {
	digits, neg := strings.CutPrefix(text, "-")
	base := 10
	if hex, ok := strings.CutPrefix(strings.ToLower(digits), "0x"); ok {
		base, digits = 16, hex
	} else if len(digits) > 1 && digits[0] == '0' {
		base, digits = 8, digits[1:]
	}
	abs, err := strconv.ParseUint(digits, base, 64)
	if err != nil {
		if err.(*strconv.NumError).Err == strconv.ErrRange {
			return Int{}, fmt.Errorf("number %s does not fit 64 bits", text)
		}
		return Int{}, fmt.Errorf("%s is not a number", text)
	}
	if neg && abs > 1<<63 {
		return Int{}, fmt.Errorf("number %s does not fit 64 bits", text)
	}
	return Int{neg && abs != 0, abs}, nil
}
