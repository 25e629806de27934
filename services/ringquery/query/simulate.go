package query

import (
	"context"
	"errors"
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/clusterring/clusterring/services/internal/hashring"
	"github.com/clusterring/clusterring/services/internal/key"
	"github.com/clusterring/clusterring/services/internal/resources"
	"github.com/clusterring/clusterring/services/ringquery/metadata"
)

// Change is what would happen to the shards of a ring.
type Change struct {
	// Add are shards that would become available, Remove those that would not be any more.
	Add, Remove []string
	// Rename are shards that would get another name.
	Rename []Rename
}

// Rename gives a shard another name.
type Rename struct{ From, To string }

// Simulation is what a change would do.
type Simulation struct {
	// Shards are all that are available before or after, in the order of their names.
	Shards []SimulatedShard
	// Moved is the fraction of the hash space that would get another owner, Least what has to move with equal shares.
	Moved, Least float64
	// Before and After are the fingerprints.
	Before, After string
	// Counted has an entry for each main resource, if objects were to be counted.
	Counted []Counted
}

// SimulatedShard is a shard before and after a change.
type SimulatedShard struct {
	Name string
	// PartitionsBefore and PartitionsAfter are how many of all [hashring.Partitions] it owns.
	PartitionsBefore, PartitionsAfter int
	// ObjectsBefore and ObjectsAfter are how many of the objects that were counted the ring gives to it.
	ObjectsBefore, ObjectsAfter int64
}

// Counted says how many objects of a main resource were counted.
type Counted struct {
	schema.GroupResource
	// Objects is how many the ring covers, Moved how many of them would belong to another shard.
	Objects, Moved int64
	// Problem says why they were not counted, or not all; empty: they were.
	Problem string
}

// Simulate says what a change would do to a ring; with count, to its real main objects, too. It fails with [ErrInvalid],
// [ErrRingNotFound], or [ErrNotSharded] if the ring is being deleted.
func (a *Answerer) Simulate(ctx context.Context, name string, c Change, count bool) (Simulation, error) {
	r, err := a.named(ctx, name)
	if err != nil {
		return Simulation{}, err
	}

	if !r.DeletionTimestamp.IsZero() {
		return Simulation{}, fmt.Errorf("%w: ring %s is being deleted and assigns nothing", ErrNotSharded, name)
	}

	ring := a.ring(r)
	before := ring.View.Table()

	names, err := c.apply(before)
	if err != nil {
		return Simulation{}, err
	}
	after := hashring.New(names)
	sim := compare(before, after)

	if count {
		if sim.Counted, err = a.count(ctx, ring, newTally(before, after, sim.Shards)); err != nil {
			return Simulation{}, err
		}
	}

	return sim, nil
}

// apply returns the names of the shards after the change. It fails with [ErrInvalid] if the change does not go with the shards
// that there are, or not with itself.
func (c Change) apply(before *hashring.Table) ([]string, error) {
	var (
		violations []Violation
		mentioned  = map[string]string{}
		gone       = map[string]bool{}
		after      []string
	)
	complain := func(field, format string, args ...any) {
		violations = append(violations, Violation{Field: field, Description: fmt.Sprintf(format, args...)})
	}
	leave := func(field, name string) {
		if first, twice := mentioned[name]; twice {
			complain(field, "%q must be different from %s", name, first)
		} else if !before.Has(name) {
			complain(field, "%q must be a shard that is available", name)
		}
		mentioned[name], gone[name] = field, true
	}
	join := func(field, name string) {
		if first, twice := mentioned[name]; twice {
			complain(field, "%q must be different from %s", name, first)
		} else if before.Has(name) {
			complain(field, "%q must not be available yet", name)
		}
		mentioned[name] = field
		after = append(after, name)
	}

	for i, name := range c.Remove {
		leave(fmt.Sprintf("remove[%d]", i), name)
	}

	for i, r := range c.Rename {
		leave(fmt.Sprintf("rename[%d].from", i), r.From)
		join(fmt.Sprintf("rename[%d].to", i), r.To)
	}

	for i, name := range c.Add {
		join(fmt.Sprintf("add[%d]", i), name)
	}

	if len(violations) > 0 {
		return nil, &InvalidError{Violations: violations}
	}

	for _, name := range before.Shards() {
		if !gone[name] {
			after = append(after, name)
		}
	}

	return after, nil
}

