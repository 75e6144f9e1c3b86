package main

import (
	"io/fs"
	"os"
	"regexp"
)

// inContainer reports whether this process is in a container, where loading a module or
// adding a device is somebody else's business.
func inContainer() bool { return contained(os.DirFS("/"), os.Getenv) }

// containerGroups are control groups that engines make for containers, as a process sees
// them that has no namespace of its own for them. Immutable.
var containerGroups = regexp.MustCompile(`(?m)/(docker|lxc|kubepods|libpod)/|/(docker|libpod|cri-containerd|crio)-[0-9a-f]{12}|/kubepods[.-]|/lxc\.payload`)

// contained looks for what engines leave in a container: Docker and Podman a file each,
// Podman, LXC and systemd-nspawn a variable (systemd.io/CONTAINER_INTERFACE), Kubernetes the
// address of its API.
func contained(root fs.FS, getenv func(string) string) bool {
	for _, name := range []string{".dockerenv", "run/.containerenv"} {
		if _, err := fs.Stat(root, name); err == nil {
			return true
		}
	}
	if getenv("container") != "" || getenv("KUBERNETES_SERVICE_HOST") != "" {
		return true
	}
	groups, _ := fs.ReadFile(root, "proc/self/cgroup")
	return containerGroups.Match(groups)
}
