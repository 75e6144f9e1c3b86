//go:build linux

package main

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"strings"
)

// The cache has one directory for each kernel, named by its release:
//
//	kernel          the kernel itself
//	lib/modules     its modules, and siw, which Debian's package lacks
//	initrd-*        initial RAM disks, named by a hash of what is in them
//
// and for each package that was asked for a link, of the package's name, to its kernel.

// kernel is such a directory. Its path has no symbolic links.
type kernel struct{ dir string }

func (k kernel) release() string { return filepath.Base(k.dir) }
func (k kernel) image() string   { return filepath.Join(k.dir, "kernel") }
func (k kernel) modules() string { return filepath.Join(k.dir, "lib", "modules", k.release()) }

// kernel returns the kernel of a package, and builds it if the cache lacks it.
func (h *host) kernel(ctx context.Context, pkg string) (kernel, error) {
	if h.lacks(pkg) {
		if err := h.addKernel(ctx, pkg); err != nil {
			return kernel{}, err
		}
	}
	dir, err := filepath.EvalSymlinks(filepath.Join(h.cache, pkg))
	return kernel{dir}, err
}

func (h *host) lacks(name string) bool { return !exists(filepath.Join(h.cache, name, "kernel")) }

// addKernel makes one run build while the others wait for it.
func (h *host) addKernel(ctx context.Context, pkg string) error {
	unlock, err := h.lock(ctx, func() { say("waiting for another run that fetches the guest's kernel") })
	if err != nil {
		return err
	}
	defer unlock()
	if !h.lacks(pkg) {
		return nil
	}
	if err := h.canBuild(); err != nil {
		return err
	}
	// The dot prevents confusion with a package. A run that was killed may have left one.
	dir := filepath.Join(h.cache, ".build")
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := os.Mkdir(dir, 0o777); err != nil {
		return err
	}
	say("fetching the guest's kernel, once")
	b := &builder{apt: newApt(dir), dir: dir, cache: h.cache}
	release, err := b.build(ctx, pkg)
	if err != nil {
		return err
	}
	if err := relink(release, filepath.Join(h.cache, pkg)); err != nil {
		return err
	}
	say("the guest's kernel is %s, in %s", release, h.cache)
	return nil
}

// canBuild reports whether a kernel can be built here.
func (h *host) canBuild() error {
	if strings.ContainsAny(h.cache, " \t\n") {
		return fmt.Errorf("make accepts no directory with a space in its name: set RPCRDMA_VM_CACHE to one other than '%s'", h.cache)
	}
	for _, tool := range []string{"apt-get", "apt-cache", "dpkg-deb", "xz", "gcc", "make"} {
		if _, err := exec.LookPath(tool); err != nil {
			return fmt.Errorf("'%s' is needed to fetch and build the guest's kernel; '%s vm' installs what is available",
				tool, filepath.Join(h.scripts, "setup"))
		}
	}
	return nil
}

// relink makes link point to target, whether or not link exists.
func relink(target, link string) error {
	if err := os.Remove(link); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.Symlink(target, link)
}

// builder builds one kernel.
type builder struct {
	apt   *apt
	dir   string // for all temporary files
	cache string
}

// files returns the directory in which packages are unpacked.
func (b *builder) files() string { return filepath.Join(b.dir, "files") }

// build adds the kernel of a package to the cache and returns its release.
func (b *builder) build(ctx context.Context, pkg string) (release string, err error) {
	image := b.apt.image(ctx, pkg)
	if image == "" && b.apt.refresh(ctx) {
		image = b.apt.image(ctx, pkg)
	}
	if image == "" {
		return "", &packageError{pkg, "it would bring the guest's kernel, and only Debian's are supported so far"}
	}
	release = strings.TrimPrefix(image, "linux-image-")
	home := filepath.Join(b.cache, release)
	if exists(filepath.Join(home, "kernel")) {
		return release, nil
	}
	k := kernel{filepath.Join(b.dir, release)}
	version, err := b.unpackImage(ctx, image, k)
	if err != nil {
		return "", err
	}
	if !hasModule(k.modules(), "siw") {
		if err := b.addSiw(ctx, k, version); err != nil {
			return "", fmt.Errorf("module siw: %w", err)
		}
	}
	if _, err := output(ctx, "depmod", "-b", k.dir, release); err != nil {
		return "", err
	}
	if err := os.RemoveAll(home); err != nil {
		return "", err
	}
	return release, os.Rename(k.dir, home)
}

