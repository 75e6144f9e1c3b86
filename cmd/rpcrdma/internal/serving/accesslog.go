package serving

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"strconv"
	"sync"
	"time"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/rpcrdma/rpcrdma/nfs"
	"github.com/rpcrdma/rpcrdma/nfs/nfsd"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
)

// Limits of an access log.
const (
	maxAccessWaiting = 1 << 20         // bytes of lines waiting for the disk
	accessEnd        = 5 * time.Second // for the remaining lines when the server ends
)

// accessFormat is the value of --access-log-format.
type accessFormat struct{ json bool }

func (v *accessFormat) Type() string { return "FORMAT" }

func (v *accessFormat) String() string {
	if v.json {
		return "json"
	}
	return "text"
}

func (v *accessFormat) Completions() []string { return []string{"text", "json"} }

func (v *accessFormat) Set(s string) error {
	if s != "text" && s != "json" {
		return errors.New("want text or json")
	}
	v.json = s == "json"
	return nil
}

// accessLog writes a line for each call. Calls wait neither for the disk nor for other lines: a goroutine writes them
// in the background, and lines for which there is no room are counted instead.
type accessLog struct {
	format  func([]byte, *nfsd.Access) []byte
	lostFmt string
	open    func() (io.WriteCloser, error)
	log     *slog.Logger
	lines   sync.Pool     // *[]byte
	wake    chan struct{} // capacity 1
	done    chan struct{} // closed when everything is written

	mu      sync.Mutex
	waiting []byte // lines
	lost    uint64 // lines dropped since the last report
	again   bool   // reopen the file
	ended   bool

	// Owned by the writing goroutine.
	out    io.WriteCloser
	failed bool // the last write failed, and that was reported
	torn   bool // the last write ended within a line
}

// openAccessLog opens a log in the file path; "-" means stdout.
func openAccessLog(path string, asJSON bool, stdout io.Writer, log *slog.Logger) (*accessLog, error) {
	open := func() (io.WriteCloser, error) {
		return os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	}
	if path == "-" {
		open = func() (io.WriteCloser, error) { return unclosed{stdout}, nil }
	}
	return newAccessLog(open, asJSON, log)
}

// unclosed is a Writer that Close leaves open.
type unclosed struct{ io.Writer }

func (unclosed) Close() error { return nil }

func newAccessLog(open func() (io.WriteCloser, error), asJSON bool, log *slog.Logger) (*accessLog, error) {
	out, err := open()
	if err != nil {
		return nil, err
	}
	l := &accessLog{
		format: appendAccess, lostFmt: "%s lost=%d\n", open: open, out: out, log: log,
		wake: make(chan struct{}, 1), done: make(chan struct{}),
	}
	if asJSON {
		l.format, l.lostFmt = appendAccessJSON, `{"time":"%s","lost":%d}`+"\n"
	}
	l.lines.New = func() any { return new([]byte) }
	go l.run()
	return l, nil
}

// note implements nfsd.Config.Access.
func (l *accessLog) note(a *nfsd.Access) {
	line := l.lines.Get().(*[]byte)
	*line = l.format((*line)[:0], a)
	l.mu.Lock()
	if len(l.waiting)+len(*line) <= maxAccessWaiting && !l.ended {
		l.waiting = append(l.waiting, *line...)
	} else {
		l.lost++
	}
	l.mu.Unlock()
	l.lines.Put(line)
	l.kick()
}

func (l *accessLog) kick() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// reopen makes the log open its file again, which may by then be another file. Lines of earlier calls may still go to
// the old one.
func (l *accessLog) reopen() {
	l.mu.Lock()
	l.again = true
	l.mu.Unlock()
	l.kick()
}

// Close writes the remaining lines, but gives up after accessEnd.
func (l *accessLog) Close() error {
	l.mu.Lock()
	l.ended = true
	l.mu.Unlock()
	l.kick()
	late := time.NewTimer(accessEnd)
	defer late.Stop()
	select {
	case <-l.done:
		return nil
	case <-late.C:
		l.log.Error("the end of the access log could not be written in time", "waited", accessEnd)
		return os.ErrDeadlineExceeded
	}
}

