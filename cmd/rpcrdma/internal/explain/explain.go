// Package explain turns errors into messages for people: what went wrong, where if that is not obvious, what to do
// about it, and what the protocol calls it. It knows the errors of the libraries. The command's own errors explain
// themselves, as an [Explainer].
package explain

import (
	"cmp"
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

	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/loadgen"
	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/notify"
	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/provider"
	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/iwarp"
	"github.com/rpcrdma/rpcrdma/nfs"
	"github.com/rpcrdma/rpcrdma/proto/dump"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/rdmacm"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/rpc/rpcbind"
	"github.com/rpcrdma/rpcrdma/rpc/rpcsec"
	"github.com/rpcrdma/rpcrdma/rpc/rpcsec/krb5"
	"github.com/rpcrdma/rpcrdma/transport"
)

// Text returns an error as one line for people: what went wrong, where if that has not been said, what to do about it,
// and in parentheses what the protocol calls it. All explanations of errors come from here. Errors of the command are
// checked first, and those of the system last, because each error may wrap errors of the layers below.
func Text(err error) string {
	for _, layer := range [...]func(error) (text string, ok bool){
		explainOwn, explainNFS, explainSecurity, explainRPC, explainConn, RDMA, explainSystem,
	} {
		if text, ok := layer(err); ok {
			return text
		}
	}
	return OneLine(err)
}

// An Explainer is an error of the command that provides its own Text.
type Explainer interface {
	error
	Explain() string
}

// explainOwn is Text for errors of the command.
func explainOwn(err error) (text string, ok bool) {
	if item, ok := err.(*ItemError); ok {
		return Printable(item.path) + ": " + Text(item.err), true
	}
	if e, ok := errors.AsType[Explainer](err); ok {
		return e.Explain(), true
	}
	return "", false
}

// explainNFS is Text for errors from NFS and MOUNT servers.
func explainNFS(err error) (text string, ok bool) {
	var (
		status   *nfs.Error
		mount    *nfs.MountError
		fallback *nfs.MountFallbackError
		changed  *nfs.ChangedError
		none     *nfs.NoExportError
		path     *fs.PathError
	)
	switch {
	case errors.As(err, &status):
		return statusText(status.Status), true
	case errors.As(err, &changed):
		return "it changed while it was read (" + changed.What() + "): read it again for one version of it", true
	case errors.As(err, &mount):
		return mountText(mount), true
	case errors.As(err, &fallback):
		return fmt.Sprintf("no MOUNT on the NFS connection (%s), nor on one of its own: %s", Text(fallback.RDMA), Text(fallback.TCP)), true
	case errors.As(err, &none):
		return noExportText(none), true
	case errors.Is(err, nfs.ErrNoExport):
		return "the server exports nothing that contains it", true
	case errors.Is(err, nfs.ErrSymlinkEscape), errors.Is(err, nfs.ErrSymlinkLoop), errors.Is(err, nfs.ErrDirectory):
		for errors.As(err, &path) {
			err = path.Err
		}
		return OneLine(err), true
	}
	return "", false
}

// mountText returns the reason why an export could not be mounted.
func mountText(e *nfs.MountError) string {
	if e.Status == nfs.MountNoEnt {
		return fmt.Sprintf("the server does not export %s (%v)", Printable(e.Dir), e.Status)
	}
	// The numbers are those of NFS. RFC 1813 section 5.1.5.
	text, _, _ := strings.Cut(statusText(nfs.Status(e.Status)), " (")
	text = fmt.Sprintf("mounting %s: %s (%v)", Printable(e.Dir), text, e.Status)
	if e.Status == nfs.MountAcces {
		text += ": the server does not export it to this machine, or to this user"
	}
	return text
}

// explainSecurity is Text for errors of Kerberos and RPCSEC_GSS, at either end.
func explainSecurity(err error) (text string, ok bool) {
	var (
		context *rpcsec.ContextError
		reply   *rpcsec.ReplyError
		ticket  *krb5.Error
	)
	switch {
	case errors.As(err, &context) && errors.As(context.Err, &ticket):
		text = OneLine(ticket)
		if context.Refused {
			text += " (says the server)"
		} else if ticket.Code == krb5.CodeNoKey && ticket.Client == "" {
			text += "; kinit gets tickets, and --keytab has a key"
		}
		return text, true
	case errors.As(err, &context):
		return OneLine(context), true
	case errors.As(err, &reply):
		return OneLine(reply), true
	}
	return "", false
}

