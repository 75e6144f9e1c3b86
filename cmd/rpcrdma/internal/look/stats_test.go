package look

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
)

// kernelOf returns the sample of a directory of testdata, at a time in seconds.
func kernelOf(t *testing.T, dir string, at int64) *Sample {
	t.Helper()
	s, err := kernelSample(os.DirFS(filepath.Join("testdata/stats", dir)), time.Unix(at, 0).UTC())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestKernelStatsGolden compares the output for files like the kernel's, made by hand after their
// formats: nfsd(7), nfsstat(8), mountstats(8) and the kernel's
// Documentation/ABI/stable/sysfs-class-infiniband.
func TestKernelStatsGolden(t *testing.T) {
	before, after := kernelOf(t, "before", 1_800_000_000), kernelOf(t, "after", 1_800_000_004)
	for _, tt := range []struct {
		name string
		o    statsOptions
		s    *Sample
	}{
		{"total.txt", statsOptions{}, before},
		{"all.txt", statsOptions{all: true}, before},
		{"total.json", statsOptions{json: true}, before},
		{"interval.txt", statsOptions{interval: time.Second}, after.since(before)},
		{"interval.json", statsOptions{interval: time.Second, json: true}, after.since(before)},
		{"nothing.txt", statsOptions{}, &Sample{}},
	} {
		var b bytes.Buffer
		if err := tt.o.print(tt.s, &b); err != nil {
			t.Errorf("%s: %v", tt.name, err)
		}
		testutil.Golden(t, filepath.Join("testdata/stats", tt.name), b.Bytes())
	}
}

// A kernel without any of it has nothing; one with a file that makes no sense is an error that
// names the file.
func TestKernelStatsFiles(t *testing.T) {
	if s, err := kernelSample(fstest.MapFS{}, time.Now()); err != nil || len(s.Sections) != 0 {
		t.Errorf("%+v, %v", s, err)
	}
	for _, tt := range []struct{ path, text, want string }{
		{"proc/net/rpc/nfsd", "proc3 22 1 2 3\n", "/proc/net/rpc/nfsd: the line proc3 has 4 numbers"},
		{"proc/net/rpc/nfsd", "rc 1 x 3\n", `/proc/net/rpc/nfsd: "x" is not a number`},
		{"proc/net/rpc/nfs", "rpc NaN\n", `/proc/net/rpc/nfs: "NaN" is not a number`},
		{"proc/self/mountstats", "device a mounted on /b with fstype nfs\nbytes: 1e300\n", "/proc/self/mountstats: \"1e300\" is not a number"},
		{"proc/net/rpc/nfs", strings.Repeat("x", maxProcFile+1), "is too long"},
	} {
		_, err := kernelSample(fstest.MapFS{tt.path: {Data: []byte(tt.text)}}, time.Now())
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%.40q: %v, want %q", tt.text, err, tt.want)
		}
	}
}

// FuzzKernelStats has files of the kernel that are not.
func FuzzKernelStats(f *testing.F) {
	for _, path := range []string{"proc/net/rpc/nfsd", "proc/net/rpc/nfs", "proc/self/mountstats"} {
		b, err := os.ReadFile(filepath.Join("testdata/stats/before", path))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(b))
	}
	f.Fuzz(func(t *testing.T, text string) {
		for _, path := range []string{"proc/net/rpc/nfsd", "proc/net/rpc/nfs", "proc/self/mountstats", "sys/class/infiniband/x/ports/1/counters/y"} {
			s, err := kernelSample(fstest.MapFS{path: {Data: []byte(text)}}, time.Now())
			if err != nil {
				continue
			}
			for _, o := range []statsOptions{{}, {json: true}, {all: true}} {
				var b bytes.Buffer
				if err := o.print(s.since(s), &b); err != nil {
					t.Fatal(err)
				}
				if strings.ContainsAny(b.String(), "\x1b\x00") {
					t.Errorf("%q reaches the terminal", b.String())
				}
			}
		}
	})
}

