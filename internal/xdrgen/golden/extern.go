package golden

import "github.com/rpcrdma/rpcrdma/proto/xdr"

// A Key is typedef key of flat.x. It is comparable.
type Key struct {
	n    uint8
	data [8]byte
}

// Append appends the encoding of k to b.
func (k *Key) Append(b []byte) []byte { return xdr.AppendOpaque(b, k.data[:k.n]) }

// Decode decodes k and leaves its error in d.
func (k *Key) Decode(d *xdr.Decoder) {
	*k = Key{}
	k.n = uint8(copy(k.data[:], d.Opaque(8)))
}

// Check returns nil.
func (k *Key) Check() error { return nil }
