//go:build linux && cgo

// Counter is a counter that any number of clients increment with atomic operations of their adapters. The server's CPU
// is not involved.
//
//	counter -dev rxe0 -listen :8080
//	counter -dev rxe0 -add 1000 http://10.9.9.1:8080/
package main

import (
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"log"
	"net/http"
	"os"
	"sync"

	"github.com/rpcrdma/rpcrdma/examples/verbs/session"
	"github.com/rpcrdma/rpcrdma/ibv"
)

func main() {
	dev := flag.String("dev", "rxe0", "RDMA `device`")
	listen := flag.String("listen", "", "serve the counter at this `address`")
	n := flag.Int("add", 1, "how often to add 1")
	flag.Parse()
	c, err := ibv.Open(*dev)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	if *listen != "" {
		log.Fatal(http.ListenAndServe(*listen, newServer(c)))
	}
	before, err := add(context.Background(), c, flag.Arg(0), *n)
	if err != nil {
		fmt.Fprintln(os.Stderr, "counter:", err)
		os.Exit(1)
	}
	fmt.Println("the last addition has found", before)
}

// server holds the counter, and a session for each client until it ends.
type server struct {
	dev     *ibv.Context
	counter []byte // 8 bytes in host byte order

	mu       sync.Mutex
	sessions []*session.Session
}

func newServer(dev *ibv.Context) *server { return &server{dev: dev, counter: make([]byte, 8)} }

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	end, err := session.Accept(w, r, s.dev, s.counter, ibv.AccessRemoteAtomic)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sessions = append(s.sessions, end)
}

// close ends all sessions.
func (s *server) close() (err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, end := range s.sessions {
		err = errors.Join(err, end.Close())
	}
	s.sessions = nil
	return err
}

// add adds 1 to the counter n times and returns the value before the last addition.
func add(ctx context.Context, dev *ibv.Context, url string, n int) (before uint64, err error) {
	found := make([]byte, 8)
	s, err := session.Dial(ctx, http.DefaultClient, url, dev, found, 0)
	if err != nil {
		return 0, err
	}
	defer s.Close()
	for range n {
		err := s.Do(ctx, ibv.SendWR{Opcode: ibv.OpAtomicFetchAdd, RemoteAddr: s.Peer.Addr, RKey: s.Peer.RKey, CompareAdd: 1, SGL: s.SGE(0, 8)})
		if err != nil {
			return 0, err
		}
	}
	return binary.NativeEndian.Uint64(found), nil
}
