package rpcbind

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
)

// both runs f for each transport.
func both(t *testing.T, f func(t *testing.T, network string)) {
	for _, network := range []string{"tcp", "udp"} {
		t.Run(network, func(t *testing.T) { f(t, network) })
	}
}

// always answers every call in the same way.
func always(stat oncrpc.AcceptStat, results ...any) answerFunc {
	return func(xid uint32, _ *oncrpc.CallHeader, _ []byte) [][]byte {
		return [][]byte{reply(xid, stat, results...)}
	}
}

// upTo supports versions up to highest, and answers them with results.
func upTo(highest uint32, results ...any) answerFunc {
	return func(xid uint32, h *oncrpc.CallHeader, _ []byte) [][]byte {
		if h.Vers > highest {
			return [][]byte{reply(xid, oncrpc.ProgMismatch, highest)}
		}
		return [][]byte{reply(xid, oncrpc.Success, results...)}
	}
}

// The first call that goes out, and the harness that receives it.
func TestCall(t *testing.T) {
	both(t, func(t *testing.T, network string) {
		calls := make(chan []byte, 1)
		c := newPeer(t, network, func(xid uint32, _ *oncrpc.CallHeader, call []byte) [][]byte {
			calls <- bytes.Clone(call)
			return [][]byte{reply(xid, oncrpc.Success, true)}
		})
		if err := c.Set(t.Context(), Mapping{100003, 3, RDMA, "192.0.2.1.78.81", "superuser"}); err != nil {
			t.Fatal(err)
		}
		// RFC 5531 section 9 and RFC 1833 section 2.1: CALL, RPC version 2, program
		// 100000, version 4, procedure SET, twice AUTH_NONE, an rpcb. CTX-1833-1
		want := testutil.Hex(t, "00000000 00000002 000186a0 00000004 00000001 00000000 00000000 00000000 00000000"+goldenMapping)
		if got := <-calls; !bytes.Equal(got[4:], want) {
			t.Errorf("the call is\n%x, want behind the xid\n%x", got, want)
		}
	})
}

// Every operation with every version. CTX-1833-1
func TestVersions(t *testing.T) {
	at := func(s string) func(context.Context, *Client) (string, error) {
		return func(ctx context.Context, c *Client) (string, error) {
			a, err := c.GetAddr(ctx, 100003, 3, Netid(s))
			return a.String(), err
		}
	}
	rdma := Mapping{100003, 3, RDMA, "0.0.0.0.78.81", ""}
	for _, tt := range []struct {
		name    string
		answer  answerFunc
		ask     func(context.Context, *Client) (string, error)
		want    string
		calls   string // VERSION.PROCEDURE each, over TCP
		wantErr any    // what errors.As or errors.Is finds
	}{
		{"version 4", upTo(4, "127.0.0.1.8.1"), at("tcp"), "127.0.0.1:2049", "4.3", nil},
		{"version 3", upTo(3, "127.0.0.1.8.1"), at("tcp"), "127.0.0.1:2049", "4.3 3.3", nil},
		{"version 2", upTo(2, 2049), at("tcp"), "127.0.0.1:2049", "4.3 3.3 2.3", nil},
		{"rdma is looked for in the list", upTo(4, rdma, false), at("rdma"), "127.0.0.1:20049", "4.4", nil},
		{"rdma is looked for in version 3's list", upTo(3, rdma, false), at("rdma"), "127.0.0.1:20049", "4.4 3.4", nil},
		{"no rdma at a port mapper", upTo(2, 2049), at("rdma"), "", "4.4 3.4", new(*VersionError)},
		{"no rpcbind at all", always(oncrpc.ProgUnavail), at("tcp"), "", "4.3 3.3 2.3", new(*oncrpc.RPCError)},
		{"version 1 only", upTo(1), at("tcp"), "", "4.3 3.3 2.3", new(*oncrpc.RPCError)},
		{"a refusal is no reason to ask again", always(oncrpc.SystemErr), at("tcp"), "", "4.3", new(*oncrpc.RPCError)},
		{"not registered", upTo(4, ""), at("tcp"), "", "4.3", ErrNotRegistered},
		{"not registered, version 2", upTo(2, 0), at("tcp"), "", "4.3 3.3 2.3", ErrNotRegistered},
		{"not in the list", upTo(4, rdma, false), at("rdma6"), "", "4.4", ErrNotRegistered},
		{"another version in the list", upTo(4, Mapping{100003, 4, RDMA, "0.0.0.0.78.81", ""}, false), at("rdma"), "", "4.4", ErrNotRegistered},
	} {
		t.Run("CTX-1833-1 "+tt.name, func(t *testing.T) {
			calls := make(chan string, 16)
			c := newPeer(t, "tcp", func(xid uint32, h *oncrpc.CallHeader, call []byte) [][]byte {
				calls <- fmt.Sprintf("%d.%d", h.Vers, h.Proc)
				return tt.answer(xid, h, call)
			})
			got, err := tt.ask(t.Context(), &c)
			for _, want := range strings.Fields(tt.calls) {
				if got := <-calls; got != want {
					t.Errorf("a call is %s, want those of %s", got, tt.calls)
				}
			}
			if len(calls) != 0 {
				t.Errorf("another call is %s, want %s", <-calls, tt.calls)
			}
			wantError(t, err, tt.wantErr)
			if tt.wantErr == nil && got != tt.want {
				t.Errorf("%s, want %s", got, tt.want)
			}
		})
	}
}

