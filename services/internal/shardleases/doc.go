// Package shardleases keeps a [membership.Index] up to date with the Leases of shards.
//
// It reads the Leases that carry a ring's label, from the manager's cache ([Watch]) or without keeping them ([Follow]), and makes /readyz wait
// until the index has seen all that there were at first.
package shardleases

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	toolscache "k8s.io/client-go/tools/cache"

	"github.com/clusterring/clusterring/services/internal/kit"
)

// Synced knows when an index has seen all Leases that there were when [Watch] or [Follow] began.
type Synced struct{ leases toolscache.DoneChecker }

// synced makes /readyz wait for the checker.
func synced(rt *kit.Runtime, leases toolscache.DoneChecker) *Synced {
	rt.AddReady("shard-leases", func(*http.Request) error {
		if !toolscache.IsDone(leases) {
			return errors.New("the Leases of shards have not been read yet")
		}

		return nil
	})

	return &Synced{leases}
}

// Await waits until the index has seen all Leases, so that nobody takes a shard for dead that was merely not read yet. It returns an error if
// ctx ends before.
func (s *Synced) Await(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return fmt.Errorf("wait for the Leases of shards: %w", ctx.Err())
	case <-s.leases.Done():
		return nil
	}
}
