//go:build generated

package service

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
	"github.com/rpcrdma/rpcrdma/iwarp"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/transport"
)

// A store is the server of the tests.
type store struct {
	UnimplementedStoreV1Server
	mu       sync.Mutex
	values   map[string][]byte
	own      bool // results are in the store's memory, not the transport's
	released atomic.Int64
}

func (s *store) Put(_ context.Context, _ *rpc.Request, args *PutArgs, res *PutRes) error {
	if len(args.Id) == 0 {
		res.Status = StoreFull
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.values[string(args.Id)] = bytes.Clone(args.Value)
	res.Token = StoreToken{7: byte(args.Flags)}
	return nil
}

func (s *store) Get(_ context.Context, req *rpc.Request, args *GetArgs, res *GetRes) error {
	s.mu.Lock()
	value, ok := s.values[string(args.Id)]
	s.mu.Unlock()
	if !ok {
		res.Status = StoreNoent
		return nil
	}
	n := min(len(value), int(args.Count))
	res.Ok.Tag = append(append(make([]byte, 0, 16), "tag of "...), args.Id...)
	res.Ok.Eof = n == len(value)
	if s.own {
		res.Ok.Value = value[:n]
		req.WhenReleased(func() { s.released.Add(1) })
		return nil
	}
	res.Ok.Value = req.Alloc(n)
	copy(res.Ok.Value, value)
	return nil
}

func (s *store) Count(_ context.Context, _ *rpc.Request, shard uint32, res *uint32) error {
	*res = shard + 1
	return nil
}

func (s *store) Name(_ context.Context, _ *rpc.Request, shard uint32, prefix string, res *string) error {
	*res = fmt.Sprint(prefix, shard)
	return nil
}

// Wait returns how far the deadline of its context is away, and waits for one of less than a second.
func (s *store) Wait(ctx context.Context, _ *rpc.Request, args *WaitArgs, res *WaitRes) error {
	if args.Fail {
		return errors.New(strings.Repeat("no room", 5) + " \x1b\u00e9\u00e9\u00e9")
	}
	if deadline, ok := ctx.Deadline(); ok {
		res.Left = uint32(time.Until(deadline).Milliseconds())
		if args.Left < 1000 {
			<-ctx.Done()
		}
	}
	return nil
}

// Swap answers with what is in the call.
func (s *store) Swap(_ context.Context, _ *rpc.Request, args, res *Pair) error {
	*res = Pair{Number: -args.Number, Text: args.Other, Mark: args.Mark, Other: args.Text}
	return nil
}

func (s *store) Copy(_ context.Context, _ *rpc.Request, args, res *Pair) error {
	*res = *args
	return nil
}

func (s *store) Echo(_ context.Context, _ *rpc.Request, args, res *GetArgs) error {
	*res = *args
	return nil
}

func (s *store) List(_ context.Context, _ *rpc.Request, args *ListArgs, res *Listing) error {
	for i := range args.Count {
		res.Entries = append(res.Entries, Entry{Id: StoreId{byte(i)}, Size: uint64(args.Cookie)})
	}
	res.Eof = true
	return nil
}

func (s *store) Clear(context.Context, *rpc.Request) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.values)
	return nil
}

// Watch calls the client back before it answers.
func (s *store) Watch(ctx context.Context, req *rpc.Request, events uint32, id StoreId, res *StoreStatus) error {
	req.Conn().AllowBackward(0)
	back := NewWatchV1Client(req.Conn())
	if err := back.Null(ctx); err != nil {
		return err
	}
	for i := range events {
		n, err := back.Changed(ctx, id, StoreNoent)
		if err != nil {
			return err
		}
		if n != i+1 {
			return fmt.Errorf("event %d is number %d", i, n)
		}
	}
	*res = StoreFull
	return nil
}

// A watcher is executed by the client for the server.
type watcher struct {
	mu  sync.Mutex
	ids []string
}

func (w *watcher) Changed(_ context.Context, _ *rpc.Request, id StoreId, status StoreStatus, res *uint32) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ids = append(w.ids, fmt.Sprint(string(id), " ", status))
	*res = uint32(len(w.ids))
	return nil
}

// A bed is a server of one program, and a client of it.
type bed struct {
	client  *transport.Client
	store   *StoreV1Client
	watcher *watcher
	log     *syncBuffer
}

// A syncBuffer is the log of a server.
type syncBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// start starts a server of the program, over TCP or the software adapter.
func start(t *testing.T, over string, program rpc.Program) *bed {
	t.Helper()
	b := &bed{watcher: new(watcher), log: new(syncBuffer)}
	config := transport.Config{Logger: slog.New(slog.NewTextHandler(b.log, nil))}
	if over == "iwarp, all chunks" {
		config.PeerChunks = transport.AllChunks
	}
	server, err := transport.NewServer(&transport.ServerConfig{Config: config})
	testutil.Must(t, err)
	t.Cleanup(func() { server.Close() })
	testutil.Must(t, server.Register(program))
	cc := &transport.ClientConfig{Config: config, Callbacks: []rpc.Program{WatchV1Program(b.watcher)}}
	if over == "tcp" {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		testutil.Must(t, err)
		go server.ServeTCP(l)
		b.client, err = transport.DialTCP(t.Context(), l.Addr().String(), cc)
		testutil.Must(t, err)
	} else {
		p := iwarp.New(iwarp.Config{})
		l, err := server.Listen(t.Context(), p, "127.0.0.1:0")
		testutil.Must(t, err)
		go server.Serve(l)
		b.client, err = transport.Dial(t.Context(), p, l.Addr().String(), cc)
		testutil.Must(t, err)
	}
	t.Cleanup(func() { b.client.Close() })
	b.store = NewStoreV1Client(b.client)
	return b
}

