package oncrpc

import "fmt"

// An RPCError is an error reply: the server answered, but did not execute the procedure successfully. Stat determines
// which of the other fields are meaningful, as in [ReplyHeader].
//
// Prog, Vers and Proc identify the procedure that was called. A reply does not carry them; the caller sets them. If
// Prog is 0, which is not a valid program, the error message omits them. Names, if not nil, provides names for them.
type RPCError struct {
	Prog, Vers, Proc uint32
	Names            *Program

	Stat       ReplyStat
	AcceptStat AcceptStat
	RejectStat RejectStat
	AuthStat   AuthStat
	Low, High  uint32
}

var _ error = (*RPCError)(nil)

// Err returns nil if the call was executed, otherwise an [*RPCError].
func (h *ReplyHeader) Err() error {
	if h.Stat == MsgAccepted && h.AcceptStat == Success {
		return nil
	}
	return &RPCError{
		Stat:       h.Stat,
		AcceptStat: h.AcceptStat,
		RejectStat: h.RejectStat,
		AuthStat:   h.AuthStat,
		Low:        h.Low,
		High:       h.High,
	}
}

func (e *RPCError) Error() string {
	if e.Prog == 0 {
		return "rpc: " + e.reason()
	}
	names := e.Names
	if names == nil {
		names = &Program{Number: e.Prog, Vers: e.Vers}
	}
	return names.CallName(e.Proc) + ": " + e.reason()
}

// reason describes the server's answer.
func (e *RPCError) reason() string {
	switch e.Stat {
	case MsgAccepted:
		return e.accepted()
	case MsgDenied:
		return e.denied()
	}
	return fmt.Sprintf("the server answered with the unknown status %v", e.Stat)
}

func (e *RPCError) accepted() string {
	switch e.AcceptStat {
	case ProgUnavail:
		return "the server does not have the program (PROG_UNAVAIL)"
	case ProgMismatch:
		return fmt.Sprintf("the server has %s of the program (PROG_MISMATCH)", e.versions("version"))
	case ProcUnavail:
		return "the server does not have the procedure (PROC_UNAVAIL)"
	case GarbageArgs:
		return "the server could not decode the arguments (GARBAGE_ARGS)"
	case SystemErr:
		return "the server failed (SYSTEM_ERR)"
	}
	return fmt.Sprintf("the server answered with the unknown status %v", e.AcceptStat)
}

func (e *RPCError) denied() string {
	switch e.RejectStat {
	case RPCMismatch:
		return fmt.Sprintf("the server has %s, not %d (RPC_MISMATCH)", e.versions("RPC version"), Version)
	case AuthError:
		return fmt.Sprintf("the server denied the call (%v)", e.AuthStat)
	}
	return fmt.Sprintf("the server denied the call with the unknown status %v", e.RejectStat)
}

// versions describes the versions that the server supports.
func (e *RPCError) versions(of string) string {
	if e.Low == e.High {
		return fmt.Sprintf("%s %d", of, e.Low)
	}
	return fmt.Sprintf("%ss %d to %d", of, e.Low, e.High)
}
