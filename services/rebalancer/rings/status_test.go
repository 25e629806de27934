package rings

import (
	"errors"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/go-logr/logr"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/clusterring"
	"github.com/clusterring/clusterring/services/internal/resources"
	"github.com/clusterring/clusterring/services/rebalancer/engine"
	"github.com/clusterring/clusterring/services/rebalancer/work"
)

func share(n int, of string) work.Share { return work.Share{Of: of, N: n} }

// misplaced returns the report of three Pods at the wrong shard, which have problems.
func misplaced(problem func(*work.Summary)) engine.Report {
	s := work.Summary{Misplaced: 3, Resources: []work.Share{share(3, "pods")}, Problems: []work.Share{share(3, "pods")}}
	problem(&s)

	return engine.Report{Summary: s}
}

func isForbidden(s *work.Summary) { s.Blocked, s.BlockedExample = 3, "pods x/a: forbidden: User" }

func isFailing(s *work.Summary) {
	isForbidden(s)
	s.Failing, s.FailingExample = 3, s.BlockedExample
}

func isHanging(s *work.Summary) {
	isFailing(s)

	for _, name := range []string{"as", "bs", "cs", "ds", "es"} {
		s.Hanging = append(s.Hanging, work.Hanging{
			Resource: schema.GroupResource{Resource: name}, Since: time.Unix(0, 0), Reason: "no answer", Objects: 1,
		})
	}
}

func isLate(s *work.Summary) {
	s.Asked = []work.Share{share(7, "d"), share(3, "b"), share(1, "a"), share(1, "c")}
	s.Late, s.LateExample = 13, "pods x/y at shard a"
	s.Silent = []work.Silent{{
		Shard: "b", Resource: schema.GroupResource{Resource: "pods"}, Objects: 12, Since: time.Unix(0, 0),
	}}
}

// The message says how many objects are left, what keeps them, and what helps. For a ring that is being deleted, it
// says all of that; for another one, what comes first.
func TestConditionAssigned(t *testing.T) {
	const (
		looks = "looking for objects that are out of place"
		moves = "0 objects unassigned, 3 misplaced, 0 draining (3 pods); "
		stays = "3 cannot move yet, such as pods x/a: forbidden: User (3 of pods, since 1970-01-01T00:00:00Z)"
		grant = "; grant get, list, watch and patch on the ring's resources with a ClusterRole that has the label " +
			`sharding.timebertt.dev/aggregate-to-rebalancer: "true"`
		fails = "requests for 3 have failed for seconds, such as pods x/a: forbidden: User (3 of pods, since " +
			"1970-01-01T00:00:00Z)" + grant
		asked = "shards were asked to release 7 at shard d, 3 at shard b, 1 at shard a, and 1 more, and do so when they " +
			"have finished their work on them; "
		deaf = "shard b has acknowledged no drain of pods since 1970-01-01T00:00:00Z (12 objects): it may run no " +
			"controller for them, or may not patch them; it is asked for one more at a time; 1 were not released in time, such as pods " +
			"x/y at shard a: find out why that shard still works on it, or stop the shard"
		hangs = "writes of as have not been answered since 00:00:00: no answer; 1 objects wait; " +
			"writes of bs have not been answered since 00:00:00: no answer; 1 objects wait; " +
			"writes of cs have not been answered since 00:00:00: no answer; 1 objects wait; and 2 more"

		failed, missing, drains = v1alpha1.ReasonAssignmentFailed, v1alpha1.ReasonResourcesMissing, v1alpha1.ReasonDrainsLate
	)

	unreadable := engine.Report{Failures: []string{"forbidden: User", "b", "c", "d", "e"}}

	for _, tc := range []struct {
		is              situation
		reason, message string
		deleted, event  string // the message, and what an event reports, if the ring is being deleted
	}{
		{situation{}, v1alpha1.ReasonMoving, looks, looks, ""},
		{situation{Report: misplaced(isForbidden)}, v1alpha1.ReasonMoving, moves + stays, moves + stays, ""},
		{situation{Report: misplaced(isFailing)}, failed, moves + fails, moves + fails, failed},
		{situation{Report: misplaced(isHanging)}, failed, moves + hangs, moves + hangs + "; " + fails, failed + " " + failed},
		{situation{Report: misplaced(isLate)}, drains, moves + asked + deaf, moves + asked + deaf, drains},
		{situation{Report: unreadable}, failed, "forbidden: User; b; c; and 2 more" + grant,
			"forbidden: User; b; c; and 2 more" + grant, failed},
		{situation{missing: "x is missing"}, missing, "x is missing", "x is missing", missing},
		{situation{unwatched: "x is unwatched"}, v1alpha1.ReasonNamespacesNotWatched, "x is unwatched", looks, ""},
		{situation{invalid: errors.New("no")}, "", "no (it selects nothing, so that all labels are removed)",
			"no (it selects nothing, so that all labels are removed)", ""},
	} {
		tc.is.shards, tc.is.since = 1, map[string]time.Time{"pods": time.Unix(0, 0)}
		c, event := assigned(tc.is)
		require.Equal(t, []string{tc.reason, tc.message}, []string{c.Reason, c.Message})
		require.Equal(t, tc.reason == failed, event != "", "of shards that are late, the engine reports each drain")

		tc.is.shards, tc.is.deleting = 0, true
		c, event = assigned(tc.is)
		require.Equal(t, []string{v1alpha1.ReasonDeleting, "the ring is being deleted: " + tc.deleted},
			[]string{c.Reason, c.Message})
		require.Equal(t, tc.event, strings.TrimSpace(event))
	}

	c, _ := assigned(situation{shards: 1, Report: engine.Report{Converged: true}})
	require.Equal(t, v1alpha1.ReasonAllAssigned, c.Reason)

	c, _ = assigned(situation{Report: engine.Report{Converged: true}})
	require.Equal(t, v1alpha1.ReasonNoShards, c.Reason)
}

