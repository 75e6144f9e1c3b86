//go:build linux && cgo

package main

import (
	"context"
	"encoding/binary"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/rpcrdma/rpcrdma/ibv"
	"github.com/rpcrdma/rpcrdma/internal/testing/rdmatest"
)

// TestRDMACounter: clients that add at the same time lose no addition.
func TestRDMACounter(t *testing.T) {
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
	const clients, each = 4, 50
	var all sync.WaitGroup
	for range clients {
		all.Go(func() {
			if _, err := add(ctx, dev, h.URL, each); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if err := s.close(); err != nil {
		t.Error(err)
	}
	if n := binary.NativeEndian.Uint64(s.counter); n != clients*each {
		t.Errorf("the counter is at %d, want %d", n, clients*each)
	}
}
