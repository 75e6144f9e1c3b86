package nfs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"path"
	"slices"
	"strings"
)

// Limits for paths and directories.
const (
	maxSymlinks  = 40 // in one path, as on Linux
	maxDepth     = 512
	maxRestarts  = 3 // of a listing if the directory changes meanwhile
	listingCount = 64 << 10
	listingLeast = 8 << 10
	permMask     = 0o7777

	sortedEntries = 64 << 10 // of one directory; larger ones are listed in the server's order
	maxEmptyPages = 64       // consecutive pages of a listing with nothing but "." and ".."
)

// A Node is the object at a path.
type Node struct {
	Path   string // as requested, cleaned
	Handle FileHandle
	Attr   Attr
}

// IsDir reports whether the object is a directory.
func (n *Node) IsDir() bool { return n.Attr.Type == TypeDir }

// Stat returns the object at path, an absolute path on the server that begins with the path of
// an export, as in a URL. Symbolic links, including the last element, are followed within the
// export.
func (c *Client) Stat(ctx context.Context, path string) (Node, error) {
	return c.resolve(ctx, path, true)
}

// Lstat is Stat, but does not follow the last element.
func (c *Client) Lstat(ctx context.Context, path string) (Node, error) {
	return c.resolve(ctx, path, false)
}

// RealPath returns the path of the object at path without symbolic links. The object must exist. Links are followed as
// by Stat.
func (c *Client) RealPath(ctx context.Context, path string) (string, error) {
	_, real, err := c.follow(ctx, path, true)
	return real, err
}

func (c *Client) resolve(ctx context.Context, p string, follow bool) (Node, error) {
	n, _, err := c.follow(ctx, p, follow)
	return n, err
}

// follow walks from the export's root to p. A ".." in a symbolic link returns to the previous directory of the walk;
// above the root it is ErrSymlinkEscape. An absolute link is a path on the server; if it leads outside of the export,
// it is ErrSymlinkEscape too. real is the path that the walk took.
func (c *Client) follow(ctx context.Context, p string, follow bool) (n Node, real string, err error) {
	p = cleanPath(p)
	m, err := c.Mount(ctx, p)
	if err != nil {
		return n, "", err
	}
	type step struct {
		name string
		fh   FileHandle
		attr Attr
	}
	rootAttr, err := c.GetAttr(ctx, m.Root)
	if err != nil {
		return n, "", withPath(err, m.Export)
	}
	way := []step{{m.Export, m.Root, rootAttr}}
	ahead := strings.Split(m.Rest, "/")
	for links := 0; len(ahead) > 0; {
		name := ahead[0]
		ahead = ahead[1:]
		switch name {
		case "", ".":
			continue
		case "..":
			if len(way) == 1 {
				return n, "", &fs.PathError{Op: "resolve", Path: p, Err: ErrSymlinkEscape}
			}
			way = way[:len(way)-1]
			continue
		}
		if len(name) > MaxName {
			return n, "", &Error{Op: "LOOKUP", Path: p, Status: StatusNameTooLong}
		}
		dir := way[len(way)-1]
		if dir.attr.Type != TypeDir {
			return n, "", &Error{Op: "LOOKUP", Path: p, Status: StatusNotDir}
		}
		fh, attr, err := c.lookupAttr(ctx, dir.fh, name)
		if err != nil {
			return n, "", withPath(err, p)
		}
		if attr.Type != TypeLnk || !follow && !hasNames(ahead) {
			way = append(way, step{name, fh, attr})
			continue
		}
		if links++; links > maxSymlinks {
			return n, "", &fs.PathError{Op: "resolve", Path: p, Err: ErrSymlinkLoop}
		}
		target, err := c.ReadLink(ctx, fh)
		if err != nil {
			return n, "", withPath(err, p)
		}
		switch {
		case target == "" || strings.ContainsRune(target, 0):
			return n, "", &fs.PathError{Op: "resolve", Path: p, Err: &NameError{Name: target}}
		case target[0] == '/':
			if !within(target, m.Export) {
				return n, "", &fs.PathError{Op: "resolve", Path: p, Err: ErrSymlinkEscape}
			}
			way = way[:1]
			target = below(target, m.Export)
		}
		ahead = append(strings.Split(target, "/"), ahead...)
	}
	names := make([]string, len(way))
	for i, s := range way {
		names[i] = s.name
	}
	last := way[len(way)-1]
	return Node{Path: p, Handle: last.fh, Attr: last.attr}, path.Join(names...), nil
}

