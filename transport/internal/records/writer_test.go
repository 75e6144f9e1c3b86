package records

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
)

// A pipe is net.Pipe with writes that can be resumed, and the sizes of writes that were tried.
type pipe struct {
	net.Conn
	writes atomic.Int32
}

func (p *pipe) Write(b []byte) (int, error) {
	p.writes.Add(1)
	return p.Conn.Write(b)
}

// A bench is a Writer to a pipe, in fake time.
type bench struct {
	*Writer
	conn     *pipe
	peer     net.Conn
	answers  atomic.Int32
	rested   atomic.Int32
	failures chan error
}

func onBench(t *testing.T, opt Options, script func(b *bench)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ours, peer := net.Pipe()
		b := &bench{conn: &pipe{Conn: ours}, peer: peer, failures: make(chan error, 10)}
		opt.Failed = func(err error) {
			b.failures <- err
			ours.Close()
		}
		opt.Written = func(n int) { b.answers.Add(int32(n)) }
		opt.Rested = func() { b.rested.Add(1) }
		b.Writer = NewWriter(b.conn, opt)
		script(b)
		ours.Close()
		peer.Close()
		b.Close()
		synctest.Wait()
		if !b.Rests() || b.leaving != 0 || len(b.entries) != 0 {
			t.Errorf("in the end something is queued")
		}
	})
}

// An owner counts how often its memory is released.
type owner struct{ released atomic.Int32 }

func (o *owner) Released() { o.released.Add(1) }

// recordOf is a record of n bytes c, in parts.
func recordOf(n int, c byte) *Record {
	data := bytes.Repeat([]byte{c}, n)
	return &Record{Parts: [][]byte{oncrpc.AppendRecordMark(nil, n, true), data[:n/3], nil, data[n/3:]}}
}

// want reads the next record.
func (b *bench) want(t *testing.T, n int, c byte) {
	t.Helper()
	mark := make([]byte, 4)
	if _, err := io.ReadFull(b.peer, mark); err != nil {
		t.Fatal(err)
	}
	size, last, _ := oncrpc.ConsumeRecordMark(mark)
	if int(size) != n || !last {
		t.Fatalf("a record of %d bytes, want %d", size, n)
	}
	msg := make([]byte, n)
	if _, err := io.ReadFull(b.peer, msg); err != nil || !bytes.Equal(msg, bytes.Repeat([]byte{c}, n)) {
		t.Fatalf("a record of %q: %v", msg[:min(n, 10)], err)
	}
}

func (b *bench) wantFailure(t *testing.T, want error, after time.Duration, since time.Time) {
	t.Helper()
	if err := <-b.failures; !errors.Is(err, want) || time.Since(since) != after {
		t.Errorf("after %v: %v; want %v: %v", time.Since(since), err, after, want)
	}
}

const long = 10_000

func TestWriter(t *testing.T) {
	for _, resumable := range []bool{false, true} {
		opt := Options{Stall: 30 * time.Second, Resumable: resumable}
		t.Run(fmt.Sprintf("resumable=%v", resumable), func(t *testing.T) {
			t.Run("short records go together, and belong to their owner at once", func(t *testing.T) {
				onBench(t, opt, func(b *bench) {
					for i := range 5 {
						r := recordOf(100*i, byte('a'+i))
						r.Answer = i%2 == 0
						if !b.Write(r) {
							t.Error("a short record is not free")
						}
						for _, p := range r.Parts {
							clear(p)
						}
					}
					go b.Flush()
					for i := range 5 {
						b.want(t, 100*i, byte('a'+i))
					}
					synctest.Wait()
					if n := b.conn.writes.Load(); n != 1 || b.answers.Load() != 3 || b.rested.Load() != 1 {
						t.Errorf("%d writes, %d answers", n, b.answers.Load())
					}
				})
			})
			t.Run("long records belong to the Writer until they are out", func(t *testing.T) {
				onBench(t, opt, func(b *bench) {
					r, o := recordOf(long, 'x'), new(owner)
					r.Owner = o
					if b.Write(r) {
						t.Error("a long record is free")
					}
					b.Write(recordOf(7, 'y'))
					go b.Flush()
					synctest.Wait()
					if o.released.Load() != 0 {
						t.Error("released before it is read")
					}
					b.want(t, 7, 'y')
					b.want(t, long, 'x')
					synctest.Wait()
					if o.released.Load() != 1 {
						t.Errorf("released %d times", o.released.Load())
					}
				})
			})
			t.Run("a peer that does not read keeps nobody", func(t *testing.T) {
				onBench(t, opt, func(b *bench) {
					start := time.Now()
					for range 3 {
						b.Write(recordOf(5, 'a'))
						b.Flush()
					}
					if d := time.Since(start); d > tick {
						t.Errorf("writing took %v", d)
					}
					time.Sleep(10 * time.Second)
					for range 3 {
						b.want(t, 5, 'a')
					}
				})
			})
			t.Run("one that never reads loses the connection, and everything is free", func(t *testing.T) {
				onBench(t, opt, func(b *bench) {
					var o owner
					for range 2 * batchSize / long {
						r := recordOf(long, 'x')
						r.Owner = &o
						b.Write(r)
					}
					start := time.Now()
					b.Flush()
					b.wantFailure(t, ErrStalled, 30*time.Second, start)
					synctest.Wait()
					if n := o.released.Load(); n != 2*batchSize/long {
						t.Errorf("%d records released", n)
					}
					if !b.Write(recordOf(long, 'x')) {
						t.Error("a record is queued for nobody")
					}
				})
			})
			t.Run("one that reads slowly keeps it", func(t *testing.T) {
				onBench(t, opt, func(b *bench) {
					r := recordOf(long, 'x')
					if !resumable {
						// A part counts when it has been taken as a whole.
						r.Parts = append(r.Parts[:1:1], slices.Collect(slices.Chunk(r.Parts[3], long/10))...)
					}
					n := r.Size()
					b.Write(r)
					b.Flush()
					for n > 0 {
						time.Sleep(20 * time.Second)
						k, err := io.ReadAtLeast(b.peer, make([]byte, long/10), min(n, long/10))
						if n -= k; err != nil {
							t.Fatal(err)
						}
					}
				})
			})
			t.Run("the end of the connection frees everything", func(t *testing.T) {
				onBench(t, opt, func(b *bench) {
					var o owner
					for range 3 {
						r := recordOf(long, 'x')
						r.Owner = &o
						b.Write(r)
					}
					b.Flush()
					b.peer.Close()
					if err := <-b.failures; !errors.Is(err, io.ErrClosedPipe) {
						t.Error(err)
					}
					synctest.Wait()
					if n := o.released.Load(); n != 3 {
						t.Errorf("%d records released", n)
					}
				})
			})
		})
	}
}

