// Package spin decides whether waits begin with polling.
package spin

import (
	"math/bits"
	"time"
)

// A Spinner decides whether the waits of a connection begin with polling or park at once. Which is better depends on
// the device, the kernel, the processor load and the peer, so the Spinner measures it. It uses one mode and from time to
// time tries the other. If the same number of waits takes less time in the other mode, that mode becomes the one in use.
// The cost of a trial determines when the next one starts, so that trials cost a few percent of the time.
//
// Each end decides for itself, but both ends try at the same time. They schedule trials by the number of messages
// received, which is the same at both ends if calls are answered. A trial by one end alone shows little: if one end
// polls, there may be no processor left to wake the other on, and an end that polls without success and then parks makes
// the other do the same.
type Spinner struct {
	parks bool  // the mode in use parks at once
	use   tally // of the mode in use
	trial bool  // the other mode is being tried
	try   tally // of the trial
	due   uint64
	waits uint64 // waits begun
}

// A tally summarizes the latest waits of one mode.
type tally struct {
	n    int           // waits counted, up to fewWaits
	mean time.Duration // of the waits, each counted up to maxWait
	vain int           // excess of waits that polled without success
}

const (
	// maxSpin is how long a wait polls before it parks.
	maxSpin = 200 * time.Microsecond
	// fewWaits is the number of waits of each mode that are compared.
	fewWaits = 32
	// maxWait bounds the time that a wait counts. During longer waits the connection is idle, or another process has
	// the processor. They would outweigh all other waits.
	maxWait = time.Millisecond
	// maxVain bounds the excess of waits that polled without success. A trial at the peer causes somewhat fewer.
	maxVain = 8
	// The pause between trials, in messages, is trialShare times the waits that fit into
	// the time lost by the last trial, from minPause to maxPause.
	trialShare = 32
	minPause   = 256
	maxPause   = 4096
	// countEvery is the number of waits per measured wait, outside of trials and once there are fewWaits.
	countEvery = 4
)

// Parking returns a Spinner that parks until it has tried polling. It is for numerous connections with few messages
// each.
func Parking() *Spinner { return &Spinner{parks: true} }

// Begin returns how long the wait that begins should poll before it parks. received is the number of messages that have
// been received so far.
func (s *Spinner) Begin(received uint64) time.Duration {
	if !s.trial && s.use.n == fewWaits && received >= s.due {
		s.trial, s.try = true, tally{}
	}
	if s.parks != s.trial {
		return 0
	}
	return maxSpin
}

// Counts reports whether the wait that begins is worth measuring. For a wait that only looks at memory, reading the
// clock twice takes longer than seeing a message that is already there.
func (s *Spinner) Counts() bool {
	s.waits++
	return s.trial || s.use.n < fewWaits || s.waits%countEvery == 0
}

// End records a wait that has ended. The caller may omit waits that Counts excludes.
func (s *Spinner) End(received uint64, took time.Duration) {
	t := &s.use
	if s.trial {
		t = &s.try
	}
	t.add(took, s.parks == s.trial && took > maxSpin)
	if !s.trial {
		if t.vain > maxVain { // whether or not parking takes longer
			s.putOff(received, maxVain*maxSpin)
			s.parks, s.use = true, tally{}
		}
		return
	}
	// If both modes are about as good, prefer parking, which leaves the processor to others.
	limit := fewWaits * s.use.mean
	if s.parks {
		limit -= limit / 16
	} else {
		limit += limit / 16
	}
	switch n := time.Duration(t.n); {
	case n*t.mean >= limit || t.vain > maxVain:
		s.trial = false
		s.putOff(received, n*(t.mean-s.use.mean)+time.Duration(t.vain)*maxSpin)
	case n == fewWaits:
		s.trial = false
		s.parks, s.use = !s.parks, s.try
		s.putOff(received, 0) // try again soon: the result may have been luck
	}
}

func (t *tally) add(took time.Duration, vain bool) {
	t.n = min(t.n+1, fewWaits)
	t.mean += (min(took, maxWait) - t.mean) / time.Duration(t.n)
	if vain {
		t.vain++
	} else {
		t.vain = max(0, t.vain-1)
	}
}

// putOff schedules the next trial. Trials begin at multiples of powers of two, so that the trials of both ends coincide,
// even if one end has fewer of them.
func (s *Spinner) putOff(received uint64, cost time.Duration) {
	waits := trialShare * max(0, cost) / max(1, s.use.mean)
	pause := uint64(1) << bits.Len64(uint64(min(max(waits, minPause), maxPause))-1)
	s.due = received&^(pause-1) + pause
}
