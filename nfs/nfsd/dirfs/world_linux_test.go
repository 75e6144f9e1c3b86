package dirfs

import (
	"context"
	"crypto/rand"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/rpcrdma/rpcrdma/internal/testing/leak"
	"github.com/rpcrdma/rpcrdma/internal/testing/testbed"
	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
	"github.com/rpcrdma/rpcrdma/nfs"
	"github.com/rpcrdma/rpcrdma/nfs/nfsd"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/transport"
)

func TestMain(m *testing.M) { os.Exit(leak.Main(m)) }

// A mode is a way in which a FS can work.
type mode struct {
	name string
	root bool // takes the identity of callers
	cfg  Config
}

// modes are all ways. Those that need root are skipped without.
func modes() []mode {
	return []mode{
		{"handles of the kernel, as the caller", true, Config{}},
		{"places, as the caller", true, Config{noHandles: true}},
		{"places, as an ordinary user", false, Config{noHandles: true, asProcess: true}},
		{"as an ordinary user of an old kernel", false, Config{noHandles: true, asProcess: true, old: true}},
	}
}

// each runs a test in every mode.
func each(t *testing.T, f func(t *testing.T, m mode)) {
	for _, m := range modes() {
		t.Run(m.name, func(t *testing.T) {
			if m.root && os.Geteuid() != 0 {
				t.Skip("only root can take the identity of callers")
			}
			f(t, m)
		})
	}
}

// often is how many times a test does the same: a third with the race detector, as the same tests run
// without it, too.
func often(n int) int {
	if raceDetector {
		n /= 3
	}
	return n
}

// A world is a directory that is served, and a client of it.
type world struct {
	t    testing.TB
	bed  *testbed.Bed
	dir  string // on the host
	fs   *FS
	key  []byte
	addr string
	*nfs.Client
	raw  *transport.Client
	root nfs.FileHandle
	stop []func()
}

// user is the caller unless a test says otherwise: the process itself where it is an ordinary user.
func user() *oncrpc.AuthSys {
	if os.Geteuid() != 0 {
		return &oncrpc.AuthSys{Machine: "test", UID: uint32(os.Geteuid()), GID: uint32(os.Getegid())}
	}
	return &oncrpc.AuthSys{Machine: "test", UID: 1000, GID: 1000}
}

// newWorld serves a new directory with the files, which everybody may use.
func newWorld(t testing.TB, cfg Config, files map[string]string) *world {
	t.Helper()
	w := &world{t: t, bed: testbed.Iwarp(), dir: t.TempDir(), key: make([]byte, 32)}
	rand.Read(w.key)
	testutil.WriteFiles(t, w.dir, files)
	if os.Geteuid() == 0 {
		err := os.Chown(w.dir, 1000, 1000)
		for name := range files {
			if e := os.Lchown(w.path(strings.TrimSuffix(name, "/")), 1000, 1000); err == nil {
				err = e
			}
		}
		testutil.Must(t, err)
	}
	w.start(cfg, nil)
	t.Cleanup(w.close)
	return w
}

func (w *world) path(name string) string { return w.dir + "/" + name }

// put writes a file on the host, without the server's knowledge, as everybody's.
func (w *world) put(name, text string) {
	w.t.Helper()
	testutil.Must(w.t, os.WriteFile(w.path(name), []byte(text), 0o666), os.Chmod(w.path(name), 0o666))
}

// owner returns the owner of files that user makes.
func (w *world) owner() uint32 {
	if w.fs.self == nil {
		return w.fs.process.UID
	}
	return user().UID
}

// synced notes what is put on the disk from now on, in order: names of files, with what they hold.
// take returns what there is so far, and forgets it.
func (w *world) synced(fail func() error) (take func() []string) {
	var mu sync.Mutex
	var list []string
	note := func(fd int) error {
		name, err := os.Readlink(procPath(fd))
		testutil.Must(w.t, err)
		if data, err := os.ReadFile(name); err == nil {
			name += "=" + string(data)
		}
		mu.Lock()
		defer mu.Unlock()
		list = append(list, strings.TrimPrefix(strings.TrimPrefix(name, w.dir), "/"))
		return fail()
	}
	w.fs.fsync, w.fs.fdatasync = note, note
	return func() []string {
		mu.Lock()
		defer mu.Unlock()
		defer func() { list = nil }()
		return list
	}
}

