package explain

import (
	"testing"
	"testing/fstest"
)

func TestContained(t *testing.T) {
	const cgroup = "proc/self/cgroup"
	const id = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	for _, tt := range []struct {
		what, file, text, variable string
		want                       bool
	}{
		{"a machine", "etc/hostname", "host", "HOME", false},
		{"Docker", ".dockerenv", "", "", true},
		{"Podman", "run/.containerenv", "", "", true},
		{"Podman, LXC, systemd-nspawn", "", "", "container", true},
		{"Kubernetes", "", "", "KUBERNETES_SERVICE_HOST", true},
		{"a namespace of control groups", cgroup, "0::/\n", "", false},
		{"a login", cgroup, "0::/user.slice/user-1000.slice/session-2.scope\n", "", false},
		{"the engine itself", cgroup, "0::/system.slice/docker.service\n", "", false},
		{"a host of containers", cgroup, "0::/system.slice/containerd.service\n", "", false},
		{"Docker, cgroup v1", cgroup, "9:name=systemd:/docker/" + id + "\n8:pids:/\n", "", true},
		{"Docker with systemd", cgroup, "0::/system.slice/docker-" + id + ".scope\n", "", true},
		{"Podman with systemd", cgroup, "0::/machine.slice/libpod-" + id + ".scope/container\n", "", true},
		{"Kubernetes, cgroup v1", cgroup, "8:pids:/\n4:memory:/kubepods/burstable/pod12/" + id + "\n", "", true},
		{"Kubernetes with systemd", cgroup, "0::/kubepods.slice/kubepods-pod12.slice/cri-containerd-" + id + ".scope\n", "", true},
		{"LXC", cgroup, "0::/lxc.payload.name\n", "", true},
	} {
		root := fstest.MapFS{}
		if tt.file != "" {
			root[tt.file] = &fstest.MapFile{Data: []byte(tt.text)}
		}
		got := contained(root, func(name string) string {
			if name == tt.variable {
				return "x"
			}
			return ""
		})
		if got != tt.want {
			t.Errorf("%s: a container is %v", tt.what, got)
		}
	}
}
