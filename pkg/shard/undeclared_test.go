package shard

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// A shard does not work on an object as if it had waited for what follows it: a hand-over that names a resource which nobody has declared is an
// error. When the hand-over no longer names it, the shard works on the object.
func TestHandoverOfAResourceThatIsNotDeclared(t *testing.T) {
	f := newFixture(t)
	s := f.shard("shard-0")
	keys := s.LabelKeys()
	cm := f.configMap(s, "a")
	handed := func(obj client.Object, annotation string) {
		patch := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"annotations":{"`+keys.Handover+`":`+annotation+`}}}`))
		require.NoError(t, f.admin.Patch(t.Context(), obj, patch))
	}
	handed(cm, `"{\"services\":\"1\"}"`)

	declared := f.configMap(s, "b")
	handed(declared, `"{\"secrets\":\"1\"}"`)

	worked := make(chan string, 100)
	f.start(s, func(mgr ctrl.Manager) {
		require.NoError(t, ctrl.NewControllerManagedBy(mgr).Named("test").For(&corev1.ConfigMap{}).
			Complete(reconcile.Func(func(_ context.Context, req reconcile.Request) (reconcile.Result, error) {
				worked <- req.Name

				return reconcile.Result{}, nil
			})))
	})
	require.Equal(t, "b", receive(f, worked, "a kind that is declared, and not cached, is not waited for"))
	f.eventually("it is counted", func() bool {
		count := 0
		s.progress.each(s.progress.reconciles, func(value float64, labels ...string) {
			if labels[0] == "test" && labels[1] == "undeclared" {
				count += int(value)
			}
		})

		return count > 1 // it is tried again
	})
	require.Empty(t, worked)

	handed(cm, "null")
	require.Equal(t, "a", receive(f, worked, "it is found again"))
}
