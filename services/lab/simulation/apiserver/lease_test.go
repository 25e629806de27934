package apiserver_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/services/lab/simulation/apiserver"
)

func TestLeases(t *testing.T) {
	in(t, apiserver.Config{}, func(w *bubble) {
		leases := w.c.Leases()
		key := client.ObjectKey{Namespace: "n", Name: "a"}
		l := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "a",
			Labels: map[string]string{"ring": "r"}}}

		require.True(w, apierrors.IsNotFound(leases.Get(w.Context(), key, l.DeepCopy())))
		require.NoError(w, leases.Create(w.Context(), l))
		require.True(w, apierrors.IsAlreadyExists(leases.Create(w.Context(), l)))

		one, two := &coordinationv1.Lease{}, &coordinationv1.Lease{}
		require.NoError(w, leases.Get(w.Context(), key, one))
		require.NoError(w, leases.Get(w.Context(), key, two))
		require.NoError(w, leases.Update(w.Context(), one))
		require.True(w, apierrors.IsConflict(leases.Update(w.Context(), two)))
		require.True(w, apierrors.IsConflict(leases.Delete(w.Context(), two)))

		one.Spec.LeaseTransitions = new(int32(-1))
		require.True(w, apierrors.IsInvalid(leases.Update(w.Context(), one)))

		require.NoError(w, leases.Get(w.Context(), key, one))
		one.Finalizers = []string{"f"}
		require.NoError(w, leases.Update(w.Context(), one))
		require.NoError(w, leases.Get(w.Context(), key, one))
		require.NoError(w, leases.Delete(w.Context(), one))
		require.NoError(w, leases.Get(w.Context(), key, one))
		require.NotNil(w, one.DeletionTimestamp)
		require.NoError(w, leases.Update(w.Context(), one), "it may be written while it is being deleted")

		var list coordinationv1.LeaseList
		require.NoError(w, leases.List(w.Context(), &list, client.MatchingLabels{"ring": "r"},
			client.MatchingFields{"metadata.name": "a"}))
		require.Len(w, list.Items, 1)
		require.NoError(w, leases.List(w.Context(), &list, client.MatchingLabels{"ring": "other"}))
		require.Empty(w, list.Items)
	})
}
