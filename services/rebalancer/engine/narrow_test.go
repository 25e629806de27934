package engine

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/services/rebalancer/placement"
)

// A namespace that the ring does not cover costs nothing: its changes are no events of watches for objects without a shard.
func TestNamespacesThatAreLeftOutAreNotWatched(t *testing.T) {
	for name, narrow := range map[string]func(r *resting, other string) placement.Narrowing{
		"few are left out": func(_ *resting, other string) placement.Narrowing {
			return placement.Narrowing{Except: []string{other}}
		},
		"few are covered": func(r *resting, _ string) placement.Narrowing {
			return placement.Narrowing{Single: true, Only: []string{r.ns}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newResting(t)
			other := r.plane.Namespace(t)
			all := target(r.ring)
			all.Narrow = narrow(r, other)
			r.e.Namespaces = these{r.ns, other}
			r.e.mover.Lookup.Namespaces = r.e.Namespaces

			r.e.SetTarget(all)
			r.run()

			watched := slices.DeleteFunc(r.since(0), func(request string) bool {
				return !strings.HasPrefix(request, "WATCH") || !strings.Contains(request, "notin")
			})
			require.Len(t, watched, 1)

			if all.Narrow.Single {
				require.Contains(t, watched[0], "/namespaces/"+r.ns+"/")
			} else {
				require.Contains(t, watched[0], "metadata.namespace!="+other)
			}

			r.eventuallyAssigned(r.create("mine", ""))

			// From now on, the ring also has to watch the other namespace.
			wider := *all
			if wider.Narrow.Except = nil; wider.Narrow.Single {
				wider.Narrow.Only = []string{other, r.ns}
			}

			before := r.passes(0)
			r.ns = other
			cm := r.create("others", "")
			r.e.SetTarget(&wider)
			r.eventuallyAssigned(cm)
			require.Equal(t, before, r.passes(0), "only the watches have changed")
		})
	}
}

// eventuallyAssigned waits until an object has its shard.
func (r *resting) eventuallyAssigned(cm *corev1.ConfigMap) {
	r.Helper()
	r.eventually(func() bool {
		require.NoError(r, r.plane.Client.Get(r.Context(), client.ObjectKeyFromObject(cm), cm))
		return cm.Labels[contract.ShardLabel(r.ring)] == "a"
	})
}

// these selects some namespaces.
type these []string

func (t these) Selects(_ context.Context, namespace string, _ labels.Selector) (bool, error) {
	return slices.Contains(t, namespace), nil
}