// wantError checks an error of a Client against a sentinel or a pointer to a type.
func wantError(t *testing.T, err error, want any) {
	t.Helper()
	var op *OpError
	switch w := want.(type) {
	case nil:
		if err != nil {
			t.Errorf("%v", err)
		}
		return
	case error:
		if !errors.Is(err, w) {
			t.Errorf("%v, want %v", err, w)
		}
	default:
		if !errors.As(err, w) {
			t.Errorf("%v, want a %T", err, w)
		}
	}
	if !errors.As(err, &op) || op.Op == "" || op.Server == "" {
		t.Errorf("%v is no OpError", err)
	} else if s := err.Error(); strings.ContainsAny(s, "\n\x1b") || len(s) > 300 || !strings.HasPrefix(s, "rpcbind: ") {
		t.Errorf("%q is not one line for people", s)
	}
}

func TestSetAndUnset(t *testing.T) {
	both(t, func(t *testing.T, network string) {
		m := Mapping{100003, 3, TCP, "192.0.2.1.8.1", ""}
		for _, tt := range []struct {
			vers       uint32
			set, unset string // the arguments
		}{
			{4, "000186a3 00000003 00000003 74637000 0000000d 3139322e302e322e312e382e31 000000 00000000", "000186a3 00000003 00000003 74637000 00000000 00000000"},
			{2, "000186a3 00000003 00000006 00000801", "000186a3 00000003 00000000 00000000"},
		} {
			args := make(chan []byte, 1) // of calls that were answered
			var no atomic.Bool
			c := newPeer(t, network, func(xid uint32, h *oncrpc.CallHeader, call []byte) [][]byte {
				if h.Vers <= tt.vers && !no.Load() {
					args <- bytes.Clone(call[oncrpc.MinCallSize:])
				}
				return upTo(tt.vers, !no.Load())(xid, h, call)
			})
			if err := c.Set(t.Context(), m); err != nil {
				t.Errorf("SET of version %d: %v", tt.vers, err)
			} else if got := <-args; !bytes.Equal(got, testutil.Hex(t, tt.set)) {
				t.Errorf("SET of version %d: %x", tt.vers, got)
			}
			if err := c.Unset(t.Context(), m.Prog, m.Vers, m.Netid); err != nil {
				t.Errorf("UNSET of version %d: %v", tt.vers, err)
			} else if got := <-args; !bytes.Equal(got, testutil.Hex(t, tt.unset)) {
				t.Errorf("UNSET of version %d: %x", tt.vers, got)
			}
			no.Store(true)
			wantError(t, c.Set(t.Context(), m), ErrRefused)
			wantError(t, c.Unset(t.Context(), m.Prog, m.Vers, ""), ErrRefused)
		}
	})
	t.Run("what makes no sense is not sent", func(t *testing.T) {
		c := newPeer(t, "tcp", func(uint32, *oncrpc.CallHeader, []byte) [][]byte {
			t.Error("there is a call")
			return nil
		})
		for _, m := range []Mapping{
			{100003, 3, "", "192.0.2.1.8.1", ""},
			{100003, 3, RDMA, "", ""},
			{100003, 3, RDMA, "192.0.2.1", ""},
			{100003, 3, RDMA, "192.0.2.1.0.0", ""},
			{100003, 3, RDMA, "2001:db8::1.78.81", ""},
			{100003, 3, RDMA6, "192.0.2.1.78.81", ""},
			{100003, 3, "local", strings.Repeat("/", maxString+1), ""},
			{100003, 3, RDMA, "192.0.2.1.78.81", strings.Repeat("o", maxString+1)},
		} {
			wantError(t, c.Set(t.Context(), m), new(*AddrError))
		}
		_, err := c.GetAddr(t.Context(), 100003, 3, "local")
		wantError(t, err, new(*AddrError))
	})
}

