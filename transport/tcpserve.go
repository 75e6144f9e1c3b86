package transport

import (
	"io"
	"log/slog"
	"net"

	"github.com/rpcrdma/rpcrdma/transport/internal/hosts"
	"github.com/rpcrdma/rpcrdma/transport/internal/records"
)

// ServeTCP accepts connections from l and executes the calls that arrive on them as records (RFC 5531 section 11), with
// the registered Programs: their Handlers need not know how a call arrived. It returns as [Server.Serve] does. Close
// and Shutdown also end these connections. Listeners of any kind work, including those of crypto/tls.
//
// The limits are those of Config. Connections count in MaxConns. A connection has at most Credits calls in flight; at
// that limit nothing more is read. The memory of calls counts in MaxMemory and MaxTotalMemory. Before a call is
// executed it reserves its length, if that is more than 4 KiB, and the memory of its results, which the program's
// Binding bounds, as generated ones do. Without a Binding that is 1 MiB, because the length of the results is unknown.
// A connection starts with 4 times MaxMessage, so with the defaults 16 such calls of a connection are executed at once,
// and up to 64 after the client has taken replies. Further calls wait. See Program for handlers that wait for another
// call of their client. Shorter calls and replies are in buffers of the connection. MaxMessage bounds calls and
// replies: a longer reply becomes SYSTEM_ERR. If a peer takes nothing for StallTimeout, its connection is closed with a
// *StallError. The same happens if a message takes longer than StallTimeout, plus another StallTimeout for each 4 MiB
// already sent of it. While half of MaxTotalMemory is in use, a call that is still arriving holds at most twice the
// memory that has arrived of it.
//
// While calls of the server wait for replies, the connection is still read, because the replies may arrive after calls
// that must wait: see Conn.Call for the limit.
//
// Calls that a client sends again, on any of its connections, are answered from the reply cache, as over RDMA. In the
// cache all TCP connections of a host count as one client.
//
// Programs of bridges are not served, and a Program's settings for chunks have no effect. A call that cannot be decoded
// ends its connection.
func (s *Server) ServeTCP(l net.Listener) error {
	tl := &Listener{wire: tcpListener{l}, provider: tcpProvider}
	if err := s.announce(tl); err != nil {
		return err
	}
	return s.Serve(tl)
}

// A tcpListener accepts connections of any kind of stream.
type tcpListener struct{ net.Listener }

func (l tcpListener) accept() (arrival, error) {
	nc, err := l.Accept()
	return tcpArrival{nc}, err
}

// A tcpArrival is a connection that its peer already has: there is nothing to set up.
type tcpArrival struct{ net.Conn }

func (a tcpArrival) turnAway() { a.Close() }

func (a tcpArrival) serve(s *Server, g *hosts.Guest) {
	if _, ok := a.Conn.(tlsConn); ok || s.connCfg.tls == nil {
		a.start(s, g, nil, false)
		return
	}
	go func() {
		nc, read, err := s.connCfg.secureFrom(g.Ctx, a.Conn)
		if err != nil {
			if err != io.EOF { // probably a check whether there is a server
				s.connCfg.journal.write(eventEnded, slog.LevelWarn, "connection not set up",
					slog.Any("peer", a.RemoteAddr()), slog.String("provider", tcpProvider), slog.Any("err", err))
			}
			s.rejected(a.RemoteAddr(), err)
			s.dropSetup(g)
			return
		}
		_, secured := nc.(tlsConn)
		tcpArrival{nc}.start(s, g, read, !secured && !s.cfg.TLS.Optional)
	}()
}

// start serves a connection from which read has been read. weak reports that it is not encrypted and must be.
func (a tcpArrival) start(s *Server, g *hosts.Guest, read []byte, weak bool) {
	c := newTCPConn(a.Conn, s.connCfg, roleServer, s.memory.Usage())
	if len(read) > 0 {
		c.r = records.NewReader(&replayed{a.Conn, read}, c.cfg.MaxMessage, c.cfg.StallTimeout)
	}
	c.answers.weak = weak
	c.stats = s.stats.join()
	c.execute(s.registry, s.memory, s.cfg.Credits)
	c.answers.pace.Pacer = s.pacer
	if err := s.join(g, c, nil); err != nil {
		s.rejected(a.RemoteAddr(), err)
		c.setClosing()
		c.finish(nil)
		s.dropSetup(g)
		return
	}
	go func() {
		growStack(len(tcpProvider))
		s.begin(g, c)
		c.serve()
	}()
}
