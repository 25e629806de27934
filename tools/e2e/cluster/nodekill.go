package cluster

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Killer kills processes of pods from their nodes. Create it with [Cluster.AddKiller]; it is safe for concurrent use.
type Killer struct {
	cluster   *Cluster
	namespace string
	image     string
}

// AddKiller creates a namespace for privileged pods of the image, which runs tools/e2e/cmd/nodekill. Delete the
// namespace when it is no longer needed.
func (c *Cluster) AddKiller(ctx context.Context, namespace, image string) (*Killer, error) {
	if image == "" {
		return nil, errors.New("the image of nodekill is unknown: set E2E_NODEKILL_IMAGE, as make e2e does")
	}

	return &Killer{cluster: c, namespace: namespace, image: image}, c.Create(ctx, &corev1.Namespace{
		ObjectMeta: metav1.ObjectMeta{Name: namespace,
			Labels: map[string]string{"pod-security.kubernetes.io/enforce": "privileged"}},
	})
}

// Kill kills the processes of the pod's only container, and waits until the pod's status reports the restart of the
// container. It returns an error if that takes longer than the limit.
func (k *Killer) Kill(ctx context.Context, victim corev1.Pod, limit time.Duration) error {
	if len(victim.Status.ContainerStatuses) != 1 {
		return fmt.Errorf("kill a process of pod %s/%s: it has %d containers with a status, not one",
			victim.Namespace, victim.Name, len(victim.Status.ContainerStatuses))
	}

	before := victim.Status.ContainerStatuses[0]

	return k.strike(ctx, victim, limit, func(now *corev1.Pod) error {
		status := now.Status.ContainerStatuses[0]
		if status.RestartCount <= before.RestartCount || status.State.Running == nil {
			return fmt.Errorf("pod %s/%s: the container was not restarted; it has %d restarts", victim.Namespace, victim.Name,
				status.RestartCount)
		}

		return nil
	})
}

// End kills the processes of the pod's only container, whose restart policy must be Never, and waits until the pod has
// failed. It returns the time at which the container ended, by the kubelet's clock in seconds, or an error if that
// takes longer than the limit.
func (k *Killer) End(ctx context.Context, victim corev1.Pod, limit time.Duration) (time.Time, error) {
	var ended time.Time

	err := k.strike(ctx, victim, limit, func(now *corev1.Pod) error {
		if now.Status.Phase != corev1.PodFailed {
			return fmt.Errorf("pod %s/%s is %s, not failed", victim.Namespace, victim.Name, now.Status.Phase)
		}

		if end := now.Status.ContainerStatuses[0].State.Terminated; end != nil {
			ended = end.FinishedAt.Time
		}

		return nil
	})

	return ended, err
}

// strike kills the processes of the pod's only container, and waits until the pod is as it should be.
func (k *Killer) strike(ctx context.Context, victim corev1.Pod, limit time.Duration,
	problem func(now *corev1.Pod) error) error {
	killer := k.pod(victim, victim.Status.ContainerStatuses[0].ContainerID)
	if err := k.cluster.Client.Create(ctx, killer); err != nil {
		return fmt.Errorf("kill a process of pod %s/%s: create a pod on its node: %w", victim.Namespace, victim.Name, err)
	}

	return k.cluster.Until(ctx, limit, func(ctx context.Context) error {
		now := &corev1.Pod{}
		if err := k.cluster.Client.Get(ctx, client.ObjectKeyFromObject(&victim), now); err != nil {
			return fmt.Errorf("read pod %s/%s: %w", victim.Namespace, victim.Name, err)
		}

		if now.UID != victim.UID {
			return fmt.Errorf("pod %s/%s was replaced by another pod", victim.Namespace, victim.Name)
		}

		if err := problem(now); err != nil {
			_ = k.cluster.Client.Get(ctx, client.ObjectKeyFromObject(killer), killer) // to say more
			return fmt.Errorf("%w; the killer is %s: %+v", err, killer.Status.Phase, killer.Status.ContainerStatuses)
		}

		return nil
	})
}

// pod returns a pod that kills the processes of a container of the victim on its node.
func (k *Killer) pod(victim corev1.Pod, container string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: k.namespace, GenerateName: victim.Name + "-"},
		Spec: corev1.PodSpec{
			NodeName: victim.Spec.NodeName, HostPID: true, RestartPolicy: corev1.RestartPolicyNever,
			AutomountServiceAccountToken: new(false), TerminationGracePeriodSeconds: new(int64(0)),
			Containers: []corev1.Container{{
				Name: "nodekill", Image: k.image, Args: []string{"--container=" + container},
				SecurityContext: &corev1.SecurityContext{Privileged: new(true), RunAsUser: new(int64(0)),
					RunAsNonRoot: new(false)},
				TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
			}},
		},
	}
}
