package cluster

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/tools/lab/must"
)

// Killer kills processes of pods from their nodes. Create it with [Cluster.AddKiller].
type Killer struct {
	*Cluster

	namespace, image string
}

// AddKiller creates a namespace for privileged pods of the image, which runs tools/e2e/cmd/nodekill. Delete the
// namespace when it is no longer needed.
func (c *Cluster) AddKiller(ctx context.Context, namespace, image string) *Killer {
	must.Hold(image != "", "the image of nodekill is unknown: set E2E_NODEKILL_IMAGE, as make e2e does")
	c.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name: namespace, Labels: map[string]string{"pod-security.kubernetes.io/enforce": "privileged"},
	}})
	must.Until(ctx, Patience, func(ctx context.Context) { // without it, the namespace gets no Pods
		must.Do(c.Client.Get(ctx, client.ObjectKey{Namespace: namespace, Name: "default"}, &corev1.ServiceAccount{}))
	})

	return &Killer{Cluster: c, namespace: namespace, image: image}
}

// Kill kills the processes of the pod's only container, and waits until the pod's status reports the restart of the
// container.
func (k *Killer) Kill(ctx context.Context, victim corev1.Pod) {
	k.strike(ctx, victim, func(now corev1.ContainerStatus, _ corev1.PodPhase) {
		must.Hold(now.RestartCount > victim.Status.ContainerStatuses[0].RestartCount && now.State.Running != nil,
			"the container was not restarted; it has %d restarts", now.RestartCount)
	})
}

// End kills the processes of the pod's only container, whose restart policy must be Never, and waits until the pod has
// failed. It returns the time at which the container ended, by the kubelet's clock in seconds.
func (k *Killer) End(ctx context.Context, victim corev1.Pod) (ended time.Time) {
	k.strike(ctx, victim, func(now corev1.ContainerStatus, phase corev1.PodPhase) {
		must.Hold(phase == corev1.PodFailed && now.State.Terminated != nil, "it is %s, not failed", phase)

		ended = now.State.Terminated.FinishedAt.Time
	})

	return ended
}

// strike kills the processes of the pod's only container, and waits until the pod is as it should be.
func (k *Killer) strike(ctx context.Context, victim corev1.Pod, struck func(corev1.ContainerStatus, corev1.PodPhase)) {
	name := client.ObjectKeyFromObject(&victim)
	must.Hold(len(victim.Status.ContainerStatuses) == 1, "pod %s has %d containers with a status, not one", name,
		len(victim.Status.ContainerStatuses))

	killer := k.pod(victim)
	k.Create(ctx, killer)
	must.Until(ctx, Patience, func(ctx context.Context) {
		now := &corev1.Pod{}
		must.Do(k.Client.Get(ctx, name, now))
		must.Hold(now.UID == victim.UID, "pod %s was replaced by another pod", name)

		err := must.Attempt(func() { struck(now.Status.ContainerStatuses[0], now.Status.Phase) })
		if err != nil {
			_ = k.Client.Get(ctx, client.ObjectKeyFromObject(killer), killer) // to say more
			must.Do(fmt.Errorf("pod %s: %w; the killer is %s: %+v", name, err, killer.Status.Phase,
				killer.Status.ContainerStatuses))
		}
	})
}

// pod returns a pod that kills the processes of the victim's container on its node.
func (k *Killer) pod(victim corev1.Pod) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: k.namespace, GenerateName: victim.Name + "-"},
		Spec: corev1.PodSpec{
			NodeName: victim.Spec.NodeName, HostPID: true, RestartPolicy: corev1.RestartPolicyNever,
			AutomountServiceAccountToken: new(false), TerminationGracePeriodSeconds: new(int64(0)),
			Containers: []corev1.Container{{
				Name: "nodekill", Image: k.image,
				Args: []string{"--container=" + victim.Status.ContainerStatuses[0].ContainerID},
				SecurityContext: &corev1.SecurityContext{Privileged: new(true), RunAsUser: new(int64(0)),
					RunAsNonRoot: new(false)},
				TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
			}},
		},
	}
}
