package kit

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
)

// TestRestores lets another controller undo each write at once, for ten minutes.
func TestRestores(t *testing.T) {
	clk := clocktesting.NewFakePassiveClock(time.Unix(0, 0))
	r := NewRestores(clk)
	writes := 0
	write := func(wanted any) error {
		return r.Write("x", wanted, "meddler", func() error {
			writes++
			return nil
		})
	}

	require.NoError(t, write("a"))

	var minutes []int

	for minute := 1; minute <= 10; minute++ {
		before := writes

		for clk.Now().Before(time.Unix(int64(60*minute), 0)) {
			result, err := Later(write("a"))
			require.NoError(t, err)
			clk.SetTime(clk.Now().Add(max(result.RequeueAfter, time.Millisecond)))
		}

		minutes = append(minutes, writes-before)
	}

	require.Equal(t, []int{6, 1, 1, 1, 1, 1, 1, 1, 1, 1}, minutes)

	what, until := r.Lately("x")
	require.Equal(t, "meddler", what)
	require.Positive(t, until)

	t.Run("another state is written at once, and counts anew", func(t *testing.T) {
		require.NoError(t, write("a"))
		require.ErrorContains(t, write("a"), "meddler")
		require.NoError(t, write("b"))
		require.NoError(t, write("c"))

		what, _ := r.Lately("x")
		require.Empty(t, what)
	})

	t.Run("so is any after a long calm", func(t *testing.T) {
		clk.SetTime(clk.Now().Add(restoresCalm + time.Second))
		require.NoError(t, write("c"))

		var contested *ContestedError

		require.ErrorAs(t, write("c"), &contested)
		require.Equal(t, firstRestore, contested.RetryAfter)
	})

	t.Run("a write that failed does not count", func(t *testing.T) {
		failed := errors.New("failed")
		for range 3 {
			require.ErrorIs(t, r.Write("y", 1, "", func() error { return failed }), failed)
		}

		require.False(t, r.Same("y", 1))
	})
}

func TestChanged(t *testing.T) {
	entry := func(manager string, second int64, fields string) metav1.ManagedFieldsEntry {
		return metav1.ManagedFieldsEntry{Manager: manager, Time: new(metav1.Unix(second, 0)),
			FieldsV1: metav1.NewFieldsV1(fields)}
	}
	have := &corev1.Pod{Spec: corev1.PodSpec{
		NodeName: "n", Containers: []corev1.Container{{Name: "a", Image: "theirs"}, {Name: "b", Image: "same"}, {Name: "c"}},
	}}
	have.Name = "pod"
	have.ManagedFields = []metav1.ManagedFieldsEntry{
		entry("ours", 9, `{"f:spec":{"f:containers":{"k:{\"name\":\"a\"}":{"f:image":{}}}}}`),
		entry("kubectl-edit", 2, `{"f:spec":{"f:containers":{"k:{\"name\":\"a\"}":{"f:image":{}}}}}`),
		entry("older", 1, `{"f:spec":{"f:containers":{"k:{\"name\":\"a\"}":{"f:image":{}}}}}`),
		entry("adder", 3, `{"f:spec":{"f:containers":{}}}`),
	}
	want := have.DeepCopy()
	want.Spec.Containers = []corev1.Container{{Name: "a", Image: "ours"}, {Name: "b", Image: "same"}}

	who, what := Changed(have, want, "Pod", "ours")
	require.Equal(t, "adder, kubectl-edit", who)
	require.Equal(t, "spec.containers[a].image, spec.containers[c] of Pod pod", what)

	have.ManagedFields = nil
	who, _ = Changed(have, want, "Pod", "ours")
	require.Equal(t, "somebody", who)
}

// TestLogs shows both formats, and what is not worth a line.
func TestLogs(t *testing.T) {
	for format, want := range map[string]string{
		formatJSON: `{"level":"info","ts":"*","logger":"assigner","msg":"Assigned","shard":"a"}` + "\n" +
			`{"level":"error","ts":"*","logger":"assigner.leaderelection","msg":"Failed","error":"no route"}` + "\n",
		formatText: "*\tINFO\tassigner\tAssigned\t{\"shard\": \"a\"}\n" +
			"*\tERROR\tassigner.leaderelection\tFailed\t{\"error\": \"no route\"}\n",
	} {
		var out bytes.Buffer

		log := newLogger(&Options{LogLevel: "info", LogFormat: format}, "assigner", &out)
		log.Info("Assigned", "shard", "a")
		log.V(1).Info("Only at level debug")
		election := log.WithName("leaderelection")
		election.Error(errors.New("no route"), "Failed")
		election.Error(fmt.Errorf("get: %w", context.Canceled), "Cancelled by the stop")
		log.WithValues("n", 1).Error(errors.New("leader election lost"), "error received after stop sequence was engaged")
		require.Regexp(t, "^"+strings.ReplaceAll(regexp.QuoteMeta(want), `\*`, `[-0-9T:.Z]+`)+"$", out.String())
	}
}

// TestDefaultNamespaceSelector: what a service knows of a ring contains the default of its flag, unless the ring has a
// selector.
func TestDefaultNamespaceSelector(t *testing.T) {
	none, err := parseNamespaceSelector("")
	require.NoError(t, err)

	given, err := parseNamespaceSelector("sharding=enabled,kubernetes.io/metadata.name notin (a,b)")
	require.NoError(t, err)
	require.Equal(t, &metav1.LabelSelector{
		MatchLabels: map[string]string{"sharding": "enabled"},
		MatchExpressions: []metav1.LabelSelectorRequirement{{
			Key: "kubernetes.io/metadata.name", Operator: metav1.LabelSelectorOpNotIn, Values: []string{"a", "b"},
		}},
	}, given)

	own := &metav1.LabelSelector{MatchLabels: map[string]string{"team": "blue"}}
	for _, tc := range []struct{ flag, ring, want *metav1.LabelSelector }{
		{none, nil, nil}, {none, own, own}, {given, nil, given}, {given, own, own},
	} {
		ring := &v1alpha1.ClusterRing{Spec: v1alpha1.ClusterRingSpec{NamespaceSelector: tc.ring}}
		ring.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "kubectl"}}

		known, err := selectNamespaces(tc.flag)(ring)
		require.NoError(t, err)
		require.Equal(t, tc.want, known.(*v1alpha1.ClusterRing).Spec.NamespaceSelector)
		require.Empty(t, ring.ManagedFields)
	}
}
