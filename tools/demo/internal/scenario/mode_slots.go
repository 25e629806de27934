package scenario

import (
	"context"
	"fmt"
	"time"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
)

// slotCount is the number of slots. One more process waits for one.
const slotCount = 2

// slots replaces a process that holds a slot by one that waits for a slot.
func (s *Story) slots(ctx context.Context) error {
	if err := s.remake(ctx, func(*v1alpha1.ClusterRingSpec) {}); err != nil {
		return err
	}

	names := s.names(slotCount + 1)

	if err := s.system.StartSlots(ctx, slotCount, names...); err != nil {
		return err
	}

	for _, name := range names {
		s.shards = append(s.shards, &shard{Process: s.system.Process(name)})
	}

	if err := inOrder(ctx, s.awaitSlots, s.websites); err != nil {
		return err
	}
	s.ok("%d processes share %d slots; one of them waits", len(names), slotCount)

	var out *shard

	for _, shard := range s.running() {
		if shard.serve != "" {
			out = shard
		}
	}

	slot, since, told := out.serve, len(s.versions()), time.Now()

	out.lost, out.serve = stopped, ""
	if err := out.Terminate(); err != nil {
		return err
	}

	if err := s.awaitSlots(ctx); err != nil {
		return err
	}

	took := seconds(told)

	if err := inOrder(ctx, func(ctx context.Context) error { return s.awaitExit(ctx, out) }, s.awaitReady); err != nil {
		return err
	}

	if err := s.unmoved(since); err != nil {
		return err
	}

	s.ok("%s stopped: the process that waited holds %s after %s; no object moved, no label was written", out.Name, slot, took)

	return s.tidy(ctx)
}

// awaitSlots waits until all slots, of which there are slotCount, are held by running processes, as the status of the ring says, and notes which process holds which.
func (s *Story) awaitSlots(ctx context.Context) error {
	return s.await(ctx, func(ctx context.Context) (string, error) {
		ring, err := s.ring(ctx)
		if err != nil {
			return "", err
		}

		held := 0

		for _, holder := range ring.Status.Holders {
			for _, shard := range s.running() {
				if shard.Name == holder.Pod {
					shard.serve = holder.Shard
					held++
				}
			}
		}

		return unless(held == slotCount, fmt.Sprintf("%d of %d slots are held by running processes", held, slotCount)), nil
	})
}