// unpackImage downloads the kernel and its modules, and returns the package's version.
func (b *builder) unpackImage(ctx context.Context, image string, k kernel) (version string, err error) {
	if err := b.apt.fetch(ctx, image, ""); err != nil {
		return "", err
	}
	if version, err = b.apt.version(ctx, image); err != nil {
		return "", err
	}
	if err := b.apt.unpack(ctx, image, b.files()); err != nil {
		return "", err
	}
	if err := os.MkdirAll(filepath.Dir(filepath.Dir(k.modules())), 0o777); err != nil {
		return "", err
	}
	if err := os.Rename(filepath.Join(b.files(), "boot", "vmlinuz-"+k.release()), k.image()); err != nil {
		return "", err
	}
	if err := uncompress(ctx, k.image()); err != nil {
		return "", err
	}
	// The location of modules depends on whether the Debian release has merged /usr.
	for _, dir := range []string{"usr/lib/modules", "lib/modules"} {
		err := os.Rename(filepath.Join(b.files(), dir), filepath.Dir(k.modules()))
		if !errors.Is(err, fs.ErrNotExist) {
			return version, err
		}
	}
	return "", fmt.Errorf("package '%s' has no modules", image)
}

// hasModule reports whether a module is below a directory, compressed or not.
func hasModule(dir, name string) bool {
	found := false
	_ = filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err == nil && strings.HasPrefix(filepath.Base(path), name+".ko") {
			found = true
			return fs.SkipAll
		}
		return nil
	})
	return found
}

var (
	xzMagic  = []byte("\xfd7zXZ\x00")
	elfMagic = []byte("\x7fELF")
)

// uncompress replaces an xz-compressed kernel by its contents: without KVM decompression takes the guest seconds each
// time. Other formats are faster.
func uncompress(ctx context.Context, image string) error {
	packed, err := os.ReadFile(image)
	if err != nil {
		return err
	}
	at := bytes.Index(packed, xzMagic)
	if at < 0 {
		return nil
	}
	cmd := command(ctx, "xz", "-dc", "--single-stream")
	cmd.Stdin = bytes.NewReader(packed[at:])
	// The stream is followed by more of the image, about which xz may complain.
	unpacked, _ := cmd.Output()
	if !bytes.HasPrefix(unpacked, elfMagic) {
		return nil
	}
	return os.WriteFile(image, unpacked, 0o666)
}

// ---- module siw

// addSiw builds module siw and adds it to the others.
func (b *builder) addSiw(ctx context.Context, k kernel, version string) error {
	headers, err := b.fetchHeaders(ctx, k.release())
	if err != nil {
		return err
	}
	sources, err := b.fetchSources(ctx, k.release(), version)
	if err != nil {
		return err
	}
	say("building module siw")
	dir := filepath.Join(b.dir, "siw")
	if err := b.extractSiw(ctx, sources, dir); err != nil {
		return err
	}
	if err := b.relocate(headers); err != nil {
		return err
	}
	// Type information for tracing would require another program, pahole.
	if _, err := output(ctx, "make", "-s", "-C", headers, "M="+dir,
		"CONFIG_RDMA_SIW=m", "CONFIG_DEBUG_INFO_BTF_MODULES=", "modules"); err != nil {
		return err
	}
	updates := filepath.Join(k.modules(), "updates")
	if err := os.MkdirAll(updates, 0o777); err != nil {
		return err
	}
	return os.Rename(filepath.Join(dir, "siw.ko"), filepath.Join(updates, "siw.ko"))
}

// fetchHeaders unpacks the kernel's headers and the packages to which they refer, and returns their directory.
func (b *builder) fetchHeaders(ctx context.Context, release string) (string, error) {
	headers := "linux-headers-" + release
	for _, pkg := range append([]string{headers}, headersIn(b.apt.depends(ctx, headers))...) {
		if err := b.apt.fetch(ctx, pkg, ""); err != nil {
			return "", err
		}
		if err := b.apt.unpack(ctx, pkg, b.files()); err != nil {
			return "", err
		}
	}
	return filepath.Join(b.files(), "usr", "src", headers), nil
}

