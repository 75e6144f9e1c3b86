package serving

import (
	"context"
	"io"
	"log/slog"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/dirwatch"
	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/explain"
	"github.com/rpcrdma/rpcrdma/nfs/nfsd"
)

// exporter holds what a service exports: the directories, and the server that exports them. Its methods must not be
// called concurrently.
type exporter struct {
	cfg     nfsd.Config // except for the exports
	opener  DirOpener
	async   bool
	keep    []keptFile
	state   *State // nil: handles do not survive the server
	log     *slog.Logger
	server  *nfsd.Server // nil before the first call of set
	watched *watched

	exports []exportSpec
	dirs    map[string]*exportedDir // by path

	closing  chan struct{}
	retiring sync.WaitGroup // goroutines that close removed directories
}

// keptFile is a file of the server that clients must not be able to reach.
type keptFile struct {
	flag, path string
	secret     bool // clients must not read it either
}

// exportedDir is an open directory that is exported, under one or several names.
type exportedDir struct {
	info  os.FileInfo // from when it was opened
	fs    nfsd.FS
	files io.Closer // closes fs
	root  *os.Root
	watch *dirwatch.Watcher
}

// newExporter returns an exporter without exports. The rest of cfg and state must be set before the first call of set.
func newExporter(o *serveOptions, log *slog.Logger) *exporter {
	x := &exporter{
		cfg: nfsd.Config{Logger: log}, opener: o.openDir, async: o.async, log: log,
		watched: newWatched(), dirs: make(map[string]*exportedDir), closing: make(chan struct{}),
	}
	if o.state != "" {
		x.keep = append(x.keep, keptFile{"--state", o.state, true})
	}
	if o.file != "" {
		x.keep = append(x.keep, keptFile{"--exports", o.file, false})
	}
	if o.accessLog != "" && o.accessLog != "-" {
		x.keep = append(x.keep, keptFile{"--access-log", o.accessLog, false})
	}
	if o.tlsSquash != "" {
		x.keep = append(x.keep, keptFile{"--tls-squash", o.tlsSquash, false})
	}
	for flag, file := range o.TLSFiles() {
		x.keep = append(x.keep, keptFile{"--" + flag, file, flag == "tls-key"})
	}
	if o.acceptor != nil {
		x.keep = append(x.keep, keptFile{"--keytab", o.keytab, true})
	}
	if o.principals != "" {
		x.keep = append(x.keep, keptFile{"--principals", o.principals, false})
	}
	return x
}

// check fails if clients could reach the server's own files.
func (x *exporter) check(specs []exportSpec) error {
	for i := range specs {
		e := &specs[i]
		for _, k := range x.keep {
			if !k.secret && e.ReadOnly {
				continue
			}
			if err := outside(k.flag, k.path, e.dir); err != nil {
				return e.failed(err)
			}
		}
	}
	return nil
}

// openExported opens a directory. The path must be absolute.
func (x *exporter) openExported(dir string) (*exportedDir, error) {
	info, err := os.Stat(dir)
	if err != nil {
		return nil, err
	}
	d := &exportedDir{info: info}
	if d.fs, d.files, err = x.opener(dir, x.async, x.state, x.log); err != nil {
		return nil, err
	}
	if d.root, err = os.OpenRoot(dir); err == nil {
		d.watch, err = dirwatch.New(d.root, x.log)
	}
	if err != nil {
		d.close()
		return nil, err
	}
	return d, nil
}

// close closes a directory that is no longer in use.
func (d *exportedDir) close() {
	if d.watch != nil {
		d.watch.Close()
	}
	if d.root != nil {
		d.root.Close()
	}
	d.files.Close()
}

// set replaces the exports by specs. If it fails, nothing has changed. A directory that remains exported is not
// reopened: calls in it continue, and handles stay valid.
func (x *exporter) set(specs []exportSpec) (err error) {
	if err := x.check(specs); err != nil {
		return err
	}
	dirs := make(map[string]*exportedDir)
	defer func() {
		if err == nil {
			return
		}
		for path, d := range dirs {
			if x.dirs[path] != d {
				d.close()
			}
		}
	}()
	exports := make([]nfsd.Export, len(specs))
	var sources []watchedExport
	for i := range specs {
		e := &specs[i]
		d, err := x.open(e, dirs)
		if err != nil {
			return e.failed(err)
		}
		exports[i] = e.Export
		exports[i].FS = d.fs
		sources = append(sources, watchedExport{strings.Trim(path.Clean(e.Name), "/"), &e.Export, d.watch})
	}
	idle := closedChan()
	if x.server == nil {
		cfg := x.cfg
		cfg.Exports = exports
		x.server, err = nfsd.New(&cfg)
	} else {
		idle, err = x.server.SetExports(exports)
	}
	if err != nil {
		return err
	}
	x.watched.set(sources)
	old := x.dirs
	x.exports, x.dirs = specs, dirs
	for path, d := range old {
		if dirs[path] != d {
			x.retire(d, idle)
		}
	}
	return nil
}

func closedChan() <-chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}

// open returns the directory of an export: the one in dirs, to which it adds new ones, or the one that is already
// exported if the path still leads to it, or else a new one.
func (x *exporter) open(e *exportSpec, dirs map[string]*exportedDir) (*exportedDir, error) {
	dir, err := filepath.Abs(e.dir)
	if err != nil {
		return nil, err
	}
	if d := dirs[dir]; d != nil {
		return d, nil
	}
	if d := x.dirs[dir]; d != nil {
		if info, err := os.Stat(dir); err == nil && os.SameFile(info, d.info) {
			dirs[dir] = d
			return d, nil
		}
	}
	d, err := x.openExported(dir)
	if err != nil {
		return nil, err
	}
	dirs[dir] = d
	return d, nil
}

// retire closes a directory after the calls in it have ended.
func (x *exporter) retire(d *exportedDir, idle <-chan struct{}) {
	x.retiring.Go(func() {
		select {
		case <-idle:
		case <-x.closing:
			select {
			case <-idle:
			default:
				return // a call hangs in it, and the process is ending
			}
		}
		d.close()
	})
}

// hangs is how long Close waits for calls, which have already had their time to end.
const hangs = 2 * time.Second

// Close closes all directories except those in which a call hangs.
func (x *exporter) Close() error {
	var err error
	if x.server != nil {
		ctx, cancel := context.WithTimeout(context.Background(), hangs)
		defer cancel()
		err = x.server.Shutdown(ctx)
	}
	close(x.closing)
	x.retiring.Wait()
	if err != nil {
		x.log.Error("calls hang: their directories are left open", "err", err)
		return err
	}
	for _, d := range x.dirs {
		d.close()
	}
	return nil
}

// String lists the exports.
func (x *exporter) String() string {
	var list []string
	for i := range x.exports {
		e := &x.exports[i]
		dir, err := filepath.Abs(e.dir)
		if err != nil {
			dir = e.dir
		}
		text := explain.Printable(dir)
		if e.Name != "/" && e.Name != dir {
			text += " as " + explain.Printable(e.Name)
		}
		if e.ReadOnly {
			text += ", read-only"
		}
		list = append(list, text)
	}
	return strings.Join(list, "; ")
}
