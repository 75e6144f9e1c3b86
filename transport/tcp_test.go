package transport

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
)

// A pipeListener hands out connections of net.Pipe, which have no buffers.
type pipeListener struct {
	conns chan net.Conn
}

type hostConn struct {
	net.Conn
	host string
}

func (c hostConn) RemoteAddr() net.Addr { return peerAddr(c.host) }

func (l *pipeListener) Accept() (net.Conn, error) {
	c, ok := <-l.conns
	if !ok || c == nil {
		return nil, net.ErrClosed
	}
	return c, nil
}
func (l *pipeListener) Close() error   { close(l.conns); return nil }
func (l *pipeListener) Addr() net.Addr { return peerAddr("script:1") }

// dial makes a connection, whose two ends are returned; ours is nil if it was turned away.
func (l *pipeListener) dial(limited net.Listener, host string) (ours, peers net.Conn) {
	a, b := net.Pipe()
	accepted := make(chan net.Conn, 1)
	go func() {
		if c, err := limited.Accept(); err == nil {
			accepted <- c
		}
	}()
	l.conns <- hostConn{a, host}
	synctest.Wait()
	select {
	case c := <-accepted:
		return c, b
	default:
		l.conns <- nil // ends that Accept
		return nil, b
	}
}

func overTCP(t *testing.T, cfg *Settings, script func(s *Server, l *pipeListener, limited net.Listener)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s, err := NewServer(cfg.Server())
		if err != nil {
			t.Fatal(err)
		}
		l := &pipeListener{conns: make(chan net.Conn)}
		script(s, l, s.LimitTCP(l))
		synctest.Wait()
		if n := s.reserved(); n != 0 || s.guests.n != 0 || s.memory.Stats().Hosts != 0 {
			t.Errorf("in the end %d bytes are reserved, and there are %d connections", n, s.guests.n)
		}
		s.Close()
	})
}

// take reads records from c into a channel.
func take(c net.Conn) <-chan []byte {
	records := make(chan []byte, 100)
	go func() {
		defer close(records)
		for {
			var mark [4]byte
			if _, err := io.ReadFull(c, mark[:]); err != nil {
				return
			}
			n, _, _ := oncrpc.ConsumeRecordMark(mark[:])
			b := make([]byte, n)
			if _, err := io.ReadFull(c, b); err != nil {
				return
			}
			records <- b
		}
	}()
	return records
}

