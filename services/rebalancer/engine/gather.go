package engine

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/clusterring/clusterring/services/internal/resources"
	"github.com/clusterring/clusterring/services/rebalancer/objects"
	"github.com/clusterring/clusterring/services/rebalancer/source"
)

const (
	// gatherAtOnce is how many lists are made at a time.
	gatherAtOnce = 4
	// gatherWith is for how long others are waited for before anything is looked for, and gatherBusy for how long if every worker has something to
	// do meanwhile: who has to be looked for by then is looked for together. After a look these pauses are once and gatherShare times as long as that
	// took of CPU, not of time: whatever else goes on makes it last.
	gatherWith  = 2 * time.Millisecond
	gatherBusy  = 250 * time.Millisecond
	gatherShare = 16
	// withoutThem is after what time a resource is not waited for that cannot be listed, or of which the objects without a shard have not all been
	// seen yet. Somebody has to work on an object.
	withoutThem = 10 * time.Second
	// fewObjects is up to how many of a ring's are listed in pages; docs/performance.md compares what pages and streams cost.
	fewObjects = 20_000
	// fewNamespaces is up to how many namespaces are listed one by one: a list costs the API server a millisecond, and all objects of a million
	// as many as a pass.
	fewNamespaces = 100
)

// search is which objects have all looked for that follows them, by UID.
type search map[types.UID]sought

// sought is a family, with its asked of when the search began.
type sought struct {
	*family

	begun int
}

// ungathered returns the families of which nobody knows who is missing, and forgets those whose objects are looked after no more.
func (s *state) ungathered() search {
	s.mu.Lock()
	defer s.mu.Unlock()

	missing := search{}

	for uid, f := range s.families.byUID {
		owner, known := s.table.Has(f.owner)
		if !known {
			s.arrived(f.owner)
			continue
		}

		if _, known := s.table.Followers(owner); !known {
			missing[uid] = sought{f, f.asked}
		}
	}

	return missing
}

// gathered notes that all was looked for that follows the objects.
func (s *state) gathered(found search) {
	s.update(func(now time.Time) {
		for _, uid := range slices.Sorted(maps.Keys(found)) {
			f := found[uid]
			if s.families.byUID[uid] == f.family && f.asked == f.begun { // it still waits, for the same
				f.complete = now
				s.table.Gathered(uid)
			}
		}
	})
}

// gatherer looks for what follows objects, whenever some wait for that, until ctx ends.
func (e *Engine) gatherer(ctx context.Context) {
	next := source.Attempts("followers " + e.Ring)

	for {
		select {
		case <-ctx.Done():
			return
		case <-e.gather:
		}

		e.withOthers(ctx, gatherWith, gatherBusy)

		select {
		case <-e.gather: // all that have come meanwhile
		default:
		}

		pause := next.Next()

		if seen, again := e.gatherAll(ctx); again {
			notify(e.gather)
			e.pause(ctx, pause)
		} else {
			next.Reset()

			cost := time.Duration(seen) * perObject
			e.withOthers(ctx, cost, gatherShare*cost)
		}
	}
}

// withOthers pauses for the least time, and up to the most as long as every worker has something to do: what is found could not go sooner.
func (e *Engine) withOthers(ctx context.Context, least, most time.Duration) {
	e.pause(ctx, least)

	for waited := least; waited < most && ctx.Err() == nil && e.queued(); waited += gatherWith {
		e.pause(ctx, gatherWith)
	}
}

