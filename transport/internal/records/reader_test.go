package records

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
)

// A script is a connection from which a stream is read; it blocks after that if wait is set.
type script struct {
	net.Conn
	r io.Reader
}

func (s script) Read(b []byte) (int, error)      { return s.r.Read(b) }
func (s script) SetReadDeadline(time.Time) error { return nil }

func readerOf(r io.Reader, max int) *Reader { return NewReader(script{r: r}, max, time.Second) }

// A fragment is one of a record: n bytes, and whether it is the last.
type fragment struct {
	n    int
	last bool
}

func stream(fragments ...fragment) (b []byte) {
	for i, f := range fragments {
		b = oncrpc.AppendRecordMark(b, f.n, f.last)
		b = append(b, bytes.Repeat([]byte{byte('a' + i)}, f.n)...)
	}
	return b
}

// take reads the next record in one of the ways there are.
func take(r *Reader, whole bool) ([]byte, error) {
	if err := r.Next(); err != nil {
		return nil, err
	}
	if whole {
		if msg, ok, err := r.Whole(); ok || err != nil {
			return bytes.Clone(msg), err
		}
	}
	return io.ReadAll(r)
}

func TestReader(t *testing.T) {
	const max = 40_000
	for _, tt := range []struct {
		name   string
		stream []byte
		want   []int // lengths of the records
		err    error // after them
	}{
		{"nothing", nil, nil, io.EOF},
		{"a record", stream(fragment{5, true}), []int{5}, io.EOF},
		{"an empty one", stream(fragment{0, true}, fragment{3, true}), []int{0, 3}, io.EOF},
		{"fragments", stream(fragment{1, false}, fragment{2, false}, fragment{3, true}, fragment{4, true}), []int{6, 4}, io.EOF},
		{"an empty fragment at the end", stream(fragment{7, false}, fragment{0, true}), []int{7}, io.EOF},
		{"as long as the buffer", stream(fragment{BufferSize, true}, fragment{BufferSize + 1, true}), []int{BufferSize, BufferSize + 1}, io.EOF},
		{"as long as it may be", stream(fragment{30_000, false}, fragment{10_000, true}), []int{40_000}, io.EOF},
		{"longer", stream(fragment{max + 1, true}), nil, &SizeError{max + 1, max}},
		{"longer with all fragments", stream(fragment{30_000, false}, fragment{10_001, true}), nil, &SizeError{max + 1, max}},
		{"longer than an int32 says", []byte{0xff, 0xff, 0xff, 0xff}, nil, &SizeError{1<<31 - 1, max}},
		{"longer in the sum", append(stream(fragment{1, false}), 0x7f, 0xff, 0xff, 0xff), nil, &SizeError{1<<31 - 1, max}},
		{"an empty fragment first", stream(fragment{0, false}, fragment{5, true}), nil, ErrEmptyFragment},
		{"an empty fragment within", stream(fragment{5, false}, fragment{0, false}), nil, ErrEmptyFragment},
		{"half a mark", []byte{0x80, 0}, nil, io.ErrUnexpectedEOF},
		{"half a record", stream(fragment{9, true})[:9], nil, io.ErrUnexpectedEOF},
		{"half a long record", stream(fragment{BufferSize + 9, true})[:9], nil, io.ErrUnexpectedEOF},
		{"a mark and nothing", []byte{0x80, 0, 0, 5}, nil, io.ErrUnexpectedEOF},
		{"no last fragment", stream(fragment{9, false}), nil, io.ErrUnexpectedEOF},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for _, whole := range []bool{false, true} {
				for name, src := range map[string]io.Reader{
					"at once": bytes.NewReader(tt.stream), "by bytes": iotest.OneByteReader(bytes.NewReader(tt.stream)),
				} {
					r := readerOf(src, max)
					var got []int
					var err error
					for {
						var msg []byte
						if msg, err = take(r, whole); err != nil {
							break
						}
						got = append(got, len(msg))
					}
					var size *SizeError
					if errors.As(err, &size) {
						err = &SizeError{size.Size, size.Limit}
						if want, ok := tt.err.(*SizeError); ok && *want == *size {
							err = tt.err
						}
					}
					if len(got) != len(tt.want) || err != tt.err {
						t.Fatalf("%s, whole %v: records of %d, then %v; want %d, then %v", name, whole, got, err, tt.want, tt.err)
					}
					for i := range got {
						if got[i] != tt.want[i] {
							t.Errorf("%s: records of %d, want %d", name, got, tt.want)
						}
					}
				}
			}
		})
	}
}