// fetchSources returns the package with the kernel's source, in the kernel's version if that is still available.
func (b *builder) fetchSources(ctx context.Context, release, version string) (string, error) {
	pkg := sourcePackage(release)
	err := b.apt.fetch(ctx, pkg, version)
	if err != nil {
		err = b.apt.fetch(ctx, pkg, "")
	}
	return pkg, err
}

var seriesOf = regexp.MustCompile(`^[0-9]+\.[0-9]+`)

// sourcePackage returns the name of the package with the source of a release: there is one per series.
func sourcePackage(release string) string { return "linux-source-" + seriesOf.FindString(release) }

// relocate makes the headers find their other part below our directory rather than in /usr/src.
func (b *builder) relocate(headers string) error {
	makefile := filepath.Join(headers, "Makefile")
	text, err := os.ReadFile(makefile)
	if err != nil {
		return err
	}
	return os.WriteFile(makefile, relocated(text, b.files()), 0o666)
}

var include = regexp.MustCompile(`(?m)^include (.*)$`)

// relocated returns a makefile of headers, which includes another one, with that path below root.
func relocated(makefile []byte, root string) []byte {
	m := include.FindSubmatch(makefile)
	if m == nil {
		return makefile
	}
	return []byte("include " + root + string(m[1]) + "\n")
}

// extractSiw extracts the source of siw, which is in an archive in the package, into a directory.
func (b *builder) extractSiw(ctx context.Context, pkg, dir string) error {
	unpack := command(ctx, "dpkg-deb", "--fsys-tarfile", b.apt.file(pkg))
	files, err := unpack.StdoutPipe()
	if err != nil {
		return err
	}
	if err := unpack.Start(); err != nil {
		return err
	}
	defer unpack.Wait() // may fail, because its output is not read to the end
	defer files.Close()
	archive, err := tarEntry(files, "usr/src/linux-source-*.tar.xz")
	if err != nil {
		return err
	}
	xz := command(ctx, "xz", "-dc")
	xz.Stdin = archive
	tree, err := xz.StdoutPipe()
	if err != nil {
		return err
	}
	if err := xz.Start(); err != nil {
		return err
	}
	if err := extract(tree, "drivers/infiniband/sw/siw", dir); err != nil {
		return errors.Join(err, xz.Process.Kill(), xz.Wait())
	}
	return xz.Wait()
}

// tarEntry returns the content of the first file of an archive with a name that matches pattern, as
// in [path.Match].
func tarEntry(archive io.Reader, pattern string) (io.Reader, error) {
	r := tar.NewReader(archive)
	for {
		h, err := r.Next()
		if err == io.EOF {
			return nil, fmt.Errorf("there is no %s in the package", pattern)
		}
		if err != nil {
			return nil, err
		}
		if ok, err := path.Match(pattern, path.Clean(h.Name)); ok || err != nil {
			return r, err
		}
	}
}

// extract extracts one directory of an archive into dir. from is relative to the archive's top directory.
func extract(archive io.Reader, from, dir string) error {
	if err := os.Mkdir(dir, 0o777); err != nil {
		return err
	}
	found := false
	r := tar.NewReader(archive)
	for {
		h, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
		parent, name := path.Split(path.Clean(h.Name))
		if _, below, _ := strings.Cut(path.Clean(parent), "/"); below != from || h.Typeflag != tar.TypeReg {
			continue
		}
		found = true
		if err := writeFrom(filepath.Join(dir, name), r); err != nil {
			return err
		}
	}
	if !found {
		return fmt.Errorf("there is no %s in the source", from)
	}
	return nil
}

func writeFrom(path string, r io.Reader) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	if _, err := io.Copy(f, r); err != nil {
		f.Close()
		return err
	}
	return f.Close()
}

// programError is the error of a program that failed, with its last output.
type programError struct {
	name string
	said []byte
	err  error
}

func (e *programError) Error() string {
	if len(e.said) == 0 {
		return fmt.Sprintf("%s: %v", e.name, e.err)
	}
	return fmt.Sprintf("%s: %v:\n%s", e.name, e.err, e.said)
}

func (e *programError) Unwrap() error { return e.err }

// output runs a program and returns its stdout. The error includes its output.
func output(ctx context.Context, name string, args ...string) ([]byte, error) {
	var stdout, stderr bytes.Buffer
	cmd := command(ctx, name, args...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return nil, &programError{name, bytes.TrimSpace(lastLines(append(stdout.Bytes(), stderr.Bytes()...), 20)), err}
	}
	return stdout.Bytes(), nil
}
