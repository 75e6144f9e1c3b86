// Package baton is for goroutines that wait for events from one source, such as the completions of a queue, and take
// turns reading it. One of them holds the baton: it leads, which means that it takes the events for all of them. The
// others follow: each sleeps until the leader has served it, or until it is its turn to lead.
//
// The package keeps track of which goroutine has the baton and which wait. Its user decides which of them an event
// serves, and guards that and a [Baton] with one lock: all functions except [Waiter.Wake], [Waiter.Sleep] and [SleepOn]
// require it.
//
// # No wake-up is lost
//
// A goroutine joins the line without having released the lock since it found that it has not been served and that the
// baton is taken. From then on, the goroutine that takes it off the line wakes it exactly once, with or without the
// lock. A wake-up therefore never comes too early, and Wake never blocks.
//
// # No goroutine waits while the baton is free
//
// The goroutine that gives the baton back calls Next, and wakes the follower that Next returns, unserved. That follower
// does one of three things. It takes the baton. Or, if another goroutine was faster, it joins the line again, and that
// goroutine will call Next. Or, if it no longer wants the baton, it calls Next itself.
package baton

import "context"

// A Baton is a T that only one goroutine at a time has, and the line of goroutines that wait for it or to be served by
// its holder. The zero value is a Baton that is taken.
type Baton[T, W any] struct {
	token *T // nil: taken
	line  Line[W]
}

// Taken reports whether the baton is taken.
func (b *Baton[T, W]) Taken() bool { return b.token == nil }

// Take takes the baton. It returns nil if the baton is taken.
func (b *Baton[T, W]) Take() *T {
	t := b.token
	b.token = nil
	return t
}

// Give gives the baton back. The caller must then call Next.
func (b *Baton[T, W]) Give(t *T) { b.token = t }

// Next removes from the line the follower that has waited longest, if the baton is free. The caller must wake it to
// lead. Next returns nil if the line is empty, or if a goroutine leads, which will call Next.
func (b *Baton[T, W]) Next() *Waiter[W] {
	if b.Taken() {
		return nil
	}
	return b.line.Pop()
}

// Join appends w to the line.
func (b *Baton[T, W]) Join(w *Waiter[W]) { b.line.Push(w) }

// Leave removes w from the line. It returns false if another goroutine has removed it, and will wake it.
func (b *Baton[T, W]) Leave(w *Waiter[W]) bool { return b.line.Remove(w) }

// Waiting reports whether any goroutine is in the line.
func (b *Baton[T, W]) Waiting() bool { return !b.line.Empty() }

// Disband removes a follower from the line whether or not the baton is free, to end all waiting. It returns nil if the
// line is empty.
func (b *Baton[T, W]) Disband() *Waiter[W] { return b.line.Pop() }

// A Waiter is a goroutine that can wait, in one line at a time.
type Waiter[W any] struct {
	who        *W
	bell       chan bool // capacity 1
	prev, next *Waiter[W]
}

// Init makes w a Waiter of its owner.
func (w *Waiter[W]) Init(who *W) { w.who, w.bell = who, make(chan bool, 1) }

// Who returns the owner that w was made for.
func (w *Waiter[W]) Who() *W { return w.who }

// Queued reports whether w is in a line.
func (w *Waiter[W]) Queued() bool { return w.next != nil }

// Wake wakes w, which the caller has removed from its line. served says that the event for which w waits has arrived;
// otherwise w is to lead. Wake ignores a nil Waiter.
func (w *Waiter[W]) Wake(served bool) {
	if w != nil {
		w.bell <- served
	}
}

// Sleep waits until w is woken.
func (w *Waiter[W]) Sleep() (served bool) { return <-w.bell }

// Bell returns the channel of w's wake-ups, for [SleepOn].
func (w *Waiter[W]) Bell() <-chan bool { return w.bell }

// SleepOn waits for a wake-up on bell, or until ctx ends. In the latter case woken is false, and the Waiter is still in
// its line, or about to be woken. If it is about to be woken, the wake-up must be received from the bell before the
// Waiter waits again.
func SleepOn(ctx context.Context, bell <-chan bool) (served, woken bool) {
	done := ctx.Done()
	if done == nil {
		return <-bell, true // costs a third of a select
	}
	select {
	case served = <-bell:
		return served, true
	case <-done:
		return false, false
	}
}
