package pods

import (
	corev1 "k8s.io/api/core/v1"
)

const (
	// unknownContainer is the reason with which the kubelet reports a container that it could not find.
	unknownContainer = "ContainerStatusUnknown"
	// deletedByPodGC is the reason of the condition that the garbage collector of Pods adds when it declares a Pod failed.
	deletedByPodGC = "DeletionByPodGC"
)

// Ended reports whether the kubelet has reported that no process of the Pod runs, or will ever run again:
//
//   - The phase is Failed or Succeeded. The kubelet starts no container of such a Pod, not even after a restart of the node.
//   - Every container has terminated. A phase without that is not the kubelet's: others declare Pods failed whose node they cannot reach.
//   - The kubelet has seen each container terminate. It also reports containers as terminated that it could not find.
//   - The garbage collector of Pods has not declared the Pod failed: the states of the containers may then be old ones, from before a restart.
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

	for _, c := range p.Status.Conditions {
		if c.Type == corev1.DisruptionTarget && c.Status == corev1.ConditionTrue && c.Reason == deletedByPodGC {
			return false
		}
	}

	// A Pod that the kubelet has rejected has no statuses. No process of it exists, so nobody needs to know.
	if len(p.Status.ContainerStatuses) == 0 || len(p.Status.ContainerStatuses) < len(p.Spec.Containers) {
		return false
	}

	for _, statuses := range [][]corev1.ContainerStatus{p.Status.ContainerStatuses, p.Status.InitContainerStatuses, p.Status.EphemeralContainerStatuses} {
		for i := range statuses {
			if end := statuses[i].State.Terminated; end == nil || end.Reason == unknownContainer {
				return false
			}
		}
	}

	return true
}
