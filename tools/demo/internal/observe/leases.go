package observe

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/tools/lab/record"
)

// Turn is a period in which a Lease has one state and one holder.
type Turn struct {
	// State is the label that the lease monitor has written.
	State string
	// Holder is empty if the Lease was released.
	Holder string
	// Version is the number of the first version.
	Version uint64
	// At is when the watch reported it.
	At time.Time
	// Renewed is the last renewal during this turn, by the holder's clock.
	Renewed time.Time
}

// Leases records the turns of the Leases of a ring's shards. It is safe for concurrent use.
type Leases struct {
	mu    sync.Mutex
	turns map[string][]Turn
	err   error
}

// WatchLeases watches the Leases of a ring in a namespace until the context ends.
func WatchLeases(ctx context.Context, c kubernetes.Interface, namespace, ring string) (*Leases, error) {
	l := &Leases{turns: map[string][]Turn{}}

	_, err := record.Follow(ctx, c.CoordinationV1().Leases(namespace), v1alpha1.LabelClusterRing+"="+ring, record.Observer[*coordinationv1.Lease]{
		See: func(event watch.EventType, lease *coordinationv1.Lease) {
			if event != watch.Deleted {
				l.add(lease)
			}
		},
		Fail: func(err error) {
			l.mu.Lock()
			defer l.mu.Unlock()

			l.err = fmt.Errorf("follow Leases: %w", err)
		},
	})
	if err != nil {
		return nil, fmt.Errorf("follow Leases: %w", err)
	}

	return l, nil
}

func (l *Leases) add(lease *coordinationv1.Lease) {
	version, _ := strconv.ParseUint(lease.ResourceVersion, 10, 64) // an API server returns numbers
	turn := Turn{
		State: lease.Labels[v1alpha1.LabelState], Holder: ptr.Deref(lease.Spec.HolderIdentity, ""), Version: version, At: time.Now(),
		Renewed: ptr.Deref(lease.Spec.RenewTime, metav1.MicroTime{}).Time,
	}

	l.mu.Lock()
	defer l.mu.Unlock()

	turns := l.turns[lease.Name]
	if last := len(turns) - 1; last >= 0 && turns[last].State == turn.State && turns[last].Holder == turn.Holder {
		turns[last].Renewed = turn.Renewed
		return
	}

	l.turns[lease.Name] = append(turns, turn)
}

// Of returns all turns of a shard's Lease, or an error if the watch has failed.
func (l *Leases) Of(shard string) ([]Turn, error) {
	l.mu.Lock()
	defer l.mu.Unlock()

	return slices.Clone(l.turns[shard]), l.err
}
