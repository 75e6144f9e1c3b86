// Package oncrpc is the wire form of ONC RPC version 2, RFC 5531: the headers of
// calls and replies, the authentication fields in them, and record marking for
// byte-stream transports.
//
// [CallHeader] and [ReplyHeader] are plain structs that the caller owns. Append
// functions write them in front of the arguments or results, Consume functions
// fill them and return where the arguments or results begin. [Peek] tells calls
// from replies without decoding more than two words.
//
// # Usage
//
//	b = oncrpc.AppendCall(b, &oncrpc.CallHeader{
//		XID: xid, RPCVers: oncrpc.Version, Prog: 100003, Vers: 3, Proc: 0,
//	})
//
//	var r oncrpc.ReplyHeader
//	n, err := oncrpc.ConsumeReply(msg, &r)
//	if err != nil {
//		return err // not a reply: a *xdr.DecodeError
//	}
//	if err := r.Err(); err != nil {
//		return err // the server said no: a *oncrpc.RPCError
//	}
//	results := msg[n:]
//
// # Ownership
//
// The bodies of credentials and verifiers that Consume functions return are views
// of the input, valid as long as the input is. When a Consume function returns an
// error, the struct that it was given holds nothing of use.
//
// # Limitations
//
// AUTH_NONE and AUTH_SYS are understood; the bodies of all other flavors,
// RPCSEC_GSS among them, are carried as bytes. Enumeration values that RFC 5531
// does not define survive decoding and print as numbers. There is no I/O here, no
// matching of replies to calls, no rpcbind.
package oncrpc
