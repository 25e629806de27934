package scenario

import (
	"context"
	"fmt"
	"strings"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/tools/demo/internal/localsystem"
	"github.com/clusterring/clusterring/tools/demo/internal/report"
	"github.com/clusterring/clusterring/tools/demo/internal/spread"
	"github.com/clusterring/clusterring/tools/testkit/check"
)

// join starts the first shards.
func (s *Story) join(ctx context.Context) error {
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
	s.ok("the ring is Ready, %d of %d shards available, after %s", ring.Status.AvailableShards, ring.Status.Shards, seconds(s.began))

	for _, name := range names {
		if err := s.awaitState(ctx, name, "ready"); err != nil {
			return err
		}
	}

	webhook := &admissionregistrationv1.MutatingWebhookConfiguration{}
	if err := s.client.Get(ctx, client.ObjectKey{Name: contract.WebhookConfigurationName(localsystem.Ring)}, webhook); err != nil {
		return fmt.Errorf("get the webhook configuration of the ring: %w", err)
	}
	s.ok("every Lease is ready, the webhook is registered")

	return nil
}

// create creates the objects.
func (s *Story) create(ctx context.Context) error {
	if err := inOrder(ctx, s.createNamespaces, s.createInAdmission, s.createFleets, s.awaitInPlace); err != nil {
		return err
	}
	s.ok("%d ConfigMaps were created, each with the shard of its Website; also %d Ships of %d Fleets", s.Objects, fleets*shipsOfEach, fleets)

	return inOrder(ctx, s.spreadOut, s.awaitReady)
}

// createInAdmission creates the first Websites and checks that admission assigned them.
func (s *Story) createInAdmission(ctx context.Context) error {
	begin := time.Now()

	made, err := s.createWebsites(ctx, s.Objects)
	if err != nil {
		return err
	}

	if made.assigned != s.Objects {
		return fmt.Errorf("only %d of %d objects were assigned in admission", made.assigned, s.Objects)
	}
	s.ok("%d of %d Websites were assigned in admission (in %s, slowest create %s)", s.Objects, s.Objects,
		seconds(begin), report.Seconds(made.slowest))

	return nil
}

// spreadOut shows and checks how evenly the Websites are spread over the available shards.
func (s *Story) spreadOut(context.Context) error {
	const width = 40

	over := spread.Spread(s.objects().Of(check.Website).Count(s.available()))
	s.console.Block(over.Bars(width))

	if over.MaxToMean() > over.Bound() {
		return fmt.Errorf("the spread is uneven: %s", over)
	}
	s.ok("spread: %s", over)

	return nil
}