// each runs a test over all transports.
func each(t *testing.T, f func(t *testing.T, over string)) {
	for _, over := range []string{"tcp", "iwarp", "iwarp, all chunks"} {
		t.Run(over, func(t *testing.T) { f(t, over) })
	}
}

func newStore() *store { return &store{values: make(map[string][]byte)} }

// pattern is n bytes that do not repeat soon.
func pattern(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*7 + i>>8)
	}
	return b
}

// sizes of data: none, some that go inline, some that go to chunks, and the largest.
var sizes = [...]int{0, 1, 3, 4, 100, 3000, 4096, 5001, 100_000, MaxValue}

// The same from one goroutine, all at once.
func TestPipeline(t *testing.T) {
	each(t, func(t *testing.T, over string) {
		b := start(t, over, StoreV1Program(newStore()))
		p := transport.NewPipeline(b.client)
		defer p.Close()
		got := 0
		for i, n := range sizes {
			id, value := fmt.Appendf(nil, "v%d", n), pattern(n)
			testutil.Must(t, b.store.StartPut(p, &PutArgs{Id: id, Value: value, Flags: uint32(i)}, func(put PutRes, err error) {
				if err != nil || put.Status != StoreOk || put.Token != (StoreToken{7: byte(i)}) {
					t.Errorf("Put of %d bytes: %+v, %v", n, put, err)
				}
				// Its value is there, so that this may begin.
				err = b.store.StartGet(p, &GetArgs{Id: id, Count: uint32(n)}, make([]byte, n), func(get GetRes, err error) {
					if got++; err != nil || !bytes.Equal(get.Ok.Value, value) {
						t.Errorf("Get of %d bytes: %d, %v", n, len(get.Ok.Value), err)
					}
				})
				if err != nil {
					t.Error(err)
				}
			}))
		}
		if call, err := p.Wait(t.Context()); call != nil || err != nil || got != len(sizes) {
			t.Errorf("Wait returns %v, %v, after %d of %d", call, err, got, len(sizes))
		}
		err := b.store.StartPut(p, &PutArgs{Value: make([]byte, MaxValue+1)}, func(PutRes, error) { t.Error("it was called") })
		if check := new(xdr.CheckError); !errors.As(err, &check) || p.Len() != 0 {
			t.Errorf("too large a value: %v, %d calls", err, p.Len())
		}
	})
}

// Values arrive as they were sent, in the caller's memory, wherever the server has them.
func TestBulk(t *testing.T) {
	each(t, func(t *testing.T, over string) {
		for _, own := range []bool{false, true} {
			s := newStore()
			s.own = own
			b := start(t, over, StoreV1Program(s))
			ctx := t.Context()
			for i, n := range sizes {
				id := fmt.Appendf(nil, "v%d", n)
				value := pattern(n)
				put, err := b.store.Put(ctx, &PutArgs{Id: id, Value: value, Flags: uint32(i)})
				if err != nil || put.Status != StoreOk || put.Token != (StoreToken{7: byte(i)}) {
					t.Fatalf("%d bytes: put %+v, %v", n, put, err)
				}
				for _, room := range []int{n, n + 1, MaxValue + 9} {
					buf := make([]byte, room)
					get, err := b.store.Get(ctx, &GetArgs{Id: id, Count: MaxValue + 1}, buf)
					if err != nil || get.Status != StoreOk || !get.Ok.Eof || string(get.Ok.Tag) != "tag of "+string(id) {
						t.Fatalf("%d bytes: got %v, %s, %v; error %v", n, get.Status, get.Ok.Tag, get.Ok.Eof, err)
					}
					if !bytes.Equal(get.Ok.Value, value) {
						t.Fatalf("%d bytes: got %d others", n, len(get.Ok.Value))
					}
					if n > 0 && &get.Ok.Value[0] != &buf[0] {
						t.Fatalf("%d bytes are elsewhere", n)
					}
				}
			}
			if want := int64(3 * len(sizes)); own {
				testutil.Eventually(t, fmt.Sprintf("memory is released %d times", want), func() bool { return s.released.Load() == want })

			}
			if get, err := b.store.Get(ctx, &GetArgs{Id: StoreId("none"), Count: 9}, nil); err != nil || get.Status != StoreNoent || get.Ok.Value != nil {
				t.Errorf("a value that is not there: %+v, %v", get, err)
			}
			stats := b.client.Stats()
			if chunks := over != "tcp"; (stats.ReadChunk > 0) != chunks || (stats.WriteChunk > 0) != chunks {
				t.Errorf("calls with read chunks %d, with write chunks %d", stats.ReadChunk, stats.WriteChunk)
			}
		}
	})
}

