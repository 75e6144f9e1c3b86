package transport

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/rpc"
)

// TestOutcomeOfStatus checks that the texts of an Outcome are the standard RPC terms, and do not allocate.
func TestOutcomeOfStatus(t *testing.T) {
	for stat := oncrpc.Success; stat <= oncrpc.SystemErr; stat++ {
		e := rpc.CallEvent{Status: oncrpc.ReplyHeader{AcceptStat: stat}}
		if got, want := e.Outcome(), strings.ToLower(stat.String()); got != want {
			t.Errorf("%q, want %q", got, want)
		}
		if n := testing.AllocsPerRun(10, func() { e.Outcome() }); n != 0 {
			t.Errorf("%v: %v allocations", stat, n)
		}
	}
	for stat := oncrpc.RPCMismatch; stat <= oncrpc.AuthError; stat++ {
		e := rpc.CallEvent{Status: oncrpc.ReplyHeader{Stat: oncrpc.MsgDenied, RejectStat: stat}}
		if got, want := e.Outcome(), strings.ToLower(stat.String()); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	for _, h := range []oncrpc.ReplyHeader{{AcceptStat: 6}, {Stat: oncrpc.MsgDenied, RejectStat: 2}} {
		if e := (rpc.CallEvent{Status: h}); e.Outcome() != "failed" {
			t.Errorf("%+v: %q", h, e.Outcome())
		}
	}
}

func TestOutcomeOfConn(t *testing.T) {
	for _, tt := range []struct {
		err  error
		want string
	}{
		{nil, "closed"},
		{&rpc.StallError{}, "stalled"},
		{fmt.Errorf("with more: %w", &rpc.PeerError{Reason: "credits"}), "protocol"},
		{&rpc.BadReplyError{}, "protocol"},
		{&rpc.RDMAError{}, "protocol"},
		{&rpc.VersionError{}, "protocol"},
		{errSilent, "silent"},
		{&fabric.ConnError{Remote: true, Cause: io.ErrUnexpectedEOF}, "reset"},
		{&fabric.ConnError{Cause: io.ErrUnexpectedEOF}, "failed"},
		{errors.New("something else"), "failed"},
	} {
		if got := (rpc.ConnEvent{Err: tt.err}).Outcome(); got != tt.want {
			t.Errorf("%v: %q, want %q", tt.err, got, tt.want)
		}
	}
}

func TestOutcomeOfCallError(t *testing.T) {
	for _, tt := range []struct {
		err  error
		want string
	}{
		{&rpc.ClosedError{}, "closed"},
		{&rpc.ClosedError{Reason: errSilent}, "closed"}, // which is the connection's outcome alone
		{&rpc.LostError{Reason: errSilent}, "lost"},
		{errMoves, "lost"},
		{errors.New("something else"), "failed"},
	} {
		if got := (&rpc.CallEvent{Err: tt.err}).Outcome(); got != tt.want {
			t.Errorf("%v: %q, want %q", tt.err, got, tt.want)
		}
	}
}
