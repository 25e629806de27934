package sweep

import (
	"context"
	"errors"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/clusterring/clusterring/tools/faults/faultrun"
)

// takenByWord waits until the shard's Lease was taken because of the kubelet's word.
func takenByWord(ctx context.Context, run *faultrun.Run, shard string) error {
	if err := taken(ctx, run, shard); err != nil {
		return err
	}

	return run.Event(ctx, "ShardEnded")
}

// TestKubelet has the kubelet, or others, report what becomes of the Pods of shards.
func TestKubelet(t *testing.T) {
	s := theSuite(t)
	rings := []faultrun.RingSpec{{
		Name: faultrun.Ring, Namespaces: []string{faultrun.Namespace}, Shards: []string{"a", "b", "c", "d"}, Pods: true,
	}}

	s.run(t,
		faultrun.Case{
			Name: "the kubelet reports that the Pod of a shard has ended, and another Pod gets its name", Rings: rings,
			During: during{faultrun.Fail: func(ctx context.Context, run *faultrun.Run) error {
				return errors.Join(run.Report(ctx, run.Member("a"), corev1.PodFailed, "PodFailed"), takenByWord(ctx, run, "a"))
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
				if err := errors.Join(
					run.Report(ctx, c, corev1.PodFailed, "ContainersNotReady"),
					run.Report(ctx, b, corev1.PodRunning, "ContainersNotReady"),
					run.DeletePod(ctx, b),
				); err != nil {
					return err
				}

				run.Expect("b", false)
				b.Process().MayEnd() // nobody accepts its token any more
				err := errors.Join(taken(ctx, run, "b"), run.AwaitInPlace(ctx), b.Process().Destroy())
				err = errors.Join(err, run.Replace(ctx, b), run.AwaitInPlace(ctx))

				if lives := len(c.Lives()); lives != 1 {
					err = errors.Join(err, fmt.Errorf("shard c has ended %d times, though the kubelet has reported no end of its Pod", lives-1))
				}

				return errors.Join(err, run.NoEvent(ctx, "ShardEnded"))
			}},
		})
}
