// Package kubernetes has the rules for the manifests in deploy/kubernetes: each object has the
// fields of its type and no others, parts find each other by their names, and containers may do
// no more than they have to.
package kubernetes

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"
)

// Objects is what manifests define.
type Objects struct {
	Deployments []*appsv1.Deployment
	Services    []*corev1.Service
	Claims      []*corev1.PersistentVolumeClaim
	Accounts    []*corev1.ServiceAccount
	Policies    []*networkingv1.NetworkPolicy
}

// Read adds the objects of a manifest. A field that the type does not have is an error, as is a key
// that is there twice.
func (o *Objects) Read(manifest []byte) error {
	docs := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(manifest)))
	for n := 1; ; n++ {
		doc, err := docs.Read()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil {
			err = o.read(doc)
		}
		if err != nil {
			return fmt.Errorf("object %d: %w", n, err)
		}
	}
}

func (o *Objects) read(doc []byte) error {
	var kind metav1.TypeMeta
	if err := yaml.Unmarshal(doc, &kind); err != nil {
		return err
	}
	switch kind.APIVersion + " " + kind.Kind {
	case "apps/v1 Deployment":
		return add(&o.Deployments, doc)
	case "v1 Service":
		return add(&o.Services, doc)
	case "v1 PersistentVolumeClaim":
		return add(&o.Claims, doc)
	case "v1 ServiceAccount":
		return add(&o.Accounts, doc)
	case "networking.k8s.io/v1 NetworkPolicy":
		return add(&o.Policies, doc)
	}
	return fmt.Errorf("there are no rules for %s %s", kind.APIVersion, kind.Kind)
}

func add[T any](list *[]*T, doc []byte) error {
	v := new(T)
	if err := yaml.UnmarshalStrict(doc, v); err != nil {
		return err
	}
	*list = append(*list, v)
	return nil
}

// Check applies the rules, and returns what is wrong. flags are those of 'rpcrdma serve', with their
// dashes.
func (o *Objects) Check(flags []string) []string {
	var list findings
	for _, d := range o.Deployments {
		at := "deployment " + d.Name
		template := d.Spec.Template
		if !matches(d.Spec.Selector, template.Labels) {
			list.add("%s: its selector does not match its pods", at)
		}
		if d.Spec.Replicas == nil || *d.Spec.Replicas != 1 || d.Spec.Strategy.Type != appsv1.RecreateDeploymentStrategyType {
			list.add("%s: two servers could use the state at a time", at)
		}
		o.checkPod(&list, at, &template.Spec)
		if len(template.Spec.Containers) != 1 {
			list.add("%s: %d containers", at, len(template.Spec.Containers))
			continue
		}
		checkContainer(&list, at, &template.Spec.Containers[0], flags)
		if !slices.ContainsFunc(o.Policies, func(p *networkingv1.NetworkPolicy) bool { return matches(&p.Spec.PodSelector, template.Labels) }) {
			list.add("%s: no network policy selects its pods", at)
		}
	}
	for _, s := range o.Services {
		o.checkService(&list, s)
	}
	for _, p := range o.Policies {
		o.checkPolicy(&list, p)
	}
	return list
}

type findings []string

func (f *findings) add(format string, args ...any) { *f = append(*f, fmt.Sprintf(format, args...)) }

func matches(s *metav1.LabelSelector, labels map[string]string) bool {
	if s == nil || len(s.MatchLabels) == 0 || len(s.MatchExpressions) > 0 {
		return false
	}
	for k, v := range s.MatchLabels {
		if labels[k] != v {
			return false
		}
	}
	return true
}

func is(p *bool, want bool) bool { return p != nil && *p == want }

// checkPod checks what all containers of a pod have in common.
func (o *Objects) checkPod(list *findings, at string, p *corev1.PodSpec) {
	c := p.SecurityContext
	switch {
	case c == nil || !is(c.RunAsNonRoot, true) || c.RunAsUser == nil || *c.RunAsUser == 0:
		list.add("%s: runs as root", at)
	case c.SeccompProfile == nil || c.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault:
		list.add("%s: without a seccomp profile", at)
	}
	if p.HostNetwork || p.HostPID || p.HostIPC {
		list.add("%s: in a namespace of the host", at)
	}
	if !is(p.AutomountServiceAccountToken, false) {
		list.add("%s: has a token for the API", at)
	}
	if !slices.ContainsFunc(o.Accounts, func(a *corev1.ServiceAccount) bool { return a.Name == p.ServiceAccountName }) {
		list.add("%s: there is no service account %q", at, p.ServiceAccountName)
	}
	mounted := make(map[string]bool)
	for _, container := range p.Containers {
		for _, m := range container.VolumeMounts {
			mounted[m.Name] = true
		}
	}
	for _, v := range p.Volumes {
		claim := v.PersistentVolumeClaim
		if claim == nil || !slices.ContainsFunc(o.Claims, func(c *corev1.PersistentVolumeClaim) bool { return c.Name == claim.ClaimName }) {
			list.add("%s: volume %s is of no claim", at, v.Name)
		}
		if !mounted[v.Name] {
			list.add("%s: volume %s is not mounted", at, v.Name)
		}
		delete(mounted, v.Name)
	}
	for _, name := range slices.Sorted(maps.Keys(mounted)) {
		list.add("%s: there is no volume %s", at, name)
	}
}

