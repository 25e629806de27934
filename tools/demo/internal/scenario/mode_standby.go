package scenario

import (
	"context"
	"fmt"
	"time"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/tools/demo/internal/localsystem"
	"github.com/clusterring/clusterring/tools/demo/internal/report"
)

// standby runs three shards of which one is active, and kills that one.
func (s *Story) standby(ctx context.Context) error {
	one := int32(1)

	if err := s.remake(ctx, func(spec *v1alpha1.ClusterRingSpec) { spec.ActiveShards = &one }); err != nil {
		return err
	}

	names, err := s.start(ctx, s.Shards)
	if err != nil {
		return err
	}

	if err := s.websites(ctx); err != nil {
		return err
	}

	active, err := s.onlyAt()
	if err != nil {
		return err
	}
	s.ok("with activeShards: 1, %s has all %d Websites; %d shards stand by", active, s.Objects, len(names)-1)

	since := len(s.versions())

	if _, err := s.start(ctx, 1); err != nil {
		return err
	}

	if err := inOrder(ctx, s.awaitReady, func(context.Context) error { return s.unmoved(since) }); err != nil {
		return err
	}
	s.ok("another shard joins: nothing moves")

	died, err := s.killShard(active)
	if err != nil {
		return err
	}

	if err := inOrder(ctx, s.awaitInPlace, s.awaitReady); err != nil {
		return err
	}

	next, err := s.onlyAt()
	if err != nil {
		return err
	}
	s.ok("%s was killed: %s has all Websites after %s (its Lease lasts %s)", active, next, seconds(died), report.Seconds(localsystem.LeaseDuration))

	return s.tidy(ctx)
}

// killShard kills the process of a shard, and returns when it ended.
func (s *Story) killShard(name string) (time.Time, error) {
	for _, shard := range s.running() {
		if shard.serve != name {
			continue
		}

		shard.lost = killed
		err := shard.Kill()

		return shard.EndedAt(), err
	}

	return time.Time{}, fmt.Errorf("no process runs as shard %s", name)
}
