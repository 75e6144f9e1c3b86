package transport

import (
	"context"
	"time"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/transport/internal/hosts"
)

// A server's connections over RDMA, until they are set up.

// An rdmaListener accepts connections of a provider.
type rdmaListener struct {
	fabric.Listener
	provider string
}

func (l rdmaListener) accept() (arrival, error) {
	fc, err := l.Accept(context.Background())
	return rdmaArrival{fc, l.provider}, err
}

// An rdmaArrival is a connection of a peer that waits for Accept or Reject.
type rdmaArrival struct {
	fabric.Conn
	provider string
}

func (a rdmaArrival) turnAway() {
	a.Reject([]byte(busyMark)[:min(len(busyMark), a.Capabilities().MaxPrivateData)])
}

func (a rdmaArrival) serve(s *Server, g *hosts.Guest) { go a.run(s, g) }

// run sets up a connection and leads it until it ends.
func (a rdmaArrival) run(s *Server, g *hosts.Guest) {
	growStack(len(a.provider))
	c, l := newConn(a.Conn, a.provider, s.connCfg, roleServer, s.memory.Usage())
	c.stats = s.stats.join()
	c.execute(s.registry, s.memory)
	l.pace.Pacer = s.pacer
	c.lineage = s.cache.NewLineage(hosts.Machine(c.addr()), true) // before the client learns that there is a connection

	ctx, cancel := context.WithTimeout(g.Ctx, s.cfg.SetupTimeout)
	err := l.accept(ctx)
	cancel()
	c.state.Lock().watch.spoke = time.Now()
	c.state.Unlock()
	if err = s.join(g, c, err); err != nil {
		s.log("connection not set up", c, err)
		s.rejected(a.RemoteAddr(), err)
		l.discard()
		s.dropSetup(g)
		return
	}
	s.begin(g, c)
	l.serve()
}
