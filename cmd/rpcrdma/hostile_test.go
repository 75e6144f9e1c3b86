package main

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/tree"
	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
	"github.com/rpcrdma/rpcrdma/iwarp"
	"github.com/rpcrdma/rpcrdma/nfs"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/transport"
)

// A hostile is an NFS server with directories that hold what it is given.
type hostile struct {
	entries map[string][]nfs.DirEntry // by the handle of the directory
	data    string
	links   map[string]string     // by handle: what a link says, instead of data
	denied  map[string]nfs.Status // by handle: what READDIRPLUS, READ and READLINK fail with
	huge    int                   // entries of the directory with the handle "huge", in pages
	sizes   map[string]int        // by handle: files of zeros, instead of data
	now     map[string]string     // by name: handle of the file that has replaced the one that is listed
	lies    map[string]uint64     // by handle: sizes of files that have data all the same

	mu      sync.Mutex
	changes map[string]int    // by handle: READs that find a file changed since the last one
	version map[string]uint32 // by handle: seconds of mtime and ctime
	calls   map[string]int    // by procedure
}

// called returns the number of calls of a procedure.
func (h *hostile) called(proc uint32) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.calls[nfs.ProcName(proc)]
}

// attr returns the attributes of a file.
func (h *hostile) attr(fh string, kind nfs.FileType) nfs.Attr {
	h.mu.Lock()
	defer h.mu.Unlock()
	a := hostileAttr(kind)
	if size, ok := h.sizes[fh]; ok {
		a.Type, a.Size = nfs.TypeReg, uint64(size)
		a.MTime.Sec, a.CTime.Sec = h.version[fh], h.version[fh]
	}
	if size, ok := h.lies[fh]; ok {
		a.Type, a.Size = nfs.TypeReg, size
	}
	return a
}

// read changes a file that is to change.
func (h *hostile) read(fh string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.changes[fh] > 0 {
		h.changes[fh]--
		if h.version == nil {
			h.version = make(map[string]uint32)
		}
		h.version[fh]++
	}
}

// start serves h until the test ends, and returns the address.
func (h *hostile) start(t *testing.T) string {
	t.Helper()
	server, err := transport.NewServer(nil)
	testutil.Must(t, err)
	for _, prog := range []uint32{nfs.Program, nfs.MountProgram} {
		testutil.Must(t, server.Register(rpc.Program{Number: prog, Low: 3, High: 3, Handler: h}))
	}
	l, err := server.Listen(t.Context(), iwarp.New(iwarp.Config{}), "127.0.0.1:0")
	testutil.Must(t, err)
	var serving sync.WaitGroup
	serving.Go(func() { server.Serve(l) })
	t.Cleanup(func() {
		server.Close()
		serving.Wait()
	})
	return l.Addr().String()
}

// failed is the results of a procedure that has failed and has one post_op_attr.
func failed(b []byte, status nfs.Status) []byte {
	return xdr.AppendBool(xdr.AppendUint32(b, uint32(status)), false)
}

func hostileEntry(name, handle string, kind nfs.FileType) nfs.DirEntry {
	fh, _ := nfs.NewFileHandle([]byte(handle))
	return nfs.DirEntry{
		FileID: 1, Name: name, Cookie: 1,
		Attr:   nfs.PostOpAttr{Present: true, Attr: hostileAttr(kind)},
		Handle: nfs.PostOpHandle{Present: true, Handle: fh},
	}
}

func hostileAttr(kind nfs.FileType) nfs.Attr {
	return nfs.Attr{Type: kind, Mode: 0o777, Nlink: 1, Size: 8, FileID: 1}
}

