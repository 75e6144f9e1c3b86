package baton

// A Line is a queue of Waiters, first come, first served. The zero value is empty. It must not
// be copied.
type Line[W any] struct {
	head Waiter[W] // its next is the first Waiter; itself or nil if the line is empty
}

// Empty reports whether the line is empty.
func (l *Line[W]) Empty() bool { return l.head.next == nil || l.head.next == &l.head }

// Len returns the number of Waiters in the line.
func (l *Line[W]) Len() (n int) {
	if l.Empty() {
		return 0
	}
	for w := l.head.next; w != &l.head; w = w.next {
		n++
	}
	return n
}

// Push appends w. A Waiter can be in only one line.
func (l *Line[W]) Push(w *Waiter[W]) {
	if w.Queued() {
		panic("baton: a Waiter joins a line twice")
	}
	if l.head.next == nil {
		l.head.prev, l.head.next = &l.head, &l.head
	}
	w.prev, w.next = l.head.prev, &l.head
	w.prev.next, l.head.prev = w, w
}

// Remove removes w. It returns false if w is in no line.
func (l *Line[W]) Remove(w *Waiter[W]) bool {
	if !w.Queued() {
		return false
	}
	w.prev.next, w.next.prev = w.next, w.prev
	w.prev, w.next = nil, nil
	return true
}

// Pop removes the first Waiter and returns it, or nil if the line is empty.
func (l *Line[W]) Pop() *Waiter[W] {
	if l.Empty() {
		return nil
	}
	w := l.head.next
	l.Remove(w)
	return w
}
