package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/nfs"
	"github.com/rpcrdma/rpcrdma/proto/dump"
	"github.com/rpcrdma/rpcrdma/proto/mpa"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/rdmacm"
	"github.com/rpcrdma/rpcrdma/rpcbind"
	"github.com/rpcrdma/rpcrdma/transport"
)

// explain returns an error as one line for people: what went wrong, and in parentheses what
// the protocol calls it.
func explain(err error) string {
	if item, ok := err.(*itemError); ok {
		return printable(item.path) + ": " + explain(item.err)
	}
	if stall, ok := errors.AsType[*stallError](err); ok {
		return stall.Error()
	}
	var (
		status   *nfs.Error
		mount    *nfs.MountError
		fallback *nfs.MountFallbackError
		rpc      *oncrpc.RPCError
		binding  *rpcbind.OpError
		answer   *rpcbind.BadReplyError
		rdma     *transport.RDMAError
		dial     *transport.DialError
		reject   *fabric.RejectError
		closed   *transport.ClosedError
		lost     *transport.LostError
		source   *sourceError
		kept     *keptError
		changed  *nfs.ChangedError
		none     *nfs.NoExportError
		version  *transport.VersionError
		path     *fs.PathError
		link     *os.LinkError
		dns      *net.DNSError
	)
	switch {
	case errors.As(err, &kept):
		return explain(kept.err) + kept.hint()
	case errors.As(err, &source):
		return "reading it: " + explain(source.err)
	case errors.As(err, &status):
		return statusText(status.Status)
	case errors.As(err, &changed):
		return "it changed while it was read (" + changed.What() + "): read it again for one version of it"
	case errors.As(err, &mount):
		if mount.Status == nfs.MountNoEnt {
			return fmt.Sprintf("the server does not export %s (%v)", printable(mount.Dir), mount.Status)
		}
		// The numbers are those of NFS. RFC 1813 section 5.1.5.
		text, _, _ := strings.Cut(statusText(nfs.Status(mount.Status)), " (")
		return fmt.Sprintf("mounting %s: %s (%v)", printable(mount.Dir), text, mount.Status)
	case errors.As(err, &fallback):
		return fmt.Sprintf("no MOUNT on the RDMA connection (%s), nor over TCP: %s", explain(fallback.RDMA), explain(fallback.TCP))
	case errors.As(err, &none):
		return noExportText(none)
	case errors.Is(err, nfs.ErrNoExport):
		return "the server exports nothing that contains it"
	case errors.Is(err, nfs.ErrSymlinkEscape), errors.Is(err, nfs.ErrSymlinkLoop), errors.Is(err, nfs.ErrDirectory):
		for errors.As(err, &path) {
			err = path.Err
		}
		return oneLine(err)
	case errors.As(err, &binding):
		return rpcbindText(binding)
	case errors.As(err, &answer):
		return "invalid answer: " + strings.TrimPrefix(answer.Err.Error(), "rpcbind: ")
	case errors.As(err, &rpc):
		return rpcText(rpc)
	case errors.As(err, &rdma):
		return oneLine(rdma)
	case errors.As(err, &dial):
		why := connText(dial.Err)
		if why == "" {
			why = explain(dial.Err)
		}
		return fmt.Sprintf("no connection to %s over %s: %s%s", dial.Addr, dial.Provider, why, otherProvider(dial))
	case errors.As(err, &version):
		return oneLine(version)
	case errors.Is(err, rdmacm.ErrNotBuilt):
		return "this build has provider iwarp alone: provider rdma needs a build with cgo and rdma-core"
	case errors.As(err, &reject):
		return "the server rejected it"
	case errors.As(err, &dns) && dns.IsNotFound:
		return "no such host"
	case errors.As(err, &lost) && lost.Reason != nil:
		if why := connText(lost.Reason); why != "" {
			return "connection lost: " + why
		}
		return explain(lost.Reason)
	case errors.As(err, &closed):
		if closed.Reason == nil {
			return "connection closed"
		}
		if why := connText(closed.Reason); why != "" {
			return "connection lost: " + strings.TrimSuffix(why, askServer) // there was one
		}
		return "connection lost: " + explain(closed.Reason)
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded):
		return "timed out"
	case errors.Is(err, io.ErrUnexpectedEOF):
		return "the file became shorter while it was copied"
	case errors.As(err, &link):
		return fmt.Sprintf("local file %s: %v", printable(link.New), link.Err)
	case errors.As(err, &path):
		return fmt.Sprintf("local file %s: %v", printable(path.Path), path.Err)
	}
	if text, ok := explainRDMA(err); ok {
		return text
	}
	var sys *os.SyscallError
	if errors.As(err, &sys) {
		return sys.Err.Error()
	}
	return oneLine(err)
}

// askServer is the end of a sentence about a connection that was not made.
const askServer = "; is there an RDMA server?"