func (h *hostile) ServeRPC(_ context.Context, req *rpc.Request, res *rpc.Response) {
	d := xdr.NewDecoder(req.Args)
	if req.Prog == nfs.MountProgram {
		if req.Proc == nfs.MountProcExport {
			r := nfs.ExportRes{Exports: []nfs.Export{{Dir: "/"}}}
			res.Results = r.Append(res.Results)
			return
		}
		fh, _ := nfs.NewFileHandle([]byte("/"))
		r := nfs.MntRes{Handle: fh}
		res.Results = r.Append(res.Results)
		return
	}
	var fh nfs.FileHandle
	fh.Decode(&d)
	if status := h.denied[string(fh.Bytes())]; status != nfs.StatusOK {
		res.Results = failed(res.Results, status)
		return
	}
	h.mu.Lock()
	if h.calls == nil {
		h.calls = make(map[string]int)
	}
	h.calls[nfs.ProcName(req.Proc)]++
	h.mu.Unlock()
	switch req.Proc {
	case nfs.ProcLookup:
		name := d.String(nfs.MaxName)
		for _, e := range h.entries[string(fh.Bytes())] {
			if e.Name == name {
				if id := string(e.Handle.Handle.Bytes()); h.sizes[id] > 0 || h.lies[id] > 0 {
					e.Attr.Attr = h.attr(id, nfs.TypeReg)
				}
				if id, ok := h.now[name]; ok {
					e = hostileEntry(name, id, nfs.TypeReg)
				}
				r := nfs.LookupRes{Object: e.Handle.Handle, Attr: e.Attr}
				res.Results = r.Append(res.Results)
				return
			}
		}
		res.Results = failed(res.Results, nfs.StatusNoEnt)
	case nfs.ProcGetAttr:
		r := nfs.GetAttrRes{Attr: h.attr(string(fh.Bytes()), nfs.TypeDir)}
		res.Results = r.Append(res.Results)
	case nfs.ProcReadDirPlus:
		r := nfs.ReadDirPlusRes{Entries: h.entries[string(fh.Bytes())], EOF: true}
		if string(fh.Bytes()) == "huge" {
			first := int(d.Uint64())
			last := min(first+100, h.huge)
			r.EOF = last == h.huge
			if h.huge < 0 { // it has no end
				first, last, r.EOF = first%20, first%20+10, false
			}
			for i := first; i < last; i++ {
				e := hostileEntry(fmt.Sprintf("%08d", h.huge-i), "f", nfs.TypeReg)
				e.Cookie = uint64(i + 1)
				r.Entries = append(r.Entries, e)
			}
		}
		res.Results = r.Append(res.Results)
	case nfs.ProcReadLink:
		target, ok := h.links[string(fh.Bytes())]
		if !ok {
			target = h.data
		}
		r := nfs.ReadLinkRes{Target: []byte(target)}
		res.Results = r.Append(res.Results)
	case nfs.ProcFSInfo:
		r := nfs.FSInfoRes{RTMax: 4096, RTPref: 4096}
		res.Results = r.Append(res.Results)
	case nfs.ProcCreate:
		made, _ := nfs.NewFileHandle([]byte("made"))
		r := nfs.CreateRes{Object: nfs.PostOpHandle{Present: true, Handle: made}}
		res.Results = r.Append(res.Results)
	case nfs.ProcWrite:
		d.Uint64()
		r := nfs.WriteRes{Count: d.Uint32()}
		r.Committed = nfs.Stable(d.Uint32())
		res.Results = r.Append(res.Results)
	case nfs.ProcCommit:
		r := nfs.CommitRes{}
		res.Results = r.Append(res.Results)
	case nfs.ProcRemove:
		r := nfs.WccRes{}
		res.Results = r.Append(res.Results)
	case nfs.ProcRmdir:
		r := nfs.WccRes{Status: nfs.StatusNotEmpty}
		res.Results = r.Append(res.Results)
	case nfs.ProcRename:
		r := nfs.RenameRes{}
		res.Results = r.Append(res.Results)
	case nfs.ProcRead:
		id := string(fh.Bytes())
		r := nfs.ReadRes{Count: uint32(len(h.data)), EOF: true, Data: []byte(h.data)}
		if size, ok := h.sizes[id]; ok {
			h.read(id)
			off := d.Uint64()
			n := min(uint64(d.Uint32()), uint64(size)-min(off, uint64(size)))
			r = nfs.ReadRes{Count: uint32(n), EOF: off+n >= uint64(size)}
			r.Attr = nfs.PostOpAttr{Present: true, Attr: h.attr(id, nfs.TypeReg)}
			b := r.Append(res.Results)
			res.Results = b[:len(b)-xdr.Unit] // the length word comes with the item
			res.AddItem(make([]byte, n), nil)
			return
		}
		res.Results = r.Append(res.Results)
	default:
		res.Fail(oncrpc.ProcUnavail)
	}
}