// An again writes its record once more when it is out.
type again struct {
	b   *bench
	rec *Record
}

func (a *again) Released() { a.b.Write(a.rec) }

// A caller of Flush writes a few batches for others, then another goroutine goes on.
func TestFlushEnds(t *testing.T) {
	onBench(t, Options{Resumable: true}, func(b *bench) {
		r := recordOf(long, 'a')
		r.Owner = &again{b, r}
		b.Write(r)
		var returned atomic.Bool
		go func() {
			b.Flush()
			returned.Store(true)
		}()
		for range turns {
			b.want(t, long, 'a')
		}
		synctest.Wait()
		if !returned.Load() {
			t.Errorf("Flush writes on after %d batches", turns)
		}
	})
}

func TestWithdraw(t *testing.T) {
	opt := Options{Stall: 30 * time.Second, Resumable: true}
	// spoil shows whether a record's memory is still in use.
	spoil := func(r *Record) {
		for _, p := range r.Parts {
			clear(p)
		}
	}
	for _, tt := range []struct {
		name  string
		read  int  // bytes that the peer takes first
		which byte // is withdrawn: of the records a, b, c, in one batch
		want  string
	}{
		{"the first, not begun", 0, 'a', "bc"},
		{"the first, whose mark is out", 4, 'a', "abc"},
		{"the first, half out", 5000, 'a', "abc"},
		{"the first, which is out", long + 4, 'a', "abc"},
		{"the second, not begun", 0, 'b', "ac"},
		{"the second, behind half of the first", 5000, 'b', "ac"},
		{"the second, half out", long + 5000, 'b', "abc"},
		{"the last, not begun", long + 5000, 'c', "ab"},
		{"the last, half out", 2*long + 5000, 'c', "abc"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			onBench(t, opt, func(b *bench) {
				recs := map[byte]*Record{}
				for _, c := range []byte("abc") {
					recs[c] = recordOf(long, c)
					b.Write(recs[c])
				}
				b.Flush() // and leaves it to a goroutine
				got := make([]byte, tt.read)
				if _, err := io.ReadFull(b.peer, got); err != nil {
					t.Fatal(err)
				}
				b.Withdraw(recs[tt.which])
				spoil(recs[tt.which])
				var want []byte
				for _, c := range []byte(tt.want) {
					want = append(oncrpc.AppendRecordMark(want, long, true), bytes.Repeat([]byte{c}, long)...)
				}
				rest := make([]byte, len(want)-len(got))
				if _, err := io.ReadFull(b.peer, rest); err != nil || !bytes.Equal(append(got, rest...), want) {
					t.Errorf("another stream: %v", err)
				}
				synctest.Wait()
				if !b.Rests() {
					t.Error("something is left")
				}
			})
		})
	}

	t.Run("the second, half out, after the first, not begun", func(t *testing.T) {
		onBench(t, opt, func(b *bench) {
			first, second := recordOf(long, 'a'), recordOf(long, 'b')
			b.Write(first)
			b.Write(second)
			b.Write(recordOf(long, 'c'))
			b.Flush()
			b.Withdraw(first)
			spoil(first)
			got := make([]byte, 5000)
			if _, err := io.ReadFull(b.peer, got); err != nil {
				t.Fatal(err)
			}
			b.Withdraw(second)
			spoil(second)
			rest := make([]byte, long+4-len(got))
			if _, err := io.ReadFull(b.peer, rest); err != nil || !bytes.Equal(append(got, rest...)[4:], bytes.Repeat([]byte{'b'}, long)) {
				t.Fatalf("the second record is torn: %v", err)
			}
			b.want(t, long, 'c')
		})
	})
	t.Run("a record that is queued", func(t *testing.T) {
		onBench(t, opt, func(b *bench) {
			r := recordOf(long, 'a')
			b.Write(r)
			b.Withdraw(r)
			b.Flush()
			if !b.Rests() || b.conn.writes.Load() != 0 {
				t.Error("it has been written")
			}
			b.Withdraw(r) // idle
		})
	})
	t.Run("those who withdraw do not keep a stalled peer alive", func(t *testing.T) {
		onBench(t, opt, func(b *bench) {
			start := time.Now()
			b.Write(recordOf(long, 'a'))
			b.Flush()
			for time.Since(start) < time.Minute && len(b.failures) == 0 {
				r := recordOf(long, 'b')
				b.Write(r)
				b.Flush()
				time.Sleep(time.Second)
				b.Withdraw(r)
			}
			if err := <-b.failures; !errors.Is(err, ErrStalled) || time.Since(start) > 32*time.Second {
				t.Errorf("after %v: %v", time.Since(start), err)
			}
		})
	})
	t.Run("writes that cannot be resumed cost the connection, after a second", func(t *testing.T) {
		onBench(t, Options{Stall: 30 * time.Second}, func(b *bench) {
			r := recordOf(long, 'a')
			b.Write(r)
			b.Flush()
			synctest.Wait()
			start := time.Now()
			b.Withdraw(r)
			b.wantFailure(t, ErrStuck, patience, start)
			spoil(r)
		})
	})
	t.Run("unless the peer takes them in time", func(t *testing.T) {
		onBench(t, Options{Stall: 30 * time.Second}, func(b *bench) {
			r := recordOf(long, 'a')
			b.Write(r)
			b.Flush()
			synctest.Wait()
			go func() {
				time.Sleep(patience / 2)
				b.want(t, long, 'a')
			}()
			b.Withdraw(r)
			spoil(r)
			time.Sleep(time.Minute)
			if len(b.failures) > 0 {
				t.Error(<-b.failures)
			}
		})
	})
}