// Whole returns the record, and the next one follows it, skipped or not.
func TestWhole(t *testing.T) {
	r := readerOf(bytes.NewReader(stream(fragment{3, true}, fragment{4, false}, fragment{20_000, true}, fragment{2, true}, fragment{1, true})), 1<<20)
	want := func(what, msg string, ready bool) {
		t.Helper()
		if err := r.Next(); err != nil {
			t.Fatal(what, err)
		}
		got, ok, err := r.Whole()
		if err != nil || ok != (msg != "") || string(got) != msg || r.Ready() != ready {
			t.Errorf("%s: %q %v %v, ready %v", what, got, ok, err, r.Ready())
		}
	}
	if r.Ready() {
		t.Error("a record is ready before anything has been read")
	}
	want("a record before one in fragments", "aaa", false)
	want("one in fragments", "", false)
	if n, last, err := r.Rest(); n != 4 || last || err != nil {
		t.Errorf("Rest: %d %v %v", n, last, err)
	}
	if err := r.Skip(); err != nil {
		t.Fatal(err)
	}
	want("the next", "dd", true)
	want("the last", "e", false)
	if err := r.Next(); err != io.EOF {
		t.Error(err)
	}
}

// The peer may take its time between two records, and not within one.
func TestReaderPatience(t *testing.T) {
	for _, tt := range []struct {
		name  string
		parts []int // of a stream of two records, of 8 and 20000 bytes, a second between them
		stall time.Duration
		want  time.Duration // until it gives up; 0: never
	}{
		{"all at once", []int{20016}, 900 * time.Millisecond, 0},
		{"pauses between records", []int{12, 20004}, 900 * time.Millisecond, 0},
		{"a pause within", []int{6, 20010}, 900 * time.Millisecond, 900 * time.Millisecond},
		{"a pause within the first mark", []int{2, 20014}, 900 * time.Millisecond, 900 * time.Millisecond},
		{"a pause within the next mark", []int{14, 20002}, 900 * time.Millisecond, 900 * time.Millisecond},
		{"pauses within a long record", []int{12, 5000, 5000, 10004}, 2100 * time.Millisecond, 0},
		{"any pause", []int{6, 20010}, 0, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ours, peers := net.Pipe()
				defer peers.Close()
				r := NewReader(ours, 1<<20, tt.stall)
				b := stream(fragment{8, true}, fragment{20_000, true})
				var wg sync.WaitGroup
				defer wg.Wait()
				defer ours.Close()
				wg.Go(func() {
					for i, n := range tt.parts {
						if i > 0 {
							time.Sleep(time.Second)
						}
						if _, err := peers.Write(b[:n]); err != nil {
							return
						}
						b = b[n:]
					}
				})
				start := time.Now()
				var err error
				for range 2 {
					if _, err = take(r, true); err != nil {
						break
					}
				}
				if tt.want == 0 && err != nil || tt.want > 0 && (!errors.Is(err, os.ErrDeadlineExceeded) || time.Since(start) != tt.want) {
					t.Errorf("after %v: %v", time.Since(start), err)
				}
			})
		})
	}
}

