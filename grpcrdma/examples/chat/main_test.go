package main

import (
	"bufio"
	"fmt"
	"io"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/grpcrdma"
	"github.com/rpcrdma/rpcrdma/grpcrdma/examples/chat/pb"
	"github.com/rpcrdma/rpcrdma/internal/testing/leak"
	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
	"github.com/rpcrdma/rpcrdma/iwarp"
	"github.com/rpcrdma/rpcrdma/transport"
)

// A member is in the room.
type member struct {
	in    *io.PipeWriter
	lines *bufio.Scanner
	ended chan error
}

func (m *member) reads(t *testing.T, want string) {
	t.Helper()
	if !m.lines.Scan() || m.lines.Text() != want {
		t.Fatalf("read %q, want %q", m.lines.Text(), want)
	}
}

// TestChat: members read what the others write, in order, and one that does not read has to leave.
func TestChat(t *testing.T) {
	for name, p := range map[string]fabric.Provider{"iwarp": iwarp.New(iwarp.Config{}), "tcp": transport.TCP{}} {
		t.Run(name, func(t *testing.T) {
			leak.Check(t)
			srv := newServer()
			l, err := srv.Listen(t.Context(), p, "127.0.0.1:0")
			testutil.Must(t, err)
			go srv.Serve(l)
			defer srv.Stop()
			cc, err := grpcrdma.Dial(t.Context(), p, l.Addr().String())
			testutil.Must(t, err)
			defer cc.Close()
			c := pb.NewChatClient(cc)

			enter := func(name string) *member {
				r, in := io.Pipe()
				out, w := io.Pipe()
				m := &member{in, bufio.NewScanner(out), make(chan error, 1)}
				go func() { m.ended <- join(t.Context(), c, name, r, w) }()
				m.reads(t, "joined")
				return m
			}
			ann, bob := enter("ann"), enter("bob")
			for i := range 100 {
				fmt.Fprintln(ann.in, "hello", i)
				bob.reads(t, fmt.Sprint("ann: hello ", i))
				fmt.Fprintln(bob.in, "hi", i)
				ann.reads(t, fmt.Sprint("bob: hi ", i))
			}
			deaf, err := c.Join(t.Context())
			testutil.Must(t, err)
			_, err = deaf.Header()
			testutil.Must(t, err)
			long := strings.Repeat("x", 1000) // the window has room for 63 of them
			for range backlog + 100 {
				fmt.Fprintln(ann.in, long)
				bob.reads(t, "ann: "+long)
			}
			for err == nil {
				_, err = deaf.Recv()
			}
			if status.Code(err) != codes.ResourceExhausted {
				t.Errorf("the member that did not read: %v", err)
			}
			for _, m := range []*member{ann, bob} {
				m.in.Close()
				if err := <-m.ended; err != nil {
					t.Error(err)
				}
			}
		})
	}
}