// Many goroutines write to a socket, and withdraw what they wrote, while the peer reads at its
// own pace: each record comes whole, once or not at all, and never with memory that its owner
// has taken back.
func TestWriterStorm(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ours, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	peer, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	var answers atomic.Int64
	w := NewWriter(ours, Options{
		Stall: 30 * time.Second, Resumable: true,
		Failed:  func(err error) { t.Error(err) },
		Written: func(n int) { answers.Add(int64(n)) },
		Rested:  func() {},
	})
	const goroutines, each = 8, 300
	var sent, short atomic.Int64
	read := make(chan int)
	go func() {
		n := 0
		defer func() { read <- n }()
		r := NewReader(peer, 1<<20, 0)
		for ; ; n++ {
			msg, err := take(r, n%2 == 0)
			if err == io.EOF || errors.Is(err, os.ErrClosed) {
				return
			}
			if err != nil {
				t.Error(err)
				return
			}
			if bytes.Count(msg, msg[:1]) != len(msg) || msg[0] == 0 {
				t.Error("a record is mixed with others, or spoiled")
				return
			}
			if n%50 == 0 {
				time.Sleep(tick * 2) // longer than a caller waits: the socket's buffers fill
			}
		}
	}()
	var wg sync.WaitGroup
	for g := range goroutines {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(g), 7))
			for range each {
				n := 1 + rng.IntN(Short-10)
				if rng.IntN(3) == 0 {
					n = Short + rng.IntN(300_000)
				}
				r := recordOf(n, byte(1+rng.IntN(255)))
				r.Answer = true
				free := w.Write(r)
				w.Flush()
				if free {
					short.Add(1)
				} else {
					w.Withdraw(r)
				}
				sent.Add(1)
				for _, p := range r.Parts {
					clear(p)
				}
			}
		})
	}
	wg.Wait()
	for !w.Rests() {
		time.Sleep(time.Millisecond)
	}
	ours.Close()
	w.Close()
	n := <-read
	peer.Close()
	t.Logf("%d of %d records arrived, %d of them short", n, sent.Load(), short.Load())
	if n < int(short.Load()) || answers.Load() != short.Load() {
		t.Errorf("%d short records, of which %d were counted", short.Load(), answers.Load())
	}
}
