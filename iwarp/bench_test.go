//go:build linux

package iwarp

import (
	"context"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rpcrdma/rpcrdma/fabric"
)

// The benchmarks compare the adapter with a Go program that transfers the same bytes over a
// TCP connection, in turn within one run, so that other load affects both. The relevant metric
// is the ratio of the medians.

// duel runs two contestants in turn and reports the ratio of their medians. A turn is ops
// operations.
func duel(b *testing.B, ops, bytes int, ours, theirs func(ops int)) {
	var times, cpu [2][]float64
	ours(ops)
	theirs(ops)
	b.ResetTimer()
	rounds := 0
	for b.Loop() {
		order := [2]int{rounds & 1, 1 - rounds&1}
		for _, who := range order {
			start, used := time.Now(), cpuTime()
			if who == 0 {
				ours(ops)
			} else {
				theirs(ops)
			}
			times[who] = append(times[who], float64(time.Since(start))/float64(ops))
			cpu[who] = append(cpu[who], float64(cpuTime()-used)/float64(ops))
		}
		rounds++
	}
	b.StopTimer()
	a, t := median(times[0]), median(times[1])
	// CPU time varies less than wall time on a machine with other load.
	b.ReportMetric(median(cpu[0])/median(cpu[1]), "cpu-ratio")
	b.ReportMetric(0, "ns/op")
	if bytes > 0 {
		b.ReportMetric(float64(bytes)/a*1e3, "iwarp-MB/s")
		b.ReportMetric(float64(bytes)/t*1e3, "tcp-MB/s")
		b.ReportMetric(t/a, "speed-ratio")
	} else {
		b.ReportMetric(a, "iwarp-ns")
		b.ReportMetric(t, "tcp-ns")
		b.ReportMetric(a/t, "time-ratio")
	}
}

// cpuTime returns the CPU time of the process, which has both ends of all contestants.
func cpuTime() time.Duration {
	var u syscall.Rusage
	syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func median(v []float64) float64 {
	slices.Sort(v)
	return v[len(v)/2]
}

// tcpPair returns a plain TCP connection over loopback.
func tcpPair(b testing.TB) (client, server net.Conn) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	accepted := make(chan net.Conn, 1)
	go func() {
		c, _ := l.Accept()
		accepted <- c
	}()
	client, err = net.Dial("tcp", l.Addr().String())
	if err != nil {
		b.Fatal(err)
	}
	server = <-accepted
	b.Cleanup(func() { client.Close(); server.Close() })
	return client, server
}

// BenchmarkPingPong: a message and its echo, against an echo over net.Conn.
func BenchmarkPingPong(b *testing.B) {
	for _, size := range []int{64, 1024, 4096} {
		for _, crc := range []bool{false, true} {
			b.Run(fmt.Sprintf("size=%d/crc=%t", size, crc), func(b *testing.B) {
				c, s := join(b, New(Config{CRC: crc}), fabric.ConnAttr{})
				echoed := make(chan struct{})
				go func() {
					defer close(echoed)
					pong(s, size)
				}()
				tc, ts := tcpPair(b)
				go func() {
					buf := make([]byte, size)
					for {
						if _, err := io.ReadFull(ts, buf); err != nil {
							return
						}
						ts.Write(buf)
					}
				}()
				p := newPinger(b, c, size)
				buf := make([]byte, size)
				duel(b, 500, 0, p.ping, func(n int) {
					for range n {
						tc.Write(buf)
						if _, err := io.ReadFull(tc, buf); err != nil {
							b.Fatal(err)
						}
					}
				})
				c.Close()
				<-echoed
			})
		}
	}
}

// A pinger sends and waits for the echo, with one receive.
type pinger struct {
	b    testing.TB
	c    *Conn
	send []fabric.SendWR
	recv []fabric.RecvWR
	wc   [4]fabric.WC
}

