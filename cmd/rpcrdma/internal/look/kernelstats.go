package look

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/rpcrdma/rpcrdma/nfs"
	"github.com/rpcrdma/rpcrdma/proto/dump"
)

// maxProcFile limits how much is read of a kernel file, in bytes.
const maxProcFile = 16 << 20

// kernelSample reads the kernel's counters from the files below root, which is "/". It omits counters that the kernel
// lacks.
func kernelSample(root fs.FS, now time.Time) (*Sample, error) {
	s := &Sample{Time: now}
	for _, source := range []struct {
		path  string
		parse func([]byte) ([]*section, error)
	}{
		{"proc/net/rpc/nfsd", parseServerStats},
		{"proc/net/rpc/nfs", parseClientStats},
		{"proc/self/mountstats", parseMountStats},
	} {
		b, err := readProc(root, source.path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		sections, err := source.parse(b)
		if err != nil {
			return nil, fmt.Errorf("/%s: %w", source.path, err)
		}
		s.Sections = append(s.Sections, sections...)
	}
	ports, err := portStats(root)
	s.Sections = append(s.Sections, ports...)
	return s, err
}

func readProc(root fs.FS, name string) ([]byte, error) {
	f, err := root.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxProcFile+1))
	if err == nil && len(b) > maxProcFile {
		err = fmt.Errorf("/%s is too long", name)
	}
	return b, err
}

// statLine is a line of a kernel file: a word, and the fields after it.
type statLine struct {
	key    string
	fields []string
}

// statLines returns the lines that are not empty.
func statLines(b []byte) (list []statLine) {
	s := bufio.NewScanner(bytes.NewReader(b))
	s.Buffer(nil, maxProcFile)
	for s.Scan() {
		if f := strings.Fields(s.Text()); len(f) > 0 {
			list = append(list, statLine{f[0], f[1:]})
		}
	}
	return list
}

// numbers parses the fields, all of which must be numbers.
func (l *statLine) numbers() ([]float64, error) {
	list := make([]float64, len(l.fields))
	for i, f := range l.fields {
		n, err := strconv.ParseFloat(f, 64)
		if err != nil || n != n || n < -1e19 || n > 1e19 {
			return nil, fmt.Errorf("%.20q is not a number, in a line that begins with %.20q", f, l.key)
		}
		list[i] = n
	}
	return list, nil
}

// named assigns names to the first numbers; newer kernels have more of them. An empty name skips a number.
func named(figures map[string]float64, numbers []float64, names ...string) {
	for i, name := range names[:min(len(names), len(numbers))] {
		if name != "" {
			figures[name] = numbers[i]
		}
	}
}

// parseServerStats reads /proc/net/rpc/nfsd.
func parseServerStats(b []byte) ([]*section, error) {
	sec := &section{Name: "NFS server of the kernel", Figures: make(map[string]float64), Levels: make(map[string]float64)}
	for _, l := range statLines(b) {
		var names []string
		switch l.key {
		case "rc":
			names = []string{"reply cache hits", "reply cache misses", "reply cache not used"}
		case "fh":
			names = []string{"stale file handles"}
		case "io":
			names = []string{"bytes read", "bytes written"}
		case "net":
			names = []string{"messages", "messages over UDP", "messages over TCP", "TCP connections"}
		case "rpc":
			names = []string{"calls", "bad calls", "bad calls, format", "bad calls, credential", "bad calls, client"}
		case "th":
			if len(l.fields) > 0 {
				l.fields = l.fields[:1] // the remaining fields have long been zero
				n, err := l.numbers()
				if err != nil {
					return nil, err
				}
				sec.Levels["threads"] = n[0]
			}
			continue
		case "proc2", "proc3", "proc4", "proc4ops":
			ops, err := l.operations()
			if err != nil {
				return nil, err
			}
			sec.Ops = append(sec.Ops, ops...)
			continue
		default:
			continue
		}
		n, err := l.numbers()
		if err != nil {
			return nil, err
		}
		named(sec.Figures, n, names...)
	}
	return present(sec), nil
}

// parseClientStats reads /proc/net/rpc/nfs.
func parseClientStats(b []byte) ([]*section, error) {
	sec := &section{Name: "NFS client of the kernel", Figures: make(map[string]float64)}
	for _, l := range statLines(b) {
		switch l.key {
		case "rpc":
			n, err := l.numbers()
			if err != nil {
				return nil, err
			}
			named(sec.Figures, n, "calls", "retransmissions", "credentials refreshed")
		case "proc2", "proc3", "proc4":
			ops, err := l.operations()
			if err != nil {
				return nil, err
			}
			if l.key == "proc4" { // operations, in the numbering of this client
				for i := range ops {
					ops[i].Name = fmt.Sprintf("NFS 4 client operation %d", i)
				}
			}
			sec.Ops = append(sec.Ops, ops...)
		}
	}
	return present(sec), nil
}

// present returns the section unless it is empty.
func present(sec *section) []*section {
	if len(sec.Figures)+len(sec.Levels)+len(sec.Ops) == 0 {
		return nil
	}
	return []*section{sec}
}

