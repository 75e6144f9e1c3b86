package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/cli"
	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
	"github.com/rpcrdma/rpcrdma/nfs"
)

// hostileTree has what no honest server has: names that are paths, directories in themselves,
// and directories without an end.
func hostileTree() *hostile {
	return &hostile{
		entries: map[string][]nfs.DirEntry{
			"/": {
				hostileEntry("good", "f", nfs.TypeReg), hostileEntry("tree", "tree", nfs.TypeDir),
				hostileEntry("endless", "huge", nfs.TypeDir), hostileEntry("stubborn", "stubborn", nfs.TypeDir),
				hostileEntry("self", "self", nfs.TypeDir), hostileEntry("lie", "lie", nfs.TypeReg),
				hostileEntry("giant", "giant", nfs.TypeReg), hostileEntry("link", "link", nfs.TypeLnk),
				hostileEntry("broken", "broken", nfs.TypeLnk), hostileEntry("odd", "f", nfs.FileType(99)),
			},
			"tree": {
				hostileEntry("../../up", "f", nfs.TypeReg), hostileEntry("/etc/passwd", "f", nfs.TypeReg), hostileEntry("", "f", nfs.TypeReg),
				hostileEntry(".", "f", nfs.TypeReg), hostileEntry("..", "tree", nfs.TypeDir), hostileEntry("nul\x00", "f", nfs.TypeReg),
				hostileEntry("good", "f", nfs.TypeReg), hostileEntry("loop", "tree", nfs.TypeDir), hostileEntry("\x1b[2J", "f", nfs.TypeReg),
			},
			"stubborn": {hostileEntry("stays", "f", nfs.TypeReg)},
			"self":     {hostileEntry("self", "self", nfs.TypeDir)},
		},
		data: "contents", huge: -1,
		links: map[string]string{"link": "../../../etc/passwd", "broken": "a\x00b"},
	}
}

// rm ends, whatever the server says, and sends back no invalid name.
func TestHostileRm(t *testing.T) {
	h := hostileTree()
	url := "nfs://" + h.start(t)
	mustSkip(t, []string{
		"../../up skipped: invalid file name", "/etc/passwd skipped: invalid file name", `"" skipped: invalid file name`,
		`"nul\x00" skipped: invalid file name`, "loop skipped: endless directory",
	}, "rm", "-r", url+"/tree")
	if n := h.called(nfs.ProcRemove); n != 2 {
		t.Errorf("%d REMOVEs, want those of two names", n)
	}
	mustSkip(t, []string{". skipped: directory not empty (NFS3ERR_NOTEMPTY)"}, "rm", "-r", url+"/stubborn")
	if n := h.called(nfs.ProcRmdir); n != 64 {
		t.Errorf("%d RMDIRs, want 64", n)
	}
	mustSkip(t, []string{"self skipped: endless directory"}, "rm", "-r", url+"/self")
	mustSkip(t, []string{". skipped: endless directory"}, "rm", "-r", url+"/endless")
}

