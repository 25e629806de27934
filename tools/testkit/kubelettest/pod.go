// Package kubelettest plays the kubelet in tests and measurements: it describes Pods that nothing runs, and how they
// end.
package kubelettest

import (
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// container is the name of the only container of a Pod.
const container = "process"

// Pod returns a Pod with one container, which the restricted level of Pod Security allows.
func Pod(namespace, name string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: corev1.PodSpec{
			SecurityContext: &corev1.PodSecurityContext{
				RunAsNonRoot: new(true), SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
			},
			Containers: []corev1.Container{{
				Name: container, Image: "process",
				SecurityContext: &corev1.SecurityContext{
					AllowPrivilegeEscalation: new(false), Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
				},
			}},
		},
	}
}

// Ended returns the status that the kubelet reports when the process of a Pod was killed, and is not started again.
func Ended() corev1.PodStatus { return Status(corev1.PodFailed, "PodFailed", Killed()) }

// Status returns the status of a Pod whose only container is in the given state. The reason is that of the condition
// ContainersReady.
func Status(phase corev1.PodPhase, reason string, state corev1.ContainerState) corev1.PodStatus {
	return corev1.PodStatus{
		Phase: phase,
		Conditions: []corev1.PodCondition{{Type: corev1.ContainersReady, Status: corev1.ConditionFalse,
			Reason: reason}},
		ContainerStatuses: []corev1.ContainerStatus{{Name: container, State: state}},
	}
}

// Killed returns the state of a container whose process was killed.
func Killed() corev1.ContainerState {
	return corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 137, Reason: "Error"}} //nolint:mnd // SIGKILL
}

// Binding returns the RoleBinding that lets the lease monitor watch the Pods of a namespace.
func Binding(namespace string) *rbacv1.RoleBinding {
	return &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "clusterring-leasemonitor-pods"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "clusterring:leasemonitor-pods"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: "sharding-system", Name: "leasemonitor"}},
	}
}
