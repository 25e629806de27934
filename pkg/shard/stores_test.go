package shard

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
)

// BenchmarkLook measures what a worker needs to find out that it may begin with an object that was handed over.
func BenchmarkLook(b *testing.B) {
	for _, namespaces := range []int{1, 20, 200} {
		s, err := New(Options{Ring: "ring", Name: "shard-0", Namespace: "default"})
		require.NoError(b, err)

		for ns := range namespaces {
			for i := range 5 {
				kind, resource := fmt.Sprint("Kind", i), schema.GroupResource{Resource: fmt.Sprint("kind", i)}
				items := &lagging{Store: toolscache.NewStore(toolscache.MetaNamespaceKeyFunc), version: "30"}
				s.stores.add(&store{Store: items, form: form{gvk: schema.GroupVersionKind{Version: "v1", Kind: kind}}, namespace: fmt.Sprint("ns-", ns)}, resource)
			}
		}

		key := objectKey{GroupKind: schema.GroupKind{Kind: "Owner"}, NamespacedName: types.NamespacedName{Namespace: "ns-0", Name: "owner"}}
		owner := &metav1.ObjectMeta{Namespace: "ns-0", Annotations: map[string]string{s.LabelKeys().Handover: `{"kind0":"20","kind1":"20"}`}}
		look := func() {
			missing, _, err := s.handover.awaits(b.Context(), key, owner, time.Unix(0, 0))
			require.Empty(b, missing)
			require.NoError(b, err)
		}

		b.Run(fmt.Sprintf("first/namespaces=%d", namespaces), func(b *testing.B) {
			b.ReportAllocs()

			for b.Loop() {
				s.handover.forget(key)
				look()
			}
		})
		b.Run(fmt.Sprintf("again/namespaces=%d", namespaces), func(b *testing.B) {
			b.ReportAllocs()

			for b.Loop() {
				look()
			}
		})
	}
}
