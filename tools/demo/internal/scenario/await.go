package scenario

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	diagnosticsv1alpha1 "github.com/clusterring/clusterring/proto/clusterring/diagnostics/v1alpha1"
	"github.com/clusterring/clusterring/tools/demo/internal/localsystem"
	"github.com/clusterring/clusterring/tools/demo/internal/observe"
	"github.com/clusterring/clusterring/tools/lab/check"
)

const (
	poll = 50 * time.Millisecond
	// patience limits waits that have no bound of their own. patiencePerObject is added for each object, for slow machines.
	patience          = 60 * time.Second
	patiencePerObject = 20 * time.Millisecond
)

// await waits until the condition holds. The condition also returns its progress, which is shown meanwhile, and is part of the error after
// a timeout.
func (s *Story) await(ctx context.Context, condition func(context.Context) (done bool, how string, err error)) error {
	begin, last, within := time.Now(), "", patience+time.Duration(s.created)*patiencePerObject

	err := wait.PollUntilContextTimeout(ctx, poll, within, true, func(ctx context.Context) (bool, error) {
		done, how, err := condition(ctx)
		if how != "" {
			last = how
		}

		if !done && err == nil {
			s.console.Progress("waiting: %s (%s)", how, seconds(begin))
		}

		return done, err
	})
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case wait.Interrupted(err):
		return errors.Join(fmt.Errorf("the condition does not hold after %s: %s", within, last), wrong("objects that are not in place", s.misplaced()))
	default:
		return fmt.Errorf("while waiting: %s: %w", last, err)
	}
}

// ring returns the ClusterRing.
func (s *Story) ring(ctx context.Context) (*v1alpha1.ClusterRing, error) {
	ring := &v1alpha1.ClusterRing{}
	if err := s.client.Get(ctx, client.ObjectKey{Name: localsystem.Ring}, ring); err != nil {
		return nil, fmt.Errorf("get the ClusterRing: %w", err)
	}

	return ring, nil
}

// awaitReady waits until the ring is Ready, all running shards are available, all conditions are true, and the rebalancer has seen every
// object in place for exactly these shards.
func (s *Story) awaitReady(ctx context.Context) error {
	want := len(s.available())

	return s.await(ctx, func(ctx context.Context) (bool, string, error) {
		ring, err := s.ring(ctx)
		if err != nil {
			return false, "", err
		}

		if problems := check.Status(ring, want); len(problems) > 0 {
			return false, problems[0], nil
		}

		answer, err := s.query.GetRing(ctx, &diagnosticsv1alpha1.GetRingRequest{Name: localsystem.Ring})
		if err != nil {
			return false, "", fmt.Errorf("ask for the ring: %w", err)
		}

		if a := ring.Status.Assignment; a == nil || a.Fingerprint != answer.GetRing().GetFingerprint() {
			return false, "the rebalancer has not yet seen every object in place", nil
		}

		return true, "", nil
	})
}

// inPlace reports whether every Website has an available shard and a ConfigMap with the same shard, and every Fleet has its Ships with it.
func (s *Story) inPlace() (done bool, how string, err error) {
	sites, err := s.objects.Now(websites)
	if err != nil {
		return false, "", err
	}

	maps, err := s.objects.Now(configMaps)
	if err != nil {
		return false, "", err
	}

	placed, complete := 0, 0

	for key, site := range sites {
		if site.Draining || !s.isAvailable(site.Shard) {
			continue
		}
		placed++

		child := maps[observe.Key{Resource: configMaps, Namespace: key.Namespace, Name: key.Name}]
		if child.Owner == key.Name && child.Shard == site.Shard && !child.Draining {
			complete++
		}
	}

	sailing, err := s.fleetsComplete()
	how = fmt.Sprintf("of %d Websites, %d have an available shard, %d with their ConfigMap; of %d Fleets, %d with their Ships",
		s.created, placed, complete, fleetsMade, sailing)

	return len(sites) == s.created && placed == s.created && complete == s.created && sailing == fleetsMade, how, err
}

// awaitInPlace waits until all objects are in place.
func (s *Story) awaitInPlace(ctx context.Context) error {
	return s.await(ctx, func(context.Context) (bool, string, error) { return s.inPlace() })
}

// everything returns Websites and their ConfigMaps.
func (s *Story) everything() (observe.Snapshot, error) {
	sites, err := s.objects.Now(websites)
	if err != nil {
		return nil, err
	}

	maps, err := s.objects.Now(configMaps)
	if err != nil {
		return nil, err
	}

	for key, state := range maps {
		if state.Owner != "" {
			sites[key] = state
		}
	}

	return sites, nil
}

// misplaced returns the Websites and ConfigMaps that are not in place, each with its history.
func (s *Story) misplaced() []string {
	all, err := s.everything()
	if err != nil {
		return []string{err.Error()}
	}

	var found []string

	for key, state := range all {
		owner := all[observe.Key{Resource: websites, Namespace: key.Namespace, Name: state.Owner}]
		if !state.Draining && s.isAvailable(state.Shard) && (state.Owner == "" || owner.Shard == state.Shard) {
			continue
		}

		way := []string{key.String() + ":"}
		for _, c := range s.objects.Since(0) {
			if c.Key == key {
				way = append(way, fmt.Sprintf("%s (%s, version %d)", c.After, c.At.Format("15:04:05.000"), c.Version))
			}
		}

		found = append(found, strings.Join(way, " "))
	}

	return found
}
