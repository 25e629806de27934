package move

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/services/internal/membership"
	"github.com/clusterring/clusterring/services/rebalancer/work"
)

// An object stays behind the last of those that follow it if its next shard cannot know, or ignores, what to wait for.
func TestObjectStaysBehindWhatFollowsIt(t *testing.T) {
	for what, tc := range map[string]struct {
		alone, holdsOff, plain bool
		ago, wait              time.Duration
	}{
		"the next shard compares its caches":     {holdsOff: true},
		"it does not":                            {wait: 250 * time.Millisecond},
		"it does not, and some time has passed":  {ago: 100 * time.Millisecond, wait: 150 * time.Millisecond},
		"it does not, and the time has passed":   {ago: 250 * time.Millisecond},
		"it does not, and nothing follows":       {alone: true},
		"the annotation is full":                 {holdsOff: true, plain: true, ago: time.Second, wait: time.Second},
		"it is full, and the time has passed":    {holdsOff: true, plain: true, ago: 2 * time.Second},
		"it is full for a shard that never asks": {plain: true, ago: time.Second, wait: time.Second},
		"it is full, and nothing follows":        {alone: true, plain: true},
	} {
		t.Run(what, func(t *testing.T) {
			a := newAPI(t)
			if !tc.alone {
				a.job.Gathered.From = contract.Handover{children.GroupResource(): "17"}
			}

			id := a.put(owners, ownerAtB(), "", false)
			a.job.Plain, a.job.Gathered.Since = tc.plain, start.Add(time.Hour-tc.ago)

			at := target()
			if tc.holdsOff {
				at.View = holdingOff("a", "b")
			}

			out := a.move(a.seen(id), at)
			if tc.wait == 0 {
				require.Equal(t, work.SeenInPlace, out.Event)

				written := a.stored[id].Annotations[contract.HandoverAnnotation(ring)]
				require.Equal(t, !tc.plain && !tc.alone, written != "")

				return
			}

			a.expect(expected{" 1", work.Outcome{
				Event: work.Blocked, Cause: work.FollowersOf(types.UID("uid of " + id.Name)), To: "b", RetryAfter: tc.wait,
			}, nil}, out)
		})
	}
}

// An object leaves a dead shard before what follows it, unless the shard would hold off if it came back.
func TestObjectLeavesADeadShardFirst(t *testing.T) {
	for what, holdsOff := range map[string]bool{"the shard holds off": true, "the shard works at once": false} {
		t.Run(what, func(t *testing.T) {
			a := newAPI(t)
			a.leases, a.job.Gathered.All = []coordinationv1.Lease{leaseOf("dead", "")}, false
			id := a.put(owners, ownerAtB(), "dead", false)
			at := target()
			want := expected{" 10", work.Outcome{Event: work.Woken}, []string{
				"lease ", "free dead", "patch configmaps " + id.Name, "moved " + id.Name + ": release",
			}}

			if holdsOff {
				dead := leaseOf("dead", "")
				metav1.SetMetaDataAnnotation(&dead.ObjectMeta, contract.AnnotationHoldOff, "2s")
				at.View = membership.NewView(ring, []*coordinationv1.Lease{new(leaseOf("a", "a")), new(leaseOf("b", "b")), &dead}, nil)
				want = expected{"dead 1", work.Outcome{
					Event: work.Blocked, Cause: work.FollowersOf(types.UID("uid of " + id.Name)), To: "b",
				}, []string{"lease ", "free dead"}}
			}

			a.expect(want, a.move(a.seen(id), at))
		})
	}
}

// A refusal because of the size of the annotations is reported, if the move has added one.
func TestFullAnnotationsAreReported(t *testing.T) {
	annotations, handover := field.NewPath("metadata", "annotations"), contract.Handover{children.GroupResource(): "17"}
	tooLong := field.TooLong(annotations, "", 262144)

	for what, tc := range map[string]struct {
		handover contract.Handover
		err      *field.Error
		full     bool
	}{
		"full":                      {handover, tooLong, true},
		"full of the user's":        {nil, tooLong, false},
		"something else is long":    {handover, field.TooLong(field.NewPath("spec"), "", 1), false},
		"something else is refused": {handover, field.Invalid(annotations, "", ""), false},
	} {
		t.Run(what, func(t *testing.T) {
			a := newAPI(t)
			a.job.Gathered.From = tc.handover
			refused := apierrors.NewInvalid(schema.GroupKind{Kind: "ConfigMap"}, "", field.ErrorList{tc.err})
			a.fails["patch configmaps"] = refused
			id := a.put(owners, ownerAtB(), "", false)

			out := a.move(a.seen(id), target())
			a.expect(expected{
				" 1", work.Outcome{Event: work.Failed, Stale: true, Full: tc.full, Reason: "is invalid"},
				[]string{"patch configmaps " + id.Name},
			}, out)
		})
	}
}

func holdingOff(shards ...string) *membership.View {
	leases := make([]*coordinationv1.Lease, len(shards))
	for i, name := range shards {
		leases[i] = new(leaseOf(name, name))
		metav1.SetMetaDataAnnotation(&leases[i].ObjectMeta, contract.AnnotationHoldOff, "2s")
	}

	return membership.NewView(ring, leases, nil)
}