// gatherAll looks once for what follows all objects that wait for that. It returns how many objects it saw, and reports whether it has to be done
// again.
func (e *Engine) gatherAll(ctx context.Context) (seen int, again bool) {
	controlled := e.Target().Set.Controlled()
	e.awaitFor(ctx, withoutThem, func() bool { return !e.unseen(controlled) || e.table.Full() })

	missing := e.ungathered()

	var (
		lists = errgroup.Group{}
		errs  = make([]error, len(controlled))
		mu    sync.Mutex // of errs and seen
	)

	lists.SetLimit(gatherAtOnce)

	for i, r := range controlled {
		for _, namespace := range namespacesOf(r, missing) {
			lists.Go(func() error {
				n, err := e.gatherOf(ctx, r, namespace, missing)

				mu.Lock()
				defer mu.Unlock()

				seen += n
				errs[i] = cmp.Or(errs[i], err)

				return nil
			})
		}
	}

	_ = lists.Wait() // errs has them

	if ctx.Err() != nil {
		return seen, false
	}

	for i, r := range controlled {
		e.troubled(idOf(forFollowers, r), errs[i])
	}

	if again = errors.Join(errs...) != nil; again {
		for uid, f := range missing {
			if e.Clock.Since(f.since) < withoutThem {
				delete(missing, uid)
			}
		}
	}

	e.gathered(missing)

	return seen, again
}

// unseen reports whether there may be objects of the resources that have no shard, and follow others, and were not seen; the lock is held. That is so
// until the streams of such objects have begun.
func (s *state) unseen(of []resources.Resource) bool {
	for id := range s.unlisted {
		among := func(r resources.Resource) bool { return r.GroupResource() == id.resource }
		if id == newTarget || id.looksFor == forUnassigned && slices.ContainsFunc(of, among) {
			return true
		}
	}

	return false
}

// gatherOf looks for the objects of one resource in a namespace, or in all, that follow others. It returns how many objects it saw.
func (e *Engine) gatherOf(ctx context.Context, r resources.Resource, namespace string, missing search) (seen int, err error) {
	scope := objects.Scope{GVR: r.GVR, Namespace: namespace, Selector: e.Objects.ShardLabel()}

	one := func(o objects.Object) error {
		seen++
		return errors.Join(e.gatherOne(ctx, o, missing), ctx.Err())
	}

	if e.few() {
		_, err = e.Objects.Few(ctx, scope, one)
	} else {
		_, err = e.Objects.All(ctx, e.Clock, scope, one)
	}

	return seen, err
}

// few reports whether the ring is known to have few objects.
func (s *state) few() bool {
	s.mu.Lock()
	defer s.mu.Unlock()

	return s.passes.objects > 0 && s.passes.objects <= fewObjects
}

// gatherOne takes note of an object if it follows one of those that are looked for.
func (e *Engine) gatherOne(ctx context.Context, o objects.Object, missing search) (err error) {
	if e.ancestors.Saw(o.GVR.GroupResource(), o.UID, o.Controller); o.Controller == nil {
		return nil
	}

	if missing[o.Controller.UID].family == nil {
		if o.Above, err = e.Target().Above(ctx, e.world(), o); err != nil {
			return err
		}
	}

	lineage := o.Lineage()
	if !slices.ContainsFunc(lineage[:], func(uid types.UID) bool { return missing[uid].family != nil }) || !e.awaited(o) {
		return nil
	}

	room := func() bool { return !e.table.FullOfFollowers() }
	if at, inPlace := e.observed(ctx, e.world(), sight{object: o, room: room}); at.Belongs || !inPlace {
		o.Above = at.Above

		e.mu.Lock()
		defer e.mu.Unlock()

		e.follows(o)
	}

	return nil
}

// awaited reports whether something on the move waits for an object, and it was not seen later than the list that has it now.
func (s *state) awaited(o objects.Object) (waits bool) {
	s.mu.Lock()
	defer s.mu.Unlock()

	for _, uid := range o.Lineage() {
		if f := s.families.byUID[uid]; f != nil {
			waits = true

			if objects.Older(o.ResourceVersion, f.members[o.ID].ResourceVersion) {
				return false
			}
		}
	}

	return waits
}

// namespacesOf returns where objects of the resource are that follow others: "" for everywhere.
func namespacesOf(r resources.Resource, missing search) []string {
	if len(missing) == 0 {
		return nil
	}

	names := sets.New[string]()
	for _, f := range missing {
		names.Insert(f.owner.Namespace)
	}

	if !r.Namespaced || names.Has("") || names.Len() > fewNamespaces {
		return []string{""}
	}

	return slices.Sorted(maps.Keys(names))
}
