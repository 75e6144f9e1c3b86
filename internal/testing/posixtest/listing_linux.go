package posixtest

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
)

// dirent is an entry of a directory, and the position after it.
type dirent struct {
	name string
	next int64
}

// getdents returns some entries, or none at the end.
func getdents(fd, size int) (list []dirent, err error) {
	b := make([]byte, size)
	n, err := unix.Getdents(fd, b)
	for b = b[:max(n, 0)]; len(b) > 0; {
		const head = 8 + 8 + 2 + 1 // struct linux_dirent64
		size := binary.NativeEndian.Uint16(b[16:])
		name := b[head:size]
		if end := bytes.IndexByte(name, 0); end >= 0 {
			name = name[:end]
		}
		list = append(list, dirent{string(name), int64(binary.NativeEndian.Uint64(b[8:]))})
		b = b[size:]
	}
	return list, err
}

// readAll returns the names in a directory.
func readAll(fd int) (names []string, err error) {
	for {
		list, err := getdents(fd, 16<<10)
		if err != nil || len(list) == 0 {
			return names, err
		}
		for _, d := range list {
			names = append(names, d.name)
		}
	}
}

func sorted(names []string) []string {
	slices.Sort(names)
	return names
}

// Listing checks a directory with n entries in Mount, which it creates in Export. Every position returned by telldir(3)
// must lead to the entry after it, even after others have been removed and created, and a listing in progress must have
// every entry that stays, exactly once. Listing returns the number of checks.
func (b Bed) Listing(n int) (count int, list []Difference, err error) {
	differs := func(what string, want, got any) {
		count++
		if want, got := fmt.Sprint(want), fmt.Sprint(got); want != got {
			list = append(list, Difference{fmt.Sprintf("directory with %d entries", n), what, want, got})
		}
	}
	made, err := os.MkdirTemp(b.Export, "listing")
	if err != nil {
		return 0, nil, err
	}
	defer os.RemoveAll(made)
	seen := filepath.Join(b.Mount, filepath.Base(made))
	name := func(i int) string { return fmt.Sprintf("entry-%06d", i) }
	touch := func(dir, name string) error { return os.WriteFile(filepath.Join(dir, name), nil, 0o644) }
	for i := range n {
		if err := touch(made, name(i)); err != nil {
			return 0, nil, err
		}
	}
	fd, err := unix.Open(seen, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, nil, err
	}
	defer unix.Close(fd)

	// Read everything, with positions.
	var all []dirent
	for {
		part, err := getdents(fd, 4096)
		if err != nil {
			return count, list, err
		}
		if len(part) == 0 {
			break
		}
		all = append(all, part...)
	}
	differs("entries", n+2, len(all))
	positions := make(map[int64]bool)
	for _, d := range all {
		positions[d.next] = true
	}
	differs("different positions", n+2, len(positions))

	// behind returns the names after a position.
	behind := func(position int64) (string, error) {
		if _, err := unix.Seek(fd, position, unix.SEEK_SET); err != nil {
			return "", err
		}
		part, err := getdents(fd, 256)
		if err != nil || len(part) == 0 {
			return "the end", err
		}
		return part[0].name, nil
	}
	follow := func(i int) string {
		if i+1 < len(all) {
			return all[i+1].name
		}
		return "the end"
	}
	step := max(len(all)/100, 1)
	for i := len(all) - 1; i >= 0; i -= step {
		got, err := behind(all[i].next)
		if err != nil {
			return count, list, err
		}
		differs(fmt.Sprintf("behind the position of entry %d", i), follow(i), got)
	}

	// Others are created and removed, by the client and on the server; those at the positions stay.
	keep := make(map[string]bool)
	for i := len(all) - 1; i >= 0; i -= step {
		keep[all[i].name], keep[follow(i)] = true, true
	}
	for i := range n {
		switch dir := []string{seen, made}[i%2]; {
		case keep[name(i)]:
		case i%3 == 0:
			if err := os.Remove(filepath.Join(dir, name(i))); err != nil {
				return count, list, err
			}
		case i%30 == 1:
			if err := touch(dir, fmt.Sprintf("new-%06d", i)); err != nil {
				return count, list, err
			}
		}
	}
	for i := 0; i < len(all); i += 7 * step { // spread over the old listing
		j := len(all) - 1 - i
		j -= j % step
		if j = (len(all) - 1) - (len(all)-1-j)/step*step; j < 0 {
			continue
		}
		got, err := behind(all[j].next)
		if err != nil {
			return count, list, err
		}
		// New names may appear in between, but no old ones.
		if len(got) < 4 || got[:4] != "new-" {
			differs(fmt.Sprintf("behind the position of entry %d, after changes", j), follow(j), got)
		}
	}
	c, more, err := b.listingUnderChange(seen, made)
	return count + c, append(list, more...), err
}

// listingUnderChange reads a directory in small pieces. It removes every other entry that it has read, as rm does, and
// creates others.
func (b Bed) listingUnderChange(seen, made string) (count int, list []Difference, err error) {
	fd, err := unix.Open(seen, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, nil, err
	}
	defer unix.Close(fd)
	there, err := os.ReadDir(made)
	if err != nil {
		return 0, nil, err
	}
	times := make(map[string]int)
	for i := 0; ; {
		part, err := getdents(fd, 2048)
		if err != nil {
			return 0, nil, err
		}
		if len(part) == 0 {
			break
		}
		for _, d := range part {
			times[d.name]++
			if i++; i%2 == 0 && d.name != "." && d.name != ".." {
				if err := os.Remove(filepath.Join(seen, d.name)); err != nil {
					return 0, nil, err
				}
			}
			if i%16 == 0 {
				if err := os.WriteFile(filepath.Join(seen, fmt.Sprintf("later-%06d", i)), nil, 0o644); err != nil {
					return 0, nil, err
				}
			}
		}
	}
	var wrong []string
	for _, d := range there {
		count++
		if times[d.Name()] != 1 {
			wrong = append(wrong, fmt.Sprintf("%s %d times", d.Name(), times[d.Name()]))
		}
	}
	if len(wrong) > 0 {
		list = append(list, Difference{"listing while the directory changes", "entries that stay", "once", fmt.Sprintf("%d not: %.300v", len(wrong), wrong)})
	}
	return 1, list, nil
}
