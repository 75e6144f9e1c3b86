package leak

import (
	"os"
	"strings"
	"testing"
	"time"
)

// TestNotices: leaks are detected, and nothing else.
func TestNotices(t *testing.T) {
	var out strings.Builder
	// The goroutine of the test before may be counted yet: there are main's and this one.
	before := count{goroutines: 2, descriptors: descriptors()}
	if !settled(before, time.Minute, &out) {
		t.Fatalf("other goroutines run: %s", out.String())
	}
	out.Reset()
	if !settled(before, 0, &out) {
		t.Errorf("nothing was left, but: %s", out.String())
	}

	stop := make(chan struct{})
	go func() { <-stop }()
	if settled(before, 0, &out) || !strings.Contains(out.String(), "1 goroutines") {
		t.Errorf("a goroutine goes unnoticed: %s", out.String())
	}
	close(stop)
	if !settled(before, time.Minute, &out) {
		t.Error("a goroutine that has ended is counted")
	}

	f, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	out.Reset()
	if len(descriptors()) > 0 && (settled(before, 0, &out) || !strings.Contains(out.String(), "1 descriptors")) {
		t.Errorf("a descriptor goes unnoticed: %s", out.String())
	}
	f.Close()
}

// TestCheck: a test without leaks passes.
func TestCheck(t *testing.T) {
	t.Run("clean", func(t *testing.T) {
		Check(t)
		done := make(chan struct{})
		go close(done)
		<-done
	})
}
