package api

import (
	"context"
	"errors"
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	pb "github.com/clusterring/clusterring/proto/clusterring/diagnostics/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/hashring"
	"github.com/clusterring/clusterring/services/internal/key"
	"github.com/clusterring/clusterring/services/internal/resources"
	"github.com/clusterring/clusterring/services/ringquery/rings"
)

// maxChanges is the maximum number of entries per list of changes.
const maxChanges = 1000

// Simulate implements the method of the same name.
func (s *Service) Simulate(ctx context.Context, req *pb.SimulateRequest) (*pb.SimulateResponse, error) {
	if err := checkChange(req); err != nil {
		return nil, err
	}

	ring, err := s.Rings.Get(ctx, req.GetRing())
	if err != nil {
		return nil, err
	}

	if err := ring.CheckActive(); err != nil {
		return nil, err
	}

	before := ring.View.Table()

	names, err := apply(append(before.Shards(), ring.View.StandbyShards()...), req)
	if err != nil {
		return nil, err
	}

	after := hashring.New(ring.View.Activate(names))
	sim := compare(before, after)

	if req.GetCountObjects() {
		sim.Counted, err = count(ctx, s.Rings.Objects, ring, tally(before, after, sim.GetShards()))
	}

	return sim, err
}

// checkChange validates a request, except the names of shards.
func checkChange(req *pb.SimulateRequest) error {
	var v violations
	v.check("ring", validateRing(req.GetRing()))

	for field, n := range map[string]int{
		"add": len(req.GetAdd()), "remove": len(req.GetRemove()), "rename": len(req.GetRename()),
	} {
		if n > maxChanges {
			v.add(field, "must not have more than %d entries", maxChanges)
		}
	}

	return v.err()
}

// apply returns the names of the shards after the change, including those that stand by. It fails with
// [rings.ErrInvalid] if a name is not valid, or if the change conflicts with the shards before, or with itself.
func apply(before []string, c *pb.SimulateRequest) ([]string, error) {
	var (
		v         violations
		mentioned = map[string]string{}
		gone      = map[string]bool{}
		after     []string
	)

	mention := func(field, name string, available bool, problem string) {
		first, twice := mentioned[name]

		switch wrong := required(name, validation.IsValidLabelValue); {
		case len(wrong) > 0:
			v.check(field, wrong)
		case twice:
			v.add(field, "%q must be different from %s", name, first)
		case slices.Contains(before, name) != available:
			v.add(field, "%q must %s", name, problem)
		}

		mentioned[name] = field
	}
	leave := func(field, name string) {
		mention(field, name, true, "be a shard that is available")
		gone[name] = true
	}
	join := func(field, name string) {
		mention(field, name, false, "not be available yet")
		after = append(after, name)
	}

	for i, name := range c.GetRemove() {
		leave(fmt.Sprintf("remove[%d]", i), name)
	}

	for i, r := range c.GetRename() {
		leave(fmt.Sprintf("rename[%d].from", i), r.GetFrom())
		join(fmt.Sprintf("rename[%d].to", i), r.GetTo())
	}

	for i, name := range c.GetAdd() {
		join(fmt.Sprintf("add[%d]", i), name)
	}

	for _, name := range before {
		if !gone[name] {
			after = append(after, name)
		}
	}

	return after, v.err()
}