// Whatever names a server has, a get writes nothing outside of LOCAL.
func TestHostileServer(t *testing.T) {
	outside := t.TempDir()
	for _, tt := range []struct {
		name    string
		entries []nfs.DirEntry
		below   []nfs.DirEntry // in those with the handle "d"
	}{
		{"a parent", []nfs.DirEntry{hostileEntry("../../evil", "f", nfs.TypeReg)}, nil},
		{"an absolute path", []nfs.DirEntry{hostileEntry(filepath.Join(outside, "evil"), "f", nfs.TypeReg)}, nil},
		{"a path", []nfs.DirEntry{hostileEntry("sub/evil", "f", nfs.TypeReg)}, nil},
		{"an end of string", []nfs.DirEntry{hostileEntry("evil\x00", "f", nfs.TypeReg)}, nil},
		{"no name", []nfs.DirEntry{hostileEntry("", "f", nfs.TypeReg)}, nil},
		{"dots", []nfs.DirEntry{hostileEntry(".", "f", nfs.TypeReg), hostileEntry("..", "d", nfs.TypeDir)},
			[]nfs.DirEntry{hostileEntry("evil", "f", nfs.TypeReg)}},
		{"a link and a directory of one name",
			[]nfs.DirEntry{hostileEntry("sub", "l", nfs.TypeLnk), hostileEntry("sub", "d", nfs.TypeDir)},
			[]nfs.DirEntry{hostileEntry("evil", "f", nfs.TypeReg)}},
		{"a directory and a link of one name",
			[]nfs.DirEntry{hostileEntry("sub", "d", nfs.TypeDir), hostileEntry("sub", "l", nfs.TypeLnk)},
			[]nfs.DirEntry{hostileEntry("evil", "f", nfs.TypeReg)}},
		{"a directory in itself", []nfs.DirEntry{hostileEntry("sub", "d", nfs.TypeDir)},
			[]nfs.DirEntry{hostileEntry("sub", "d", nfs.TypeDir)}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := &hostile{entries: map[string][]nfs.DirEntry{"/": tt.entries, "d": tt.below}, data: outside[:8]}
			addr := h.start(t)
			parent := t.TempDir()
			local := filepath.Join(parent, "a", "b", "local")
			if err := os.MkdirAll(filepath.Dir(local), 0o755); err != nil {
				t.Fatal(err)
			}
			r := runCommand(t, "get", "-r", "nfs://"+addr+"/", local)
			if r.status != 1 && tt.name != "dots" {
				t.Errorf("status %d\n%s", r.status, r.stderr)
			}
			err := filepath.WalkDir(parent, func(path string, d fs.DirEntry, err error) error {
				if err == nil && strings.Contains(d.Name(), "evil") && !strings.HasPrefix(path, local+string(filepath.Separator)) {
					t.Errorf("it made %s", path)
				}
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
			if left, err := os.ReadDir(outside); err != nil || len(left) > 0 {
				t.Errorf("it made %v in another directory, %v", left, err)
			}
		})
	}
}

// Links of a copy lead to what is in it, on whichever way, and whatever order they come in.
func TestLinksStayBelow(t *testing.T) {
	link := func(name string) nfs.DirEntry { return hostileEntry(name, "link "+name, nfs.TypeLnk) }
	h := &hostile{
		entries: map[string][]nfs.DirEntry{
			"/": {
				link("a"), hostileEntry("d", "d", nfs.TypeDir), link("first"), link("past"), link("up"), link("x"), link("abs"),
				hostileEntry("file", "f", nfs.TypeReg),
			},
			"d": {link("back"), link("deep"), link("out"), hostileEntry("real", "real", nfs.TypeDir), link("round"), link("sub"), link("too far")},
		},
		data: "contents",
		links: map[string]string{
			"link a":       "d/back/../../etc",  // through a link that leads up
			"link first":   "up/../../etc",      // through a link that comes later
			"link past":    "missing/../../etc", // through what may become a link
			"link up":      "d/..",              // to the copy itself, which d leads back to
			"link x":       "file",
			"link abs":     "/etc",
			"link back":    "..",
			"link deep":    "../d/real/../../file", // through real directories
			"link out":     "back/../etc",
			"link round":   "back/d/back/file", // through links, down only
			"link sub":     "real/../sub",
			"link too far": "../../etc",
		},
	}
	local := filepath.Join(t.TempDir(), "a", "b", "local")
	r := runCommand(t, "get", "-r", "nfs://"+h.start(t)+"/", local)
	if r.status != 1 || !strings.HasSuffix(r.stderr, ": 6 things were skipped, everything else is copied\n") {
		t.Errorf("status %d\n%s", r.status, r.stderr)
	}
	var links []string
	for name, what := range describe(t, local) {
		if !strings.HasPrefix(what, "L") {
			continue
		}
		links = append(links, name)
		at, err := filepath.EvalSymlinks(filepath.Join(local, name))
		if err == nil && at != local && !strings.HasPrefix(at, local+"/") {
			t.Errorf("%s leads to %s", name, at)
		}
	}
	slices.Sort(links)
	if want := []string{"d/back", "d/deep", "d/round", "d/sub", "up", "x"}; !slices.Equal(links, want) {
		t.Errorf("links: %q, want %q\n%s", links, want, r.stderr)
	}
	for _, name := range []string{"d/deep", "d/round", "x"} {
		if b, err := os.ReadFile(filepath.Join(local, name)); err != nil || string(b) != "contents" {
			t.Errorf("%s: %q, %v", name, b, err)
		}
	}
}

// Parts that the server withholds are named; everything else is copied, or listed.
func TestPartOfTree(t *testing.T) {
	h := &hostile{
		entries: map[string][]nfs.DirEntry{
			"/": {
				hostileEntry("bad/name", "f", nfs.TypeReg), hostileEntry("a", "f", nfs.TypeReg),
				hostileEntry("closed", "closed", nfs.TypeDir), hostileEntry("open", "open", nfs.TypeDir),
				hostileEntry("secret", "secret", nfs.TypeReg), hostileEntry("z", "f", nfs.TypeReg),
				hostileEntry("broken link", "broken", nfs.TypeLnk),
			},
			"open": {hostileEntry("b", "f", nfs.TypeReg), hostileEntry("..\x00", "f", nfs.TypeReg), hostileEntry("c", "f", nfs.TypeReg)},
		},
		data:   "contents",
		denied: map[string]nfs.Status{"closed": nfs.StatusAcces, "secret": nfs.StatusIO, "broken": nfs.StatusStale},
	}
	url := "nfs://" + h.start(t) + "/"
	wantErr := func(r result, last string, skipped ...string) {
		t.Helper()
		lines := strings.Split(strings.TrimSuffix(r.stderr, "\n"), "\n")
		for _, what := range skipped {
			if !strings.Contains(r.stderr, url+": "+what) {
				t.Errorf("not named: %s", what)
			}
		}
		if r.status != 1 || len(lines) != len(skipped)+1 || !strings.HasSuffix(lines[len(lines)-1], last) {
			t.Errorf("status %d, want %d lines, last with %q:\n%s", r.status, len(skipped)+1, last, r.stderr)
		}
	}
	local := filepath.Join(t.TempDir(), "local")
	wantErr(runCommand(t, "get", "-r", url, local), ": 5 things were skipped, everything else is copied",
		"bad/name skipped: the name cannot be used here", `"open/..\x00" skipped: the name`,
		"closed skipped: permission denied (NFS3ERR_ACCES)", "secret skipped: the server could not read",
		"broken link skipped: the file is gone (NFS3ERR_STALE)")
	got := describe(t, local)
	for _, name := range []string{"a", "open/b", "open/c", "z"} {
		if !strings.HasSuffix(got[name], " contents") {
			t.Errorf("%s is not copied", name)
		}
	}
	if len(got) != 6 { // and two directories
		t.Errorf("copied: %q", got)
	}

	r := runCommand(t, "ls", url)
	if want := "a\nbroken link\nclosed/\nopen/\nsecret\nz\n"; r.stdout != want {
		t.Errorf("ls prints %q, want %q", r.stdout, want)
	}
	wantErr(r, ": 1 thing was skipped", "bad/name skipped: ")
	r = runCommand(t, "ls", "-r", "--json", url)
	if n := strings.Count(r.stderr, `{"skipped":`); r.status != 1 || n != 4 {
		t.Errorf("ls -r --json: status %d, %d skipped, want 4:\n%s", r.status, n, r.stderr)
	}
	l := decodeJSON[struct {
		URL     string           `json:"url"`
		Entries []tree.EntryJSON `json:"entries"`
	}](t, r.stdout)
	if len(l.Entries) != 7 {
		t.Errorf("ls -r --json: %+v", l)
	}
	// The directory that was asked for is not one of many.
	mustFail(t, 1, "permission denied (NFS3ERR_ACCES)", "ls", url+"closed")
	mustFail(t, 1, "permission denied (NFS3ERR_ACCES)", "get", "-r", url+"closed", local)
}

// A directory of any size is listed, and copied, as it comes.
func TestHugeDirectory(t *testing.T) {
	const n = 70_000
	h := &hostile{entries: map[string][]nfs.DirEntry{"/": {hostileEntry("huge", "huge", nfs.TypeDir)}}, huge: n}
	out := mustRun(t, "ls", "nfs://"+h.start(t)+"/huge")
	names := strings.Fields(out)
	if len(names) != n {
		t.Fatalf("%d names, want %d", len(names), n)
	}
	// So many are sorted; the server sends them the other way round.
	if !slices.IsSorted(names[:1<<16]) || names[n-1] != "00000001" {
		t.Errorf("from %s to %s, last %s", names[0], names[1<<16-1], names[n-1])
	}
}
