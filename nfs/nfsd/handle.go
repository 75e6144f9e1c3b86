package nfsd

import (
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/binary"
	"hash"
	"sync"

	"github.com/rpcrdma/rpcrdma/nfs"
)

// A file handle as clients see it:
//
//	0         1           5                 21
//	+---------+-----------+-----------------+-----------------------------+
//	| version | export id | MAC, 128 bits   | the file system's, 43 bytes |
//	+---------+-----------+-----------------+-----------------------------+
//
// The MAC is HMAC-SHA-256 over everything else, truncated. It prevents clients from forging handles: a client can only
// have obtained a handle from this server, by LOOKUP and the like.
const (
	handleVersion = 1
	handleExport  = 1
	handleMAC     = 5
	macSize       = 16
	sealSize      = handleMAC + macSize
)

// sealer makes and verifies handles. It is safe for concurrent use.
type sealer struct{ macs sync.Pool } // of *sealing

// sealing computes one MAC at a time. Reusing it is fast and allocates nothing.
type sealing struct {
	hash.Hash
	in  [handleMAC + MaxHandle]byte
	sum [sha256.Size]byte
}

func newSealer(key []byte) *sealer {
	return &sealer{sync.Pool{New: func() any { return &sealing{Hash: hmac.New(sha256.New, key)} }}}
}

// mac returns the MAC of a file system's handle of up to MaxHandle bytes.
func (s *sealer) mac(export uint32, handle []byte) (mac [macSize]byte) {
	m := s.macs.Get().(*sealing)
	m.in[0] = handleVersion
	binary.BigEndian.PutUint32(m.in[handleExport:], export)
	m.Reset()
	m.Write(m.in[:handleMAC+copy(m.in[handleMAC:], handle)])
	mac = [macSize]byte(m.Sum(m.sum[:0]))
	s.macs.Put(m)
	return mac
}

// append appends the handle of a node, as clients see it, to b.
func (s *sealer) append(b []byte, export uint32, n Node) []byte {
	at := len(b)
	b = n.AppendHandle(append(b, blank[:]...))
	s.close(b[at:], export)
	return b
}

// appendBytes is append for a handle in the form of the file system.
func (s *sealer) appendBytes(b []byte, export uint32, handle []byte) []byte {
	at := len(b)
	b = append(append(b, blank[:]...), handle...)
	s.close(b[at:], export)
	return b
}

// blank is room for the server's part of a handle. Immutable.
var blank [sealSize]byte

// close fills in the part before the file system's handle.
func (s *sealer) close(fh []byte, export uint32) {
	fh[0] = handleVersion
	binary.BigEndian.PutUint32(fh[handleExport:], export)
	mac := s.mac(export, fh[sealSize:])
	copy(fh[handleMAC:], mac[:])
}

// open verifies a handle and returns its contents. StatusBadHandle means that no version of this server made it.
// StatusStale means that it may have been made with another key.
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