// run writes lines until the log is closed.
func (l *accessLog) run() {
	defer close(l.done)
	var lines []byte
	for ended := false; !ended; {
		<-l.wake
		l.mu.Lock()
		lines, l.waiting = l.waiting, lines[:0]
		lost, again := l.lost, l.again
		l.lost, l.again, ended = 0, false, l.ended
		l.mu.Unlock()
		if again {
			l.openAgain()
		}
		if lost > 0 {
			lines = fmt.Appendf(lines, l.lostFmt, time.Now().UTC().Format(accessTime), lost)
		}
		if n, err := l.write(lines); err != nil {
			more := uint64(bytes.Count(lines[n:], []byte{'\n'}))
			if lost > 0 {
				more += lost - 1 // the message about lost lines is itself a line
			}
			l.mu.Lock()
			l.lost += more
			l.mu.Unlock()
		}
	}
	l.out.Close()
}

// openAgain reopens the file. If that fails, it keeps the open one.
func (l *accessLog) openAgain() {
	out, err := l.open()
	if err != nil {
		l.log.Error("the access log stays in the file that is open", "err", err)
		return
	}
	l.out.Close()
	l.out, l.torn = out, false
}

// write writes lines and returns how many bytes it has written. It reports only the first of several failures.
func (l *accessLog) write(lines []byte) (n int, err error) {
	if len(lines) == 0 {
		return 0, nil
	}
	if l.torn {
		_, err = l.out.Write([]byte{'\n'})
	}
	if err == nil {
		n, err = l.out.Write(lines)
		l.torn = n > 0 && lines[n-1] != '\n'
	}
	if err != nil && !l.failed {
		l.log.Error("the access log cannot be written: lines are lost", "err", err)
	}
	l.failed = err != nil
	return n, err
}

// accessTime is the format of times in the log, in UTC.
const accessTime = "2006-01-02T15:04:05.000000Z"

// accessProc returns the name of a call's procedure.
func accessProc(a *nfsd.Access) string {
	if a.Prog == nfs.Program {
		return nfs.ProcName(a.Proc)
	}
	switch a.Proc {
	case nfs.MountProcMnt:
		return "MNT"
	case nfs.MountProcDump:
		return "DUMP"
	case nfs.MountProcUmnt:
		return "UMNT"
	case nfs.MountProcUmntAll:
		return "UMNTALL"
	case nfs.MountProcExport:
		return "EXPORT"
	}
	return "MOUNT_" + strconv.FormatUint(uint64(a.Proc), 10)
}

// accessStatus describes the result of a call.
func accessStatus(a *nfsd.Access) string {
	switch {
	case a.Deny != oncrpc.AuthOK:
		return a.Deny.String()
	case a.Fail != oncrpc.Success:
		return a.Fail.String()
	case a.Prog == nfs.Program:
		return a.Status.String()
	case a.Proc == nfs.MountProcMnt:
		return nfs.MountStatus(a.Status).String()
	}
	return oncrpc.Success.String()
}

// moves reports whether a call reads or writes data.
func moves(a *nfsd.Access) bool {
	return a.Prog == nfs.Program && (a.Proc == nfs.ProcRead || a.Proc == nfs.ProcWrite)
}

// appendAccess appends a text line: time, client, procedure, status and duration in seconds, followed by named fields.
// Names are quoted as in Go, in printable ASCII.
func appendAccess(b []byte, a *nfsd.Access) []byte {
	b = a.Time.UTC().AppendFormat(b, accessTime)
	b = appendClient(append(b, ' '), a.Client)
	b = append(append(b, ' '), accessProc(a)...)
	b = append(append(b, ' '), accessStatus(a)...)
	b = strconv.AppendFloat(append(b, ' '), a.Duration.Seconds(), 'f', 6, 64)
	number := func(key string, n uint64) {
		b = append(append(append(b, ' '), key...), '=')
		b = strconv.AppendUint(b, n, 10)
	}
	quoted := func(key, s string) {
		b = append(append(append(b, ' '), key...), '=')
		b = strconv.AppendQuoteToASCII(b, s)
	}
	object := func(key string, o nfsd.Object) {
		b = append(append(append(b, ' '), key...), '=')
		b = appendObject(b, o)
	}
	accessFields(a, number, quoted, object)
	return append(b, '\n')
}

