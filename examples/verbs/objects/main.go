//go:build linux && cgo

// Objects is an object store that speaks HTTP and moves the objects by RDMA, like "S3 over RDMA". A request names its
// client's session in a header. The server reads the object of a PUT from the client's memory, and writes that of a GET
// to it, with the request's number as immediate data.
//
//	objects -dev rxe0 -listen :8080
//	objects -dev rxe0 -put FILE http://10.9.9.1:8080/name
//	objects -dev rxe0 http://10.9.9.1:8080/name > FILE
package main

import (
	"context"
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"log"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"sync"

	"github.com/rpcrdma/rpcrdma/examples/verbs/session"
	"github.com/rpcrdma/rpcrdma/ibv"
)

// maxObject is the largest object, in bytes. The memory of each end has this size.
const maxObject = 8 << 20

// Headers of requests, which have empty bodies.
const (
	headerSession = "Rdma-Session" // a token from the response to the POST that began the session
	headerLength  = "Rdma-Length"  // of the object, in a PUT and in the response to a GET
	headerRequest = "Rdma-Request" // immediate data of a GET's Write
)

func main() {
	dev := flag.String("dev", "rxe0", "RDMA `device`")
	listen := flag.String("listen", "", "serve objects at this `address`")
	file := flag.String("put", "", "store this `file`")
	flag.Parse()
	c, err := ibv.Open(*dev)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	if *listen != "" {
		log.Fatal(http.ListenAndServe(*listen, newServer(c)))
	}
	if err := run(context.Background(), c, flag.Arg(0), *file); err != nil {
		fmt.Fprintln(os.Stderr, "objects:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, dev *ibv.Context, where, file string) error {
	c, err := dial(ctx, dev, where)
	if err != nil {
		return err
	}
	defer c.Close()
	if file == "" {
		object, err := c.get(ctx, where)
		if err != nil {
			return err
		}
		_, err = os.Stdout.Write(object)
		return err
	}
	object, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	return c.put(ctx, where, object)
}

// server holds the objects, and the sessions by their tokens.
type server struct {
	dev *ibv.Context

	mu       sync.Mutex
	objects  map[string][]byte
	sessions map[string]*end
}

// end is the server's end of a session, with the memory that objects pass through. It serves one request at a time.
type end struct {
	*session.Session
	mu  sync.Mutex
	buf []byte
}

func newServer(dev *ibv.Context) *server {
	return &server{dev: dev, objects: make(map[string][]byte), sessions: make(map[string]*end)}
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodPost {
		if err := s.begin(w, r); err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
		}
		return
	}
	s.mu.Lock()
	e := s.sessions[r.Header.Get(headerSession)]
	s.mu.Unlock()
	if e == nil {
		http.Error(w, "no such session", http.StatusPreconditionFailed)
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	switch r.Method {
	case http.MethodPut:
		s.put(e, w, r)
	case http.MethodGet:
		s.get(e, w, r)
	}
}

func (s *server) begin(w http.ResponseWriter, r *http.Request) error {
	e := &end{buf: make([]byte, maxObject)}
	var err error
	if e.Session, err = session.Accept(w, r, s.dev, e.buf, 0); err != nil {
		return err
	}
	token := rand.Text()
	w.Header().Set(headerSession, token)
	s.mu.Lock()
	s.sessions[token] = e
	s.mu.Unlock()
	return nil
}

func (s *server) put(e *end, w http.ResponseWriter, r *http.Request) {
	n, err := strconv.ParseUint(r.Header.Get(headerLength), 10, 32)
	if err != nil || n > min(maxObject, e.Peer.Length) {
		http.Error(w, "no such length", http.StatusRequestEntityTooLarge)
		return
	}
	err = e.Do(r.Context(), ibv.SendWR{Opcode: ibv.OpRDMARead, RemoteAddr: e.Peer.Addr, RKey: e.Peer.RKey, SGL: e.SGE(0, uint32(n))})
	if err != nil {
		s.fail(e, w, r, err)
		return
	}
	s.mu.Lock()
	s.objects[r.URL.Path] = append([]byte(nil), e.buf[:n]...)
	s.mu.Unlock()
	w.WriteHeader(http.StatusCreated)
}

func (s *server) get(e *end, w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	object, ok := s.objects[r.URL.Path]
	s.mu.Unlock()
	number, err := strconv.ParseUint(r.Header.Get(headerRequest), 10, 32)
	switch {
	case !ok:
		http.NotFound(w, r)
		return
	case err != nil || uint64(len(object)) > e.Peer.Length:
		http.Error(w, "the client has no memory for it", http.StatusRequestEntityTooLarge)
		return
	}
	copy(e.buf, object)
	err = e.Do(r.Context(), ibv.SendWR{
		Opcode: ibv.OpRDMAWriteWithImm, Imm: uint32(number), RemoteAddr: e.Peer.Addr, RKey: e.Peer.RKey, SGL: e.SGE(0, uint32(len(object))),
	})
	if err != nil {
		s.fail(e, w, r, err)
		return
	}
	w.Header().Set(headerLength, strconv.Itoa(len(object)))
}

// fail ends a session after a request has failed, because the request may still be using the session's memory.
func (s *server) fail(e *end, w http.ResponseWriter, r *http.Request, err error) {
	s.mu.Lock()
	delete(s.sessions, r.Header.Get(headerSession))
	s.mu.Unlock()
	http.Error(w, errors.Join(err, e.Close()).Error(), http.StatusBadGateway)
}

// close ends all sessions.
func (s *server) close() (err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.sessions {
		err = errors.Join(err, e.Close())
	}
	clear(s.sessions)
	return err
}

// client stores and fetches objects, one at a time.
type client struct {
	*session.Session
	token  string
	buf    []byte
	number uint32
}

func dial(ctx context.Context, dev *ibv.Context, where string) (*client, error) {
	u, err := url.Parse(where)
	if err != nil {
		return nil, err
	}
	u.Path = "/"
	c := &client{buf: make([]byte, maxObject)}
	c.Session, err = session.Dial(ctx, http.DefaultClient, u.String(), dev, c.buf, ibv.AccessRemoteRead|ibv.AccessRemoteWrite)
	if err != nil {
		return nil, err
	}
	c.token = c.Answer.Get(headerSession)
	return c, nil
}

// do makes a request without a body.
func (c *client) do(ctx context.Context, method, where string, headers map[string]string, want int) (http.Header, error) {
	req, err := http.NewRequestWithContext(ctx, method, where, nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set(headerSession, c.token)
	for k, v := range headers {
		req.Header.Set(k, v)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != want {
		return nil, fmt.Errorf("%s %s: %s", method, where, resp.Status)
	}
	return resp.Header, nil
}

// put stores an object.
func (c *client) put(ctx context.Context, where string, object []byte) error {
	if copy(c.buf, object) < len(object) {
		return fmt.Errorf("the object has %d bytes, %d at most", len(object), maxObject)
	}
	_, err := c.do(ctx, http.MethodPut, where, map[string]string{headerLength: strconv.Itoa(len(object))}, http.StatusCreated)
	return err
}

// get fetches an object, which is valid until the next call.
func (c *client) get(ctx context.Context, where string) ([]byte, error) {
	c.number++
	h, err := c.do(ctx, http.MethodGet, where, map[string]string{headerRequest: strconv.FormatUint(uint64(c.number), 10)}, http.StatusOK)
	if err != nil {
		return nil, err
	}
	imm, err := c.Imm(ctx) // the object is in memory only after this completion; the HTTP response alone does not guarantee it
	if err != nil {
		return nil, err
	}
	n, err := strconv.ParseUint(h.Get(headerLength), 10, 32)
	if err != nil || n > maxObject || imm != c.number {
		return nil, fmt.Errorf("the answer to request %d has %d bytes of request %d", c.number, n, imm)
	}
	return c.buf[:n], nil
}
