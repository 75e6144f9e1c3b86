//go:build linux && cgo

package main

import (
	"context"
	"errors"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rpcrdma/rpcrdma/ibv"
	"github.com/rpcrdma/rpcrdma/internal/testing/rdmatest"
)

// TestRDMALookup: a value that is read is one that was stored as a whole, while it changes.
func TestRDMALookup(t *testing.T) {
	dev, err := ibv.Open(rdmatest.Name(t, "rxe"))
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	s := newServer(dev)
	h := httptest.NewServer(s)
	defer h.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	r, err := dial(ctx, dev, h.URL)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.get(ctx, "absent"); !errors.Is(err, errAbsent) {
		t.Errorf("a key that there is not: %v", err)
	}
	if err := put(h.Client(), h.URL, "by HTTP", "is stored"); err != nil {
		t.Fatal(err)
	}
	if v, err := r.get(ctx, "by HTTP"); v != "is stored" || err != nil {
		t.Errorf("%q, %v", v, err)
	}
	long := strings.Repeat("b", 200)
	s.put("changing", "a")
	stop := make(chan struct{})
	var writer sync.WaitGroup
	writer.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
				s.put("changing", []string{"a", long}[i%2])
			}
		}
	})
	for range 200 {
		if v, err := r.get(ctx, "changing"); v != "a" && v != long || err != nil {
			t.Errorf("%q, %v", v, err)
			break
		}
	}
	close(stop)
	writer.Wait()
	if err := errors.Join(r.Close(), s.close()); err != nil {
		t.Error(err)
	}
	if err := put(h.Client(), h.URL, "large", strings.Repeat("x", slotSize)); err == nil {
		t.Error("a value that does not fit is stored")
	}
}

// TestSlot: a slot has what was stored in it, and nothing that is torn is taken for a value.
func TestSlot(t *testing.T) {
	slot := make([]byte, slotSize)
	fill(slot, "key", "value")
	if v, err := parse(slot, "key"); v != "value" || err != nil {
		t.Errorf("%q, %v", v, err)
	}
	if _, err := parse(slot, "other"); !errors.Is(err, errAbsent) {
		t.Errorf("of another key: %v", err)
	}
	for i := range slot {
		slot[i] ^= 1
		if _, err := parse(slot, "key"); !errors.Is(err, errTorn) {
			t.Errorf("byte %d has changed: %v", i, err)
		}
		slot[i] ^= 1
	}
}
