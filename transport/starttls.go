package transport

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/internal/tlsproto"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
)

// RPC-with-TLS (RFC 9289): before anything else the client asks in plain text whether the server supports it, and the
// TLS handshake follows the answer. Both ends read the plain text exactly to its last byte: bytes that an attacker adds
// after it are taken for the start of a handshake, and are not a valid one.

// A TLSError means that a connection that must be encrypted was not, and has been closed, or that an RDMA adapter would
// not encrypt it. It unwraps to the cause.
type TLSError struct {
	// Refused reports whether the server answered without offering TLS. An attacker on the path can forge that answer.
	Refused bool
	Err     error
}

func (e *TLSError) Error() string {
	if e.Refused {
		return fmt.Sprintf("server offers no TLS, or an attacker has changed its answer: %v", e.Err)
	}
	return fmt.Sprintf("no TLS: %v", e.Err)
}

func (e *TLSError) Unwrap() error { return e.Err }

var (
	errNotOffered = errors.New("its answer to AUTH_TLS has no STARTTLS")
	errHungUp     = fmt.Errorf("server has ended the connection before it answered AUTH_TLS: %w", io.EOF)
	errBadProbe   = errors.New("its answer to AUTH_TLS makes no sense")
)

const (
	startTLS  = "STARTTLS"    // RFC 9289 section 4.1
	nextProto = "sunrpc"      // RFC 9289 section 8.2
	probeSize = 10 * xdr.Unit // the call, with an empty credential and an empty verifier
	maxAnswer = 2 * probeSize // bytes of an answer
	nfs, nfs3 = 100003, 3     // for a call to no particular program
)

// settle returns the configuration that connections have.
func (t *TLS) settle(owner string) (*tls.Config, error) {
	switch {
	case t.Config == nil:
		return nil, fmt.Errorf("transport: %s.TLS has no Config", owner)
	case owner == "ServerConfig" && len(t.Config.Certificates) == 0 && t.Config.GetCertificate == nil && t.Config.GetConfigForClient == nil:
		return nil, fmt.Errorf("transport: %s.TLS has no certificate", owner)
	}
	return tlsproto.Config(t.Config, nextProto), nil
}

// private fails if connections of an RDMA adapter are in plain text and must not be.
func (c *config) private(p fabric.Provider) error {
	if private, ok := p.(fabric.Private); c.tls == nil || c.TLS.Optional || ok && private.Private() {
		return nil
	}
	return &TLSError{Err: fmt.Errorf("Config.TLS is for TCP, and provider %s encrypts nothing: "+
		"have iwarp.Config.TLS, or transport.TCP, or a Server without TLS for this provider", p.Name())}
}

// secureTo starts TLS on a client's connection to addr. It closes nc if it fails.
func (c *config) secureTo(ctx context.Context, nc net.Conn, addr string) (net.Conn, error) {
	cfg := c.tls
	if cfg.ServerName == "" {
		cfg = cfg.Clone()
		cfg.ServerName = addr
		if host, _, err := net.SplitHostPort(addr); err == nil {
			cfg.ServerName = host
		}
	}
	secured := nc
	err := c.setUp(ctx, nc, func() error {
		if err := c.probe(nc); err != nil {
			if refused := new(TLSError); errors.As(err, &refused) && refused.Refused && c.TLS.Optional {
				return nil
			}
			return err
		}
		t := tls.Client(nc, cfg)
		secured = t
		return handshake(ctx, t)
	})
	switch {
	case err == io.EOF:
		err = &TLSError{Err: errHungUp}
	case err != nil && !errors.As(err, new(*TLSError)):
		err = &TLSError{Err: err}
	}
	return secured, err
}

// secureFrom starts TLS on a connection from a client, if the client asks for it. Otherwise read is the part of its
// first message that has been read. It closes nc if it fails.
func (c *config) secureFrom(ctx context.Context, nc net.Conn) (secured net.Conn, read []byte, err error) {
	secured = nc
	err = c.setUp(ctx, nc, func() error {
		xid, asks, b, err := readProbe(nc)
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded) && len(b) == 0 && c.TLS.Optional:
			return nil // a client that will make calls
		case err != nil:
			return err
		case !asks:
			read = b
			return nil
		}
		h := oncrpc.ReplyHeader{XID: xid, Verf: oncrpc.Auth{Flavor: oncrpc.FlavorNone, Body: []byte(startTLS)}}
		answer := oncrpc.AppendReply(make([]byte, oncrpc.RecordMarkSize, maxAnswer), &h)
		oncrpc.AppendRecordMark(answer[:0], len(answer)-oncrpc.RecordMarkSize, true)
		if _, err := nc.Write(answer); err != nil {
			return err
		}
		t := tls.Server(nc, c.tls)
		secured = t
		return handshake(ctx, t)
	})
	return secured, read, err
}

