package rings

import (
	pb "github.com/clusterring/clusterring/proto/clusterring/diagnostics/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/key"
	"github.com/clusterring/clusterring/services/internal/resources"
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
	location := &pb.Location{
		Ring:              r.Name,
		Role:              roles[role],
		NamespaceCoverage: coverages[coverage],
		PartitionKey:      &pb.PartitionKey{Group: k.Group, Kind: k.Kind, Namespace: k.Namespace, Name: k.Name},
		Hash:              uint32(hash),
		Partition:         int32(partition),
		Fingerprint:       table.Fingerprint(),
	}

	if ranking := table.Ranking(partition, n+1); len(ranking) > 0 {
		location.Shard, location.NextShards = ranking[0], ranking[1:]
	}

	return location
}
