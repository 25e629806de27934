package suite_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/clusterring/clusterring/tools/e2e/cluster"
	"github.com/clusterring/clusterring/tools/e2e/load"
)

const (
	// unassigned is the longest that an object may be without a shard while the assigner is scaled and rolled, and a
	// replica is killed, not counting what the API server needs for requests.
	unassigned = 2 * time.Second
	// admitted is the least share of objects, in percent, that get their shard in admission meanwhile.
	admitted = 99.9
	// imbalance is how many times the mean the busiest replica may have, after at most this many windows. A connection
	// lasts a second or longer, and goes to a replica at random: among the 50 connections of a minute, one of four
	// replicas has more than 1.5 times the mean once in ten windows; among those of five minutes, practically never. An
	// assigner that does not spread calls stays above it.
	imbalance, windows = 1.5, 5
	// settled is when after a scale-up the shares of the replicas are measured.
	settled = 30 * time.Second
	// outage is how long a service is away.
	outage = time.Minute
	// between is the time under load between two events.
	between = 5 * time.Second
)

// assigner scales and rolls the assigner under load, and kills one replica from the side of its node. That loses the
// calls which the replica is answering, and those over new connections to it until its node has seen that it is not
// there: the API server does not ask again. The objects get their shard from the rebalancer.
func (s *suite) assigner(t *testing.T) {
	ctx, d := t.Context(), service("assigner")
	ring := s.ring(t, "assigner", 2)
	s.restore(t, d)
	killer := s.killer(t, "assigner")
	s.scaled(t, d, 1)

	run := s.pressure(t, ring, s.size.rate)
	s.lasts(t, run, between)
	s.scaled(t, d, 4)
	s.lasts(t, run, settled)
	s.shares(t, ring, run)
	s.killReplica(t, killer, d)
	s.lasts(t, run, between)
	s.scaled(t, d, 1)
	s.lasts(t, run, between)
	require.NoError(t, s.Restart(ctx, d))
	require.NoError(t, s.Rolled(ctx, d, patience))
	s.lasts(t, run, between)

	result := s.noneFailed(t, run)
	s.assignedAtOnce(t, result)
	s.complete(t, ring, 2)
}

// assignedAtOnce demands what a healthy assigner keeps, and what the rebalancer keeps for objects that admission did
// not assign.
func (s *suite) assignedAtOnce(t *testing.T, result load.Result) {
	t.Helper()
	assert.GreaterOrEqual(t, result.AdmittedPercent(), admitted, "assigned in admission")
	// The rebalancer needs an event, a read, and a write, which take as long as users' writes do on a busy machine.
	assert.LessOrEqual(t, result.Slowest, unassigned+3*result.Late, "longest without a shard")
}

// shares measures what part of the calls each replica of the assigner gets, until they are even.
func (s *suite) shares(t *testing.T, ring cluster.Ring, run *load.Run) {
	t.Helper()
	before := s.calls(t, ring)
	factor := math.Inf(1)

	for range windows {
		s.lasts(t, run, s.size.window)

		counts := s.calls(t, ring)
		for name := range counts {
			counts[name] -= before[name]
		}

		factor = aboveMean(counts)
		t.Logf("calls of the replicas: %v", slices.Sorted(maps.Values(counts)))

		if factor <= imbalance {
			break
		}
	}

	assert.LessOrEqual(t, factor, imbalance, "busiest replica, times the mean")
}

// aboveMean returns how many times the mean the largest count is; infinity for no calls at all.
func aboveMean(counts map[string]float64) float64 {
	var busiest, total float64

	for _, count := range counts {
		total += count
		busiest = max(busiest, count)
	}

	if total == 0 {
		return math.Inf(1)
	}

	return busiest * float64(len(counts)) / total
}

// calls returns, for each replica of the assigner, how many admission requests for the ring it has answered.
func (s *suite) calls(t *testing.T, ring cluster.Ring) map[string]float64 {
	t.Helper()
	pods, err := s.Pods(t.Context(), service("assigner"))
	require.NoError(t, err)

	counts := map[string]float64{}
	for _, p := range pods {
		counts[p.Name], err = s.Metric(t.Context(), p, "clusterring_assigner_admission_requests_total",
			fmt.Sprintf("ring=%q", ring.Name))
		require.NoError(t, err)
	}

	return counts
}

// scaled scales the Deployment and waits until that is done.
func (s *suite) scaled(t *testing.T, d cluster.Deployment, replicas int) {
	t.Helper()
	require.NoError(t, s.Scale(t.Context(), d, replicas))
	require.NoError(t, s.Rolled(t.Context(), d, patience))
}

// restore gives the Deployment its replicas back at the end of the test.
func (s *suite) restore(t *testing.T, d cluster.Deployment) int {
	t.Helper()
	replicas, err := s.Replicas(t.Context(), d)
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		assert.NoError(t, errors.Join(s.Scale(ctx, d, replicas), s.Rolled(ctx, d, patience)))
	})

	return replicas
}

// services disturbs each of the other services, under one load that is shared out to three rings. Each is away for a
// minute, which begins half a minute after it has for the one before: so for half a minute each is away without another
// that ownership needs, and for half a minute two are away at once.
func (s *suite) services(t *testing.T) {
	names := []string{"leasemonitor", "rebalancer", "ringquery"}
	rings := map[string]cluster.Ring{}

	demands := map[string]func(*testing.T){}
	for _, name := range names {
		demands[name] = s.follow(t, cluster.NewRing("e2e-"+name))
		rings[name] = s.ring(t, name, 3)
	}

	began, rate := s.Clock.Now(), (s.size.rate+len(names)-1)/len(names)
	for i, name := range names {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			after := began.Add(between + time.Duration(i)*outage/2).Sub(s.Clock.Now())
			s.disturb(t, disturbance{service: name, ring: rings[name], after: max(after, between), rate: rate})
			demands[name](t)
		})
	}
}

// disturbance says which service is disturbed, on which ring there is a load of how many creates per second, and for
// how long before.
type disturbance struct {
	service string
	ring    cluster.Ring
	after   time.Duration
	rate    int
}

// disturb deletes all pods of a service, has it away for a while, and rolls it, under load and while shards come and
// go.
func (s *suite) disturb(t *testing.T, what disturbance) {
	t.Helper()
	ctx, d, ring := t.Context(), service(what.service), what.ring
	replicas := s.restore(t, d)

	run := s.pressure(t, ring, what.rate)
	s.lasts(t, run, what.after)
	require.NoError(t, s.DeletePods(ctx, d))
	require.NoError(t, s.Rolled(ctx, d, patience))

	s.scaled(t, d, 0)
	require.NoError(t, s.removePod(ctx, ring))
	s.lasts(t, run, outage)
	s.scaled(t, d, replicas)

	require.NoError(t, s.Restart(ctx, d))
	require.NoError(t, s.Rolled(ctx, d, patience))
	s.lasts(t, run, between)

	result := s.noneFailed(t, run)
	t.Logf("longest without a shard: %s; assigned in admission: %.3f %%", result.Slowest, result.AdmittedPercent())
	require.NoError(t, s.Rolled(ctx, ring.Shards, patience))
	s.complete(t, ring, 3)
}
