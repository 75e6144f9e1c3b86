package shm

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/fabric/fabrictest"
	"github.com/rpcrdma/rpcrdma/internal/testing/leak"
	"github.com/rpcrdma/rpcrdma/iwarp"
)

var kills = flag.Int("kills", 30, "how many of TestKilled, of each end")

// childVariable makes this program a peer: "server PATH" or "client PATH".
const childVariable = "RPCRDMA_SHM_PEER"

func TestMain(m *testing.M) {
	flag.Parse()
	if role := os.Getenv(childVariable); role != "" {
		fmt.Fprintln(os.Stderr, peer(role))
		os.Exit(1)
	}
	os.Exit(leak.Main(m))
}

// peer is a process that serves, or calls, until it is killed.
func peer(role string) error {
	role, path, _ := strings.Cut(role, " ")
	p := New(Config{})
	if role == "client" {
		t, err := talk(p, path)
		for err == nil {
			err = t.say(fabrictest.Pattern(echoLen, 1))
		}
		return err
	}
	l, err := p.Listen(context.Background(), path, fabric.ConnAttr{})
	if err != nil {
		return err
	}
	fmt.Println("listening")
	for {
		c, err := l.Accept(context.Background())
		if err != nil {
			return err
		}
		go new(echoer).serve(c)
	}
}

func startPeer(t *testing.T, role string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childVariable+"="+role)
	cmd.Stderr = os.Stderr
	if strings.HasPrefix(role, "server") {
		out, err := cmd.StdoutPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err == nil {
			_, err = out.Read(make([]byte, 64))
		}
		if err != nil {
			t.Fatal(err)
		}
		return cmd
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd
}

// TestKilled: the end of a process is the end of its connections, at any moment, noticed within 100 ms, and
// nothing of it is left here.
func TestKilled(t *testing.T) {
	leak.Check(t)
	const soon = 100 * time.Millisecond
	before := mappings(t)
	moment := func() { time.Sleep(time.Duration(rand.IntN(5000)) * time.Microsecond) }
	var worst time.Duration
	took := func(what string, since time.Time, err error) {
		t.Helper()
		var ce *fabric.ConnError
		unmade := errors.As(err, new(*iwarp.SetupError)) // it is killed before its request is accepted
		if !unmade && (!errors.As(err, &ce) || !ce.Remote) {
			t.Errorf("%s is killed: %v", what, err)
		}
		d := time.Since(since)
		if worst = max(worst, d); d > soon && !raceEnabled {
			t.Errorf("the end of %s is noticed after %v", what, d)
		}
	}
	path := filepath.Join(t.TempDir(), "s")

	p := New(Config{})
	var last *talker   // of a server that has been killed, which is no neighbor of the next
	for range *kills { // also over a path that the one before has left there
		server := startPeer(t, "server "+path)
		client, err := talk(p, path)
		if err != nil {
			t.Fatal(err)
		}
		ended := make(chan error)
		go func() {
			var err error
			for err == nil {
				err = client.say(fabrictest.Pattern(echoLen, 3))
			}
			ended <- err
		}()
		moment()
		server.Process.Kill()
		server.Wait()
		at := time.Now()
		err = <-ended
		for err != nil && !errors.As(err, new(*fabric.ConnError)) { // a flushed completion comes first
			_, err = client.Poll(make([]fabric.WC, 4))
		}
		took("a server", at, err)
		if last != nil {
			last.Close()
		}
		last = client
	}
	last.Close()

	e := startEchoer(t, p)
	for range *kills {
		client := startPeer(t, "client "+e.l.Addr().String())
		for p.OpenObjects().Conns == 0 {
			time.Sleep(100 * time.Microsecond)
		}
		moment()
		client.Process.Kill()
		client.Wait()
		took("a client", time.Now(), <-e.ends)
	}
	p.Close()
	if n := mappings(t); n != before {
		t.Errorf("%d mappings, %d before", n, before)
	}
	t.Logf("the latest after %v", worst)
}
