package syntax

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
)

// Limits on the input, so that hostile files exhaust neither memory nor the stack.
const (
	MaxInput   = 4 << 20 // bytes of all files together
	MaxNesting = 64      // bodies within bodies, parentheses of #if, #include within #include
	MaxErrors  = 10      // reported errors; then compilation stops
)

// A Pos is a position in a source file. The zero Pos means no position.
type Pos struct {
	File   string
	Line   int // from 1; line markers change it
	Column int // from 1, in bytes
}

// String returns file:line:column.
func (p Pos) String() string {
	if p.Line == 0 {
		return p.File
	}
	return fmt.Sprintf("%s:%d:%d", p.File, p.Line, p.Column)
}

// An Error is one mistake in a source file.
type Error struct {
	Pos
	Text string
}

// Error returns file:line:column: text.
func (e *Error) Error() string { return e.Pos.String() + ": " + e.Text }

// Errors collects mistakes, up to [MaxErrors]. The zero value is ready for use.
type Errors struct {
	list []*Error
	full bool
}

// Add records a mistake. It ignores a second one at the same position, which would follow from the first.
func (l *Errors) Add(at Pos, format string, args ...any) {
	same := func(e *Error) bool { return e.Pos == at }
	if slices.ContainsFunc(l.list, same) {
		return
	}
	if len(l.list) == MaxErrors {
		l.full = true
		return
	}
	l.list = append(l.list, &Error{at, fmt.Sprintf(format, args...)})
}

// Full reports whether there were more mistakes than are kept, so that there is no point in searching for more.
func (l *Errors) Full() bool { return l.full }

// Err joins the mistakes, each an [*Error], in the order of lines within each file. It returns nil if none exist.
func (l *Errors) Err() error {
	if len(l.list) == 0 {
		return nil
	}
	slices.SortStableFunc(l.list, func(a, b *Error) int {
		if a.File != b.File {
			return 0 // in the order of the files
		}
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	list := make([]error, 0, len(l.list)+1)
	for _, e := range l.list {
		list = append(list, e)
	}
	if l.full {
		list = append(list, errors.New("too many errors"))
	}
	return errors.Join(list...)
}

// A Note is something that was ignored.
type Note struct {
	Pos
	Text   string
	Likely bool // it is most likely a mistake
}

// String returns file:line:column: text.
func (n Note) String() string { return n.Pos.String() + ": " + n.Text }
