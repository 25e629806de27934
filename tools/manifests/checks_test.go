package manifests_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"
	"k8s.io/utils/ptr"
)

// report collects problems, one sentence each.
type report []string

func (r *report) problem(is bool, format string, args ...any) {
	if is {
		*r = append(*r, fmt.Sprintf(format, args...))
	}
}

// installation contains the objects of one kustomization.
type installation struct {
	objects     []*unstructured.Unstructured
	deployments []*appsv1.Deployment // and StatefulSets
	services    []*corev1.Service
	budgets     []*policyv1.PodDisruptionBudget
	bindings    []*rbacv1.RoleBinding // and ClusterRoleBindings, which have the same fields
}

// read returns an installation of objects.
func read(t *testing.T, objects []*unstructured.Unstructured) *installation {
	t.Helper()

	in := &installation{
		objects:     objects,
		deployments: typed[appsv1.Deployment](t, objects, "Deployment"),
		services:    typed[corev1.Service](t, objects, "Service"),
		budgets:     typed[policyv1.PodDisruptionBudget](t, objects, "PodDisruptionBudget"),
		bindings:    typed[rbacv1.RoleBinding](t, objects, "RoleBinding", "ClusterRoleBinding"),
	}
	for _, set := range typed[appsv1.StatefulSet](t, objects, "StatefulSet") {
		in.deployments = append(in.deployments, &appsv1.Deployment{ObjectMeta: set.ObjectMeta,
			Spec: appsv1.DeploymentSpec{Selector: set.Spec.Selector, Template: set.Spec.Template}})
	}

	return in
}

// typed returns the objects of some kinds. All their fields must be known.
func typed[T any](t *testing.T, objects []*unstructured.Unstructured, kinds ...string) []*T {
	t.Helper()

	var found []*T

	for _, o := range objects {
		if slices.Contains(kinds, o.GetKind()) {
			found = append(found, new(T))
			require.NoError(t, runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(o.Object,
				found[len(found)-1], true), "%s %s", o.GetKind(), o.GetName())
		}
	}

	return found
}

// find returns an object; nil if there is none.
func find(objects []*unstructured.Unstructured, kind, namespace, name string) *unstructured.Unstructured {
	for _, o := range objects {
		if o.GetKind() == kind && o.GetNamespace() == namespace && o.GetName() == name {
			return o
		}
	}

	return nil
}

// selects reports whether a selector matches the pods of the named Deployment, or of any Deployment if the name is
// empty.
func (in *installation) selects(namespace string, selector *metav1.LabelSelector, name string) bool {
	s, err := metav1.LabelSelectorAsSelector(selector)

	return err == nil && slices.ContainsFunc(in.deployments, func(d *appsv1.Deployment) bool {
		return d.Namespace == namespace && (name == "" || d.Name == name) && s.Matches(labels.Set(d.Spec.Template.Labels))
	})
}

// dangling returns the references to missing objects, one sentence each. Roles and service accounts may be among the
// objects of another installation.
func (in *installation) dangling(other ...*unstructured.Unstructured) (r report) {
	all := slices.Concat(in.objects, other)

	for _, d := range in.deployments {
		account := d.Spec.Template.Spec.ServiceAccountName
		r.problem(find(all, "ServiceAccount", d.Namespace, account) == nil,
			"Deployment %s: there is no service account %s/%s", d.Name, d.Namespace, account)

		namespace := find(all, "Namespace", "", d.Namespace)
		r.problem(namespace == nil || namespace.GetLabels()["pod-security.kubernetes.io/enforce"] != "restricted",
			"Deployment %s: namespace %s does not enforce restricted Pod Security", d.Name, d.Namespace)
		r.problem(!in.selects(d.Namespace, d.Spec.Selector, d.Name), "Deployment %s does not select its own pods", d.Name)

		budgets := 0
		for _, b := range in.budgets {
			if in.selects(b.Namespace, b.Spec.Selector, d.Name) {
				budgets++
			}
		}

		r.problem(budgets != 1, "Deployment %s has %d PodDisruptionBudgets", d.Name, budgets)
	}

	for _, b := range in.budgets {
		r.problem(!in.selects(b.Namespace, b.Spec.Selector, ""), "PodDisruptionBudget %s selects no pods", b.Name)
	}

	for _, s := range in.services {
		for _, port := range s.Spec.Ports {
			named := slices.ContainsFunc(in.deployments, func(d *appsv1.Deployment) bool {
				return in.selects(s.Namespace, &metav1.LabelSelector{MatchLabels: s.Spec.Selector}, d.Name) &&
					slices.ContainsFunc(d.Spec.Template.Spec.Containers[0].Ports, func(p corev1.ContainerPort) bool {
						return p.Name == port.TargetPort.StrVal
					})
			})
			r.problem(!named, "Service %s: no pod has a port %q", s.Name, port.TargetPort.String())
		}
	}

	for _, b := range in.bindings {
		namespace := b.Namespace
		if b.RoleRef.Kind == "ClusterRole" {
			namespace = ""
		}

		r.problem(find(all, b.RoleRef.Kind, namespace, b.RoleRef.Name) == nil, "binding %s: there is no %s %s", b.Name,
			b.RoleRef.Kind, b.RoleRef.Name)

		for _, s := range b.Subjects {
			r.problem(s.Kind == rbacv1.ServiceAccountKind && find(all, s.Kind, s.Namespace, s.Name) == nil,
				"binding %s: there is no service account %s/%s", b.Name, s.Namespace, s.Name)
		}
	}

	return r
}

