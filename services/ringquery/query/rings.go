// Package query answers who owns what, and why.
//
// It reads ClusterRings and Leases from a cache, resolves the kinds of resources, and decides nothing itself: shards,
// partition keys and owners are those of the packages that the assigner and the rebalancer use, so that its answers are
// theirs. It writes nothing.
package query

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/hashring"
	"github.com/clusterring/clusterring/services/internal/lease"
	"github.com/clusterring/clusterring/services/internal/membership"
	"github.com/clusterring/clusterring/services/internal/resources"
	"github.com/clusterring/clusterring/services/ringquery/metadata"
)

const (
	// smallerKept is the number of rings of 64 KiB each that are kept to tell which shards would be next: all that two failures
	// can leave of a ring of 16 shards.
	smallerKept = 256
	// largeRing is the number of shards from which on they are not kept: there would be too many, and a ring of so many says
	// who would be next in tens of microseconds.
	largeRing = 17
)

// Answerer answers questions. All fields are required. It is safe for concurrent use.
type Answerer struct {
	// Reader reads ClusterRings and Leases from a cache.
	Reader client.Reader
	// Index has the current view of every ring.
	Index *membership.Index
	// Resources resolves what rings name.
	Resources *Resources
	// Leases has the states and ages of Leases.
	Leases *Leases
	// Objects reads the metadata of sharded objects, live.
	Objects *metadata.Reader

	once    sync.Once
	smaller *hashring.Cache // made once; rings without some of their shards
}

// Ring is a ring as it is now. Its fields are shared: do not change what they point to.
type Ring struct {
	*v1alpha1.ClusterRing

	// View is its shards.
	View *membership.View
	// Resources is what its resources are.
	Resources *resources.Set

	smaller *hashring.Cache
}

// Shard is a shard of a ring as it is now.
type Shard struct {
	membership.Shard

	// State is the label that the lease monitor last wrote; empty if there is none.
	State lease.State
	// Age is how long ago the Lease was renewed.
	Age Age
	// Partitions is how many of all [hashring.Partitions] the shard owns; none if it is not available.
	Partitions int
}

// Rings returns at most limit rings in the order of their names, beginning after the given name, and whether there are more.
func (a *Answerer) Rings(ctx context.Context, after string, limit int) (rings []Ring, more bool, err error) {
	all, err := a.all(ctx)
	if err != nil {
		return nil, false, err
	}

	for _, r := range all {
		if r.Name <= after {
			continue
		}

		if len(rings) == limit {
			return rings, true, nil
		}

		rings = append(rings, a.ring(r))
	}

	return rings, false, nil
}

// Ring returns a ring and its shards, sorted by name, then namespace. It fails with [ErrRingNotFound].
func (a *Answerer) Ring(ctx context.Context, name string) (Ring, []Shard, error) {
	r, err := a.named(ctx, name)
	if err != nil {
		return Ring{}, nil, err
	}

	ring := a.ring(r)

	return ring, a.shards(ring), nil
}

// shards returns the ring's shards, sorted by name, then namespace.
func (a *Answerer) shards(ring Ring) []Shard {
	members := ring.View.Shards()
	shards := make([]Shard, 0, len(members))

	for _, m := range members {
		s := Shard{Shard: m}
		s.State, s.Age = a.Leases.Of(types.NamespacedName{Namespace: m.Namespace, Name: m.Name})
		if m.Available {
			s.Partitions = ring.View.Table().PartitionsOf(m.Name)
		}

		shards = append(shards, s)
	}

	return shards
}

// Share returns the fraction of the hash space that the shard owns, from 0 to 1.
func (s Shard) Share() float64 { return float64(s.Partitions) / hashring.Partitions }

func (a *Answerer) ring(r *v1alpha1.ClusterRing) Ring {
	a.once.Do(func() { a.smaller = hashring.NewCache(smallerKept) })

	return Ring{ClusterRing: r, View: a.Index.View(r.Name), Resources: a.Resources.Of(r), smaller: a.smaller}
}

// named returns a ring by its name. What it points to belongs to the cache.
func (a *Answerer) named(ctx context.Context, name string) (*v1alpha1.ClusterRing, error) {
	r := &v1alpha1.ClusterRing{}

	err := a.Reader.Get(ctx, types.NamespacedName{Name: name}, r, client.UnsafeDisableDeepCopy)
	if apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("%w: %s", ErrRingNotFound, name)
	}

	if err != nil {
		return nil, fmt.Errorf("read ring %s: %w", name, err)
	}

	return r, nil
}

// all returns all rings in the order of their names. They belong to the cache.
func (a *Answerer) all(ctx context.Context) ([]*v1alpha1.ClusterRing, error) {
	list := &v1alpha1.ClusterRingList{}
	if err := a.Reader.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list rings: %w", err)
	}

	rings := make([]*v1alpha1.ClusterRing, 0, len(list.Items))
	for i := range list.Items {
		rings = append(rings, &list.Items[i])
	}

	slices.SortFunc(rings, func(a, b *v1alpha1.ClusterRing) int { return cmp.Compare(a.Name, b.Name) })
	a.Resources.Keep(rings)

	return rings, nil
}