func TestDump(t *testing.T) {
	both(t, func(t *testing.T, network string) {
		for vers, golden := range map[uint32]string{4: goldenList, 3: goldenList, 2: goldenPorts} {
			c := newPeer(t, network, upTo(vers, testutil.Hex(t, golden)))
			list, err := c.Dump(t.Context())
			d := xdr.NewDecoder(testutil.Hex(t, golden))
			if want := decodeList(&d, vers); err != nil || !reflect.DeepEqual(list, want) {
				t.Errorf("version %d: %v, %v, want %v", vers, list, err, want)
			}
		}
	})
}

// TestHostile: every malformed reply is a BadReplyError.
func TestHostile(t *testing.T) {
	long := strings.Repeat("x", maxString+1)
	many := slices.Repeat([]any{Mapping{1, 1, "x", "y", ""}}, maxMappings+1)
	get := func(ctx context.Context, c *Client) error { // of what the question comes over
		_, err := c.GetAddr(ctx, 100003, 3, Netid(cmp.Or(c.Network, "tcp")))
		return err
	}
	find := func(ctx context.Context, c *Client) error {
		_, err := c.GetAddr(ctx, 100003, 3, RDMA)
		return err
	}
	dump := func(ctx context.Context, c *Client) error {
		list, err := c.Dump(ctx)
		if err != nil && list != nil {
			return errors.New("both an error and a list")
		}
		return err
	}
	set := func(ctx context.Context, c *Client) error {
		return c.Set(ctx, Mapping{100003, 3, TCP, "192.0.2.1.8.1", ""})
	}
	for name, tt := range map[string]struct {
		ask    func(context.Context, *Client) error
		answer answerFunc
	}{
		"a bool of 2":                       {set, upTo(4, 2)},
		"no bool":                           {set, upTo(4)},
		"more than a bool":                  {set, upTo(4, true, 0)},
		"a string of 4 GiB":                 {get, upTo(4, testutil.Hex(t, "ffffffff 31323334"))},
		"a string that is cut short":        {get, upTo(4, testutil.Hex(t, "00000009 31323334"))},
		"an address that is too long":       {get, upTo(4, long)},
		"an address that is none":           {get, upTo(4, "/run/rpcbind.sock")},
		"an address that is an escape code": {get, upTo(4, "\x1b[31m\n")},
		"an address of IPv6":                {get, upTo(4, "::1.8.1")},
		"port 0":                            {get, upTo(4, "127.0.0.1.0.0")},
		"port 65536":                        {get, upTo(2, 65536)},
		"port 2^32-1":                       {get, upTo(2, -1)},
		"bytes after the address":           {get, upTo(4, "127.0.0.1.8.1", 0)},
		"an address that is none in a list": {find, upTo(4, Mapping{100003, 3, RDMA, "nonsense", ""}, false)},
		"a list without an end":             {find, upTo(4, Mapping{100003, 3, RDMA, "127.0.0.1.78.81", ""})},
		"a list that ends in a 2":           {dump, upTo(4, Mapping{1, 1, "x", "y", ""}, 2)},
		"a list with bytes after it":        {dump, upTo(4, false, false)},
		"a netid that is too long":          {dump, upTo(4, Mapping{1, 1, Netid(long), "y", ""}, false)},
		"an owner that is too long":         {dump, upTo(4, Mapping{1, 1, "x", "y", long}, false)},
		"a port mapper's port of 65536":     {dump, upTo(2, true, 100003, 3, 6, 65536, false)},
		"a list that is too long":           {dump, upTo(4, append(slices.Clone(many), false)...)},
		"a status that is cut short": {dump, func(xid uint32, _ *oncrpc.CallHeader, _ []byte) [][]byte {
			return [][]byte{reply(xid, oncrpc.Success)[:20]}
		}},
		"a verifier of 4 GiB": {dump, func(xid uint32, _ *oncrpc.CallHeader, _ []byte) [][]byte {
			b := reply(xid, oncrpc.Success, false)
			binary.BigEndian.PutUint32(b[16:], 1<<32-1)
			return [][]byte{b}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			networks := []string{"tcp", "udp"}
			if strings.Contains(name, "list that is too long") {
				networks = networks[:1] // no datagram holds it
			}
			for _, network := range networks {
				c := newPeer(t, network, tt.answer)
				wantError(t, tt.ask(t.Context(), &c), new(*BadReplyError))
			}
		})
	}
}

