package move

import (
	"context"
	"errors"
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
	"github.com/clusterring/clusterring/services/rebalancer/feed"
	"github.com/clusterring/clusterring/services/rebalancer/work"
)

// moved is one case: the object, what happens before the move, and the result of the move.
type moved struct {
	shard    string
	drain    bool
	stale    bool
	prepare  func(a *api, id feed.ID)
	expected expected
}

func run(t *testing.T, gvr string, tc moved) *api {
	t.Helper()

	a := newAPI(t)

	var id feed.ID
	if gvr == "owner" {
		id = a.put(owners, ownerAtB(), tc.shard, tc.drain)
	} else {
		id = a.put(children, "child", tc.shard, tc.drain)
	}

	seen := a.seen(id)
	if a.job.Stale = tc.stale; tc.prepare != nil {
		tc.prepare(a, id)
	}

	a.expect(tc.expected, a.move(seen, target()))

	return a
}

// In TestMoveOfAMainObject, the object belongs to shard b.
func TestMoveOfAMainObject(t *testing.T) {
	name := ownerAtB()
	get, patch := "get configmaps "+name, "patch configmaps "+name
	fails := func(what string, err error) func(*api, feed.ID) {
		return func(a *api, _ feed.ID) { a.fails[what] = err }
	}
	is := func(next work.Phase) work.Outcome { return work.Outcome{Next: next} }
	unknown := work.Outcome{Next: work.Delayed, Stale: true}
	asked := []string{patch, "moved " + name + ": drain"}
	assigned := []string{patch, "moved " + name + ": assign"}

	for what, tc := range map[string]moved{
		"assigned":         {expected: expected{"b 10", is(work.InPlace), assigned}},
		"in place":         {shard: "b", expected: expected{"b 1", is(work.InPlace), nil}},
		"drained":          {shard: "a", expected: expected{"a 10 drain", is(work.Draining), asked}},
		"not released yet": {shard: "a", drain: true, expected: expected{"a 1 drain", is(work.Draining), nil}},
		"no longer to be given": {shard: "b", drain: true,
			expected: expected{"b 10", is(work.InPlace), []string{patch, "moved " + name + ": withdraw"}}},
		"no permit": {shard: "a", prepare: func(a *api, _ feed.ID) { a.job.Permit = "" },
			expected: expected{"a 1", work.Outcome{Next: work.Parked,
				Cause: work.PermitOf("a", schema.GroupResource{Resource: "configmaps"})}, nil}},
		"read, and in place": {stale: true, prepare: func(a *api, id feed.ID) { a.stored[id].Labels[shardKey] = "b" },
			expected: expected{"b 1", is(work.InPlace), []string{get}}},
		"read, and gone": {stale: true, prepare: func(a *api, id feed.ID) { delete(a.stored, id) },
			expected: expected{"-", is(work.InPlace), []string{get}}},
		"not read": {stale: true, prepare: fails("get configmaps", errors.New("etcd")),
			expected: expected{"-", unknown, []string{get}}},
		"read, and not served": {stale: true, prepare: fails("get configmaps", errNotServed),
			expected: expected{"-", unknown, []string{get}}},
		"gone": {prepare: func(a *api, id feed.ID) { delete(a.stored, id) },
			expected: expected{"-", work.Outcome{Next: work.InPlace, Stale: true}, []string{patch}}},
		"not served": {prepare: fails("patch configmaps", errNotServed),
			expected: expected{" 1", unknown, []string{patch}}},
		"a conflict": {prepare: func(a *api, id feed.ID) { a.stored[id].ResourceVersion = "2" },
			expected: expected{" 1", work.Outcome{Next: work.Delayed, Stale: true, Brief: true}, []string{patch}}},
		"no answer": {shard: "a", prepare: fails("patch configmaps", context.DeadlineExceeded),
			expected: expected{"a 1", unknown, []string{patch}}},
		"an unknown namespace": {prepare: fails("namespace", errors.New("not synced")),
			expected: expected{" 1", is(work.Delayed), nil}},
		"goes after others": {prepare: func(a *api, _ feed.ID) { a.job.Gathered.All = false },
			expected: expected{" 1", work.Outcome{Next: work.Parked, Cause: work.FollowersOf(types.UID("uid of " + name)),
				To: "b"}, nil}},
		"taken back": {prepare: admission(func(l map[string]string) { delete(l, shardKey) }),
			expected: expected{" 10", work.Outcome{Next: work.Delayed, Reason: "reverts the labels"}, assigned}},
		"put elsewhere": {prepare: admission(func(l map[string]string) { l[shardKey] = "a" }),
			expected: expected{"a 10", is(work.Due), assigned}},
		"its drain taken back": {shard: "a", prepare: admission(func(l map[string]string) { delete(l, drainKey) }),
			expected: expected{"a 10", work.Outcome{Next: work.Delayed, Reason: "reverts the labels"}, asked}},
		"released while drained": {shard: "a",
			prepare: admission(func(l map[string]string) { delete(l, drainKey); delete(l, shardKey) }), expected: expected{" 10",
				is(work.Due), asked}},
	} {
		t.Run(what, func(t *testing.T) { run(t, "owner", tc) })
	}
}

