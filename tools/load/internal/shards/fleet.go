// Package shards simulates the shards of a ring, up to thousands of them: it holds their Leases, lets them join, leave, and die, and
// acknowledges their drains.
package shards

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/tools/load/internal/objects"
	"github.com/clusterring/clusterring/tools/testkit/kubelettest"
)

const (
	// longest is longer than any measurement, so that no shard has to renew its Lease.
	longest = 24 * time.Hour
	// taker is the holder of the Lease of a dead shard.
	taker = "shardlease-controller"
)

// Fleet is a ring and its shards. Create it with [NewFleet]; it is safe for concurrent use.
type Fleet struct {
	Ring Ring

	objects *objects.Client
	client  client.Client
	clock   clock.Clock

	mu   sync.Mutex
	made int
	held map[string]bool
}

// NewFleet returns a fleet without shards, and sends no request. The objects client writes the Leases, with timestamps of the clock; the other
// one reads the ring.
func NewFleet(ring Ring, o *objects.Client, c client.Client, clk clock.Clock) *Fleet {
	return &Fleet{Ring: ring, objects: o, client: c, clock: clk, held: map[string]bool{}}
}

// Join adds n shards and returns their names. Names are never reused.
func (f *Fleet) Join(ctx context.Context, n int) ([]string, error) {
	f.mu.Lock()

	names := make([]string, n)
	for i := range names {
		names[i] = f.Ring.Name + "-" + strconv.Itoa(f.made+i)
	}

	f.made += n
	f.mu.Unlock()

	path := objects.Leases.Path(f.Ring.Namespace, "")
	err := objects.Each(ctx, n, objects.Concurrency, func(ctx context.Context, i int) error {
		lease := f.lease(names[i])

		if f.Ring.Pods { // nothing runs it
			pod := kubelettest.Pod(f.Ring.Namespace, names[i])
			if err := f.client.Create(ctx, pod); err != nil {
				return fmt.Errorf("create Pod %s: %w", names[i], err)
			}
			metav1.SetMetaDataAnnotation(&lease.ObjectMeta, contract.AnnotationPodUID, contract.PodUIDValue(pod.UID, lease.Spec.RenewTime.Time))
		}

		body, err := json.Marshal(lease)
		if err != nil {
			return fmt.Errorf("encode Lease %s: %w", names[i], err)
		}

		if err := f.objects.Do(ctx, objects.Request{Method: http.MethodPost, Path: path, Body: body}, nil); err != nil {
			return err
		}
		f.mu.Lock()
		defer f.mu.Unlock()

		f.held[names[i]] = true

		return nil
	})

	return names, err
}

// Held returns the names of the shards that hold their Leases, sorted.
func (f *Fleet) Held() []string {
	f.mu.Lock()
	defer f.mu.Unlock()

	return slices.Sorted(maps.Keys(f.held))
}

// Release clears the holder of a shard's Lease, as a shard does that stops gracefully.
func (f *Fleet) Release(ctx context.Context, name string) error {
	return f.leave(ctx, name, map[string]any{"holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": f.now()})
}

// Lose takes the Lease of a shard, as the lease monitor does if a shard stops renewing.
func (f *Fleet) Lose(ctx context.Context, name string) error {
	return f.leave(ctx, name, map[string]any{
		"holderIdentity": taker, "leaseDurationSeconds": int(2 * longest / time.Second), "acquireTime": f.now(), "renewTime": f.now(), "leaseTransitions": 1,
	})
}

// Bury deletes the Leases of shards that were lost, as the lease monitor does in time.
func (f *Fleet) Bury(ctx context.Context, lost []string) error {
	return objects.Each(ctx, len(lost), objects.Concurrency, func(ctx context.Context, i int) error {
		return f.objects.Remove(ctx, objects.Leases.Path(f.Ring.Namespace, lost[i]))
	})
}

// Mark writes a label to the Lease of a shard, which means nothing.
func (f *Fleet) Mark(ctx context.Context, name, value string) error {
	return f.objects.MergePatch(ctx, objects.Leases.Path(f.Ring.Namespace, name),
		map[string]any{"metadata": map[string]any{"labels": map[string]any{objects.TurnLabel: value}}})
}

// End reports that the Pod of a shard has ended, as the kubelet does. The ring must have Pods.
func (f *Fleet) End(ctx context.Context, name string) error {
	f.forget(name)

	return f.objects.MergePatch(ctx, objects.Pods.Path(f.Ring.Namespace, name)+"/status", map[string]any{"status": kubelettest.Ended()})
}

