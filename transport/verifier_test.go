package transport_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/rpcrdma/rpcrdma/iwarp"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/transport"
)

// The recipe of the verifier program for a call, from its arguments.
type recipe struct {
	verf    uint32 // length of the verifier's body
	results uint32 // bytes in front of the items, a multiple of 4
	items   uint32 // how many
	item    uint32 // the length of each
	alloc   uint32 // 1: items are in memory from Alloc
	how     uint32
	tail    uint32 // bytes after the items, a multiple of 4
}

const (
	plainly   = iota
	joined    // the wrapper joins the results
	cutFront  // it cuts off 8 bytes in front that it had there
	replaced  // it sets Results to other memory
	early     // the verifier is set before the handler is called
	numOfHows // how many there are
)

func (r *recipe) args() []byte {
	var b []byte
	for _, n := range []uint32{r.verf, r.results, r.items, r.item, r.alloc, r.how, r.tail} {
		b = xdr.AppendUint32(b, n)
	}
	return b
}

func decodeRecipe(args []byte) (r recipe) {
	d := xdr.NewDecoder(args)
	for _, p := range []*uint32{&r.verf, &r.results, &r.items, &r.item, &r.alloc, &r.how, &r.tail} {
		*p = d.Uint32()
	}
	return r
}

// want is the whole of the results.
func (r *recipe) want() []byte {
	b := r.part(nil, r.results, 1)
	for i := range r.items {
		b = xdr.AppendOpaque(b, r.part(nil, r.item, 2+i))
	}
	return r.part(b, r.tail, 9)
}

// part appends n bytes that differ by their place.
func (r *recipe) part(b []byte, n, seed uint32) []byte {
	p := make([]byte, n)
	fill(p, seed)
	return append(b, p...)
}

func (r *recipe) verifier() oncrpc.Auth {
	if r.verf == 0 {
		return oncrpc.Auth{}
	}
	return oncrpc.Auth{Flavor: oncrpc.FlavorShort, Body: r.part(nil, r.verf, 5)}
}

// A cook executes recipes.
type cook struct {
	fits   atomic.Bool // the results, as Room and ItemRoom saw them
	joined atomic.Bool

	items, released atomic.Int64 // so far
}

func (c *cook) ServeRPC(_ context.Context, req *rpc.Request, res *rpc.Response) {
	r := decodeRecipe(req.Args)
	if r.how == cutFront {
		res.Results = append(res.Results, "12345678"...)
	}
	fits := res.Room() >= int(r.results)
	res.Results = r.part(res.Results, r.results, 1)
	for i := range r.items {
		fits = fits && res.ItemRoom() >= int(r.item)
		data := r.part(nil, r.item, 2+i)
		if r.alloc == 1 && r.item > 0 {
			data = res.Alloc(int(r.item))
			fill(data, 2+i)
		}
		res.AddItem(data, func() { c.released.Add(1) })
	}
	c.fits.Store(fits && res.Room() >= int(r.tail))
	res.Results = r.part(res.Results, r.tail, 9)
}

// around sets the verifier, and does to the results what the recipe says.
func (c *cook) around(next rpc.Handler) rpc.Handler {
	return rpc.HandlerFunc(func(ctx context.Context, req *rpc.Request, res *rpc.Response) {
		r := decodeRecipe(req.Args)
		const cut = 8
		ok := true
		defer func() { c.joined.Store(ok) }()
		switch r.how {
		case early, plainly:
			res.Verf = r.verifier() // Room counts it
		default:
			res.Reserve(8 + (int(r.verf)+3)&^3)
		}
		next.ServeRPC(ctx, req, res)
		res.Verf = r.verifier()
		switch r.how {
		case joined:
			before := res.Room()
			if ok = res.Join(); ok && !bytes.Equal(res.Results, r.want()) {
				panic("Join has made other results")
			}
			if n, items := res.Size(); ok && (items != 0 || n != len(r.want()) || res.Room() > before) {
				panic("Size after Join")
			}
		case cutFront:
			if ok = res.Join(); ok { // so that places of items stay right
				res.Results = res.Results[cut:]
			}
		case replaced:
			if ok = res.Join(); ok {
				res.Results = bytes.Clone(res.Results)
			}
		}
	})
}

