package ships

import (
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/clusterring/clusterring/tools/example/api/v1alpha1"
)

func TestExcess(t *testing.T) {
	h := newHistory()
	of := func(fleet, ship types.UID) *v1alpha1.Ship {
		return &v1alpha1.Ship{ObjectMeta: metav1.ObjectMeta{UID: ship, OwnerReferences: []metav1.OwnerReference{{UID: fleet, Controller: new(true)}}}}
	}
	for _, ship := range []*v1alpha1.Ship{of("a", "1"), of("a", "1"), of("a", "2"), of("b", "3"), of("b", "4"), of("b", "5"), of("", "6"), {}} {
		h.add(ship)
	}
	fleet := func(uid types.UID, replicas int32) v1alpha1.Fleet {
		return v1alpha1.Fleet{ObjectMeta: metav1.ObjectMeta{UID: uid}, Spec: v1alpha1.FleetSpec{Replicas: replicas}}
	}
	excess, missing, err := h.Excess([]v1alpha1.Fleet{fleet("a", 2), fleet("b", 2), fleet("c", 4)})
	require.NoError(t, err)
	require.Equal(t, 1, excess)
	require.Equal(t, 4, missing)
}
