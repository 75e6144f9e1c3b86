package notify

import (
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"
	"syscall"

	"github.com/rpcrdma/rpcrdma/proto/xdr"
)

// The programs and their procedures, besides NULL.
const (
	ServerProgram = 0x2052444e // RPCRDMA_NOTIFY
	ServerVersion = 1

	ProcSubscribe   = 1
	ProcUnsubscribe = 2

	ClientProgram = 0x2052444f // RPCRDMA_NOTIFIED
	ClientVersion = 1

	ProcNotify = 1
)

// MaxPath is the longest path of an event, in bytes.
const MaxPath = 4096

// maxEvents is how many events a NOTIFY may have.
const maxEvents = 256

// A token identifies a subscription.
type token [16]byte

// A Status is why a subscription was not made, or has ended. As an error it reads as a
// text for people.
type Status uint32

// The statuses of the protocol.
const (
	StatusOK      Status = iota
	StatusNoEnt          // no such directory
	StatusNotDir         // not a directory
	StatusAcces          // the server may not read it
	StatusFull           // too many subscriptions
	StatusTooMuch        // too many directories or names below it
	StatusSystem         // the server's system cannot watch it
	StatusUnknown        // no such subscription
	StatusGone           // removed or renamed
)

// What statuses are called and what they mean. Immutable.
var (
	statusNames = []string{"OK", "NOENT", "NOTDIR", "ACCES", "FULL", "TOOMUCH", "SYSTEM", "UNKNOWN", "GONE"}
	statusTexts = []string{
		StatusNoEnt:   "no such directory",
		StatusNotDir:  "not a directory",
		StatusAcces:   "the server may not read it",
		StatusFull:    "the server has too many subscriptions",
		StatusTooMuch: "too many directories or files to watch",
		StatusSystem:  "the server's system cannot watch it",
		StatusUnknown: "the server does not know the subscription",
		StatusGone:    "the directory has been removed or renamed",
	}
)

func (s Status) String() string {
	if uint64(s) < uint64(len(statusNames)) {
		return statusNames[s]
	}
	return fmt.Sprintf("status %d", uint32(s))
}

func (s Status) Error() string {
	if s != StatusOK && uint64(s) < uint64(len(statusTexts)) {
		return statusTexts[s] + " (" + s.String() + ")"
	}
	return s.String()
}

// StatusOf returns the status that tells a client of err: the Status that err wraps, or
// that of an error of the file system.
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

// A Kind says what has happened.
type Kind uint32

// The kinds of events.
const (
	Created    Kind = iota + 1
	Removed         // or renamed to a place outside the subscription
	Modified        // contents of a file; may be told once more than it happened
	Attributes      // mode, owner, times, links
	Overflow        // changes were missed, anywhere below Path
	Renamed
	Ended // the last event of a subscription
)

// kindNames are the names of kinds. Immutable.
var kindNames = []string{
	Created: "created", Removed: "removed", Modified: "modified", Attributes: "attributes",
	Overflow: "overflow", Renamed: "renamed", Ended: "ended",
}

func (k Kind) String() string {
	if k != 0 && uint64(k) < uint64(len(kindNames)) {
		return kindNames[k]
	}
	return fmt.Sprintf("kind %d", uint32(k))
}

// An Event is a change. Paths are slash-separated, below the directory of the
// subscription, and at most [MaxPath] bytes long; "" is the directory itself.
type Event struct {
	Kind   Kind
	IsDir  bool
	Path   string // for Renamed, the new one
	From   string // for Renamed, the old one
	Status Status // for Ended
}

func (e Event) String() string { return e.Kind.String() + " " + e.Text() }

