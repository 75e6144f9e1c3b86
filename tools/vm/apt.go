//go:build linux

package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
)

// apt fetches packages with the sources of this machine and without root.
type apt struct {
	dir     string   // for everything that is fetched
	options []string // of apt-get and apt-cache
	fresh   bool     // the package lists are ours and new
}

func newApt(dir string) *apt {
	// The user that apt-get downloads as when it is root cannot write into our directory.
	return &apt{dir: dir, options: []string{"-o", "APT::Sandbox::User=root"}}
}

// file is the path of a package that has been fetched.
func (a *apt) file(pkg string) string { return filepath.Join(a.dir, pkg+".deb") }

// packageError is a package that cannot be fetched.
type packageError struct{ name, why string }

func (e *packageError) Error() string {
	return fmt.Sprintf("package '%s' cannot be fetched: %s", e.name, e.why)
}

// depends returns what apt-cache prints about a package, nothing if it does not
// know the package.
func (a *apt) depends(ctx context.Context, pkg string) []byte {
	out, _ := command(ctx, "apt-cache", append(a.options, "depends", pkg)...).Output()
	return out
}

// image returns the package that has the kernel: the one asked for is perhaps
// only a name for the newest. It may be empty.
func (a *apt) image(ctx context.Context, pkg string) string {
	if imagePackage.MatchString(pkg) {
		return pkg
	}
	return imageIn(a.depends(ctx, pkg))
}

var (
	imagePackage  = regexp.MustCompile(`^linux-image-[0-9]`)
	imageDepends  = regexp.MustCompile(`Depends: (linux-image-[0-9]\S*)`)
	headerDepends = regexp.MustCompile(`Depends: (linux-(?:headers|kbuild)-\S+)`)
)

// imageIn returns the first kernel that a package depends on.
func imageIn(depends []byte) string {
	if m := imageDepends.FindSubmatch(depends); m != nil {
		return string(m[1])
	}
	return ""
}

// headersIn returns the other halves of the headers that a package of headers depends on.
func headersIn(depends []byte) (pkgs []string) {
	for _, m := range headerDepends.FindAllSubmatch(depends, -1) {
		pkgs = append(pkgs, string(m[1]))
	}
	return pkgs
}

// refresh fetches package lists into a directory of ours: that takes no root, and this
// machine's own lists stay as they are. It reports whether there are other lists now.
func (a *apt) refresh(ctx context.Context) bool {
	if a.fresh {
		return false
	}
	a.fresh = true
	say("this machine's package lists are out of date, fetching new ones")
	lists, archives := filepath.Join(a.dir, "lists"), filepath.Join(a.dir, "archives")
	for _, dir := range []string{lists, archives} {
		if err := os.MkdirAll(filepath.Join(dir, "partial"), 0o777); err != nil {
			say("%v", err)
			return false
		}
	}
	a.options = append(a.options, "-o", "Dir::State::lists="+lists, "-o", "Dir::Cache="+archives)
	out, err := command(ctx, "apt-get", append([]string{"-qq"}, append(a.options, "update")...)...).CombinedOutput()
	if err != nil {
		say("apt-get cannot update its lists:")
		os.Stderr.Write(lastLines(out, 5))
	}
	return true
}

// fetch downloads a package, in the given version unless that is empty. Old lists
// name files that no longer exist: if it fails it tries again with new ones.
func (a *apt) fetch(ctx context.Context, pkg, version string) error {
	err := a.download(ctx, pkg, version)
	if err != nil && a.refresh(ctx) {
		err = a.download(ctx, pkg, version)
	}
	return err
}

func (a *apt) download(ctx context.Context, pkg, version string) error {
	// apt-get names the file, and only it is in this directory.
	dir := filepath.Join(a.dir, "deb")
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	name := pkg
	if version != "" {
		name += "=" + version
	}
	cmd := command(ctx, "apt-get", append([]string{"-qq"}, append(a.options, "download", name)...)...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return &packageError{name, string(bytes.TrimSpace(lastLines(out, 5)))}
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.deb"))
	if err != nil {
		return err
	}
	if len(files) != 1 {
		return &packageError{name, fmt.Sprintf("apt-get left %d files", len(files))}
	}
	return os.Rename(files[0], a.file(pkg))
}

// version is that of a package that has been fetched.
func (a *apt) version(ctx context.Context, pkg string) (string, error) {
	out, err := output(ctx, "dpkg-deb", "-f", a.file(pkg), "Version")
	return string(bytes.TrimSpace(out)), err
}

// unpack puts the files of a package that has been fetched into a directory, and
// removes the package.
func (a *apt) unpack(ctx context.Context, pkg, dir string) error {
	if _, err := output(ctx, "dpkg-deb", "-x", a.file(pkg), dir); err != nil {
		return err
	}
	return os.Remove(a.file(pkg))
}
