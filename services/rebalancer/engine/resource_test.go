package engine

import (
	"errors"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/resources"
	"github.com/clusterring/clusterring/services/rebalancer/work"
)

// A resource is verified whatever happens to others, except that what follows main objects is verified only with all of these.
func TestPassesVerifyEachResource(t *testing.T) {
	g := newGoingOver(t, 0)
	mapper := meta.NewDefaultRESTMapper(nil)

	for _, kind := range []string{"ConfigMap", "Secret", "Service"} {
		mapper.Add(corev1.SchemeGroupVersion.WithKind(kind), meta.RESTScopeNamespace)
	}

	g.base.Set = resources.Resolve(mapper, v1alpha1.ClusterRingSpec{Resources: []v1alpha1.RingResource{
		{Resource: "configmaps", ControlledResources: []v1alpha1.ControlledResource{{Resource: "secrets"}}},
		{Resource: "services"},
	}})
	g.ring("a", "b", "c")

	settled := func() (names []string) {
		g.due()

		for of := range g.e.Report().Settled {
			names = append(names, of.String())
		}

		slices.Sort(names)

		return names
	}

	down := errors.New("503")
	services := sourceID{looksFor: forMisplaced, resource: schema.GroupResource{Resource: "services"}}

	g.begin(change).end(nil, down, nil) // configmaps, services, secrets
	g.e.troubled(services, down)
	g.clock.Step(settlePeriod)

	p := g.begin(change)
	require.Len(t, p.visits, 3)
	p.end(nil, down, nil)
	require.Equal(t, []string{"configmaps"}, settled(), "what follows services may have been left behind")

	g.misplaced()
	require.Empty(t, settled())
	g.put()
	require.Equal(t, []string{"configmaps"}, settled())

	_, in := g.due()
	g.clock.Step(in)

	p = g.begin(change)
	require.Len(t, p.visits, 1, "only services have to be visited again")
	p.end(nil)
	g.e.troubled(services, nil)
	require.Equal(t, []string{"configmaps", "secrets", "services"}, settled())
	require.True(t, g.e.Report().Converged)

	g.e.passes.owe(work.Debt{Unseen: sets.New(configMaps)})
	require.Equal(t, []string{"services"}, settled(), "an object was released, and perhaps not what follows it")
	require.False(t, g.e.Report().Converged)
}

// If a pass over all objects had to wait for urgent objects for longer than the settle period, no other pass has to follow it,
// because no object of this ring follows another.
func TestLateLookIsEnough(t *testing.T) {
	g := newGoingOver(t, 1)
	g.verify()
	g.ring("a", "b", "c", "d")
	g.clock.Step(settlePeriod)

	late := g.begin(change)
	require.Nil(t, late.shards)
	late.end(nil)
	require.True(t, g.verified())

	g.base = target("passes", "secrets")
	g.ring("a", "b", "c", "d", "e")
	g.begin(change).end(nil)
	g.clock.Step(settlePeriod)
	g.begin(check).end(nil)
	g.ring("a", "b", "c", "d", "e", "f")

	early := g.begin(change)
	require.Len(t, early.visits, 1, "it visits only main objects")
	early.end(nil)
	g.ring("a", "b", "c", "d", "e", "f", "g")
	g.clock.Step(settlePeriod)

	late = g.begin(change)
	require.Len(t, late.visits, 2, "it is late enough to check also what follows these")
	late.end(nil)
	require.True(t, g.verified())
}
