package adopt

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"

	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Options declare where the controllers and the other runnables of a manager run.
type Options struct {
	// Controllers are the controllers by name. The name is that of builder.Named, by default the lowercase kind of builder.For. Adding a
	// controller that is not declared fails. At least one must be [Sharded].
	Controllers map[string]Placement
	// Runnables are those runnables that would run where the leader is, and that are not controllers. The key is the name of the Go type, such
	// as "*example.Collector", or the name of the function of a manager.RunnableFunc. Adding one that is not declared fails with an error that contains its
	// key. Runnables that need no leader election run in every replica, and are not declared.
	Runnables map[string]Placement
	// CheckedClient makes GetClient of the manager return the client of shard.Shard.CheckWrites, which writes nothing after the Lease was lost, and whose
	// patches conflict if the object has changed. A controller that applies objects again and again gets conflicts. Default: false.
	CheckedClient bool
}

// Placement is where a controller or a runnable runs: [Sharded], [EveryReplica], or [OneReplica]. The zero value is none of them.
type Placement struct {
	where where
	kind  client.Object
	kinds []client.Object
}

type where int

const (
	nowhere where = iota
	sharded
	everyReplica
	oneReplica
)

func (w where) String() string {
	return [...]string{"nowhere", "sharded", "in every replica", "in one replica"}[w]
}

// Sharded declares a controller that works on the objects of this shard. The kind is an empty object of the kind that it reconciles, in the form that it
// watches: typed, unstructured, or metadata. The controlled kinds are those whose objects follow it: the controlledResources of the ring that the
// controller reads or watches. The cache contains only objects of this shard of all these kinds.
func Sharded(kind client.Object, controlled ...client.Object) Placement {
	return Placement{where: sharded, kind: kind, kinds: append([]client.Object{kind}, controlled...)}
}

// EveryReplica declares a controller that runs in every replica: several processes work on the same objects at the same time. That is right for what works on
// its own replica, or reads only.
func EveryReplica() Placement { return Placement{where: everyReplica} }

// OneReplica declares a controller that runs in one replica at a time, as with leader election. The Lease of the election is in the namespace of
// the shards; see [LeaseName].
func OneReplica() Placement { return Placement{where: oneReplica} }

// LeaseName returns the name of the Lease of the election for what runs in one replica.
func LeaseName(ring string) string { return "one-replica." + ring }

func (o Options) validate() error {
	var (
		errs  []error
		parts int
	)

	for _, name := range slices.Sorted(maps.Keys(o.Controllers)) {
		switch p := o.Controllers[name]; {
		case p.where == nowhere:
			errs = append(errs, fmt.Errorf("controller %q: declare it as adopt.Sharded, adopt.EveryReplica, or adopt.OneReplica", name))
		case p.where == sharded && slices.ContainsFunc(p.kinds, absent):
			errs = append(errs, fmt.Errorf("controller %q: a kind is nil: pass an empty object, such as &v1.Website{}", name))
		case p.where == sharded:
			parts++
		}
	}

	for _, name := range slices.Sorted(maps.Keys(o.Runnables)) {
		if w := o.Runnables[name].where; w != everyReplica && w != oneReplica {
			errs = append(errs, fmt.Errorf("runnable %q: declare it as adopt.EveryReplica or adopt.OneReplica", name))
		}
	}

	if parts == 0 {
		errs = append(errs, errors.New("declare at least one controller as adopt.Sharded"))
	}

	return errors.Join(errs...)
}

func absent(obj client.Object) bool {
	return obj == nil || reflect.ValueOf(obj).Kind() == reflect.Pointer && reflect.ValueOf(obj).IsNil()
}

// uses reports whether anything has the placement.
func (o Options) uses(w where) bool {
	for _, all := range []map[string]Placement{o.Controllers, o.Runnables} {
		for _, p := range all {
			if p.where == w {
				return true
			}
		}
	}

	return false
}

// kinds returns the kinds of all sharded controllers.
func (o Options) kinds() []client.Object {
	var all []client.Object
	for _, name := range slices.Sorted(maps.Keys(o.Controllers)) {
		all = append(all, o.Controllers[name].kinds...)
	}

	return all
}
