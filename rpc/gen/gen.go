// Package gen contains the building blocks of the clients, servers and bindings that command xdrgen generates. Programs
// do not need it, except for [Starter].
package gen

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
	"github.com/rpcrdma/rpcrdma/rpc"
)

// A Starter starts calls without waiting for their replies. transport.Pipeline is one. When a call has ended, the
// Starter calls ended on the goroutine that waits for replies.
type Starter interface {
	// StartFunc starts call, which belongs to the Starter until it calls ended.
	StartFunc(call *rpc.Call, ended func(err error))
}

// A Pool keeps values of one type for reuse. The zero value is ready for use, by many goroutines
// at once.
type Pool[T any] struct{ pool sync.Pool }

// Get returns a value that was put back, unchanged, or a zero value.
func (p *Pool[T]) Get() *T {
	if v, ok := p.pool.Get().(*T); ok {
		return v
	}
	return new(T)
}

// Put returns a value to the pool. The caller no longer owns it.
func (p *Pool[T]) Put(v *T) { p.pool.Put(v) }

// Calls keeps Calls for reuse. The zero value is ready for use, by many goroutines at once.
type Calls struct{ pool Pool[rpc.Call] }

// Get returns a Call of a procedure of a program, without arguments and items. The caller owns it until it passes it to
// Put.
func (p *Calls) Get(program *oncrpc.Program, proc uint32) *rpc.Call {
	call := p.pool.Get()
	call.Prog, call.Vers, call.Proc, call.Names = program.Number, program.Vers, proc, program
	return call
}

// Put returns a Call to the pool, together with its Results. It drops the references to the memory of items.
func (p *Calls) Put(call *rpc.Call) {
	clear(call.ReadItems)
	clear(call.WriteItems)
	call.Cred, call.Verf, call.Reply = oncrpc.Auth{}, oncrpc.Auth{}, oncrpc.ReplyHeader{}
	call.Args, call.Results = call.Args[:0], nil
	call.ReadItems, call.WriteItems = call.ReadItems[:0], call.WriteItems[:0]
	call.MaxResults, call.MaxDecoded, call.NoResend, call.Sign = 0, 0, false, nil
	p.pool.Put(call)
}

// Wrap adds the name of the procedure to err, the error of a call. An *oncrpc.RPCError has it already.
func Wrap(call *rpc.Call, err error) error {
	if err == nil || call.Names == nil || errors.As(err, new(*oncrpc.RPCError)) {
		return err
	}
	return fmt.Errorf("%s: %w", call.Names.CallName(call.Proc), err)
}

// TimeLeft returns the milliseconds until the deadline of ctx, at least 1, or 0 if it has none.
func TimeLeft(ctx context.Context) uint32 {
	deadline, ok := ctx.Deadline()
	if !ok {
		return 0
	}
	return uint32(min(max(time.Until(deadline).Milliseconds(), 1), math.MaxUint32))
}

// Deadline returns ctx with the deadline that the caller's TimeLeft, in milliseconds, sets for a call. The caller of
// Deadline calls cancel when the handler has returned.
func Deadline(ctx context.Context, left uint32) (_ context.Context, cancel func()) {
	if left == 0 {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, time.Duration(left)*time.Millisecond)
}

// A Walk goes through a stream for a Binding, usually a generated one, and records its items. It is an [xdr.Decoder]
// for everything that is not an item.
type Walk struct {
	xdr.Decoder
	reduced bool
	items   []rpc.Range
}

// NewWalk returns a Walk at the start of a stream. reduced is the parameter of [rpc.Binding.Reply]. Items are appended
// to items[:0].
func NewWalk(stream []byte, reduced bool, items []rpc.Range) Walk {
	return Walk{xdr.NewDecoder(stream), reduced, items[:0]}
}

// Item skips the next opaque or string, of at most most bytes, and records it.
func (w *Walk) Item(most uint32) {
	r := rpc.Range{Offset: w.Offset() + xdr.Unit}
	if w.reduced {
		n := w.Uint32()
		if n > most || n > math.MaxInt32-xdr.Unit {
			w.Fail("item is longer than its limit")
		}
		r.Length = int(n & math.MaxInt32)
	} else {
		r.Length = len(w.Opaque(most))
	}
	if w.Err() == nil {
		w.items = append(w.items, r)
	}
}

// Items returns the items. If the stream was not understood up to its end, ok is false and the list is empty.
func (w *Walk) Items() (items []rpc.Range, ok bool) {
	if w.End() != nil {
		return w.items[:0], false
	}
	return w.items, true
}

// maxCounted bounds the results that a byte count in the arguments asks for. The caller may send any 32-bit count, but
// servers have a limit of their own.
const maxCounted = 16 << 20

// Counted returns the bound that a byte count in the arguments of a call sets for a part of its results: padded, and at
// most 16 MiB.
func Counted[T ~int32 | ~uint32 | ~int64 | ~uint64](count T) int {
	if count < 0 {
		return 0
	}
	return xdr.Padded(int(min(uint64(count), maxCounted)))
}