// compare returns what moves between the two tables.
func compare(before, after *hashring.Table) *pb.SimulateResponse {
	names := append(before.Shards(), after.Shards()...)
	slices.Sort(names)
	names = slices.Compact(names)

	sim := &pb.SimulateResponse{FingerprintBefore: before.Fingerprint(), FingerprintAfter: after.Fingerprint()}

	// In any scheme with equal shares, every shard that stays keeps at most the smaller of its two shares.
	if larger := max(before.Len(), after.Len()); larger > 0 {
		sim.Least = 1 - float64(before.Len()+after.Len()-len(names))/float64(larger)
	}

	for _, name := range names {
		was, is := before.PartitionsOf(name), after.PartitionsOf(name)
		sim.Shards = append(sim.Shards, &pb.SimulatedShard{
			Name: name, PartitionsBefore: int32(was), PartitionsAfter: int32(is),
			ShareBefore: float64(was) / hashring.Partitions, ShareAfter: float64(is) / hashring.Partitions,
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

// tally returns a counter of objects by the shards that they belong to.
func tally(before, after *hashring.Table, shards []*pb.SimulatedShard) counter {
	named := make(map[string]*pb.SimulatedShard, len(shards))
	for _, s := range shards {
		named[s.GetName()] = s
	}

	return func(k rings.Key) (moved bool) {
		was, hadOwner := before.Owner(k.Hash())
		if hadOwner {
			named[was].ObjectsBefore++
		}

		is, hasOwner := after.Owner(k.Hash())
		if hasOwner {
			named[is].ObjectsAfter++
		}

		return was != is
	}
}

// counter counts an object by its key, and reports whether it would move.
type counter func(k rings.Key) (moved bool)

// count counts the main objects of the ring. The result reports resources that cannot be read, or not in time: the rest
// of the answer is worth having. It fails if ctx is cancelled.
func count(ctx context.Context, objects *rings.Objects, r rings.Ring, add counter) ([]*pb.CountedResource, error) {
	var all []*pb.CountedResource

	if err := r.CheckSelector(); err != nil {
		return nil, err
	}

	spaces := &namespaces{ring: r, objects: objects, known: map[string]bool{}}

	for _, main := range r.Spec.Resources {
		c := &pb.CountedResource{Group: main.Group, Resource: main.Resource}

		if resource, _, err := r.Find(rings.Reference{Group: main.Group, Resource: main.Resource}); err != nil {
			c.Problem = "the API server does not serve it (yet)"
		} else if err := countOf(ctx, member{resource, resources.Main, spaces}, add, c); err != nil {
			if errors.Is(err, context.Canceled) {
				return nil, err
			}

			c.Problem = "not all were counted: " + err.Error()
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				c.Problem = "the call took too long; allow more time by --grpc-call-timeout of the server"
			}
		}

		all = append(all, c)
	}

	return all, nil
}

func countOf(ctx context.Context, m member, add counter, c *pb.CountedResource) error {
	objects := m.spaces.objects
	if err := objects.Turns.Acquire(ctx, 1); err != nil {
		return fmt.Errorf("wait for other lists: %w", err)
	}
	defer objects.Turns.Release(1)

	return objects.Pages(ctx, m.GVR, "", func(page []metav1.PartialObjectMetadata) error {
		for i := range page {
			covered, err := m.spaces.covers(ctx, page[i].Namespace)
			if err != nil {
				return err
			}

			if !covered || !m.Selects(page[i].Labels) {
				continue
			}

			k := rings.KeyOf(m.Resource, &page[i])

			c.Objects++
			if add(k) {
				c.Moved++
			}

			if k.Missing {
				c.Keyless++
			}
		}

		return nil
	})
}

// maxKeys is how many keys are counted one by one: 15 MB. Beyond it, objects of further keys count only as objects.
const maxKeys = 100_000

// addLoads counts the main objects of a ring, and their keys, by the shards that they belong to. It adds the result to
// the answer, and reports resources that cannot be read there. It fails if ctx is cancelled.
func (s *Service) addLoads(ctx context.Context, ring rings.Ring, res *pb.GetRingResponse) (err error) {
	l := newLoads(ring.View.TableIn)

	res.Counted, err = count(ctx, s.Rings.Objects, ring, l.add)
	res.KeysLimited = l.limited

	for _, shard := range l.tableIn("").Shards() {
		res.Loads = append(res.Loads, l.of[shard])
	}

	return err
}

// loads counts objects and keys by shards.
type loads struct {
	// tableIn returns the table of the shards that watch a namespace.
	tableIn func(namespace string) *hashring.Table
	of      map[string]*pb.ShardLoad
	// keys is how many objects have each key that several objects may share. limited is true if it does not contain all.
	keys    map[key.Key]int64
	limited bool
}

func newLoads(tableIn func(namespace string) *hashring.Table) *loads {
	l := &loads{tableIn: tableIn, of: map[string]*pb.ShardLoad{}, keys: map[key.Key]int64{}}
	for _, shard := range tableIn("").Shards() {
		l.of[shard] = &pb.ShardLoad{Shard: shard}
	}

	return l
}

// add is a [counter]. Nothing moves.
func (l *loads) add(k rings.Key) (moved bool) {
	shard, ok := l.tableIn(k.In).Owner(k.Hash())
	if !ok {
		return false
	}

	load := l.of[shard]
	load.Objects++

	n, isNew := l.with(k)
	if isNew {
		load.Keys++
	}

	if n > load.GetLargestKeyObjects() {
		load.LargestKeyObjects, load.LargestKey = n, k.Message()
	}

	return false
}

// with counts one more object with the key. It returns how many there are now, and whether this is the first; 0 if
// there are too many keys.
func (l *loads) with(k rings.Key) (n int64, isNew bool) {
	if k.Type() == pb.KeyType_KEY_TYPE_NAME && k.Key != key.OfNamespace(k.Name) {
		return 1, true // no other object has it, unlike the key of a Namespace
	}

	n, known := l.keys[k.Key]
	if !known && len(l.keys) == maxKeys {
		l.limited = true

		return 0, false
	}

	l.keys[k.Key] = n + 1

	return n + 1, !known
}