// hasNames reports whether any of the remaining elements is a name rather than "." or "..".
func hasNames(ahead []string) bool {
	return slices.ContainsFunc(ahead, func(s string) bool { return s != "" && s != "." })
}

// lookupAttr is Lookup, followed by GetAttr if the server omits the attributes.
func (c *Client) lookupAttr(ctx context.Context, dir FileHandle, name string) (FileHandle, Attr, error) {
	fh, post, err := c.Lookup(ctx, dir, name)
	if err != nil {
		return FileHandle{}, Attr{}, err
	}
	return c.withAttr(ctx, fh, post)
}

func (c *Client) withAttr(ctx context.Context, fh FileHandle, post PostOpAttr) (FileHandle, Attr, error) {
	if post.Present {
		return fh, post.Attr, nil
	}
	attr, err := c.GetAttr(ctx, fh)
	return fh, attr, err
}

// parent resolves the directory of p and returns it with the last element of p.
func (c *Client) parent(ctx context.Context, p string) (dir Node, name string, err error) {
	p = cleanPath(p)
	if p == "/" {
		return Node{}, "", &Error{Path: p, Op: "LOOKUP", Status: StatusInval}
	}
	if name = path.Base(p); len(name) > MaxName {
		return Node{}, "", &Error{Path: p, Op: "LOOKUP", Status: StatusNameTooLong}
	}
	dir, err = c.resolve(ctx, path.Dir(p), true)
	return dir, name, err
}

// ReadDir lists the directory at path, sorted by name, with the attributes and handle of every entry, without "." and
// "..". It omits entries with invalid names, such as one that contains '/': the error is then the *NameError of the
// first, and the other entries are returned as well. Names may still have a special meaning on the local system: see
// [ValidName]. Options.MaxDirEntries limits the listing.
func (c *Client) ReadDir(ctx context.Context, path string) ([]DirEntry, error) {
	n, err := c.Stat(ctx, path)
	if err != nil {
		return nil, err
	}
	if !n.IsDir() {
		return nil, &Error{Op: "READDIRPLUS", Path: n.Path, Status: StatusNotDir}
	}
	return c.list(ctx, n.Path, n.Handle)
}

// ListDir is ReadDir for a directory handle.
func (c *Client) ListDir(ctx context.Context, dir FileHandle) ([]DirEntry, error) {
	return c.list(ctx, dir.String(), dir)
}

func (c *Client) list(ctx context.Context, p string, dir FileHandle) ([]DirEntry, error) {
	var entries []DirEntry
	var bad error
	l := c.newLister(p, dir)
	l.most, l.sorted = c.opts.MaxDirEntries, c.opts.MaxDirEntries
	for e, err := range l.all(ctx) {
		var name *NameError
		switch {
		case errors.As(err, &name):
			if bad == nil {
				bad = err
			}
		case err != nil:
			return nil, err
		default:
			entries = append(entries, e)
		}
	}
	slices.SortFunc(entries, byName)
	return entries, bad
}

func byName(a, b DirEntry) int { return strings.Compare(a.Name, b.Name) }

// Entries reads a directory page by page, with the attributes and handle of every entry, without "." and "..". Its
// memory use is bounded, whatever the size of the directory. Up to 65,536 entries are sorted by name. Larger
// directories are listed in the server's order; if such a directory changes so much that the server cannot continue,
// the listing ends with NFS3ERR_BAD_COOKIE.
//
// An error with an entry that has a Name, and a *NameError, concern only that entry: its name is invalid, or its
// attributes cannot be read. Any other error ends the listing, after the entries read before it.
func (c *Client) Entries(ctx context.Context, dir FileHandle) iter.Seq2[DirEntry, error] {
	return c.newLister(dir.String(), dir).all(ctx)
}

