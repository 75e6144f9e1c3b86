//go:build linux && cgo

// Lookup is a key-value store with a read path that does not involve the server's CPU: clients find the slot of a key
// by its hash and fetch it with an RDMA Read.
//
//	lookup -dev rxe0 -listen :8080
//	lookup -dev rxe0 http://10.9.9.1:8080/ name value    stores a value, by HTTP
//	lookup -dev rxe0 http://10.9.9.1:8080/ name          fetches it, by an RDMA Read
//
// A Read may overlap a write of the same slot. Each slot therefore has a checksum, and a client reads again until it
// matches. The table does not handle collisions: two keys with the same slot replace each other.
package main

import (
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"hash/crc32"
	"io"
	"log"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"

	"github.com/rpcrdma/rpcrdma/examples/verbs/session"
	"github.com/rpcrdma/rpcrdma/ibv"
)

// A slot is a checksum of the rest, the lengths of key and value, the key and the value.
const (
	slots      = 1024
	slotSize   = 256
	headerSize = 4 + 2 + 2
	maxPair    = slotSize - headerSize
)

var table = crc32.MakeTable(crc32.Castagnoli)

func main() {
	dev := flag.String("dev", "rxe0", "RDMA `device`")
	listen := flag.String("listen", "", "serve the table at this `address`")
	flag.Parse()
	c, err := ibv.Open(*dev)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	switch {
	case *listen != "":
		err = http.ListenAndServe(*listen, newServer(c))
	case flag.NArg() == 3:
		err = put(http.DefaultClient, flag.Arg(0), flag.Arg(1), flag.Arg(2))
	default:
		var r *reader
		if r, err = dial(context.Background(), c, flag.Arg(0)); err != nil {
			break
		}
		defer r.Close()
		var value string
		if value, err = r.get(context.Background(), flag.Arg(1)); err == nil {
			fmt.Println(value)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "lookup:", err)
		os.Exit(1)
	}
}

// slotOf returns the offset of a key's slot in the table.
func slotOf(key string) uint64 {
	return uint64(crc32.Checksum([]byte(key), table)) % slots * slotSize
}

// fill writes a slot, the checksum last.
func fill(slot []byte, key, value string) {
	binary.BigEndian.PutUint16(slot[4:], uint16(len(key)))
	binary.BigEndian.PutUint16(slot[6:], uint16(len(value)))
	n := headerSize + copy(slot[headerSize:], key+value)
	clear(slot[n:])
	binary.BigEndian.PutUint32(slot, crc32.Checksum(slot[4:], table))
}

var (
	errTorn   = errors.New("the slot is being written")
	errAbsent = errors.New("no such key")
)

// parse returns the value in a slot if the slot belongs to key.
func parse(slot []byte, key string) (string, error) {
	if binary.BigEndian.Uint32(slot) != crc32.Checksum(slot[4:], table) {
		return "", errTorn
	}
	k, v := int(binary.BigEndian.Uint16(slot[4:])), int(binary.BigEndian.Uint16(slot[6:]))
	if k+v > maxPair || string(slot[headerSize:][:k]) != key {
		return "", errAbsent
	}
	return string(slot[headerSize+k:][:v]), nil
}

// server holds the table, and a session for each reader until it ends.
type server struct {
	dev *ibv.Context

	mu       sync.Mutex
	table    []byte
	sessions []*session.Session
}

func newServer(dev *ibv.Context) *server {
	s := &server{dev: dev, table: make([]byte, slots*slotSize)}
	for i := range slots {
		fill(s.table[i*slotSize:][:slotSize], "", "")
	}
	return s
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch r.Method {
	case http.MethodPut:
		key := strings.TrimPrefix(r.URL.Path, "/")
		value, err := io.ReadAll(io.LimitReader(r.Body, maxPair+1))
		if err != nil || len(key)+len(value) > maxPair {
			http.Error(w, fmt.Sprintf("key and value have %d bytes at most", maxPair), http.StatusRequestEntityTooLarge)
			return
		}
		s.put(key, string(value))
	case http.MethodPost:
		if err := s.begin(w, r); err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
		}
	}
}

func (s *server) put(key, value string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fill(s.table[slotOf(key):][:slotSize], key, value)
}

func (s *server) begin(w http.ResponseWriter, r *http.Request) error {
	end, err := session.Accept(w, r, s.dev, s.table, ibv.AccessRemoteRead)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sessions = append(s.sessions, end)
	return nil
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

// put stores a value.
func put(client *http.Client, base, key, value string) error {
	where, err := url.JoinPath(base, key)
	if err != nil {
		return err
	}
	req, err := http.NewRequest(http.MethodPut, where, strings.NewReader(value))
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return errors.New(resp.Status)
	}
	return nil
}

// reader fetches values.
type reader struct {
	*session.Session
	slot []byte
}

func dial(ctx context.Context, dev *ibv.Context, url string) (*reader, error) {
	r := &reader{slot: make([]byte, slotSize)}
	var err error
	r.Session, err = session.Dial(ctx, http.DefaultClient, url, dev, r.slot, 0)
	return r, err
}

// get fetches the value of a key. It retries while the server is writing it.
func (r *reader) get(ctx context.Context, key string) (value string, err error) {
	at := slotOf(key)
	if at+slotSize > r.Peer.Length {
		return "", fmt.Errorf("the server's table has %d bytes", r.Peer.Length)
	}
	for {
		err = r.Do(ctx, ibv.SendWR{Opcode: ibv.OpRDMARead, RemoteAddr: r.Peer.Addr + at, RKey: r.Peer.RKey, SGL: r.SGE(0, slotSize)})
		if err != nil {
			return "", err
		}
		if value, err = parse(r.slot, key); !errors.Is(err, errTorn) {
			return value, err
		}
	}
}
