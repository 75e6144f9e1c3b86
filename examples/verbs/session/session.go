//go:build linux && cgo

// Package session makes reliable connections of package ibv. Their setup travels in the headers of an HTTP request and
// its response, as in S3 over RDMA. No connection manager is needed, and HTTP's authentication and routing apply to the
// connection too.
//
// The client sends a POST with the address of its queue pair and the memory that the server may access:
// [Session.Offer]. The server connects and responds with its own: [Session.Connect] and Offer. The client then
// connects, and must send first. From then on each end executes requests with [Session.Do].
package session

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"

	"github.com/rpcrdma/rpcrdma/ibv"
)

// Names of the headers.
const (
	headerQP     = "Rdma-Queue-Pair"
	headerMemory = "Rdma-Memory"
)

// depth is the number of requests of each kind that may be outstanding.
const depth = 16

// Memory is a part of the peer's memory that this end may access.
type Memory struct {
	Addr   uint64
	Length uint64
	RKey   uint32
}

// A Session is one end of a connection.
type Session struct {
	// Peer is the memory that the peer offers, known after Connect.
	Peer Memory

	// Answer holds all headers that Connect was called with.
	Answer http.Header

	mr       *ibv.MR
	qp       *ibv.QP
	path     ibv.PathAttr
	local    ibv.QPAddr
	send     queue
	received queue
	closers  []func() error
}

// queue is a completion queue with its channel. Only one goroutine at a time waits for a completion.
type queue struct {
	mu sync.Mutex
	ch *ibv.CompChannel
	cq *ibv.CQ
}

// New returns a new end that offers buf to the peer with these rights. Its receives have no buffers: a peer sends
// messages as immediate data. buf belongs to the session until Close.
func New(dev *ibv.Context, buf []byte, access ibv.Access) (s *Session, err error) {
	s = &Session{path: ibv.PathAttr{Access: access, Depth: depth}}
	defer func() {
		if err != nil {
			s.Close()
		}
	}()
	pd, err := opened(s, dev.AllocPD)
	if err != nil {
		return s, err
	}
	for _, q := range []*queue{&s.send, &s.received} {
		if q.ch, err = opened(s, dev.CreateCompChannel); err != nil {
			return s, err
		}
		if q.cq, err = opened(s, func() (*ibv.CQ, error) { return dev.CreateCQ(2*depth, q.ch, 0) }); err != nil {
			return s, err
		}
	}
	s.mr, err = opened(s, func() (*ibv.MR, error) { return pd.RegMR(buf, access|ibv.AccessLocalWrite) })
	if err != nil {
		return s, err
	}
	s.qp, err = opened(s, func() (*ibv.QP, error) {
		return pd.CreateQP(ibv.QPInitAttr{
			SendCQ: s.send.cq, RecvCQ: s.received.cq,
			Cap: ibv.QPCap{MaxSendWR: depth, MaxRecvWR: depth, MaxSendSGE: 1, MaxRecvSGE: 1},
		})
	})
	if err != nil {
		return s, err
	}
	var psn [4]byte
	rand.Read(psn[:])
	s.local, err = s.qp.Addr(s.path, binary.BigEndian.Uint32(psn[:]))
	return s, err
}

// opened registers an object to be closed by Close.
func opened[T interface{ Close() error }](s *Session, open func() (T, error)) (T, error) {
	o, err := open()
	if err == nil {
		s.closers = append(s.closers, o.Close)
	}
	return o, err
}

// Close ends the connection. buf then belongs to the caller again.
func (s *Session) Close() (err error) {
	for i := len(s.closers) - 1; i >= 0; i-- {
		err = errors.Join(err, s.closers[i]())
	}
	s.closers = nil
	return err
}

// Offer adds to the headers what the peer needs to connect.
func (s *Session) Offer(h http.Header) error {
	addr, err := s.local.MarshalText()
	h.Set(headerQP, string(addr))
	h.Set(headerMemory, fmt.Sprintf("%016x:%016x:%08x", s.mr.Addr(), s.mr.Len(), s.mr.RKey()))
	return err
}

