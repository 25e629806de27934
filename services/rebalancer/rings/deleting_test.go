package rings

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	testclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/rebalancer/engine"
	"github.com/clusterring/clusterring/services/rebalancer/work"
	"github.com/clusterring/clusterring/tools/testkit/ringtest"
)

func share(n int, of string) work.Share { return work.Share{Of: of, N: n} }

// A problem keeps the time of its begin until it ends.
func TestProblemsBegin(t *testing.T) {
	at := func(s int64) time.Time { return time.Unix(s, 0) }
	since := began(nil, at(1), []work.Share{share(1, "as")})
	since = began(since, at(2), []work.Share{share(1, "bs"), share(2, "as")})
	require.Equal(t, map[string]time.Time{"as": at(1), "bs": at(2)}, since)

	since = began(since, at(3), []work.Share{share(1, "bs")})
	require.Equal(t, map[string]time.Time{"bs": at(2)}, since)
}

// At each stage, the message says what is left, what the ring waits for, and what helps.
func TestMessageOfADeletedRing(t *testing.T) {
	const (
		rights = "; grant get, list, watch and patch on the ring's resources with a ClusterRole that has the label " +
			`sharding.timebertt.dev/aggregate-to-rebalancer: "true"`
		rbac = `configmaps "a" is forbidden: User "rebalancer" cannot patch resource "configmaps"`
	)

	one := []work.Share{share(1, "configmaps")}

	for name, c := range map[string]struct {
		is   situation
		want string
	}{
		"it begins": {situation{}, "it looks for objects that have its labels"},
		"shards work": {
			situation{report: engine.Report{Summary: work.Summary{
				Misplaced: 30, Draining: 12, Resources: []work.Share{share(40, "websites.example.com"), share(2, "ships.example.com")},
				Asked: []work.Share{share(7, "d"), share(3, "b"), share(1, "a"), share(1, "c")},
			}}},
			"objects with its labels, as far as is known: 42 (40 websites.example.com, 2 ships.example.com); shards were asked to release " +
				"7 at shard d, 3 at shard b, 1 at shard a, and 1 more, and do so when they have finished their work on them",
		},
		"a shard hangs": {
			situation{report: engine.Report{Summary: work.Summary{
				Draining: 1, Late: 1, LateExample: "configmaps x/y at shard a", Resources: one, Asked: []work.Share{share(1, "a")},
			}}},
			"objects with its labels, as far as is known: 1 (1 configmaps); shards were asked to release 1 at shard a, and do so when they have finished their " +
				"work on them; not released in time: 1, such as configmaps x/y at shard a: find out why that shard still works on it, or stop the shard",
		},
		"a shard is about to die": {
			situation{report: engine.Report{Summary: work.Summary{
				Unassigned: 1, Blocked: 1, BlockedExample: "configmaps x/y: shard a may still work on it", Resources: one,
			}}},
			"objects with its labels, as far as is known: 1 (1 configmaps); not to be released yet: 1, such as configmaps x/y: shard a may still work on it",
		},
		"it may not write": {
			situation{report: engine.Report{Summary: work.Summary{Misplaced: 1, Blocked: 1, BlockedExample: "configmaps x/a: " + rbac, Resources: one}}},
			"objects with its labels, as far as is known: 1 (1 configmaps); not to be released yet: 1, such as configmaps x/a: " + rbac + rights,
		},
		"of several resources": {
			situation{report: engine.Report{Summary: work.Summary{
				Problems:  []work.Share{share(9, "as"), share(4, "bs"), share(2, "cs"), share(1, "ds"), share(1, "es")},
				Misplaced: 17, Blocked: 17, BlockedExample: "as x/a: 503", Resources: one,
			}}, since: map[string]time.Time{"as": time.Unix(0, 0)}},
			"objects with its labels, as far as is known: 17 (1 configmaps); not to be released yet: 17, such as as x/a: 503 (9 of as, " +
				"since 1970-01-01T00:00:00Z; 4 of bs, since 0001-01-01T00:00:00Z; 2 of cs, since 0001-01-01T00:00:00Z; and 2 more resources)",
		},
		"it may not read": {
			situation{report: engine.Report{Failures: []string{rbac, "b", "c", "d", "e"}}},
			"it looks for objects that have its labels; its labels cannot be removed: " + rbac + "; b; c; and 2 more failures" + rights,
		},
		"a resource is not served": {
			situation{missing: "the API server does not serve x", report: engine.Report{Converged: true}},
			"no object that can be read has its labels; its labels may be on objects that cannot be read: the API server does not serve x",
		},
		"it is invalid": {
			situation{invalid: errors.New("spec.namespaceSelector: no")},
			"it looks for objects that have its labels; spec.namespaceSelector: no (it selects nothing, so that all labels are removed)",
		},
	} {
		c.is.deleting = true
		require.Equal(t, "the ring is being deleted: "+c.want, assigned(c.is).Message, name)
	}
}

