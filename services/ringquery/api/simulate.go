package api

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/util/validation"

	pb "github.com/clusterring/clusterring/proto/clusterring/diagnostics/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/hashring"
	"github.com/clusterring/clusterring/services/ringquery/query"
)

// maxChanges is how many shards may be added, removed or renamed at a time.
const maxChanges = 1000

// Simulate implements the method of the same name.
func (s *Service) Simulate(ctx context.Context, req *pb.SimulateRequest) (*pb.SimulateResponse, error) {
	return answer(ctx, s, func() (*pb.SimulateResponse, error) {
		c, err := change(req)
		if err != nil {
			return nil, err
		}

		sim, err := s.Answers.Simulate(ctx, req.GetRing(), c, req.GetCountObjects())
		if err != nil {
			return nil, err
		}

		return simulationOf(&sim), nil
	})
}

// change returns what a request wants to try.
func change(req *pb.SimulateRequest) (c query.Change, err error) {
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
		return query.Change{}, v.err()
	}

	for i, name := range req.GetAdd() {
		v.check(fmt.Sprintf("add[%d]", i), validateShard(name))
	}

	for i, name := range req.GetRemove() {
		v.check(fmt.Sprintf("remove[%d]", i), validateShard(name))
	}

	c = query.Change{Add: req.GetAdd(), Remove: req.GetRemove()}
	for i, r := range req.GetRename() {
		v.check(fmt.Sprintf("rename[%d].from", i), validateShard(r.GetFrom()))
		v.check(fmt.Sprintf("rename[%d].to", i), validateShard(r.GetTo()))
		c.Rename = append(c.Rename, query.Rename{From: r.GetFrom(), To: r.GetTo()})
	}

	return c, v.err()
}

// validateShard says what the name of a shard may not be, if objects are to be assigned to it.
func validateShard(name string) []string {
	if name == "" {
		return []string{"must be set"}
	}

	return validation.IsValidLabelValue(name)
}

func simulationOf(sim *query.Simulation) *pb.SimulateResponse {
	res := &pb.SimulateResponse{
		Moved: sim.Moved, Least: sim.Least, FingerprintBefore: sim.Before, FingerprintAfter: sim.After,
	}

	for _, s := range sim.Shards {
		res.Shards = append(res.Shards, &pb.SimulatedShard{
			Name:             s.Name,
			PartitionsBefore: int32(s.PartitionsBefore),
			PartitionsAfter:  int32(s.PartitionsAfter),
			ShareBefore:      float64(s.PartitionsBefore) / hashring.Partitions,
			ShareAfter:       float64(s.PartitionsAfter) / hashring.Partitions,
			ObjectsBefore:    s.ObjectsBefore,
			ObjectsAfter:     s.ObjectsAfter,
		})
	}

	for _, c := range sim.Counted {
		res.Counted = append(res.Counted, &pb.CountedResource{
			Group: c.Group, Resource: c.Resource, Objects: c.Objects, Moved: c.Moved, Problem: c.Problem,
		})
	}

	return res
}
