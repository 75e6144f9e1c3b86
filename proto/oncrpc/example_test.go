package oncrpc_test

import (
	"errors"
	"fmt"

	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
)

// A server that supports versions 3 and 4 answers a call of version 9.
func Example() {
	call := oncrpc.AppendCall(nil, &oncrpc.CallHeader{
		XID: 7, RPCVers: oncrpc.Version, Prog: 100003, Vers: 9,
	})

	var c oncrpc.CallHeader
	if _, err := oncrpc.ConsumeCall(call, &c); err != nil {
		fmt.Println(err)
		return
	}
	reply := oncrpc.AppendReply(nil, &oncrpc.ReplyHeader{
		XID: c.XID, AcceptStat: oncrpc.ProgMismatch, Low: 3, High: 4,
	})

	var r oncrpc.ReplyHeader
	if _, err := oncrpc.ConsumeReply(reply, &r); err != nil {
		fmt.Println(err)
		return
	}
	err := r.Err()
	var no *oncrpc.RPCError
	if errors.As(err, &no) {
		no.Prog, no.Vers, no.Proc = c.Prog, c.Vers, c.Proc
	}
	fmt.Println(err)
	// Output: procedure 0 of program 100003 v9: the server has versions 3 to 4 of the program (PROG_MISMATCH)
}
