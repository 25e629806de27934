package shardtest_test

import (
	"context"
	"fmt"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/clusterring/clusterring/pkg/internal/testenv"
	"github.com/clusterring/clusterring/pkg/shard/shardtest"
)

func TestMain(m *testing.M) { testenv.VerifyMain(m) }

// The package works for authors who test with an API server, and for those who test with a fake client.
func TestLifeOfAnObject(t *testing.T) {
	clients := map[string]func(*testing.T) client.Client{
		"API server":  func(t *testing.T) client.Client { t.Helper(); return testenv.Client(t) },
		"fake client": func(*testing.T) client.Client { return fake.NewClientBuilder().Build() },
	}
	for name, newClient := range clients {
		t.Run(name, func(t *testing.T) {
			c := newClient(t)
			ring := shardtest.New(t, c, "example")
			cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "life",
				Labels: ring.Labels("shard-0")}}
			require.NoError(t, c.Create(t.Context(), cm))

			calls := 0
			r := ring.Shard("shard-0").Reconciler(c, &corev1.ConfigMap{}, reconcile.Func(
				func(context.Context, reconcile.Request) (reconcile.Result, error) {
					calls++
					return reconcile.Result{}, nil
				}))
			reconciled := func() int {
				before := calls
				_, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(cm)})
				require.NoError(t, err)

				return calls - before
			}

			require.Equal(t, 1, reconciled())
			ring.RequireOwned(cm, "shard-0")

			ring.Drain(cm)
			require.NotEqual(t, ring.Labels("shard-0"), cm.Labels)
			ring.WithdrawDrain(cm)
			require.Equal(t, ring.Labels("shard-0"), cm.Labels)
			require.Equal(t, 1, reconciled())

			ring.Drain(cm)
			require.Equal(t, 0, reconciled())
			ring.RequireReleased(cm)
			require.Equal(t, 0, reconciled())

			ring.Assign(cm, "shard-1")
			require.Equal(t, 0, reconciled())
			ring.Assign(cm, "shard-0")
			require.Equal(t, 1, reconciled())
		})
	}
}

func TestAssertionsFail(t *testing.T) {
	c := testenv.Client(t)
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "assertions"}}
	require.NoError(t, c.Create(t.Context(), cm))

	missing := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "missing"}}
	shardtest.New(t, c, "example").Assign(cm, "shard-0")

	for _, tc := range []struct {
		name string
		fn   func(*shardtest.Ring)
		want string
	}{
		{"owned", func(r *shardtest.Ring) { r.RequireReleased(cm) },
			`default/assertions is not released: it belongs to shard "shard-0", draining: false`},
		{"another's", func(r *shardtest.Ring) { r.RequireOwned(cm, "shard-1") },
			`default/assertions belongs to shard "shard-0", want "shard-1"`},
		{"missing", func(r *shardtest.Ring) { r.RequireReleased(missing) },
			`read default/missing: configmaps "missing" not found`},
		{"not labelled", func(r *shardtest.Ring) { r.Drain(missing) },
			`label default/missing: configmaps "missing" not found`},
		{"bad name", func(r *shardtest.Ring) { r.Shard("-") }, `create shard "-" of ring "example"`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			failure := failureOf(t, func(tb testing.TB) {
				tb.Helper()
				tc.fn(shardtest.New(tb, c, "example"))
			})
			require.Contains(t, failure, tc.want)
		})
	}
}

// recorder is a test whose failure does not fail the real test.
type recorder struct {
	testing.TB
	message string
}

func (r *recorder) Helper() {}

func (r *recorder) Fatalf(format string, args ...any) {
	r.message = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

// failureOf returns how the function has failed its test.
func failureOf(t *testing.T, fn func(testing.TB)) string {
	t.Helper()
	r := &recorder{TB: t}

	done := make(chan struct{})
	go func() {
		defer close(done)
		fn(r)
	}()
	<-done

	return r.message
}