// TestHostileStream tests malformed streams.
func TestHostileStream(t *testing.T) {
	mark := func(n int, last bool) []byte { return oncrpc.AppendRecordMark(nil, n, last) }
	for name, tt := range map[string]struct {
		sent []byte
		ends bool // and then the connection does; else the peer waits for us to go
	}{
		"a record of 2 GiB":         {mark(oncrpc.MaxFragment, true), false},
		"a record over the limit":   {mark(maxReply+1, true), false},
		"fragments over the limit":  {append(append(mark(4, false), 0, 0, 0, 0), mark(maxReply-3, false)...), false},
		"an empty fragment":         {mark(0, false), false},
		"half a record mark":        {mark(4, true)[:2], true},
		"half a record":             {append(mark(8, true), 0, 0, 0, 0), true},
		"the end instead of a mark": {nil, true},
	} {
		t.Run(name, func(t *testing.T) {
			c := newStream(t, func(c net.Conn) {
				readRecord(c)
				c.Write(tt.sent)
				if !tt.ends {
					io.Copy(io.Discard, c)
				}
			})
			_, err := c.Dump(t.Context())
			wantError(t, err, new(*BadReplyError))
		})
	}
	t.Run("an answer in many fragments", func(t *testing.T) {
		c := newStream(t, func(c net.Conn) {
			call, err := readRecord(c)
			if err != nil {
				return
			}
			msg := reply(binary.BigEndian.Uint32(call), oncrpc.Success, testutil.Hex(t, goldenList))
			for i := range msg {
				c.Write(append(mark(1, i == len(msg)-1), msg[i]))
			}
		})
		if list, err := c.Dump(t.Context()); err != nil || len(list) != 3 {
			t.Errorf("%v, %v", list, err)
		}
	})
}

// TestStrays: messages that are not the reply are ignored.
func TestStrays(t *testing.T) {
	both(t, func(t *testing.T, network string) {
		c := newPeer(t, network, func(xid uint32, _ *oncrpc.CallHeader, call []byte) [][]byte {
			return [][]byte{
				{},
				{1, 2, 3},
				call, // its own question
				reply(xid+1, oncrpc.Success, "127.0.0.1.6.6"),
				reply(xid-1, oncrpc.ProgUnavail),
				reply(xid, oncrpc.Success, false),
			}
		})
		if list, err := c.Dump(t.Context()); err != nil || len(list) != 0 {
			t.Errorf("%v, %v", list, err)
		}
	})
}