func checkContainer(list *findings, at string, c *corev1.Container, flags []string) {
	s := c.SecurityContext
	if s == nil || !is(s.AllowPrivilegeEscalation, false) || !is(s.ReadOnlyRootFilesystem, true) ||
		s.Capabilities == nil || !slices.Equal(s.Capabilities.Drop, []corev1.Capability{"ALL"}) || len(s.Capabilities.Add) > 0 {
		list.add("%s: may do more than it has to", at)
	}
	if c.Resources.Requests.Cpu().IsZero() || c.Resources.Requests.Memory().IsZero() || c.Resources.Limits.Memory().IsZero() {
		list.add("%s: asks for no processor or memory, or has no limit of memory", at)
	}
	for name, q := range c.Resources.Requests {
		if limit, ok := c.Resources.Limits[name]; strings.Contains(string(name), "/") && (!ok || limit.Cmp(q) != 0) {
			list.add("%s: request and limit of %s differ", at, name)
		}
	}
	for name, probe := range map[string]*corev1.Probe{"startup": c.StartupProbe, "readiness": c.ReadinessProbe} {
		if probe == nil || probe.HTTPGet == nil || probe.HTTPGet.Path != "/healthz" || probe.HTTPGet.Port != intstr.FromString("metrics") {
			list.add("%s: the %s probe is not that of the server's health", at, name)
		}
	}
	if p := c.LivenessProbe; p == nil || p.TCPSocket == nil || p.TCPSocket.Port != intstr.FromString("nfs") {
		list.add("%s: the liveness probe is not a connection to the server", at)
	}
	if len(c.Args) == 0 || c.Args[0] != "serve" {
		list.add("%s: is no server", at)
		return
	}
	values := make(map[string]string)
	for _, arg := range c.Args[1:] {
		name, value, _ := strings.Cut(arg, "=")
		if !slices.Contains(flags, name) {
			list.add("%s: serve has no %s", at, name)
		}
		values[name] = value
	}
	for _, p := range c.Ports {
		flag := map[string]string{"iwarp": "--addr", "nfs": "--tcp-addr", "metrics": "--metrics-addr"}[p.Name]
		if want := fmt.Sprintf(":%d", p.ContainerPort); values[flag] != want {
			list.add("%s: port %s is %s, and %s %q", at, p.Name, want, flag, values[flag])
		}
	}
	for _, flag := range []string{"--dir", "--state"} {
		if !slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return path.Clean(m.MountPath) == values[flag] && !m.ReadOnly }) {
			list.add("%s: %s is in no volume", at, flag)
		}
	}
}

// checkService wants ports that the pods have.
func (o *Objects) checkService(list *findings, s *corev1.Service) {
	at := "service " + s.Name
	found := false
	for _, d := range o.Deployments {
		if !matches(&metav1.LabelSelector{MatchLabels: s.Spec.Selector}, d.Spec.Template.Labels) {
			continue
		}
		found = true
		for _, p := range s.Spec.Ports {
			if !hasPort(d, p.TargetPort) {
				list.add("%s: deployment %s has no port %s", at, d.Name, p.TargetPort.String())
			}
			if p.TargetPort == intstr.FromString("metrics") {
				list.add("%s: metrics are for operators alone", at)
			}
		}
	}
	if !found {
		list.add("%s: selects no pods", at)
	}
}

func hasPort(d *appsv1.Deployment, port intstr.IntOrString) bool {
	return slices.ContainsFunc(d.Spec.Template.Spec.Containers, func(c corev1.Container) bool {
		return slices.ContainsFunc(c.Ports, func(p corev1.ContainerPort) bool { return port == intstr.FromString(p.Name) })
	})
}

// checkPolicy wants all of the traffic to be in the hands of a policy, and every rule to name who and
// which ports.
func (o *Objects) checkPolicy(list *findings, p *networkingv1.NetworkPolicy) {
	at := "network policy " + p.Name
	if len(p.Spec.PolicyTypes) != 2 || len(p.Spec.Egress) > 0 {
		list.add("%s: servers may call somebody", at)
	}
	for _, rule := range p.Spec.Ingress {
		if len(rule.From) == 0 || len(rule.Ports) == 0 {
			list.add("%s: a rule is for everybody, or for every port", at)
		}
		for _, port := range rule.Ports {
			if port.Port == nil || !slices.ContainsFunc(o.Deployments, func(d *appsv1.Deployment) bool { return hasPort(d, *port.Port) }) {
				list.add("%s: no deployment has port %s", at, port.Port)
			}
		}
	}
}
