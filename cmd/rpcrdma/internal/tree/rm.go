package tree

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"sync"

	"github.com/spf13/cobra"

	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/cli"
	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/explain"
	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/remote"
	"github.com/rpcrdma/rpcrdma/nfs"
)

// NewRm returns the command rm.
func NewRm() *cobra.Command {
	var o remote.Options
	var recursive, force bool
	var parallel int
	cmd := &cobra.Command{
		Use:        "rm URL...",
		SuggestFor: []string{"delete", "del", "remove", "unlink", "rmdir", "rd", "erase"},
		Short:      "Remove files from an NFS server",
		Long: `Remove files, or with -r directories and everything in them, from an NFS server.

URL is nfs://HOST[:PORT]/EXPORT/PATH; the default port is 20049. Symbolic links are removed,
not their targets. An export itself cannot be removed.

Files that cannot be removed are reported, the others are removed, and the exit status is 1.
With -f, a file that does not exist is not an error.

With --retry, the command survives a restart of the server if the server's handles do:
handles of 'rpcrdma serve --state' do.`,
		Example: `  rpcrdma rm nfs://server/srv/data/report.pdf nfs://server/srv/data/draft.pdf
  rpcrdma rm -r -f nfs://server/srv/data/old
  rpcrdma rm -r --retry 10m nfs://server/srv/data/old`,
		ValidArgsFunction: remote.CompleteURL,
		Args:              cli.WantArgs("URL..."),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := remote.CheckParallel(cmd, parallel); err != nil {
				return err
			}
			return o.Each(cmd, args, func(ctx context.Context, r *remote.Target) error {
				m := &remover{Target: r, recursive: recursive, slots: make(chan struct{}, parallel), json: o.JSON, stderr: cmd.ErrOrStderr()}
				err := m.remove(ctx)
				switch {
				case force && (remote.IsMissing(err) || errors.Is(err, nfs.ErrNoExport)):
					return nil
				case err == nil && m.skipped > 0:
					return fmt.Errorf("%s skipped, everything else is removed", cli.Things(m.skipped))
				}
				return err
			})
		},
	}
	remote.AddOptions(cmd, &o)
	flags := cmd.Flags()
	flags.Lookup("json").Usage = "print errors as JSON objects"
	flags.BoolVarP(&recursive, "recursive", "r", false, "remove directories and everything in them")
	flags.BoolVarP(&force, "force", "f", false, "ignore files that do not exist")
	remote.AddParallelOption(cmd, &parallel)
	remote.AddRetryOption(cmd, &o)
	return cmd
}

// remover removes the object at a URL.
type remover struct {
	*remote.Target
	recursive bool
	slots     chan struct{} // one for each REMOVE in flight
	json      bool
	stderr    io.Writer

	mu      sync.Mutex
	skipped int
}

// skip reports an object that cannot be removed.
func (m *remover) skip(rel string, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.skipped++
	cli.PrintSkipped(m.stderr, m.json, m.Name, rel, explain.Text(err))
}

func (m *remover) remove(ctx context.Context) error {
	n, err := m.Lstat(ctx, m.URL.Path)
	switch {
	case err != nil:
		return err
	case m.IsExport(ctx):
		return errors.New("is an export, which cannot be removed")
	case !n.IsDir():
		err := m.RemovePath(ctx, m.URL.Path)
		if remote.IsMissing(err) && m.Resent() {
			return nil // the first attempt succeeded
		}
		return err
	case !m.recursive:
		return errors.New("is a directory (-r removes it)")
	}
	parent, err := m.Stat(ctx, path.Dir(m.URL.Path))
	if err != nil {
		return err
	}
	_, err = m.tree(ctx, doomed{rel: ".", parent: parent.Handle, name: path.Base(m.URL.Path), dir: n.Handle})
	return err
}

// doomed is a directory to be removed.
type doomed struct {
	rel    string // path below the requested directory
	parent nfs.FileHandle
	name   string // name in parent
	dir    nfs.FileHandle
	above  []nfs.FileHandle // of the directories above it that are being removed too
}

