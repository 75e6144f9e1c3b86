package transport_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/rpcrdma/rpcrdma/iwarp"
	"github.com/rpcrdma/rpcrdma/proto/rpcrdma"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/transport"
)

// TestRoom checks that a handler can query how much room its caller has. A reply that fills the room arrives. A longer
// reply does not, and both ends report which part was too long.
func TestRoom(t *testing.T) {
	chunk := func(n int) []rpc.WriteItem { return []rpc.WriteItem{{Buf: make([]byte, n)}} }
	for _, tt := range []struct {
		name string
		call rpc.Call
		item bool // the reply has an item; else results alone
		room int  // the room that the handler sees, with what a longer RPC header would take; 0: as much as the connection has
		what string
	}{
		{"inline", rpc.Call{}, false, 0, "the message, without a reply chunk,"},
		{"an item inline", rpc.Call{}, true, 0, "the message, without a reply chunk,"},
		{"a reply chunk", rpc.Call{MaxResults: 100_000}, false, 100_008, "the message for the reply chunk"},
		{"an item in a reply chunk", rpc.Call{MaxResults: 100_000}, true, 100_004, "the message for the reply chunk"},
		{"a write chunk", rpc.Call{MaxResults: 4, WriteItems: chunk(8192)}, true, 8192, "the data for write chunk 0"},
		{"results beside a write chunk", rpc.Call{MaxResults: 4, WriteItems: chunk(8192)}, false, 0, "the message, without a reply chunk,"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var log bytes.Buffer
			more, room := 0, 0
			server, err := transport.NewServer(&transport.ServerConfig{Config: transport.Config{Logger: slog.New(slog.NewTextHandler(&log, nil))}})
			if err != nil {
				t.Fatal(err)
			}
			err = server.Register(rpc.Program{Number: 400_000, Low: 1, High: 1, Handler: rpc.Procedures{
				7: func(_ context.Context, _ *rpc.Request, res *rpc.Response) {
					if tt.item {
						room = res.ItemRoom()
						res.AddItem(make([]byte, room+more), nil)
						return
					}
					room = res.Room()
					res.Results = append(res.Results, make([]byte, room+more)...)
				},
			}})
			if err != nil {
				t.Fatal(err)
			}
			p := iwarp.New(iwarp.Config{})
			l, err := server.Listen(t.Context(), p, "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			served := make(chan error, 1)
			go func() { served <- server.Serve(l) }()
			cl, err := transport.Dial(t.Context(), p, l.Addr().String(), nil)
			if err != nil {
				t.Fatal(err)
			}
			call := tt.call
			call.Prog, call.Vers, call.Proc = 400_000, 1, 7
			if err := cl.Call(t.Context(), &call); err != nil {
				t.Errorf("a reply that fills the room of %d bytes: %v", room, err)
			}
			if room < 1000 || tt.room != 0 && room != tt.room {
				t.Errorf("the room is %d bytes, want %d", room, tt.room)
			}
			more = 4
			var refused *rpc.RDMAError
			for range 2 { // of which one is logged
				if err := cl.Call(t.Context(), &call); !errors.As(err, &refused) || refused.Code != rpcrdma.ErrChunk {
					t.Fatalf("a reply that is four bytes too long: %v", err)
				}
			}
			if refused.MaxResults != call.MaxResults || len(refused.WriteItems) != len(call.WriteItems) {
				t.Errorf("the caller is told that it offers %d and %d", refused.MaxResults, refused.WriteItems)
			}
			if len(call.WriteItems) > 0 && (refused.WriteItems[0] != 8192 || !strings.Contains(refused.Error(), "[8192]")) {
				t.Errorf("the caller is told that it offers items of %d: %v", refused.WriteItems, refused)
			}
			cl.Close()
			server.Close()
			<-served
			if strings.Count(log.String(), "reply not sent") != 1 || !strings.Contains(log.String(), "reply to procedure 7 of program 400000 v1: "+tt.what+" is ") {
				t.Errorf("the log has\n%s", log.String())
			}
		})
	}
}
