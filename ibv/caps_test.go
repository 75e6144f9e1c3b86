//go:build linux && cgo

package ibv

import (
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// onThread runs f on a thread of its own, which ends with it: what f changes of its
// thread is gone then.
func onThread(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // and never unlocked
		f()
	}()
	<-done
}

// withoutCaps runs f on a thread without any capability.
func withoutCaps(t *testing.T, f func()) {
	t.Helper()
	onThread(func() {
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var none [2]unix.CapUserData
		if err := unix.Capset(&header, &none[0]); err != nil {
			t.Errorf("capset: %v", err)
			return
		}
		f()
	})
}
