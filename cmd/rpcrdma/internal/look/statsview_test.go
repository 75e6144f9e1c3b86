package look

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/rpcrdma/rpcrdma/rpc/status"
)

// statusOf is the snapshot of a server with some connections, calls and procedures.
func statusOf(n int, at time.Time) *status.Snapshot {
	s := &status.Snapshot{Time: at, Totals: status.Totals{Open: n, Executing: int64(n), ExposedBytes: 3 << 20, HeldBytes: 100}}
	for i := range n {
		s.Conns = append(s.Conns, status.Conn{ID: uint64(i), Peer: fmt.Sprintf("10.0.0.%d:5", i), Provider: "iwarp", Version: 2, InlineSend: 4096, InlineRecv: 8192,
			RemoteInvalidation: true, Credits: 32, Executing: 3, ExposedBytes: 1 << 30, Counters: map[string]uint64{"calls": uint64(at.Unix()) * 10}})
		s.Calls = append(s.Calls, status.Call{Program: "NFS", Vers: 3, Procedure: "READ", XID: 0xabc, Executed: true, Peer: "10.0.0.1:5",
			Total: status.Seconds(1500 * time.Millisecond), Request: status.Travel{Bytes: 120, By: "message"}})
		classes := make([]uint64, 30)
		classes[3], classes[10] = uint64(at.Unix())*99, uint64(at.Unix()) // of less than 8 µs and 1024 µs
		s.Procedures = append(s.Procedures, status.Procedure{Program: "NFS", Vers: 3, Procedure: fmt.Sprintf("P%d", i), Executed: true,
			Calls: uint64(at.Unix()) * 100, Total: status.Seconds(at.Unix() * int64(time.Millisecond)), Classes: classes})
	}
	return s
}

// sampleOf is an interval of two seconds of that.
func sampleOf(n int) *Sample {
	before, after := statusSample("server:1", statusOf(n, time.Unix(100, 0))), statusSample("server:1", statusOf(n, time.Unix(102, 0)))
	return after.since(before)
}

// TestStatsScreen: what a screen shows, whatever its size is.
func TestStatsScreen(t *testing.T) {
	var o statsOptions
	text := strings.Join(o.screen(sampleOf(2), 200, 40), "\n")
	for _, want := range []string{
		"server server:1  00:01:42 UTC, 2 s  (q ends)\n",
		"connections: 2 open, 0/s opened, 0/s rejected; messages refused: 0/s\n",
		"calls: 2 executing, 0 waiting for a reply, 0/s failed; waits for a credit: 0/s, for memory: 0/s\n",
		"memory: 3 MiB exposed, 100 B held by calls\n\n",
		"PROCEDURE  CALLS/s  FAILED/s  MEAN  P99   WAITED\nNFS 3 P0   100      0         10µs  <8µs  -\n",
		"IN FLIGHT  CALL        PEER             XID       BYTES  BY\n1.5s       NFS 3 READ  from 10.0.0.1:5  00000abc  120 B  message\n",
		"CONNECTION  AGE  AGREED                    CALLS/s  CREDITS  EXPOSED  HELD\n10.0.0.0:5  0s   iwarp v2 4096/8192 inval  10       3/32     1 GiB    0 B\n",
	} {
		if !strings.Contains(text+"\n", want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	for _, n := range []int{0, 1, 30} {
		for height := 1; height < 120; height++ {
			lines := o.screen(sampleOf(n), 50, height)
			if len(lines) > height || n == 30 && height < 90 && height > 12 && len(lines) != height {
				t.Errorf("%d lines of %d, %d of each", len(lines), height, n)
			}
			for _, line := range lines {
				if len([]rune(line)) > 50 {
					t.Errorf("%d characters: %q", len([]rune(line)), line)
				}
			}
			if text := strings.Join(o.screen(sampleOf(n), 500, height), "\n"); n == 30 && height > 12 && height < 80 &&
				strings.Count(text, " more)") != 3 && height < 60 {
				t.Errorf("of %d lines:\n%s", height, text)
			}
		}
	}
	if lines := o.screen(kernelOf(t, "before", 1_800_000_000), 80, 5); len(lines) != 5 || !strings.HasSuffix(lines[0], "(q ends)") {
		t.Errorf("the kernel's: %q", lines)
	}
}

// FuzzStatsScreen has servers that tell anything.
func FuzzStatsScreen(f *testing.F) {
	b, err := json.Marshal(statusOf(2, time.Unix(100, 0)))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(string(b), string(b), 80, 24)
	f.Add(`{"connections": [{"peer": "\u001b[31m", "provider": "\u0007"}], "calls_in_flight": [{"program": "a\tb\n", "peer": "\u009b"}]}`, "{}", 200, 40)
	f.Add(`{"procedures": [{"program": "x", "calls": 18446744073709551615, "classes": [18446744073709551615, 1]}]}`, `{"procedures": [{"program": "x", "calls": 1, "classes": []}]}`, 1, 1)
	f.Fuzz(func(t *testing.T, now, was string, width, height int) {
		var o statsOptions
		var a, b status.Snapshot
		if json.Unmarshal([]byte(was), &a) != nil || json.Unmarshal([]byte(now), &b) != nil {
			return
		}
		width, height = 1+max(width, -width)%300, 1+max(height, -height)%300
		if width <= 0 || height <= 0 {
			return
		}
		lines := o.screen(statusSample("s", &b).since(statusSample("s", &a)), width, height)
		if len(lines) > height {
			t.Errorf("%d lines of %d", len(lines), height)
		}
		for _, line := range lines {
			if len([]rune(line)) > width || strings.ContainsFunc(line, unicode.IsControl) {
				t.Errorf("%q", line)
			}
		}
	})
}
