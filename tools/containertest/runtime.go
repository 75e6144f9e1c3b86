//go:build linux

package main

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"
)

// sizeLimit is the maximum size of the runtime image, in bytes.
const sizeLimit = 120_000_000

func isSmall(s *step) error {
	text, err := s.size(s.ctx, "rpcrdma")
	if err != nil {
		return err
	}
	size, err := strconv.Atoi(text)
	if err == nil && size > sizeLimit {
		err = fmt.Errorf("%d bytes, at most %d are wanted", size, sizeLimit)
	}
	return err
}

func hasLabels(s *step) error {
	for _, label := range []string{"title", "description", "licenses", "version", "revision"} {
		value, err := s.output(s.ctx, "image", "inspect", "--format", `{{index .Config.Labels "org.opencontainers.image.`+label+`"}}`, "rpcrdma")
		if err != nil {
			return err
		}
		if value == "" || value == "<no value>" {
			return fmt.Errorf("there is no label %s", label)
		}
	}
	return nil
}

// hasNoShell tries programs that the runtime image must not contain. The demonstration image has a shell, which shows
// that the same call would find one.
func hasNoShell(s *step) error {
	if _, err := s.do("run", "--rm", "--entrypoint", "/bin/sh", "rpcrdma-demo", "-c", "true"); err != nil {
		return err
	}
	for _, program := range []string{"/bin/sh", "/bin/bash", "/usr/bin/dpkg", "/bin/busybox"} {
		if _, err := fails(s.do("run", "--rm", "--entrypoint", program, "rpcrdma", "-c", "true")); err != nil {
			return fmt.Errorf("%s: %w", program, err)
		}
	}
	return nil
}

var unprivileged = regexp.MustCompile(`^[1-9][0-9]*:`)

func isUnprivileged(s *step) error {
	for _, image := range []string{"rpcrdma", "rpcrdma-demo", "rpcrdma-bench"} {
		user, err := s.output(s.ctx, "image", "inspect", "--format", "{{.Config.User}}", image)
		if err != nil {
			return err
		}
		if !unprivileged.MatchString(user) {
			return fmt.Errorf("%s has the user '%s'", image, user)
		}
	}
	return nil
}

// linksWhole checks that the command, and the drivers that libibverbs loads for devices, find their libraries in the
// runtime image.
func linksWhole(s *step) error {
	names, err := s.imageFiles("rpcrdma")
	if err != nil {
		return err
	}
	loader, drivers, err := loaderAndDrivers(names)
	if err != nil {
		return err
	}
	s.notef("loader %s, %d drivers", loader, len(drivers))
	for _, file := range append([]string{"usr/bin/rpcrdma"}, drivers...) {
		r, err := s.confined("--rm", "--entrypoint", "/"+loader, "rpcrdma", "--list", "/"+file)
		if err != nil {
			return err
		}
		if strings.Contains(r.all, "not found") {
			return fmt.Errorf("%s lacks a library", file)
		}
	}
	return nil
}

// imageFiles lists the files of an image.
func (s *step) imageFiles(image string) (names []string, err error) {
	container := s.mark + "-files"
	if _, err := s.do("create", "--name", container, image); err != nil {
		return nil, err
	}
	export := s.command(s.ctx, "export", container)
	archive, err := export.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := export.Start(); err != nil {
		return nil, err
	}
	names, listed := tarNames(archive)
	if err := errors.Join(listed, export.Wait()); err != nil {
		return nil, err
	}
	_, err = s.do("rm", container)
	return names, err
}

// tarNames lists the files in an archive.
func tarNames(archive io.Reader) (names []string, err error) {
	r := tar.NewReader(archive)
	for {
		h, err := r.Next()
		if err == io.EOF {
			// Read the rest after the end, so that the program that writes it does not fail.
			_, err = io.Copy(io.Discard, archive)
			return names, err
		}
		if err != nil {
			return nil, err
		}
		names = append(names, h.Name)
	}
}

var (
	loaderName = regexp.MustCompile(`^lib(64)?/ld-linux`)
	driverName = regexp.MustCompile(`libibverbs/.*\.so$`)
)

// fewestDrivers is the minimum number of drivers in rdma-core.
const fewestDrivers = 6

// loaderAndDrivers finds the dynamic linker and the drivers among the files of an image.
func loaderAndDrivers(names []string) (loader string, drivers []string, err error) {
	for _, name := range names {
		if loader == "" && loaderName.MatchString(name) {
			loader = name
		}
		if driverName.MatchString(name) {
			drivers = append(drivers, name)
		}
	}
	if loader == "" || len(drivers) < fewestDrivers {
		err = fmt.Errorf("among %d files, the loader is '%s', and there are %d drivers", len(names), loader, len(drivers))
	}
	return loader, drivers, err
}

// runsRDMA checks that the command reports devices, and their absence.
func runsRDMA(s *step) error {
	r, err := s.confined("--rm", "rpcrdma", "version")
	if err == nil {
		err = says(r.stdout, "with cgo")
	}
	if err != nil {
		return err
	}
	if r, err = s.confined("--rm", "rpcrdma", "devices"); err != nil {
		return err
	}
	_, iwarp, found := strings.Cut(r.stdout, "provider iwarp")
	if !found {
		return says(r.stdout, "provider iwarp")
	}
	return errors.Join(says(iwarp, "usable"), says(r.stdout, "provider rdma"))
}

func failsAlone(s *step) error {
	r, err := s.confined("--rm", "rpcrdma", "ping", "-c", "1", "--timeout", "2s", "127.0.0.1:9")
	if _, err := fails(r, err); err != nil {
		return err
	}
	if r.status != 1 {
		return fmt.Errorf("status %d, not 1", r.status)
	}
	return says(r.all, "refused")
}

// benchmarksRun runs those that need no device, and requires the others to report that they found no device.
func benchmarksRun(s *step) error {
	if _, err := s.confined("--rm", "--network", "none", "rpcrdma-bench", "-rounds", "1", "-time", "1ms"); err != nil {
		return err
	}
	for _, program := range []string{"pingpong", "pipeline", "stream"} {
		said, err := anyway(s.confined("--rm", "--network", "none", "--entrypoint", "/usr/lib/rpcrdma/cverbs/"+program, "rpcrdma-bench", "-n", "10", "127.0.0.1"))
		if err != nil {
			return err
		}
		if !strings.Contains(said, "rdma") && !strings.Contains(said, "device") {
			return fmt.Errorf("%s does not say that there is no device", program)
		}
	}
	// The exit status for --version may be that of wrong usage.
	said, err := anyway(s.confined("--rm", "--entrypoint", "/usr/bin/ib_send_lat", "rpcrdma-bench", "--version"))
	if err == nil {
		err = says(said, "Version")
	}
	if err != nil {
		return err
	}
	_, err = s.confined("--rm", "--network", "none", "--entrypoint", "/usr/bin/rpcrdma-bench", "rpcrdma-bench",
		"-test.run", "^$", "-test.bench", "Null", "-test.benchtime", "1x")
	return err
}
