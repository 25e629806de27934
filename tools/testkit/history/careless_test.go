package history_test

import (
	"bytes"
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/clusterring/clusterring/tools/testkit/history"
)

// refusing answers every patch with an error, as a fence does. The nil client has no other method.
type refusing struct{ client.Client }

func (refusing) Patch(context.Context, client.Object, client.Patch, ...client.PatchOption) error {
	return context.DeadlineExceeded
}

// TestCarelessWritesOnlyAfterAnInterruption shows when a careless shard writes.
func TestCarelessWritesOnlyAfterAnInterruption(t *testing.T) {
	var out bytes.Buffer

	stopping := make(chan struct{})
	c := history.NewCareless(refusing{}, func() string { return "a" }, stopping, &out)
	reconcileWith := func(ctx context.Context) {
		r := c.Reconciler(&corev1.ConfigMap{}, reconcile.Func(func(context.Context, reconcile.Request) (reconcile.Result, error) {
			return reconcile.Result{}, nil
		}))
		_, err := r.Reconcile(ctx, reconcile.Request{NamespacedName: types.NamespacedName{Namespace: "ns", Name: "o"}})
		require.NoError(t, err)
		c.Wait()
	}

	reconcileWith(t.Context())
	require.Empty(t, out.String())

	interrupted, cancel := context.WithCancel(t.Context())
	cancel()
	reconcileWith(interrupted)
	require.JSONEq(t, `{"kind": "ConfigMap", "namespace": "ns", "name": "o", "error": "context deadline exceeded"}`, out.String())

	out.Reset()
	close(stopping)
	reconcileWith(interrupted)
	require.Empty(t, out.String(), "the process stops")
}

func TestRefusedCarelessWrites(t *testing.T) {
	writes, err := history.ReadCarelessWrites(strings.NewReader(`{"kind":"Website","namespace":"ns","name":"a","error":"forbidden: fence of ring example: shard b owns websites ns/a"}
{"kind":"Website","namespace":"ns","name":"b"}
{"kind":"Website","namespace":"ns","name":"c","error":"not found"}
`))
	require.NoError(t, err)

	refused, others := history.Refused(writes, "example")
	require.Equal(t, 1, refused)
	require.Equal(t, []string{"Website ns/b was written", "Website ns/c was not refused by the fence: not found"}, others)

	_, err = history.ReadCarelessWrites(strings.NewReader("no JSON"))
	require.ErrorContains(t, err, "read careless writes")
}
