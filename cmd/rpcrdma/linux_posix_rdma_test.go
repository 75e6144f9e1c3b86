//go:build linux && cgo

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rpcrdma/rpcrdma/internal/testing/posixtest"
)

// posixBed is the two sides of the checks on one file system, without the client.
func posixBed(t *testing.T) posixtest.Bed {
	t.Helper()
	top := ext4(t, 1024)
	b := posixtest.Bed{Oracle: filepath.Join(top, "oracle"), Export: filepath.Join(top, "export")}
	for _, dir := range []string{b.Oracle, b.Export} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return b
}

// A known difference is one that any server of NFS version 3 has, also the kernel's.
type knownDifference struct {
	reason string
	is     func(d posixtest.Difference) bool
}

// knownDifferences are all that are left.
func knownDifferences() []knownDifference {
	call := func(names ...string) func(d posixtest.Difference) bool {
		return func(d posixtest.Difference) bool {
			return slices.ContainsFunc(names, func(name string) bool { return strings.HasPrefix(d.Check, name) })
		}
	}
	result := func(want, got string, is func(d posixtest.Difference) bool) func(d posixtest.Difference) bool {
		return func(d posixtest.Difference) bool {
			return d.What == "calls" && strings.HasSuffix(d.Want, ": "+want) && strings.HasSuffix(d.Got, ": "+got) && is(d)
		}
	}
	const times = "times that change"
	return []knownDifference{
		{"chown(-1, -1) changes nothing, so the client does not ask the server", call("chown to nobody", "chown -1:-1")},
		{"a fifo's data, and its times, stay with the client", func(d posixtest.Difference) bool {
			return d.What == times && strings.Contains(d.Check, "/ fifo /")
		}},
		{"the client does not read from an empty file, so its atime stays", func(d posixtest.Difference) bool {
			return d.What == times && strings.HasPrefix(d.Check, "open ") &&
				strings.NewReplacer(" a;", " -;", " amc", " mc").Replace(d.Want+";") == d.Got+";"
		}},
		{"truncate(2) to the size that a file has: the client does not ask the server", func(d posixtest.Difference) bool {
			return d.What == times && strings.HasPrefix(d.Check, "truncate 0 / empty file ") && strings.ReplaceAll(d.Want+";", " mc;", " -;") == d.Got+";"
		}},
		{"mknod(2) of a device: the client looks at privileges before it looks for the name", result("EEXIST", "EPERM", call("mknod device"))},
		{"mknod(2) of a device: the client looks at privileges, and the server at the directory", result("EACCES", "EPERM", call("mknod device"))},
		{"rmdir(2): the client looks whether it is a directory, and the server whether it may be removed", result("EACCES", "ENOTDIR", call("rmdir"))},
		{"link(2): the client looks whether the file may be linked before it looks for the name", result("EEXIST", "EPERM", call("link to", "link a directory to"))},
		{"ACCESS has no right to write to a directory that one may not enter", func(d posixtest.Difference) bool {
			return d.What == "calls" && strings.HasPrefix(d.Check, "use of a directory of mode ") &&
				strings.Count(d.Want, ": ok") > strings.Count(d.Got, ": ok")
		}},
	}
}

// A tally is the results of a run of checks.
type tally struct {
	checks int
	known  map[string]int // by reason
}

// add counts checks, and fails the test for what differs and is not known.
func (a *tally) add(t *testing.T, what string, begin time.Time, checks int, list []posixtest.Difference, err error) {
	t.Helper()
	if err != nil {
		t.Errorf("%s: %v", what, err)
	}
	if a.known == nil {
		a.known = make(map[string]int)
	}
	known := knownDifferences()
	new := 0
	for _, d := range list {
		if i := slices.IndexFunc(known, func(k knownDifference) bool { return k.is(d) }); i >= 0 {
			a.known[known[i].reason]++
			continue
		}
		new++
		t.Error(d)
	}
	a.checks += checks
	t.Logf("%s: %d checks, %d differences, %d of them unknown, in %v", what, checks, len(list), new, time.Since(begin).Round(time.Second))
}

// end tells the known differences. whole wants each of them to have been seen.
func (a *tally) end(t *testing.T, whole bool) {
	t.Helper()
	t.Logf("%d checks in all; what NFS version 3 makes different:", a.checks)
	for _, k := range knownDifferences() {
		if n := a.known[k.reason]; n > 0 {
			t.Logf("%5d  %s", n, k.reason)
		} else if whole {
			t.Errorf("no check sees any more that %s", k.reason)
		}
	}
}

// TestRDMALinuxPosix: through the kernel's client, programs see our server's files as they see a
// local file system, except where NFS version 3 cannot do it.
func TestRDMALinuxPosix(t *testing.T) {
	onLinks(t, func(t *testing.T, l link) {
		b := posixBed(t)
		b.Mount = mountServer(t, l, b.Export, 0).mount
		if l.kind == "rxe" {
			checkPosix(t, b, 23, 300, 400)
		} else {
			checkPosix(t, b, 90, 100, 100)
		}
	})
}

// checkPosix runs a sample of the checks, or all of them if RPCRDMA_LINUX_LONG is set.
func checkPosix(t *testing.T, b posixtest.Bed, every, entries, steps int) {
	t.Helper()
	if longTests() {
		every, entries, steps = 1, 10_000, 4000
	}
	if s := os.Getenv("RPCRDMA_POSIX_EVERY"); s != "" {
		var err error
		if every, err = strconv.Atoi(s); err != nil || every < 1 {
			t.Fatalf("RPCRDMA_POSIX_EVERY is %q", s)
		}
	}
	var a tally
	defer a.end(t, every == 1) // a sample may miss one
	begin := time.Now()
	checks, list, err := b.Table(every)
	a.add(t, fmt.Sprintf("table, every %d.", every), begin, checks, list, err)
	begin = time.Now()
	checks, list, err = b.Listing(entries)
	a.add(t, fmt.Sprintf("directory with %d entries", entries), begin, checks, list, err)
	for seed := range uint64(2) {
		begin = time.Now()
		checks, list, err = b.Random(seed, steps/2)
		a.add(t, fmt.Sprintf("%d random operations of seed %d", steps/2, seed), begin, checks, list, err)
	}
}

// TestRDMALinuxPosixKernel has the kernel's own server do the same: all that is known of ours is
// true of it, too. It differs in more, above all as Debian's mountd replaces a caller's groups by
// those of the server's user with that number.
func TestRDMALinuxPosixKernel(t *testing.T) {
	if !longTests() {
		t.Skip("it is about the kernel's server: set RPCRDMA_LINUX_LONG")
	}
	b := posixBed(t)
	b.Mount = mountKernel(t, b.Export)
	checks, list, err := b.Table(1)
	if err != nil {
		t.Fatal(err)
	}
	left := len(list)
	for _, k := range knownDifferences() {
		n := 0
		for _, d := range list {
			if k.is(d) {
				n++
			}
		}
		if left -= n; n == 0 {
			t.Errorf("not of the kernel's server: %s", k.reason)
		}
	}
	t.Logf("the kernel's server: %d checks, %d differences, %d of them are not ours", checks, len(list), left)
}
