package scenario

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/tools/demo/internal/localsystem"
	"github.com/clusterring/clusterring/tools/demo/internal/report"
	examplev1alpha1 "github.com/clusterring/clusterring/tools/example/api/v1alpha1"
	"github.com/clusterring/clusterring/tools/testkit/check"
	"github.com/clusterring/clusterring/tools/testkit/process"
)

const (
	// own is the namespace of the objects of the ring whose shards elect its sharder, and ownSites the number of its Websites.
	own, ownSites = "embedded", 40
	// electedSays is in the log of the shard that is elected first.
	electedSays = "Took the ring"
)

// embedded lets shards shard a ring by themselves, which the services leave alone, and stops the one that they have elected.
func (s *Story) embedded(ctx context.Context) error {
	if err := s.prepareEmbedded(ctx); err != nil {
		return err
	}

	names, err := s.start(ctx, 2, "--embedded")
	if err != nil {
		return err
	}

	if err := s.createOwn(ctx); err != nil {
		return err
	}

	elected, err := s.elected(names)
	if err != nil {
		return err
	}

	return s.stopElected(ctx, elected)
}

// prepareEmbedded grants the shards what the elected one needs, and creates the ring again, for one namespace.
func (s *Story) prepareEmbedded(ctx context.Context) error {
	if err := s.system.Plane.Install(ctx, "deploy/example-embedded/rbac.yaml"); err != nil {
		return fmt.Errorf("grant the rights: %w", err)
	}

	ring := &v1alpha1.ClusterRing{ObjectMeta: metav1.ObjectMeta{Name: localsystem.Ring}, Spec: v1alpha1.ClusterRingSpec{
		Sharder: v1alpha1.SharderEmbedded, ShardNamespaces: []string{localsystem.ShardNamespace},
		NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: own}},
		Resources: []v1alpha1.RingResource{{
			Group: examplev1alpha1.SchemeGroupVersion.Group, Resource: "websites", ControlledResources: []v1alpha1.ControlledResource{{Resource: "configmaps"}},
		}},
	}}
	if err := s.client.Create(ctx, ring); err != nil {
		return fmt.Errorf("create the ring with the sharder Embedded: %w", err)
	}

	if err := s.client.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: own}}); err != nil {
		return fmt.Errorf("create a namespace: %w", err)
	}

	return nil
}

// createOwn creates the Websites, one after the other, once the ring has a sharder.
func (s *Story) createOwn(ctx context.Context) error {
	err := s.await(ctx, func(ctx context.Context) (string, error) {
		ring, err := s.ring(ctx)
		if err != nil {
			return "", err
		}

		return unless(meta.IsStatusConditionTrue(ring.Status.Conditions, v1alpha1.ConditionAssigned), "the shards have elected a sharder"), nil
	})
	if err != nil {
		return err
	}

	created := len(s.versions())

	for i := range ownSites {
		if err := s.createOwnSite(ctx, i); err != nil {
			return err
		}
	}

	if err := s.awaitOwn(ctx, ownSites); err != nil {
		return err
	}

	waits := s.waits(created)
	if len(waits) != ownSites {
		return fmt.Errorf("%d of %d objects were created without a shard: some webhook is in use", len(waits), ownSites)
	}

	ring, err := s.ring(ctx)
	if err != nil {
		return err
	}

	if c := meta.FindStatusCondition(ring.Status.Conditions, v1alpha1.ConditionWebhookRegistered); c == nil || c.Reason != v1alpha1.ReasonEmbedded {
		return fmt.Errorf("the ring does not say that it uses no webhook: %v", c)
	}
	s.ok("no webhook, no service: the elected shard assigned %d new objects, half of them within %s", ownSites, report.Seconds(waits[len(waits)/2]))

	return nil
}

// elected returns the shard that says that it shards the ring.
func (s *Story) elected(names []string) (*shard, error) {
	for _, shard := range s.running() {
		if !slices.Contains(names, shard.Name) {
			continue
		}

		found, err := process.Find(shard.LogFile, 1, electedSays)
		if err != nil {
			return nil, fmt.Errorf("find out which shard is elected: %w", err)
		}

		if len(found) > 0 {
			return shard, nil
		}
	}

	return nil, errors.New("no shard says that it was elected")
}

// stopElected stops the elected shard: its objects and its office both pass to others.
func (s *Story) stopElected(ctx context.Context, elected *shard) error {
	told, has := time.Now(), s.objects().Of(check.Website).At(elected.Name)

	elected.lost = stopped
	if err := s.end(elected.Name); err != nil {
		return err
	}

	if err := s.createOwnSite(ctx, ownSites); err != nil {
		return err
	}

	if err := s.awaitOwn(ctx, ownSites+1); err != nil {
		return err
	}
	s.ok("it stopped: its %d objects moved, and another elected shard assigned a new object, after %s in all", has, seconds(told))

	return nil
}

// createOwnSite creates a Website of the ring.
func (s *Story) createOwnSite(ctx context.Context, i int) error {
	site := newWebsite(i)
	site.Namespace = own
	s.created++

	if err := s.client.Create(ctx, site); err != nil {
		return fmt.Errorf("a user's create failed: %w", err)
	}

	return nil
}

// awaitOwn waits until the ring's n Websites are each at an available shard, with its ConfigMap.
func (s *Story) awaitOwn(ctx context.Context, n int) error {
	return s.awaitPlaced(ctx, n, func(v check.Version) bool { return v.Namespace == own })
}
