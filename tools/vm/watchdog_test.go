//go:build linux

package main

import (
	"errors"
	"os"
	"testing"
	"testing/synctest"
	"time"
)

// TestWatch runs guests in fake time that use processor time at some rate.
func TestWatch(t *testing.T) {
	const never = 1 << 62
	for name, c := range map[string]struct {
		rate           float64       // processor time per time
		started, ended time.Duration // when it happens
		want           error
		at             time.Duration // when the watch is over
	}{
		"it hangs on an idle host":           {1, never, never, errHangs, patience},
		"it hangs on two processors":         {2, never, never, errHangs, patience / 2},
		"it hangs on a busy host":            {0.1, never, never, errHangs, 10 * patience},
		"it starts":                          {1, 10 * time.Second, never, nil, 10 * time.Second},
		"it starts late, on a busy host":     {0.1, 5 * patience, never, nil, 5 * patience},
		"it ends before the command":         {1, never, 3 * time.Second, nil, 3 * time.Second},
		"the host gives it no time for long": {0, never, 20 * patience, nil, 20 * patience},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				begin := time.Now()
				ended := make(chan struct{})
				if c.ended != never {
					time.AfterFunc(c.ended, func() { close(ended) })
				}
				err := watch(ended, patience, func() bool { return time.Since(begin) >= c.started },
					func() (time.Duration, error) { return time.Duration(c.rate * float64(time.Since(begin))), nil })
				if !errors.Is(err, c.want) {
					t.Errorf("%v, want %v", err, c.want)
				}
				if took := time.Since(begin); took < c.at || took > c.at+watchInterval {
					t.Errorf("after %v, want %v", took, c.at)
				}
			})
		})
	}
}

// TestWatchWithoutTimes: a process that has ended has no times, and does not hang.
func TestWatchWithoutTimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ended := make(chan struct{})
		time.AfterFunc(time.Hour, func() { close(ended) })
		err := watch(ended, patience, func() bool { return false }, func() (time.Duration, error) { return 0, os.ErrNotExist })
		if err != nil {
			t.Error(err)
		}
	})
}

func TestTimeInStat(t *testing.T) {
	const stat = "4711 (qemu) x) 2) S 1 4711 4711 0 -1 4194560 9 0 0 0 1234 66 7 8 20 0 5 0 1\n"
	if got, err := timeInStat([]byte(stat)); err != nil || got != 13*time.Second {
		t.Errorf("%v, %v", got, err)
	}
	for _, wrong := range []string{"", "1 (a) S 1", "1 (a) S 1 2 3 4 5 6 7 8 9 10 x 12 13"} {
		if _, err := timeInStat([]byte(wrong)); err == nil {
			t.Errorf("%q is taken for a line of stat", wrong)
		}
	}
	if used, err := processorTime(os.Getpid()); err != nil || used < 0 || used > time.Hour {
		t.Errorf("this process: %v, %v", used, err)
	}
}
