package nfsd

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/binary"

	"github.com/rpcrdma/rpcrdma/nfs"
)

// A file handle as clients see it:
//
//	0         1           5                 21
//	+---------+-----------+-----------------+-----------------------------+
//	| version | export id | MAC, 128 bits   | the file system's, 43 bytes |
//	+---------+-----------+-----------------+-----------------------------+
//
// The MAC is HMAC-SHA-256 over everything else, truncated. It keeps clients from making up
// handles: a client that has one has it from this server, by LOOKUP and the like.
const (
	handleVersion = 1
	handleExport  = 1
	handleMAC     = 5
	macSize       = 16
	sealSize      = handleMAC + macSize
)

// A sealer makes and checks handles. It does not change.
type sealer struct {
	inner, outer [sha256.BlockSize]byte // the key with ipad and opad: RFC 2104 section 2
}

func newSealer(key []byte) *sealer {
	if len(key) > sha256.BlockSize {
		sum := sha256.Sum256(key)
		key = sum[:]
	}
	s := new(sealer)
	copy(s.inner[:], key)
	copy(s.outer[:], key)
	for i := range s.inner {
		s.inner[i] ^= 0x36
		s.outer[i] ^= 0x5c
	}
	return s
}

// mac returns the MAC of a file system's handle, of at most MaxHandle bytes. It allocates
// nothing, as each entry of a READDIRPLUS needs one.
func (s *sealer) mac(export uint32, handle []byte) (mac [macSize]byte) {
	var in [sha256.BlockSize + handleMAC + MaxHandle]byte
	copy(in[:], s.inner[:])
	head := in[sha256.BlockSize:]
	head[0] = handleVersion
	binary.BigEndian.PutUint32(head[handleExport:], export)
	n := sha256.BlockSize + handleMAC + copy(head[handleMAC:], handle)
	sum := sha256.Sum256(in[:n])

	var out [sha256.BlockSize + sha256.Size]byte
	copy(out[:], s.outer[:])
	copy(out[sha256.BlockSize:], sum[:])
	sum = sha256.Sum256(out[:])
	return [macSize]byte(sum[:])
}

// append appends the handle of a node, as clients see it, to b.
func (s *sealer) append(b []byte, export uint32, n Node) []byte {
	at := len(b)
	b = n.AppendHandle(append(b, blank[:]...))
	s.close(b[at:], export)
	return b
}

// appendBytes is append for the handle that the file system has made.
func (s *sealer) appendBytes(b []byte, export uint32, handle []byte) []byte {
	at := len(b)
	b = append(append(b, blank[:]...), handle...)
	s.close(b[at:], export)
	return b
}

// blank is room for what the server puts in front of a handle. Immutable.
var blank [sealSize]byte

// close fills in what is in front of the file system's handle.
func (s *sealer) close(fh []byte, export uint32) {
	fh[0] = handleVersion
	binary.BigEndian.PutUint32(fh[handleExport:], export)
	mac := s.mac(export, fh[sealSize:])
	copy(fh[handleMAC:], mac[:])
}

// open returns what a handle says. StatusBadHandle is one that no version of this server has
// made. StatusStale is one that may have been made with another key.
func (s *sealer) open(fh []byte) (export uint32, handle []byte, status nfs.Status) {
	if len(fh) <= sealSize || len(fh) > nfs.MaxHandle || fh[0] != handleVersion {
		return 0, nil, nfs.StatusBadHandle
	}
	export, handle = binary.BigEndian.Uint32(fh[handleExport:]), fh[sealSize:]
	mac := s.mac(export, handle)
	if subtle.ConstantTimeCompare(mac[:], fh[handleMAC:sealSize]) != 1 {
		return 0, nil, nfs.StatusStale
	}
	return export, handle, nfs.StatusOK
}
