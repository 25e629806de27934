package rings

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	testclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/clusterring/clusterring/services/rebalancer/placement"
	"github.com/clusterring/clusterring/tools/testkit/ringtest"
)

// A namespace may be deleted and made anew with labels that the ring selects.
func TestNamespacesThatAreMadeAnewAreSeen(t *testing.T) {
	w := ringtest.New(t, clusterRings)
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

// A namespace whose label flaps does not keep the ring in passes. The first change counts at once, and so does one after a calm hour.
func TestNamespaceThatFlaps(t *testing.T) {
	w := ringtest.New(t, clusterRings)
	s := newStepped(w, interceptor.Funcs{})
	s.settle()

	now := testclock.NewFakeClock(time.Unix(1_000_000_000, 0))
	s.status.Clock = now
	e := s.fleet.engine(w.Ring.Name, w.Ring.LabelKeys())
	in, out := labels.Set(w.Ring.Spec.NamespaceSelector.MatchLabels), labels.Set{}

	flap := func() (looks int64) {
		before := e.Target().Revision

		require.Equal(t, []string{w.Ring.Name}, s.fleet.relabelled(in, out))

		in, out = out, in

		result, err := s.reconcileOnce()
		require.NoError(t, err)

		if looks = e.Target().Revision - before; looks == 0 {
			require.Positive(t, result.RequeueAfter)
			require.LessOrEqual(t, result.RequeueAfter, 80*time.Second)
		}

		return looks
	}

	require.EqualValues(t, 1, flap(), "the first change counts at once")

	looks := int64(0)

	for range 600 { // ten minutes
		now.Step(time.Second)

		looks += flap()
	}

	require.LessOrEqual(t, looks, int64(6+10))

	for flap() > 0 { // a change that has not counted yet is left
		now.Step(time.Second)
	}

	now.Step(80 * time.Second)

	before := e.Target().Revision
	s.settle()
	require.EqualValues(t, 1, e.Target().Revision-before, "the last change counts in the end")

	now.Step(time.Hour)
	require.EqualValues(t, 1, flap(), "at once")
}
