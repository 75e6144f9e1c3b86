package interop

import (
	"bytes"
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rpcrdma/rpcrdma/iwarp"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/transport"
)

// TestTshark checks a captured conversation with Wireshark's dissectors for MPA, DDP, RDMAP
// and RPC-over-RDMA, which are independent implementations of the same RFCs.
func TestTshark(t *testing.T) {
	tshark, err := exec.LookPath("tshark")
	if err != nil {
		t.Skip("tshark is not installed: ", err)
	}
	for _, cfg := range []iwarp.Config{{}, {CRC: true}, {MaxFPDU: 1448}} {
		t.Run(fmt.Sprintf("CRC=%v MaxFPDU=%d", cfg.CRC, cfg.MaxFPDU), func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "conversation.pcap")
			calls := record(t, cfg, path)
			for _, p := range problems(t, tshark, path, cfg, calls) {
				t.Error(p)
			}
			// The check can fail: corrupt one byte in the middle of the capture.
			b, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			at := bytes.Index(b, []byte("\x00\x00\x00\x02\x20\x00\x00\x55")) // RPC version and program of a call
			if at < 0 {
				t.Fatal("no call in the capture")
			}
			b[at-9] ^= 0x40 // the RDMA header's last word: the reply chunk's discriminator
			if err := os.WriteFile(path, b, 0o600); err != nil {
				t.Fatal(err)
			}
			if len(problems(t, tshark, path, cfg, calls)) == 0 {
				t.Error("a wrong byte goes unnoticed")
			}
		})
	}
}

const prog = 0x20000055