func newPinger(b testing.TB, c *Conn, size int) *pinger {
	p := &pinger{b: b, c: c,
		send: []fabric.SendWR{{ID: 1, Op: fabric.OpSend, SGL: []fabric.SGE{{Buf: make([]byte, size)}}}},
		recv: []fabric.RecvWR{{ID: 2, SGE: fabric.SGE{Buf: make([]byte, size)}}},
	}
	if err := c.PostRecv(p.recv); err != nil {
		b.Fatal(err)
	}
	return p
}

func (p *pinger) ping(n int) {
	for range n {
		if err := p.c.Post(p.send); err != nil {
			p.b.Fatal(err)
		}
		p.await()
		if err := p.c.PostRecv(p.recv); err != nil {
			p.b.Fatal(err)
		}
	}
}

// await calls Wait before Poll, since the caller has polled all completions.
func (p *pinger) await() {
	for {
		p.c.Wait()
		n, err := p.c.Poll(p.wc[:])
		if err != nil {
			p.b.Fatal(err)
		}
		if n > 0 {
			return
		}
	}
}

// pong echoes until the connection ends.
func pong(c *Conn, size int) {
	in, out := make([]byte, size), make([]byte, size)
	recv := []fabric.RecvWR{{SGE: fabric.SGE{Buf: in}}}
	send := []fabric.SendWR{{Op: fabric.OpSend, SGL: []fabric.SGE{{Buf: out}}}}
	var wc [4]fabric.WC
	c.PostRecv(recv)
	for {
		c.Wait()
		n, err := c.Poll(wc[:])
		if err != nil {
			return
		}
		if n == 0 {
			continue
		}
		if wc[0].Status != fabric.WCSuccess {
			continue
		}
		c.PostRecv(recv)
		c.Post(send)
	}
}

// BenchmarkWrite: RDMA Writes of 1 MiB, two at a time, each 16 followed by a Send that the
// other side answers, against the fastest plain loop: Write of 1 MiB, Read of 64 KiB, 256 KiB
// or 1 MiB, one byte back for every 16 MiB.
func BenchmarkWrite(b *testing.B) {
	for _, tc := range []struct {
		name string
		cfg  Config
	}{
		{"crc=false", Config{}},
		{"crc=true", Config{CRC: true}},
		{"fpdu=1448", Config{MaxFPDU: 1448}},
		{"fpdu=8948", Config{MaxFPDU: 8948}},
	} {
		for _, read := range []int{64 << 10, 256 << 10, 1 << 20} {
			b.Run(fmt.Sprintf("%s/tcpread=%dK", tc.name, read>>10), func(b *testing.B) {
				benchWrite(b, tc.cfg, read)
			})
		}
	}
}

const (
	bulk      = 1 << 20
	bulkBurst = 16
)

func benchWrite(b *testing.B, cfg Config, read int) {
	c, s := join(b, New(cfg), fabric.ConnAttr{})
	mr, err := s.RegMR(make([]byte, bulk), fabric.AccessLocalWrite|fabric.AccessRemoteWrite)
	if err != nil {
		b.Fatal(err)
	}
	seg := mr.Segment()
	var wg sync.WaitGroup
	wg.Go(func() { pong(s, 8) })
	p := newPinger(b, c, 8)
	src := make([]byte, bulk)
	wrs := make([]fabric.SendWR, bulkBurst+1)
	for i := range wrs[:bulkBurst] {
		wrs[i] = fabric.SendWR{Op: fabric.OpWrite, RKey: seg.Handle, RemoteOffset: seg.Offset, SGL: []fabric.SGE{{Buf: src}}}
	}
	wrs[bulkBurst] = p.send[0]
	p.send = wrs

	tcl, tsv := tcpPair(b)
	wg.Go(func() {
		dst := make([]byte, bulk)
		for total := 0; ; {
			n, err := tsv.Read(dst[total%bulk : min(total%bulk+read, bulk)])
			if err != nil {
				return
			}
			if total += n; total == bulk*bulkBurst {
				tsv.Write(dst[:1])
				total = 0
			}
		}
	})
	one := make([]byte, 1)
	duel(b, 4, bulk*bulkBurst, p.ping, func(n int) {
		for range n {
			for range bulkBurst {
				tcl.Write(src)
			}
			if _, err := io.ReadFull(tcl, one); err != nil {
				b.Fatal(err)
			}
		}
	})
	c.Close()
	tcl.Close()
	wg.Wait()
}

