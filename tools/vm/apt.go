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

// apt downloads packages from the sources of this machine, without root.
type apt struct {
	dir     string   // for everything downloaded
	options []string // options of apt-get and apt-cache
	fresh   bool     // the package lists are our own and up to date
}

func newApt(dir string) *apt {
	// The user that apt-get downloads as when run by root cannot write to our directory.
	return &apt{dir: dir, options: []string{"-o", "APT::Sandbox::User=root"}}
}

// file returns the path of a downloaded package.
func (a *apt) file(pkg string) string { return filepath.Join(a.dir, pkg+".deb") }

// packageError is the error for a package that cannot be downloaded.
type packageError struct{ name, why string }

func (e *packageError) Error() string {
	return fmt.Sprintf("package '%s' cannot be fetched: %s", e.name, e.why)
}

// depends returns the output of apt-cache about a package, or nothing if it does not know the package.
func (a *apt) depends(ctx context.Context, pkg string) []byte {
	out, _ := command(ctx, "apt-cache", append(a.options, "depends", pkg)...).Output()
	return out
}

// image returns the package with the kernel: pkg may be just a name for the newest. The result may be empty.
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

// headersIn returns the packages with the other parts of the headers on which a headers package depends.
func headersIn(depends []byte) (pkgs []string) {
	for _, m := range headerDepends.FindAllSubmatch(depends, -1) {
		pkgs = append(pkgs, string(m[1]))
	}
	return pkgs
}

// refresh downloads package lists into our own directory, which requires no root and leaves this machine's lists
// unchanged. It reports whether the lists differ now.
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

// fetch downloads a package, in the given version unless that is empty. Old lists name files that no longer exist, so
// on failure it tries again with new lists.
func (a *apt) fetch(ctx context.Context, pkg, version string) error {
	err := a.download(ctx, pkg, version)
	if err != nil && a.refresh(ctx) {
		err = a.download(ctx, pkg, version)
	}
	return err
}

func (a *apt) download(ctx context.Context, pkg, version string) error {
	// apt-get chooses the file name, so use a directory for this file alone.
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

// version returns the version of a downloaded package.
func (a *apt) version(ctx context.Context, pkg string) (string, error) {
	out, err := output(ctx, "dpkg-deb", "-f", a.file(pkg), "Version")
	return string(bytes.TrimSpace(out)), err
}

// unpack extracts a downloaded package into a directory and removes the package.
func (a *apt) unpack(ctx context.Context, pkg, dir string) error {
	if _, err := output(ctx, "dpkg-deb", "-x", a.file(pkg), dir); err != nil {
		return err
	}
	return os.Remove(a.file(pkg))
}
