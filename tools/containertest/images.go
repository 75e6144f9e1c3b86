//go:build linux

package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"
)

// bases holds the images that ours are built from.
type bases struct{ golang, debian string }

// Immutable.
var (
	publicBases = bases{golang: "golang:1.26-bookworm", debian: "debian:bookworm-slim"}
	ownBases    = bases{golang: "localhost/rpcrdma-base:go", debian: "localhost/rpcrdma-base:debian"}
)

// pullLimit is how long pulling an image from a registry may take.
const pullLimit = 5 * time.Minute

// findBases pulls the base images from a registry, or makes them.
func (e *engine) findBases(ctx context.Context, fresh bool) (bases, error) {
	for _, image := range []string{publicBases.debian, publicBases.golang} {
		limited, cancel := context.WithTimeout(ctx, pullLimit)
		out, err := e.command(limited, "pull", "-q", image).CombinedOutput()
		cancel()
		if err != nil {
			say("no %s from a registry: %s", image, lastLine(out))
			return ownBases, e.makeBases(ctx, fresh)
		}
	}
	return publicBases, nil
}

// lastLine returns the last line of a text that is not empty.
func lastLine(text []byte) []byte {
	text = bytes.TrimSpace(text)
	return text[bytes.LastIndexByte(text, '\n')+1:]
}

// lastLines returns the last n lines.
func lastLines(text []byte, n int) []byte {
	lines := bytes.Split(bytes.TrimSpace(text), []byte("\n"))
	return bytes.Join(lines[max(0, len(lines)-n):], []byte("\n"))
}

// makeBases makes the base images from Debian packages and this machine's Go.
func (e *engine) makeBases(ctx context.Context, fresh bool) error {
	if !fresh && e.command(ctx, "image", "inspect", ownBases.debian, ownBases.golang).Run() == nil {
		say("base images: those of an earlier run, made of Debian packages")
		return nil
	}
	if _, err := exec.LookPath("mmdebstrap"); err != nil {
		return fmt.Errorf("no registry and no mmdebstrap: 'scripts/setup container-test' installs it")
	}
	version, err := exec.CommandContext(ctx, "go", "version").Output()
	if err != nil {
		return err
	}
	say("base images: made of Debian packages by mmdebstrap, and of %s", bytes.TrimSpace(version))
	if err := e.makeDebian(ctx); err != nil {
		return err
	}
	return e.makeGo(ctx)
}

// makeDebian makes the Debian image, without what Debian's slim images omit. It downloads packages from this machine's
// sources, which are reachable.
func (e *engine) makeDebian(ctx context.Context) error {
	archive := e.file("base.tar")
	defer os.Remove(archive)
	cmd := exec.CommandContext(ctx, "mmdebstrap", "--quiet", "--variant=minbase",
		"--dpkgopt=path-exclude=/usr/share/man/*", "--dpkgopt=path-exclude=/usr/share/locale/*",
		"--dpkgopt=path-exclude=/usr/share/doc/*", "--dpkgopt=path-include=/usr/share/doc/*/copyright",
		"bookworm", archive)
	if out, err := gentle(cmd).CombinedOutput(); err != nil {
		return fmt.Errorf("mmdebstrap: %w: %s", err, lastLines(out, 5))
	}
	if out, err := e.command(ctx, "import", archive, ownBases.debian).CombinedOutput(); err != nil {
		return fmt.Errorf("the base image is not imported: %s", lastLine(out))
	}
	return nil
}

// makeGo adds this machine's Go, and the certificates that this machine trusts, which are needed to download modules.
func (e *engine) makeGo(ctx context.Context) error {
	goroot, err := exec.CommandContext(ctx, "go", "env", "GOROOT").Output()
	if err != nil {
		return err
	}
	dir := e.file("go")
	defer os.RemoveAll(dir)
	if err := os.Mkdir(dir, 0o777); err != nil {
		return err
	}
	files := []string{"-rL"}
	for _, name := range []string{"VERSION", "bin", "pkg", "src", "go.env"} {
		files = append(files, string(bytes.TrimSpace(goroot))+"/"+name)
	}
	files = append(files, "/etc/ssl/certs/ca-certificates.crt", dir)
	if out, err := exec.CommandContext(ctx, "cp", files...).CombinedOutput(); err != nil {
		return fmt.Errorf("this machine's Go is not copied: %s", lastLine(out))
	}
	recipe := "FROM " + ownBases.debian + `
COPY . /usr/local/go
RUN mkdir -p /etc/ssl/certs && mv /usr/local/go/ca-certificates.crt /etc/ssl/certs/
ENV PATH=/usr/local/go/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin GOTOOLCHAIN=local
`
	if err := os.WriteFile(dir+"/Dockerfile", []byte(recipe), 0o666); err != nil {
		return err
	}
	return e.build(ctx, ownBases.golang, dir)
}

// buildError is an image build failure, with the end of the output.
type buildError struct {
	image string
	said  []byte
}

func (e *buildError) Error() string {
	return fmt.Sprintf("image %s does not build:\n%s", e.image, e.said)
}

// build builds an image. More arguments and the directory follow its name.
func (e *engine) build(ctx context.Context, image string, args ...string) error {
	if out, err := e.command(ctx, e.buildArgs(image, args...)...).CombinedOutput(); err != nil {
		return &buildError{image, lastLines(out, 40)}
	}
	return nil
}

func (e *engine) buildArgs(image string, args ...string) []string {
	list := []string{"build", "--network", "host"}
	if e.name == podman {
		// The format of the Open Container Initiative has no health checks.
		list = append(list, "--format", "docker", "--pull=never", "--layers")
	}
	return append(append(list, "-t", image), args...)
}

// imageOf returns the name of the image for a stage of the Dockerfile.
func imageOf(target string) string {
	if target == "runtime" {
		return "rpcrdma"
	}
	return "rpcrdma-" + target
}

// buildImages builds our images.
func (e *engine) buildImages(ctx context.Context, b bases, vm bool) error {
	revision, err := exec.CommandContext(ctx, "git", "rev-parse", "HEAD").Output()
	if err != nil {
		revision = []byte("unknown")
	}
	targets := []string{"runtime", "demo", "bench"}
	if vm {
		targets = append(targets, "vm")
	}
	for _, target := range targets {
		begin := time.Now()
		image := imageOf(target)
		if err := e.build(ctx, image, "--target", target, "--build-arg", "GO_IMAGE="+b.golang, "--build-arg", "DEBIAN_IMAGE="+b.debian,
			"--build-arg", "REVISION="+strings.TrimSpace(string(revision)), "."); err != nil {
			return err
		}
		size, err := e.size(ctx, image)
		if err != nil {
			return err
		}
		say("built %s in %d s, %s bytes", image, int(time.Since(begin).Seconds()), size)
	}
	return nil
}

// size returns the size of an image, in bytes.
func (e *engine) size(ctx context.Context, image string) (string, error) {
	return e.output(ctx, "image", "inspect", "--format", "{{.Size}}", image)
}