// operations parses a line with the number of procedures and the calls of each.
func (l *statLine) operations() ([]operation, error) {
	n, err := l.numbers()
	if err != nil {
		return nil, err
	}
	if len(n) == 0 || n[0] != float64(len(n)-1) {
		return nil, fmt.Errorf("the line %s has %d numbers, and says otherwise", l.key, len(n))
	}
	vers := uint32(l.key[4] - '0')
	var ops []operation
	for i, calls := range n[1:] {
		name := fmt.Sprintf("NFS 4 operation %d", i)
		if l.key != "proc4ops" {
			_, procedure := dump.Names(nfs.Program, vers, uint32(i))
			if procedure == "" {
				procedure = fmt.Sprintf("procedure %d", i)
			}
			name = fmt.Sprintf("NFS %d %s", vers, procedure)
		}
		ops = append(ops, operation{Name: name, Calls: calls})
	}
	return ops, nil
}

// The numbers of lines "xprt:" of /proc/self/mountstats, by transport. Immutable.
var xprtNumbers = map[string][]string{
	"tcp": {"", "", "connects", "", "", "sends", "receives", "replies with unknown xid"},
	"udp": {"", "", "sends", "receives", "replies with unknown xid"},
	"rdma": {
		"", "", "connects", "", "", "sends", "receives", "replies with unknown xid", "", "",
		"read chunks", "write chunks", "reply chunks", "bytes of requests in chunks", "bytes of replies in chunks",
		"bytes copied to send", "bytes copied from inline replies", "registrations without spare", "calls not encoded", "bad replies",
		"calls as a whole in a chunk", "memory regions recycled", "memory regions orphaned", "memory regions allocated",
		"invalidations by the client", "waits for send contexts", "replies that waited for a send",
	},
}

// parseMountStats reads /proc/self/mountstats: a section for each NFS mount.
func parseMountStats(b []byte) (list []*section, err error) {
	var sec *section
	inOps := false
	for _, l := range statLines(b) {
		if l.key == "device" {
			// device WHAT mounted on WHERE with fstype TYPE
			sec, inOps = nil, false
			if f := l.fields; len(f) < 7 || f[1] != "mounted" || f[2] != "on" || f[5] != "fstype" || f[6] != "nfs" && f[6] != "nfs4" {
				continue
			}
			sec = &section{Name: fmt.Sprintf("mount %s on %s", l.fields[0], l.fields[3]), Figures: make(map[string]float64)}
			list = append(list, sec)
			continue
		}
		switch {
		case sec == nil:
		case l.key == "bytes:":
			n, err := l.numbers()
			if err != nil {
				return nil, err
			}
			named(sec.Figures, n, "bytes read by programs", "bytes written by programs", "bytes read, O_DIRECT", "bytes written, O_DIRECT",
				"bytes read from server", "bytes written to server")
		case l.key == "xprt:" && len(l.fields) > 0:
			names := xprtNumbers[l.fields[0]]
			numbers := statLine{l.key, l.fields[1:]}
			n, err := numbers.numbers()
			if err != nil {
				return nil, err
			}
			figures := make(map[string]float64)
			named(figures, n, names...)
			for name, n := range figures { // one of several connections, with nconnect
				sec.Figures[name] += n
			}
		case l.key == "per-op":
			inOps = true
		case inOps && strings.HasSuffix(l.key, ":"):
			// operations, transmissions, timeouts, bytes sent and received, and milliseconds in the queue, until the
			// reply, and in total; then errors, on newer kernels
			n, err := l.numbers()
			if err != nil {
				return nil, err
			}
			if len(n) < 8 {
				continue
			}
			op := operation{Name: strings.TrimSuffix(l.key, ":"), Calls: n[0], Sent: n[3], Received: n[4], Waited: n[5] / 1000, Took: n[7] / 1000}
			if len(n) > 8 {
				op.Failed = n[8]
			}
			sec.Ops = append(sec.Ops, op)
		}
	}
	return list, nil
}

// portStats reads the counters of the ports of RDMA devices, both the standard ones and the vendor's.
func portStats(root fs.FS) (list []*section, err error) {
	const class = "sys/class/infiniband"
	devices, err := fs.ReadDir(root, class)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	for _, device := range devices {
		ports, _ := fs.ReadDir(root, path.Join(class, device.Name(), "ports")) // a device that has disappeared has none
		for _, port := range ports {
			sec := &section{Name: fmt.Sprintf("RDMA device %s port %s", device.Name(), port.Name()), Figures: make(map[string]float64)}
			for _, dir := range []string{"counters", "hw_counters"} {
				at := path.Join(class, device.Name(), "ports", port.Name(), dir)
				files, _ := fs.ReadDir(root, at) // a driver need not have both
				for _, f := range files {
					b, err := readProc(root, path.Join(at, f.Name()))
					if err != nil {
						continue // not every counter is readable on every device
					}
					if n, err := strconv.ParseUint(strings.TrimSpace(string(b)), 0, 64); err == nil && f.Name() != "lifespan" {
						sec.Figures[f.Name()] = float64(n)
					}
				}
			}
			list = append(list, present(sec)...)
		}
	}
	return list, nil
}