// Two items in each direction, of all sizes, and one of them that a procedure does not have.
func TestTwoItems(t *testing.T) {
	each(t, func(t *testing.T, over string) {
		b := start(t, over, StoreV1Program(newStore()))
		for _, n := range sizes {
			for _, k := range []int{0, 5, 6000, 65536} {
				for _, mark := range []*StoreToken{nil, {1, 2, 3}} {
					args := &Pair{Number: int32(n), Text: pattern(k), Mark: mark, Other: pattern(n)}
					text, other := make([]byte, n), make([]byte, k)
					res, err := b.store.Swap(t.Context(), args, text, other)
					if err != nil || res.Number != -int32(n) || !bytes.Equal(res.Text, args.Other) || !bytes.Equal(res.Other, args.Text) {
						t.Fatalf("SWAP of %d and %d bytes: %d, %d, %v", k, n, len(res.Text), len(res.Other), err)
					}
					if (res.Mark == nil) != (mark == nil) || mark != nil && *res.Mark != *mark {
						t.Fatalf("SWAP: mark is %v, want %v", res.Mark, mark)
					}
					if n > 0 && &res.Text[0] != &text[0] || k > 0 && &res.Other[0] != &other[0] {
						t.Fatalf("SWAP of %d and %d bytes: they are elsewhere", k, n)
					}
					res, err = b.store.Copy(t.Context(), args, make([]byte, n))
					if err != nil || !bytes.Equal(res.Text, args.Text) || !bytes.Equal(res.Other, args.Other) {
						t.Fatalf("COPY of %d and %d bytes: %d, %d, %v", k, n, len(res.Text), len(res.Other), err)
					}
				}
			}
		}
	})
}

// Plain arguments and results, lists, and calls back.
func TestCalls(t *testing.T) {
	each(t, func(t *testing.T, over string) {
		b := start(t, over, StoreV1Program(newStore()))
		ctx := t.Context()
		testutil.Must(t, b.store.Null(ctx))
		if n, err := b.store.Count(ctx, 41); n != 42 || err != nil {
			t.Errorf("COUNT: %d, %v", n, err)
		}
		if name, err := b.store.Name(ctx, 7, "shard"); name != "shard7" || err != nil {
			t.Errorf("NAME: %q, %v", name, err)
		}
		testutil.Must(t, b.store.Clear(ctx))
		list, err := b.store.List(ctx, &ListArgs{Cookie: 1 << 40, Count: 3})
		if err != nil || !list.Eof || len(list.Entries) != 0 && len(list.Entries) != 3 {
			t.Errorf("LIST: %+v, %v", list, err)
		}
		for i, e := range list.Entries {
			if e.Size != 1<<40 || !bytes.Equal(e.Id, []byte{byte(i)}) {
				t.Errorf("LIST: entry %d is %+v", i, e)
			}
		}
		// Results stay what they are when the next call uses the memory again.
		first, err := b.store.Echo(ctx, &GetArgs{Id: StoreId("first")})
		testutil.Must(t, err)
		_, err = b.store.Echo(ctx, &GetArgs{Id: StoreId("other")})
		if testutil.Must(t, err); string(first.Id) != "first" {
			t.Errorf("a result has become %q", first.Id)
		}
		status, err := b.store.Watch(ctx, 3, StoreId("key"))
		if err != nil || status != StoreFull {
			t.Errorf("WATCH: %v, %v", status, err)
		}
		if got := fmt.Sprint(b.watcher.ids); got != "[key STORE_NOENT key STORE_NOENT key STORE_NOENT]" {
			t.Errorf("called back with %s", got)
		}
		var wg sync.WaitGroup
		for i := range uint32(50) {
			wg.Go(func() {
				if n, err := b.store.Count(ctx, i); n != i+1 || err != nil {
					t.Errorf("COUNT of %d: %d, %v", i, n, err)
				}
			})
		}
		wg.Wait()
	})
}

// A buffer that is too small is an error that says so.
func TestSmallBuffer(t *testing.T) {
	each(t, func(t *testing.T, over string) {
		b := start(t, over, StoreV1Program(newStore()))
		for _, tt := range []struct{ size, room int }{{100, 99}, {100, 1}, {1, 0}, {100, 0}, {8000, 7999}, {100_000, 5000}} {
			value := pattern(tt.size)
			_, err := b.store.Put(t.Context(), &PutArgs{Id: StoreId("v"), Value: value})
			testutil.Must(t, err)
			_, err = b.store.Get(t.Context(), &GetArgs{Id: StoreId("v"), Count: MaxValue}, make([]byte, tt.room))
			var decode *xdr.DecodeError
			var refused *rpc.RDMAError
			var bad *rpc.BadReplyError
			switch {
			case errors.As(err, &decode):
				want := fmt.Sprintf("GET of STORE v1: results: xdr: byte %d: opaque of %d bytes, its buffer has %d", decode.Offset, tt.size, tt.room)
				if err.Error() != want {
					t.Errorf("error %q, want %q", err, want)
				}
			case errors.As(err, &refused):
				if tt.room > 0 && (len(refused.WriteItems) != 1 || refused.WriteItems[0] != tt.room) {
					t.Errorf("%d bytes in %d: %v", tt.size, tt.room, err)
				}
			case errors.As(err, &bad) && strings.Contains(err.Error(), "leave room for"):
			default:
				t.Errorf("%d bytes in %d: %v", tt.size, tt.room, err)
			}
		}
		if n, err := b.store.Count(t.Context(), 1); n != 2 || err != nil {
			t.Errorf("the next call: %d, %v", n, err)
		}
	})
}