// setUp runs f to set up nc, within SetupTimeout and ctx.
func (c *config) setUp(ctx context.Context, nc net.Conn, f func() error) error {
	_ = nc.SetDeadline(time.Now().Add(c.SetupTimeout))
	stop := context.AfterFunc(ctx, func() { nc.Close() })
	err := f()
	if !stop() {
		err = ctx.Err()
	}
	if err != nil {
		nc.Close()
		return err
	}
	return nc.SetDeadline(time.Time{})
}

// handshake does the TLS handshake. RFC 9289 section 5 requires both ends to name the ALPN protocol "sunrpc". The
// daemon that does the handshakes of Linux's kernel, tlshd 1.0, names none. Because AUTH_TLS came first, its TLS cannot
// be meant for another protocol.
func handshake(ctx context.Context, t *tls.Conn) error {
	if err := t.HandshakeContext(ctx); err != nil {
		return &TLSError{Err: err}
	}
	return nil
}

// probe asks a server for TLS.
func (c *config) probe(nc net.Conn) error {
	h := oncrpc.CallHeader{
		XID: uint32(c.rand()), RPCVers: oncrpc.Version, Prog: nfs, Vers: nfs3, Cred: oncrpc.Auth{Flavor: oncrpc.FlavorTLS},
	}
	if c.TLS.Prog != 0 {
		h.Prog, h.Vers = c.TLS.Prog, c.TLS.Vers
	}
	b := oncrpc.AppendCall(oncrpc.AppendRecordMark(make([]byte, 0, maxAnswer), probeSize, true), &h)
	if _, err := nc.Write(b); err != nil {
		return err
	}
	if _, err := io.ReadFull(nc, b[:oncrpc.RecordMarkSize]); err != nil {
		return err
	}
	size, last, _ := oncrpc.ConsumeRecordMark(b)
	if !last || size > maxAnswer {
		return &TLSError{Err: errBadProbe}
	}
	b = b[:size]
	if _, err := io.ReadFull(nc, b); err != nil {
		return err
	}
	var r oncrpc.ReplyHeader
	_, err := oncrpc.ConsumeReply(b, &r)
	switch {
	case err != nil || r.XID != h.XID:
		return &TLSError{Err: errBadProbe}
	case r.Stat != oncrpc.MsgAccepted:
		return &TLSError{Refused: true, Err: r.Err()}
	case r.Verf.Flavor != oncrpc.FlavorNone || string(r.Verf.Body) != startTLS:
		return &TLSError{Refused: true, Err: errNotOffered}
	}
	return nil // whether the program exists or not
}

// readProbe reads as much of a client's first message as may ask for TLS. read is the part that it has read.
func readProbe(nc net.Conn) (xid uint32, asks bool, read []byte, err error) {
	b := make([]byte, oncrpc.RecordMarkSize+probeSize)
	n, err := io.ReadFull(nc, b[:oncrpc.RecordMarkSize])
	if err != nil {
		return 0, false, b[:n], err
	}
	if size, last, _ := oncrpc.ConsumeRecordMark(b); !last || size != probeSize {
		return 0, false, b[:n], nil
	}
	if _, err := io.ReadFull(nc, b[n:]); err != nil {
		return 0, false, b, err
	}
	var h oncrpc.CallHeader
	_, err = oncrpc.ConsumeCall(b[n:], &h)
	asks = err == nil && h.RPCVers == oncrpc.Version && h.Proc == 0 && h.Cred.Flavor == oncrpc.FlavorTLS && h.Verf.Flavor == oncrpc.FlavorNone
	return h.XID, asks, b, nil
}

// A replayed is a connection of which some bytes have already been read.
type replayed struct {
	net.Conn
	read []byte
}

func (r *replayed) Read(p []byte) (int, error) {
	if len(r.read) == 0 {
		return r.Conn.Read(p)
	}
	n := copy(p, r.read)
	r.read = r.read[n:]
	return n, nil
}
