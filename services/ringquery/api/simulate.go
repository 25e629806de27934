package api

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/util/validation"

	pb "github.com/clusterring/clusterring/proto/clusterring/diagnostics/v1alpha1"
	"github.com/clusterring/clusterring/services/ringquery/query"
)

// maxChanges is how many shards may be added, removed or renamed at a time.
const maxChanges = 1000

// Simulate implements the method of the same name.
func (s *Service) Simulate(ctx context.Context, req *pb.SimulateRequest) (*pb.SimulateResponse, error) {
	return answer(ctx, s, func() (*pb.SimulateResponse, error) {
		if err := checkChange(req); err != nil {
			return nil, err
		}

		return query.Simulate(ctx, s.Rings, req)
	})
}

// checkChange says what is wrong with a request to try a change.
func checkChange(req *pb.SimulateRequest) error {
	var v violations
	v.check("ring", validateRing(req.GetRing()))

	for _, list := range []struct {
		field string
		n     int
	}{{"add", len(req.GetAdd())}, {"remove", len(req.GetRemove())}, {"rename", len(req.GetRename())}} {
		if list.n > maxChanges {
			v.add(list.field, "must not have more than %d entries", maxChanges)
		}
	}

	if len(v) > 0 { // do not look at what is too much
		return v.err()
	}

	for i, name := range req.GetAdd() {
		v.check(fmt.Sprintf("add[%d]", i), validateShard(name))
	}

	for i, name := range req.GetRemove() {
		v.check(fmt.Sprintf("remove[%d]", i), validateShard(name))
	}

	for i, r := range req.GetRename() {
		v.check(fmt.Sprintf("rename[%d].from", i), validateShard(r.GetFrom()))
		v.check(fmt.Sprintf("rename[%d].to", i), validateShard(r.GetTo()))
	}

	return v.err()
}

// validateShard says what the name of a shard may not be, if objects are to be assigned to it.
func validateShard(name string) []string {
	if name == "" {
		return []string{"must be set"}
	}

	return validation.IsValidLabelValue(name)
}
