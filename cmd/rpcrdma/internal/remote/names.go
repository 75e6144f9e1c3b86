package remote

import (
	"fmt"
	"sync"

	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/explain"
	"github.com/rpcrdma/rpcrdma/nfs"
	"github.com/rpcrdma/rpcrdma/proto/dump"
)

// knownNames are the names of files on the server by handle, for the errors of timeouts. Only
// the files in use are in it.
type knownNames struct {
	mu sync.Mutex
	of map[nfs.FileHandle]string
}

// maxKnown bounds knownNames: directories stay in it up to this number.
const maxKnown = 4096

// Add adds the name of a handle. The function that it returns removes it.
func (n *knownNames) Add(fh nfs.FileHandle, name string) (forget func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.of == nil || len(n.of) >= maxKnown {
		n.of = make(map[nfs.FileHandle]string)
	}
	n.of[fh] = name
	return func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		delete(n.of, fh)
	}
}

// waitsFor describes the oldest outstanding call, and counts the others.
func (n *knownNames) waitsFor(pending []nfs.PendingCall) string {
	if len(pending) == 0 {
		return ""
	}
	p := pending[0]
	program, proc := dump.Names(p.Program, 3, p.Proc)
	text := proc
	if p.Program != nfs.Program {
		text = program + " " + proc
	}
	n.mu.Lock()
	if name, ok := n.of[p.Object]; ok {
		text += " of " + explain.Printable(name)
	}
	n.mu.Unlock()
	if others := len(pending) - 1; others > 0 {
		text += fmt.Sprintf(" and %d more", others)
	}
	return text
}
