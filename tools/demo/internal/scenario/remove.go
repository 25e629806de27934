package scenario

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/tools/demo/internal/localsystem"
	"github.com/clusterring/clusterring/tools/demo/internal/report"
	"github.com/clusterring/clusterring/tools/testkit/check"
	"github.com/clusterring/clusterring/tools/testkit/process"
	"github.com/clusterring/clusterring/tools/testkit/record"
)

// afterwardsToo is the number of Websites that users create after the ring is gone.
const afterwardsToo = 20

// remove deletes the ring while its shards work and users edit and create Websites.
func (s *Story) remove(ctx context.Context) error {
	var (
		began, gone       time.Time
		before, meanwhile done
	)

	all, err := s.underLoad(ctx, true, func(ctx context.Context, u *users) error {
		err := s.await(ctx, func(context.Context) (string, error) {
			before = u.soFar()
			return unless(before.edits > 0 && before.creates > 0, "the first edits and creates"), nil
		})
		if err != nil {
			return err
		}

		began, before = time.Now(), u.soFar()

		if err := s.deleteRing(ctx); err != nil {
			return err
		}

		gone, meanwhile = time.Now(), u.soFar()

		return s.await(ctx, func(context.Context) (string, error) {
			n := u.soFar().creates - meanwhile.creates
			return unless(n >= afterwardsToo, fmt.Sprintf("users have created %d Websites since the ring was gone", n)), nil
		})
	})
	if err != nil {
		return err
	}
	s.ok("the ring was gone after %s; of %d creates and %d edits meanwhile, none failed (slowest %s)", report.Seconds(gone.Sub(began)),
		meanwhile.creates-before.creates, meanwhile.edits-before.edits, report.Seconds(all.slowest))

	if err := s.awaitUnregistered(ctx); err != nil {
		return err
	}

	if err := s.leftAlone(ctx, all.creates-before.creates); err != nil {
		return err
	}

	if err := s.verifyMoves(ctx); err != nil {
		return err
	}

	worked := 0

	for _, span := range s.reconciles() {
		if span.Start < record.At(gone) && (span.End == 0 || span.End > record.At(began)) {
			worked++
		}
	}

	if worked == 0 {
		return errors.New("no shard worked while the ring was deleted, so the step proves nothing")
	}
	s.ok("shards released each object first, then its ConfigMap, during %d reconciles", worked)

	return s.verify(ctx)
}

// deleteRing deletes the ring and waits until it is gone.
func (s *Story) deleteRing(ctx context.Context) error {
	ring, err := s.ring(ctx)
	if err != nil {
		return err
	}

	if err := s.client.Delete(ctx, ring); err != nil {
		return fmt.Errorf("delete the ClusterRing: %w", err)
	}

	return s.awaitGone(ctx, ring, func() string {
		left := s.objects()
		return fmt.Sprintf("the ring has the finalizers %v; %d of %d objects are unassigned", ring.Finalizers, left.At(""), len(left))
	})
}

// awaitUnregistered waits until the webhook configuration is gone.
func (s *Story) awaitUnregistered(ctx context.Context) error {
	webhook := &admissionregistrationv1.MutatingWebhookConfiguration{}
	webhook.Name = contract.WebhookConfigurationName(localsystem.Ring)

	if err := s.awaitGone(ctx, webhook, func() string { return "the webhook configuration is still there" }); err != nil {
		return err
	}
	s.ok("the webhook configuration is gone")

	return nil
}

// leftAlone checks that no object has a label of the ring, with a fresh list and with the watches. created is the number of Websites that
// were created since the deletion began.
func (s *Story) leftAlone(ctx context.Context, created int) error {
	all, err := s.stored(ctx)
	if err != nil {
		return err
	}

	sites := 0

	var found []string

	for name, object := range all {
		if strings.HasPrefix(name, check.Website+" ") {
			sites++
		}

		for label, value := range object.Labels {
			if strings.HasPrefix(label, contract.LabelShardPrefix) || strings.HasPrefix(label, contract.LabelDrainPrefix) {
				found = append(found, fmt.Sprintf("%s: %s=%s", name, label, value))
			}
		}
	}

	if err := wrong("the deleted ring has left labels behind", found); err != nil {
		return err
	}

	if sites != s.created {
		return fmt.Errorf("%d Websites exist, but %d were created", sites, s.created)
	}

	err = s.await(ctx, func(context.Context) (string, error) {
		seen := s.objects()
		return unless(seen.At("") == len(seen), "the watches have not caught up"), nil
	})
	if err != nil {
		return err
	}
	s.ok("no label is left on any of %d objects, %d of them created since the deletion began", len(all), created)

	return nil
}

// review checks what must hold throughout the demo.
func (s *Story) review(ctx context.Context) error {
	if err := s.system.ReadyServices(ctx); err != nil {
		return err
	}
	s.ok("all services are ready; no process exited by itself, except the resumed shard")

	if err := inOrder(ctx, s.verify, s.verifyShips); err != nil {
		return err
	}

	names := map[string]bool{}

	for _, p := range s.system.Started() {
		names[p.Name] = true

		found, err := process.Find(p.LogFile, 1, "forbidden", "panic", "data race")
		if err != nil {
			return err
		}

		if len(found) > 0 {
			return fault(p, "has logged: %s", found[0])
		}
	}
	s.ok("no log of %d services and shards contains forbidden or panic", len(names))

	return nil
}
