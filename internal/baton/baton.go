// Package baton is for goroutines that wait for events of one source, such as the completions
// of a queue, and take turns at it. One of them has the baton: it leads, that is, it takes the
// events for all of them. The others follow: each sleeps until the leader has served it, or
// until it is its turn to lead.
//
// The package keeps account of which goroutine has the baton and which wait. Which of them an event serves is its
// user's business, which guards that and a [Baton] with one lock: all functions but
// [Waiter.Wake], [Waiter.Sleep] and [SleepOn] need it.
//
// # No wake-up is lost
//
// A goroutine joins the line without having released the lock since it found that it is not
// served and that the baton is taken. From then on, the goroutine that takes it off the line wakes it, once,
// with the lock or later. So a wake-up never comes too early, and Wake never blocks.
//
// # No goroutine waits while the baton is free
//
// The goroutine that gives the baton back calls Next, and wakes the follower that it returns, unserved. That
// follower does one of three things: it takes the baton; or, if another goroutine was faster,
// it joins the line again, and that one will call Next; or, if it does not want the baton any
// more, it calls Next itself.
package baton

import "context"

// A Baton is a T that one goroutine at a time has, and the line of goroutines that wait for it or to
// be served by its holder. The zero value is a Baton that is taken.
type Baton[T, W any] struct {
	token *T // nil: it is taken
	line  Line[W]
}

// Taken reports whether the baton is taken.
func (b *Baton[T, W]) Taken() bool { return b.token == nil }

// Take takes the baton. It returns nil if it is taken.
func (b *Baton[T, W]) Take() *T {
	t := b.token
	b.token = nil
	return t
}

// Give gives the baton back. Next is to be called after it.
func (b *Baton[T, W]) Give(t *T) { b.token = t }

// Next takes the follower off the line that has waited longest, if the baton is free. The
// caller wakes it, to lead. Nil: the line is empty, or a goroutine leads and will call Next.
func (b *Baton[T, W]) Next() *Waiter[W] {
	if b.Taken() {
		return nil
	}
	return b.line.Pop()
}

// Join puts w at the end of the line.
func (b *Baton[T, W]) Join(w *Waiter[W]) { b.line.Push(w) }

// Leave takes w off the line. It returns false if another goroutine has done that, and wakes w.
func (b *Baton[T, W]) Leave(w *Waiter[W]) bool { return b.line.Remove(w) }

// Waiting reports whether anybody is in the line.
func (b *Baton[T, W]) Waiting() bool { return !b.line.Empty() }

// Disband removes a follower from the line whether or not the baton is free, for the end of all
// waiting. Nil: the line is empty.
func (b *Baton[T, W]) Disband() *Waiter[W] { return b.line.Pop() }

// A Waiter is a goroutine that can wait, in one line at a time.
type Waiter[W any] struct {
	who        *W
	bell       chan bool // has room for one
	prev, next *Waiter[W]
}

// Init makes w a Waiter of its owner.
func (w *Waiter[W]) Init(who *W) { w.who, w.bell = who, make(chan bool, 1) }

// Who returns the owner that w was made for.
func (w *Waiter[W]) Who() *W { return w.who }

// Queued reports whether w is in a line.
func (w *Waiter[W]) Queued() bool { return w.next != nil }

// Wake wakes w, which the caller has taken off its line. Served tells it that what it waits for
// is there, or else that it is to lead. A nil Waiter is ignored.
func (w *Waiter[W]) Wake(served bool) {
	if w != nil {
		w.bell <- served
	}
}

// Sleep waits until w is woken.
func (w *Waiter[W]) Sleep() (served bool) { return <-w.bell }

// Bell is the channel of w's wake-ups, for [SleepOn].
func (w *Waiter[W]) Bell() <-chan bool { return w.bell }

// SleepOn waits for a wake-up by bell, or until ctx has ended: then woken is false, and the
// Waiter still in its line, or about to be woken. In the latter case the wake-up has to be
// taken from the bell before the Waiter waits again.
func SleepOn(ctx context.Context, bell <-chan bool) (served, woken bool) {
	done := ctx.Done()
	if done == nil {
		return <-bell, true // a third of what a select costs
	}
	select {
	case served = <-bell:
		return served, true
	case <-done:
		return false, false
	}
}
