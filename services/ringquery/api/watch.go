package api

import (
	"context"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	pb "github.com/clusterring/clusterring/proto/clusterring/diagnostics/v1alpha1"
	"github.com/clusterring/clusterring/services/ringquery/fanout"
)

// picture is a ring with its shards at one moment. All watchers of the ring share it. It is immutable.
type picture struct {
	ring      *pb.Ring
	shards    []*pb.Shard
	available []string // sorted
}

// picture reads the current state of a ring.
func (s *Service) picture(ctx context.Context, name string) (*picture, error) {
	ring, err := s.Rings.Get(ctx, name)
	if err != nil {
		return nil, err
	}

	return &picture{ring: ring.Message(), shards: s.Rings.Shards(ring), available: ring.View.AvailableShards()}, nil
}

// same reports whether two pictures differ only in ages.
func (p *picture) same(o *picture) bool {
	return proto.Equal(p.ring, o.ring) && slices.EqualFunc(p.shards, o.shards, func(a, b *pb.Shard) bool {
		a = proto.CloneOf(a)
		a.RenewalAge, a.AgeIsLowerBound = b.GetRenewalAge(), b.GetAgeIsLowerBound()

		return proto.Equal(a, b)
	})
}

// RingChanged notifies the watchers of a ring that the ring or one of its shards has changed. Call it after Rings contains the change.
// It does not block.
func (s *Service) RingChanged(name string) { s.watches().Changed(name) }

// watches returns the hub for watchers of rings.
func (s *Service) watches() *fanout.Hub[*picture] {
	s.once.Do(func() { s.hub = fanout.NewHub(s.picture, (*picture).same, s.Clock) })

	return s.hub
}

// WatchRing implements the method of the same name.
func (s *Service) WatchRing(req *pb.WatchRingRequest, stream grpc.ServerStreamingServer[pb.WatchRingResponse]) error {
	_, err := answer(stream.Context(), s, func() (*pb.WatchRingResponse, error) {
		name, err := ringName(req)
		if err != nil {
			return nil, err
		}

		return nil, s.watch(name, stream)
	})

	return err
}

// watch sends the state of the ring after each change until the stream ends.
func (s *Service) watch(name string, stream grpc.ServerStreamingServer[pb.WatchRingResponse]) error {
	reader := s.watches().Follow(name)
	defer reader.Close()

	var sent *picture

	for {
		state, err := reader.Next(stream.Context())
		if err != nil {
			return err
		}

		res := &pb.WatchRingResponse{Ring: state.Value.ring, Shards: state.Value.shards, Revision: state.Revision}
		if sent != nil {
			res.Joined = without(state.Value.available, sent.available)
			res.Left = without(sent.available, state.Value.available)
		}

		if err := stream.Send(res); err != nil {
			return err //nolint:wrapcheck // the stream has ended
		}

		sent = state.Value
	}
}

// without returns the names that are not among the others. Both are sorted.
func without(names, others []string) (rest []string) {
	for _, name := range names {
		if _, found := slices.BinarySearch(others, name); !found {
			rest = append(rest, name)
		}
	}

	return rest
}
