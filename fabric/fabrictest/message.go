package fabrictest

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"

	"github.com/rpcrdma/rpcrdma/fabric"
)

func messageChecks() []check {
	return []check{
		{"OrderAndLength", orderAndLength},
		{"ManySizes", manySizes},
		{"Empty", emptyMessage},
		{"Gather", gather},
		{"TooManySGEs", tooManySGEs},
		{"OneMegabyte", oneMegabyte},
		{"Unsignaled", unsignaled},
		{"Deferred", deferred},
		{"CompletionsInOrder", completionsInOrder},
		{"RequestIsTheCallersAgain", requestIsTheCallersAgain},
		{"PostersAtOnce", postersAtOnce},
		{"SendQueueFull", sendQueueFull},
		{"QuietQueueFull", quietQueueFull},
		{"ReceiveQueueFull", receiveQueueFull},
		{"LongerThanReceive", longerThanReceive},
		{"NoReceivePosted", noReceivePosted},
		{"WrongLocalKey", wrongLocalKey},
		{"ReceiveWithWrongKey", receiveWithWrongKey},
		{"LocalDMA", localDMA},
	}
}

// orderAndLength: Sends arrive in the order posted and with their exact lengths (RFC 5666
// section 2: messages complete at the receiver in the order posted, and only the receive
// buffer bounds their length).
func orderAndLength(s *scene) {
	client, server := s.pair(stage{})
	server.Receives(3, 256)
	texts := [][]byte{Pattern(1, 1), Pattern(256, 2), Pattern(77, 3)}
	var wrs []fabric.SendWR
	for _, text := range texts {
		wrs = append(wrs, client.Message(text))
	}
	client.Post("three messages", wrs...)
	for i, text := range texts {
		server.WantMessage(fmt.Sprintf("message %d of three", i), text)
	}
	for _, wr := range wrs {
		if wc := client.WantSent("a message", wr.ID); wc.Op != fabric.WCSend {
			s.Errorf("a Send completed with opcode %d", wc.Op)
		}
	}
	server.WantNothing("than three messages")
}

// manySizes: many Sends of all sizes, posted in lists of all lengths, arrive in order and with their exact lengths.
func manySizes(s *scene) {
	const most, window = 2000, 32
	rng := rand.New(rand.NewPCG(1, 2))
	client, server := s.pair(stage{})
	for round := range repeat(20) {
		server.Receives(window, most)
		var texts [][]byte
		for i := range window {
			texts = append(texts, Pattern(rng.IntN(most+1), uint64(round*window+i)))
		}
		for rest := texts; len(rest) > 0; {
			var wrs []fabric.SendWR
			for range min(len(rest), 1+rng.IntN(6)) {
				wrs = append(wrs, client.Message(rest[0]))
				rest = rest[1:]
			}
			client.Post("some messages", wrs...)
		}
		for i, text := range texts {
			server.WantMessage(fmt.Sprintf("message %d of round %d", i, round), text)
		}
		for range texts {
			if wc, err := client.NextSend(); err != nil || wc.Status != fabric.WCSuccess {
				s.Fatalf("completion of a message: %v, %v", wc.Status, err)
			}
		}
	}
}

// emptyMessage: an empty Send consumes a receive and completes at both ends.
func emptyMessage(s *scene) {
	client, server := s.pair(stage{})
	server.Receives(2, 16)
	client.Send("an empty message", nil)
	if wc, data := server.WantRecv("an empty message"); wc.Len != 0 || len(data) != 0 {
		s.Errorf("an empty message has %d bytes", wc.Len)
	}
	client.Send("a message after it", []byte("after"))
	server.WantMessage("a message after it", []byte("after"))
}

