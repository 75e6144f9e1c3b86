package main

import (
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	gomod "golang.org/x/mod/module"
	"golang.org/x/mod/sumdb/dirhash"
	"golang.org/x/mod/zip"
)

// license is in every module: the go command uses the one at the top of the repository for a module without one,
// https://go.dev/ref/mod#vcs-license.
const license = "LICENSE"

// source is a file of a module, in the form that package zip requires.
type source struct {
	name string // relative to the module
	disk string
	text []byte // replaces the contents on disk, if not nil
}

// Path returns the name relative to the module.
func (s source) Path() string { return s.name }

// Lstat describes the file. A replacement text is a regular file.
func (s source) Lstat() (fs.FileInfo, error) {
	if s.text != nil {
		return info{path.Base(s.name), int64(len(s.text))}, nil
	}
	return os.Lstat(s.disk)
}

// Open opens the contents.
func (s source) Open() (io.ReadCloser, error) {
	if s.text != nil {
		return io.NopCloser(bytes.NewReader(s.text)), nil
	}
	return os.Open(s.disk)
}

// info describes a text.
type info struct {
	name string
	size int64
}

func (i info) Name() string     { return i.name }
func (i info) Size() int64      { return i.size }
func (info) Mode() fs.FileMode  { return 0o644 }
func (info) ModTime() time.Time { return time.Time{} }
func (info) IsDir() bool        { return false }
func (info) Sys() any           { return nil }

// sources returns the files of a module: those below its directory that git tracks or would track, without those of
// nested modules. texts replaces the contents of files.
func (t *tree) sources(m *module, texts map[string][]byte) ([]zip.File, error) {
	names, err := t.git("ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", m.dir)
	if err != nil {
		return nil, err
	}
	var files []zip.File
	licensed := false
	for name := range strings.SplitSeq(strings.TrimSuffix(names, "\x00"), "\x00") {
		inside := name
		if m.dir != "." {
			inside = strings.TrimPrefix(name, m.dir+"/")
		}
		disk := filepath.Join(t.root, filepath.FromSlash(name))
		if _, err := os.Lstat(disk); err != nil {
			continue // removed, but not yet committed
		}
		licensed = licensed || inside == license
		files = append(files, source{inside, disk, texts[inside]})
	}
	if top := filepath.Join(t.root, license); !licensed {
		if _, err := os.Lstat(top); err == nil {
			files = append(files, source{license, top, nil})
		}
	}
	checked, err := zip.CheckFiles(files)
	if err == nil {
		err = checked.Err()
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", m.path, err)
	}
	return slices.DeleteFunc(files, func(f zip.File) bool { return !slices.Contains(checked.Valid, f.Path()) }), nil
}

// sums returns the lines of a go.sum for a version of a module.
func (t *tree) sums(m *module, version string) ([]string, error) {
	files, err := t.sources(m, nil)
	if err != nil {
		return nil, err
	}
	prefix := m.path + "@" + version + "/"
	byName := make(map[string]zip.File)
	for _, f := range files {
		byName[prefix+f.Path()] = f
	}
	var names []string
	for name := range byName {
		names = append(names, name)
	}
	all, err := dirhash.Hash1(names, func(name string) (io.ReadCloser, error) { return byName[name].Open() })
	if err != nil {
		return nil, err
	}
	mod, err := dirhash.Hash1([]string{"go.mod"}, func(string) (io.ReadCloser, error) { return byName[prefix+"go.mod"].Open() })
	if err != nil {
		return nil, err
	}
	return []string{m.path + " " + version + " " + all, m.path + " " + version + "/go.mod " + mod}, nil
}

// proxy writes the published modules, as one version, to a directory for GOPROXY=file://DIR
// (https://go.dev/ref/mod#goproxy-protocol). The tree need not be clean.
func (t *tree) proxy(dir, version string) error {
	for _, m := range t.published() {
		if err := gomod.CheckPath(m.path); err != nil {
			return err
		}
		mod, err := t.atVersion(m, version)
		if err != nil {
			return err
		}
		files, err := t.sources(m, map[string][]byte{"go.mod": mod})
		if err != nil {
			return err
		}
		escaped, err := gomod.EscapePath(m.path)
		if err != nil {
			return err
		}
		at := filepath.Join(dir, filepath.FromSlash(escaped), "@v")
		if err := os.MkdirAll(at, 0o777); err != nil {
			return err
		}
		var packed bytes.Buffer
		if err := zip.Create(&packed, gomod.Version{Path: m.path, Version: version}, files); err != nil {
			return err
		}
		// The time of a version is irrelevant here, and the same tree must give the same proxy.
		about := fmt.Sprintf("{\"Version\":%q,\"Time\":\"2000-01-01T00:00:00Z\"}\n", version)
		for name, text := range map[string][]byte{
			"list": []byte(version + "\n"), version + ".info": []byte(about), version + ".mod": mod, version + ".zip": packed.Bytes(),
		} {
			if err := os.WriteFile(filepath.Join(at, name), text, 0o666); err != nil {
				return err
			}
		}
	}
	return nil
}

// git returns the output of git.
func (t *tree) git(args ...string) (string, error) {
	cmd := exec.Command("git", args...)
	cmd.Dir = t.root
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("git %s: %w: %s", args[0], err, bytes.TrimSpace(said.Bytes()))
	}
	return string(out), nil
}