// explainRPC is Text for errors from RPC, rpcbind and RPC-over-RDMA.
func explainRPC(err error) (text string, ok bool) {
	var (
		binding *rpcbind.OpError
		answer  *rpcbind.BadReplyError
		denied  *oncrpc.RPCError
		rdma    *rpc.RDMAError
		version *rpc.VersionError
		plain   *transport.TLSError
		dial    *transport.DialError
	)
	switch {
	case errors.As(err, &dial) && errors.As(dial.Err, &plain): // whatever the server said about TLS
		return NoConnection(dial), true
	case errors.As(err, &plain):
		return OneLine(plain), true
	case errors.As(err, &binding):
		return rpcbindText(binding), true
	case errors.As(err, &answer):
		return "invalid answer: " + strings.TrimPrefix(answer.Err.Error(), "rpcbind: "), true
	case errors.As(err, &denied):
		return rpcText(denied), true
	case errors.As(err, &rdma):
		return OneLine(rdma), true
	case errors.As(err, &version):
		return OneLine(version), true
	}
	return "", false
}

// explainConn is Text for connections that could not be made or were lost.
func explainConn(err error) (text string, ok bool) {
	var (
		dial     *transport.DialError
		busy     *transport.BusyError
		reject   *fabric.RejectError
		lost     *rpc.LostError
		closed   *rpc.ClosedError
		stranger *iwarp.StrangerError
		setup    *iwarp.SetupError
	)
	switch {
	case errors.As(err, &dial):
		text := NoConnection(dial)
		if Unanswered(dial) && handshake(dial) == "" {
			text += askServer
		}
		return text + OtherProvider(dial), true
	case errors.Is(err, rdmacm.ErrNotBuilt):
		return "this build has provider iwarp alone: provider rdma needs a build with cgo and rdma-core", true
	case errors.As(err, &busy):
		return "the server takes no more connections at the moment: try again later", true
	case errors.As(err, &reject):
		return "the server rejected it", true
	case errors.As(err, &lost) && lost.Reason != nil:
		return lostText(lost.Reason), true
	case errors.As(err, &closed) && closed.Reason == nil:
		return "connection closed", true
	case errors.As(err, &closed):
		return lostText(closed.Reason), true
	case errors.As(err, &stranger) && stranger.Text() == "TLS":
		return stranger.Error() + ": use --tls require, or check the port", true
	case errors.As(err, &stranger):
		return stranger.Error() + ": check the port", true
	case errors.As(err, &setup) && setup.Err == nil:
		return setup.Reason, true
	}
	return "", false
}

// askServer is appended to errors of connections that could not be made.
const askServer = "; is there an RDMA server?"

// NoConnection returns the reason why no connection was made, without a suggestion.
func NoConnection(err error) string {
	dial, ok := errors.AsType[*transport.DialError](err)
	if !ok || errors.As(err, new(Explainer)) {
		return Text(err)
	}
	why, ended := Ended(dial.Err)
	switch failed := handshake(dial); {
	case failed != "":
		why = failed
	case ended:
	case Unanswered(dial):
		why = "the other end takes connections and does not answer"
	default:
		why = Text(dial.Err)
	}
	return fmt.Sprintf("no connection to %s over %s: %s", Printable(dial.Addr), dial.Provider, why)
}

// handshake returns the reason why TLS below iWARP failed, or "" if that was not the problem.
func handshake(dial *transport.DialError) string {
	if e, ok := errors.AsType[*iwarp.SetupError](dial.Err); ok && strings.HasPrefix(e.Reason, "no TLS") {
		return strings.TrimPrefix(e.Error(), dial.Provider+": "+dial.Addr+": ")
	}
	return ""
}

// Unanswered reports whether the other end accepted the TCP connection of a provider, but then sent nothing that the
// provider understands.
func Unanswered(err error) bool {
	dial, ok := errors.AsType[*transport.DialError](err)
	if !ok || dial.Provider == provider.TCP {
		return false
	}
	_, ended := Ended(dial.Err)
	return ended || errors.As(dial.Err, new(*iwarp.SetupError)) && errors.Is(dial.Err, os.ErrDeadlineExceeded)
}