// gather: a Send gathers several SGEs.
func gather(s *scene) {
	client, server := s.pair(stage{})
	n := min(client.Conn.Capabilities().MaxSendSGE, 16)
	mr := client.Region(4096, 0)
	other := client.Region(4096, 0)
	Fill(mr.Bytes(), 8)
	Fill(other.Bytes(), 9)
	server.Receives(n, 4096)
	for pieces := 1; pieces <= n; pieces++ {
		var want []byte
		var sgl []fabric.SGE
		for i := range pieces {
			src := mr
			if i%3 == 2 {
				src = other
			}
			sge := SGE(src, 200*(pieces-i), 1+7*i)
			sgl = append(sgl, sge)
			want = append(want, sge.Buf...)
		}
		what := fmt.Sprintf("a message of %d pieces", pieces)
		client.Post(what, fabric.SendWR{ID: uint64(pieces), Op: fabric.OpSend, Flags: fabric.Signaled | fabric.Solicited, SGL: sgl})
		client.WantSent(what, uint64(pieces))
		server.WantMessage(what, want)
	}
}

// tooManySGEs: a list with too many SGEs is refused, by Post or by its completion.
func tooManySGEs(s *scene) {
	client, server := s.pair(stage{})
	n := client.Conn.Capabilities().MaxSendSGE + 1
	mr := client.Region(n, 0)
	var sgl []fabric.SGE
	for i := range n {
		sgl = append(sgl, SGE(mr, i, 1))
	}
	server.Receives(1, max(n, 64))
	err := client.TryPost(fabric.SendWR{ID: 1, Op: fabric.OpSend, Flags: fabric.Signaled, SGL: sgl})
	if err != nil {
		var ce *fabric.ConnError
		if errors.As(err, &ce) || errors.Is(err, fabric.ErrQueueFull) {
			s.Fatalf("Post of %d pieces: %v", n, err)
		}
		s.exchange("after a post that was refused", client, server)
		return
	}
	client.WantFailed("a Send of too many pieces", 1, s.local(fabric.WCLocQPOpErr)...)
	client.WantEnd("after a malformed request")
	server.WantEnd("after the peer's malformed request")
}

// local returns the acceptable statuses of a request that should fail locally with want.
func (s *scene) local(want fabric.WCStatus) []fabric.WCStatus {
	if !s.cfg.Limits.CoarseStatus {
		return []fabric.WCStatus{want}
	}
	return []fabric.WCStatus{want, fabric.WCLocLenErr, fabric.WCLocQPOpErr, fabric.WCLocProtErr,
		fabric.WCMWBindErr, fabric.WCLocAccessErr, fabric.WCGeneralErr}
}

// oneMegabyte: a message may be as long as its receive.
func oneMegabyte(s *scene) {
	const n = 1 << 20
	client, server := s.pair(stage{})
	server.Receives(2, n)
	text := Pattern(n, 10)
	client.Send("a megabyte", text)
	server.WantMessage("a megabyte", text)
	client.Send("a megabyte less a byte", text[1:])
	server.WantMessage("a megabyte less a byte", text[1:])
}

// unsignaled: an unsignaled request has no completion, but a later signaled request has.
func unsignaled(s *scene) {
	client, server := s.pair(stage{})
	client.Receives(1, 16)
	sink := server.Region(64, fabric.AccessLocalWrite|fabric.AccessRemoteWrite|fabric.AccessRemoteRead)
	own := client.Region(64, fabric.AccessLocalWrite)
	seg := sink.Segment()
	for round := range repeat(100) {
		const quiet = 6
		server.Receives(quiet+1, 64)
		var wrs []fabric.SendWR
		for i := range quiet {
			wr := client.Message([]byte{byte(round), byte(i)})
			wr.Flags = 0
			wrs = append(wrs, wr,
				fabric.SendWR{ID: 1, Op: fabric.OpWrite, RKey: seg.Handle, RemoteOffset: seg.Offset, SGL: []fabric.SGE{SGE(own, 0, 8)}},
				fabric.SendWR{ID: 2, Op: fabric.OpRead, RKey: seg.Handle, RemoteOffset: seg.Offset + 32, SGL: []fabric.SGE{SGE(own, 32, 8)}})
		}
		last := client.Message([]byte("last"))
		client.Post("quiet requests and one that is not", append(wrs, last)...)
		for i := range quiet {
			server.WantMessage("a quiet message", []byte{byte(round), byte(i)})
		}
		server.WantMessage("the last message", []byte("last"))
		client.WantSent("the last message", last.ID)
	}
	// The answer is sent after everything else.
	server.Send("an answer", []byte("answer"))
	client.WantMessage("an answer", []byte("answer"))
	client.WantNothing("from requests that are not signaled")
}