// accessFields calls a function for each field that is present, in order.
func accessFields(a *nfsd.Access, number func(string, uint64), quoted func(string, string), object func(string, nfsd.Object)) {
	if a.Flavor == oncrpc.FlavorSys {
		number("uid", uint64(a.UID))
		number("gid", uint64(a.GID))
	}
	if p := a.Principal; p != nil {
		quoted("principal", p.Name)
		quoted("service", p.Service.String())
	}
	if a.Export != nil {
		if a.Flavor != oncrpc.FlavorSys || a.AsUID != a.UID || a.AsGID != a.GID {
			number("as_uid", uint64(a.AsUID))
			number("as_gid", uint64(a.AsGID))
		}
		quoted("export", a.Export.Name)
	}
	if a.Object != 0 {
		object("object", a.Object)
	}
	if a.Name != "" {
		quoted("name", a.Name)
	}
	if a.To != 0 {
		object("to", a.To)
	}
	if a.NewName != "" {
		quoted("new_name", a.NewName)
	}
	if a.Made != 0 {
		object("found", a.Made)
	}
	if moves(a) {
		number("offset", a.Offset)
		number("bytes", uint64(a.Bytes))
	}
}

// appendAccessJSON appends a line with a JSON object that has the contents of a text line.
func appendAccessJSON(b []byte, a *nfsd.Access) []byte {
	b = a.Time.UTC().AppendFormat(append(b, `{"time":"`...), accessTime)
	b = appendClient(append(b, `","client":"`...), a.Client)
	b = append(append(b, `","procedure":"`...), accessProc(a)...)
	b = append(append(b, `","status":"`...), accessStatus(a)...)
	b = strconv.AppendFloat(append(b, `","seconds":`...), a.Duration.Seconds(), 'f', 6, 64)
	key := func(key string) { b = append(append(append(b, `,"`...), key...), `":`...) }
	accessFields(a, func(k string, n uint64) {
		key(k)
		b = strconv.AppendUint(b, n, 10)
	}, func(k, s string) {
		key(k)
		b = appendJSONString(b, s)
	}, func(k string, o nfsd.Object) {
		key(k)
		b = append(appendObject(append(b, '"'), o), '"')
	})
	return append(b, '}', '\n')
}

func appendClient(b []byte, client netip.AddrPort) []byte {
	if !client.IsValid() {
		return append(b, "unknown"...)
	}
	return client.AppendTo(b)
}

func appendObject(b []byte, o nfsd.Object) []byte {
	const digits = "0123456789abcdef"
	for shift := 60; shift >= 0; shift -= 4 {
		b = append(b, digits[o>>shift&15])
	}
	return b
}

// appendJSONString appends a JSON string in printable ASCII. Invalid UTF-8 becomes U+FFFD.
func appendJSONString(b []byte, s string) []byte {
	b = append(b, '"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			b = append(b, '\\', byte(r))
		case r >= ' ' && r < utf8.RuneSelf && r != 0x7f:
			b = append(b, byte(r))
		case r > 0xffff:
			high, low := utf16.EncodeRune(r)
			b = appendUnit(appendUnit(b, high), low)
		default:
			b = appendUnit(b, r)
		}
	}
	return append(b, '"')
}

// appendUnit appends a UTF-16 code unit as a JSON escape.
func appendUnit(b []byte, r rune) []byte {
	const digits = "0123456789abcdef"
	return append(b, '\\', 'u', digits[r>>12&15], digits[r>>8&15], digits[r>>4&15], digits[r&15])
}