// TestRetransmission: over UDP the call is retransmitted until there is a reply, with the same
// xid and growing intervals; datagrams from other addresses are ignored.
func TestRetransmission(t *testing.T) {
	c, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	stranger, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer stranger.Close()
	const questions = 4
	type arrival struct {
		at  time.Time
		msg []byte
	}
	arrivals := make(chan arrival, questions)
	go func() {
		defer close(arrivals)
		buf := make([]byte, 1<<16)
		for i := range questions {
			n, from, err := c.ReadFrom(buf)
			if err != nil {
				return
			}
			arrivals <- arrival{time.Now(), bytes.Clone(buf[:n])}
			xid := binary.BigEndian.Uint32(buf)
			stranger.WriteTo(reply(xid, oncrpc.Success, true, 666), from)
			if i == questions-1 {
				c.WriteTo(reply(xid, oncrpc.Success, false), from)
			}
		}
	}()
	conn, err := dial(t.Context(), "udp", c.LocalAddr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	const wait = 20 * time.Millisecond
	conn.wait = wait
	began := time.Now()
	if err := conn.call(t.Context(), version4, procDump, nil, func(d *xdr.Decoder) {
		if d.Bool() {
			t.Error("the stranger was heard")
		}
	}); err != nil {
		t.Fatal(err)
	}
	var before arrival
	i := 0
	for a := range arrivals {
		if i > 0 && !bytes.Equal(a.msg, before.msg) {
			t.Errorf("question %d is another one: %x after %x", i, a.msg, before.msg)
		}
		// The peer may be late for one and in time for the next, so their distance says nothing.
		if least := wait<<i - wait; a.at.Sub(began) < least {
			t.Errorf("question %d came after %v, want at least %v", i, a.at.Sub(began), least)
		}
		before = a
		i++
	}
	if i != questions {
		t.Errorf("%d questions, want %d", i, questions)
	}
}

// TestEnds: an operation ends with its context, and with the connection.
func TestEnds(t *testing.T) {
	both(t, func(t *testing.T, network string) {
		var flood atomic.Bool
		asked := make(chan struct{}, 16)
		c := newPeer(t, network, func(xid uint32, _ *oncrpc.CallHeader, _ []byte) [][]byte {
			select {
			case asked <- struct{}{}:
			default:
			}
			if flood.Load() {
				return slices.Repeat([][]byte{reply(xid+1, oncrpc.Success)}, 100)
			}
			return nil
		})
		ctx, cancel := context.WithCancel(t.Context())
		go func() { <-asked; cancel() }()
		_, err := c.Dump(ctx)
		wantError(t, err, context.Canceled)

		_, err = c.Dump(ctx) // it has ended before
		wantError(t, err, context.Canceled)

		for _, on := range []bool{false, true} {
			flood.Store(on)
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
			_, err = c.Dump(ctx)
			cancel()
			wantError(t, err, context.DeadlineExceeded)
		}
	})
	t.Run("nobody is there", func(t *testing.T) {
		both(t, func(t *testing.T, network string) {
			// A port that was just closed.
			l, err := net.ListenPacket("udp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			l.Close()
			c := Client{Network: network, Addr: l.LocalAddr().String()}
			_, err = c.Dump(t.Context())
			wantError(t, err, syscall.ECONNREFUSED)
		})
	})
	t.Run("the connection ends", func(t *testing.T) {
		c := newStream(t, func(c net.Conn) { io.CopyN(io.Discard, c, 44) })
		_, err := c.Dump(t.Context())
		wantError(t, err, io.ErrUnexpectedEOF)
	})
}

// TestErrors: error messages.
func TestErrors(t *testing.T) {
	for want, err := range map[string]error{
		"rpcbind: GETADDR at server:111 for program 100003 version 3 over rdma: not registered": &OpError{
			"GETADDR", "server:111", 100003, 3, RDMA, ErrNotRegistered},
		"rpcbind: SET at server:111 for program 100003 version 3 over rdma: refused: another address is already registered": &OpError{
			"SET", "server:111", 100003, 3, RDMA, ErrRefused},
		"rpcbind: UNSET at server:111 for program 100003 version 3: refused: not registered, or registered by another owner": &OpError{
			"UNSET", "server:111", 100003, 3, "", ErrRefused},
		"rpcbind: DUMP at server:111: malformed reply: over 7 bytes": &OpError{
			"DUMP", "server:111", 0, 0, "", &BadReplyError{errors.New("over 7 bytes")}},
		"rpcbind: SET at s:111 for program 1 version 1 over rdma: the server supports only version 2, which has tcp and udp, not rdma": &OpError{
			"SET", "s:111", 1, 1, RDMA, &VersionError{Netid: RDMA}},
		`rpcbind: SET at s:111 for program 1 version 1 over rdma: address "x" of netid "rdma": is cut short`: &OpError{
			"SET", "s:111", 1, 1, RDMA, &AddrError{RDMA, "x", "is cut short"}},
		`rpcbind: address "x": is cut short`:                               &AddrError{"", "x", "is cut short"},
		`rpcbind: netid "x": its addresses are not of IP`:                  &AddrError{"x", "", "its addresses are not of IP"},
		"malformed reply: " + io.EOF.Error():                               &BadReplyError{io.EOF},
		"the server supports only version 2, which has tcp and udp, not x": &VersionError{Netid: "x"},
	} {
		if err.Error() != want {
			t.Errorf("%q, want %q", err, want)
		}
	}
}