// TestVerifiers checks that replies carry the verifier that a handler sets, followed by the correct results, wherever
// these were built and however they are sent. Room and ItemRoom must account for the verifier.
func TestVerifiers(t *testing.T) {
	c := new(cook)
	program := rpc.Program{Number: prog, Low: 1, High: 1, ReadReplies: true, Padded: true, Idempotent: rpc.Every,
		Handler: rpc.Chain(c, c.around), Inline: rpc.Every}
	server := &transport.ServerConfig{Config: transport.Config{Logger: quietLog, RFC5666: &transport.RFC5666{}}}
	run := func(t *testing.T, cl *transport.Client, lends bool) {
		for _, verf := range []uint32{0, 13, 400} {
			for _, results := range []uint32{0, 904, 3496, 3960, 4056, 9000} {
				for _, items := range [][2]uint32{{0, 0}, {1, 0}, {1, 5}, {2, 61}, {1, 3001}, {2, 9002}} {
					for how := range uint32(numOfHows) {
						r := recipe{verf: verf, results: results, items: items[0], item: items[1], how: how, tail: 4 * (verf & 1), alloc: results & 8 / 8}
						for writes := range 3 {
							c.try(t, cl, &r, writes, false, lends)
						}
						c.try(t, cl, &r, 0, true, lends)
					}
				}
			}
		}
		// Results that fill the send buffer to the last word, with an item after them.
		for results := uint32(3900); results < 4096; results += 4 {
			for _, verf := range []uint32{0, 12} {
				c.try(t, cl, &recipe{verf: verf, results: results, items: 1, item: 5}, 0, false, lends)
			}
		}
		if err := cl.Err(); err != nil {
			t.Error(err)
		}
	}
	t.Run("both", func(t *testing.T) {
		onBoth(t, &transport.ServerConfig{Config: transport.Config{Logger: quietLog}}, nil, []rpc.Program{program}, func(t *testing.T, cl *transport.Client) {
			run(t, cl, cl.Info().Provider == "tcp")
		})
	})
	t.Run("lent replies", func(t *testing.T) {
		p := iwarp.New(iwarp.Config{})
		addr := serveNew(t, p, server, []rpc.Program{program})
		run(t, dialNew(t, p, addr, &transport.ClientConfig{Config: transport.Config{RFC5666: &transport.RFC5666{}}}), true)
	})
	if items, released := c.items.Load(), c.released.Load(); items != released {
		t.Errorf("%d of %d items have been released", released, items)
	}
}

// try makes one call. Without room for a long reply it may not be sent, unless lends is set, but then
// the handler could see that.
func (c *cook) try(t *testing.T, cl *transport.Client, r *recipe, writes int, short, lends bool) {
	t.Helper()
	what := fmt.Sprintf("%+v, %d write chunks, without a reply chunk: %v", *r, writes, short)
	call := rpc.Call{Prog: prog, Vers: 1, Proc: 1, Args: r.args(), Cred: oncrpc.Auth{Flavor: oncrpc.FlavorShort}}
	for range writes {
		call.Receive(make([]byte, 9004))
	}
	want := r.want()
	if !short {
		call.MaxResults = len(want) + 16
	} else if cl.Info().Provider == "tcp" {
		call.MaxResults = 40000 // how long a reply may be is the client's matter
	}
	c.items.Add(int64(r.items))
	err := cl.Call(bg, &call)
	if !c.joined.Load() {
		t.Fatalf("%s: no memory", what)
	}
	var unsent *rpc.RDMAError
	fits := c.fits.Load()
	switch {
	case short && !lends && !fits && errors.As(err, &unsent):
		return
	case err != nil:
		t.Fatalf("%s: %v, and the handler was told that there is room: %v", what, err, fits)
	case !fits && (lends || !short):
		t.Errorf("%s: was sent, but there was no room", what)
	}
	if v := r.verifier(); call.Reply.Verf.Flavor != v.Flavor || !bytes.Equal(call.Reply.Verf.Body, v.Body) {
		t.Errorf("%s: the verifier is %v", what, call.Reply.Verf)
	}
	d := call.Decoder()
	got := append([]byte(nil), d.FixedOpaque(int(r.results))...)
	for i := range int(r.items) {
		if i < writes {
			got = xdr.AppendOpaque(got, d.Item())
		} else {
			got = xdr.AppendOpaque(got, d.Opaque(1<<20))
		}
	}
	got = append(got, d.FixedOpaque(int(r.tail))...)
	if d.End() != nil || !bytes.Equal(got, want) {
		t.Errorf("%s: other results, %v", what, d.End())
	}
}
