// Package lease keeps the Lease of a shard for programs that configure leader election themselves. Its names are those of
// kubernetes-controller-sharding v0.8.0: a program that was written for it compiles after a change of its import paths.
//
//	lock, err := lease.NewResourceLock(config, nil, lease.Options{ClusterRingName: "example"})
//	mgr, err := manager.New(config, manager.Options{
//		LeaderElection:                      true,
//		LeaderElectionResourceLockInterface: lock,
//		LeaderElectionReleaseOnCancel:       true,
//	})
//
// The lock makes the election a good member of the ring:
//
//   - It holds the Lease under the name of the shard, with the label of the ring.
//   - After the Lease was free, the election learns that it has it when the hold-off of two seconds, which the Lease announces, has ended.
//   - A Lease that another holder has taken, or that a second process renews under the same name, is not taken back.
//   - A process that has neither renewed nor released its Lease ends: at the latest when the duration of the Lease and a third of it have passed
//     since the last renewal, and immediately if it was frozen until then. If the Lease was taken earlier, the process ends a third of the
//     duration after it has noticed. Nobody takes the Lease from a process that does not renew it before twice the duration has passed.
//
// The lock knows nothing of reconcilers. A manager whose GracefulShutdownTimeout passes (30 seconds by default) releases the Lease while reconciles
// that ignore their contexts may still run: set it to a negative value. What else [github.com/clusterring/clusterring/pkg/shard] adds:
// reconciles end when the Lease is lost, not when the election notices; names that outlive Pods; labels of the ring's own. New programs use
// it.
package lease

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordinationv1client "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
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
	// ShardName is the name of the shard: the name and the holder of its Lease, and the value of the shard label on its objects. No two
	// processes of a ring may use the same name at the same time. Default: the host name, which is the Pod's name in a cluster.
	ShardName string
}

// NewResourceLock returns the lock of a shard, a [LeaseLock]. Pass it to manager.Options.LeaderElectionResourceLockInterface, or to
// leaderelection.LeaderElectionConfig.Lock, and make the election release it at the end. Its Identity is the name of the shard. The
// recorder of events may be nil. NewResourceLock does not access the API server, and does not change the config. The error names every
// option that is missing or wrong.
func NewResourceLock(config *rest.Config, eventRecorder resourcelock.EventRecorder, options Options) (resourcelock.Interface, error) {
	if config == nil {
		return nil, errors.New("shard lease: config: pass the configuration of the API server's client")
	}

	id, err := shard.Identify(within.Identity{Ring: options.ClusterRingName, Name: options.ShardName, Namespace: options.LeaseNamespace})
	if err != nil {
		return nil, fmt.Errorf("shard lease: %w", err)
	}

	leases, err := elect.Client(config, "shard-lease", elect.RenewDeadline)
	if err != nil {
		return nil, fmt.Errorf("shard lease: create the client: %w", err)
	}

	return &LeaseLock{
		LeaseMeta:  metav1.ObjectMeta{Namespace: id.Namespace, Name: id.Name},
		Client:     leases,
		LockConfig: resourcelock.ResourceLockConfig{Identity: id.Name, EventRecorder: eventRecorder},
		Labels:     map[string]string{contract.LabelClusterRing: id.Ring},
	}, nil
}

// LeaseLock is the Lease of a shard as leader election sees it. [NewResourceLock] creates it. The fields must not change after the first call of a
// method that reads or writes the Lease; later changes have no effect. Leader election calls these methods from one goroutine.
type LeaseLock struct {
	// LeaseMeta contains the namespace and the name of the Lease.
	LeaseMeta metav1.ObjectMeta
	// Client reads and writes the Lease.
	Client coordinationv1client.LeasesGetter
	// LockConfig contains the name of the shard, which must be that of the Lease, and the recorder of events, which may be nil.
	LockConfig resourcelock.ResourceLockConfig
	// Labels are the labels that every write sets on the Lease. The label contract.LabelClusterRing is required.
	Labels map[string]string

	exit func(error) // ends the process; nil: by default

	once sync.Once
	lock resourcelock.Interface
	err  error
}

var _ resourcelock.Interface = (*LeaseLock)(nil)

// elected returns the lock of the shard that the fields describe.
func (l *LeaseLock) elected() (resourcelock.Interface, error) {
	l.once.Do(func() {
		id := within.Identity{Ring: l.Labels[contract.LabelClusterRing], Name: l.LeaseMeta.Name, Namespace: l.LeaseMeta.Namespace}

		switch {
		case l.Client == nil:
			l.err = errors.New("Client: set it, or make the lock with NewResourceLock")
		case l.LockConfig.Identity != id.Name:
			l.err = fmt.Errorf("LockConfig.Identity: %q must be the name of the Lease: otherwise, the shard counts as unavailable", l.LockConfig.Identity)
		default:
			l.lock, l.err = shard.Elect(within.Lock{Identity: id, Leases: l.Client, Events: l.LockConfig.EventRecorder, Labels: maps.Clone(l.Labels), Exit: l.exit})
		}

		if l.err != nil {
			l.err = fmt.Errorf("lease %s: %w", l.Describe(), l.err)
		}
	})

	return l.lock, l.err
}

// Get implements resourcelock.Interface: it reads the Lease. It returns an error if this process has held the Lease and lost it.
func (l *LeaseLock) Get(ctx context.Context) (record *resourcelock.LeaderElectionRecord, raw []byte, err error) {
	lock, err := l.elected()
	if err == nil {
		record, raw, err = lock.Get(ctx)
	}

	return record, raw, err //nolint:wrapcheck // leader election looks for NotFound
}

// Create implements resourcelock.Interface: it creates the Lease.
func (l *LeaseLock) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	lock, err := l.elected()
	if err == nil {
		err = lock.Create(ctx, record)
	}

	return err //nolint:wrapcheck // leader election logs the Lease's name
}

// Update implements resourcelock.Interface: it takes, renews, or releases the Lease.
func (l *LeaseLock) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	lock, err := l.elected()
	if err == nil {
		err = lock.Update(ctx, record)
	}

	return err //nolint:wrapcheck // leader election looks for Conflict
}

// RecordEvent implements resourcelock.Interface: it records an event about the Lease, if there is a recorder.
func (l *LeaseLock) RecordEvent(event string) {
	if lock, err := l.elected(); err == nil {
		lock.RecordEvent(event)
	}
}

// Describe implements resourcelock.Interface: it returns the namespace and the name of the Lease.
func (l *LeaseLock) Describe() string { return l.LeaseMeta.Namespace + "/" + l.LeaseMeta.Name }

// Identity implements resourcelock.Interface: it returns the name of the shard.
func (l *LeaseLock) Identity() string { return l.LockConfig.Identity }
