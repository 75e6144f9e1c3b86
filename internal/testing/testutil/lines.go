package testutil

import (
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// Lines collects lines of text from other goroutines. The zero value is empty and ready
// for use.
type Lines struct {
	mu   sync.Mutex
	list []string
}

// Add appends a line.
func (l *Lines) Add(line string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.list = append(l.list, line)
}

// All returns the lines that have not been consumed.
func (l *Lines) All() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.list)
}

// Wait waits for a line that ends in text, and consumes the lines up to it. It ends the test if that takes longer than
// [Patience].
func (l *Lines) Wait(t testing.TB, text string) []string {
	t.Helper()
	for end := time.Now().Add(Patience); ; time.Sleep(time.Millisecond) {
		if got := l.take(text); got != nil {
			return got
		}
		if time.Now().After(end) {
			t.Fatalf("no line ends in %q in\n\t%s", text, strings.Join(l.All(), "\n\t"))
		}
	}
}

func (l *Lines) take(text string) (got []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if i := slices.IndexFunc(l.list, func(s string) bool { return strings.HasSuffix(s, text) }); i >= 0 {
		got = slices.Clone(l.list[:i+1])
		l.list = slices.Delete(l.list, 0, i+1)
	}
	return got
}

// WantLines compares lines.
func WantLines(t testing.TB, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("got\n\t%s\nwant\n\t%s", strings.Join(got, "\n\t"), strings.Join(want, "\n\t"))
	}
}