// lister reads the pages of a directory.
type lister struct {
	c      *Client
	path   string
	dir    FileHandle
	count  uint32
	most   int  // maximum number of entries; 0: none
	sorted int  // number of entries that are read and sorted before the first is yielded
	plain  bool // the server does not support READDIRPLUS
	res    ReadDirPlusRes
	names  ReadDirRes // used if plain

	cookie uint64 // of the next page
	verf   Verf
	total  int // entries so far
	empty  int // consecutive pages without entries

	// Each page continues at a cookie, and a repeated cookie means an endless listing. Brent's cycle detection needs to
	// remember only one cookie: kept is replaced by the latest cookie after 1, 2, 4, 8 pages and so on.
	kept        uint64
	pages, turn int // pages since the last replacement, and until the next
}

func (c *Client) newLister(p string, dir FileHandle) *lister {
	l := &lister{c: c, path: p, dir: dir, turn: 1, sorted: sortedEntries}
	if lim := c.limits.Load(); lim != nil {
		l.count = min(max(lim.dtpref, listingLeast), listingCount)
	} else {
		l.count = listingCount / 2
	}
	return l
}

// all implements Entries.
func (l *lister) all(ctx context.Context) iter.Seq2[DirEntry, error] {
	return func(yield func(DirEntry, error) bool) {
		var held []DirEntry
		flush := func() bool {
			slices.SortFunc(held, byName)
			for _, e := range held {
				if !l.emit(ctx, e, yield) {
					return false
				}
			}
			held = nil
			return true
		}
		restarts, holding := 0, true
		for {
			err := l.next(ctx)
			// The directory has changed so much that the server cannot continue. RFC 1813
			// section 3.3.17.
			if isStatus(err, StatusBadCookie) && holding && restarts < maxRestarts {
				restarts++
				held = held[:0]
				*l = lister{c: l.c, path: l.path, dir: l.dir, count: l.count, most: l.most, sorted: l.sorted, plain: l.plain, turn: 1}
				continue
			}
			if err != nil {
				if flush() {
					yield(DirEntry{}, l.failed(err))
				}
				return
			}
			for _, e := range l.res.Entries {
				if e.Name == "." || e.Name == ".." {
					continue
				}
				if l.total++; l.most > 0 && l.total > l.most {
					if flush() {
						yield(DirEntry{}, l.failed(fmt.Errorf("%w: more than %d entries", ErrDirectory, l.most)))
					}
					return
				}
				if holding {
					held = append(held, e)
				} else if !l.emit(ctx, e, yield) {
					return
				}
			}
			if holding && len(held) > l.sorted {
				holding = false
				if !flush() {
					return
				}
			}
			if l.res.EOF {
				flush()
				return
			}
		}
	}
}

// failed returns the error that ends a listing.
func (l *lister) failed(err error) error {
	if errors.Is(err, ErrDirectory) {
		err = &fs.PathError{Op: "readdir", Path: l.path, Err: err}
	}
	return withPath(err, l.path)
}

// emit yields an entry, after fetching what the server left out. It skips an entry that has been removed meanwhile. It
// returns false if the caller wants no further entries.
func (l *lister) emit(ctx context.Context, e DirEntry, yield func(DirEntry, error) bool) bool {
	if !validEntry(e.Name) {
		return yield(DirEntry{Name: e.Name}, &NameError{Name: e.Name})
	}
	if e.Attr.Present && e.Handle.Present {
		return yield(e, nil)
	}
	fh, attr, err := l.c.lookupAttr(ctx, l.dir, e.Name)
	var status *Error
	switch {
	case err == nil:
		e.Handle = PostOpHandle{Present: true, Handle: fh}
		e.Attr = PostOpAttr{Present: true, Attr: attr}
		return yield(e, nil)
	case isStatus(err, StatusNoEnt) || isStatus(err, StatusStale):
		return true
	case errors.As(err, &status):
		return yield(DirEntry{Name: e.Name}, withPath(err, e.Name))
	}
	yield(DirEntry{}, err)
	return false
}

