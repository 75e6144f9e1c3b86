//go:build linux && cgo

package session

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"slices"
	"testing"
	"time"

	"github.com/rpcrdma/rpcrdma/ibv"
	"github.com/rpcrdma/rpcrdma/internal/testing/rdmatest"
)

// serving is a server of one session.
func serving(t *testing.T, dev *ibv.Context, buf []byte) (url string, session <-chan *Session) {
	t.Helper()
	made := make(chan *Session, 1)
	h := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s, err := Accept(w, r, dev, buf, ibv.AccessRemoteWrite|ibv.AccessRemoteRead)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		made <- s
	}))
	t.Cleanup(h.Close)
	return h.URL, made
}

func open(t *testing.T) *ibv.Context {
	t.Helper()
	dev, err := ibv.Open(rdmatest.Name(t, "rxe"))
	if err != nil {
		t.Fatal(err)
	}
	return dev
}

// TestRDMASession: Writes with immediate data arrive, in both directions once the client has begun.
func TestRDMASession(t *testing.T) {
	dev := open(t)
	defer dev.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	there, here := make([]byte, 4096), make([]byte, 4096)
	url, made := serving(t, dev, there)
	client, err := Dial(ctx, http.DefaultClient, url, dev, here, ibv.AccessRemoteWrite)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	server := <-made
	defer server.Close()
	for i := range uint32(3 * depth) { // receives are posted again
		for _, way := range [][2]*Session{{client, server}, {server, client}} {
			from, to := way[0], way[1]
			wr := ibv.SendWR{Opcode: ibv.OpRDMAWriteWithImm, Imm: i, RemoteAddr: from.Peer.Addr + 100, RKey: from.Peer.RKey, SGL: from.SGE(0, 64)}
			from.mr.Bytes()[0] = byte(i)
			if err := from.Do(ctx, wr); err != nil {
				t.Fatal(err)
			}
			if imm, err := to.Imm(ctx); imm != i || err != nil || to.mr.Bytes()[100] != byte(i) {
				t.Fatalf("message %d is %d, %v", i, imm, err)
			}
		}
	}
	if _, err := Dial(ctx, http.DefaultClient, url+"\x00", dev, here, 0); err == nil {
		t.Error("a URL that there is not")
	}
	if err := client.Connect(http.Header{headerQP: {"nonsense"}}); err == nil {
		t.Error("nonsense is connected to")
	}
}

// TestRDMADeviceRemoved: Linux keeps rxe, which cannot be taken from its users, until the last one has
// closed it. Requests work until then.
func TestRDMADeviceRemoved(t *testing.T) {
	name := rdmatest.Name(t, "rxe")
	dev := open(t)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	url, made := serving(t, dev, make([]byte, 4096))
	client, err := Dial(ctx, http.DefaultClient, url, dev, make([]byte, 4096), 0)
	if err != nil {
		t.Fatal(err)
	}
	server := <-made
	removed := make(chan error, 1)
	go func() { removed <- exec.CommandContext(ctx, "rdma", "link", "del", name).Run() }()
	for range 200 {
		if err := client.Do(ctx, ibv.SendWR{Opcode: ibv.OpRDMARead, RemoteAddr: client.Peer.Addr, RKey: client.Peer.RKey, SGL: client.SGE(0, 64)}); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(client.Close(), server.Close(), dev.Close(), <-removed); err != nil {
		t.Error(err)
	}
	if out, err := exec.CommandContext(ctx, "rdma", "link", "add", name, "type", "rxe", "netdev", "rdma-rxe").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for !hasAddress(name) { // which comes a moment later
		if ctx.Err() != nil {
			t.Fatal("the device has no address")
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// hasAddress reports whether a device is there, with an address of IPv4.
func hasAddress(name string) bool {
	dev, err := ibv.Open(name)
	if err != nil {
		return false
	}
	defer dev.Close()
	gids, err := dev.GIDTable()
	return err == nil && slices.ContainsFunc(gids, func(g ibv.GIDEntry) bool { return g.GID.Addr().Is4() })
}
