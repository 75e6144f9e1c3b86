package fabrictest_test

import (
	"context"
	"errors"
	"io"
	"net"
	"testing"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/fabric/fabrictest"
	"github.com/rpcrdma/rpcrdma/iwarp"
)

// A conversation between two Endpoints. It shows how tests are written with them: both ends
// are driven in the background, and the test has only expectations.
func TestConversation(t *testing.T) {
	const size = 1 << 20
	data := fabrictest.Pattern(size, 1)

	client, server := fabrictest.Pair(t, iwarp.New(iwarp.Config{PeerToPeer: true}), fabrictest.Setup{
		Request: []byte("may I"),
		Reply:   []byte("you may"),
	})
	if got := string(client.PeerPrivateData()); got != "you may" {
		t.Errorf("the answer is %q", got)
	}
	a := fabrictest.NewEndpoint(t, "client", client)
	b := fabrictest.NewEndpoint(t, "server", server)
	a.Receives(1, 64)
	b.Receives(1, 64)
	a.Start()
	b.Start()

	// The client sends a request with the segment for the reply.
	sink := a.Region(size, fabric.AccessLocalWrite|fabric.AccessRemoteWrite)
	a.Send("a question", []byte("how much?"))
	b.WantMessage("a question", []byte("how much?"))

	// The server writes the reply to the segment and sends a message.
	src := b.Region(size, 0)
	copy(src.Bytes(), data)
	word := b.Message([]byte("that much"))
	b.Post("an answer",
		fabric.SendWR{ID: 1, Op: fabric.OpWrite, RKey: sink.Segment().Handle, RemoteOffset: sink.Segment().Offset,
			SGL: []fabric.SGE{fabrictest.SGE(src, 0, size)}},
		word)
	a.WantMessage("the word that the answer is there", []byte("that much"))
	if string(sink.Bytes()) != string(data) {
		t.Error("the answer is not there")
	}
	b.WantSent("an answer", word.ID)

	// The client disconnects.
	a.Stop()
	if err := client.Disconnect(context.Background()); err != nil {
		t.Error(err)
	}
	if end := b.WantEnd("when the client leaves"); !end.Clean || !end.Remote {
		t.Errorf("the end is %v", end)
	}
}

// The wrapped software adapter passes all checks as well.
func TestFaultyAdapter(t *testing.T) {
	p := iwarp.New(iwarp.Config{})
	fabrictest.Run(t, fabrictest.Config{
		New: func(testing.TB) fabric.Provider {
			p = iwarp.New(iwarp.Config{PeerToPeer: true})
			return fabrictest.Faulty(p, nil)
		},
		Bulk:     16 << 20,
		Complete: true,
		Limits:   fabrictest.Limits{LocalCompletion: true, CrossedInvalidation: true},
		Live: func() (conns, mrs, mws int) {
			l := p.OpenObjects()
			return l.Conns, l.MRs, l.MWs
		},
		Stall: func(t testing.TB, addr string) io.Closer {
			c, err := net.Dial("tcp", addr)
			if err != nil {
				t.Fatal(err)
			}
			return c
		},
	})
}

// A connection that a fault has broken ends for the peer, and both ends have
// every request flushed.
func TestFaultyAdapterBreaks(t *testing.T) {
	p := fabrictest.Faulty(iwarp.New(iwarp.Config{}), fabrictest.Plan{
		{At: fabrictest.AtPost, N: 5, Do: fabrictest.Break},
	})
	client, server := fabrictest.Pair(t, p, fabrictest.Setup{})
	a := fabrictest.NewEndpoint(t, "client", client)
	b := fabrictest.NewEndpoint(t, "server", server)
	a.Receives(10, 64)
	b.Receives(10, 64)
	a.Start()
	b.Start()
	for range 5 {
		a.Post("a message", a.Message([]byte("one of five")))
	}
	if end := a.WantEnd("at the fifth message"); !errors.Is(end, fabrictest.ErrInjected) {
		t.Errorf("the end is %v, want the injected fault", end)
	}
	b.WantEnd("when its peer has broken")
	if n := p.Struck(0); n != 1 {
		t.Errorf("the fault has struck %d times", n)
	}
}
