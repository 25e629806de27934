package suite_test

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/stretchr/testify/assert"
	"k8s.io/utils/ptr"

	"github.com/clusterring/clusterring/tools/e2e/cluster"
	"github.com/clusterring/clusterring/tools/e2e/load"
	"github.com/clusterring/clusterring/tools/testkit/record"
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
func (s *scene) assigner() {
	ctx, d := s.Context(), service("assigner")
	ring := s.ring("assigner", 2)
	s.restore(d)

	killer := s.killer("assigner")
	s.scaled(d, 1)

	run := s.pressure(ring, rate)
	s.lasts(run, between)
	s.scaled(d, 4)
	s.lasts(run, settled)
	s.shares(ring, run)
	killer.Kill(ctx, s.Pods(ctx, d)[0])
	s.Rolled(ctx, d)
	s.lasts(run, between)
	s.scaled(d, 1)
	s.lasts(run, between)
	s.Restart(ctx, d)
	s.Rolled(ctx, d)
	s.lasts(run, between)

	s.assignedAtOnce(s.noneFailed(run))
	s.complete(ring, 2)
}

// assignedAtOnce demands what a healthy assigner keeps, and what the rebalancer keeps for objects that admission did
// not assign.
func (s *scene) assignedAtOnce(result load.Result) {
	assert.GreaterOrEqual(s, result.AdmittedPercent(), admitted, "assigned in admission")
	// The rebalancer needs an event, a read, and a write, which take as long as users' writes do on a busy machine.
	assert.LessOrEqual(s, result.Slowest, unassigned+3*result.Late, "longest without a shard")
}

// shares measures what part of the calls each replica of the assigner gets, until they are even.
func (s *scene) shares(ring cluster.Ring, run *load.Run) {
	before := s.calls(ring)
	factor := math.Inf(1)

	for range windows {
		s.lasts(run, s.size.window)

		counts := s.calls(ring)
		for name := range counts {
			counts[name] -= before[name]
		}

		factor = aboveMean(counts)
		s.Logf("calls of the replicas: %v", slices.Sorted(maps.Values(counts)))

		if factor <= imbalance {
			break
		}
	}

	assert.LessOrEqual(s, factor, imbalance, "busiest replica, times the mean")
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
func (s *scene) calls(ring cluster.Ring) map[string]float64 {
	counts := map[string]float64{}
	for _, p := range s.Pods(s.Context(), service("assigner")) {
		counts[p.Name] = s.Metric(s.Context(), p, "clusterring_assigner_admission_requests_total",
			fmt.Sprintf("ring=%q", ring.Name))
	}

	return counts
}

// scaled scales the Deployment and waits until that is done.
func (s *scene) scaled(d cluster.Deployment, replicas int) {
	s.Scale(s.Context(), d, replicas)
	s.Rolled(s.Context(), d)
}

// restore gives the Deployment its replicas back at the end of the test. It returns how many it has.
func (s *scene) restore(d cluster.Deployment) int {
	replicas := int(ptr.Deref(s.Deployment(s.Context(), d).Spec.Replicas, 1))
	s.finally(func(ctx context.Context) {
		s.Scale(ctx, d, replicas)
		s.Rolled(ctx, d)
	})

	return replicas
}

// services disturbs each of the other services, under one load that is shared out to three rings. Each is away for a
// minute, which begins half a minute after it has for the one before: so for half a minute each is away without another
// that ownership needs, and for half a minute two are away at once.
func (s *scene) services() {
	names := []string{"leasemonitor", "rebalancer", "ringquery"}
	rings := map[string]cluster.Ring{}

	demands := map[string]func(*scene){}
	for _, name := range names {
		demands[name] = s.follow(cluster.Ring{Name: "e2e-" + name})
		rings[name] = s.ring(name, 3)
	}

	began := record.Now()

	for i, name := range names {
		s.Run(name, s.play(func(s *scene) {
			s.Parallel()

			run := s.pressure(rings[name], (rate+len(names)-1)/len(names))
			s.lasts(run, max(began+between+time.Duration(i)*outage/2-record.Now(), between))
			s.disturb(service(name), rings[name], run)
			demands[name](s)
		}))
	}
}

// disturb deletes all pods of a service, has it away for a while, and rolls it, under load and while shards come and
// go.
func (s *scene) disturb(d cluster.Deployment, ring cluster.Ring, run *load.Run) {
	ctx, replicas := s.Context(), s.restore(d)

	s.Kubectl(ctx, "delete", "pods", "-n", d.Namespace, "-l", "app.kubernetes.io/name="+d.Name, "--wait=false")
	s.Rolled(ctx, d)

	s.scaled(d, 0)
	s.removePod(ctx, ring)
	s.lasts(run, outage)
	s.scaled(d, replicas)

	s.Restart(ctx, d)
	s.Rolled(ctx, d)
	s.lasts(run, between)

	result := s.noneFailed(run)
	s.Logf("longest without a shard: %s; assigned in admission: %.3f %%", result.Slowest, result.AdmittedPercent())
	s.Rolled(ctx, ring.Shards())
	s.complete(ring, 3)
}