// A counter counts the cells of tables, and notes the memory that their rows have.
type counter struct {
	UnimplementedStoreV2Server
	most atomic.Int64
}

func (c *counter) Cells(_ context.Context, _ *rpc.Request, args *Table, _ []byte, res *uint32) error {
	kept := 0
	for _, row := range args.Rows[:cap(args.Rows)] {
		kept += 4 * cap(row.Cells)
	}
	c.most.Store(max(c.most.Load(), int64(kept)))
	for _, row := range args.Rows {
		*res += uint32(len(row.Cells))
	}
	return nil
}

// Results have nothing that an earlier call has left in them.
func TestResultsBeginZero(t *testing.T) {
	b := start(t, "tcp", StoreV1Program(newStore()))
	for range 20 {
		res, err := b.store.List(t.Context(), &ListArgs{Count: 2})
		if testutil.Must(t, err); len(res.Entries) != 2 {
			t.Fatalf("%d entries, want 2", len(res.Entries))
		}
	}
}

// Arguments that are kept for the next call do not add up: each call has another long row.
func TestArgumentsKept(t *testing.T) {
	const calls, cells = 200, 1 << 10
	s := new(counter)
	store := NewStoreV2Client(start(t, "tcp", StoreV2Program(s)).client)
	for i := range calls {
		rows := make([]Row, i+1)
		rows[i].Cells = make([]uint32, cells)
		if n, err := store.Cells(t.Context(), &Table{Rows: rows}, nil); n != cells || err != nil {
			t.Fatal(n, err)
		}
	}
	if most := s.most.Load(); most > 2*(64<<10) {
		t.Errorf("rows have %d bytes after %d calls of %d", most, calls, 4*cells)
	}
}

// A holder returns how much memory its connection holds while it has its arguments.
type holder struct {
	UnimplementedStoreV2Server
	conn atomic.Pointer[transport.Conn]
}

func (h *holder) Cells(_ context.Context, req *rpc.Request, _ *Table, _ []byte, res *uint32) error {
	h.conn.Store(req.Conn().(*transport.Conn))
	*res = uint32(req.Conn().Stats().HeldBytes)
	return nil
}

func (h *holder) Slots(_ context.Context, req *rpc.Request, _ *Slots, res *uint32) error {
	h.conn.Store(req.Conn().(*transport.Conn))
	*res = uint32(req.Conn().Stats().HeldBytes)
	return nil
}

// Arguments that are much longer decoded than encoded count as memory of the connection, and are refused
// beyond the limit.
func TestArgumentsCharged(t *testing.T) {
	each(t, func(t *testing.T, over string) {
		h := new(holder)
		program := StoreV2Program(h)
		var limit atomic.Int64
		inner := program.Handler
		program.Handler = rpc.HandlerFunc(func(ctx context.Context, req *rpc.Request, res *rpc.Response) {
			if n := limit.Load(); n > 0 {
				req.LimitMemory(int(n))
			}
			inner.ServeRPC(ctx, req, res)
		})
		b := start(t, over, program)
		store := NewStoreV2Client(b.client)
		const size = 1 << 20 // of the arguments
		batch := func(n int) func() (uint32, error) {
			return func() (uint32, error) { return store.Slots(t.Context(), &Slots{List: make([]Slot, n)}) }
		}
		for _, tt := range []struct {
			name  string
			call  func() (uint32, error)
			limit int
			held  int // at least; -1: the call is refused
		}{
			{"rows, 6 times as long", func() (uint32, error) {
				return store.Cells(t.Context(), &Table{Rows: make([]Row, size/4)}, nil)
			}, 0, 6*size - 64<<10},
			{"a few unions", batch(500), 0, 0},
			{"unions, 32 times as long", batch(size / 4), 0, -1},
			{"unions within a limit", batch(size / 4), 32 * size, 32*size - 64<<10},
			{"unions beyond a limit", batch(size / 4), 32*size - 1, -1},
		} {
			limit.Store(int64(tt.limit))
			held, err := tt.call()
			var refused *oncrpc.RPCError
			switch {
			case tt.held < 0 && (!errors.As(err, &refused) || refused.AcceptStat != oncrpc.SystemErr):
				t.Errorf("%s: error %v, want SYSTEM_ERR", tt.name, err)
			case tt.held >= 0 && (err != nil || int(held) < tt.held):
				t.Errorf("%s: the connection holds %d bytes, want %d; error %v", tt.name, held, tt.held, err)
			}
			// The message may be held until its memory is given back, the values may not.
			if n := h.conn.Load().Stats().HeldBytes; n > 3*size {
				t.Fatalf("%s: %d bytes are held after the reply", tt.name, n)
			}
		}
		testutil.Eventually(t, "nothing is held in the end", func() bool { return h.conn.Load().Stats().HeldBytes == 0 })
		if log := b.log.String(); strings.Count(log, xdr.ErrMemory.Error()) != 2 {
			t.Errorf("the log has %q", log)
		}
	})
}

