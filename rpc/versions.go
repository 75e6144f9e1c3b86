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

// A Registrar takes the programs that it is to execute, as a server does before it serves.
type Registrar interface {
	// Register adds p. It fails if a program has its number already.
	Register(p Program) error
}

// FailArgs makes the reply the RPC error of arguments that cannot be decoded, which is err:
// GARBAGE_ARGS, or SYSTEM_ERR with a record in Config.Logger if there is no memory for them
// ([xdr.ErrMemory]), as RFC 5531 section 9 says.
func (w *Response) FailArgs(req *Request, err error) {
	if errors.Is(err, xdr.ErrMemory) {
		w.FailWith(req, err)
		return
	}
	w.Fail(oncrpc.GarbageArgs)
}

// FailWith makes the reply the RPC error that err, which is not nil, stands for. An
// oncrpc.AcceptStat that err is or wraps is that error, without a record in the log: GarbageArgs,
// ProcUnavail or SystemErr. An oncrpc.AuthStat is that denial, without a record in the log. All other errors are
// SYSTEM_ERR to the caller, and Config.Logger gets them: an *oncrpc.RPCError is another server's,
// and says nothing of this one.
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

// ErrorText logs an error for which FailWith has no status of RPC, and returns its text, cut to limit bytes of UTF-8.
// ok is false for nil and for other errors.
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

// ofRPC returns the status that an error is, or wraps: Success and AuthOK if it has none.
func ofRPC(err error) (stat oncrpc.AcceptStat, denied oncrpc.AuthStat) {
	if errors.As(err, &stat) && (stat == oncrpc.GarbageArgs || stat == oncrpc.ProcUnavail || stat == oncrpc.SystemErr) {
		return stat, oncrpc.AuthOK
	}
	errors.As(err, &denied)
	return oncrpc.Success, denied
}

// Versions makes one Program of several versions of it. All have to be of the same program and of
// different versions, and all or none have a Binding. A version between the lowest and the
// highest that is not among them is answered with PROC_UNAVAIL. The Program is Padded, ReadReplies
// or Independent if all versions are.
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

// versions are the programs of which Versions makes one.
type versions struct{ list []Program }

func (v *versions) find(vers uint32) *Program {
	for i := range v.list {
		if p := &v.list[i]; p.Low <= vers && vers <= p.High {
			return p
		}
	}
	return nil
}

// ServeRPC has the version of the call executed.
func (v *versions) ServeRPC(ctx context.Context, req *Request, res *Response) {
	switch p := v.find(req.Vers); {
	case p == nil:
		res.Fail(oncrpc.ProcUnavail)
	case req.Proc == 0 && !p.Null: // another version's handler executes it
	default:
		p.Handler.ServeRPC(ctx, req, res)
	}
}

// authorize asks the version of the call.
func (v *versions) authorize(req *Request) oncrpc.AuthStat {
	if p := v.find(req.Vers); p != nil && p.Auth != nil {
		return p.Auth(req)
	}
	return oncrpc.AuthOK
}

// Call asks the binding of the version.
func (v *versions) Call(p Procedure, args []byte, items []Range) ([]Range, ReplyBounds) {
	if b := v.find(p.Vers); b != nil {
		return b.Binding.Call(p, args, items)
	}
	return items[:0], ReplyBounds{}
}

// Reply asks the binding of the version.
func (v *versions) Reply(p Procedure, results []byte, reduced bool, items []Range) []Range {
	if b := v.find(p.Vers); b != nil {
		return b.Binding.Reply(p, results, reduced, items)
	}
	return items[:0]
}
