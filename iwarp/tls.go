package iwarp

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/internal/llp"
	"github.com/rpcrdma/rpcrdma/internal/tlsproto"
)

// With Config.TLS the TLS handshake precedes the MPA handshake, and everything after it is in TLS records. During setup
// crypto/tls waits for the socket, after setup it never does. A read that finds nothing returns a temporary error, after
// which crypto/tls can continue. A write always succeeds, because crypto/tls does not continue after a failed write:
// data that does not fit into the socket stays in records.

// A secured is a TLS stream over the stream of a TCP socket.
type secured struct {
	llp.Stream // of the socket
	conn       *tls.Conn
	state      tls.ConnectionState // set by the handshake
	records    *records
	owed       int    // plaintext bytes in records that are not completely in the socket
	plain      []byte // joins short elements
}

// recordLen is the longest payload of a TLS record, in bytes. RFC 8446 section 5.1.
const recordLen = 16 << 10

// secure makes s use TLS. It does not perform the handshake.
func (s *socket) secure(cfg *tls.Config, client bool) {
	r := &records{f: s.f, below: s.stream, waits: true}
	sec := &secured{Stream: s.stream, records: r}
	if client {
		sec.conn = tls.Client(r, cfg)
	} else {
		sec.conn = tls.Server(r, cfg)
	}
	s.stream, s.secured = sec, sec
}

// peerIO returns the reader and writer for handshakes, which wait for the peer.
func (s *socket) peerIO() io.ReadWriter {
	if s.secured != nil {
		return s.secured.conn
	}
	return s.f
}

// nextProto is the ALPN protocol (RFC 7301) that the ends negotiate, unless Config.TLS names others. It keeps the ends
// from using a TLS connection for another protocol as iWARP.
const nextProto = "iwarp"

// tlsConfig returns Config.TLS for a connection to a host, or from one.
func (p *Provider) tlsConfig(host string) *tls.Config {
	cfg := tlsproto.Config(p.cfg.TLS, nextProto)
	cfg.DynamicRecordSizingDisabled = true
	if cfg.ServerName == "" {
		cfg.ServerName = host
	}
	return cfg
}

var _ fabric.Private = (*Provider)(nil)

// Private implements fabric.Private. It reports whether Config.TLS is set.
func (p *Provider) Private() bool { return p.cfg.TLS != nil }

// whyNoTLS returns the reason of a SetupError for a failed TLS handshake.
func whyNoTLS(err error) string {
	if err == io.EOF || errors.Is(err, syscall.ECONNRESET) {
		return "no TLS handshake, which the peer may not know"
	}
	return "no TLS handshake"
}

// handshake performs the TLS handshake. It waits, up to the deadline of the socket.
func (s *secured) handshake() error {
	err := tlsproto.Handshake(context.Background(), s.conn)
	if err == nil {
		s.state = s.conn.ConnectionState()
	}
	return err
}

var _ fabric.Encrypted = (*Conn)(nil)

// TLS implements fabric.Encrypted. It returns nil without Config.TLS, and before the connection is established.
func (c *Conn) TLS() *tls.ConnectionState {
	l := c.link.Load()
	if l == nil || l.sock.secured == nil {
		return nil
	}
	return &l.sock.secured.state
}

// Readv implements llp.Stream.
func (s *secured) Readv(v []iovec) (n int, err error) {
	for i := range v {
		for b := iovecBytes(&v[i]); len(b) > 0; {
			k, err := s.conn.Read(b)
			b, n = b[k:], n+k
			switch {
			case err == nil:
			case n > 0: // the next call returns the error again
				return n, nil
			case err == errNothing:
				return 0, errAgain
			case err == io.EOF && s.records.ended:
				// TCP has ended before TLS: an attacker can do that, too. RFC 8446 section 6.1.
				return 0, io.ErrUnexpectedEOF
			case err == io.EOF:
				return 0, nil
			default:
				return 0, err
			}
		}
	}
	return n, nil
}

// Writev implements llp.Stream. It returns errAgain and counts nothing as written until all records of v are in the
// socket. The caller must retry with the same v.
func (s *secured) Writev(v []iovec) (int, error) {
	if s.owed == 0 {
		n, err := s.encrypt(v)
		if err != nil {
			return 0, err
		}
		s.owed = n
	}
	if err := s.records.flush(); err != nil {
		return 0, err
	}
	n := s.owed
	s.owed = 0
	return n, nil
}