// A value that Check refuses is not sent, and the error has its place.
func TestArgumentsChecked(t *testing.T) {
	b := start(t, "iwarp", StoreV1Program(newStore()))
	before := b.client.Stats().Calls
	_, err1 := b.store.Put(t.Context(), &PutArgs{Id: make(StoreId, 33)})
	_, err2 := b.store.Name(t.Context(), 1, "too long!")
	_, err3 := b.store.Watch(t.Context(), 1, make(StoreId, 40))
	_, err4 := b.store.Swap(t.Context(), &Pair{Other: make(StoreValue, MaxValue+1)}, nil, nil)
	for err, want := range map[error]string{
		err1: "PUT of STORE v1: arguments: xdr: Id: length is 33, limit is 32",
		err2: "NAME of STORE v1: arguments: xdr: prefix: length is 9, limit is 8",
		err3: "WATCH of STORE v1: arguments: xdr: arg2: length is 40, limit is 32",
		err4: "SWAP of STORE v1: arguments: xdr: Other: length is 1048577, limit is 1048576",
	} {
		var check *xdr.CheckError
		if !errors.As(err, &check) || err.Error() != want {
			t.Errorf("error %v, want %s", err, want)
		}
	}
	if after := b.client.Stats().Calls; after != before {
		t.Errorf("%d calls were made", after-before)
	}
}

// A broken server does what its fields say.
type broken struct {
	UnimplementedStoreV1Server
	err atomic.Pointer[error]
}

func (b *broken) Clear(context.Context, *rpc.Request) error { return *b.err.Load() }

func (b *broken) Count(context.Context, *rpc.Request, uint32, *uint32) error { panic("no count") }

func (b *broken) Echo(_ context.Context, _ *rpc.Request, _, res *GetArgs) error {
	res.Id = make(StoreId, 50)
	return nil
}

func (b *broken) Watch(_ context.Context, _ *rpc.Request, _ uint32, _ StoreId, res *StoreStatus) error {
	*res = 5
	return nil
}

// Answers of servers when something is wrong, and their logs.
func TestServerErrors(t *testing.T) {
	each(t, func(t *testing.T, over string) {
		s := new(broken)
		b := start(t, over, StoreV1Program(s))
		ctx := t.Context()
		raw := func(proc uint32, args ...byte) error {
			return b.client.Call(ctx, &rpc.Call{Prog: StoreProg, Vers: StoreV1, Proc: proc, Args: args})
		}
		clear := func(err error) func() error {
			return func() error {
				s.err.Store(&err)
				return b.store.Clear(ctx)
			}
		}
		for _, tt := range []struct {
			name string
			call func() error
			want oncrpc.AcceptStat
			log  string // the log's text; "": nothing
		}{
			{"a procedure that is left out", func() error { _, err := b.store.Put(ctx, &PutArgs{}); return err }, oncrpc.ProcUnavail, ""},
			{"no such procedure", func() error { return raw(99) }, oncrpc.ProcUnavail, ""},
			{"arguments cut short", func() error { return raw(StorePut, 0, 0, 0, 1) }, oncrpc.GarbageArgs, ""},
			{"arguments too long", func() error { return raw(StoreCount, 0, 0, 0, 1, 0, 0, 0, 2) }, oncrpc.GarbageArgs, ""},
			{"arguments that should not be", func() error { return raw(StoreClear, 0, 0, 0, 1) }, oncrpc.GarbageArgs, ""},
			{"an error", clear(errors.New("disk is full")), oncrpc.SystemErr, `err="disk is full"`},
			{"a status", clear(oncrpc.GarbageArgs), oncrpc.GarbageArgs, ""},
			{"a status in an error", clear(fmt.Errorf("not now: %w", oncrpc.ProcUnavail)), oncrpc.ProcUnavail, ""},
			{"a status that is none of a handler's", clear(oncrpc.ProgMismatch), oncrpc.SystemErr, "err=PROG_MISMATCH"},
			{"success as an error", clear(oncrpc.Success), oncrpc.SystemErr, "err=SUCCESS"},
			{"a panic", func() error { _, err := b.store.Count(ctx, 1); return err }, oncrpc.SystemErr, `panic="no count"`},
			{"results out of bounds", func() error { _, err := b.store.Echo(ctx, &GetArgs{}); return err }, oncrpc.SystemErr, `err="xdr: Id: length is 50, limit is 32"`},
			{"undefined results", func() error { _, err := b.store.Watch(ctx, 1, nil); return err }, oncrpc.SystemErr, `err="xdr: store_status is 5, which is not defined"`},
		} {
			before := len(b.log.String())
			err := tt.call()
			var rpc *oncrpc.RPCError
			if !errors.As(err, &rpc) || rpc.AcceptStat != tt.want {
				t.Errorf("%s: error %v, want %v", tt.name, err, tt.want)
			}
			if log := b.log.String()[before:]; !strings.Contains(log, tt.log) || tt.log == "" && log != "" {
				t.Errorf("%s: logged %q, want %q", tt.name, log, tt.log)
			}
		}
	})
}

