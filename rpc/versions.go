package rpc

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
)

// The common parts of generated clients and servers: see command xdrgen.

// A Registrar registers the programs that it will execute, as a server does before it serves.
type Registrar interface {
	// Register adds p. It fails if another program has the same number.
	Register(p Program) error
}

// FailArgs makes the reply the RPC error for arguments that cannot be decoded because of err: GARBAGE_ARGS, or
// SYSTEM_ERR with a record in Config.Logger if there is no memory for them ([xdr.ErrMemory]), as RFC 5531 section 9
// says.
func (w *Response) FailArgs(req *Request, err error) {
	if errors.Is(err, xdr.ErrMemory) {
		w.FailWith(req, err)
		return
	}
	w.Fail(oncrpc.GarbageArgs)
}

// FailWith makes the reply the RPC error for err, which is not nil. If err is or wraps an oncrpc.AcceptStat
// (GarbageArgs, ProcUnavail or SystemErr) or an oncrpc.AuthStat, that is the status of the reply, and nothing is
// logged. All other errors are SYSTEM_ERR to the caller, and are logged to Config.Logger. That includes an
// *oncrpc.RPCError, which comes from another server and is not the status of this one.
func (w *Response) FailWith(req *Request, err error) {
	stat, denied := ofRPC(err)
	switch {
	case denied != oncrpc.AuthOK:
		w.Deny(denied)
	case stat != oncrpc.Success:
		w.Fail(stat)
	default:
		w.Fail(oncrpc.SystemErr)
		req.o.LogFailed(req.Prog, req.Vers, req.Proc, err)
	}
}

// ErrorText logs an error for which FailWith has no RPC status, and returns its text, cut to limit bytes of UTF-8. ok
// is false for nil and for other errors.
func (w *Response) ErrorText(req *Request, err error, limit uint32) (text string, ok bool) {
	if stat, denied := ofRPC(err); err == nil || stat != oncrpc.Success || denied != oncrpc.AuthOK {
		return "", false
	}
	req.o.LogFailed(req.Prog, req.Vers, req.Proc, err)
	text = strings.ToValidUTF8(err.Error(), "?")
	if uint64(len(text)) > uint64(limit) {
		text = strings.ToValidUTF8(text[:limit], "")
	}
	return text, true
}

// ofRPC returns the status that an error is or wraps: Success and AuthOK if it has none.
func ofRPC(err error) (stat oncrpc.AcceptStat, denied oncrpc.AuthStat) {
	if errors.As(err, &stat) && (stat == oncrpc.GarbageArgs || stat == oncrpc.ProcUnavail || stat == oncrpc.SystemErr) {
		return stat, oncrpc.AuthOK
	}
	errors.As(err, &denied)
	return oncrpc.Success, denied
}

// Versions combines several versions of a program into one Program. All must have the same program number and different
// versions, and either all or none have a Binding. A version between the lowest and the highest that is missing is
// answered with PROC_UNAVAIL. The Program is Padded, ReadReplies or Independent if all versions are.
func Versions(programs ...Program) (Program, error) {
	v := new(versions)
	var all Program
	for _, p := range programs {
		switch {
		case p.Handler == nil || p.Low > p.High:
			return Program{}, fmt.Errorf("rpc: program %d has no handler or no versions", p.Number)
		case len(v.list) == 0:
			all = Program{Number: p.Number, Low: p.Low, High: p.High, Handler: v, Padded: true, ReadReplies: true, Independent: true}
			if p.Binding != nil {
				all.Binding = v
			}
		case (p.Binding == nil) != (all.Binding == nil):
			return Program{}, fmt.Errorf("rpc: program %d has a version with a Binding and one without", p.Number)
		case p.Number != all.Number:
			return Program{}, fmt.Errorf("rpc: programs %d and %d are not versions of one", all.Number, p.Number)
		case slices.ContainsFunc(v.list, func(o Program) bool { return p.Low <= o.High && o.Low <= p.High }):
			return Program{}, fmt.Errorf("rpc: program %d has a version twice", p.Number)
		}
		all.Low, all.High = min(all.Low, p.Low), max(all.High, p.High)
		if p.Auth != nil {
			all.Auth = v.authorize
		}
		all.Null = all.Null || p.Null
		all.Padded, all.ReadReplies = all.Padded && p.Padded, all.ReadReplies && p.ReadReplies
		all.Independent = all.Independent && p.Independent
		all.Names = append(all.Names, p.Names...)
		v.list = append(v.list, p)
	}
	if len(v.list) == 0 {
		return Program{}, errors.New("rpc: no versions of a program")
	}
	all.Idempotent = func(vers, proc uint32) bool {
		p := v.find(vers)
		return p != nil && p.Idempotent != nil && p.Idempotent(vers, proc)
	}
	all.Inline = func(vers, proc uint32) bool {
		p := v.find(vers)
		return p != nil && p.Inline != nil && p.Inline(vers, proc)
	}
	return all, nil
}

// versions are the programs that Versions combines.
type versions struct{ list []Program }

func (v *versions) find(vers uint32) *Program {
	for i := range v.list {
		if p := &v.list[i]; p.Low <= vers && vers <= p.High {
			return p
		}
	}
	return nil
}

// ServeRPC executes the call with the program of its version.
func (v *versions) ServeRPC(ctx context.Context, req *Request, res *Response) {
	switch p := v.find(req.Vers); {
	case p == nil:
		res.Fail(oncrpc.ProcUnavail)
	case req.Proc == 0 && !p.Null: // the handler of another version executes it
	default:
		p.Handler.ServeRPC(ctx, req, res)
	}
}

// authorize calls Auth of the call's version.
func (v *versions) authorize(req *Request) oncrpc.AuthStat {
	if p := v.find(req.Vers); p != nil && p.Auth != nil {
		return p.Auth(req)
	}
	return oncrpc.AuthOK
}

// Call calls the binding of the version.
func (v *versions) Call(p Procedure, args []byte, items []Range) ([]Range, ReplyBounds) {
	if b := v.find(p.Vers); b != nil {
		return b.Binding.Call(p, args, items)
	}
	return items[:0], ReplyBounds{}
}

// Reply calls the binding of the version.
func (v *versions) Reply(p Procedure, results []byte, reduced bool, items []Range) []Range {
	if b := v.find(p.Vers); b != nil {
		return b.Binding.Reply(p, results, reduced, items)
	}
	return items[:0]
}