// compare says what moves from one ring to the other.
func compare(before, after *hashring.Table) Simulation {
	names := append(before.Shards(), after.Shards()...)
	slices.Sort(names)
	names = slices.Compact(names)

	sim := Simulation{Before: before.Fingerprint(), After: after.Fingerprint(), Least: least(before, after, len(names))}
	for _, name := range names {
		sim.Shards = append(sim.Shards, SimulatedShard{
			Name: name, PartitionsBefore: before.PartitionsOf(name), PartitionsAfter: after.PartitionsOf(name),
		})
	}

	moved := 0
	for partition := range hashring.Partitions {
		was, _ := before.OwnerOf(partition)
		is, _ := after.OwnerOf(partition)
		if was != is {
			moved++
		}
	}
	sim.Moved = float64(moved) / hashring.Partitions

	return sim
}

// least returns the fraction of the hash space that no scheme with equal shares can leave where it is: every shard that stays
// keeps the smaller of its two shares at most. All is the number of names in either ring.
func least(before, after *hashring.Table, all int) float64 {
	larger := max(before.Len(), after.Len())
	if larger == 0 {
		return 0
	}
	staying := before.Len() + after.Len() - all

	return 1 - float64(staying)/float64(larger)
}

// tally counts objects by the shards that they belong to.
type tally struct {
	before, after *hashring.Table
	shards        map[string]*SimulatedShard
}

// newTally counts for these shards, which are all of both rings.
func newTally(before, after *hashring.Table, shards []SimulatedShard) *tally {
	t := &tally{before: before, after: after, shards: make(map[string]*SimulatedShard, len(shards))}
	for i := range shards {
		t.shards[shards[i].Name] = &shards[i]
	}

	return t
}

// add counts an object and says whether it would move.
func (t *tally) add(k key.Key) (moved bool) {
	was, hadOwner := t.before.Owner(k.Hash())
	if hadOwner {
		t.shards[was].ObjectsBefore++
	}

	is, hasOwner := t.after.Owner(k.Hash())
	if hasOwner {
		t.shards[is].ObjectsAfter++
	}

	return was != is
}

// count counts the main objects of the ring. What cannot be read is said in the result; it fails if ctx ends.
func (a *Answerer) count(ctx context.Context, r Ring, t *tally) ([]Counted, error) {
	var all []Counted

	spaces, err := a.namespacesOf(r.ClusterRing)
	if err != nil {
		return nil, err
	}

	for _, main := range r.Spec.Resources {
		c := Counted{GroupResource: schema.GroupResource{Group: main.Group, Resource: main.Resource}}

		if resource, _, err := find(r, Reference{Group: main.Group, Resource: main.Resource}); err != nil {
			c.Problem = "the API server does not serve it (yet)"
		} else if err := a.countOf(ctx, member{Resource: resource, role: resources.Main, spaces: spaces}, t, &c); err != nil {
			if ctx.Err() != nil {
				return nil, err
			}
			c.Problem = problemOf(err)
		}
		all = append(all, c)
	}

	return all, nil
}

func (a *Answerer) countOf(ctx context.Context, m member, t *tally, c *Counted) error {
	q := metadata.Query{GVR: m.GVR, Limit: listSize}

	err := pages(ctx, a.Objects, q, func(objects []metav1.PartialObjectMetadata) error {
		if err := m.spaces.learn(ctx, objects); err != nil {
			return err
		}

		for i := range objects {
			if !m.spaces.covers(objects[i].Namespace) {
				continue
			}

			c.Objects++
			if t.add(key.OfObject(m.Kind.GroupKind(), &objects[i])) {
				c.Moved++
			}
		}

		return nil
	})

	return readable(err, c.String())
}

// problemOf says to a person why objects were not counted.
func problemOf(err error) string {
	if errors.Is(err, metadata.ErrForbidden) {
		return err.Error()
	}

	return "not all were counted: " + err.Error()
}
