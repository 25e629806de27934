package pods_test

import (
	"cmp"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/clusterring/clusterring/services/leasemonitor/pods"
)

var (
	terminated = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 137, Reason: "Error"}}
	notSeen    = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 137, Reason: "ContainerStatusUnknown"}}
	together   = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 137, Reason: "RestartingAllContainers"}}
	notListed  = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: -137, Reason: "NotFound"}}
	running    = corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
	waiting    = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}}
)

// status is what the kubelet reports of a Pod with these containers.
func status(phase corev1.PodPhase, states ...corev1.ContainerState) corev1.PodStatus {
	reasons := map[corev1.PodPhase]string{corev1.PodFailed: "PodFailed", corev1.PodSucceeded: "PodCompleted"}

	s := corev1.PodStatus{Phase: phase, Conditions: []corev1.PodCondition{{
		Type: corev1.ContainersReady, Status: corev1.ConditionFalse, Reason: cmp.Or(reasons[phase], "ContainersNotReady"),
	}}}
	for _, state := range states {
		s.ContainerStatuses = append(s.ContainerStatuses, corev1.ContainerStatus{State: state})
	}

	return s
}

// declared is a status whose phase somebody else has changed to Failed.
func declared(s corev1.PodStatus) corev1.PodStatus {
	s.Phase = corev1.PodFailed

	return s
}

func disrupted(s corev1.PodStatus, reason string) corev1.PodStatus {
	s.Conditions = append(s.Conditions, corev1.PodCondition{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: reason})

	return s
}

// A report counts only if no process of the Pod can contradict it.
func TestEnded(t *testing.T) {
	withInit := func(s corev1.PodStatus, state corev1.ContainerState) corev1.PodStatus {
		s.InitContainerStatuses = []corev1.ContainerStatus{{State: state}}

		return s
	}
	withDebugger := func(s corev1.PodStatus, state corev1.ContainerState) corev1.PodStatus {
		s.EphemeralContainerStatuses = []corev1.ContainerStatus{{State: state}}

		return s
	}

	for name, tc := range map[string]struct {
		status corev1.PodStatus
		want   bool
	}{
		"failed":                         {status(corev1.PodFailed, terminated), true},
		"succeeded":                      {status(corev1.PodSucceeded, terminated), true},
		"two containers":                 {status(corev1.PodFailed, terminated, terminated), true},
		"with a sidecar":                 {withInit(status(corev1.PodFailed, terminated), terminated), true},
		"evicted by the kubelet":         {disrupted(status(corev1.PodFailed, terminated), "TerminationByKubelet"), true},
		"evicted by a request":           {disrupted(status(corev1.PodFailed, terminated), "EvictionByEvictionAPI"), true},
		"runs":                           {status(corev1.PodRunning, running), false},
		"restarts in place":              {status(corev1.PodRunning, terminated), false},
		"waits for its restart":          {status(corev1.PodRunning, waiting), false},
		"not known":                      {status(corev1.PodUnknown, terminated), false},
		"failed by others":               {declared(status(corev1.PodRunning, running)), false},
		"declared failed after a crash":  {declared(status(corev1.PodRunning, terminated)), false},
		"and the node is gone":           {disrupted(declared(status(corev1.PodRunning, terminated)), "DeletionByPodGC"), false},
		"no condition":                   {corev1.PodStatus{Phase: corev1.PodFailed, ContainerStatuses: []corev1.ContainerStatus{{State: terminated}}}, false},
		"one of two runs":                {status(corev1.PodFailed, terminated, running), false},
		"the sidecar runs":               {withInit(status(corev1.PodFailed, terminated), running), false},
		"a debugger runs":                {withDebugger(status(corev1.PodFailed, terminated), running), false},
		"the kubelet has not seen it":    {status(corev1.PodFailed, notSeen), false},
		"not seen before a restart":      {status(corev1.PodFailed, together), false},
		"a virtual node has lost it":     {status(corev1.PodFailed, notListed), false},
		"rejected, so nothing ever ran":  {status(corev1.PodFailed), false},
		"a container without a report":   {status(corev1.PodFailed, corev1.ContainerState{}), false},
		"deleted, and crashed before it": {status(corev1.PodRunning, terminated), false},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, tc.want, pods.Ended(&corev1.Pod{
				Spec: corev1.PodSpec{Containers: make([]corev1.Container, 1)}, Status: tc.status,
			}))
		})
	}

	require.False(t, pods.Ended(&corev1.Pod{
		Spec: corev1.PodSpec{Containers: make([]corev1.Container, 2)}, Status: status(corev1.PodFailed, terminated),
	}), "one of two containers has no report")
}