// Text is the event without its kind, for people: the paths, those of directories with a
// slash at the end, those with unprintable characters in quotes.
func (e Event) Text() string {
	switch e.Kind {
	case Renamed:
		return e.name(e.From) + " -> " + e.name(e.Path)
	case Overflow:
		return e.name(e.Path) + " changes were missed here: look for yourself"
	case Ended:
		return e.Status.Error()
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

// overflow is the event that stands for any number of others.
func overflow() Event { return Event{Kind: Overflow, IsDir: true} }

// size is the encoded size in bytes.
func (e *Event) size() int {
	switch e.Kind {
	case Ended:
		return 2 * xdr.Unit
	case Renamed:
		return 2*xdr.Unit + xdr.SizeOpaque(len(e.Path)) + xdr.SizeOpaque(len(e.From))
	}
	return 2*xdr.Unit + xdr.SizeOpaque(len(e.Path))
}

func (e *Event) append(b []byte) []byte {
	b = xdr.AppendUint32(b, uint32(e.Kind))
	if e.Kind == Ended {
		return xdr.AppendUint32(b, uint32(e.Status))
	}
	b = xdr.AppendBool(b, e.IsDir)
	b = xdr.AppendString(b, e.Path)
	if e.Kind == Renamed {
		b = xdr.AppendString(b, e.From)
	}
	return b
}

func (e *Event) decode(d *xdr.Decoder) {
	*e = Event{Kind: Kind(d.Uint32())}
	switch e.Kind {
	case Created, Removed, Modified, Attributes, Overflow, Renamed:
		e.IsDir = d.Bool()
		e.Path = d.String(MaxPath)
		if e.Kind == Renamed {
			e.From = d.String(MaxPath)
		}
	case Ended:
		e.Status = Status(d.Uint32())
	default:
		d.Fail("no such kind of event")
	}
}

// shorten replaces the event by an overflow of a directory above it whose encoding has at
// most limit bytes.
func (e *Event) shorten(limit int) {
	*e = Event{Kind: Overflow, IsDir: true, Path: e.Path}
	for e.Path != "" && e.size() > limit {
		e.Path = e.Path[:max(strings.LastIndexByte(e.Path, '/'), 0)]
	}
}

// notifyArgs are the arguments of NOTIFY.
type notifyArgs struct {
	id     token
	number uint64
	events []Event
}

// notifyHead is the encoded size of notifyArgs without events, in bytes.
const notifyHead = 16 + 8 + 4

func (a *notifyArgs) append(b []byte) []byte {
	b = xdr.AppendFixedOpaque(b, a.id[:])
	b = xdr.AppendUint64(b, a.number)
	b = xdr.AppendUint32(b, uint32(len(a.events)))
	for i := range a.events {
		b = a.events[i].append(b)
	}
	return b
}

// decode reuses the memory of a.events.
func (a *notifyArgs) decode(d *xdr.Decoder) {
	copy(a.id[:], d.FixedOpaque(len(a.id)))
	a.number = d.Uint64()
	a.events = a.events[:0]
	for range d.Count(maxEvents, 2*xdr.Unit) {
		var e Event
		e.decode(d)
		a.events = append(a.events, e)
	}
}

// subscribeArgs are the arguments of SUBSCRIBE.
type subscribeArgs struct {
	dir       string
	recursive bool
	again     bool // old is there
	old       token
}

func (a *subscribeArgs) append(b []byte) []byte {
	b = xdr.AppendString(b, a.dir)
	b = xdr.AppendBool(b, a.recursive)
	b = xdr.AppendBool(b, a.again)
	if a.again {
		b = xdr.AppendFixedOpaque(b, a.old[:])
	}
	return b
}

func (a *subscribeArgs) decode(d *xdr.Decoder) {
	a.dir = d.String(MaxPath)
	a.recursive = d.Bool()
	if a.again = d.Bool(); a.again {
		copy(a.old[:], d.FixedOpaque(len(a.old)))
	}
}

// subscribeRes are the results of SUBSCRIBE.
type subscribeRes struct {
	status Status
	id     token
	again  bool
	grace  uint32 // seconds
}

func (r *subscribeRes) append(b []byte) []byte {
	b = xdr.AppendUint32(b, uint32(r.status))
	if r.status == StatusOK {
		b = xdr.AppendFixedOpaque(b, r.id[:])
		b = xdr.AppendBool(b, r.again)
		b = xdr.AppendUint32(b, r.grace)
	}
	return b
}

func (r *subscribeRes) decode(d *xdr.Decoder) {
	*r = subscribeRes{status: Status(d.Uint32())}
	if r.status == StatusOK {
		copy(r.id[:], d.FixedOpaque(len(r.id)))
		r.again = d.Bool()
		r.grace = d.Uint32()
	}
}
