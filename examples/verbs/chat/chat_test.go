//go:build linux && cgo

package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/netip"
	"testing"
	"time"

	"github.com/rpcrdma/rpcrdma/internal/testing/rdmatest"
)

// TestRDMAChat: every member hears what one of them says.
func TestRDMAChat(t *testing.T) {
	addr := netip.MustParseAddr(rdmatest.Device(t, "rxe"))
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var speaker *member
	var heard []*bufio.Reader
	ended := make(chan error, 3)
	for range cap(ended) {
		m, err := join(ctx, addr, netip.MustParseAddr("239.7.7.9"))
		if err != nil {
			t.Fatal(err)
		}
		r, w := io.Pipe()
		listening, stop := context.WithCancel(ctx)
		go func() {
			err := m.listen(listening, w)
			m.Close()
			ended <- err
		}()
		defer func() {
			stop()
			<-ended
		}()
		speaker = m
		heard = append(heard, bufio.NewReader(r))
	}
	for _, line := range []string{"hello", "", "still there?"} {
		if err := speaker.say([]byte(line)); err != nil {
			t.Fatal(err)
		}
		want := fmt.Sprintf("%d: %s\n", speaker.qp.Num(), line)
		for i, r := range heard {
			if got, err := r.ReadString('\n'); got != want {
				t.Errorf("member %d hears %q, %v, want %q", i, got, err, want)
			}
		}
	}
}
