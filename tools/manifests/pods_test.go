package manifests_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/clusterring/clusterring/tools/manifests"
)

// assigner returns what the base has.
func assigner(t *testing.T) (*manifests.Installation, *appsv1.Deployment) {
	t.Helper()

	objects, err := manifests.Build(root + "/deploy/base")
	require.NoError(t, err)
	in, err := manifests.Read(objects)
	require.NoError(t, err)

	for _, d := range in.Deployments {
		if d.Name == "assigner" {
			return in, d
		}
	}
	require.Fail(t, "there is no assigner")

	return nil, nil
}

// TestProblems spoils a good Deployment in every way that is looked for.
func TestProblems(t *testing.T) {
	for want, spoil := range map[string]func(pod *corev1.PodSpec, c *corev1.Container){
		"Pod Security: runAsNonRoot":              func(pod *corev1.PodSpec, _ *corev1.Container) { pod.SecurityContext.RunAsNonRoot = nil },
		"Pod Security: seccompProfile":            func(pod *corev1.PodSpec, _ *corev1.Container) { pod.SecurityContext.SeccompProfile = nil },
		"Pod Security: unrestricted capabilities": func(_ *corev1.PodSpec, c *corev1.Container) { c.SecurityContext.Capabilities = nil },
		"Pod Security: host namespaces":           func(pod *corev1.PodSpec, _ *corev1.Container) { pod.HostNetwork = true },
		"whether it wants the token":              func(pod *corev1.PodSpec, _ *corev1.Container) { pod.AutomountServiceAccountToken = nil },
		"service account of everybody":            func(pod *corev1.PodSpec, _ *corev1.Container) { pod.ServiceAccountName = "" },
		"nothing spreads":                         func(pod *corev1.PodSpec, _ *corev1.Container) { pod.TopologySpreadConstraints = nil },
		"wait rather than share": func(pod *corev1.PodSpec, _ *corev1.Container) {
			pod.TopologySpreadConstraints[0].WhenUnsatisfiable = corev1.DoNotSchedule
		},
		"killed before its flags let it stop (30s)": func(pod *corev1.PodSpec, _ *corev1.Container) { pod.TerminationGracePeriodSeconds = new(int64(30)) },
		"no startup probe":                          func(_ *corev1.PodSpec, c *corev1.Container) { c.StartupProbe = nil },
		"no liveness probe":                         func(_ *corev1.PodSpec, c *corev1.Container) { c.LivenessProbe = nil },
		"no readiness probe":                        func(_ *corev1.PodSpec, c *corev1.Container) { c.ReadinessProbe = nil },
		"no request for the processor":              func(_ *corev1.PodSpec, c *corev1.Container) { delete(c.Resources.Requests, corev1.ResourceCPU) },
		"no request for memory":                     func(_ *corev1.PodSpec, c *corev1.Container) { delete(c.Resources.Requests, corev1.ResourceMemory) },
		"no limit of memory":                        func(_ *corev1.PodSpec, c *corev1.Container) { delete(c.Resources.Limits, corev1.ResourceMemory) },
		"is throttled": func(_ *corev1.PodSpec, c *corev1.Container) {
			c.Resources.Limits[corev1.ResourceCPU] = c.Resources.Requests[corev1.ResourceCPU]
		},
		"no read-only root file system": func(_ *corev1.PodSpec, c *corev1.Container) { c.SecurityContext.ReadOnlyRootFilesystem = nil },
		"no GOMEMLIMIT":                 func(_ *corev1.PodSpec, c *corev1.Container) { c.Env = nil },
	} {
		t.Run(want, func(t *testing.T) {
			_, d := assigner(t)
			spoil(&d.Spec.Template.Spec, &d.Spec.Template.Spec.Containers[0])
			problems, err := manifests.Problems(d)
			require.NoError(t, err)
			require.Contains(t, strings.Join(problems, "\n"), want)
		})
	}
}

// TestDangling breaks what holds a good installation together.
func TestDangling(t *testing.T) {
	for want, spoil := range map[string]func(d *appsv1.Deployment){
		"there is no service account sharding-system/other":            func(d *appsv1.Deployment) { d.Spec.Template.Spec.ServiceAccountName = "other" },
		"assigner does not select its own pods":                        func(d *appsv1.Deployment) { d.Spec.Selector.MatchLabels["more"] = "x" },
		"assigner has 0 PodDisruptionBudgets":                          func(d *appsv1.Deployment) { d.Spec.Template.Labels["app.kubernetes.io/name"] = "other" },
		"PodDisruptionBudget assigner selects no pods":                 func(d *appsv1.Deployment) { d.Spec.Template.Labels = nil },
		`Service assigner: no pod has a port "webhook"`:                func(d *appsv1.Deployment) { d.Spec.Template.Spec.Containers[0].Ports[0].Name = "hook" },
		"namespace elsewhere does not enforce restricted Pod Security": func(d *appsv1.Deployment) { d.Namespace = "elsewhere" },
	} {
		t.Run(want, func(t *testing.T) {
			in, d := assigner(t)
			require.Empty(t, in.Dangling())
			spoil(d)
			require.Contains(t, strings.Join(in.Dangling(), "\n"), want)
		})
	}
}
