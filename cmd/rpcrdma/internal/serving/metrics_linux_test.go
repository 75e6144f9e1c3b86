package serving

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/cmdtest"
	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
)

// A health check of one host is answered within a second, whatever another host sends to the port.
func TestHealthUnderFlood(t *testing.T) {
	m, err := newMetrics(listenLocal(t), "127.0.0.1:0", slog.New(slog.DiscardHandler))
	testutil.Must(t, err)
	m.start()
	defer m.Close()
	addr := m.listener.Addr().String()
	const attacker, probe = "127.0.0.1", "127.0.0.2"
	var done atomic.Int64 // of the attacker's requests or connections
	connect := func(ctx context.Context, first string) (net.Conn, error) {
		conn, err := cmdtest.DialerFrom(attacker).DialContext(ctx, "tcp", addr)
		if err != nil {
			return nil, err
		}
		done.Add(1)
		_, err = io.WriteString(conn, first)
		return conn, errors.Join(err, conn.SetDeadline(time.Now().Add(10*time.Second)))
	}
	client := http.Client{Timeout: time.Second, Transport: &http.Transport{DialContext: cmdtest.DialerFrom(attacker).DialContext}}
	for _, tt := range []struct {
		name    string
		workers int
		least   int64 // what makes it a flood
		do      func(ctx context.Context)
	}{
		{"requests", 8, 2 * metricsRate, func(context.Context) {
			if res, err := client.Get("http://" + addr + "/"); err == nil {
				done.Add(1)
				res.Body.Close()
			}
		}},
		{"connections", 2, 4 * metricsAccepts, func(ctx context.Context) {
			if conn, err := connect(ctx, ""); err == nil {
				conn.Close()
			}
			time.Sleep(3 * time.Millisecond) // less than metricsDrops come: beyond that all wait in the kernel
		}},
		{"half requests", 2 * metricsConns, metricsConns, func(ctx context.Context) {
			conn, err := connect(ctx, "GET / HTTP/1.1\r\n")
			if err == nil {
				stop := context.AfterFunc(ctx, func() { conn.Close() })
				io.Copy(io.Discard, conn) // until the server has had enough of it
				stop()
				conn.Close()
			}
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			done.Store(0)
			stop := cmdtest.Flood(t, tt.workers, tt.do)
			defer stop()
			testutil.Eventually(t, "it is a flood", func() bool { return done.Load() >= tt.least })
			const probes = 4
			answered := 0
			check := http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DialContext: cmdtest.DialerFrom(probe).DialContext, DisableKeepAlives: true}}
			var last error
			for range probes {
				time.Sleep(time.Second / metricsHost)
				res, err := check.Get("http://" + addr + "/healthz")
				if err != nil {
					last = err
					continue
				}
				res.Body.Close()
				if res.StatusCode == 200 {
					answered++
				} else {
					last = errors.New(res.Status)
				}
			}
			if answered < probes-1 { // other processes may have the processors for a second
				t.Errorf("%d of %d probes were answered: %v", answered, probes, last)
			}
		})
	}
}