// lostText returns the reason why a connection was lost or could not be reestablished.
func lostText(err error) string {
	if errors.As(err, new(*transport.DialError)) {
		return Text(err)
	}
	why, ended := Ended(err)
	if !ended {
		why = Text(err)
	}
	return "connection lost: " + why
}

// Ended describes the end of a TCP connection, closed by the other end or by a system error. Elsewhere the same errors
// concern files.
func Ended(err error) (text string, ok bool) {
	var errno syscall.Errno
	conn, ok := errors.AsType[*fabric.ConnError](err)
	switch {
	case ok && conn.Clean && conn.Remote:
		return "the other end closed the connection", true
	case errors.Is(err, io.ErrUnexpectedEOF), err == io.EOF:
		return "the other end closed the connection", true
	case errors.As(err, &errno) && (errno == syscall.ECONNRESET || errno == syscall.EPIPE):
		return "the other end closed the connection (" + errno.Error() + ")", true
	}
	return "", false
}

// explainSystem is Text for errors of the system.
func explainSystem(err error) (text string, ok bool) {
	var (
		dns     *net.DNSError
		address *net.AddrError
		link    *os.LinkError
		path    *fs.PathError
		errno   syscall.Errno
	)
	switch {
	case errors.As(err, &dns) && dns.IsNotFound:
		return "no such host: check the name, or give an address", true
	case errors.As(err, &dns):
		return "the name of the host cannot be looked up: " + strings.ReplaceAll(dns.Err, "\n", "; "), true
	case errors.As(err, &address):
		return address.Err, true
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded):
		return "timed out", true
	case errors.As(err, &link):
		return fmt.Sprintf("local file %s: %v", Printable(link.New), link.Err), true
	case errors.As(err, &path):
		return fmt.Sprintf("local file %s: %v", Printable(path.Path), path.Err), true
	case errors.As(err, &errno) && errno == syscall.ECONNREFUSED:
		return errno.Error() + ": nothing listens there", true
	case errors.As(err, &errno):
		return errno.Error(), true
	}
	return "", false
}

// Error returns an error that wraps err, with the text Text(err).
func Error(err error) error {
	if err == nil {
		return nil
	}
	return errors.New(Text(err))
}

// OneLine returns the text of an error on one line.
func OneLine(err error) string {
	return strings.ReplaceAll(strings.TrimPrefix(err.Error(), "nfs: "), "\n", "; ")
}

// rpcText returns the reason why a server did not execute a call.
func rpcText(e *oncrpc.RPCError) string {
	name, _ := dump.Names(e.Prog, e.Vers, e.Proc)
	if name == "" && e.Names != nil {
		name = e.Names.Name
	}
	if name == "" {
		name = fmt.Sprintf("program %d", e.Prog)
	}
	switch {
	case e.Stat == oncrpc.MsgAccepted && e.AcceptStat == oncrpc.ProgUnavail:
		text := fmt.Sprintf("the server does not have %s (%v)", name, e.AcceptStat)
		switch e.Prog {
		case notify.RpcrdmaNotify:
			text += ": of servers, 'rpcrdma serve' alone can be watched"
		case loadgen.ProgramNumber:
			text += ": of servers, 'rpcrdma serve' alone can be measured"
		}
		return text
	case e.Stat == oncrpc.MsgAccepted && e.AcceptStat == oncrpc.ProgMismatch:
		versions := fmt.Sprintf("version %d", e.Low)
		if e.High != e.Low {
			versions = fmt.Sprintf("versions %d to %d", e.Low, e.High)
		}
		return fmt.Sprintf("the server has %s in %s only, not %d (%v)", name, versions, e.Vers, e.AcceptStat)
	}
	if e.Stat == oncrpc.MsgDenied && e.RejectStat == oncrpc.AuthError && e.AuthStat == oncrpc.AuthTooWeak {
		return OneLine(e) + ": it may need --tls require"
	}
	return OneLine(e)
}

// statusText describes a status for people.
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

// Printable returns a name in which everything that a terminal would interpret is escaped.
func Printable(name string) string {
	if quoted := strconv.Quote(name); quoted != `"`+name+`"` {
		return quoted
	}
	return name
}