// Every error of a client names the procedure, once.
// The deadline of a call is that of the handler's context, and the text of a handler's error arrives, in as many bytes
// as the interface has for it.
func TestDeadlineAndError(t *testing.T) {
	each(t, func(t *testing.T, over string) {
		bed := start(t, over, StoreV1Program(newStore()))
		client := NewStoreV1Client(bed.client)
		if res, err := client.Wait(t.Context(), new(WaitArgs)); err != nil || res.Left != 0 {
			t.Errorf("without a deadline: %+v, %v", res, err)
		}
		if res, err := client.Wait(t.Context(), &WaitArgs{Left: 80}); err != nil || res.Left < 40 || res.Left > 80 {
			t.Errorf("with the caller's own 80 ms: %+v, %v", res, err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		args := new(WaitArgs)
		const hour = 3600_000
		if res, err := client.Wait(ctx, args); err != nil || res.Left < hour-60_000 || res.Left > hour || args.Left != 0 {
			t.Errorf("with a context of an hour: %+v, %v; the caller's arguments are %+v", res, err, args)
		}
		var failed *rpc.HandlerError
		if _, err := client.Wait(ctx, &WaitArgs{Fail: true}); !errors.As(err, &failed) || failed.Text != strings.Repeat("no room", 5)+" \x1b\u00e9" {
			t.Errorf("error %v", err)
		} else if want := "WAIT of STORE v1: the server failed: " + strings.Repeat("no room", 5) + " \ufffd\u00e9"; err.Error() != want {
			t.Errorf("error %q, want %q", err, want)
		}
		if !strings.Contains(bed.log.String(), "no room") {
			t.Errorf("the log has no error: %s", bed.log)
		}
	})
}

func TestErrorsNameTheProcedure(t *testing.T) {
	each(t, func(t *testing.T, over string) {
		s := new(broken)
		b := start(t, over, StoreV1Program(s))
		failure := errors.New("no")
		s.err.Store(&failure)
		if err := b.store.Clear(t.Context()); err == nil || err.Error() != "CLEAR of STORE v1: the server failed (SYSTEM_ERR)" {
			t.Errorf("an RPC error: %v", err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := b.store.Null(ctx); !errors.Is(err, context.Canceled) || !strings.HasPrefix(err.Error(), "NULL of STORE v1: ") {
			t.Errorf("NULL, canceled: %v", err)
		}
		if _, err := b.store.Count(ctx, 1); !errors.Is(err, context.Canceled) || !strings.HasPrefix(err.Error(), "COUNT of STORE v1: ") {
			t.Errorf("COUNT, canceled: %v", err)
		}
	})
}

// A message that exceeds MaxMessage is refused before there are calls, and by every call of a client.
func TestLongestMessage(t *testing.T) {
	const want = "which Config.MaxMessage bounds, is 1114976 bytes long, the limit is 1048576"
	refused := func(what string, err error) {
		t.Helper()
		var size *rpc.SizeError
		if !errors.As(err, &size) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want %q", what, err, want)
		}
	}
	small := transport.Config{MaxMessage: MaxValue}
	server, err := transport.NewServer(&transport.ServerConfig{Config: small})
	testutil.Must(t, err)
	defer server.Close()
	refused("Register", RegisterStoreV1(server, newStore()))
	joined, err := rpc.Versions(StoreV1Program(newStore()), StoreV2Program(both{}))
	testutil.Must(t, err)
	refused("Register of versions", server.Register(joined))
	_, err = transport.DialTCP(t.Context(), "127.0.0.1:1", &transport.ClientConfig{Config: small, Callbacks: []rpc.Program{StoreV1Program(newStore())}})
	refused("a client's callbacks", err)
	testutil.Must(t, RegisterWatchV1(server, new(watcher)))

	p := iwarp.New(iwarp.Config{})
	l, err := server.Listen(t.Context(), p, "127.0.0.1:0")
	testutil.Must(t, err)
	go server.Serve(l)
	client, err := transport.Dial(t.Context(), p, l.Addr().String(), &transport.ClientConfig{Config: small})
	testutil.Must(t, err)
	defer client.Close()
	_, err = NewStoreV1Client(client).Count(t.Context(), 1)
	refused("a call over RDMA", err)
	if n, err := NewWatchV1Client(client).Changed(t.Context(), nil, StoreOk); n != 1 || err != nil {
		t.Errorf("a call of a program with short messages: %d, %v", n, err)
	}
	tl, err := net.Listen("tcp", "127.0.0.1:0")
	testutil.Must(t, err)
	go server.ServeTCP(tl)
	overTCP, err := transport.DialTCP(t.Context(), tl.Addr().String(), &transport.ClientConfig{Config: small})
	testutil.Must(t, err)
	defer overTCP.Close()
	_, err = NewStoreV1Client(overTCP).Count(t.Context(), 1)
	refused("a call over TCP", err)
}

// The names are those of the source, by number.
func TestNames(t *testing.T) {
	for proc, want := range map[uint32]string{0: "NULL", StorePut: "PUT", StoreWait: "WAIT", StoreWait + 1: "", 1<<32 - 1: ""} {
		if got := StoreV1Names.Procedure(proc); got != want {
			t.Errorf("procedure %d is %q, want %q", proc, got, want)
		}
	}
	if StoreV2Names.Number != StoreProg || StoreV2Names.Vers != StoreV2 || StoreV2Names.Name != "STORE" {
		t.Errorf("version 2 is %+v", StoreV2Names)
	}
}

// Results that cannot be decoded are an error with the name of the procedure.
func TestBadResults(t *testing.T) {
	each(t, func(t *testing.T, over string) {
		b := start(t, over, rpc.Program{
			Number: StoreProg, Low: StoreV1, High: StoreV1,
			Handler: rpc.HandlerFunc(func(_ context.Context, _ *rpc.Request, res *rpc.Response) {
				res.Results = append(res.Results, 0, 0, 0, 0, 0, 0, 0, 3)
			}),
		})
		_, err1 := b.store.Count(t.Context(), 1)
		_, err2 := b.store.Get(t.Context(), &GetArgs{}, make([]byte, 8000))
		err3 := b.store.Clear(t.Context())
		for err, want := range map[error]string{
			err1: "COUNT of STORE v1: results: xdr: byte 4: bytes after the last item",
			err2: "GET of STORE v1: results: xdr: byte 4: opaque is cut short",
			err3: "CLEAR of STORE v1: results: xdr: byte 0: bytes after the last item",
		} {
			var decode *xdr.DecodeError
			if !errors.As(err, &decode) || err.Error() != want {
				t.Errorf("error %v, want %s", err, want)
			}
		}
	})
}

// Pad bytes that are not zero are an error of arguments and of results, unless the data may be placed
// directly, or the version is lax.
func TestPadBytes(t *testing.T) {
	each(t, func(t *testing.T, over string) {
		b := start(t, over, StoreV1Program(newStore()))
		raw := func(proc uint32, hex string) error {
			return b.client.Call(t.Context(), &rpc.Call{Prog: StoreProg, Vers: StoreV1, Proc: proc, Args: testutil.Hex(t, hex)})
		}
		const id, badID = "00000003 61626300", "00000003 61626301"
		for _, tt := range []struct {
			name string
			proc uint32
			args string
			want error
		}{
			{"good", StorePut, id + "00000003 61626300 00000001", nil},
			{"in the id", StorePut, badID + "00000003 61626300 00000001", oncrpc.GarbageArgs},
			{"behind bulk data", StorePut, id + "00000003 616263ff 00000001", nil},
			{"in a string that is an argument", StoreName, "00000001 00000001 61000001", oncrpc.GarbageArgs},
			{"in an opaque argument", StoreWatch, "00000000" + badID, oncrpc.GarbageArgs},
		} {
			err := raw(tt.proc, tt.args)
			var rpc *oncrpc.RPCError
			if tt.want == nil && err != nil || tt.want != nil && (!errors.As(err, &rpc) || rpc.AcceptStat != tt.want) {
				t.Errorf("%s: error %v, want %v", tt.name, err, tt.want)
			}
		}
	})
	each(t, func(t *testing.T, over string) {
		b := start(t, over, rpc.Program{
			Number: StoreProg, Low: StoreV1, High: StoreV2,
			Handler: rpc.HandlerFunc(func(_ context.Context, req *rpc.Request, res *rpc.Response) {
				if req.Vers == StoreV2 { // a list of one entry
					res.Results = append(res.Results, 0, 0, 0, 1, 0, 0, 0, 1, 'a', 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
					return
				}
				res.Results = append(res.Results, 0, 0, 0, 1, 'a', 0, 0, 9)
			}),
		})
		_, err := b.store.Name(t.Context(), 1, "")
		if err == nil || err.Error() != "NAME of STORE v1: results: xdr: byte 0: string is followed by pad bytes that are not zero" {
			t.Errorf("results: %v", err)
		}
		list, err := NewStoreV2Client(b.client).Entries(t.Context(), 100)
		if err != nil || len(list) != 1 || string(list[0].Id) != "a" {
			t.Errorf("results of a lax version: %v, %v", list, err)
		}
	})
}

// Credentials go with each call.
func TestCred(t *testing.T) {
	var got oncrpc.Auth
	b := start(t, "iwarp", rpc.Program{
		Number: StoreProg, Low: StoreV1, High: StoreV1,
		Handler: rpc.HandlerFunc(func(_ context.Context, req *rpc.Request, _ *rpc.Response) {
			got = oncrpc.Auth{Flavor: req.Cred.Flavor, Body: bytes.Clone(req.Cred.Body)}
		}),
	})
	b.store.Cred = oncrpc.Auth{Flavor: oncrpc.FlavorSys, Body: []byte("body")}
	if err := b.store.Clear(t.Context()); err != nil || got.Flavor != oncrpc.FlavorSys || string(got.Body) != "body" {
		t.Errorf("credential %+v, error %v", got, err)
	}
}

// both is version 2 beside version 1.
type both struct{ UnimplementedStoreV2Server }

func (both) Fetch(_ context.Context, _ *rpc.Request, id StoreId, res *StorePage) error {
	*res = append(append(*res, "value of "...), id...)
	return nil
}

// Switch answers with the page if the identifier and the reason are those of the test.
func (both) Switch(_ context.Context, req *rpc.Request, id StoreId, page StorePage, reason []byte, res *StorePage) error {
	if string(id) != "id" || !bytes.Equal(reason, pattern(len(page)/2)) {
		return oncrpc.GarbageArgs
	}
	*res = req.Alloc(len(page))
	copy(*res, page)
	return nil
}

func (both) Lend(_ context.Context, _ *rpc.Request, page StorePage, res *StorePage) error {
	*res = page
	return nil
}

func (both) Say(_ context.Context, _ *rpc.Request, reason []byte, res *[]byte) error {
	*res = reason
	return nil
}

// Entries answers with as many entries as the caller has room for.
func (both) Entries(_ context.Context, _ *rpc.Request, n uint32, res *[]Entry) error {
	for range n / 32 { // each is 28 bytes long
		*res = append(*res, Entry{Id: StoreId("0123456789"), Size: 7})
	}
	return nil
}

// A result without a limit may get as long as the arguments say.
func TestResultBound(t *testing.T) {
	each(t, func(t *testing.T, over string) {
		store := NewStoreV2Client(start(t, over, StoreV2Program(both{})).client)
		for _, n := range []uint32{0, 31, 1000, 65536, 1_000_000} {
			list, err := store.Entries(t.Context(), n)
			if err != nil || len(list) != int(n/32) || n > 31 && (string(list[len(list)-1].Id) != "0123456789" || list[0].Size != 7) {
				t.Errorf("%d bytes: %d entries, %v", n, len(list), err)
			}
		}
	})
}

// Arguments and results that are placed directly themselves, with no structure around them.
func TestBareItems(t *testing.T) {
	each(t, func(t *testing.T, over string) {
		b := start(t, over, StoreV2Program(both{}))
		store := NewStoreV2Client(b.client)
		var before rpc.Stats
		for _, n := range sizes {
			page, buf := StorePage(pattern(n)), make([]byte, n)
			for name, call := range map[string]func() ([]byte, error){
				"SWITCH": func() ([]byte, error) { return store.Switch(t.Context(), StoreId("id"), page, pattern(n/2), buf) },
				"SAY":    func() ([]byte, error) { return store.Say(t.Context(), page, buf) },
			} {
				clear(buf)
				got, err := call()
				if err != nil || !bytes.Equal(got, page) || n > 0 && &got[0] != &buf[0] {
					t.Errorf("%s of %d bytes: %d bytes, %v", name, n, len(got), err)
				}
			}
			before = b.client.Stats()
			if got, err := store.Lend(t.Context(), page); err != nil || !bytes.Equal(got, page) {
				t.Errorf("LEND of %d bytes: %d bytes, %v", n, len(got), err)
			}
		}
		after := b.client.Stats()
		if chunks := over != "tcp"; (before.ReadChunk > 0) != chunks || (before.WriteChunk > 0) != chunks {
			t.Errorf("calls with read chunks %d, with write chunks %d", before.ReadChunk, before.WriteChunk)
		}
		if before.ReadChunk != after.ReadChunk || before.WriteChunk != after.WriteChunk {
			t.Error("LEND has chunks, for which the annotation is not")
		}
		if _, err := store.Switch(t.Context(), nil, make(StorePage, MaxValue+1), nil, nil); err == nil || err.Error() != "SWITCH of STORE v2: arguments: xdr: newArg: length is 1048577, limit is 1048576" {
			t.Errorf("a page that is too long: %v", err)
		}
	})
}

func TestTwoVersions(t *testing.T) {
	program, err := rpc.Versions(StoreV1Program(newStore()), StoreV2Program(both{}))
	testutil.Must(t, err)
	each(t, func(t *testing.T, over string) {
		b := start(t, over, program)
		if n, err := b.store.Count(t.Context(), 1); n != 2 || err != nil {
			t.Errorf("version 1: %d, %v", n, err)
		}
		if value, err := NewStoreV2Client(b.client).Fetch(t.Context(), StoreId("x"), make([]byte, 10)); string(value) != "value of x" || err != nil {
			t.Errorf("version 2: %q, %v", value, err)
		}
	})
}

// A program with a version that says so is Independent.
func TestIndependent(t *testing.T) {
	if StoreV1Program(nil).Independent || !StoreV2Program(nil).Independent {
		t.Error("the annotation of version 2 is not in its program, or in that of version 1")
	}
}
