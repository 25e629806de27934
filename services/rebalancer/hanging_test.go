package rebalancer

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/tools/testkit/ringtest"
)

// hangingRing returns a ring for whose ConfigMaps each update waits for a webhook that never answers.
func hangingRing(t *testing.T) *testRing {
	t.Helper()

	w := newTestRing(t, func(r *v1alpha1.ClusterRing) {
		r.Spec.Resources = []v1alpha1.RingResource{{Resource: "configmaps"}, {Resource: "secrets"}}
	})

	config := rest.CopyConfig(w.Plane.Config)
	config.QPS = -1

	var err error

	w.Client, err = client.New(config, client.Options{Scheme: w.Client.Scheme()})
	require.NoError(t, err)

	w.Join("a")
	w.operatorWebhook(1).dead.Store(1)

	return w
}

// Four rings have 5,000 objects whose writes hang. Objects of another resource are assigned within a second, and each ring
// says what hangs, since when, and why, for as long as that lasts.
func TestHangingResourceHoldsUpNoOther(t *testing.T) {
	var all []*testRing
	for range 4 {
		all = append(all, hangingRing(t))
	}

	all[0].start()

	for _, w := range all {
		w.AtRest()
	}

	began := realTime.Now()

	for _, w := range all {
		w.Main("hanging", "")
	}

	says := func(w *testRing, objects int, why string) {
		t.Helper()

		said := ""

		require.Eventually(t, func() bool {
			said = w.Assigned(v1alpha1.ReasonAssignmentFailed).Message
			return strings.HasSuffix(said, fmt.Sprintf("; %d objects wait", objects)) && strings.Contains(said, why)
		}, 40*time.Second, 20*time.Millisecond, "%s", &said)
		require.Regexp(t, `; writes of configmaps have not been answered since \d\d:\d\d:\d\d: `, said)
		t.Logf("%v: %s", realTime.Since(began).Round(time.Millisecond), said)
	}

	for _, w := range all {
		says(w, 1, "")
	}

	require.Less(t, realTime.Since(began), 10*time.Second)

	const each = 1250

	var creating errgroup.Group

	for _, w := range all {
		creating.Go(func() error {
			for i := range each - 1 {
				cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: w.Namespace, Name: fmt.Sprintf("hanging-%d", i)}}
				if err := w.Client.Create(t.Context(), cm); err != nil {
					return err
				}
			}

			return nil
		})
	}

	for i := range 100 {
		w := all[i%len(all)]
		s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.Namespace, Name: fmt.Sprintf("other-%d", i)}}
		require.NoError(t, w.Client.Create(t.Context(), s))

		created := realTime.Now()

		w.Eventually(ringtest.Placed{Shard: "a"}, s)
		require.Less(t, realTime.Since(created), time.Second)
	}

	require.NoError(t, creating.Wait())

	for _, w := range all { // it lasts, through attempts that take longer and longer
		says(w, each, "operator.example.clusterring.dev")
	}
}
