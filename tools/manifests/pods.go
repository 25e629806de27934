package manifests

import (
	"fmt"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"
)

// Problems returns the problems of the pods of a Deployment, one sentence each.
func Problems(d *appsv1.Deployment) ([]string, error) {
	evaluator, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
	if err != nil {
		return nil, fmt.Errorf("prepare the checks of Pod Security: %w", err)
	}

	pod := &d.Spec.Template

	var problems []string

	restricted := api.LevelVersion{Level: api.LevelRestricted, Version: api.LatestVersion()}
	for _, result := range evaluator.EvaluatePod(restricted, &pod.ObjectMeta, &pod.Spec) {
		if !result.Allowed {
			problems = append(problems, "Pod Security: "+result.ForbiddenReason+" ("+result.ForbiddenDetail+")")
		}
	}

	problems = append(problems, podProblems(&pod.Spec)...)
	for i := range pod.Spec.Containers {
		problems = append(problems, containerProblems(&pod.Spec.Containers[i])...)
	}

	return problems, nil
}

func podProblems(spec *corev1.PodSpec) []string {
	var problems []string
	if spec.AutomountServiceAccountToken == nil {
		problems = append(problems, "the pod does not say whether it wants the token of its service account")
	}

	if spec.ServiceAccountName == "" {
		problems = append(problems, "the pod has the service account of everybody")
	}

	if len(spec.TopologySpreadConstraints) == 0 {
		problems = append(problems, "nothing spreads the pods over nodes")
	}

	for _, c := range spec.TopologySpreadConstraints {
		if c.WhenUnsatisfiable != corev1.ScheduleAnyway {
			problems = append(problems, "pods wait rather than share a node")
		}
	}

	for i := range spec.Containers {
		takes := duration(&spec.Containers[i], "--shutdown-delay") + duration(&spec.Containers[i], "--shutdown-grace")
		if spec.TerminationGracePeriodSeconds == nil || time.Duration(*spec.TerminationGracePeriodSeconds)*time.Second <= takes {
			problems = append(problems, fmt.Sprintf("the pod is killed before its flags let it stop (%s)", takes))
		}
	}

	return problems
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

func containerProblems(c *corev1.Container) []string {
	var problems []string

	missing := func(is bool, what string) {
		if is {
			problems = append(problems, fmt.Sprintf("container %s has no %s", c.Name, what))
		}
	}
	missing(c.StartupProbe == nil, "startup probe")
	missing(c.LivenessProbe == nil, "liveness probe")
	missing(c.ReadinessProbe == nil, "readiness probe")
	missing(c.Resources.Requests.Cpu().IsZero(), "request for the processor")
	missing(c.Resources.Requests.Memory().IsZero(), "request for memory")
	missing(c.Resources.Limits.Memory().IsZero(), "limit of memory")
	missing(c.SecurityContext == nil || c.SecurityContext.ReadOnlyRootFilesystem == nil || !*c.SecurityContext.ReadOnlyRootFilesystem,
		"read-only root file system")

	if !c.Resources.Limits.Cpu().IsZero() {
		problems = append(problems, fmt.Sprintf("container %s is throttled by a limit of the processor, and renews Leases too late", c.Name))
	}

	knowsLimit := false
	for _, env := range c.Env {
		knowsLimit = knowsLimit || env.Name == "GOMEMLIMIT" && env.ValueFrom != nil && env.ValueFrom.ResourceFieldRef != nil &&
			env.ValueFrom.ResourceFieldRef.Resource == "limits.memory"
	}
	missing(!knowsLimit, "GOMEMLIMIT from its limit of memory")

	return problems
}