// A peer that sends a long record slowly gets more time for what it has sent, and for the time in
// which nothing was read.
func TestReaderRate(t *testing.T) {
	for _, tt := range []struct {
		name  string
		step  int           // bytes that come each second
		waits time.Duration // in which the owner does not read
		want  time.Duration // until it gives up; 0: never
	}{
		{"a byte a second", 1, 0, 30 * time.Second},
		{"a byte a second, and a wait", 1, time.Minute, 90 * time.Second},
		{"half of the least rate", 70_000, 0, 60 * time.Second},
		{"the least rate", 142_000, 0, 0},
		{"as it can, read late", 1 << 20, time.Hour, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ours, peers := net.Pipe()
				defer peers.Close()
				r := NewReader(ours, 16<<20, 30*time.Second)
				b := stream(fragment{16 << 20, true})
				var wg sync.WaitGroup
				defer wg.Wait()
				defer ours.Close()
				wg.Go(func() {
					defer peers.Close()
					for end := time.Now().Add(2 * time.Hour); len(b) > 0 && time.Now().Before(end); time.Sleep(time.Second) {
						n, err := peers.Write(b[:min(len(b), tt.step)])
						if err != nil {
							return
						}
						b = b[n:]
					}
				})
				start := time.Now()
				if err := r.Next(); err != nil {
					t.Fatal(err)
				}
				if err := r.Buffer(1); err != nil {
					t.Fatal(err)
				}
				time.Sleep(tt.waits)
				r.Waited(tt.waits)
				_, err := io.ReadAll(r)
				took := time.Since(start).Round(5 * time.Second)
				if tt.want == 0 && err != nil || tt.want > 0 && (!errors.Is(err, os.ErrDeadlineExceeded) || took != tt.want) {
					t.Errorf("after %v: %v", took, err)
				}
			})
		})
	}
}

// FuzzReader reads any stream, in two ways that must find the same, and compares it with what
// record marking says, in a few lines.
func FuzzReader(f *testing.F) {
	for _, b := range [][]byte{
		nil, stream(fragment{5, true}), stream(fragment{5, false}, fragment{0, true}), stream(fragment{0, false}),
		stream(fragment{1, false}, fragment{2, true}, fragment{3, true})[:15], {0xff, 0xff, 0xff, 0xff}, {0, 0, 0, 1, 'a', 0x7f, 0xff, 0xff, 0xff},
	} {
		f.Add(b)
	}
	const max = 300
	f.Fuzz(func(t *testing.T, b []byte) {
		want, wantErr := records(b, max)
		for _, whole := range []bool{false, true} {
			r := readerOf(iotest.HalfReader(bytes.NewReader(b)), max)
			for i := 0; ; i++ {
				msg, err := take(r, whole)
				if err == nil {
					if i >= len(want) || !bytes.Equal(msg, want[i]) {
						t.Fatalf("record %d is %x", i, msg)
					}
					continue
				}
				var size *SizeError
				if errors.As(err, &size) {
					err = errTooLong
				}
				if i != len(want) || err != wantErr {
					t.Fatalf("%d records, then %v; want %d, then %v", i, err, len(want), wantErr)
				}
				break
			}
		}
	})
}

var errTooLong = errors.New("too long")

// records splits a stream into records.
func records(b []byte, max int) (list [][]byte, err error) {
	for len(b) > 0 {
		var rec []byte
		for last := false; !last; {
			if len(b) < 4 {
				return list, io.ErrUnexpectedEOF
			}
			n := int(b[0]&0x7f)<<24 | int(b[1])<<16 | int(b[2])<<8 | int(b[3])
			last = b[0]&0x80 != 0
			switch b = b[4:]; {
			case n == 0 && !last:
				return list, ErrEmptyFragment
			case n > max-len(rec):
				return list, errTooLong
			case n > len(b):
				return list, io.ErrUnexpectedEOF
			}
			rec = append(rec, b[:n]...)
			b = b[n:]
		}
		list = append(list, rec)
	}
	return list, io.EOF
}
