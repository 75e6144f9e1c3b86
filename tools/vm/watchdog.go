//go:build linux

package main

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"time"
)

// patience is how much CPU time a guest may use before it reaches the command: starting takes about ten seconds of it.
// CPU time shows that a guest hangs whether the host is idle or busy; elapsed time does not.
const patience = 100 * time.Second

// watchInterval is how often the guest is checked.
const watchInterval = 200 * time.Millisecond

// watch returns errHangs when a guest has used up its CPU time, and nil as soon as it has started the command or ended.
// If the guest's time cannot be read, the guest is ending.
func watch(ended <-chan struct{}, patience time.Duration, started func() bool, used func() (time.Duration, error)) error {
	look := time.NewTicker(watchInterval)
	defer look.Stop()
	for !started() {
		select {
		case <-look.C:
		case <-ended:
			return nil
		}
		if t, err := used(); err == nil && t >= patience && !started() {
			return errHangs
		}
	}
	return nil
}

// clockTick is the unit of times in /proc, which is the same on every Linux.
const clockTick = time.Second / 100

// processorTime returns the time used by a process, in user and in system mode.
func processorTime(pid int) (time.Duration, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	return timeInStat(stat)
}

// timeInStat reads fields 14 and 15 of proc_pid_stat(5). The second field is the name of the program in parentheses,
// which may contain anything.
func timeInStat(stat []byte) (sum time.Duration, err error) {
	const user, system = 14 - 3, 15 - 3
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(fields) <= system {
		return 0, fmt.Errorf("not a line of /proc/PID/stat: %q", stat)
	}
	for _, field := range [][]byte{fields[user], fields[system]} {
		ticks, err := strconv.ParseInt(string(field), 10, 64)
		if err != nil {
			return 0, err
		}
		sum += time.Duration(ticks) * clockTick
	}
	return sum, nil
}
