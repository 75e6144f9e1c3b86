package grpcproxy_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/rpcrdma/rpcrdma/internal/testing/rdmatest"
	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
)

// python returns the beginning of a command line of testdata/peer.py. Without grpcio the test is skipped, or fails
// if RPCRDMA_REQUIRE has "grpc".
func python(t *testing.T) []string {
	t.Helper()
	var lacks []string
	for _, name := range []string{"python3", "/usr/bin/python3"} { // the first one may lack Debian's packages
		out, err := exec.Command(name, "-c", "import grpc").CombinedOutput()
		if err == nil {
			return []string{name, "testdata/peer.py"}
		}
		lines := strings.Split(strings.TrimSpace(string(out)), "\n")
		lacks = append(lacks, name+": "+err.Error()+" "+lines[len(lines)-1])
	}
	rdmatest.Lacking(t, "grpc", "Python lacks grpcio, which on Debian is package python3-grpcio: "+strings.Join(lacks, "; "))
	return nil
}

// cPlusPlus compiles testdata/peer.cc, as python.
func cPlusPlus(t *testing.T) []string {
	t.Helper()
	if testing.Short() {
		t.Skip("compiling it lasts, and this is -short")
	}
	flags, err := exec.Command("pkg-config", "--cflags", "--libs", "grpc++").Output()
	if err != nil {
		rdmatest.Lacking(t, "grpc", fmt.Sprintf("pkg-config finds no grpc++, which on Debian is package libgrpc++-dev: %v", err))
	}
	compiler, err := exec.LookPath("g++")
	if err != nil {
		rdmatest.Lacking(t, "grpc", fmt.Sprintf("C++ is not compiled: %v", err))
	}
	binary := filepath.Join(t.TempDir(), "peer")
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	args := append([]string{"-std=c++17", "-o", binary, "testdata/peer.cc"}, strings.Fields(string(flags))...)
	if out, err := exec.CommandContext(ctx, compiler, args...).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return []string{binary}
}

// TestLanguages: clients and servers in other languages, with their own implementations of gRPC, work with ours
// through the proxy.
func TestLanguages(t *testing.T) {
	for name, program := range map[string]func(*testing.T) []string{"Python": python, "C++": cPlusPlus} {
		t.Run(name, func(t *testing.T) {
			line := program(t)
			onBeds(t, false, func(t *testing.T, b bed) {
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				if b.reverse {
					callsOther(t, ctx, b, line)
				} else {
					calledByOther(t, ctx, b, line)
				}
			})
		})
	}
}

// calledByOther has a client in another language call our server.
func calledByOther(t *testing.T, ctx context.Context, b bed, line []string) {
	p := newPeer()
	_, proxy := through(t, b, p.register)
	args := append(line[1:len(line):len(line)], "client", proxy.addr)
	if out, err := exec.CommandContext(ctx, line[0], args...).CombinedOutput(); err != nil || string(out) != "ok\n" {
		t.Fatalf("%v\n%s", err, out)
	}
	for range 2 { // a deadline, and a cancellation
		<-p.ended
	}
}

// callsOther has our client call a server in another language.
func callsOther(t *testing.T, ctx context.Context, b bed, line []string) {
	cmd := exec.CommandContext(ctx, line[0], append(line[1:len(line):len(line)], "server")...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	in, err := cmd.StdinPipe()
	testutil.Must(t, err)
	out, err := cmd.StdoutPipe()
	testutil.Must(t, err, cmd.Start())
	defer func() {
		in.Close() // which ends it
		if err := cmd.Wait(); err != nil || t.Failed() {
			t.Errorf("%v\n%s", err, &stderr)
		}
	}()
	lines := bufio.NewScanner(out)
	lines.Scan()
	args := []string{b.option, "--reverse", lines.Text()}
	if b.adapter.Name() != "shm" {
		args = append(args, "--addr", b.addr)
	}
	cc := dialRDMA(t, b, start(t, args...).addr)

	ctx = metadata.NewOutgoingContext(ctx, metadata.MD{"x-text": {"one", "two"}, "x-raw-bin": {"\x00\xff\n"}})
	check := func(where string, md metadata.MD) {
		t.Helper()
		if strings.Join(md["x-text"], ",") != "one,two" || strings.Join(md["x-raw-bin"], ",") != "\x00\xff\n" {
			t.Errorf("%s: %v", where, md)
		}
	}
	var header, trailer metadata.MD
	for _, n := range []int{0, 100, 1 << 20} {
		m, got := wrapperspb.Bytes(bytes.Repeat([]byte("x"), n)), new(wrapperspb.BytesValue)
		if err := cc.Invoke(ctx, "/test.Peer/Echo", m, got, grpc.Header(&header), grpc.Trailer(&trailer)); err != nil || !proto.Equal(m, got) {
			t.Errorf("%d bytes: %v", n, err)
		}
		check("header", header)
		check("trailer", trailer)
	}
	err = cc.Invoke(ctx, "/test.Peer/Fail", new(wrapperspb.BytesValue), new(wrapperspb.BytesValue), grpc.Trailer(&trailer))
	if want := status.Convert(failure()); status.Code(err) != want.Code() || status.Convert(err).Message() != want.Message() {
		t.Errorf("%v, want %v", err, want)
	}
	check("trailer of an error", trailer)

	s, err := cc.NewStream(ctx, both, "/test.Peer/Echo")
	testutil.Must(t, err)
	for i := range byte(100) {
		got := new(wrapperspb.BytesValue)
		testutil.Must(t, s.SendMsg(wrapperspb.Bytes([]byte{i})), s.RecvMsg(got))
		if len(got.Value) != 1 || got.Value[0] != i {
			t.Fatalf("message %d is %v", i, got)
		}
	}
	testutil.Must(t, s.CloseSend())

	waits, cancel := context.WithCancel(ctx)
	s, err = cc.NewStream(waits, both, "/test.Peer/Wait")
	testutil.Must(t, err)
	_, err = s.Header()
	testutil.Must(t, err)
	cancel()
	if err := s.RecvMsg(new(wrapperspb.BytesValue)); status.Code(err) != codes.Canceled {
		t.Errorf("after cancellation: %v", err)
	}
	if lines.Scan(); lines.Text() != "canceled" {
		t.Errorf("the server says %q", lines.Text())
	}
}
