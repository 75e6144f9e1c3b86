package oncrpc

import (
	"fmt"
	"strconv"
)

// An RPCError is an error reply: the server answered, but did not execute the procedure
// successfully. Stat decides which of the other fields mean anything, as in [ReplyHeader].
//
// Prog, Vers and Proc name what was called. A reply does not carry them; the caller fills them
// in. While they are zero the error message omits them.
type RPCError struct {
	Prog, Vers, Proc uint32

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
	switch e.Stat {
	case MsgAccepted:
		return "rpc: " + e.accepted()
	case MsgDenied:
		return "rpc: " + e.denied()
	}
	return fmt.Sprintf("rpc: server answered with unknown status %v", e.Stat)
}

func (e *RPCError) accepted() string {
	switch e.AcceptStat {
	case ProgUnavail:
		return e.program() + " not available at the server"
	case ProgMismatch:
		return fmt.Sprintf("%s%s not supported, server has %d..%d", e.program(), e.version(), e.Low, e.High)
	case ProcUnavail:
		return fmt.Sprintf("%s not available in %s%s", e.procedure(), e.program(), e.version())
	case GarbageArgs:
		return "server could not decode the arguments" + e.called()
	case SystemErr:
		return "server failed with a system error" + e.called()
	}
	return fmt.Sprintf("server answered with unknown status %v%s", e.AcceptStat, e.called())
}

func (e *RPCError) denied() string {
	switch e.RejectStat {
	case RPCMismatch:
		return fmt.Sprintf("RPC version %d not supported, server has %d..%d", Version, e.Low, e.High)
	case AuthError:
		return fmt.Sprintf("server denied the call: %v%s", e.AuthStat, e.called())
	}
	return fmt.Sprintf("server denied the call with unknown status %v%s", e.RejectStat, e.called())
}

// known reports whether the caller filled in what was called; no program has the
// number 0.
func (e *RPCError) known() bool { return e.Prog != 0 }

func (e *RPCError) program() string {
	if !e.known() {
		return "program"
	}
	return "program " + strconv.FormatUint(uint64(e.Prog), 10)
}

func (e *RPCError) version() string {
	if !e.known() {
		return " version"
	}
	return " version " + strconv.FormatUint(uint64(e.Vers), 10)
}

func (e *RPCError) procedure() string {
	if !e.known() {
		return "procedure"
	}
	return "procedure " + strconv.FormatUint(uint64(e.Proc), 10)
}

func (e *RPCError) called() string {
	if !e.known() {
		return ""
	}
	return fmt.Sprintf(" (program %d version %d procedure %d)", e.Prog, e.Vers, e.Proc)
}
