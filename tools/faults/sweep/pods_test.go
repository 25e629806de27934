package sweep

import (
	"context"
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/clusterring/clusterring/tools/faults/faultrun"
)

var (
	terminated = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 137, Reason: "Error"}}
	running    = corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
)

// TestKubelet has the kubelet, or others, report what becomes of the Pods of shards. Objects of a shard that crashes would wait longer for its
// Lease than I2 allows.
func TestKubelet(t *testing.T) {
	s := theSuite(t)
	rings := []faultrun.RingSpec{{
		Name: faultrun.Ring, Namespaces: []string{faultrun.Namespace}, Shards: []string{"a", "b", "c", "d"}, Pods: true,
	}}

	s.run(t,
		faultrun.Case{
			Name: "the kubelet reports that the Pod of a shard has ended, and another Pod gets its name", Rings: rings,
			During: during{faultrun.Fail: func(ctx context.Context, run *faultrun.Run) error {
				return run.Report(ctx, run.Member("a"), corev1.PodFailed, terminated)
			}},
			After: during{faultrun.Fail: func(ctx context.Context, run *faultrun.Run) error {
				a := run.Member("a")

				return errors.Join(run.DeletePod(ctx, a), run.Replace(ctx, a), run.AwaitInPlace(ctx))
			}},
		},
		faultrun.Case{
			Name: "Pods are deleted by force, or declared failed, while their shards work", Rings: rings,
			Phases: []faultrun.Phase{faultrun.Join},
			After: during{faultrun.Join: func(ctx context.Context, run *faultrun.Run) error {
				b, c := run.Member("b"), run.Member("c")
				if err := errors.Join(run.Report(ctx, c, corev1.PodFailed, running), run.Report(ctx, b, corev1.PodRunning, terminated), run.DeletePod(ctx, b)); err != nil {
					return err
				}

				run.Expect("b", false)
				b.Process().MayEnd() // nobody accepts its token any more
				// Neither Lease is taken before it has expired; that of c never.
				err := errors.Join(taken(ctx, run, "b"), run.AwaitInPlace(ctx), b.Process().Destroy())

				return errors.Join(err, run.Replace(ctx, b), run.AwaitInPlace(ctx))
			}},
		})
}