// next reads the next page into l.res.
func (l *lister) next(ctx context.Context) error {
	if err := l.page(ctx); err != nil {
		return err
	}
	if l.res.EOF {
		return nil
	}
	if len(l.res.Entries) == 0 {
		return fmt.Errorf("%w: an empty page is not the last", ErrDirectory)
	}
	dots := func(e DirEntry) bool { return e.Name == "." || e.Name == ".." }
	if l.empty++; slices.ContainsFunc(l.res.Entries, func(e DirEntry) bool { return !dots(e) }) {
		l.empty = 0
	}
	if l.empty > maxEmptyPages {
		return fmt.Errorf("%w: more than %d pages without entries", ErrDirectory, maxEmptyPages)
	}
	l.cookie, l.verf = l.res.Entries[len(l.res.Entries)-1].Cookie, l.res.Verf
	if l.cookie == l.kept {
		return fmt.Errorf("%w: the server repeats cookie %#x", ErrDirectory, l.cookie)
	}
	if l.pages++; l.pages == l.turn {
		l.kept, l.pages, l.turn = l.cookie, 0, 2*l.turn
	}
	return nil
}

// page reads a page, with attributes and handles if the server has READDIRPLUS.
func (l *lister) page(ctx context.Context) error {
	if !l.plain {
		err := l.c.ReadDirPlus(ctx, &ReadDirPlusArgs{
			Dir: l.dir, Cookie: l.cookie, Verf: l.verf, DirCount: l.count, MaxCount: l.count,
		}, &l.res)
		// Some servers support READDIRPLUS only for some directories.
		if !isStatus(err, StatusNotSupp) || l.cookie != 0 {
			return err
		}
		l.plain = true
	}
	res := &l.names
	err := l.c.ReadDirNames(ctx, &ReadDirArgs{Dir: l.dir, Cookie: l.cookie, Verf: l.verf, Count: l.count}, res)
	l.res = ReadDirPlusRes{Status: res.Status, Verf: res.Verf, Entries: l.res.Entries[:0], EOF: res.EOF}
	for _, e := range res.Entries {
		l.res.Entries = append(l.res.Entries, DirEntry{FileID: e.FileID, Name: e.Name, Cookie: e.Cookie})
	}
	return err
}

// Walk calls fn for the object at root and for everything below it, a directory before its entries, in the order of
// [Client.Entries]. Symbolic links below root are not followed. If listing a directory fails, fn is called for the
// directory again with the error, after the entries read so far. If the attributes of an entry cannot be read, fn is
// called for it with an error and without handle and attributes. fn may return fs.SkipDir and fs.SkipAll, as for
// fs.WalkDir; any other error ends the walk and is returned.
//
// Every name below root has passed ValidName. Entries with other names are reported to fn as a *NameError of their
// directory, and skipped.
func (c *Client) Walk(ctx context.Context, root string, fn func(n Node, err error) error) error {
	n, err := c.Stat(ctx, root)
	if err != nil {
		err = fn(Node{Path: cleanPath(root)}, err)
	} else {
		err = c.walk(ctx, n, nil, fn)
	}
	if err == fs.SkipDir || err == fs.SkipAll {
		return nil
	}
	return err
}

// walk visits n. above holds the handles of the directories that contain it.
func (c *Client) walk(ctx context.Context, n Node, above []FileHandle, fn func(n Node, err error) error) error {
	err := fn(n, nil)
	if err == fs.SkipDir && n.IsDir() {
		return nil
	}
	if err != nil || !n.IsDir() {
		return err
	}
	if slices.Contains(above, n.Handle) || len(above) >= maxDepth {
		return skipped(fn(n, &fs.PathError{Op: "walk", Path: n.Path, Err: ErrDirectory}))
	}
	above = append(above, n.Handle)
	for e, err := range c.newLister(n.Path, n.Handle).all(ctx) {
		child := Node{Path: path.Join(n.Path, e.Name), Handle: e.Handle.Handle, Attr: e.Attr.Attr}
		var bad *NameError
		switch {
		case errors.As(err, &bad), err != nil && e.Name == "":
			err = fn(n, err)
		case !ValidName(e.Name):
			err = fn(n, &NameError{Name: e.Name})
		case err != nil:
			err = fn(child, err)
		default:
			err = c.walk(ctx, child, above, fn)
		}
		if err == fs.SkipDir {
			return nil // from a file: skip the rest of its directory
		} else if err != nil {
			return err
		}
	}
	return nil
}