// Renew renews the Leases of all shards once per period, spread over it, until stop is called. From stop, it returns the number of renewals,
// and the error of the first one that failed, which ends the renewals.
func (f *Fleet) Renew(ctx context.Context, period time.Duration) (stop func() (renewals int, err error)) {
	ctx, cancel := context.WithCancel(ctx)

	var (
		running  sync.WaitGroup
		renewals int
		err      error
	)

	running.Go(func() { renewals, err = f.renewing(ctx, period) })

	return func() (int, error) {
		cancel()
		running.Wait()

		return renewals, err
	}
}

// renewing renews the Leases of all shards in turn until ctx ends or a renewal fails, and returns the number of renewals.
func (f *Fleet) renewing(ctx context.Context, period time.Duration) (renewals int, err error) {
	for next := 0; ; next++ {
		held := f.Held()

		select {
		case <-ctx.Done():
			return renewals, nil
		case <-f.clock.After(period / time.Duration(max(1, len(held)))):
		}

		if len(held) == 0 {
			continue
		}

		if err := f.renew(ctx, held[next%len(held)]); err != nil && ctx.Err() == nil {
			return renewals, err
		}

		renewals++
	}
}

// renew renews the Lease of a shard that holds it. A shard that crashes meanwhile is dead: it must not renew later.
func (f *Fleet) renew(ctx context.Context, name string) error {
	f.mu.Lock()
	defer f.mu.Unlock()

	if !f.held[name] {
		return nil
	}

	return f.write(ctx, name, map[string]any{"renewTime": f.now()})
}

// AwaitShards waits until the ring's status counts as many available shards as hold their Leases.
func (f *Fleet) AwaitShards(ctx context.Context) error {
	want := len(f.Held())

	return f.Await(ctx, fmt.Sprintf("%d shards are available", want), func(ring *v1alpha1.ClusterRing) bool {
		return int(ring.Status.AvailableShards) == want
	})
}

// Close removes the ring and its Leases, in this order: if the Leases went first, the rebalancer would see shards vanish.
func (f *Fleet) Close(ctx context.Context) error {
	return errors.Join(f.removeRing(ctx), f.RemoveLeases(ctx))
}

// RemoveLeases deletes all Leases of the ring, including those of shards that are gone.
func (f *Fleet) RemoveLeases(ctx context.Context) error {
	f.mu.Lock()
	clear(f.held)
	f.mu.Unlock()
	all := objects.Selection{Kind: objects.Leases, Namespace: f.Ring.Namespace, Labels: contract.LabelClusterRing + "=" + f.Ring.Name}

	err := f.objects.DeleteAll(ctx, all)
	if f.Ring.Pods {
		err = errors.Join(err, f.objects.DeleteAll(ctx, objects.Selection{Kind: objects.Pods, Namespace: f.Ring.Namespace}))
	}

	return err
}

func (f *Fleet) leave(ctx context.Context, name string, spec map[string]any) error {
	f.forget(name) // first: nobody renews the Lease after this write

	return f.write(ctx, name, spec)
}

func (f *Fleet) forget(name string) {
	f.mu.Lock()
	defer f.mu.Unlock()

	delete(f.held, name)
}

func (f *Fleet) write(ctx context.Context, name string, spec map[string]any) error {
	return f.objects.MergePatch(ctx, objects.Leases.Path(f.Ring.Namespace, name), map[string]any{"spec": spec})
}

func (f *Fleet) now() metav1.MicroTime { return metav1.NewMicroTime(f.clock.Now()) }

func (f *Fleet) lease(name string) *coordinationv1.Lease {
	lease := &coordinationv1.Lease{
		TypeMeta: metav1.TypeMeta{APIVersion: coordinationv1.SchemeGroupVersion.String(), Kind: "Lease"},
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Namespace: f.Ring.Namespace, Labels: map[string]string{contract.LabelClusterRing: f.Ring.Name},
			Annotations: map[string]string{contract.AnnotationHoldOff: "2s"}, // as shards of our library do
		},
		Spec: coordinationv1.LeaseSpec{
			HolderIdentity: new(name), LeaseDurationSeconds: new(int32(longest / time.Second)),
			AcquireTime: new(f.now()), RenewTime: new(f.now()), LeaseTransitions: new(int32(0)),
		},
	}
	if f.Ring.State != "" {
		lease.Labels[contract.LabelState] = f.Ring.State
	}

	return lease
}