// The write of the shard label also writes since when the followers are there, and removes what an earlier handover has
// written.
func TestHandoverIsWritten(t *testing.T) {
	for what, handover := range map[string]contract.Handover{"nothing follows": {},
		"something does": {children.GroupResource(): "17"}} {
		t.Run(what, func(t *testing.T) {
			a := newAPI(t)
			a.job.Gathered.From = handover
			id := a.put(owners, ownerAtB(), "", false)
			key := contract.HandoverAnnotation(ring)
			metav1.SetMetaDataAnnotation(&a.stored[id].ObjectMeta, key, "earlier")

			out := a.move(a.seen(id), target())
			require.Equal(t, work.InPlace, out.Next)

			now, is := a.stored[id].Annotations[key]
			require.Equal(t, handover.String(), now)
			require.Equal(t, len(handover) > 0, is)
		})
	}
}

// A drain names the next shard if nothing follows the object.
func TestDrainNamesTheNextShard(t *testing.T) {
	for what, tc := range map[string]struct {
		parent bool
		value  string
	}{"alone": {false, "b"}, "with children": {true, contract.DrainValue}} {
		t.Run(what, func(t *testing.T) {
			a := newAPI(t)
			id := a.put(owners, ownerAtB(), "a", false)

			at := target()
			if !tc.parent {
				at.Set = alone()
			}

			out := a.move(a.seen(id), at)
			require.Equal(t, work.Draining, out.Next)
			require.Equal(t, tc.value, a.stored[id].Labels[drainKey])
		})
	}
}

func admission(change func(map[string]string)) func(*api, feed.ID) {
	return func(a *api, _ feed.ID) { a.admission = change }
}

// In TestMoveOfAControlledObject, the owner belongs to shard b.
func TestMoveOfAControlledObject(t *testing.T) {
	name := ownerAtB()
	owner := feed.ID{GVR: owners, Namespace: "n", Name: name}
	get, patch, assigned, see := "get configmaps "+name, "patch secrets child", "moved child: assign", "see "+name
	ownerAt := func(shard string, drain bool) func(*api, feed.ID) {
		return func(a *api, _ feed.ID) { a.put(owners, name, shard, drain) }
	}
	known := func(shard string) func(*api, feed.ID) {
		return func(a *api, _ feed.ID) {
			a.job.Follows = new(a.seen(a.put(owners, name, shard, false)))
		}
	}
	fails := func(what string, err error) func(*api, feed.ID) {
		return func(a *api, _ feed.ID) { a.fails[what] = err }
	}
	given := func(a *api, _ feed.ID) {
		known("")(a, feed.ID{})
		a.job.Given = true
	}
	waits := work.Outcome{Next: work.Parked, Cause: work.OwnerOf(owner)}
	settled := work.Outcome{Next: work.InPlace}

	for what, tc := range map[string]moved{
		"to its owner": {prepare: ownerAt("b", false),
			expected: expected{"b 10", settled, []string{get, patch, assigned}}},
		"to an owner out of its place": {prepare: ownerAt("a", false),
			expected: expected{"a 10", work.Outcome{Next: work.Due}, []string{get, patch, assigned, see}}},
		"there is with an owner out of place": {shard: "a", prepare: ownerAt("a", false),
			expected: expected{"a 1", waits, []string{get, see}}},
		"and its owner has no shard": {prepare: ownerAt("", false),
			expected: expected{" 1", waits, []string{get, see}}},
		"and its owner is being drained": {shard: "b", drain: true, prepare: ownerAt("a", true),
			expected: expected{"b 1 drain", waits, []string{get, see}}},
		"has a shard, its owner is on the move": {shard: "a", prepare: known("a"), expected: expected{"a 1", waits, nil}},
		"has none, and its owner neither":       {prepare: known(""), expected: expected{" 1", waits, nil}},
		"goes before its owner": {prepare: given,
			expected: expected{"b 10", settled, []string{patch, assigned}}},
		"leaves a shard before its owner comes": {shard: "a", prepare: given,
			expected: expected{"b 10", settled, []string{patch, assigned}}},
		"has none, its owner does": {prepare: known("a"),
			expected: expected{"a 10", work.Outcome{Next: work.Due}, []string{get, patch, assigned, see}}},
		"has no owner":                        {expected: expected{"b 10", settled, []string{get, patch, assigned}}},
		"has no owner, and stays where it is": {shard: "a", expected: expected{"a 1", settled, []string{get}}},
		"has an owner of the same name": {shard: "a",
			prepare: func(a *api, id feed.ID) {
				ownerAt("b", false)(a,
					id)
				a.stored[owner].UID = "another"
			}, expected: expected{"a 1", settled, []string{get}}},
		"its owner cannot be read": {prepare: fails("get configmaps", errors.New("etcd")),
			expected: expected{" 1", work.Outcome{Next: work.Delayed, Reason: "find the owner"}, []string{get}}},
		"its owner's resource is not served": {shard: "a", prepare: fails("get configmaps", errNotServed),
			expected: expected{"a 1", work.Outcome{Next: work.Delayed, Reason: "find the owner"}, []string{get}}},
	} {
		t.Run(what, func(t *testing.T) { run(t, "child", tc) })
	}
}