// deferred: all deferred requests but at most the last MaxDeferred have a completion, or precede a deferred request that
// has, whatever requests are between them. Endpoint checks this at each completion. Here no further completion follows.
func deferred(s *scene) {
	client, server := s.pair(stage{})
	seg := server.Region(64, writable).Segment()
	own := client.Region(64, 0)
	for round := range repeat(100) {
		server.Receives(1, 64)
		text := []byte{byte(round)}
		wr := client.Message(text)
		wr.Flags = fabric.Deferred
		quiet := put(1, seg, 0, SGE(own, 0, 8))
		quiet.Flags = 0
		client.Post("a deferred request", wr, quiet)
		server.WantMessage("a deferred message", text)
		client.wantTold("deferred requests")
	}
	server.Receives(1, 64)
	client.Send("a message that is signaled", []byte("last"))
	server.WantMessage("a message that is signaled", []byte("last"))
	client.WantNothing("than the last message, which stands for all")
}

// completionsInOrder: the send queue completes in the order posted, whatever the requests are. Endpoint checks the
// order.
func completionsInOrder(s *scene) {
	client, server := s.pair(stage{})
	put := server.Region(1<<18, fabric.AccessLocalWrite|fabric.AccessRemoteWrite).Segment()
	get := server.Region(1<<18, fabric.AccessRemoteRead).Segment()
	out, in := client.Region(1<<18, 0), client.Region(1<<18, fabric.AccessLocalWrite)
	rng := rand.New(rand.NewPCG(3, 4))
	for range repeat(20) {
		var wrs []fabric.SendWR
		sends := 0
		for id := range uint64(48) {
			n := 1 << rng.IntN(19)
			wr := fabric.SendWR{ID: id, Flags: fabric.Signaled}
			switch rng.IntN(3) {
			case 0:
				wr.Op, wr.RKey, wr.RemoteOffset, wr.SGL = fabric.OpRead, get.Handle, get.Offset, []fabric.SGE{SGE(in, 0, n)}
			case 1:
				wr.Op, wr.RKey, wr.RemoteOffset, wr.SGL = fabric.OpWrite, put.Handle, put.Offset, []fabric.SGE{SGE(out, 0, n)}
			case 2:
				wr.Op = fabric.OpSend
				sends++
			}
			wrs = append(wrs, wr)
		}
		server.Receives(sends, 1)
		client.Post("a mixture", wrs...)
		for id := range uint64(48) {
			wc := client.WantSent("part of a mixture", id)
			if op := wrs[id].Op.Completion(); wc.Op != op {
				s.Fatalf("request %d completed with opcode %d, want %d", id, wc.Op, op)
			}
		}
		for range sends {
			server.WantRecv("an empty message of the mixture")
		}
	}
}

