package api

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/util/validation"

	pb "github.com/clusterring/clusterring/proto/clusterring/diagnostics/v1alpha1"
	"github.com/clusterring/clusterring/services/ringquery/query"
)

// maxChanges is the maximum number of entries per list of changes.
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

// checkChange validates a request.
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

	if len(v) > 0 { // do not look at too many entries
		return v.err()
	}

	for i, name := range req.GetAdd() {
		v.shard(fmt.Sprintf("add[%d]", i), name)
	}

	for i, name := range req.GetRemove() {
		v.shard(fmt.Sprintf("remove[%d]", i), name)
	}

	for i, r := range req.GetRename() {
		v.shard(fmt.Sprintf("rename[%d].from", i), r.GetFrom())
		v.shard(fmt.Sprintf("rename[%d].to", i), r.GetTo())
	}

	return v.err()
}

// shard checks the name of a shard to which objects can be assigned.
func (v *violations) shard(field, name string) {
	v.check(field, required(name, validation.IsValidLabelValue))
}
