package scenario

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	diagnosticsv1alpha1 "github.com/clusterring/clusterring/proto/clusterring/diagnostics/v1alpha1"
	"github.com/clusterring/clusterring/tools/demo/internal/localsystem"
	examplev1alpha1 "github.com/clusterring/clusterring/tools/example/api/v1alpha1"
	"github.com/clusterring/clusterring/tools/example/checksum"
	"github.com/clusterring/clusterring/tools/example/website"
	"github.com/clusterring/clusterring/tools/lab/ringstatus"
	"github.com/clusterring/clusterring/tools/testkit/check"
	"github.com/clusterring/clusterring/tools/testkit/history"
	"github.com/clusterring/clusterring/tools/testkit/record"
)

const (
	poll = 50 * time.Millisecond
	// patience limits waits that have no bound of their own. patiencePerObject is added for each object, for slow machines.
	patience          = 60 * time.Second
	patiencePerObject = 20 * time.Millisecond
	// idleFor is how long a shard must be idle to count as idle, because events may still be on their way.
	idleFor = time.Second
)

// await waits until the condition holds. The condition returns what is still missing, which is shown meanwhile, and is part of the error
// after a timeout.
func (s *Story) await(ctx context.Context, condition func(context.Context) (missing string, err error)) error {
	begin, last, within := time.Now(), "", patience+time.Duration(s.created)*patiencePerObject

	err := wait.PollUntilContextTimeout(ctx, poll, within, true, func(ctx context.Context) (bool, error) {
		missing, err := condition(ctx)
		if missing != "" {
			last = missing
			s.console.Progress("waiting: %s (%s)", missing, seconds(begin))
		}

		return missing == "", err
	})
	if err != nil {
		s.versions() // an incomplete record is the reason
		return fmt.Errorf("after %s: %s: %w", seconds(begin), last, err)
	}

	return nil
}

// unless returns what is missing unless a condition holds.
func unless(holds bool, missing string) string {
	if holds {
		return ""
	}

	return missing
}

// awaitReady waits until the ring is Ready, all running shards are available, all conditions are true, and the rebalancer has seen every
// object in place for exactly these shards.
func (s *Story) awaitReady(ctx context.Context) error {
	return s.await(ctx, func(ctx context.Context) (string, error) {
		ring, err := s.ring(ctx)
		if err != nil {
			return "", err
		}

		available := len(s.available())
		if limit := ring.Spec.ActiveShards; limit != nil {
			available = min(available, int(*limit))
		}

		if problems := ringstatus.Problems(ring, available); len(problems) > 0 {
			return problems[0], nil
		}

		answer, err := s.query.GetRing(ctx, &diagnosticsv1alpha1.GetRingRequest{Name: localsystem.Ring})
		if err != nil {
			return "", fmt.Errorf("ask for the ring: %w", err)
		}

		a := ring.Status.Assignment

		return unless(a != nil && a.Fingerprint == answer.GetRing().GetFingerprint(), "the rebalancer has not yet seen every object in place"), nil
	})
}

// awaitInPlace waits until each Website and each Fleet has an available shard, and its ConfigMap or Ships have the same shard.
func (s *Story) awaitInPlace(ctx context.Context) error {
	return s.awaitPlaced(ctx, s.created+s.fleets, func(check.Version) bool { return true })
}

// awaitPlaced is awaitInPlace for the given number of Websites and Fleets, and what they control.
func (s *Story) awaitPlaced(ctx context.Context, n int, counts func(check.Version) bool) error {
	return s.await(ctx, func(context.Context) (string, error) {
		versions := slices.DeleteFunc(s.recorder.Newest(), func(v check.Version) bool { return !counts(v) })
		mains := 0

		for i := range versions {
			versions[i].Complete = true // users may be editing
			if kind := versions[i].Kind; !versions[i].Deleted && (kind == check.Website || kind == check.Fleet) {
				mains++
			}
		}

		problems := check.Final(check.State{Versions: versions, Available: s.available()})

		switch missing := n - mains; {
		case missing > 0:
			return fmt.Sprintf("%d objects were not yet seen", missing), nil
		case len(problems) > 0:
			return fmt.Sprintf("%d objects are not in place: %s", len(problems), problems[0].Text), nil
		}

		return "", nil
	})
}

// awaitState waits until the Lease of the shard has the state.
func (s *Story) awaitState(ctx context.Context, shard, state string) error {
	return s.await(ctx, func(context.Context) (string, error) {
		versions := s.lease(shard)
		if len(versions) == 0 {
			return shard + " has no Lease", nil
		}

		is := versions[len(versions)-1].State

		return unless(is == state, fmt.Sprintf("the Lease of %s is %s, not %s", shard, is, state)), nil
	})
}

// awaitGone waits until an object does not exist. missing describes it meanwhile.
func (s *Story) awaitGone(ctx context.Context, object client.Object, missing func() string) error {
	return s.await(ctx, func(ctx context.Context) (string, error) {
		err := s.client.Get(ctx, client.ObjectKeyFromObject(object), object)
		if apierrors.IsNotFound(err) {
			return "", nil
		}

		return missing(), err
	})
}

// awaitExit waits until a shard has exited.
func (s *Story) awaitExit(ctx context.Context, shard *shard) error {
	err := s.await(ctx, func(context.Context) (string, error) {
		return unless(!shard.Running(), "the process is still running"), nil
	})
	if err != nil {
		return fault(shard.Process, "does not exit: %w", err)
	}

	return nil
}

// awaitRendered waits until the shards have no more work: every Website's page is in its ConfigMap with its checksum, and the status of the
// Website is up to date.
func (s *Story) awaitRendered(ctx context.Context) error {
	return s.await(ctx, func(ctx context.Context) (string, error) {
		var (
			sites      examplev1alpha1.WebsiteList
			configMaps corev1.ConfigMapList
		)
		if err := errors.Join(s.client.List(ctx, &sites), s.client.List(ctx, &configMaps)); err != nil {
			return "", err
		}

		pages := map[client.ObjectKey]map[string]string{}

		for i := range configMaps.Items {
			page := &configMaps.Items[i]

			sum, err := checksum.Of(page.Data)
			if err != nil {
				return "", err
			}

			if page.Annotations[checksum.Annotation] == sum {
				pages[client.ObjectKeyFromObject(page)] = page.Data
			}
		}

		sites.Items = slices.DeleteFunc(sites.Items, func(site examplev1alpha1.Website) bool {
			page := pages[client.ObjectKeyFromObject(&site)]
			return site.Status.ObservedGeneration == site.Generation && maps.Equal(page, website.Render(site.Spec))
		})

		return unless(len(sites.Items) == 0, fmt.Sprintf("%d Websites are not rendered", len(sites.Items))), nil
	})
}

// awaitIdle waits until the running shards have been idle for idleFor.
func (s *Story) awaitIdle(ctx context.Context) error {
	return s.await(ctx, func(context.Context) (string, error) {
		all := s.reconciles()
		for _, shard := range s.running() {
			spans, open := spansOf(all, shard.PID())

			recent := slices.ContainsFunc(spans, func(span history.Span) bool { return span.End > record.Now()-idleFor })
			if open > 0 || recent {
				return fmt.Sprintf("%s is in %d reconciles, or was recently", shard.Name, open), nil
			}
		}

		return "", nil
	})
}
