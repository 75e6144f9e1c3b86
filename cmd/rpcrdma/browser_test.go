package main

import (
	"bytes"
	"context"
	"errors"
	"image"
	"image/color"
	"image/draw"
	"image/png"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/cmdtest"
	"github.com/rpcrdma/rpcrdma/internal/testing/rdmatest"
	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
	"github.com/rpcrdma/rpcrdma/iwarp"
	"github.com/rpcrdma/rpcrdma/nfs"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/transport"
)

// chromium returns the path of the browser. Without one the test is skipped, or fails if
// RPCRDMA_REQUIRE has "chromium".
func chromium(t *testing.T) string {
	t.Helper()
	for _, name := range []string{"chromium-headless-shell", "chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	rdmatest.Lacking(t, "chromium", "no Chromium is in PATH: on Debian, package chromium-headless-shell has one")
	return ""
}

// browse runs the browser on a page, and returns its standard output.
func browse(t *testing.T, browser, url string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	args = append([]string{
		"--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking", "--no-first-run",
		"--user-data-dir=" + t.TempDir(),
	}, append(args, url)...)
	cmd := exec.CommandContext(ctx, browser, args...)
	cmd.WaitDelay = 5 * time.Second
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s %s: %v\n%s", browser, strings.Join(args, " "), err, &stderr)
	}
	return stdout.String()
}

// load makes calls to a server until the test ends: reads that go by RDMA, small ones, and some
// that fail.
func load(t *testing.T, s *testServer) {
	ctx, cancel := context.WithCancel(t.Context())
	var callers sync.WaitGroup
	t.Cleanup(func() { cancel(); callers.Wait() })
	for range 3 {
		c := s.dialNFS(t)
		for range 6 {
			callers.Go(func() {
				buf := make([]byte, 1<<20)
				for n := 0; ctx.Err() == nil; n++ {
					if err := some(ctx, c, n, buf); err != nil && ctx.Err() == nil {
						t.Errorf("the load: %v", err)
						return
					}
				}
			})
		}
	}
	stranger, err := transport.Dial(ctx, iwarp.New(iwarp.Config{}), s.addr, nil)
	testutil.Must(t, err)
	defer stranger.Close()
	for proc := range uint32(3) {
		if stranger.Call(ctx, &rpc.Call{Prog: nfs.Program, Vers: 3, Proc: 100 + proc}) == nil || stranger.Call(ctx, &rpc.Call{Prog: 200000 + proc, Vers: 1, Proc: 1}) == nil {
			t.Error("a call that is none succeeds")
		}
	}
}

// some makes some calls, for the n-th time.
func some(ctx context.Context, c *nfs.Client, n int, buf []byte) error {
	file, err := c.Lstat(ctx, "/file")
	if err != nil {
		return err
	}
	if n%50 == 0 {
		_, err := c.Lstat(ctx, "/missing")
		return notExist(err)
	}
	_, _, err = c.Read(ctx, file.Handle, 0, buf)
	return err
}

func notExist(err error) error {
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

// A browser shows the page of a server under load, without an error of its policy, and draws what
// the style colors. RPCRDMA_PICTURE is where to keep the picture: docs/img/status.png is one.
func TestStatusInBrowser(t *testing.T) {
	browser := chromium(t)
	dir := t.TempDir()
	testutil.WriteFiles(t, dir, map[string]string{"file": randomText(1, 1<<20)})
	s := startServer(t, "--dir", dir, "--metrics-addr", "127.0.0.1:0")
	load(t, s)
	testutil.Eventually(t, "there have been calls", func() bool {
		_, text := cmdtest.Fetch(t, "GET", s.http+"/debug/rpcrdma", "")
		return strings.Contains(text, "NFS 3 READ") && strings.Contains(text, "prog_unavail")
	})

	dom := browse(t, browser, s.http+"/debug/rpcrdma?refresh=600", "--dump-dom")
	for _, want := range []string{
		`<table id="latency">`, "<td>NFS 3 READ</td>", `<svg width="243"`, "<rect ", `<table id="connections">`, "<td>iwarp</td>",
		`<table id="slowest">`, `<table id="failed">`, "proc_unavail", "program 200002 version 1", `<dl id="adapter">`, "connections open",
	} {
		if !strings.Contains(dom, want) {
			t.Errorf("the page has no %s", want)
		}
	}
	if t.Failed() {
		t.Logf("%.20000s", dom)
	}

	picture := filepath.Join(t.TempDir(), "status.png")
	browse(t, browser, s.http+"/debug/rpcrdma", "--window-size=1400,900", "--hide-scrollbars", "--screenshot="+picture)
	b, err := os.ReadFile(picture)
	testutil.Must(t, err)
	img, err := png.Decode(bytes.NewReader(b))
	testutil.Must(t, err)
	blue, total := 0, img.Bounds()
	for y := total.Min.Y; y < total.Max.Y; y++ {
		for x := total.Min.X; x < total.Max.X; x++ {
			if color.RGBAModel.Convert(img.At(x, y)) == (color.RGBA{0x2f, 0x6f, 0xab, 0xff}) {
				blue++
			}
		}
	}
	// A bar is 8 pixels wide and at least 2 high. Without the style they would be black.
	if blue < 200 || total.Dx() != 1400 {
		t.Errorf("%d pixels of bars in a picture of %v", blue, total)
	}
	if keep := os.Getenv("RPCRDMA_PICTURE"); keep != "" {
		testutil.Must(t, os.WriteFile(keep, small(t, img), 0o666))
	}
	if status, _ := cmdtest.Fetch(t, "GET", s.http+"/debug/rpcrdma", "attacker.example"); status != 403 {
		t.Errorf("a page of another host gets %d", status)
	}
}

// small encodes a picture with its 64 most frequent colors.
func small(t *testing.T, img image.Image) []byte {
	t.Helper()
	count := make(map[color.Color]int)
	for y := img.Bounds().Min.Y; y < img.Bounds().Max.Y; y++ {
		for x := img.Bounds().Min.X; x < img.Bounds().Max.X; x++ {
			count[color.RGBAModel.Convert(img.At(x, y))]++
		}
	}
	colors := slices.SortedFunc(maps.Keys(count), func(a, b color.Color) int { return count[b] - count[a] })
	paletted := image.NewPaletted(img.Bounds(), colors[:min(len(colors), 64)])
	draw.Draw(paletted, paletted.Rect, img, img.Bounds().Min, draw.Src)
	var b bytes.Buffer
	testutil.Must(t, (&png.Encoder{CompressionLevel: png.BestCompression}).Encode(&b, paletted))
	return b.Bytes()
}
