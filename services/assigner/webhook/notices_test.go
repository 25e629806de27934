package webhook_test

import (
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/assigner/webhook"
)

// newNotices returns notices about the ring, and their events.
func newNotices(t testing.TB, clk clock.Clock) (*webhook.Notices, chan string) {
	t.Helper()

	scheme := runtime.NewScheme()
	require.NoError(t, v1alpha1.AddToScheme(scheme))

	recorder := events.NewFakeRecorder(1000)
	rings := fake.NewClientBuilder().WithScheme(scheme).WithObjects(&v1alpha1.ClusterRing{ObjectMeta: metav1.ObjectMeta{Name: ring}}).Build()

	return webhook.NewNotices(rings, recorder, clk), recorder.Events
}

// An event names who changes labels and one of the objects, and is not repeated for a while.
func TestNotices(t *testing.T) {
	clk := clocktesting.NewFakeClock(time.Unix(1, 0))
	notices, told := newNotices(t, clk)

	h, _ := newHandler(t, fixedRings{ring: newRing(3)})
	h.Notices = notices

	write := func(options, dryRun string) {
		body := strings.NewReplacer(
			`"CREATE"`, `"UPDATE"`, `"oldObject":null`, `"oldObject":{"metadata":{"labels":{"`+contract.ShardLabel(ring)+`":"shard-0"}}}`,
			`"dryRun":false`, `"dryRun":`+dryRun, `"options":{`, `"options":{`+options,
		).Replace(reviewOf(`{"name":"a","namespace":"default","labels":{"` + contract.ShardLabel(ring) + `":"shard-1"}}`))

		w := httptest.NewRecorder()
		h.ServeHTTP(w, post(contract.WebhookPath(ring), body))
		require.Contains(t, w.Body.String(), "was restored")
	}

	const rest = " changes or removes the label shard.alpha.sharding.timebertt.dev/clusterring-50d858e0-example, now of configmaps default/a. " +
		"Only the ring changes it, so the assigner puts it back: leave the label out of manifests and backups"

	write(`"fieldManager":"argocd-controller",`, "true")
	require.Empty(t, told, "nothing was stored")

	for range 10 {
		write(`"fieldManager":"argocd-controller",`, "false")
	}

	require.Equal(t, "Warning LabelRestored argocd-controller"+rest, <-told)
	require.Empty(t, told)

	clk.Step(11 * time.Minute)
	write("", "null")
	require.Equal(t, "Warning LabelRestored admin"+rest, <-told)
}