// Connect connects to the peer that offered h, and posts receives for immediate data.
func (s *Session) Connect(h http.Header) error {
	s.Answer = h
	var peer ibv.QPAddr
	if err := peer.UnmarshalText([]byte(h.Get(headerQP))); err != nil {
		return err
	}
	if n, err := fmt.Sscanf(h.Get(headerMemory), "%x:%x:%x", &s.Peer.Addr, &s.Peer.Length, &s.Peer.RKey); n != 3 {
		return fmt.Errorf("header %s: %w", headerMemory, err)
	}
	if err := s.qp.ConnectTo(s.local, peer, s.path); err != nil {
		return err
	}
	return s.qp.PostRecv(make([]ibv.RecvWR, depth))
}

// Accept creates the server's end of the session that a POST requests, and responds with what the client needs to
// connect. If it returns an error, the caller must respond.
func Accept(w http.ResponseWriter, r *http.Request, dev *ibv.Context, buf []byte, access ibv.Access) (*Session, error) {
	s, err := New(dev, buf, access)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(s.Connect(r.Header), s.Offer(w.Header())); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// Dial creates the client's end of a session with the server at url, by a POST.
func Dial(ctx context.Context, client *http.Client, url string, dev *ibv.Context, buf []byte, access ibv.Access) (*Session, error) {
	s, err := New(dev, buf, access)
	if err != nil {
		return nil, err
	}
	if err := s.dial(ctx, client, url); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

func (s *Session) dial(ctx context.Context, client *http.Client, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, nil)
	if err != nil {
		return err
	}
	if err := s.Offer(req.Header); err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 1024))
		return fmt.Errorf("%s: %s: %s", url, resp.Status, text)
	}
	return s.Connect(resp.Header)
}

// Do executes a request and waits for its completion. After an error, including that of ctx, the request may still be
// in progress: close the session before using its memory again.
func (s *Session) Do(ctx context.Context, wr ibv.SendWR) error {
	s.send.mu.Lock() // so that the completion is that of wr
	defer s.send.mu.Unlock()
	wr.Flags |= ibv.SendSignaled
	if err := s.qp.PostSend([]ibv.SendWR{wr}); err != nil {
		return err
	}
	_, err := s.send.next(ctx)
	return err
}

// Imm waits for the peer's next Write with immediate data and returns the data. The wait does not end when the peer
// disappears or the device is removed. For the latter, watch for [ibv.EventDeviceFatal] of [ibv.Context.AsyncEvent] and
// cancel ctx.
func (s *Session) Imm(ctx context.Context) (uint32, error) {
	s.received.mu.Lock()
	defer s.received.mu.Unlock()
	wc, err := s.received.next(ctx)
	if err != nil {
		return 0, err
	}
	return wc.ImmData(), s.qp.PostRecv(make([]ibv.RecvWR, 1))
}

// SGE returns a part of the session's own memory, for a request.
func (s *Session) SGE(offset uint64, length uint32) []ibv.SGE {
	return []ibv.SGE{s.mr.SGE(offset, length)}
}

// next waits for the next completion. It polls, arms the queue, polls again because a completion may have arrived
// before the arming, and then waits for the event.
func (q *queue) next(ctx context.Context) (wc ibv.WC, err error) {
	var wcs [1]ibv.WC
	for armed := false; ; {
		n, err := q.cq.Poll(wcs[:])
		switch {
		case err != nil:
			return wc, err
		case n == 1:
			return wcs[0], wcs[0].Err()
		case !armed:
			if err := q.cq.Arm(false); err != nil {
				return wc, err
			}
			armed = true
			continue
		}
		if _, err := q.ch.GetEvent(ctx); err != nil {
			return wc, err
		}
		armed = false
	}
}