// Limits for what a server can pretend.
const (
	maxRemoveDepth = 512 // of a tree, because a server may nest a directory in itself
	maxPasses      = 64  // over a directory, because it may never become empty
)

// tree removes a directory and everything in it. kept is set if something is left, which has been reported. An error
// ends the work.
func (m *remover) tree(ctx context.Context, d doomed) (kept bool, err error) {
	if slices.Contains(d.above, d.dir) || len(d.above) >= maxRemoveDepth {
		m.skip(d.rel, nfs.ErrDirectory)
		return true, nil
	}
	m.Known.Add(d.dir, d.rel)
	for passes := 1; ; passes++ {
		p := m.pass(ctx, d)
		err := p.err
		if err == nil && p.kept {
			return true, nil
		}
		if err == nil {
			err = m.Rmdir(ctx, d.parent, d.name)
		}
		if err != nil {
			err = m.Forgotten(ctx, err)
		}
		switch {
		case err == nil || remote.IsMissing(err):
			return false, nil
		case !remote.ConcernsOne(ctx, err):
			return true, explain.Item(d.rel, err)
		case !p.kept && p.removed > 0 && passes < maxPasses && again(err):
			// The listing was incomplete. Every pass removes something.
		default:
			m.skip(d.rel, err)
			return true, nil
		}
	}
}

// again reports whether another pass may help: the directory has new entries, or the server lost its position in a
// directory that became much shorter.
func again(err error) bool {
	status, ok := errors.AsType[*nfs.Error](err)
	return ok && (status.Status == nfs.StatusNotEmpty || status.Status == nfs.StatusExist || status.Status == nfs.StatusBadCookie)
}

// pass is the outcome of one listing of a directory.
type pass struct {
	mu      sync.Mutex
	removed int
	kept    bool
	err     error // error that ended it
}

// result handles the result of a removal. It returns false if the work must end.
func (p *pass) result(ctx context.Context, m *remover, rel string, err error) bool {
	if err != nil {
		err = m.Forgotten(ctx, err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case err == nil || remote.IsMissing(err):
		p.removed++
	case remote.ConcernsOne(ctx, err):
		p.kept = true
		m.skip(rel, err)
	case p.err == nil:
		p.err = explain.Item(rel, err)
	}
	return p.err == nil
}

// keep records that something could not be removed, which has been reported, or why the work ends.
func (p *pass) keep(err error) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.kept = true
	p.err = cmp.Or(p.err, err)
	return p.err == nil
}

// pass lists a directory and removes its entries.
func (m *remover) pass(ctx context.Context, d doomed) *pass {
	p := new(pass)
	var running sync.WaitGroup
	above := append(slices.Clip(d.above), d.dir)
	for e, err := range m.Entries(ctx, d.dir) {
		rel := path.Join(d.rel, e.Name)
		var bad *nfs.NameError
		on := true
		switch {
		case errors.As(err, &bad):
			on = p.result(ctx, m, remote.InDir(d.rel, bad.Name), bad)
		case err != nil && e.Name == "":
			running.Wait()
			if p.err == nil {
				p.err = err
			}
			return p
		case err != nil:
			on = p.result(ctx, m, rel, err)
		case e.Attr.Attr.Type == nfs.TypeDir:
			kept, err := m.tree(ctx, doomed{rel: rel, parent: d.dir, name: e.Name, dir: e.Handle.Handle, above: above})
			if kept || err != nil {
				on = p.keep(err)
			} else {
				on = p.result(ctx, m, rel, nil)
			}
		default:
			m.slots <- struct{}{}
			running.Go(func() {
				defer func() { <-m.slots }()
				p.result(ctx, m, rel, m.Remove(ctx, d.dir, e.Name))
			})
			p.mu.Lock()
			on = p.err == nil
			p.mu.Unlock()
		}
		if !on {
			break
		}
	}
	running.Wait()
	return p
}
