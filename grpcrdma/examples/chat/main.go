// Command chat is a chat room for reading and writing lines: chat serve ADDR, chat join ADDR NAME.
package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log"
	"os"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/rpcrdma/rpcrdma/grpcrdma"
	"github.com/rpcrdma/rpcrdma/grpcrdma/examples/chat/pb"
	"github.com/rpcrdma/rpcrdma/iwarp"
)

// room distributes lines among its members.
type room struct {
	pb.UnimplementedChatServer

	mu      sync.Mutex
	members map[chan *pb.Line]bool
}

// backlog is how many lines may wait for a member. A member that reads too slowly is removed.
const backlog = 256

// Join implements pb.ChatServer.
func (r *room) Join(stream pb.Chat_JoinServer) error {
	own := make(chan *pb.Line, backlog)
	r.mu.Lock()
	r.members[own] = true
	r.mu.Unlock()
	defer r.leave(own)
	if err := stream.SendHeader(nil); err != nil { // tells the member that it has joined
		return err
	}
	heard := make(chan error, 1)
	go func() {
		for {
			line, err := stream.Recv()
			if err != nil {
				heard <- err
				return
			}
			r.say(own, line)
		}
	}()
	for {
		select {
		case line, ok := <-own:
			if !ok {
				return status.Error(codes.ResourceExhausted, "the others write faster than this member reads")
			}
			if err := stream.Send(line); err != nil {
				return err
			}
		case err := <-heard:
			if err == io.EOF {
				return nil
			}
			return err
		}
	}
}

// say sends a line to all other members.
func (r *room) say(from chan *pb.Line, line *pb.Line) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for m := range r.members {
		if m == from {
			continue
		}
		select {
		case m <- line:
		default:
			delete(r.members, m)
			close(m)
		}
	}
}

func (r *room) leave(own chan *pb.Line) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.members, own)
}

// newServer returns a server with an empty room.
func newServer() *grpcrdma.Server {
	srv := grpcrdma.NewServer()
	pb.RegisterChatServer(srv, &room{members: make(map[chan *pb.Line]bool)})
	return srv
}

// join sends the lines of r and writes the lines of others to w, until r ends.
func join(ctx context.Context, c pb.ChatClient, name string, r io.Reader, w io.Writer) error {
	stream, err := c.Join(ctx)
	if err != nil {
		return err
	}
	if _, err := stream.Header(); err != nil {
		return err
	}
	fmt.Fprintln(w, "joined")
	go func() {
		defer stream.CloseSend()
		for lines := bufio.NewScanner(r); lines.Scan(); {
			if stream.Send(&pb.Line{From: name, Text: lines.Text()}) != nil {
				return // Recv returns the reason
			}
		}
	}()
	for {
		line, err := stream.Recv()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		fmt.Fprintf(w, "%s: %s\n", line.From, line.Text)
	}
}

func main() {
	ctx, provider := context.Background(), iwarp.New(iwarp.Config{})
	switch args := os.Args[1:]; {
	case len(args) == 2 && args[0] == "serve":
		srv := newServer()
		l, err := srv.Listen(ctx, provider, args[1])
		check(err)
		fmt.Println("listening on", l.Addr())
		check(srv.Serve(l))
	case len(args) == 3 && args[0] == "join":
		cc, err := grpcrdma.Dial(ctx, provider, args[1])
		check(err)
		defer cc.Close()
		check(join(ctx, pb.NewChatClient(cc), args[2], os.Stdin, os.Stdout))
	default:
		log.Fatal("usage: serve ADDR | join ADDR NAME")
	}
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
