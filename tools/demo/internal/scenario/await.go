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
	// Anything that has no bound of its own may take this long, and longer with many objects. A machine may be slow.
	patience          = 60 * time.Second
	patiencePerObject = 20 * time.Millisecond
)

// await waits until the condition holds. It says in words how far things are; that is shown while they are on their way,
// and is part of the error if they do not get there in time.
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
		return errors.Join(fmt.Errorf("still not so after %s: %s", within, last), wrong("objects that are not in their place", s.restless()))
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

// awaitReady waits until the ring is Ready with as many shards available as live, all conditions are true, and the
// rebalancer has found every object in its place for just these shards.
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
			return false, "the rebalancer has not yet found every object in its place", nil
		}
		return true, "", nil
	})
}

// settled says whether every Website is at an available shard, and its ConfigMap, which has to exist, at the same; and every Fleet with its Ships.
func (s *Story) settled() (done bool, how string, err error) {
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
	how = fmt.Sprintf("of %d Websites %d are at an available shard, %d with their ConfigMap; of %d Fleets %d with their Ships",
		s.created, placed, complete, fleetsMade, sailing)
	return len(sites) == s.created && placed == s.created && complete == s.created && sailing == fleetsMade, how, err
}

// awaitSettled waits until everything is where it can stay.
func (s *Story) awaitSettled(ctx context.Context) error {
	return s.await(ctx, func(context.Context) (bool, string, error) { return s.settled() })
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

// restless returns the Websites and ConfigMaps that are not where they can stay, each with the way that it has gone.
func (s *Story) restless() []string {
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