// requestIsTheCallersAgain: the caller owns the slices of a request again when Post returns.
func requestIsTheCallersAgain(s *scene) {
	client, server := s.pair(stage{})
	mr := client.Region(4096, 0)
	Fill(mr.Bytes(), 11)
	in := server.Region(4096, fabric.AccessLocalWrite)
	const n = 8
	recvs := make([]fabric.RecvWR, 1)
	for i := range n {
		recvs[0] = fabric.RecvWR{ID: uint64(i), SGE: SGE(in, 512*i, 512)}
		if err := server.TryPostRecv(recvs...); err != nil {
			s.Fatalf("post a receive: %v", err)
		}
		recvs[0] = fabric.RecvWR{ID: 99}
	}
	wrs, sgl := make([]fabric.SendWR, 1), make([]fabric.SGE, 1)
	for i := range n {
		sgl[0] = SGE(mr, 64*i, 64)
		wrs[0] = fabric.SendWR{ID: uint64(i), Op: fabric.OpSend, Flags: fabric.Signaled, SGL: sgl}
		client.Post("a message", wrs...)
		sgl[0], wrs[0] = fabric.SGE{}, fabric.SendWR{ID: 99, Op: 99}
	}
	for i := range n {
		server.WantMessage("a message whose request has changed since", mr.Bytes()[64*i:][:64])
		client.WantSent("a message whose request has changed since", uint64(i))
	}
}

// Parameters of postersAtOnce: goroutines, messages per goroutine, and messages in flight.
const (
	posters      = 8
	postsEach    = 40
	postsAtATime = 64
)

