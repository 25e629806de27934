// Package lease keeps the Lease of a shard for programs that configure leader election themselves. Its names are those
// of kubernetes-controller-sharding v0.8.0: a program that was written for it compiles after a change of its import
// paths. Pass the lock to manager.Options.LeaderElectionResourceLockInterface, LeaderElection, and
// LeaderElectionReleaseOnCancel.
//
//   - The Lease has the name of the shard, its holder, and the label of the ring.
//   - After the Lease was free, the election learns that it has it when the hold-off of two seconds has ended.
//   - A Lease that another holder has taken, or that a second process renews under the same name, is not taken back.
//   - A process that has neither renewed nor released its Lease ends: at the latest when the duration of the Lease and
//     a third of it have passed since the last renewal, or a third of the duration after it has noticed that the Lease
//     was taken. Nobody takes the Lease from a process that does not renew it before twice the duration has passed.
//
// The lock knows nothing of reconcilers. A manager whose GracefulShutdownTimeout passes (30 seconds by default)
// releases the Lease while reconciles that ignore their contexts may still run: set it to a negative value. New
// programs use [github.com/clusterring/clusterring/pkg/shard], where reconciles end when the Lease is lost.
package lease

import (
	"fmt"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/clusterring/clusterring/pkg/shard"
	"github.com/clusterring/clusterring/pkg/shard/internal/elect"
	"github.com/clusterring/clusterring/pkg/shard/internal/within"
)

// Options describe the shard.
type Options struct {
	// ClusterRingName is the name of the ClusterRing that the shard belongs to. Required.
	ClusterRingName string
	// LeaseNamespace is the namespace of the shard's Lease. Default: the namespace of the Pod; required outside a cluster.
	LeaseNamespace string
	// ShardName is the name of the shard: the name and the holder of its Lease, and the value of the shard label on its
	// objects. No two processes of a ring may use it at the same time. Default: that of the Pod, or else the host name.
	ShardName string
}

// NewResourceLock returns the lock of a shard. Pass it to manager.Options.LeaderElectionResourceLockInterface, or to
// leaderelection.LeaderElectionConfig.Lock, and make the election release it at the end. Its Identity is the name of
// the shard. The recorder of events may be nil. NewResourceLock does not access the API server, and does not change the
// config. The error names every option that is missing or wrong.
func NewResourceLock(
	config *rest.Config, eventRecorder resourcelock.EventRecorder, options Options,
) (resourcelock.Interface, error) {
	leases, err := elect.Client(config, "shard-lease", elect.RenewDeadline)
	if err != nil {
		return nil, fmt.Errorf("shard lease: %w", err)
	}

	lock, err := shard.Elect(within.Shard{
		Ring: options.ClusterRingName, Name: options.ShardName, Namespace: options.LeaseNamespace,
		Leases: leases, Events: eventRecorder,
	})
	if err != nil {
		return nil, fmt.Errorf("shard lease: %w", err)
	}

	return lock, nil
}