// record captures a conversation with all messages of version 1, and returns the kinds of
// calls.
func record(t *testing.T, cfg iwarp.Config, path string) rpc.Stats {
	provider := iwarp.New(cfg)
	s, err := transport.NewServer(nil)
	if err != nil {
		t.Fatal(err)
	}
	err = s.Register(rpc.Program{Number: prog, Low: 1, High: 1,
		Inline: func(_, _ uint32) bool { return true },
		Handler: rpc.HandlerFunc(func(_ context.Context, req *rpc.Request, res *rpc.Response) {
			d := xdr.NewDecoder(req.Args)
			data := d.Opaque(1 << 20)
			switch req.Proc {
			case 1:
				res.AddItem(data, nil)
			case 2:
				res.Results = xdr.AppendOpaque(res.Results, data)
			}
		})})
	if err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	l, err := s.Listen(ctx, provider, "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() }) // without the right to capture no test serves it
	c := startCapture(t, l.Addr().(*net.TCPAddr).Port, path)
	defer c.close()
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	// tshark does not support version 2.
	cl, err := transport.Dial(ctx, provider, l.Addr().String(), &transport.ClientConfig{Config: transport.Config{Version: transport.Version1}})
	if err != nil {
		t.Fatal(err)
	}
	if err := cl.Null(ctx, prog, 1); err != nil {
		t.Fatal(err)
	}
	data := bytes.Repeat([]byte("wire"), 50_000)
	for _, n := range []int{0, 5, 1000, 5000, 65_537, len(data)} {
		count := xdr.AppendUint32(nil, uint32(n))
		buf := make([]byte, len(data)+1)
		for _, call := range []rpc.Call{
			// read chunk, write chunk
			{Proc: 1, Args: count, ReadItems: []rpc.ReadItem{{Offset: 4, Data: data[:n]}},
				WriteItems: []rpc.WriteItem{{Buf: buf[:n+1]}}, MaxResults: 8},
			// long call, reply chunk
			{Proc: 2, Args: xdr.AppendOpaque(nil, data[:n]), MaxResults: n + 8},
			// only a read chunk, which the reply invalidates
			{Proc: 3, Args: count, ReadItems: []rpc.ReadItem{{Offset: 4, Data: data[:n]}}},
			// read chunk, reply chunk
			{Proc: 2, Args: count, ReadItems: []rpc.ReadItem{{Offset: 4, Data: data[:n]}}, MaxResults: n + 8},
		} {
			call.Prog, call.Vers = prog, 1
			if err := cl.Call(ctx, &call); err != nil {
				t.Fatal(err)
			}
		}
	}
	// ERR_CHUNK: a long reply without a reply chunk.
	var re *rpc.RDMAError
	if err := cl.Call(ctx, &rpc.Call{Prog: prog, Vers: 1, Proc: 2, Args: xdr.AppendOpaque(nil, data[:9000])}); !errors.As(err, &re) {
		t.Fatalf("call returned %v, want an RDMAError", err)
	}
	stats := cl.Stats()
	if err := errors.Join(cl.Shutdown(ctx), s.Shutdown(ctx)); err != nil {
		t.Fatal(err)
	}
	<-served
	if n := c.drain(t); n < 50 {
		t.Fatalf("captured %d packets", n)
	}
	return stats
}

// expected are complaints that do not matter: those about TCP, and about revision 2 of MPA
// with its additional flag (RFC 6581), since the dissector supports only RFC 5044.
var expected = []string{
	"TCP window", "TCP Zero Window", "TCP window update", "D-SACK", "Connection establish", "Connection finish", "This frame ",
	"Res field is NOT set to zero", "Rev field is NOT set to one",
}

// problems reads the capture with tshark and returns what is wrong with it.
func problems(t *testing.T, tshark, path string, cfg iwarp.Config, calls rpc.Stats) (wrong []string) {
	t.Helper()
	bad := func(format string, args ...any) { wrong = append(wrong, fmt.Sprintf(format, args...)) }
	run := func(args ...string) []byte {
		var stderr strings.Builder
		cmd := exec.Command(tshark, append([]string{"-r", path, "-n"}, args...)...)
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("tshark: %v\n%s", err, stderr.String())
		}
		return out
	}
	// One row for each packet: decoded fields and complaints. Several values of a field are
	// separated by ";".
	rows, err := csv.NewReader(bytes.NewReader(run(
		"-T", "fields", "-E", "separator=,", "-E", "quote=d", "-E", "occurrence=a", "-E", "aggregator=;",
		"-e", "frame.number", "-e", "frame.protocols", "-e", "_ws.malformed", "-e", "_ws.expert.message",
		"-e", "iwarp_rdma.opcode", "-e", "rpcordma.msg_type", "-e", "iwarp_mpa.req", "-e", "iwarp_mpa.rep",
	))).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	kinds, ops := map[string]int{}, map[string]int{}
	setup := 0
	for _, r := range rows {
		if r[2] != "" || strings.Contains(r[1], "malformed") {
			bad("packet %s is malformed: %v", r[0], r)
		}
		for _, m := range strings.Split(r[3], ";") {
			if !slices.ContainsFunc(expected, func(e string) bool { return strings.HasPrefix(m, e) }) && m != "" {
				bad("packet %s: %s", r[0], m)
			}
		}
		for _, v := range strings.Split(r[4], ";") {
			ops[v]++
		}
		for _, v := range strings.Split(r[5], ";") {
			kinds[v]++
		}
		if r[6] != "" || r[7] != "" {
			setup++
		}
	}
	if setup != 2 {
		bad("%d MPA set-up frames, want a request and a reply", setup)
	}
	// RFC 5666 section 4.1: RDMA_MSG 0, RDMA_NOMSG 1, RDMA_ERROR 4.
	if n := kinds["0"] + kinds["1"] + kinds["4"]; uint64(n) != 2*calls.Calls {
		bad("%d RPC-over-RDMA messages, want %d calls and as many answers: %v", n, calls.Calls, kinds)
	}
	if n := uint64(kinds["1"]); n != calls.LongCall+calls.ReplyChunk {
		bad("%d RDMA_NOMSG, want %d long calls and %d long replies", n, calls.LongCall, calls.ReplyChunk)
	}
	if kinds["4"] != 1 {
		bad("%d RDMA_ERROR, want 1", kinds["4"])
	}
	// RFC 5040 section 4.3: Write 0, Read Request 1, Read Response 2, Send 3, Send
	// with Invalidate 4.
	for _, op := range []string{"0x00", "0x01", "0x02", "0x03", "0x04"} {
		if ops[op] == 0 {
			bad("no RDMAP message with opcode %s: %v", op, ops)
		}
	}
	if cfg.CRC {
		text := string(run("-V"))
		good := strings.Count(text, "(Good CRC32)")
		if all := strings.Count(text, "CRC check:"); good != all || good < int(calls.Calls) {
			bad("%d of %d CRCs are good", good, all)
		}
	}
	t.Logf("%d packets, messages %v, RDMAP opcodes %v", len(rows), kinds, ops)
	return wrong
}
