// Package observe watches what happens to the labels of objects and to the Leases of shards, and remembers every change in
// its order, so that a step can wait for a state and afterwards check the way there.
package observe

import (
	"context"
	"fmt"
	"maps"
	"strconv"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/metadata"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/tools/lab/record"
)

// Key identifies an object.
type Key struct {
	Resource, Namespace, Name string
}

// String returns resource namespace/name.
func (k Key) String() string { return k.Resource + " " + k.Namespace + "/" + k.Name }

// State is what the labels of an object say.
type State struct {
	// Shard is empty for an object without a shard label.
	Shard string
	// Draining says that it carries the drain label.
	Draining bool
	// Owner is the name of the object that controls it, in its namespace; empty for none.
	Owner string
}

// String says the same in words.
func (s State) String() string {
	switch {
	case s.Shard == "" && s.Draining:
		return "unassigned but draining"
	case s.Shard == "":
		return "unassigned"
	case s.Draining:
		return s.Shard + " draining"
	default:
		return s.Shard
	}
}

// Change is a change of an object's state.
type Change struct {
	Key Key
	// Before is zero for an object that was created, After for one that was deleted.
	Before, After State
	// Deleted says that the object is gone.
	Deleted bool
	// Version is the resourceVersion; of all objects of an API server, the one with the smaller was written earlier.
	Version uint64
	// At is when the change was seen.
	At time.Time
}

// Moved reports whether the change took the object from a shard: to another, or to none.
func (c Change) Moved() bool {
	return !c.Deleted && c.Before.Shard != "" && c.Before.Shard != c.After.Shard
}

// Objects is what is known of the objects of some resources. It is safe for concurrent use.
type Objects struct {
	shardLabel, drainLabel string

	mu      sync.Mutex
	now     map[Key]State
	changes []Change
	err     error
}

// WatchObjects lists the resources and watches them until the context ends. The labels are those of the ring.
func WatchObjects(ctx context.Context, c metadata.Interface, ring string, resources ...schema.GroupVersionResource) (*Objects, error) {
	o := &Objects{shardLabel: v1alpha1.ShardLabel(ring), drainLabel: v1alpha1.DrainLabel(ring), now: map[Key]State{}}

	for _, resource := range resources {
		_, err := record.Follow(ctx, c.Resource(resource), "", record.Observer[*metav1.PartialObjectMetadata]{
			See: func(event watch.EventType, object *metav1.PartialObjectMetadata) {
				o.set(resource.Resource, object, event == watch.Deleted)
			},
			Fail: func(err error) {
				o.mu.Lock()
				defer o.mu.Unlock()

				o.err = fmt.Errorf("follow %s: %w", resource.Resource, err)
			},
		})
		if err != nil {
			return nil, fmt.Errorf("follow %s: %w", resource.Resource, err)
		}
	}

	return o, nil
}

func (o *Objects) set(resource string, object *metav1.PartialObjectMetadata, deleted bool) {
	key := Key{resource, object.Namespace, object.Name}
	after := State{}

	if !deleted {
		_, draining := object.Labels[o.drainLabel]

		after = State{Shard: object.Labels[o.shardLabel], Draining: draining}
		if owner := metav1.GetControllerOfNoCopy(object); owner != nil {
			after.Owner = owner.Name
		}
	}

	version, _ := strconv.ParseUint(object.ResourceVersion, 10, 64) // an API server gives numbers

	o.mu.Lock()
	defer o.mu.Unlock()

	before, known := o.now[key]
	if deleted {
		delete(o.now, key)
	} else {
		o.now[key] = after
	}

	if before != after || !known || deleted {
		o.changes = append(o.changes, Change{Key: key, Before: before, After: after, Deleted: deleted, Version: version, At: time.Now()})
	}
}

// Now returns the state of all objects of a resource that is known now. The error says that a watch has failed.
func (o *Objects) Now(resource string) (Snapshot, error) {
	o.mu.Lock()
	defer o.mu.Unlock()

	all := Snapshot{}

	for key, state := range o.now {
		if key.Resource == resource {
			all[key] = state
		}
	}

	return all, o.err
}

// Mark returns a point in the sequence of changes: that of now.
func (o *Objects) Mark() int {
	o.mu.Lock()
	defer o.mu.Unlock()

	return len(o.changes)
}

// Since returns the changes since the mark, as they were seen: those of one resource are in the order of their versions.
func (o *Objects) Since(mark int) []Change {
	o.mu.Lock()
	defer o.mu.Unlock()

	return append([]Change(nil), o.changes[mark:]...)
}

// Snapshot is the state of objects at one time.
type Snapshot map[Key]State

// At returns the keys of the objects that have the shard's label; of those without any for the empty name.
func (s Snapshot) At(shard string) []Key {
	var keys []Key

	for key, state := range s {
		if state.Shard == shard {
			keys = append(keys, key)
		}
	}

	return keys
}

// Count returns the number of objects per shard, of the given shards and of any other that an object names; objects without
// a shard count for the empty name.
func (s Snapshot) Count(shards []string) map[string]int {
	count := map[string]int{}
	for _, shard := range shards {
		count[shard] = 0
	}

	for _, state := range s {
		count[state.Shard]++
	}

	return count
}

// Draining returns the number of objects with the drain label.
func (s Snapshot) Draining() int {
	n := 0

	for _, state := range s {
		if state.Draining {
			n++
		}
	}

	return n
}

// Only returns the objects for which keep is true.
func (s Snapshot) Only(keep func(Key, State) bool) Snapshot {
	kept := maps.Clone(s)
	maps.DeleteFunc(kept, func(key Key, state State) bool { return !keep(key, state) })

	return kept
}
