package serving

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/dirwatch"
	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/notify"
	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/remote"
	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
	"github.com/rpcrdma/rpcrdma/nfs/nfsd"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
	"github.com/rpcrdma/rpcrdma/rpc"
)

// Flags name exports and their clients; an export's own options come before them.
func TestExportFlags(t *testing.T) {
	here, err := os.Getwd()
	testutil.Must(t, err)
	for _, tt := range []struct {
		args string
		want string // exports, or the error after "error: "
	}{
		{"--dir x", "x as / squash root 65534 65534 []"},
		{"--dir x --read-only --squash all --anonuid 5 --anongid 6 --allow 10.0.0.0/8 --allow 192.0.2.1", "x as / ro squash all 5 6 [10.0.0.0/8 192.0.2.1/32]"},
		{"--export x", "x as " + here + "/x squash root 65534 65534 []"},
		{"--export x=/y --dir z", "x as /y squash root 65534 65534 [] | z as / squash root 65534 65534 []"},
		{
			"--squash none --allow 10.0.0.0/8 --anonuid 9 --export a=/a,ro,squash=all,anonuid=7,anongid=8,allow=192.0.2.0/24,allow=::1 --export b=/b",
			"a as /a ro squash all 7 8 [192.0.2.0/24 ::1/128] | b as /b squash none 9 65534 [10.0.0.0/8]",
		},
		{"", "error: --dir DIR is missing"},
		{"--export =/x", "error: want DIR"}, {"--export x=y", "error: want DIR"}, {"--export x=", "error: want DIR"},
		{"--export x,rw", "error: want ro, squash="}, {"--export x,squash=some", "error: want none, root or all"},
		{"--export x,anonuid=me", "error: is not a number"}, {"--export x,anongid=-1", "error: is not a number"},
		{`--export a\,b\=c\\=/n\,m,ro`, `a,b=c\ as /n,m ro squash root 65534 65534 []`},
		{`--export x\\\`, "error: a backslash at the end"}, {"--export x,ro=no", "error: ro takes no value"},
		{"--dir x --allow 192.0.2.7/24 --allow ::ffff:10.1.2.3/112", "x as / squash root 65534 65534 [192.0.2.0/24 10.1.0.0/16]"},
		{"--dir x --allow ::ffff:10.1.2.3 --allow fe80::1%eth0", "x as / squash root 65534 65534 [10.1.2.3/32 fe80::1/128]"},
		{"--dir x --allow ::ffff:0:0/95", "error: not of both"},
		{"--export a=/x --export b=/y/../x/", `error: two exports have the name "/x"`}, {"--dir a --export b=/", `error: two exports have the name "/"`},
		{"--export x,allow=everybody", "error: allow: want a network"}, {"--squash x", "error: want none"}, {"--allow x", "error: want a network"},
		{"--dir x --anonuid 0", "error: cannot be root"}, {"--export x,anongid=0", "error: cannot be root"},
	} {
		var o exportFlags
		cmd := &cobra.Command{}
		o.add(cmd)
		err := cmd.Flags().Parse(strings.Fields(tt.args))
		var list []exportSpec
		if err == nil {
			list, err = o.exports(func([]optionLine) error { return nil })
		}
		var got []string
		for _, e := range list {
			ro := ""
			if e.ReadOnly {
				ro = " ro"
			}
			got = append(got, fmt.Sprintf("%s as %s%s squash %v %d %d %v", e.dir, e.Name, ro, e.Squash, e.AnonUID, e.AnonGID, e.Allow))
		}
		text, wantError := strings.CutPrefix(tt.want, "error: ")
		if wantError != (err != nil) || err != nil && !strings.Contains(err.Error(), text) || err == nil && strings.Join(got, " | ") != tt.want {
			t.Errorf("%s: %q, %v, want %q", tt.args, got, err, tt.want)
		}
	}
}

// The state is in no directory that clients can read, by whatever name.
func TestStateOutside(t *testing.T) {
	dir, other := t.TempDir(), t.TempDir()
	testutil.WriteFiles(t, dir, map[string]string{"sub/": ""})
	link := filepath.Join(other, "link")
	testutil.Must(t, os.Symlink(filepath.Join(dir, "sub"), link))
	for path, ok := range map[string]bool{
		other: true, filepath.Join(other, "new"): true, dir + "2": true,
		dir: false, dir + "/": false, filepath.Join(dir, "sub"): false, filepath.Join(dir, "new", "state"): false,
		link: false, filepath.Join(link, "new"): false, filepath.Join(other, "..", filepath.Base(dir), "x"): false,
	} {
		if err := outside("--state", path, dir); (err == nil) != ok {
			t.Errorf("%s in %s: %v", path, dir, err)
		}
	}
}

// A state keeps pairs, all or none of them.
func TestStateStore(t *testing.T) {
	dir := t.TempDir()
	s, err := openState(dir)
	testutil.Must(t, err)
	key := s.key
	testutil.Must(t, s.update(func(put func(k, v []byte) error) error {
		return errors.Join(put([]byte("a"), []byte("1")), put([]byte("b"), []byte("2")), put([]byte("a"), []byte("3")), put([]byte("none"), nil))
	}))
	failed := errors.New("failed")
	if err := s.update(func(put func(k, v []byte) error) error { return errors.Join(put([]byte("b"), []byte("x")), failed) }); !errors.Is(err, failed) {
		t.Error(err)
	}
	testutil.Must(t, s.Close())
	s, err = openState(dir)
	testutil.Must(t, err)
	defer s.Close()
	if !bytes.Equal(s.key, key) {
		t.Error("another key")
	}
	for k, want := range map[string]string{"a": "3", "b": "2", "none": ""} {
		if got, err := s.Get([]byte(k)); err != nil || string(got) != want || (got == nil) != (want == "") {
			t.Errorf("%s: %q, %v, want %q", k, got, err, want)
		}
	}
	testutil.Must(t, os.WriteFile(filepath.Join(dir, stateKey), []byte("short"), 0o600))
	if _, err := openKey(dir); err == nil || !strings.Contains(err.Error(), "has 5 bytes") {
		t.Errorf("a damaged key: %v", err)
	}
}

// A fakeSource notes the watched directories.
type fakeSource struct{ seen *[]string }

func (f fakeSource) Watch(dir string, _ bool, _ dirwatch.May, _ func(notify.Event)) (func(), error) {
	*f.seen = append(*f.seen, dir)
	return func() {}, nil
}

// from is a connection from an address.
type from struct {
	rpc.Conn
	addr netip.Addr
}

func (f from) RemoteAddrPort() netip.AddrPort { return netip.AddrPortFrom(f.addr, 5) }
func (f from) Host() netip.Prefix             { return netip.PrefixFrom(f.addr, f.addr.BitLen()) }

func requestFrom(addr string) *rpc.Request {
	req := new(rpc.Request)
	rpc.Arrived(req, from{addr: netip.MustParseAddr(addr)}, nil, new(oncrpc.CallHeader), nil, 0, xdr.Padding{}, false)
	return req
}

// Files of the command are created when they are complete.
func TestWatchedParts(t *testing.T) {
	var got []string
	tell := withoutParts(func(e notify.Event) { got = append(got, e.String()) })
	part := "dir/" + remote.PartName()
	for _, e := range []notify.Event{
		{Kind: notify.Created, Path: part}, {Kind: notify.Modified, Path: part}, {Kind: notify.Attributes, Path: part},
		{Kind: notify.Renamed, Path: "dir/file", From: part}, {Kind: notify.Removed, Path: part}, {Kind: notify.Renamed, Path: part, From: part},
		{Kind: notify.Renamed, Path: "b", From: "a"}, {Kind: notify.Renamed, Path: part, From: "a"}, {Kind: notify.Overflow, IsDir: true},
	} {
		tell(e)
	}
	testutil.WantLines(t, got, "created dir/file", "renamed a -> b", "removed a", "overflow ./ changes were lost: rescan this directory")
}

// A watch ends when its export is for others.
func TestWatchedReload(t *testing.T) {
	var seen, ended []string
	w := newWatched()
	export := func() *nfsd.Export { return &nfsd.Export{Allow: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}} }
	src := fakeSource{&seen}
	w.set([]watchedExport{{"", export(), src}})
	if _, err := w.Watch(requestFrom("192.0.3.1"), "", false, nil); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a client of another network: %v", err)
	}
	_, err := w.Watch(requestFrom("192.0.2.1"), "", false, func(e notify.Event) { ended = append(ended, e.String()) })
	testutil.Must(t, err)
	w.set([]watchedExport{{"", export(), src}})
	if len(ended) > 0 {
		t.Errorf("without a change it says %q", ended)
	}
	other := export()
	other.Allow = other.Allow[:0]
	w.set([]watchedExport{{"", other, src}})
	testutil.WantLines(t, ended, "ended the directory has been removed or renamed (GONE)")
}

// Directories are watched in the export that they belong to.
func TestWatchedExports(t *testing.T) {
	var top, a, ab []string
	req := requestFrom("192.0.2.1")
	export := new(nfsd.Export)
	exports := []watchedExport{{"a", export, fakeSource{&a}}, {"a/b", export, fakeSource{&ab}}}
	all, withTop := newWatched(), newWatched()
	all.set(exports)
	withTop.set(append([]watchedExport{{"", export, fakeSource{&top}}}, exports...))
	for _, dir := range []string{"", "x", "ax", "a", "a/x", "/a//x", "a/b", "a/bc", "a/b/c", "a/../x"} {
		if _, err := withTop.Watch(req, dir, false, nil); err != nil {
			t.Errorf("%q: %v", dir, err)
		}
	}
	if want := []string{"", "x", "ax"}; !slices.Equal(top, want) {
		t.Errorf("in /: %q, want %q", top, want)
	}
	if want := []string{"", "x", "x", "bc", "../x"}; !slices.Equal(a, want) {
		t.Errorf("in /a: %q, want %q", a, want)
	}
	if want := []string{"", "c"}; !slices.Equal(ab, want) {
		t.Errorf("in /a/b: %q, want %q", ab, want)
	}
	for _, dir := range []string{"", "x", "ax"} {
		if _, err := all.Watch(req, dir, false, nil); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%q: %v", dir, err)
		}
	}
}