// However much a ring waits for, the message stays readable, and valid.
func TestMessageOfADeletedRingIsBounded(t *testing.T) {
	long := strings.Repeat("ä", 4000)

	var (
		many  []work.Share
		texts []string
	)

	for range 500 {
		many, texts = append(many, share(1, strings.Repeat("x", 63))), append(texts, "forbidden: User "+long)
	}

	message := assigned(situation{
		deleting: true, missing: long, invalid: errors.New(long),
		report: engine.Report{Failures: texts, Summary: work.Summary{
			Misplaced: 500, Late: 1, LateExample: "x", Blocked: 1, BlockedExample: long, Resources: many, Asked: many,
		}},
	}).Message
	require.Less(t, len(message), 5000)
	require.Equal(t, message, strings.ToValidUTF8(message, "?"))
}

// While a ring is being deleted, its status says what is left, at most once a second.
func TestMessageOfADeletedRingFollowsItsObjects(t *testing.T) {
	w := ringtest.New(t, clusterRings)
	w.Join("a", "b")

	var all []client.Object

	for _, shard := range []string{"a", "b"} {
		for _, name := range namesOf(w, shard, 2) {
			all = append(all, w.Main(name, shard))
		}
	}

	s := newStepped(w, interceptor.Funcs{})
	now := testclock.NewFakePassiveClock(time.Unix(1_000_000_000, 0))
	s.status.Clock = now
	s.settle()
	require.NoError(t, w.Client.Delete(t.Context(), w.Ring))

	reconcile := func() {
		t.Helper()

		_, err := s.reconcileOnce()
		require.NoError(t, err)
	}
	reconcile()
	w.Eventually(ringtest.Placed{Shard: "a", Drain: true}, all[:2]...)
	w.Eventually(ringtest.Placed{Shard: "b", Drain: true}, all[2:]...)

	written := ""

	for n := len(all); n > 0; n-- {
		atA := min(2, max(0, n-2)) // those of a are released first
		require.Eventually(t, func() bool {
			r := s.fleet.engine(w.Ring.Name, w.Ring.LabelKeys()).Report()
			return r.Draining == n && r.Misplaced == 0
		}, 20*time.Second, time.Millisecond)

		if written != "" {
			now.SetTime(now.Now().Add(countsEvery - time.Millisecond))
			reconcile()
			require.Equal(t, written, w.Assigned(v1alpha1.ReasonDeleting).Message, "it is too early to write again")
		}

		now.SetTime(now.Now().Add(countsEvery))
		reconcile()

		written = w.Assigned(v1alpha1.ReasonDeleting).Message
		require.Contains(t, written, fmt.Sprintf("objects with its labels, as far as is known: %d (%d configmaps); shards were asked to release ", n, n))
		require.Equal(t, atA > 0, strings.Contains(written, fmt.Sprintf("%d at shard a", atA)), written)
		w.Acknowledge(all[len(all)-n])
	}

	require.Eventually(t, func() bool {
		now.SetTime(now.Now().Add(countsEvery))
		reconcile()

		return apierrors.IsNotFound(w.Client.Get(t.Context(), client.ObjectKeyFromObject(w.Ring), &v1alpha1.ClusterRing{}))
	}, 20*time.Second, 10*time.Millisecond, "the ring should disappear")
}