// encrypt puts the elements of v into records.
func (s *secured) encrypt(v []iovec) (n int, err error) {
	s.records.hold(true)
	defer s.records.hold(false)
	for i := range v {
		b := iovecBytes(&v[i])
		n += len(b)
		if len(s.plain)+len(b) <= recordLen {
			s.plain = append(s.plain, b...)
			continue
		}
		if len(s.plain) > 0 {
			fill := min(recordLen-len(s.plain), len(b))
			s.plain = append(s.plain, b[:fill]...)
			b = b[fill:]
			if _, err := s.conn.Write(s.plain); err != nil {
				return 0, err
			}
			s.plain = s.plain[:0]
		}
		whole := len(b) - len(b)%recordLen
		if whole > 0 {
			if _, err := s.conn.Write(b[:whole]); err != nil {
				return 0, err
			}
		}
		s.plain = append(s.plain, b[whole:]...)
	}
	if len(s.plain) > 0 {
		_, err = s.conn.Write(s.plain)
		s.plain = s.plain[:0]
	}
	return n, err
}

// CloseWrite implements llp.Stream. It sends the TLS alert by which the peer knows that the stream is not truncated.
func (s *secured) CloseWrite() {
	s.conn.CloseWrite()
	s.records.flush()
	s.Stream.CloseWrite()
}

// A records is the net.Conn that crypto/tls reads and writes.
type records struct {
	f     *os.File
	below llp.Stream
	waits bool // reads and writes wait, during setup

	in    []byte // has been read ahead
	buf   *[recordsAhead]byte
	ended bool // the socket is at its end

	// The reading goroutine also writes: the answers to the peer's records.
	mu       sync.Mutex
	held     bool // do not flush: the caller will
	answered int  // bytes of out that answer the peer's records
	out      []byte
	sent     int // bytes of out that are in the socket
}

// recordsAhead is the size of a read, in bytes.
const recordsAhead = 64 << 10

// mostAnswered bounds the answers to its records that a peer may leave unread, in bytes. The answer to a key update has
// 27 bytes (RFC 8446 section 4.6.3), and a peer may request any number of them.
const mostAnswered = 16 << 10

var errFlood = errors.New("peer asks for key updates and does not read them")

func (r *records) floods() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.answered > mostAnswered
}

// errNothing is a temporary error, in the sense of crypto/tls.
var errNothing net.Error = nothing{}

type nothing struct{}

func (nothing) Error() string   { return "nothing to read" }
func (nothing) Timeout() bool   { return true }
func (nothing) Temporary() bool { return true }

// Read implements net.Conn.
func (r *records) Read(p []byte) (n int, err error) {
	if r.waits {
		return r.f.Read(p)
	}
	if r.floods() {
		return 0, errFlood
	}
	if len(r.in) == 0 {
		if r.buf == nil {
			r.buf = new([recordsAhead]byte)
		}
		var v [1]iovec
		setIovec(&v[0], r.buf[:])
		switch n, err := r.below.Readv(v[:]); {
		case err == errAgain:
			return 0, errNothing
		case err != nil:
			return 0, err
		case n == 0:
			r.ended = true
			return 0, io.EOF
		default:
			r.in = r.buf[:n]
		}
	}
	n = copy(p, r.in)
	r.in = r.in[n:]
	return n, nil
}

// Write implements net.Conn.
func (r *records) Write(p []byte) (int, error) {
	if r.waits {
		return r.f.Write(p)
	}
	r.mu.Lock()
	r.out = append(r.out, p...)
	held := r.held
	if !held {
		r.answered += len(p)
	}
	r.mu.Unlock()
	if !held {
		r.flush() // as far as possible: the rest is sent with the next write
	}
	return len(p), nil
}

func (r *records) hold(on bool) {
	r.mu.Lock()
	r.held = on
	r.mu.Unlock()
}

// flush writes as much of out as the socket accepts.
func (r *records) flush() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for r.sent < len(r.out) {
		var v [1]iovec
		setIovec(&v[0], r.out[r.sent:])
		n, err := r.below.Writev(v[:])
		if err != nil {
			return err
		}
		r.sent += n
	}
	r.out, r.sent, r.answered = r.out[:0], 0, 0
	return nil
}

// Deadlines and closing are up to the owner of the socket, so these methods do nothing.

func (r *records) Close() error                     { return nil }
func (r *records) LocalAddr() net.Addr              { return nil }
func (r *records) RemoteAddr() net.Addr             { return nil }
func (r *records) SetDeadline(time.Time) error      { return nil }
func (r *records) SetReadDeadline(time.Time) error  { return nil }
func (r *records) SetWriteDeadline(time.Time) error { return nil }
