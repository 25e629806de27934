package faultrun

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/tools/testkit/kubelettest"
)

// authenticate gives a shard a token that is bound to its Pod, which is created if it does not exist.
func (run *Run) authenticate(ctx context.Context, m *Member) error {
	base, err := run.plane.PodKubeconfig(ctx, shardNamespace, m.account, m.Name)
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

// Report writes the status of the shard's Pod, whose container has terminated. The reason is that of the condition ContainersReady: the kubelet
// reports the end of a Pod with PodFailed.
func (run *Run) Report(ctx context.Context, m *Member, phase corev1.PodPhase, reason string) error {
	m.pod.Status = kubelettest.Status(phase, reason, kubelettest.Killed())
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

// Event waits until somebody has reported an event of the reason about a ring of the run.
func (run *Run) Event(ctx context.Context, reason string) error {
	return run.await(ctx, "event "+reason, func(ctx context.Context) ([]string, error) {
		if there, err := run.hasEvent(ctx, reason); there || err != nil {
			return nil, err
		}

		return []string{"nobody has reported it"}, nil
	})
}

// NoEvent returns an error if somebody has reported an event of the reason about a ring of the run.
func (run *Run) NoEvent(ctx context.Context, reason string) error {
	there, err := run.hasEvent(ctx, reason)
	if err == nil && there {
		err = fmt.Errorf("event %s was reported", reason)
	}

	return err
}

func (run *Run) hasEvent(ctx context.Context, reason string) (bool, error) {
	events := &eventsv1.EventList{}
	if err := run.client.List(ctx, events); err != nil {
		return false, fmt.Errorf("list events: %w", err)
	}

	for i := range events.Items {
		e := &events.Items[i]
		if e.Reason == reason && slices.ContainsFunc(run.rings, func(r *ring) bool { return r.uid == e.Regarding.UID }) {
			return true, nil
		}
	}

	return false, nil
}
