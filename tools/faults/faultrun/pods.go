package faultrun

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// authenticate gives a shard a token that is bound to its Pod, which is created if it does not exist.
func (run *Run) authenticate(ctx context.Context, m *Member) error {
	base, err := run.plane.PodKubeconfig(ctx, shardNamespace, shardAccount, m.Name)
	if err != nil {
		return fmt.Errorf("get the kubeconfig of shard %s: %w", m.Name, err)
	}

	if m.announced {
		m.pod = &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: shardNamespace, Name: m.Name}}
		if err := run.client.Get(ctx, client.ObjectKeyFromObject(m.pod), m.pod); err != nil {
			return fmt.Errorf("read the Pod of shard %s: %w", m.Name, err)
		}
	}

	return m.Proxy.Kubeconfig(base, run.kubeconfigPath(m.Name))
}

// Report writes the status of the shard's Pod, as the kubelet does, or others for it.
func (run *Run) Report(ctx context.Context, m *Member, phase corev1.PodPhase, state corev1.ContainerState) error {
	m.pod.Status = corev1.PodStatus{
		Phase: phase, ContainerStatuses: []corev1.ContainerStatus{{Name: m.pod.Spec.Containers[0].Name, State: state}},
	}
	if err := run.client.Status().Update(ctx, m.pod); err != nil {
		return fmt.Errorf("write the status of the Pod of shard %s: %w", m.Name, err)
	}

	return nil
}

// DeletePod deletes the shard's Pod without asking the kubelet. Its token is no longer valid.
func (run *Run) DeletePod(ctx context.Context, m *Member) error {
	if err := run.client.Delete(ctx, m.pod, client.GracePeriodSeconds(0)); err != nil {
		return fmt.Errorf("delete the Pod of shard %s: %w", m.Name, err)
	}

	return nil
}

// Replace starts the shard in a new Pod of the same name. The previous Pod must have been deleted, and its process must have ended.
func (run *Run) Replace(ctx context.Context, m *Member) error {
	if err := run.authenticate(ctx, m); err != nil {
		return err
	}

	return run.Start(m)
}