// BenchmarkRead: RDMA Reads of 1 MiB, 16 outstanding, against the same loop in
// the other direction.
func BenchmarkRead(b *testing.B) {
	c, s := join(b, New(Config{}), fabric.ConnAttr{})
	mr, err := s.RegMR(make([]byte, bulk), fabric.AccessRemoteRead)
	if err != nil {
		b.Fatal(err)
	}
	seg := mr.Segment()
	var wg sync.WaitGroup
	wg.Go(func() { pong(s, 8) })
	dst := make([]byte, bulk)
	wrs := make([]fabric.SendWR, bulkBurst)
	for i := range wrs {
		wrs[i] = fabric.SendWR{Op: fabric.OpRead, RKey: seg.Handle, RemoteOffset: seg.Offset, SGL: []fabric.SGE{{Buf: dst}}}
	}
	wrs[bulkBurst-1].Flags = fabric.Signaled
	p := &pinger{b: b, c: c}
	tcl, tsv := tcpPair(b)
	wg.Go(func() {
		src := make([]byte, bulk)
		one := make([]byte, 1)
		for {
			if _, err := tsv.Read(one); err != nil {
				return
			}
			for range bulkBurst {
				tsv.Write(src)
			}
		}
	})
	duel(b, 4, bulk*bulkBurst, func(n int) {
		for range n {
			if err := c.Post(wrs); err != nil {
				b.Fatal(err)
			}
			p.await()
		}
	}, func(n int) {
		for range n {
			tcl.Write(dst[:1])
			for total := 0; total < bulk*bulkBurst; {
				m, err := tcl.Read(dst[total%bulk : min(total%bulk+256<<10, bulk)])
				if err != nil {
					b.Fatal(err)
				}
				total += m
			}
		}
	})
	c.Close()
	tcl.Close()
	wg.Wait()
}