// In TestMoveFromADeadShard, the shard "dead" is not available, and may still work on its objects.
func TestMoveFromADeadShard(t *testing.T) {
	name := ownerAtB()
	lease, patch := "lease ", "patch configmaps "+name
	holds := func(holder string) func(*api, feed.ID) {
		return func(a *api, _ feed.ID) { a.leases = []coordinationv1.Lease{leaseOf("dead", holder)} }
	}
	blocked := func(retry time.Duration, reason string) work.Outcome {
		return work.Outcome{Next: work.Parked, Cause: work.HeldBy("dead"), RetryAfter: retry, Reason: reason}
	}
	taken := expected{" 10", work.Outcome{Next: work.Due},
		[]string{lease, "free dead", patch, "moved " + name + ": release"}}

	for what, tc := range map[string]moved{
		"its Lease is free": {prepare: holds(""), expected: taken},
		"it holds its Lease": {prepare: holds("dead"),
			expected: expected{"dead 1", blocked(time.Second, "holds its Lease"), []string{lease}}},
		"Lease cannot be read": {
			prepare: func(a *api, _ feed.ID) {
				a.fails["lease"] = apierrors.NewForbidden(owners.GroupResource(), "", nil)
			},
			expected: expected{"dead 1", blocked(askAgain, "confirm that shard dead"), []string{lease}},
		},
		"another one retries": {prepare: func(a *api, _ feed.ID) { a.job.Held = true },
			expected: expected{"dead 1", blocked(0, ""), nil}},
		"no answer to a write": {
			prepare:  func(a *api, id feed.ID) { holds("")(a, id); a.fails["patch configmaps"] = context.DeadlineExceeded },
			expected: expected{"dead 1", work.Outcome{Next: work.Delayed, Stale: true}, []string{lease, "free dead", patch}},
		},
	} {
		t.Run(what, func(t *testing.T) {
			tc.shard = "dead"
			a := run(t, "owner", tc)
			require.LessOrEqual(t, a.within, time.Second,
				"a write should not take longer than the shard certainly does not work")
		})
	}
}

// Objects of shards that may come back wait without any requests.
func TestMoveWaitsForShardsThatComeBack(t *testing.T) {
	a := newAPI(t)
	a.job.Grace, a.job.GraceReason = time.Minute, "others may follow"
	id := a.put(owners, ownerAtB(), "gone", false)

	out := a.move(a.seen(id), target())
	a.expect(expected{object: "gone 1", out: work.Outcome{
		Next: work.Parked, Cause: work.HeldBy("gone"), RetryAfter: time.Minute, Reason: "others may follow",
	}}, out)
}

// Objects that follow another one than when the job began may have to wait for others.
func TestMoveEndsIfItTurnsOutToFollowAnother(t *testing.T) {
	a := newAPI(t)
	id := a.put(children, "child", "", false)
	seen := a.seen(id)
	a.stored[id].OwnerReferences[0].UID = "another"
	a.job.Stale = true

	a.expect(expected{" 1", work.Outcome{Next: work.Due}, []string{"get secrets child"}}, a.move(seen, target()))
}

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
				require.Equal(t, work.InPlace, out.Next)

				written := a.stored[id].Annotations[contract.HandoverAnnotation(ring)]
				require.Equal(t, !tc.plain && !tc.alone, written != "")

				return
			}

			a.expect(expected{" 1", work.Outcome{
				Next: work.Parked, Cause: work.FollowersOf(types.UID("uid of " + id.Name)), To: "b", RetryAfter: tc.wait,
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
			want := expected{" 10", work.Outcome{Next: work.Due}, []string{
				"lease ", "free dead", "patch configmaps " + id.Name, "moved " + id.Name + ": release",
			}}

			if holdsOff {
				dead := leaseOf("dead", "")
				metav1.SetMetaDataAnnotation(&dead.ObjectMeta, contract.AnnotationHoldOff, "2s")
				at.View = membership.NewView(ring, []*coordinationv1.Lease{new(leaseOf("a", "a")), new(leaseOf("b", "b")), &dead},
					nil)
				want = expected{"dead 1", work.Outcome{
					Next: work.Parked, Cause: work.FollowersOf(types.UID("uid of " + id.Name)), To: "b",
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
				" 1", work.Outcome{Next: work.Delayed, Stale: true, Full: tc.full, Reason: "is invalid"},
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
