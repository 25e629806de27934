package scenario

import (
	"context"
	"fmt"
	"strings"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/tools/demo/internal/localsystem"
	"github.com/clusterring/clusterring/tools/demo/internal/report"
	"github.com/clusterring/clusterring/tools/demo/internal/spread"
)

// join starts the first shards.
func (s *Story) join(ctx context.Context) error {
	begin := time.Now()

	names, err := s.start(ctx, s.Shards)
	if err != nil {
		return err
	}
	s.ok("%s hold their Leases", strings.Join(names, ", "))

	if err := s.awaitReady(ctx); err != nil {
		return err
	}

	ring, err := s.ring(ctx)
	if err != nil {
		return err
	}
	s.ok("the ring is Ready, %d of %d shards available, after %s", ring.Status.AvailableShards, ring.Status.Shards, seconds(begin))

	for _, name := range names {
		if err := s.awaitState(ctx, name, "ready"); err != nil {
			return err
		}
	}

	webhook := &admissionregistrationv1.MutatingWebhookConfiguration{}
	if err := s.client.Get(ctx, client.ObjectKey{Name: v1alpha1.WebhookConfigurationName(localsystem.Ring)}, webhook); err != nil {
		return fmt.Errorf("get the webhook configuration of the ring: %w", err)
	}
	s.ok("every Lease is ready, the webhook is registered")

	return nil
}

// awaitState waits until the Lease of the shard has the state.
func (s *Story) awaitState(ctx context.Context, shard, state string) error {
	return s.await(ctx, func(context.Context) (bool, string, error) {
		turns, err := s.leases.Of(shard)
		if err != nil || len(turns) == 0 {
			return false, fmt.Sprintf("%s has no Lease", shard), err
		}

		is := turns[len(turns)-1].State

		return is == state, fmt.Sprintf("the Lease of %s is %[3]s, not %[2]s", shard, state, is), nil
	})
}

// create creates the objects.
func (s *Story) create(ctx context.Context) error {
	if err := s.createNamespaces(ctx); err != nil {
		return err
	}

	made, err := s.createWebsites(ctx, s.Objects)
	if err != nil {
		return err
	}

	if n := made.inAdmission(s.available()); n != s.Objects {
		return fmt.Errorf("only %d of %d objects were assigned in admission", n, s.Objects)
	}
	s.ok("%d of %d Websites were assigned in admission (in %s, slowest create %s)", s.Objects, s.Objects,
		report.Seconds(made.took), report.Seconds(made.slowest))

	if err := s.createFleets(ctx); err != nil {
		return err
	}

	if err := s.awaitInPlace(ctx); err != nil {
		return err
	}
	s.ok("%d ConfigMaps were created, each with the shard of its Website; also %d Ships of %d Fleets", s.Objects, fleetsMade*shipsOfEach, fleetsMade)

	if err := s.spreadOut(); err != nil {
		return err
	}

	return s.awaitReady(ctx)
}

// inAdmission counts the created objects that admission assigned to one of the shards.
func (c *creation) inAdmission(shards []string) int {
	n := 0
	for _, shard := range shards {
		n += c.assigned[shard]
	}

	return n
}

// spreadOut shows and checks how evenly the Websites are spread over the available shards.
func (s *Story) spreadOut() error {
	sites, err := s.objects.Now(websites)
	if err != nil {
		return err
	}

	const width = 40

	over := spread.Spread(sites.Count(s.available()))
	s.console.Block(over.Bars(width))

	if over.MaxToMean() > over.Bound() {
		return fmt.Errorf("the spread is uneven: %s", over)
	}
	s.ok("spread: %s", over)

	return nil
}
