package rpcsec

import (
	"encoding/binary"

	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
	"github.com/rpcrdma/rpcrdma/rpc"
)

const (
	version   = 1
	maxSeq    = 0x80000000 // MAXSEQ
	maxHandle = oncrpc.MaxAuthBody - 20
	maxToken  = 64 << 10 // longest token; tickets with Active Directory groups are long

	// maxInitResults is the longest result of a setup call, in bytes. It fits inline, because a call from a server may
	// have no reply chunk.
	maxInitResults = 2048

	// maxSteps bounds the calls that establish a context. Kerberos needs one.
	maxSteps = 8
)

// control is a gss_proc. RFC 2203 section 5.
type control uint32

const (
	controlData control = iota
	controlInit
	controlContinue
	controlDestroy
)

// cred is rpc_gss_cred_vers_1_t. RFC 2203 section 5.
type cred struct {
	control control
	seq     uint32
	service rpc.Service
	handle  []byte
}

func (c *cred) append(b []byte) []byte {
	for _, w := range [...]uint32{version, uint32(c.control), c.seq, uint32(c.service)} {
		b = binary.BigEndian.AppendUint32(b, w)
	}
	return xdr.AppendOpaque(b, c.handle)
}

func (c *cred) auth(b []byte) oncrpc.Auth {
	return oncrpc.Auth{Flavor: oncrpc.FlavorGSS, Body: c.append(b)}
}

// decode decodes body. It returns AuthOK if body is a valid credential.
func (c *cred) decode(body []byte) oncrpc.AuthStat {
	d := xdr.NewDecoder(body)
	vers := d.Uint32()
	if d.Err() == nil && vers != version {
		return oncrpc.AuthRejectedCred
	}
	*c = cred{control: control(d.Uint32()), seq: d.Uint32(), service: rpc.Service(d.Uint32()), handle: d.Opaque(maxHandle)}
	if d.End() != nil || c.control > controlDestroy {
		return oncrpc.AuthBadCred
	}
	return oncrpc.AuthOK
}

// initResult is rpc_gss_init_res. RFC 2203 section 5.2.3.1.
type initResult struct {
	handle       []byte
	major, minor uint32
	window       uint32
	token        []byte
}

func (r *initResult) append(b []byte) []byte {
	b = xdr.AppendOpaque(b, r.handle)
	for _, w := range [...]uint32{r.major, r.minor, r.window} {
		b = binary.BigEndian.AppendUint32(b, w)
	}
	return xdr.AppendOpaque(b, r.token)
}

func (r *initResult) decode(b []byte) error {
	d := xdr.NewDecoder(b)
	*r = initResult{handle: d.Opaque(maxHandle), major: d.Uint32(), minor: d.Uint32(), window: d.Uint32(), token: d.Opaque(maxToken)}
	return d.End()
}

// seqSize is the length of the sequence number that precedes protected arguments and results, in bytes.
const seqSize = 4

// protectedSize returns the largest length of n bytes of arguments or results after protection by service s.
func protectedSize(gss Context, s rpc.Service, n int) int {
	switch s {
	case rpc.ServiceIntegrity:
		return xdr.SizeOpaque(seqSize+n) + xdr.SizeOpaque(gss.MICSize())
	case rpc.ServicePrivacy:
		return xdr.SizeOpaque(gss.WrapHead() + seqSize + n + gss.WrapTail())
	}
	return n
}

// protectHead returns how many bytes protection puts before the arguments or results.
func protectHead(gss Context, s rpc.Service) int {
	const length = 4
	if s == rpc.ServicePrivacy {
		return length + gss.WrapHead() + seqSize
	}
	return length + seqSize
}

// protect protects the arguments or results that follow protectHead bytes in b. RFC 2203 sections 5.3.2.2 and 5.3.2.3.
func protect(gss Context, s rpc.Service, seq uint32, b []byte) ([]byte, error) {
	const length = 4
	head := protectHead(gss, s)
	binary.BigEndian.PutUint32(b[head-seqSize:], seq)
	if s == rpc.ServicePrivacy {
		b, err := gss.Wrap(b, length)
		if err != nil {
			return nil, err
		}
		n := len(b) - length
		binary.BigEndian.PutUint32(b, uint32(n))
		return pad(b, n), nil
	}
	n := len(b) - length
	binary.BigEndian.PutUint32(b, uint32(n))
	b = pad(b, n)
	at := len(b)
	b, err := gss.AppendMIC(append(b, 0, 0, 0, 0), b[length:length+n])
	if err != nil {
		return nil, err
	}
	size := len(b) - at - length
	binary.BigEndian.PutUint32(b[at:], uint32(size))
	return pad(b, size), nil
}

// pad appends the XDR padding for n bytes.
func pad(b []byte, n int) []byte {
	var zeros [xdr.Unit]byte
	return append(b, zeros[:xdr.Pad(n)]...)
}

// open is the inverse of protect. It may modify b. The body refers to the memory of b or of the mechanism.
func open(gss Context, s rpc.Service, seq uint32, b []byte) (body []byte, err error) {
	d := xdr.NewDecoder(b)
	body = d.Opaque(1<<32 - 1)
	if s == rpc.ServicePrivacy {
		if err = d.End(); err == nil {
			body, err = gss.Unwrap(body)
		}
	} else {
		mic := d.Opaque(1<<32 - 1)
		if err = d.End(); err == nil {
			err = gss.VerifyMIC(body, mic)
		}
	}
	if err != nil {
		return nil, err
	}
	return ofSequence(body, seq)
}

// ofSequence checks the sequence number and returns the arguments or results after it.
func ofSequence(body []byte, seq uint32) ([]byte, error) {
	if len(body) < seqSize || binary.BigEndian.Uint32(body) != seq {
		return nil, errSequence
	}
	return body[seqSize:], nil
}

// window records the sequence numbers that a context has seen. RFC 2203 section 5.3.3.1.
type window struct {
	last uint32   // the highest number
	seen []uint64 // one bit for each number in the window, indexed modulo its size
}

func newWindow(size uint32) window { return window{seen: make([]uint64, (size+63)/64)} }

// take reports whether seq is new, and records it.
func (w *window) take(seq uint32) bool {
	size := uint32(len(w.seen)) * 64
	if seq > w.last {
		if seq-w.last >= size {
			clear(w.seen)
		} else {
			for i := w.last + 1; i != seq; i++ {
				w.seen[i%size/64] &^= 1 << (i % 64)
			}
			w.seen[seq%size/64] &^= 1 << (seq % 64)
		}
		w.last = seq
	} else if w.last-seq >= size {
		return false
	}
	word, bit := &w.seen[seq%size/64], uint64(1)<<(seq%64)
	if *word&bit != 0 {
		return false
	}
	*word |= bit
	return true
}
