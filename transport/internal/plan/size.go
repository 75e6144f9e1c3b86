package plan

import "github.com/rpcrdma/rpcrdma/proto/rpcrdma"

// Sizes are the inline thresholds of a connection as one end sees them: the longest Sends
// that it and its peer may make, in bytes, transport header included.
type Sizes struct{ Send, Recv int }

// Agree determines the thresholds from private data (RFC 8797 sections 4.2, 5.1). own is what this end supports; told
// reports whether it has announced that, and peer is the peer's announcement, nil without one. An end without an
// announcement receives 1024 bytes.
func Agree(own Sizes, told bool, peer *rpcrdma.PrivateData) Sizes {
	theirs := Sizes{rpcrdma.DefaultInline, rpcrdma.DefaultInline}
	if peer != nil {
		theirs = Sizes{peer.SendSize, peer.RecvSize}
	}
	if !told {
		own.Recv = rpcrdma.DefaultInline
	}
	return Sizes{Send: min(own.Send, theirs.Recv), Recv: min(own.Recv, theirs.Send)}
}

// Version2 returns the thresholds of version 2 (version two section 5): its own default, or the values agreed on by
// private data if both ends sent some and the values are larger.
func Version2(agreed Sizes, both bool) Sizes {
	s := Sizes{rpcrdma.DefaultInline2, rpcrdma.DefaultInline2}
	if both {
		s = Sizes{max(s.Send, agreed.Send), max(s.Recv, agreed.Recv)}
	}
	return s
}

// Raised returns the thresholds after both ends have announced their properties, which never lower them.
func Raised(now Sizes, own, peer rpcrdma.Properties) Sizes {
	return Sizes{Send: max(now.Send, own.SendInline(peer)), Recv: max(now.Recv, peer.SendInline(own))}
}

// Configured returns the thresholds agreed on by the Connection Configuration Protocol (RFC 5666 section 6): own has
// the sizes that this end has stated, for which its receives are posted, and most is the receive size that the peer has
// stated, in bytes.
func Configured(own Sizes, most uint32) Sizes {
	return Sizes{Send: int(min(uint64(own.Send), uint64(most))), Recv: own.Recv}
}