// postersAtOnce: any goroutine may post at any time, even while another is in Poll or Wait. The check uses the client's
// Conn directly, because Endpoint serializes posts.
func postersAtOnce(s *scene) {
	client, server := s.pair(stage{idle: true})
	server.Start()
	server.Receives(postsAtATime, 8)
	mr := client.Region(posters*postsEach*2, 0)
	tokens := make(chan struct{}, postsAtATime) // one token per free receive
	for range postsAtATime {
		tokens <- struct{}{}
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	quit := make(chan struct{})
	defer close(quit)
	posted := make(chan error, posters)
	for p := range byte(posters) {
		wg.Go(func() { posted <- postNumbers(client.Conn, mr, p, tokens, quit) })
	}
	completed := later(func() error { return pollInOrder(client.Conn) })
	var next [posters]byte
	for range posters * postsEach {
		_, data := server.WantRecv("a message of one of the posters")
		if len(data) != 2 || data[0] >= posters {
			s.Fatalf("got the message %x", data)
		}
		if p, n := data[0], data[1]; n != next[p] {
			s.Fatalf("message %d of poster %d arrived, want message %d", n, p, next[p])
		}
		next[data[0]]++
		server.Receives(1, 8)
		tokens <- struct{}{}
	}
	for range posters {
		if err := s.result("Post", posted); err != nil {
			s.Error(err)
		}
	}
	if err := s.result("the last completion", completed); err != nil {
		s.Error(err)
	}
}

// postNumbers posts the messages of poster p. A message contains the number of the poster and its own number. The ID of
// a request is the offset of its message in mr.
func postNumbers(c fabric.Conn, mr fabric.MR, p byte, tokens, quit <-chan struct{}) error {
	for n := range byte(postsEach) {
		select {
		case <-tokens:
		case <-quit:
			return nil
		}
		at := (int(p)*postsEach + int(n)) * 2
		mr.Bytes()[at], mr.Bytes()[at+1] = p, n
		wr := fabric.SendWR{ID: uint64(at), Op: fabric.OpSend, Flags: fabric.Signaled, SGL: []fabric.SGE{SGE(mr, at, 2)}}
		err := c.Post([]fabric.SendWR{wr})
		for ; errors.Is(err, fabric.ErrQueueFull); runtime.Gosched() {
			err = c.Post([]fabric.SendWR{wr})
		}
		if err != nil {
			return fmt.Errorf("poster %d: %w", p, err)
		}
	}
	return nil
}

// pollInOrder polls the completions of all posters, and expects those of each poster to be in order.
func pollInOrder(c fabric.Conn) error {
	var next [posters]uint64
	var wcs [5]fabric.WC
	for left := posters * postsEach; left > 0; {
		n, err := c.Poll(wcs[:])
		if err != nil {
			return err
		}
		for _, wc := range wcs[:n] {
			p, i := wc.ID/(2*postsEach), wc.ID%(2*postsEach)/2
			if wc.Status != fabric.WCSuccess || p >= posters || i != next[p] {
				return fmt.Errorf("message %d of poster %d completed with %v, want message %d", i, p, wc.Status, next[p])
			}
			next[p]++
			left--
		}
		if n == 0 {
			if err := c.Wait(); err != nil {
				return err
			}
		}
	}
	return nil
}

// sendQueueFull: a queue that has no room for a whole list accepts no part of it. It has room again after completions
// have been polled.
func sendQueueFull(s *scene) {
	const depth, most = 4, 4096
	small := attr
	small.SendDepth = depth
	client, server := s.pair(stage{client: small, idle: true})
	server.Start()
	mr := client.Region(8, 0)
	sink := server.Region(8, fabric.AccessLocalWrite|fabric.AccessRemoteWrite)
	seg := sink.Segment()
	put := func(id uint64) fabric.SendWR {
		return fabric.SendWR{ID: id, Op: fabric.OpWrite, Flags: fabric.Signaled,
			RKey: seg.Handle, RemoteOffset: seg.Offset, SGL: []fabric.SGE{SGE(mr, 0, 8)}}
	}
	taken := uint64(0)
	for ; taken < most; taken++ {
		err := client.TryPost(put(taken))
		if errors.Is(err, fabric.ErrQueueFull) {
			break
		}
		if err != nil {
			s.Fatalf("post request %d: %v", taken, err)
		}
	}
	if taken < depth || taken == most {
		s.Fatalf("a send queue of %d took %d requests without a Poll", depth, taken)
	}
	if d := client.Conn.Capabilities().SendDepth; d < depth || d > int(taken) {
		s.Fatalf("the capabilities say %d requests, the queue of %d took %d", d, depth, taken)
	}
	client.Start()
	for id := range taken {
		client.WantSent("a request of a full queue", id)
	}
	client.Stop()

	// All completions have been polled, so all slots are free. A list that is too long by one must have no effect.
	list := make([]fabric.SendWR, taken+1)
	for i := range list {
		list[i] = put(uint64(1000 + i))
	}
	if err := client.TryPost(list...); !errors.Is(err, fabric.ErrQueueFull) {
		s.Fatalf("post %d requests to a queue of %d: %v, want ErrQueueFull", len(list), taken, err)
	}
	client.Post("as many as the queue can take", list[:taken]...)
	if err := client.TryPost(list[taken]); !errors.Is(err, fabric.ErrQueueFull) {
		s.Fatalf("post one more: %v, want ErrQueueFull", err)
	}
	client.Start()
	for i := range taken {
		client.WantSent("a request of a full queue", list[i].ID)
	}
	s.exchange("after the queue was full", client, server)
	client.WantNothing("from requests that were refused")
}

// quietQueueFull: a queue full of requests without completions has room again without another request.
func quietQueueFull(s *scene) {
	const depth, n = 4, 300
	small := attr
	small.SendDepth = depth
	l := s.listen(attr)
	for _, flags := range []fabric.SendFlags{0, fabric.Deferred} {
		client, server := s.pairAt(l, stage{client: small, idle: true})
		server.Start()
		seg := server.Region(8, writable).Segment()
		mr := client.Region(8, 0)
		for id := range uint64(n) {
			wr := put(id, seg, 0, SGE(mr, 0, 8))
			wr.Flags = flags
			for {
				err := client.TryPost(wr)
				if err == nil {
					break
				}
				if !errors.Is(err, fabric.ErrQueueFull) {
					s.Fatalf("post request %d: %v", id, err)
				}
				s.within("Wait for space in the queue", client.Conn.Wait)
				if _, err := client.Step(); err != nil {
					s.Fatalf("Poll with a full queue: %v", err)
				}
			}
		}
		client.Close()
		server.Close()
	}
}

// receiveQueueFull: a receive queue that has no room for a whole list accepts no part of it.
func receiveQueueFull(s *scene) {
	const depth, most = 4, 4096
	small := attr
	small.RecvDepth = depth
	client, server := s.pair(stage{client: small})
	in := client.Region(1, fabric.AccessLocalWrite)
	recv := func(id uint64) fabric.RecvWR { return fabric.RecvWR{ID: id, SGE: SGE(in, 0, 1)} }
	taken := uint64(0)
	for ; taken < most; taken++ {
		err := client.TryPostRecv(recv(taken))
		if errors.Is(err, fabric.ErrQueueFull) {
			break
		}
		if err != nil {
			s.Fatalf("post receive %d: %v", taken, err)
		}
	}
	if taken < depth || taken == most {
		s.Fatalf("a receive queue of %d took %d receives", depth, taken)
	}
	for id := range taken {
		server.Send("a message into a full queue", []byte{1})
		if wc, _ := client.WantRecv("a message into a full queue"); wc.ID != id {
			s.Fatalf("receive %d completed in the turn of receive %d", wc.ID, id)
		}
	}
	list := make([]fabric.RecvWR, taken+1)
	for i := range list {
		list[i] = recv(uint64(1000 + i))
	}
	if err := client.TryPostRecv(list...); !errors.Is(err, fabric.ErrQueueFull) {
		s.Fatalf("post %d receives to a queue of %d: %v, want ErrQueueFull", len(list), taken, err)
	}
	if err := client.TryPostRecv(list[taken:]...); err != nil {
		s.Fatalf("post a receive after a list that was too long: %v", err)
	}
	server.Send("a message", []byte{2})
	if wc, _ := client.WantRecv("a message"); wc.ID != list[taken].ID {
		s.Fatalf("receive %d took the message, which was refused", wc.ID)
	}
}

// longerThanReceive: a message that is longer than its receive makes the receive fail and ends the connection. Nothing
// outside the buffer is written.
func longerThanReceive(s *scene) {
	client, server := s.pair(stage{})
	in := server.Region(64, fabric.AccessLocalWrite)
	if err := server.TryPostRecv(
		fabric.RecvWR{ID: 1, SGE: SGE(in, 16, 32)},
		fabric.RecvWR{ID: 2, SGE: SGE(in, 16, 32)}); err != nil {
		s.Fatalf("post receives: %v", err)
	}
	wr := client.Message(bytes.Repeat([]byte{0xff}, 33))
	client.Post("a message of 33 bytes", wr)
	wc, _, err := server.NextRecv()
	if err != nil {
		s.Fatalf("want the receive to complete: %v", err)
	}
	if !slices.Contains(s.local(fabric.WCLocLenErr), wc.Status) || wc.ID != 1 {
		s.Errorf("receive %d completed with %v, want %v of 1", wc.ID, wc.Status, fabric.WCLocLenErr)
	}
	s.wantRefused("a Send that is too long", client, wr, fabric.WCRemInvReqErr, fabric.WCRemOpErr)
	client.WantEnd("after a message that was too long")
	server.WantEnd("after a message that was too long")
	if in := in.Bytes(); !bytes.Equal(in[:16], make([]byte, 16)) || !bytes.Equal(in[48:], make([]byte, 16)) {
		s.Error("a message that was too long ran over its receive")
	}
}

// wantRefused expects the completion of a request that the peer refuses: with one of the given statuses, or flushed.
// With LocalCompletion the request may have succeeded, unless it is a Read.
func (s *scene) wantRefused(what string, e *Endpoint, wr fabric.SendWR, status ...fabric.WCStatus) {
	s.Helper()
	wc, err := e.NextSend()
	if err != nil {
		s.Fatalf("%s: want completion of %s: %v", e.Name, what, err)
	}
	ok := slices.Contains(status, wc.Status) || wc.Status == fabric.WCFlushErr
	if wc.Status == fabric.WCSuccess {
		ok = s.cfg.Limits.LocalCompletion && wr.Op != fabric.OpRead
	} else if s.cfg.Limits.CoarseStatus {
		ok = true
	}
	if !ok || wc.ID != wr.ID {
		s.Fatalf("%s: want %s (%d) to fail with %v, got %v of %d", e.Name, what, wr.ID, status, wc.Status, wc.ID)
	}
}

// noReceivePosted: a Send that finds no receive behaves as declared.
func noReceivePosted(s *scene) {
	client, server := s.pair(stage{})
	wr := client.Message([]byte("too early"))
	client.Post("a message without a receive", wr)
	if s.cfg.Limits.Shortage == ShortageWaits {
		// A message in the other direction shows that the connection is alive.
		client.Receives(1, 16)
		server.Send("a message the other way", []byte("alive"))
		client.WantMessage("a message the other way", []byte("alive"))
		server.Receives(1, 16)
		server.WantMessage("the message that came early", []byte("too early"))
		client.WantSent("the message that came early", wr.ID)
		return
	}
	s.wantRefused("a Send without a receive", client, wr, fabric.WCRemOpErr, fabric.WCRemInvReqErr)
	client.WantEnd("after one message too many")
	server.WantEnd("after one message too many")
}

// wrongLocalKey: an SGE outside the region of its key makes the request fail and ends the connection. Nothing is sent.
func wrongLocalKey(s *scene) {
	l := s.listen(attr)
	third, fourth := s.pairAt(l, stage{})
	backing := make([]byte, 8192)
	for _, c := range []struct {
		name string
		op   fabric.Opcode
		sge  func(e *Endpoint) fabric.SGE
	}{
		{"an unknown key", fabric.OpSend, func(e *Endpoint) fabric.SGE {
			return fabric.SGE{Buf: backing[:8], LKey: e.Region(8, 0).LKey() ^ 0x5a5a5a5a}
		}},
		{"memory that ends outside the region", fabric.OpSend, func(e *Endpoint) fabric.SGE {
			mr := s.register(e, backing[:4096], 0)
			return fabric.SGE{Buf: backing[4090:4100], LKey: mr.LKey()}
		}},
		{"memory that begins outside the region", fabric.OpSend, func(e *Endpoint) fabric.SGE {
			mr := s.register(e, backing[100:4096], 0)
			return fabric.SGE{Buf: backing[99:108], LKey: mr.LKey()}
		}},
		{"the key of a region that is closed", fabric.OpSend, func(e *Endpoint) fabric.SGE {
			mr := s.register(e, backing[:4096], 0)
			sge := SGE(mr, 0, 16)
			s.within("MR.Close", mr.Close)
			return sge
		}},
		{"a key of another connection", fabric.OpSend, func(*Endpoint) fabric.SGE {
			return SGE(s.register(third, backing[:4096], fabric.AccessLocalWrite), 0, 16)
		}},
		{"a Read into memory that is not for writing", fabric.OpRead, func(e *Endpoint) fabric.SGE {
			return SGE(s.register(e, backing[:4096], 0), 0, 16)
		}},
		{"a Read to where another connection's region is", fabric.OpRead, func(*Endpoint) fabric.SGE {
			return SGE(s.register(third, backing[:4096], fabric.AccessLocalWrite), 0, 16)
		}},
	} {
		client, server := s.pairAt(l, stage{})
		server.Receives(1, 64)
		client.Receives(1, 64)
		src := server.Region(64, fabric.AccessRemoteRead)
		Fill(src.Bytes(), 12)
		seg := src.Segment()
		wr := fabric.SendWR{ID: 1, Op: c.op, Flags: fabric.Signaled, SGL: []fabric.SGE{c.sge(client)}}
		if c.op == fabric.OpRead {
			wr.RKey, wr.RemoteOffset = seg.Handle, seg.Offset
		}
		client.Post(c.name, wr)
		client.WantFailed(c.name, 1, s.local(fabric.WCLocProtErr)...)
		client.WantEnd("after " + c.name)
		server.WantEnd("after the peer used " + c.name)
		if _, _, err := server.NextRecv(); err != nil {
			s.Errorf("the receive posted beside %s: %v", c.name, err)
		}
		client.Close()
		server.Close()
		if !bytes.Equal(backing, make([]byte, len(backing))) {
			s.Fatalf("memory has changed by %s", c.name)
		}
		s.exchange("beside "+c.name, third, fourth)
	}
}

// register registers buf.
func (s *scene) register(e *Endpoint, buf []byte, access fabric.Access) fabric.MR {
	s.Helper()
	mr, err := e.Conn.RegMR(buf, access)
	if err != nil {
		s.Fatalf("%s: register %d bytes: %v", e.Name, len(buf), err)
	}
	if got := mr.Bytes(); len(got) != len(buf) || &got[0] != &buf[0] {
		s.Errorf("%s: a region has other memory than was registered", e.Name)
	}
	return mr
}

// receiveWithWrongKey: a receive with a wrong key fails when a message arrives. The message is not placed.
func receiveWithWrongKey(s *scene) {
	backing := make([]byte, 128)
	for _, c := range []struct {
		name string
		sge  func(e *Endpoint) fabric.SGE
	}{
		{"a receive with an unknown key", func(e *Endpoint) fabric.SGE {
			return fabric.SGE{Buf: backing[:64], LKey: e.Region(8, fabric.AccessLocalWrite).LKey() ^ 0x5a5a5a5a}
		}},
		{"a receive into memory that is not for writing", func(e *Endpoint) fabric.SGE {
			return SGE(s.register(e, backing[:64], 0), 0, 64)
		}},
		{"a receive that runs out of its region", func(e *Endpoint) fabric.SGE {
			return fabric.SGE{Buf: backing[:64], LKey: s.register(e, backing[:32], fabric.AccessLocalWrite).LKey()}
		}},
	} {
		client, server := s.pair(stage{})
		if err := server.TryPostRecv(fabric.RecvWR{ID: 1, SGE: c.sge(server)}); err != nil {
			s.Fatalf("post %s: %v", c.name, err)
		}
		wr := client.Message(Pattern(64, 13))
		client.Post("a message into "+c.name, wr)
		wc, _, err := server.NextRecv()
		if err != nil {
			s.Fatalf("want %s to complete: %v", c.name, err)
		}
		if !slices.Contains(s.local(fabric.WCLocProtErr), wc.Status) {
			s.Errorf("%s completed with %v, want %v", c.name, wc.Status, fabric.WCLocProtErr)
		}
		s.wantRefused("a message into "+c.name, client, wr, fabric.WCRemOpErr, fabric.WCRemInvReqErr)
		client.WantEnd("after " + c.name)
		server.WantEnd("after " + c.name)
		server.Close()
		if !bytes.Equal(backing, make([]byte, len(backing))) {
			s.Fatalf("memory has changed by %s", c.name)
		}
	}
}

// localDMA: LocalDMAKey permits the use of any memory if, and only if, the connection has LocalDMA.
func localDMA(s *scene) {
	client, server := s.pair(stage{})
	server.Receives(1, 64)
	text := Pattern(64, 14)
	wr := fabric.SendWR{ID: 1, Op: fabric.OpSend, Flags: fabric.Signaled, SGL: []fabric.SGE{{Buf: text, LKey: fabric.LocalDMAKey}}}
	if !client.Conn.Capabilities().LocalDMA {
		if client.TryPost(wr) == nil {
			client.WantFailed("a Send of memory that is not registered", 1, s.local(fabric.WCLocProtErr)...)
			client.WantEnd("after a Send of memory that is not registered")
		}
		return
	}
	client.Post("a message that is not registered", wr)
	client.WantSent("a message that is not registered", 1)
	server.WantMessage("a message that is not registered", text)

	in := make([]byte, 64)
	if err := client.TryPostRecv(fabric.RecvWR{ID: 2, SGE: fabric.SGE{Buf: in, LKey: fabric.LocalDMAKey}}); err != nil {
		s.Fatalf("post a receive into memory that is not registered: %v", err)
	}
	server.Send("a message", text)
	client.WantMessage("a message into memory that is not registered", text)
}
