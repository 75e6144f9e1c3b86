package verbs

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"
)

func good() hello { return hello{Protocol: protocol, Transport: "rc", Op: "send", Size: 64, Depth: 1} }

// TestHelloCheck: a client may ask for tests within bounds, and nothing else.
func TestHelloCheck(t *testing.T) {
	if h := good(); h.check() != nil {
		t.Fatal(h.check())
	}
	for name, change := range map[string]func(*hello){
		"another version":         func(h *hello) { h.Protocol = 2 },
		"no transport":            func(h *hello) { h.Transport = "" },
		"no operation":            func(h *hello) { h.Op = "erase" },
		"a datagram that is read": func(h *hello) { h.Transport, h.Op = "ud", "read" },
		"nothing":                 func(h *hello) { h.Size = 0 },
		"all memory":              func(h *hello) { h.Size = maxSize + 1 },
		"negative":                func(h *hello) { h.Size = -1 },
		"no depth":                func(h *hello) { h.Depth = 0 },
		"too deep":                func(h *hello) { h.Depth = maxDepth + 1 },
		"a long atomic":           func(h *hello) { h.Op = "fetch-add" },
		"an echo of a Read":       func(h *hello) { h.Op, h.Echo = "read", true },
		"few acknowledgments":     func(h *hello) { h.Ack = 2 },
		"negative ones":           func(h *hello) { h.Ack = -1 },
		"of Reads":                func(h *hello) { h.Op, h.Ack = "read", 1 },
	} {
		h := good()
		change(&h)
		if h.check() == nil {
			t.Errorf("%s: it is taken", name)
		}
	}
}

// TestTalk: what is no line of JSON ends the talk in a line of words, as does a peer that hangs up.
func TestTalk(t *testing.T) {
	for _, tt := range []struct{ name, said, want string }{
		{"JSON", `{"protocol":1}` + "\n", ""},
		{"another language", "GET / HTTP/1.1\r\n", "another language"},
		{"no end", strings.Repeat("x", 2*maxLine), "another language"},
		{"half a line", `{"protocol":1`, "hung up"},
		{"nothing", "", "hung up"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ours, theirs := net.Pipe()
			go func() {
				io.WriteString(theirs, tt.said)
				theirs.Close()
			}()
			talk := newTalk(ours)
			defer talk.Close()
			var h hello
			err := talk.hear(&h)
			if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%v, want %q", err, tt.want)
			}
		})
	}
	t.Run("watched", func(t *testing.T) {
		ours, theirs := net.Pipe()
		ctx, stop := newTalk(ours).watch(context.Background())
		defer stop()
		theirs.Close()
		select {
		case <-ctx.Done():
		case <-time.After(5 * time.Second):
			t.Fatal("the end of the peer is not seen")
		}
		if !errors.Is(context.Cause(ctx), errHungUp) {
			t.Error(context.Cause(ctx))
		}
	})
}

// FuzzHello: what a client says is refused or within bounds.
func FuzzHello(f *testing.F) {
	b, _ := json.Marshal(good())
	f.Add(b)
	f.Add([]byte(`{"protocol":1,"size":-9223372036854775808}`))
	f.Fuzz(func(t *testing.T, line []byte) {
		var h hello
		if json.Unmarshal(line, &h) == nil && h.check() == nil && (h.Size < 1 || h.Size > maxSize || h.Depth < 1 || h.Depth > maxDepth || h.Ack > h.Depth) {
			t.Errorf("%+v", h)
		}
	})
}
