//go:build linux && cgo

package main

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/rpcrdma/rpcrdma/ibv"
	"github.com/rpcrdma/rpcrdma/internal/testing/rdmatest"
)

// TestRDMAObjects: objects of any size come back as they were stored, and others are errors.
func TestRDMAObjects(t *testing.T) {
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
	c, err := dial(ctx, dev, h.URL+"/some/name")
	if err != nil {
		t.Fatal(err)
	}
	var src [32]byte
	for _, size := range []int{1, 4096, 1<<20 + 1} {
		object := make([]byte, size)
		rand.NewChaCha8(src).Read(object)
		where := h.URL + "/objects/a"
		if err := c.put(ctx, where, object); err != nil {
			t.Fatal(err)
		}
		clear(c.buf)
		if got, err := c.get(ctx, where); err != nil || !bytes.Equal(got, object) {
			t.Fatalf("%d bytes come back as %d, %v", size, len(got), err)
		}
	}
	if _, err := c.get(ctx, h.URL+"/absent"); err == nil {
		t.Error("an object that there is not is fetched")
	}
	if err := c.put(ctx, h.URL+"/large", make([]byte, maxObject+1)); err == nil {
		t.Error("an object that is too large is stored")
	}
	c.token = "another's"
	if _, err := c.get(ctx, h.URL+"/objects/a"); err == nil {
		t.Error("a session that there is not is served")
	}
	if err := errors.Join(c.Close(), s.close()); err != nil {
		t.Error(err)
	}
}
