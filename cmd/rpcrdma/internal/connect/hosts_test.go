package connect

import (
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/cli"
)

func TestKnownHosts(t *testing.T) {
	root := fstest.MapFS{
		"proc/self/mounts": {Data: []byte("proc /proc proc rw 0 0\nfiles:/data /mnt nfs rw 0 0\n[fd09::1]:/ /m nfs4 rw 0 0\nx\nfiles:/b /b nfs rw 0 0\n$(x):/ /x nfs rw\n")},
		"etc/hosts":        {Data: []byte("127.0.0.1 localhost\n# 1.2.3.4 comment\n192.0.2.1\tfiles.example.org files # more\n::1 ip6-localhost `x`\n")},
	}
	want := []string{"files", "fd09::1", "localhost", "files.example.org"}
	if got := KnownHosts(root); !slices.Equal(got, want) {
		t.Errorf("known are %q, want %q", got, want)
	}
	if got := KnownHosts(fstest.MapFS{}); got != nil {
		t.Errorf("of nothing %q are known", got)
	}
	many := "1.1.1.1"
	for i := range 3 * cli.CompletionNames {
		many += " h" + strings.Repeat("x", i%7) + string(rune('a'+i%26)) + strings.Repeat("y", i/100)
	}
	if got := KnownHosts(fstest.MapFS{"etc/hosts": {Data: []byte(many)}}); len(got) > cli.CompletionNames {
		t.Errorf("%d hosts", len(got))
	}
}
