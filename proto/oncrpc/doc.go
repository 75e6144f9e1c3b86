// Package oncrpc implements the wire format of ONC RPC version 2, RFC 5531: the headers of calls and replies, the
// authentication fields in them, and record marking for byte-stream transports.
//
// [CallHeader] and [ReplyHeader] are plain structs that the caller owns. Append functions encode them. Consume
// functions decode them and return the offset of the arguments or results. [Peek] distinguishes calls from replies by
// decoding only two words.
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
//		return err // the server refused the call: a *oncrpc.RPCError
//	}
//	results := msg[n:]
//
// # Ownership
//
// The bodies of credentials and verifiers that Consume functions return are views of the input, and are valid as long
// as it is. When a Consume function returns an error, the contents of the struct are undefined.
//
// # Limitations
//
// The package understands AUTH_NONE and AUTH_SYS. It treats the bodies of all other flavors, including RPCSEC_GSS, as
// bytes. Enumeration values that RFC 5531 does not define are preserved by decoding, and print as numbers. The package
// does no I/O, and does not match replies to calls.
package oncrpc
