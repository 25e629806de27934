package pods

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
)

const (
	// unknownContainer is the reason with which the kubelet reports a container that it could not find. restarting is the reason with which it
	// reports any container of a Pod whose containers it restarts together, also one that it could not find.
	unknownContainer, restarting = "ContainerStatusUnknown", "RestartingAllContainers"
	// notFound is what virtual nodes report of a container that their provider does not list.
	notFound = "NotFound"
	// podFailed and podCompleted are the reasons of the condition ContainersReady with which the kubelet reports a terminal phase.
	podFailed, podCompleted = "PodFailed", "PodCompleted"
)

// Ended reports whether the kubelet has reported that no process of the Pod runs, or will ever run again:
//
//   - The phase is Failed or Succeeded. The kubelet starts no container of such a Pod, not even after a restart of the node.
//   - The condition ContainersReady gives that as its reason, so it is the kubelet that reports the phase. The garbage collector of Pods, which
//     declares Pods failed whose nodes cannot be reached, leaves the condition as it is.
//   - Every container has terminated, and was seen to: the kubelet also reports containers as terminated that it could not find.
//
// Not enough are: a deletion timestamp, because a container that has just crashed may be restarted until the kubelet sees the deletion; the
// disappearance of the Pod, because a deletion without a grace period does not wait for the kubelet; and a node that is not ready. A container
// that restarts in place does not end its Pod.
//
// Since Kubernetes 1.27, the kubelet reports the phase also of Pods that are deleted, before they disappear.
func Ended(p *corev1.Pod) bool {
	if p.Status.Phase != corev1.PodFailed && p.Status.Phase != corev1.PodSucceeded {
		return false
	}

	if !slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.ContainersReady && c.Status == corev1.ConditionFalse && (c.Reason == podFailed || c.Reason == podCompleted)
	}) {
		return false
	}

	// A Pod that the kubelet has rejected has no statuses. No process of it exists, so nobody needs to know.
	if len(p.Status.ContainerStatuses) == 0 || len(p.Status.ContainerStatuses) < len(p.Spec.Containers) {
		return false
	}

	for _, statuses := range [][]corev1.ContainerStatus{p.Status.ContainerStatuses, p.Status.InitContainerStatuses, p.Status.EphemeralContainerStatuses} {
		for i := range statuses {
			if end := statuses[i].State.Terminated; end == nil || slices.Contains([]string{unknownContainer, restarting, notFound}, end.Reason) {
				return false
			}
		}
	}

	return true
}