// The error for a server that is not ours says so, whatever it answers.
func TestStatsOfStrangers(t *testing.T) {
	var answer http.HandlerFunc
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { answer(w, r) }))
	defer web.Close()
	addr := strings.TrimPrefix(web.URL, "http://")
	for _, tt := range []struct {
		answer http.HandlerFunc
		want   string
	}{
		{func(w http.ResponseWriter, r *http.Request) { http.NotFound(w, r) }, "is not the --metrics-addr of 'rpcrdma serve': it answers 404"},
		{func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://192.0.2.1/", http.StatusFound)
		}, "it answers 302"},
		{func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "<html>\x1b[31m") }, "it answers 200 OK"},
		{jsonAnswer(`{"time": 5}`), "is not that of 'rpcrdma serve'"},
		{jsonAnswer(`{"procedures": [{"sum": 1e300}]}`), "is not that of 'rpcrdma serve'"},
		{jsonAnswer(`["` + strings.Repeat("x", maxStats) + `"]`), "too long"},
	} {
		answer = tt.answer
		_, err := (&statsOptions{}).fetch(t.Context(), addr)
		if err == nil || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "\x1b") {
			t.Errorf("%v, want %q", err, tt.want)
		}
	}
	answer = jsonAnswer(`{"procedures": [{"program": "\u001b[31m", "calls": 1}], "totals": {"counters": {"\u0007": 1}}}`)
	var b bytes.Buffer
	s, err := (&statsOptions{}).fetch(t.Context(), addr)
	testutil.Must(t, err, (&statsOptions{}).print(s, &b))
	if strings.ContainsAny(b.String(), "\x1b\a") {
		t.Errorf("%q", b.String())
	}
}

func jsonAnswer(text string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, text)
	}
}

// A server that does not answer in time is an error that says so, and an interrupt none.
func TestStatsTime(t *testing.T) {
	silent := func(ctx context.Context) (*Sample, error) { <-ctx.Done(); return nil, ctx.Err() }
	o := statsOptions{timeout: time.Millisecond}
	if err := o.run(t.Context(), silent, nil); err == nil || err.Error() != "no answer in 1ms" {
		t.Errorf("%v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	n := 0
	o = statsOptions{interval: time.Millisecond}
	err := o.run(ctx, func(context.Context) (*Sample, error) {
		if n++; n == 3 {
			cancel()
		}
		return &Sample{Time: time.Now()}, nil
	}, func(*Sample) error { return nil })
	if err != nil || n < 3 {
		t.Errorf("%d samples, %v", n, err)
	}
	// The clock of a server that is set back makes no interval, and stops nothing.
	begin := time.Unix(1<<30, 0)
	times := []time.Duration{0, 0, time.Second, -time.Hour, -time.Hour + time.Second}
	n = 0
	var seconds []float64
	o = statsOptions{interval: time.Millisecond, count: 2}
	err = o.run(t.Context(), func(context.Context) (*Sample, error) {
		n++
		return &Sample{Time: begin.Add(times[n-1])}, nil
	}, func(s *Sample) error { seconds = append(seconds, s.Seconds); return nil })
	if err != nil || !slices.Equal(seconds, []float64{1, 1}) {
		t.Errorf("%v, %v", seconds, err)
	}
	o = statsOptions{interval: time.Millisecond}
	broken := errors.New("broken")
	n = 0
	err = o.run(t.Context(), func(context.Context) (*Sample, error) {
		if n++; n == 2 {
			return nil, broken
		}
		return &Sample{Time: time.Now()}, nil
	}, func(*Sample) error { return nil })
	if !errors.Is(err, broken) {
		t.Errorf("%v", err)
	}
}

// Counters that have begun anew count from there, and what was not there before from zero.
func TestSince(t *testing.T) {
	now := time.Now()
	of := func(at time.Time, calls, bytes float64) *Sample {
		return &Sample{Time: at, Sections: []*section{{
			Name: "a", Figures: map[string]float64{"bytes": bytes}, Levels: map[string]float64{"open": bytes}, Ops: []operation{{Name: "op", Calls: calls, Took: calls / 10}},
		}}}
	}
	for _, tt := range []struct{ before, after *Sample }{
		{of(now, 10, 100), of(now.Add(2*time.Second), 15, 300)},
	} {
		b, err := json.Marshal(tt.after.since(tt.before).Sections)
		if want := `[{"name":"a","figures":{"bytes":200},"levels":{"open":300},"operations":[{"name":"op","calls":5,"took":0.5}]}]`; err != nil || string(b) != want {
			t.Errorf("%s, want %s", b, want)
		}
	}
	b, err := json.Marshal(of(now, 3, 7).since(of(now, 10, 100)).Sections)
	if want := `[{"name":"a","figures":{"bytes":7},"levels":{"open":7},"operations":[{"name":"op","calls":3,"took":0.3}]}]`; err != nil || string(b) != want {
		t.Errorf("%s, want %s", b, want)
	}
	b, err = json.Marshal(of(now, 3, 7).since(&Sample{}).Sections)
	if want := `[{"name":"a","figures":{"bytes":7},"levels":{"open":7},"operations":[{"name":"op","calls":3,"took":0.3}]}]`; err != nil || string(b) != want {
		t.Errorf("%s, want %s", b, want)
	}
}