// connText says why a connection was not made or is lost, for errors that would read as if
// they were about a file. It is "" for other errors.
func connText(err error) string {
	var errno syscall.Errno
	var path *fs.PathError // of a socket in an os.File
	switch {
	case errors.Is(err, mpa.ErrKey):
		return "what answers there is no RDMA server"
	case errors.Is(err, io.ErrUnexpectedEOF), err == io.EOF:
		return "the other end closed the connection" + askServer
	case errors.As(err, &path) && errors.As(path.Err, &errno):
		return errno.Error()
	}
	return ""
}

// listenText says why listening on addr failed. It names addr once.
func listenText(addr string, err error) string {
	if text, ok := explainRDMA(err); ok {
		return text
	}
	var errno syscall.Errno
	var dns *net.DNSError
	switch {
	case errors.As(err, &errno):
		return fmt.Sprintf("listening on %s: %v", addr, errno)
	case errors.As(err, &dns) && dns.IsNotFound:
		return fmt.Sprintf("listening on %s: no such host", addr)
	}
	return oneLine(err)
}

// explained returns an error with the text of explain.
func explained(err error) error {
	if err == nil {
		return nil
	}
	return errors.New(explain(err))
}

// oneLine returns the text of an error on one line.
func oneLine(err error) string {
	return strings.ReplaceAll(strings.TrimPrefix(err.Error(), "nfs: "), "\n", "; ")
}

// rpcText says why a server did not execute a call.
func rpcText(e *oncrpc.RPCError) string {
	name, _ := dump.Names(e.Prog, e.Vers, e.Proc)
	if name == "" {
		name = fmt.Sprintf("program %d", e.Prog)
	}
	switch {
	case e.Stat == oncrpc.MsgAccepted && e.AcceptStat == oncrpc.ProgUnavail:
		return fmt.Sprintf("the server does not have %s (%v)", name, e.AcceptStat)
	case e.Stat == oncrpc.MsgAccepted && e.AcceptStat == oncrpc.ProgMismatch:
		versions := fmt.Sprintf("version %d", e.Low)
		if e.High != e.Low {
			versions = fmt.Sprintf("versions %d to %d", e.Low, e.High)
		}
		return fmt.Sprintf("the server has %s in %s only, not %d (%v)", name, versions, e.Vers, e.AcceptStat)
	}
	return oneLine(e)
}

// statusText returns a status as text for people.
func statusText(s nfs.Status) string {
	text, ok := statusTexts[s]
	if !ok {
		return s.String()
	}
	return fmt.Sprintf("%s (%v)", text, s)
}

// statusTexts are the texts of statuses. Immutable.
var statusTexts = map[nfs.Status]string{
	nfs.StatusPerm:        "not permitted",
	nfs.StatusNoEnt:       "no such file",
	nfs.StatusIO:          "the server could not read or write its disk",
	nfs.StatusNXIO:        "no such device",
	nfs.StatusAcces:       "permission denied",
	nfs.StatusExist:       "file exists",
	nfs.StatusXDev:        "not on the same file system",
	nfs.StatusNoDev:       "no such device",
	nfs.StatusNotDir:      "not a directory",
	nfs.StatusIsDir:       "is a directory",
	nfs.StatusInval:       "not possible with this kind of file",
	nfs.StatusFBig:        "file too large",
	nfs.StatusNoSpc:       "no space left on the server",
	nfs.StatusROFS:        "the server is read-only",
	nfs.StatusMLink:       "too many links",
	nfs.StatusNameTooLong: "name too long",
	nfs.StatusNotEmpty:    "directory not empty",
	nfs.StatusDQuot:       "quota exceeded on the server",
	nfs.StatusStale:       "the file is gone",
	nfs.StatusBadHandle:   "the server does not know its own file handle",
	nfs.StatusNotSupp:     "the server does not support this",
	nfs.StatusServerFault: "the server failed",
	nfs.StatusBadType:     "the server does not support this kind of file",
	nfs.StatusJukebox:     "the server needs more time; try again later",
}

// printable returns a name without anything that a terminal would execute.
func printable(name string) string {
	if quoted := strconv.Quote(name); quoted != `"`+name+`"` {
		return quoted
	}
	return name
}

// noExportText says what a server exports instead: the beginning of its list.
func noExportText(e *nfs.NoExportError) string {
	const most = 3
	var dirs []string
	for _, x := range e.Exports[:min(len(e.Exports), most)] {
		dirs = append(dirs, printable(x.Dir))
	}
	switch more := len(e.Exports) - most; {
	case len(dirs) == 0:
		return "the server exports nothing"
	case more > 0:
		return fmt.Sprintf("the server exports only %s and %d more", strings.Join(dirs, ", "), more)
	}
	return fmt.Sprintf("the server exports only %s", strings.Join(dirs, ", "))
}

// An itemError is the error of one file of a tree.
type itemError struct {
	path string // below the tree's root, with slashes
	err  error
}

func (e *itemError) Error() string { return e.path + ": " + e.err.Error() }
func (e *itemError) Unwrap() error { return e.err }