// start opens the directory, serves it and connects the clients.
func (w *world) start(cfg Config, change func(*nfsd.Export)) {
	w.t.Helper()
	f, err := Open(w.dir, &cfg)
	testutil.Must(w.t, err)
	w.fs = f
	export := nfsd.Export{Name: "/export", FS: f}
	if change != nil {
		change(&export)
	}
	files, err := nfsd.New(&nfsd.Config{Exports: []nfsd.Export{export}, Key: w.key})
	testutil.Must(w.t, err)
	srv, err := transport.NewServer(nil)
	testutil.Must(w.t, err)
	for _, p := range files.Programs() {
		testutil.Must(w.t, srv.Register(p))
	}
	l, err := srv.Listen(w.t.Context(), w.bed.Provider, w.bed.Host+":0")
	testutil.Must(w.t, err)
	served := make(chan error, 1)
	go func() { served <- srv.Serve(l) }()
	w.addr = l.Addr().String()
	w.Client, err = nfs.Dial(w.t.Context(), w.bed.Provider, w.addr, &nfs.Options{Auth: user()})
	testutil.Must(w.t, err)
	w.raw, err = transport.Dial(w.t.Context(), w.bed.Provider, w.addr, nil)
	testutil.Must(w.t, err)
	w.root, err = w.Mnt(w.t.Context(), "/export")
	testutil.Must(w.t, err)
	w.stop = []func(){
		func() { w.Client.Close(); w.raw.Close() },
		func() {
			srv.Close()
			<-served
			testutil.Must(w.t, files.Shutdown(context.Background()))
		},
		func() {
			if err := f.Close(); err != nil {
				w.t.Error(err)
			}
		},
	}
}

// close ends what start has begun.
func (w *world) close() {
	for _, f := range w.stop {
		f()
	}
	w.stop = nil
}

// restart has the effect of a crash or an upgrade of the server on clients.
func (w *world) restart(cfg Config) {
	w.t.Helper()
	w.close()
	w.start(cfg, nil)
}

// message is the arguments of a procedure.
type message interface{ Append([]byte) []byte }

// result is its results.
type result interface{ Decode(*xdr.Decoder) }

// call calls a procedure with a credential, nil: with AUTH_NONE. The error is one of RPC.
func (w *world) call(who *oncrpc.AuthSys, proc uint32, args message, res result) error {
	return w.callBytes(who, proc, args.Append(nil), res)
}

func (w *world) callBytes(who *oncrpc.AuthSys, proc uint32, args []byte, res result) error {
	call := rpc.Call{Prog: nfs.Program, Vers: nfs.Version, Proc: proc, Args: args, MaxResults: 1<<20 + 1024}
	if who != nil {
		call.Cred = who.Auth()
	}
	if err := w.raw.Call(context.Background(), &call); err != nil {
		return err
	}
	d := xdr.NewDecoder(call.Results)
	res.Decode(&d)
	return d.End()
}

// must calls a procedure and ends the test if RPC fails.
func (w *world) must(who *oncrpc.AuthSys, proc uint32, args message, res result) {
	w.t.Helper()
	if err := w.call(who, proc, args, res); err != nil {
		w.t.Fatalf("%s: %v", nfs.ProcName(proc), err)
	}
}

// lookup returns the handle of a path.
func (w *world) lookup(path string) nfs.FileHandle {
	w.t.Helper()
	fh := w.root
	for name := range strings.SplitSeq(path, "/") {
		var res nfs.LookupRes
		w.must(user(), nfs.ProcLookup, &nfs.DirOpArgs{Dir: fh, Name: name}, &res)
		if res.Status != nfs.StatusOK {
			w.t.Fatalf("LOOKUP of %q in %q: %v", name, path, res.Status)
		}
		fh = res.Object
	}
	return fh
}

// getattr returns the status of GETATTR, and what it says.
func (w *world) getattr(fh nfs.FileHandle) (nfs.Attr, nfs.Status) {
	w.t.Helper()
	var res nfs.GetAttrRes
	w.must(user(), nfs.ProcGetAttr, &fh, &res)
	return res.Attr, res.Status
}

// want compares the status of a procedure.
func (w *world) want(what string, got, want nfs.Status) {
	w.t.Helper()
	if got != want {
		w.t.Errorf("%s: %v, want %v", what, got, want)
	}
}