// noExportText lists the first exports of a server instead.
func noExportText(e *nfs.NoExportError) string {
	const most = 3
	var dirs []string
	for _, x := range e.Exports[:min(len(e.Exports), most)] {
		dirs = append(dirs, Printable(x.Dir))
	}
	switch more := len(e.Exports) - most; {
	case len(dirs) == 0:
		return "the server exports nothing"
	case more > 0:
		return fmt.Sprintf("the server exports only %s and %d more", strings.Join(dirs, ", "), more)
	}
	return fmt.Sprintf("the server exports only %s", strings.Join(dirs, ", "))
}

// An ItemError is an error of one file of a tree.
type ItemError struct {
	path string // slash-separated, below the tree's root
	err  error
}

func (e *ItemError) Error() string { return e.path + ": " + e.err.Error() }

func (e *ItemError) Unwrap() error { return e.err }

// Item returns err as an error of one file of a tree.
func Item(path string, err error) error { return &ItemError{path, err} }

// TypeName returns a word for a file type.
func TypeName(t nfs.FileType) string {
	switch t {
	case nfs.TypeReg:
		return "file"
	case nfs.TypeDir:
		return "directory"
	case nfs.TypeLnk:
		return "link"
	case nfs.TypeBlk:
		return "block device"
	case nfs.TypeChr:
		return "character device"
	case nfs.TypeSock:
		return "socket"
	case nfs.TypeFIFO:
		return "fifo"
	}
	return fmt.Sprintf("thing of unknown type %d", uint32(t))
}

// HowToGetDevices returns advice for a machine without devices.
func HowToGetDevices(contained bool) string {
	if contained {
		return ". A container uses the devices of its host, which loads ib_uverbs, rdma_ucm and the adapter's kernel module; " +
			"docker run and podman run pass them on with '--network host --device /dev/infiniband --ulimit memlock=-1'"
	}
	return ". An adapter needs its kernel module, ib_uverbs, rdma_ucm and Debian's package ibverbs-providers. " +
		"For one in software, as root: 'modprobe rdma_rxe rdma_ucm', then 'rdma link add rxe0 type rxe netdev NETDEV'"
}

// OtherProvider returns the end of a sentence that suggests another provider, or another port, where no server was
// found. It may be "".
func OtherProvider(e *transport.DialError) string {
	refused := errors.Is(e.Err, syscall.ECONNREFUSED)
	switch {
	case e.Provider == provider.RDMA && (refused || NoAnswer(e.Err)):
		return "; a server that speaks iWARP over TCP is reached with --provider iwarp"
	case e.Provider == provider.IWARP && refused && provider.HasDevices() && !provider.Loopback(e.Addr):
		return "; a server on an RDMA device is reached with --provider rdma"
	case e.Provider == provider.IWARP && refused && strings.HasSuffix(e.Addr, ":20049"):
		return "; a server over TCP is reached with --provider tcp"
	case refused:
		return "; is the server running, and is this its port?"
	}
	return ""
}

// rpcbindText describes the request that an rpcbind refused, and the reason.
func rpcbindText(e *rpcbind.OpError) string {
	program, _ := dump.Names(e.Prog, e.Vers, 0)
	what := fmt.Sprintf("%s version %d over %s", cmp.Or(program, fmt.Sprintf("program %d", e.Prog)), e.Vers, e.Netid)
	var answer *oncrpc.RPCError
	denied := errors.As(e.Err, &answer) && answer.Stat == oncrpc.MsgDenied && answer.RejectStat == oncrpc.AuthError
	why := Text(e.Err)
	switch e.Op {
	case "SET":
		if e.Err == rpcbind.ErrRefused {
			why = "another address is registered already; is another server running?"
		} else if denied {
			why = fmt.Sprintf("it accepts that only from its own machine (%v)", answer.AuthStat)
		}
		return fmt.Sprintf("registering %s with the rpcbind at %s: %s", what, e.Server, why)
	case "UNSET":
		return fmt.Sprintf("unregistering %s with the rpcbind at %s: %s", what, e.Server, why)
	}
	if e.Err == rpcbind.ErrNotRegistered {
		return fmt.Sprintf("the rpcbind at %s has no %s registered", e.Server, what)
	}
	return fmt.Sprintf("asking the rpcbind at %s for %s: %s", e.Server, what, why)
}
