package shards

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/tools/load/internal/objects"
)

// addPod creates the Pod of a shard, which nothing runs, and returns its uid.
func (f *Fleet) addPod(ctx context.Context, name string) (types.UID, error) {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: f.Ring.Namespace, Name: name},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "shard", Image: "shard"}}},
	}
	if err := f.options.Client.Create(ctx, pod); err != nil {
		return "", fmt.Errorf("create Pod %s: %w", name, err)
	}

	return pod.UID, nil
}

// End reports that the Pod of a shard has ended, as the kubelet does. The ring must have Pods.
func (f *Fleet) End(ctx context.Context, name string) error {
	f.mu.Lock()
	delete(f.held, name)
	f.mu.Unlock()

	return f.options.Objects.MergePatch(ctx, objects.Pods.Path(f.Ring.Namespace, name)+"/status", map[string]any{"status": corev1.PodStatus{
		Phase:      corev1.PodFailed,
		Conditions: []corev1.PodCondition{{Type: corev1.ContainersReady, Status: corev1.ConditionFalse, Reason: "PodFailed"}},
		ContainerStatuses: []corev1.ContainerStatus{{
			Name: "shard", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 137}}, //nolint:mnd // killed
		}},
	}})
}

// showPods lets the lease monitor watch the Pods of the ring's shards.
func (f *Fleet) showPods(ctx context.Context) error {
	binding := &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: f.Ring.Namespace, Name: "clusterring-leasemonitor-pods"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "clusterring:leasemonitor-pods"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: v1alpha1.SystemNamespace, Name: "leasemonitor"}},
	}
	if err := f.options.Client.Create(ctx, binding); err != nil {
		return fmt.Errorf("let the lease monitor watch the Pods of ring %s: %w", f.Ring.Name, err)
	}

	return nil
}