// skipped converts the result of fn for a failed directory to the result of the walk.
func skipped(err error) error {
	if err == fs.SkipDir {
		return nil
	}
	return err
}

// A File is a regular file: a Node with methods. NFS version 3 does not open files, so a File need not be closed.
type File struct {
	Node
	c *Client
}

// Open finds the regular file at path, following symbolic links as Stat does.
func (c *Client) Open(ctx context.Context, path string) (*File, error) {
	n, err := c.Stat(ctx, path)
	if err != nil {
		return nil, err
	}
	return c.file(n)
}

func (c *Client) file(n Node) (*File, error) {
	switch n.Attr.Type {
	case TypeReg:
		return &File{Node: n, c: c}, nil
	case TypeDir:
		return nil, &Error{Op: "READ", Path: n.Path, Status: StatusIsDir}
	}
	return nil, &Error{Op: "READ", Path: n.Path, Status: StatusInval}
}

// CreateFile creates the regular file at path with the given permissions, or truncates an existing file, which keeps
// its permissions. Symbolic links are followed as by Stat.
func (c *Client) CreateFile(ctx context.Context, path string, mode uint32) (*File, error) {
	n, err := c.Stat(ctx, path)
	switch {
	case err == nil:
		f, err := c.file(n)
		if err != nil {
			return nil, err
		}
		if f.Attr.Size > 0 {
			if err := c.SetAttr(ctx, f.Handle, &SetAttr{SetSize: true}); err != nil {
				return nil, withPath(err, f.Path)
			}
			f.Attr.Size = 0
		}
		return f, nil
	case !isStatus(err, StatusNoEnt):
		return nil, err
	}
	dir, name, err := c.parent(ctx, path)
	if err != nil {
		return nil, err
	}
	p := cleanPath(path)
	fh, post, err := c.Create(ctx, &CreateArgs{
		Where: DirOpArgs{Dir: dir.Handle, Name: name},
		Mode:  Unchecked, // another client may have created it meanwhile
		Attr:  SetAttr{SetMode: true, Mode: mode & permMask, SetSize: true},
	})
	if err != nil {
		return nil, withPath(err, p)
	}
	fh, attr, err := c.withAttr(ctx, fh, post)
	if err != nil {
		return nil, withPath(err, p)
	}
	return c.file(Node{Path: p, Handle: fh, Attr: attr})
}

// MakeDir creates the directory at path with the given permissions.
func (c *Client) MakeDir(ctx context.Context, path string, mode uint32) (Node, error) {
	dir, name, err := c.parent(ctx, path)
	if err != nil {
		return Node{}, err
	}
	p := cleanPath(path)
	fh, post, err := c.Mkdir(ctx, dir.Handle, name, &SetAttr{SetMode: true, Mode: mode & permMask})
	if err != nil {
		return Node{}, withPath(err, p)
	}
	fh, attr, err := c.withAttr(ctx, fh, post)
	return Node{Path: p, Handle: fh, Attr: attr}, withPath(err, p)
}

// RemovePath removes the object at path, which may be an empty directory. It removes a symbolic link itself, not its
// target.
func (c *Client) RemovePath(ctx context.Context, path string) error {
	dir, name, err := c.parent(ctx, path)
	if err != nil {
		return err
	}
	_, attr, err := c.lookupAttr(ctx, dir.Handle, name)
	if err == nil {
		if attr.Type == TypeDir {
			err = c.Rmdir(ctx, dir.Handle, name)
		} else {
			err = c.Remove(ctx, dir.Handle, name)
		}
	}
	return withPath(err, cleanPath(path))
}

// RenamePath renames the object at from to the path to, and replaces an existing object if the server can. Both paths
// must be in the same export.
func (c *Client) RenamePath(ctx context.Context, from, to string) error {
	fromDir, fromName, err := c.parent(ctx, from)
	if err != nil {
		return err
	}
	toDir, toName, err := c.parent(ctx, to)
	if err != nil {
		return err
	}
	return withPath(c.Rename(ctx, fromDir.Handle, fromName, toDir.Handle, toName), cleanPath(from))
}
