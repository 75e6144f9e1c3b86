package remote

import (
	"fmt"
	"sync"

	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/explain"
	"github.com/rpcrdma/rpcrdma/nfs"
	"github.com/rpcrdma/rpcrdma/proto/dump"
)

// knownNames maps handles to names of files on the server, for timeout errors. It contains only files in use.
type knownNames struct {
	mu sync.Mutex
	of map[nfs.FileHandle]string
}

// maxKnown limits the directories that stay in knownNames.
const maxKnown = 4096

// Add adds the name of a handle. The returned function removes it.
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

// waitsFor describes the oldest outstanding call and the number of others.
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
