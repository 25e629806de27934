package rings

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/clusterring/clusterring/services/rebalancer/placement"
	"github.com/clusterring/clusterring/services/rebalancer/ringtest"
)

// A namespace may be deleted and made anew with labels that the ring selects.
func TestNamespacesThatAreMadeAnewAreSeen(t *testing.T) {
	w := ringtest.New(t)
	s := newStepped(w, interceptor.Funcs{})
	s.settle()

	e := s.fleet.engine(w.Ring.Name, w.Ring.LabelKeys())
	except := *e.Target()
	except.Narrow = placement.Narrowing{Except: []string{"left-out"}}
	e.SetTarget(&except)

	namespace := &corev1.Namespace{}
	namespace.Name, namespace.Labels = "left-out", w.Ring.Spec.NamespaceSelector.MatchLabels
	require.Equal(t, []string{w.Ring.Name}, s.fleet.narrowed(namespace))

	namespace.Name = "other"
	require.Empty(t, s.fleet.narrowed(namespace))

	namespace.Name, namespace.Labels = "left-out", nil
	require.Empty(t, s.fleet.narrowed(namespace))
}
