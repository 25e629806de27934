package api

import (
	"context"

	pb "github.com/clusterring/clusterring/proto/clusterring/diagnostics/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/hashring"
	"github.com/clusterring/clusterring/services/internal/key"
	"github.com/clusterring/clusterring/services/ringquery/rings"
)

// maxKeys is how many keys are counted one by one: 15 MB. Beyond it, objects of further keys count only as objects.
const maxKeys = 100_000

// addLoads counts the main objects of a ring, and their keys, by the shards that they belong to. It adds the result to the answer, and reports
// resources that cannot be read there. It fails if ctx is cancelled, or with [rings.ErrNotAdded] if the ring's selector cannot be used.
func (s *Service) addLoads(ctx context.Context, ring rings.Ring, res *pb.GetRingResponse) error {
	l := newLoads(ring.View.TableIn)

	counted, err := count(ctx, s.Rings.Objects, ring, l)
	if err != nil {
		return err
	}

	res.Counted, res.KeysLimited = counted, l.limited
	for _, shard := range l.tableIn("").Shards() {
		res.Loads = append(res.Loads, l.of[shard])
	}

	return nil
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

// add implements counter. Nothing moves.
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

// with counts one more object with the key. It returns how many there are now, and whether this is the first; 0 if there are too many keys.
func (l *loads) with(k rings.Key) (n int64, isNew bool) {
	if k.Type() == pb.KeyType_KEY_TYPE_NAME && !isNamespace(k.Key) {
		return 1, true // no other object has it
	}

	n, known := l.keys[k.Key]
	if !known && len(l.keys) == maxKeys {
		l.limited = true

		return 0, false
	}

	l.keys[k.Key] = n + 1

	return n + 1, !known
}

// isNamespace reports whether a key by a name is also that of everything in a namespace.
func isNamespace(k key.Key) bool { return k == key.OfNamespace(k.Name) }