// problems returns the problems of the pods of a Deployment, one sentence each.
func problems(t *testing.T, d *appsv1.Deployment) (r report) {
	t.Helper()

	evaluator, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
	require.NoError(t, err)

	pod := &d.Spec.Template
	spec := &pod.Spec

	restricted := api.LevelVersion{Level: api.LevelRestricted, Version: api.LatestVersion()}
	for _, result := range evaluator.EvaluatePod(restricted, &pod.ObjectMeta, spec) {
		r.problem(!result.Allowed, "Pod Security: %s (%s)", result.ForbiddenReason, result.ForbiddenDetail)
	}

	r.problem(spec.AutomountServiceAccountToken == nil,
		"the pod does not say whether it wants the token of its service account")
	r.problem(spec.ServiceAccountName == "", "the pod has the service account of everybody")
	r.problem(len(spec.TopologySpreadConstraints) == 0, "nothing spreads the pods over nodes")

	for _, c := range spec.TopologySpreadConstraints {
		r.problem(c.WhenUnsatisfiable != corev1.ScheduleAnyway, "pods wait rather than share a node")
	}

	for i := range spec.Containers {
		c := &spec.Containers[i]
		takes := duration(c, "--shutdown-delay") + duration(c, "--shutdown-grace")
		grace := time.Duration(ptr.Deref(spec.TerminationGracePeriodSeconds, 0)) * time.Second
		r.problem(grace <= takes, "the pod is killed before its flags let it stop (%s)", takes)
		r.container(c)
	}

	return r
}

// container reports the problems of a container.
func (r *report) container(c *corev1.Container) {
	missing := func(is bool, what string) { r.problem(is, "container %s has no %s", c.Name, what) }
	missing(c.StartupProbe == nil, "startup probe")
	missing(c.LivenessProbe == nil, "liveness probe")
	missing(c.ReadinessProbe == nil, "readiness probe")
	missing(c.Resources.Requests.Cpu().IsZero(), "request for the processor")
	missing(c.Resources.Requests.Memory().IsZero(), "request for memory")
	missing(c.Resources.Limits.Memory().IsZero(), "limit of memory")
	missing(c.SecurityContext == nil || !ptr.Deref(c.SecurityContext.ReadOnlyRootFilesystem, false),
		"read-only root file system")
	r.problem(!c.Resources.Limits.Cpu().IsZero(),
		"container %s is throttled by a limit of the processor, and renews Leases too late", c.Name)
	missing(!slices.ContainsFunc(c.Env, func(env corev1.EnvVar) bool {
		return env.Name == "GOMEMLIMIT" && env.ValueFrom != nil && env.ValueFrom.ResourceFieldRef != nil &&
			env.ValueFrom.ResourceFieldRef.Resource == "limits.memory"
	}), "GOMEMLIMIT from its limit of memory")
}

// duration returns the value of a duration flag in a container's arguments, 0 if it is not set.
func duration(c *corev1.Container, flag string) time.Duration {
	var d time.Duration

	for _, arg := range c.Args {
		if value, ok := strings.CutPrefix(arg, flag+"="); ok {
			d, _ = time.ParseDuration(value) // the program rejects invalid values
		}
	}

	return d
}
