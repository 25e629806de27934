package engine

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
)

// A label that names an available shard matches no watch, even if it is wrong. The audit finds and counts such objects.
func TestAuditRepairsLabelsThatNameLivingShards(t *testing.T) {
	for what, spoil := range map[string]func(w *meddled) (spoilt client.Object, shard string, drain bool){
		"an object restored from a backup": func(w *meddled) (client.Object, string, bool) {
			return w.owners("restored", "a", 1)[0], "a", true
		},
		"a child that was given to another owner": func(w *meddled) (client.Object, string, bool) {
			child, other := w.child(w.owner(w.namesAt(w.target, "a", "old", 1)[0], "a"), "child", "a"), w.owners("new", "b", 1)[0]
			w.rest()

			child.OwnerReferences = nil
			require.NoError(w, controllerutil.SetControllerReference(other, child, w.client.Scheme()))
			require.NoError(w, w.client.Update(w.Context(), child))

			return child, "b", false
		},
		"a child that was left behind": func(w *meddled) (client.Object, string, bool) {
			owner := w.owners("owner", "b", 1)[0]
			child := w.child(owner, "child", "b")
			w.rest()

			child.OwnerReferences = nil // what --cascade=orphan does
			require.NoError(w, w.client.Update(w.Context(), child))
			require.NoError(w, w.client.Delete(w.Context(), owner))

			return child, "", false
		},
		"a child that is elsewhere than its owner": func(w *meddled) (client.Object, string, bool) {
			return w.child(w.owners("owner", "b", 1)[0], "child", "a"), "b", false
		},
		"an object of a namespace that is not selected": func(w *meddled) (client.Object, string, bool) {
			ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "elsewhere-"}}
			require.NoError(w, w.client.Create(w.Context(), ns))

			cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: ns.Name, Name: "copied", Labels: w.at("a")}}
			require.NoError(w, w.client.Create(w.Context(), cm))

			return cm, "a", true
		},
	} {
		t.Run(what, func(t *testing.T) {
			w := newMeddled(t, byHand)
			w.e.SetTarget(w.target)
			w.run()
			w.rest()

			o, shard, drain := spoil(w)
			require.Zero(t, w.audited())
			w.goesBy(int(auditEvery.Seconds()))
			w.comes(o, shard, drain)
			require.InDelta(t, 1, w.audited(), 0)

			if drain {
				w.acknowledge(o)
			}

			w.converges()
			require.InDelta(t, 1, w.audited(), 0, "it should be counted once")
		})
	}
}

// A ring in which objects move converges only after a look at all objects. So a child that its shard has created too late, and that has the label of
// that shard, waits for no audit.
func TestWrongLabelOfAMovingRingNeedsNoAudit(t *testing.T) {
	w := newMeddled(t, byHand)
	stays, moves := w.owners("stays", "b", 1)[0], w.owners("moves", "a", 1)[0]
	w.e.SetTarget(w.target)
	w.run()
	w.comes(moves, "a", true)

	began := w.e.Clock.Now()
	child := w.child(stays, "late", "a")
	w.acknowledge(moves)
	w.converges()
	require.True(t, w.placed(child, "b", false))
	require.Less(t, w.e.Clock.Since(began), auditEvery)
}

// rest waits until the ring has converged and an audit has just ended: the next one is due in a minute.
func (w *meddled) rest() {
	w.Helper()
	w.converges()

	ended := func() time.Time {
		w.e.mu.Lock()
		defer w.e.mu.Unlock()

		return w.e.passes.ended
	}
	before := ended()

	w.eventually(func() bool {
		w.goesBy(1)
		return ended().After(before)
	}, "an audit should run once a minute")
	w.converges()
}

// audited returns the number of misplaced objects that the audit has found.
func (w *meddled) audited() (n float64) {
	w.Helper()

	measured(w.T, w.ring, "clusterring_rebalancer_audit_found_total", func(value float64) { n += value })

	return n
}