func TestTCPLimits(t *testing.T) {
	record := func(n int) []byte { return append(marked(n), make([]byte, n)...) }

	t.Run("calls in flight, and their memory", func(t *testing.T) {
		for _, c := range []struct {
			cfg  *Settings
			size int
			want int
		}{
			{&Settings{Credits: 3}, 100, 3},
			{&Settings{MaxMessage: 1 << 20, MaxMemory: 4 << 20}, 100, 3}, // 1 MiB and some each
			{&Settings{MaxMessage: 1 << 20, MaxMemory: 4 << 20}, 1 << 20, 2},
		} {
			overTCP(t, c.cfg, func(s *Server, l *pipeListener, limited net.Listener) {
				ours, peers := l.dial(limited, "a:1")
				records := take(ours)
				replies := take(peers)
				const all = 10
				go func() {
					for range all {
						peers.Write(record(c.size))
					}
				}()
				synctest.Wait()
				if n := len(records); n != c.want {
					t.Errorf("%d calls of %d bytes are read, want %d", n, c.size, c.want)
				}
				for range all {
					if n := len(<-records); n != c.size {
						t.Fatalf("a call of %d bytes, want %d", n, c.size)
					}
					if _, err := ours.Write(record(10)); err != nil {
						t.Fatal(err)
					}
					synctest.Wait()
				}
				if n := len(replies); n != all {
					t.Errorf("%d replies", n)
				}
				ours.Close()
				peers.Close()
			})
		}
	})

	t.Run("fragments come through as they are", func(t *testing.T) {
		overTCP(t, nil, func(s *Server, l *pipeListener, limited net.Listener) {
			ours, peers := l.dial(limited, "a:1")
			var sent []byte
			for _, f := range []struct {
				n    int
				last bool
			}{{5, false}, {0, false}, {7, true}, {0, true}, {100_000, true}, {1, true}} {
				sent = oncrpc.AppendRecordMark(sent, f.n, f.last)
				sent = append(sent, bytes.Repeat([]byte{byte(f.n)}, f.n)...)
			}
			go func() {
				for b := sent; len(b) > 0; b = b[min(3000, len(b)):] {
					peers.Write(b[:min(3000, len(b))])
				}
				peers.Close()
			}()
			got, err := io.ReadAll(ours)
			if err != nil || !bytes.Equal(got, sent) {
				t.Errorf("%d bytes of %d came through: %v", len(got), len(sent), err)
			}
			if n := len(ours.(*limitedConn).calls); n != 4 {
				t.Errorf("%d calls are in flight, want 4", n)
			}
			ours.Close()
		})
	})

	t.Run("a peer that takes no replies, and one that sends half a call", func(t *testing.T) {
		for _, half := range []bool{false, true} {
			overTCP(t, nil, func(s *Server, l *pipeListener, limited net.Listener) {
				ours, peers := l.dial(limited, "a:1")
				start := time.Now()
				var err error
				if half {
					go peers.Write(record(100)[:50])
					_, err = io.ReadAll(ours)
				} else {
					_, err = ours.Write(record(100))
				}
				var e *StallError
				if !errors.As(err, &e) || time.Since(start) != 30*time.Second {
					t.Errorf("half a call %v: %v after %v", half, err, time.Since(start))
				}
				ours.Close()
				peers.Close()
			})
		}
	})

	t.Run("silence between calls is no stall, and a slow reader neither", func(t *testing.T) {
		overTCP(t, nil, func(s *Server, l *pipeListener, limited net.Listener) {
			ours, peers := l.dial(limited, "a:1")
			records := take(ours)
			for range 3 {
				time.Sleep(time.Hour)
				peers.Write(record(100))
				<-records
				go func() {
					var b [10]byte
					for range 11 {
						time.Sleep(20 * time.Second)
						io.ReadFull(peers, b[:])
					}
				}()
				if _, err := ours.Write(record(106)); err != nil {
					t.Fatal(err)
				}
			}
			ours.Close()
			peers.Close()
		})
	})

	t.Run("a deadline of the server's ends the wait for calls", func(t *testing.T) {
		overTCP(t, nil, func(s *Server, l *pipeListener, limited net.Listener) {
			ours, peers := l.dial(limited, "a:1")
			done := make(chan error, 1)
			go func() {
				_, err := ours.Read(make([]byte, 10))
				done <- err
			}()
			synctest.Wait()
			ours.SetReadDeadline(time.Now())
			if err := <-done; !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("Read: %v", err)
			}
			ours.Close()
			peers.Close()
		})
	})

	t.Run("connections make room for other hosts", func(t *testing.T) {
		overTCP(t, &Settings{MaxConns: 2}, func(s *Server, l *pipeListener, limited net.Listener) {
			a1, p1 := l.dial(limited, "a:1")
			time.Sleep(2 * time.Second)
			a2, p2 := l.dial(limited, "a:2")
			if c, _ := l.dial(limited, "a:3"); c != nil {
				t.Error("the host that has all has got one more")
			}
			b, p3 := l.dial(limited, "b:1")
			if b == nil {
				t.Fatal("no room for another host")
			}
			if _, err := a1.Read(make([]byte, 1)); !errors.Is(err, errMakesRoom) {
				t.Errorf("the longest silent one: %v", err)
			}
			for _, c := range []net.Conn{a1, a2, b, p1, p2, p3} {
				c.Close()
			}
		})
	})
}