// cp, get and the others end as well, and print nothing that a terminal would execute.
func TestHostileCopies(t *testing.T) {
	h := hostileTree()
	h.lies = map[string]uint64{"lie": 1 << 40, "giant": 1 << 63}
	for i := range h.entries["/"] {
		e := &h.entries["/"][i]
		if size := h.lies[e.Name]; size > 0 {
			e.Attr.Attr.Size = size
		}
	}
	url := "nfs://" + h.start(t)
	dir := t.TempDir()
	export := filepath.Join(dir, "export")
	testutil.Must(t, os.Mkdir(export, 0o755))
	s := startServer(t, "--dir", export, "--async")
	const short = "the file became shorter while it was copied"
	reasons := map[string]string{
		"tree/loop": "endless directory", "self/self": "endless directory", "endless": "endless directory: the server repeats cookie 0x",
		"odd": "it is a thing of unknown type 99", "lie": short, "giant": "file too large (NFS3ERR_FBIG)",
		"tree/../../up": "the name cannot be used here", "tree//etc/passwd": "the name cannot be used here",
		`"tree/nul\x00"`: "the name cannot be used here", "tree/": "the name cannot be used here",
	}
	for _, args := range [][]string{
		{"cp", "-r", url + "/", s.url("/cp")}, {"get", "-r", url + "/", filepath.Join(export, "get")},
		{"cp", "-r", "--resume", url + "/", s.url("/cp2")}, {"get", "-r", "--resume", url + "/", filepath.Join(export, "get2")},
	} {
		c := start(t, t.TempDir(), args...)
		status, text := c.wait(), c.stderr.String()
		for name, reason := range reasons {
			plain := strings.Contains(text, ": "+name+" skipped: "+reason)
			if !plain && (args[0] != "cp" || !strings.Contains(text, ": "+name+" skipped: reading it: "+reason)) {
				t.Errorf("%v: not named: %s, %s", args, name, reason)
			}
		}
		// And the link: cp hands one over as it is, and the server refuses the other.
		want := len(reasons) + 1
		if args[0] == "get" {
			want++
		}
		if status != 1 || strings.Count(text, "\n") != want+1 || !strings.HasSuffix(text, ": "+cli.Things(want)+" skipped, everything else is copied\n") {
			t.Errorf("%v: status %d, want %d skipped", args, status, want)
		}
		if strings.ContainsAny(text+c.stdout.String(), "\x1b\x00") {
			t.Errorf("%v prints control characters: %q", args, text)
		}
		if t.Failed() {
			t.Fatal(text)
		}
	}
	for name := range describe(t, dir) {
		if base := filepath.Base(name); base == "up" || base == "passwd" || strings.HasPrefix(base, ".rpcrdma-") || !strings.HasPrefix(name, "export") {
			t.Errorf("there is %s", name)
		}
	}
	mustFail(t, 1, short, "cp", url+"/lie", s.url("/lie"))
	mustFail(t, 1, "file too large (NFS3ERR_FBIG)", "cp", url+"/giant", s.url("/giant"))
	mustFail(t, 1, "file too large (NFS3ERR_FBIG)", "get", url+"/giant", filepath.Join(dir, "giant"))
	wantGone(t, filepath.Join(export, "lie"))
	wantGone(t, filepath.Join(dir, "giant"))
}

// Commands that only print, print only what a terminal may show.
func TestHostileNames(t *testing.T) {
	h := hostileTree()
	h.links["link"] = "\x1b[2J\n"
	url := "nfs://" + h.start(t)
	out := mustRun(t, "stat", url+"/link", url+"/odd")
	if !strings.Contains(out, `target       "\x1b[2J\n"`+"\n") || strings.Contains(out, "\x1b") {
		t.Errorf("stat prints %q", out)
	}
	// The target of a link that leads out is not requested.
	url = "nfs://" + hostileTree().start(t)
	mustFail(t, 1, "symbolic link leaves the export", "stat", "-L", url+"/link")
	mustFail(t, 1, "symbolic link leaves the export", "cat", url+"/link")
	mustFail(t, 1, "symbolic link leaves the export", "cp", url+"/link", url+"/x")
	mustFail(t, 1, "symbolic link leaves the export", "mkdir", "-p", url+"/link/x")
	mustFail(t, 1, "symbolic link leaves the export", "mv", url+"/good", url+"/link/x")
	mustFail(t, 1, "invalid file name", "cat", url+"/broken")
}

// A file that is replaced after it was listed is copied as it is now.
func TestReplacedFile(t *testing.T) {
	h := &hostile{
		entries: map[string][]nfs.DirEntry{"/": {
			hostileEntry("saved", "old", nfs.TypeReg), hostileEntry("gone", "old", nfs.TypeReg), hostileEntry("again", "old", nfs.TypeReg),
		}},
		data: "contents", denied: map[string]nfs.Status{"old": nfs.StatusStale, "older": nfs.StatusStale},
		now: map[string]string{"saved": "new", "again": "older"},
	}
	local := filepath.Join(t.TempDir(), "local")
	mustSkip(t, []string{"gone skipped: the file is gone (NFS3ERR_STALE)", "again skipped: the file is gone (NFS3ERR_STALE)"},
		"get", "-r", "nfs://"+h.start(t)+"/", local)
	if got := describe(t, local); len(got) != 1 {
		t.Errorf("copied: %q", got)
	}
	wantFile(t, filepath.Join(local, "saved"), "contents")
}