// BenchmarkPipeline: 32 messages of 64 bytes at once, posted one by one and
// posted as a list, and their answers.
func BenchmarkPipeline(b *testing.B) {
	const depth = 32
	for _, list := range []int{1, 8, 32} {
		b.Run(fmt.Sprintf("list=%d", list), func(b *testing.B) {
			c, s := join(b, New(Config{}), fabric.ConnAttr{})
			var wg sync.WaitGroup
			wg.Go(func() { pongMany(s, 64, depth) })
			recv := make([]fabric.RecvWR, depth)
			send := make([]fabric.SendWR, depth)
			for i := range recv {
				recv[i].SGE.Buf = make([]byte, 64)
				send[i] = fabric.SendWR{Op: fabric.OpSend, SGL: []fabric.SGE{{Buf: make([]byte, 64)}}}
			}
			var wc [depth]fabric.WC
			b.ReportAllocs()
			for b.Loop() {
				c.PostRecv(recv)
				for i := 0; i < depth; i += list {
					if err := c.Post(send[i : i+list]); err != nil {
						b.Fatal(err)
					}
				}
				for got := 0; got < depth; {
					n, err := c.Poll(wc[:])
					if err != nil {
						b.Fatal(err)
					}
					if n == 0 {
						c.Wait()
					}
					got += n
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/depth, "ns/message")
			c.Close()
			wg.Wait()
		})
	}
}

// pongMany echoes all messages that have arrived with one Post.
func pongMany(c *Conn, size, depth int) {
	recv := make([]fabric.RecvWR, depth)
	send := make([]fabric.SendWR, depth)
	for i := range recv {
		recv[i].SGE.Buf = make([]byte, size)
		send[i] = fabric.SendWR{Op: fabric.OpSend, SGL: []fabric.SGE{{Buf: make([]byte, size)}}}
	}
	c.PostRecv(recv)
	wc := make([]fabric.WC, depth)
	for {
		n, err := c.Poll(wc)
		if err != nil {
			return
		}
		if n == 0 {
			c.Wait()
			continue
		}
		if wc[0].Status != fabric.WCSuccess {
			continue
		}
		c.PostRecv(recv[:n])
		c.Post(send[:n])
	}
}

// BenchmarkConnect: setup and close of a connection, against those of a plain TCP connection.
func BenchmarkConnect(b *testing.B) {
	p := New(Config{})
	ctx := context.Background()
	l, err := p.Listen(ctx, "127.0.0.1:0", fabric.ConnAttr{})
	if err != nil {
		b.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept(ctx)
			if err != nil {
				return
			}
			c.Accept(ctx, nil)
			c.Close()
		}
	})
	tl, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	wg.Go(func() {
		for {
			c, err := tl.Accept()
			if err != nil {
				return
			}
			c.Write(make([]byte, 24))
			c.Close()
		}
	})
	duel(b, 50, 0, func(n int) {
		for range n {
			c, err := p.Resolve(ctx, l.Addr().String(), fabric.ConnAttr{})
			if err == nil {
				err = c.Connect(ctx, nil)
			}
			if err != nil {
				b.Fatal(err)
			}
			c.Close()
		}
	}, func(n int) {
		buf := make([]byte, 24)
		for range n {
			c, err := net.Dial("tcp", tl.Addr().String())
			if err != nil {
				b.Fatal(err)
			}
			c.Write(buf)
			io.ReadFull(c, buf)
			c.Close()
		}
	})
	l.Close()
	tl.Close()
	wg.Wait()
}

// BenchmarkExpose: the cost of a window, without network traffic.
func BenchmarkExpose(b *testing.B) {
	for _, size := range []int{4096, 1 << 20} {
		b.Run(fmt.Sprintf("Prepare+bind+invalidate/size=%d", size), func(b *testing.B) {
			c := New(Config{}).newConn(fabric.ConnAttr{}, &setup{})
			defer c.Close()
			mw, err := c.AllocMW()
			if err != nil {
				b.Fatal(err)
			}
			sge := fabric.SGE{Buf: make([]byte, size)}
			b.ReportAllocs()
			for b.Loop() {
				seg, err := mw.Prepare(sge, fabric.AccessRemoteWrite)
				if err != nil || !c.stags.bind(mw.(*MW)) || !c.stags.invalidate(seg.Handle, false) {
					b.Fatal("not bound")
				}
			}
		})
	}
	b.Run("RegMR+Close", func(b *testing.B) {
		c := New(Config{}).newConn(fabric.ConnAttr{}, &setup{})
		defer c.Close()
		mem := make([]byte, 4096)
		b.ReportAllocs()
		for b.Loop() {
			mr, err := c.RegMR(mem, fabric.AccessRemoteRead)
			if err != nil {
				b.Fatal(err)
			}
			mr.Close()
		}
	})
	b.Run("lookup", func(b *testing.B) {
		c := New(Config{}).newConn(fabric.ConnAttr{}, &setup{})
		defer c.Close()
		segs := make([]fabric.Segment, 64)
		for i := range segs {
			mr, err := c.RegMR(make([]byte, 4096), fabric.AccessRemoteRead)
			if err != nil {
				b.Fatal(err)
			}
			segs[i] = mr.Segment()
		}
		b.ReportAllocs()
		i := 0
		for b.Loop() {
			s := &segs[i%len(segs)]
			i++
			if _, _, flt := c.stags.remote(s.Handle, s.Offset+96, 4000, fabric.AccessRemoteRead); flt != faultNone {
				b.Fatal(flt)
			}
		}
	})
}
