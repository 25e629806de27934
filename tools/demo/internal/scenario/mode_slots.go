package scenario

import (
	"context"
	"fmt"
	"strconv"
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

	if err := s.startSlots(ctx, "--slots="+strconv.Itoa(slotCount)); err != nil {
		return err
	}

	if err := s.websites(ctx); err != nil {
		return err
	}
	s.ok("%d processes share %d slots; one of them waits", slotCount+1, slotCount)

	var out *shard

	for _, shard := range s.running() {
		if shard.serve != "" {
			out = shard
		}
	}

	slot, since := out.serve, len(s.versions())

	took, err := s.replaceHolder(ctx, out)
	if err != nil {
		return err
	}

	if err := inOrder(ctx, s.awaitReady, func(context.Context) error { return s.unmoved(since) }); err != nil {
		return err
	}

	s.ok("%s stopped: the process that waited holds %s after %s; no object moved, no label was written", out.Name, slot, took)

	return s.tidy(ctx)
}

// startSlots starts processes that share the slots, one more than there are, and waits until each slot is held.
func (s *Story) startSlots(ctx context.Context, flags ...string) error {
	if _, err := s.startAs(ctx, "--pod-name", slotCount+1, flags); err != nil {
		return err
	}

	return s.awaitSlots(ctx)
}

// replaceHolder stops a process that holds a slot, and returns how long it took until the one that waited holds the slot.
func (s *Story) replaceHolder(ctx context.Context, out *shard) (took string, err error) {
	told := time.Now()

	out.lost, out.serve = stopped, ""
	if err := out.Terminate(); err != nil {
		return "", err
	}

	if err := s.awaitSlots(ctx); err != nil {
		return "", err
	}

	return seconds(told), s.awaitExit(ctx, out)
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
