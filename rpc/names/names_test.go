package names

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
)

func nfs(t *testing.T) *Table {
	t.Helper()
	table, err := New(append(Known(100003, 100005), &oncrpc.Program{Number: 77, Vers: 2, Name: "gaps", Procedures: []string{"NULL", "", "LAST"}})...)
	if err != nil {
		t.Fatal(err)
	}
	return table
}

func TestIndex(t *testing.T) {
	table := nfs(t)
	for _, tt := range []struct {
		prog, vers, proc uint32
		want             string
	}{
		{100003, 3, 6, "NFS READ 100003 3 6"},
		{100003, 3, 0, "NFS NULL 100003 3 0"},
		{100003, 3, 21, "NFS COMMIT 100003 3 21"},
		{100003, 3, 22, "NFS other 100003 3 0"},
		{100003, 3, 1<<32 - 1, "NFS other 100003 3 0"},
		{100003, 5, 6, "other other 0 0 0"},
		{100005, 3, 1, "MOUNT MNT 100005 3 1"},
		{77, 2, 1, "gaps other 77 2 0"},
		{77, 2, 2, "gaps LAST 77 2 2"},
		{78, 2, 2, "other other 0 0 0"},
		{1<<32 - 1, 1<<32 - 1, 1<<32 - 1, "other other 0 0 0"},
	} {
		e := table.At(table.Index(tt.prog, tt.vers, tt.proc))
		if got := fmt.Sprint(e.Program, " ", e.Procedure, " ", e.Prog, " ", e.Vers, " ", e.Proc); got != tt.want {
			t.Errorf("%d %d %d: %s, want %s", tt.prog, tt.vers, tt.proc, got, tt.want)
		}
	}
}

// Whatever a peer sends, the index is one of the table's, and looking costs no memory.
func TestRandom(t *testing.T) {
	table := nfs(t)
	r := rand.New(rand.NewPCG(1, 2))
	seen := make(map[Entry]bool)
	for range 100000 {
		i := table.Index(100000+r.Uint32N(10), r.Uint32N(6), r.Uint32N(40))
		seen[table.At(i)] = true
	}
	if len(seen) > table.Len() || len(seen) < 20 {
		t.Errorf("%d entries of %d", len(seen), table.Len())
	}
	if n := testing.AllocsPerRun(100, func() { table.Index(100003, 3, 6) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestNewFails(t *testing.T) {
	for _, tt := range []struct {
		programs []*oncrpc.Program
		want     string
	}{
		{[]*oncrpc.Program{{Number: 5}}, "program 5 has no name"},
		{append(Known(100003), Known(100003)...), "is named twice"},
		{[]*oncrpc.Program{{Number: 5, Name: "long", Procedures: make([]string, MaxEntries)}}, "too many"},
	} {
		if _, err := New(tt.programs...); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%v, want %q", err, tt.want)
		}
	}
	if table, err := New(); err != nil || table.Len() != 1 || table.Index(1, 2, 3) != 0 {
		t.Errorf("an empty table: %v, %v", table, err)
	}
}
