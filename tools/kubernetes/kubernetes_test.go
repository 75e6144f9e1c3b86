package kubernetes

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// serveFlags asks the command for the flags of serve.
func serveFlags(t *testing.T) []string {
	t.Helper()
	cmd := exec.Command("go", "run", ".", "serve", "--help")
	cmd.Dir = "../../cmd/rpcrdma"
	cmd.Env = append(cmd.Environ(), "CGO_ENABLED=0")
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	flags := regexp.MustCompile(`(?m)^ +(?:-\w, )?(--[a-z-]+)`).FindAllStringSubmatch(string(out), -1)
	if len(flags) < 10 {
		t.Fatalf("serve has flags %q", flags)
	}
	var names []string
	for _, f := range flags {
		names = append(names, f[1])
	}
	return names
}

// manifests are those of the project, by name.
func manifests(t *testing.T) map[string]string {
	t.Helper()
	files, err := filepath.Glob("../../deploy/kubernetes/*.yaml")
	if err != nil || len(files) != 3 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	texts := make(map[string]string)
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		texts[filepath.Base(file)] = string(text)
	}
	return texts
}

func TestManifests(t *testing.T) {
	var o Objects
	for name, text := range manifests(t) {
		if err := o.Read([]byte(text)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if len(o.Deployments) != 2 || len(o.Services) != 1 || len(o.Policies) != 1 {
		t.Errorf("%d deployments, %d services, %d policies", len(o.Deployments), len(o.Services), len(o.Policies))
	}
	for _, finding := range o.Check(serveFlags(t)) {
		t.Error(finding)
	}
}

// Every rule finds what breaks it.
func TestRules(t *testing.T) {
	flags := serveFlags(t)
	for _, tt := range []struct{ file, old, new, want string }{
		{"iwarp.yaml", "runAsUser: 65532", "runAsUser: 0", "runs as root"},
		{"iwarp.yaml", "runAsNonRoot: true", "runAsNonRoot: false", "runs as root"},
		{"iwarp.yaml", "        seccompProfile: {type: RuntimeDefault}\n", "", "seccomp"},
		{"iwarp.yaml", "readOnlyRootFilesystem: true", "readOnlyRootFilesystem: false", "may do more"},
		{"iwarp.yaml", "capabilities: {drop: [ALL]}", "capabilities: {drop: [ALL], add: [SYS_ADMIN]}", "may do more"},
		{"iwarp.yaml", "allowPrivilegeEscalation: false", "allowPrivilegeEscalation: true", "may do more"},
		{"iwarp.yaml", "      enableServiceLinks: false\n", "      hostNetwork: true\n", "namespace of the host"},
		{"iwarp.yaml", "serviceAccountName: rpcrdma", "serviceAccountName: other", `no service account "other"`},
		{"iwarp.yaml", "      automountServiceAccountToken: false", "      automountServiceAccountToken: true", "token"},
		{"iwarp.yaml", "limits: {memory: 1Gi}", "limits: {}", "no limit of memory"},
		{"iwarp.yaml", "livenessProbe", "lifecycle: {}\n          livenessProbe_", "unknown field"},
		{"iwarp.yaml", "readinessProbe:\n            httpGet: {path: /healthz", "readinessProbe:\n            httpGet: {path: /", "readiness probe"},
		{"iwarp.yaml", "tcpSocket: {port: nfs}", "httpGet: {path: /healthz, port: metrics}", "liveness probe"},
		{"iwarp.yaml", "--metrics-addr=:9649", "--metrics-address=:9649", "serve has no --metrics-address"},
		{"iwarp.yaml", "containerPort: 2049}", "containerPort: 2048}", "port nfs is :2048"},
		{"iwarp.yaml", "mountPath: /srv/files", "mountPath: /srv", "--dir is in no volume"},
		{"iwarp.yaml", "claimName: rpcrdma", "claimName: none", "volume data is of no claim"},
		{"iwarp.yaml", "replicas: 1", "replicas: 2", "two servers"},
		{"iwarp.yaml", "targetPort: nfs", "targetPort: nfs4", "no port nfs4"},
		{"iwarp.yaml", "targetPort: nfs", "targetPort: metrics", "operators alone"},
		{"iwarp.yaml", "    matchLabels: {app.kubernetes.io/name: rpcrdma,", "    matchLabels: {app.kubernetes.io/name: rpc,", "selector does not match"},
		{"iwarp.yaml", "  selector: {app.kubernetes.io/name: rpcrdma,", "  selector: {app.kubernetes.io/name: rpc,", "selects no pods"},
		{"iwarp.yaml", "kind: Service\n", "kind: Ingress\n", "no rules for v1 Ingress"},
		{"iwarp.yaml", "  replicas: 1", "  replicas: 1\n  replicas: 1", `"replicas" already set`},
		{"rdma.yaml", `limits: {memory: 1Gi, rdma/hca: "1"}`, `limits: {memory: 1Gi}`, "request and limit of rdma/hca differ"},
		{"rdma.yaml", "--state=/var/lib/rpcrdma", "--state=/tmp", "--state is in no volume"},
		{"networkpolicy.yaml", "    matchLabels: {app.kubernetes.io/name: rpcrdma}", "    matchLabels: {app.kubernetes.io/name: other}", "no network policy"},
		{"networkpolicy.yaml", "egress: []", "egress: [{}]", "may call somebody"},
		{"networkpolicy.yaml", "policyTypes: [Ingress, Egress]", "policyTypes: [Ingress]", "may call somebody"},
		{"networkpolicy.yaml", "port: metrics", "port: http", "no deployment has port http"},
		{"networkpolicy.yaml", "    - from:\n        - namespaceSelector:\n            matchLabels: {kubernetes.io/metadata.name: monitoring}\n      ports", "    - ports", "for everybody"},
	} {
		var o Objects
		var findings []string
		for name, text := range manifests(t) {
			if name == tt.file {
				changed := strings.Replace(text, tt.old, tt.new, 1)
				if changed == text {
					t.Errorf("%s has no %q", name, tt.old)
				}
				text = changed
			}
			if err := o.Read([]byte(text)); err != nil {
				findings = append(findings, err.Error())
			}
		}
		findings = append(findings, o.Check(flags)...)
		if all := strings.Join(findings, "\n"); !strings.Contains(all, tt.want) {
			t.Errorf("%s with %q: found %q, want %q", tt.file, tt.new, all, tt.want)
		}
	}
}
