package leasemonitor

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/clusterring"
	"github.com/clusterring/clusterring/tools/testkit/localplane"
)

// TestColumns shows what kubectl get clusterrings prints, without and with -o wide.
func TestColumns(t *testing.T) {
	w := newWorld(t)
	w.join("a", 0)

	ring := &v1alpha1.ClusterRing{}
	require.NoError(t, w.plane.Client.Get(t.Context(), types.NamespacedName{Name: w.ring}, ring))
	ring.Spec.ActiveShards, ring.Spec.Sharder = new(int32(2)), v1alpha1.SharderServices
	require.NoError(t, w.plane.Client.Update(t.Context(), ring))

	others := clusterring.StatusWriter{Client: w.plane.Client, Owner: "others", Clock: clock.RealClock{}}
	require.NoError(t, others.Write(t.Context(), ring, clusterring.StatusPart{ShardLabel: ring.LabelKeys().Shard, Conditions: []metav1.Condition{
		{Type: v1alpha1.ConditionWebhookRegistered, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonRegistered},
		{Type: v1alpha1.ConditionFenced, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonFenceAudited},
		{Type: v1alpha1.ConditionAssigned, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonMoving, Message: "3 objects move"},
	}}))

	stop := run(t, "--kubeconfig", w.plane.ServiceKubeconfig(t, name), "--metrics-bind-address", localplane.FreeAddress(t),
		"--health-probe-bind-address", localplane.FreeAddress(t))
	w.waitShards(1, 1)

	always, wide := w.columns()
	require.Equal(t, []column{{"Name", w.ring}, {"Ready", "True"}, {"Available", 1.0}, {"Shards", 1.0}}, always[:4])
	require.Equal(t, "Age", always[4].name)
	require.Len(t, always, 5)
	require.Equal(t, []column{
		{"Sharder", "Services"}, {"Active", 2.0}, {"Shard Label", ring.LabelKeys().Shard},
		{"Webhook", v1alpha1.ReasonRegistered}, {"Fence", v1alpha1.ReasonFenceAudited}, {"Assigned", v1alpha1.ReasonMoving}, {"Message", "3 objects move"},
	}, wide)
	require.NoError(t, stop())
}

type column struct {
	name string
	cell any
}

// columns returns the columns that kubectl always prints, and those that it adds with -o wide.
func (w *world) columns() (always, wide []column) {
	w.t.Helper()

	cfg := rest.CopyConfig(w.plane.Config)
	cfg.NegotiatedSerializer = serializer.NewCodecFactory(w.plane.Client.Scheme()).WithoutConversion()
	c, err := rest.UnversionedRESTClientFor(cfg)
	require.NoError(w.t, err)
	body, err := c.Get().AbsPath("apis", v1alpha1.GroupVersion.String(), "clusterrings", w.ring).
		SetHeader("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io").Do(w.t.Context()).Raw()
	require.NoError(w.t, err)

	var table metav1.Table
	require.NoError(w.t, json.Unmarshal(body, &table))
	require.Len(w.t, table.Rows, 1)

	for i, d := range table.ColumnDefinitions {
		if c := (column{d.Name, table.Rows[0].Cells[i]}); d.Priority == 0 {
			always = append(always, c)
		} else {
			wide = append(wide, c)
		}
	}

	return always, wide
}
