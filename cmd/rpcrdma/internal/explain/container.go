package explain

import (
	"io/fs"
	"os"
	"regexp"
)

// InContainer reports whether this process is in a container, which cannot load a module
// or add a device.
func InContainer() bool { return contained(os.DirFS("/"), os.Getenv) }

// containerGroups matches the control groups that container engines create, as a process without a cgroup namespace
// sees them. Immutable.
var containerGroups = regexp.MustCompile(`(?m)/(docker|lxc|kubepods|libpod)/|/(docker|libpod|cri-containerd|crio)-[0-9a-f]{12}|/kubepods[.-]|/lxc\.payload`)

// contained looks for traces of container engines: Docker and Podman leave a file, Podman, LXC and systemd-nspawn a
// variable (systemd.io/CONTAINER_INTERFACE), and Kubernetes the address of its API.
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
