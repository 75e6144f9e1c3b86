package notify

import (
	"errors"
	"io/fs"
	"strconv"
	"strings"
	"syscall"

	"github.com/rpcrdma/rpcrdma/proto/xdr"
)

//go:generate go run github.com/rpcrdma/rpcrdma/cmd/xdrgen -o notify_xdr.go notify.x

// statusTexts are the meanings of statuses. Immutable.
var statusTexts = []string{
	StatusNoEnt:   "no such directory",
	StatusNotDir:  "not a directory",
	StatusAcces:   "no permission to list it",
	StatusFull:    "the server has too many watches",
	StatusTooMuch: "too many directories or files to watch",
	StatusSystem:  "the server's system cannot watch it",
	StatusGone:    "the directory has been removed or renamed",
}

// Error returns the meaning of the status and its name.
func (s Status) Error() string {
	if s > StatusOK && int(s) < len(statusTexts) {
		return statusTexts[s] + " (" + s.String() + ")"
	}
	return s.String()
}

// StatusOf returns the status that describes err to a client: the Status that err wraps, or that of a file system
// error.
func StatusOf(err error) Status {
	var status Status
	switch {
	case err == nil:
		return StatusOK
	case errors.As(err, &status):
		return status
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.EINVAL):
		return StatusNoEnt
	case errors.Is(err, syscall.ENOTDIR):
		return StatusNotDir
	case errors.Is(err, fs.ErrPermission):
		return StatusAcces
	case errors.Is(err, syscall.ENAMETOOLONG):
		return StatusTooMuch
	}
	return StatusSystem
}

// String returns the kind and the text of the event.
func (e Event) String() string { return e.Kind.String() + " " + e.Text() }

// Text returns the event for people, without its kind: the paths, with a slash after those of directories, and with
// those that have unprintable characters in quotes.
func (e Event) Text() string {
	switch e.Kind {
	case Renamed:
		return e.name(e.From) + " -> " + e.name(e.Path)
	case Overflow:
		return e.name(e.Path) + " changes were lost: rescan this directory"
	case Ended:
		return e.Status.Error()
	case Watching:
		return ""
	}
	return e.name(e.Path)
}

func (e Event) name(path string) string {
	if path == "" {
		path = "."
	}
	if e.IsDir {
		path += "/"
	}
	if quoted := strconv.Quote(path); quoted != `"`+path+`"` {
		return quoted
	}
	return path
}

// overflow returns the event that replaces any number of others.
func overflow() Event { return Event{Kind: Overflow, IsDir: true} }

// size returns the encoded size in bytes.
func (e *Event) size() int {
	switch e.Kind {
	case Ended, Watching:
		return 2 * xdr.Unit
	case Renamed:
		return 2*xdr.Unit + xdr.SizeOpaque(len(e.Path)) + xdr.SizeOpaque(len(e.From))
	}
	return 2*xdr.Unit + xdr.SizeOpaque(len(e.Path))
}

// shorten replaces the event by an overflow of the nearest directory above it that encodes in limit bytes.
func (e *Event) shorten(limit int) {
	*e = Event{Kind: Overflow, IsDir: true, Path: e.Path}
	for e.Path != "" && e.size() > limit {
		e.Path = e.Path[:max(strings.LastIndexByte(e.Path, '/'), 0)]
	}
}