// However much a ring waits for, the message stays readable, and valid.
func TestMessageIsBounded(t *testing.T) {
	long := strings.Repeat("ä", 4000)

	var (
		many  []work.Share
		texts []string
	)

	for range 500 {
		many, texts = append(many, share(1, strings.Repeat("x", 63))), append(texts, "forbidden: User "+long)
	}

	c, _ := assigned(situation{
		deleting: true, missing: long, invalid: errors.New(long),
		Report: engine.Report{Failures: texts, Summary: work.Summary{
			Misplaced: 500, Late: 1, LateExample: "x", Resources: many, Asked: many, Problems: many,
			Blocked: 2, BlockedExample: long, Failing: 1, FailingExample: long,
		}},
	})
	require.Less(t, len(c.Message), 8000)
	require.True(t, utf8.ValidString(c.Message))

	note := clip(c.Message, maxNote)
	require.LessOrEqual(t, len(note), 1024, "more would not fit into an event")
	require.True(t, utf8.ValidString(note))
}

// A problem keeps the time of its begin until it ends.
func TestProblemsBegin(t *testing.T) {
	at := func(s int64) time.Time { return time.Unix(s, 0) }
	since := began(nil, at(1), []work.Share{share(1, "as")})
	since = began(since, at(2), []work.Share{share(1, "bs"), share(2, "as")})
	require.Equal(t, map[string]time.Time{"as": at(1), "bs": at(2)}, since)

	since = began(since, at(3), []work.Share{share(1, "bs")})
	require.Equal(t, map[string]time.Time{"bs": at(2)}, since)
}

// A problem is announced once, until it is solved.
func TestWhatBeginsToFailIsToldOnce(t *testing.T) {
	recorder := events.NewFakeRecorder(100)
	r := &Reconciler{Config: Config{Tenure: &clusterring.Tenure{Recorder: recorder}}}
	e := &running{}

	for _, problem := range []string{"", "one", "one", "another", "", "one", "one"} {
		c, _ := assigned(situation{})
		r.announce(e, &v1alpha1.ClusterRing{}, c, problem)
	}

	require.Len(t, recorder.Events, 3)
}

// A ring that the API server once accepted may have an invalid selector. Nothing changes because of that, and the ring
// can be deleted.
func TestDeletionNeedsNoSelector(t *testing.T) {
	ring, known := &v1alpha1.ClusterRing{}, resources.NewResolver(nil, clock.RealClock{}, logr.Discard())
	ring.Spec.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"team": "a b"}}

	_, err := targetOf(ring, known, nil)
	require.ErrorContains(t, err, "spec.namespaceSelector")

	ring.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)}

	target, err := targetOf(ring, known, nil)
	require.NoError(t, err)
	require.ErrorContains(t, target.invalid, "spec.namespaceSelector")
	require.False(t, target.Selector.Matches(labels.Set{"team": "a b"}))
}
