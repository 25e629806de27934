package hashring_test

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"testing"

	"gotest.tools/v3/golden"

	"github.com/clusterring/clusterring/services/internal/hashring"
)

// The golden file pins the algorithm. If it changes, every object of every cluster may change its shard, and replicas of
// different versions disagree: the version in the fingerprint must then also change.
func TestGolden(t *testing.T) {
	var got strings.Builder
	for _, shards := range [][]string{
		{},
		{"shard-0"},
		{"shard-0", "shard-1", "shard-2"},
		{"shard-0", "shard-1", "shard-2", "shard-3"},
		{"x-1", "x-10", "x-11", "x-110", "x-1-0"},
	} {
		describe(&got, shards)
	}
	golden.Assert(t, got.String(), "tables.txt") // the algorithm has changed if this fails: if that is meant, change its version
}

// describe writes a table: its shards with their shares, some complete partitions, and a digest of the whole table.
func describe(w *strings.Builder, shards []string) {
	r := hashring.New(shards)
	fmt.Fprintf(w, "shards       %s\n", strings.Join(r.Shards(), " "))
	fmt.Fprintf(w, "fingerprint  %s\n", r.Fingerprint())

	for _, shard := range r.Shards() {
		fmt.Fprintf(w, "partitions   %-8s %5d  %.4f of the mean\n", shard, r.PartitionsOf(shard), float64(r.PartitionsOf(shard))*float64(r.Len())/hashring.Partitions)
	}

	digest := sha256.New()

	for partition := range hashring.Partitions {
		owner, _ := r.OwnerOf(partition)
		fmt.Fprintf(digest, "%d %s\n", partition, owner)
	}
	fmt.Fprintf(w, "table        %s\n", hex.EncodeToString(digest.Sum(nil)))

	for _, partition := range []int{0, 1, 2, 3, 1000, 8191, 16000, hashring.Partitions - 1} {
		fmt.Fprintf(w, "partition %5d  %s\n", partition, strings.Join(r.Ranking(partition, 3), " > "))
	}
	fmt.Fprintln(w)
}
