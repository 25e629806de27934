package ordinal_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// An object that is deleted and made anew stays with its process. A reconcile of the old object may still run: whatever it reads again, or patches, is
// the new one, so another process would work on the new object beside it.
func TestObjectsThatAreMadeAnew(t *testing.T) {
	f := newFixture(t, 2)
	f.start(0)
	f.start(1)

	cm := f.objects(1)[0]
	f.eventually(func() bool { return len(f.record.by(cm.Name, "0")) > 0 }, "it has no process")
	owner := f.record.by(cm.Name, "0")

	for i := range 10 { // that no uid leads to another process is improbable
		release := f.record.hold(owner[0])
		t.Cleanup(release)

		before := f.record.begun(owner[0])
		f.touch([]*corev1.ConfigMap{cm}, fmt.Sprint("old-", i))
		f.eventually(func() bool { return f.record.begun(owner[0]) > before }, "its process should hang")

		require.NoError(t, f.admin.Delete(t.Context(), cm))
		cm = &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Namespace: cm.Namespace, Name: cm.Name}, Data: map[string]string{"touched": fmt.Sprint("new-", i)},
		}
		require.NoError(t, f.admin.Create(t.Context(), cm))
		release()

		f.eventually(func() bool { return len(f.record.by(cm.Name, cm.Data["touched"])) > 0 }, "the new object has no process")
		require.Equal(t, owner, f.record.by(cm.Name, cm.Data["touched"]), "after it was made anew %d times", i+1)
	}

	require.Empty(t, f.record.overlaps())
}

// A reconcile that runs while the number of replicas changes lists to its end what belonged to its process when it began.
func TestListsOfAReconcileWhileTheNumberChanges(t *testing.T) {
	f := newFixture(t, 1)
	all := f.objects(20)
	m := f.start(0)

	for _, cm := range all {
		f.eventually(func() bool { return len(f.record.by(cm.Name, "0")) > 0 }, "%s has no process", cm.Name)
	}

	release := f.record.hold(pod(0))
	t.Cleanup(release)

	moves, before := first(all, 1), f.record.begun(pod(0))
	f.touch([]*corev1.ConfigMap{moves}, "1")
	f.eventually(func() bool { return f.record.begun(pod(0)) > before }, "the process should hang")
	f.scale(2)
	f.eventually(func() bool { return works(m, all) == shareOf(all, 2) }, "the process does not know the number")
	release()

	f.eventually(func() bool { return len(f.record.by(moves.Name, "1")) > 0 }, "the reconcile should end")
	require.Equal(t, len(all), f.record.listing(moves.Name))

	var list corev1.ConfigMapList

	require.NoError(t, m.mgr.GetClient().List(t.Context(), &list, client.InNamespace(f.namespace)))
	require.Len(t, list.Items, shareOf(all, 2), "outside of a reconcile")
}
