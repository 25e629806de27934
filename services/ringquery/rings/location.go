package rings

import (
	"slices"

	pb "github.com/clusterring/clusterring/proto/clusterring/diagnostics/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/key"
	"github.com/clusterring/clusterring/services/internal/resources"
)

const (
	// smallerKept is the number of cached tables (64 KiB each) from which the next shards are read. It is sufficient for any two
	// failures in a ring of 16 shards.
	smallerKept = 256
	// largeRing is the number of shards from which the tables are not cached. There would be too many of them, and a ring of this
	// size computes the next shards in tens of microseconds.
	largeRing = 17
)

// coverages maps coverage to the API.
var coverages = map[Coverage]pb.NamespaceCoverage{
	Covered: pb.NamespaceCoverage_NAMESPACE_COVERAGE_COVERED,
	Unknown: pb.NamespaceCoverage_NAMESPACE_COVERAGE_UNKNOWN,
}

// Locate returns the shard of a partition key, how it was derived, and the n shards that would be next. The role and the
// coverage (never NotCovered) are those of the object.
func (r Ring) Locate(role resources.Role, coverage Coverage, k key.Key, n int) *pb.Location {
	table, hash := r.View.Table(), k.Hash()
	partition := table.Partition(hash)
	owner, _ := table.OwnerOf(partition)

	return &pb.Location{
		Ring:              r.Name,
		Role:              roles[role],
		NamespaceCoverage: coverages[coverage],
		PartitionKey:      &pb.PartitionKey{Group: k.Group, Kind: k.Kind, Namespace: k.Namespace, Name: k.Name},
		Hash:              uint32(hash),
		Partition:         int32(partition),
		Shard:             owner,
		NextShards:        r.next(partition, n),
		Fingerprint:       table.Fingerprint(),
	}
}

// next returns the n shards that would own the partition, one after the other, if the shards before them failed. The result is that of
// the table's Ranking. For a small ring, it looks up each shard in a cached table without the shards before it.
func (r Ring) next(partition, n int) (names []string) {
	table := r.View.Table()
	if n == 0 || table.Len() < 2 {
		return nil
	}

	if table.Len() >= largeRing || r.smaller == nil {
		return table.Ranking(partition, n+1)[1:]
	}

	for len(names) < n && table.Len() > 1 {
		owner, _ := table.OwnerOf(partition)
		table = r.smaller.Get(slices.DeleteFunc(table.Shards(), func(shard string) bool { return shard == owner }))
		next, _ := table.OwnerOf(partition)
		names = append(names, next)
	}

	return names
}
