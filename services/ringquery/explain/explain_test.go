package explain

import (
	"context"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"gotest.tools/v3/golden"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	pb "github.com/clusterring/clusterring/proto/clusterring/diagnostics/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/lease"
	"github.com/clusterring/clusterring/services/internal/resources"
	"github.com/clusterring/clusterring/services/ringquery/rings"
)

// about returns the facts about an object in the only ring.
func about(r Ring, o Object) *Facts {
	r.follow(o)

	return &Facts{
		Now: now, Object: o, Rings: []Ring{r}, Known: keysOf(r.Name),
		NamespaceLabels: map[string]string{"kubernetes.io/metadata.name": "default"},
	}
}

// between returns the controllers of ConfigMaps between the object and its owner. One has no controller.
type between struct{ owner string }

func (b between) ControllerOf(
	_ context.Context, of resources.Owner,
) (controller *metav1.OwnerReference, found bool, err error) {
	if of.Name == "alone" {
		return nil, true, nil
	}

	owner := &Object{Meta: &metav1.PartialObjectMetadata{}}
	owner.controlledBy(website, b.owner)

	return &owner.Meta.OwnerReferences[0], true, nil
}

// LabelsOf returns the tenant of the owner, which belongs to shard-b, unless there is no owner.
func (b between) LabelsOf(_ context.Context, of resources.Owner) (labels resources.Labels, found bool, err error) {
	r := ringOf("example", alive("shard-a"), alive("shard-b"))
	all := map[string]string{tenant: r.tenantOf("shard-b")}

	return resources.Labels{All: all, Selected: of.Resource.Selects(all)}, b.owner != "", nil
}

// tenant is the label that is the key in some cases.
const tenant = "example.com/tenant"

// example is a case: the labels of the object, and what is different otherwise.
type example struct {
	labels  map[string]string
	changes []change
}

// change changes the facts about an object in one ring.
type change func(r *Ring, o *Object, f *Facts)

func with(labels map[string]string, changes ...change) example { return example{labels, changes} }

func (e example) facts(f *Facts) {
	f.Object.Meta.Labels = maps.Clone(e.labels)
	for _, change := range e.changes {
		change(&f.Rings[0], &f.Object, f)
	}
}

// inRing and inObject change only one of them.
func inRing(how func(*Ring)) change     { return func(r *Ring, _ *Object, _ *Facts) { how(r) } }
func inObject(how func(*Object)) change { return func(_ *Ring, o *Object, _ *Facts) { how(o) } }

// leases replaces the Leases, and fails adds a condition that is False.
func leases(all ...holding) change { return inRing(func(r *Ring) { r.has(all...) }) }
func fails(kind, reason, message string) change {
	return inRing(func(r *Ring) { r.fails(kind, reason, message) })
}

// wrote is a manager that wrote a label of the object some time ago.
func wrote(manager, label string, ago time.Duration) change {
	return inObject(func(o *Object) { o.wrote(manager, label, ago) })
}

// labelled is another label of the object, and ownerAt are the labels of its owner.
func labelled(label, value string) change {
	return inObject(func(o *Object) { metav1.SetMetaDataLabel(&o.Meta.ObjectMeta, label, value) })
}
func ownerAt(labels map[string]string) change {
	return inRing(func(r *Ring) { r.Owner.Labels = labels })
}

// created is the age of the object.
func created(age time.Duration) change {
	return inObject(func(o *Object) { o.Meta.CreationTimestamp = metav1.NewTime(now.Add(-age)) })
}

// namespace is what is known of the namespace of the object.
func namespace(coverage rings.Coverage, labels map[string]string) change {
	return func(r *Ring, _ *Object, f *Facts) { r.Coverage, f.NamespaceLabels = coverage, labels }
}

var (
	ourLabel, ourDrain = contract.ShardLabel("example"), contract.DrainLabel("example")
	byDefault          = map[string]string{"kubernetes.io/metadata.name": "default"}
	// twice and foreign are the Leases of another process with the name shard-a, and of nobody of that name.
	twice   = holding{namespace: "other", name: "shard-a", holder: "shard-a", state: lease.Ready}
	foreign = holding{namespace: "ctl", name: "shard-a", holder: "somebody", state: lease.Dead}
	// unwatched is what the rebalancer reports of a namespace that no shard watches.
	unwatched = fails(v1alpha1.ConditionAssigned, v1alpha1.ReasonNamespacesNotWatched,
		"nobody works on objects in the namespaces default")
	blue = inRing(func(r *Ring) {
		r.Spec.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"team": "blue"}}
	})
	deleted   = inRing(func(r *Ring) { r.DeletionTimestamp = new(metav1.NewTime(now.Add(-5 * time.Minute))) })
	selecting = inRing((*Ring).selecting)
	notListed = inRing(func(r *Ring) { r.Subject.Role = "" })
	orphan    = inObject(func(o *Object) { o.Meta.OwnerReferences = nil })
)

// mains are the cases of main objects; each begins with shard-a and shard-b, and an object that belongs to shard-b.
var mains = map[string]example{
	"assigned": with(at("shard-b")),
	"assigned, while others are on their way": with(at("shard-b"), fails(v1alpha1.ConditionAssigned,
		v1alpha1.ReasonMoving, "0 objects without a shard, 7 at another shard, 3 asked for")),
	"namespace not selected, while others are on their way": with(nil, namespace(rings.NotCovered, byDefault),
		fails(v1alpha1.ConditionAssigned, v1alpha1.ReasonMoving, "7 at another shard")),
	"assigned, after what follows it": with(at("shard-b"), inObject(func(o *Object) {
		o.Meta.Annotations =
			map[string]string{contract.HandoverAnnotation("example"): `{"secrets":"1212","configmaps":"1300"}`}
	})),
	"assigned, in a slot": with(at("shard-b"), inRing(func(r *Ring) {
		r.Status.Holders = []v1alpha1.ShardHolder{{Shard: "shard-a", Pod: "operator-8f-1"},
			{Shard: "shard-b", Pod: "operator-8f-2"}}
	})),
	"unassigned":               with(nil),
	"unassigned, just created": with(nil, created(2*time.Second)),
	"unassigned, rebalancer and webhook in trouble": with(nil,
		fails(v1alpha1.ConditionAssigned, v1alpha1.ReasonAssignmentFailed, "websites.example.dev is forbidden"),
		fails(v1alpha1.ConditionWebhookRegistered, v1alpha1.ReasonRegistrationFailed, "no such Secret"),
		fails(v1alpha1.ConditionReady, v1alpha1.ReasonReconciliationFailed, "Assigned is False")),
	"assigned, fenced": with(at("shard-b"), inRing(func(r *Ring) {
		r.says(condition(v1alpha1.ConditionFenced, metav1.ConditionTrue, v1alpha1.ReasonFenceEnforced, "refused"))
	})),
	"assigned, audited": with(at("shard-b"),
		fails(v1alpha1.ConditionFenced, v1alpha1.ReasonFenceAudited, "writes are reported")),
	"assigned, fence in trouble": with(at("shard-b"),
		fails(v1alpha1.ConditionFenced, v1alpha1.ReasonFenceFailed, "the policy does not exist"),
		fails(v1alpha1.ConditionReady, v1alpha1.ReasonReconciliationFailed, "Fenced is False")),
	"unassigned, rebalancer never seen": with(nil, inRing(func(r *Ring) { r.Status.Conditions = nil })),
	"unassigned, ring not ready for another reason": with(nil, inRing(func(r *Ring) {
		r.says(condition(v1alpha1.ConditionReady, metav1.ConditionUnknown, "SomethingNew", ""))
	})),
	"no shard":                    with(nil, leases()),
	"no shard available":          with(at("shard-a"), leases(taken("shard-a"), released("shard-b"))),
	"shard released":              with(at("shard-a"), leases(released("shard-a"), alive("shard-b"))),
	"shard taken, drain label":    with(drained(at("shard-a")), leases(taken("shard-a"), alive("shard-b"))),
	"shard held by somebody else": with(at("shard-a"), leases(foreign, alive("shard-b"))),
	"shard without a Lease":       with(at("shard-x"), wrote("kubectl-label", ourLabel, 10*time.Minute)),
	"shard without a Lease, label from the rebalancer": with(at("shard-x"),
		wrote("rebalancer", ourLabel, 10*time.Minute)),
	"shard held twice": with(at("shard-a"), leases(alive("shard-a"), twice, alive("shard-b"))),
	"shard expired":    with(at("shard-b"), leases(alive("shard-a"), silent("shard-b", 18*time.Second))),
	"shard expired, as the lease monitor says": with(at("shard-b"), leases(alive("shard-a"),
		holding{namespace: "ctl", name: "shard-b", holder: "shard-b", state: lease.Expired, age: 3 * time.Second,
			atLeast: true})),
	"shard expired, as the lease monitor says no more": with(at("shard-b"), leases(alive("shard-a"),
		holding{namespace: "ctl", name: "shard-b", holder: "shard-b", state: lease.Expired, age: 3 * time.Second})),
	"shard uncertain": with(at("shard-b"), leases(alive("shard-a"), silent("shard-b", 31*time.Second))),
	"shard uncertain, lease monitor cannot take its Lease": with(at("shard-b"),
		leases(alive("shard-a"), silent("shard-b", 10*time.Minute)),
		fails(v1alpha1.ConditionShardsAvailable, v1alpha1.ReasonLeasesNotTaken, "shard ctl/shard-b: refused"),
		fails(v1alpha1.ConditionReady, v1alpha1.ReasonReconciliationFailed,
			"ShardsAvailable is False (LeasesNotTaken): shard ctl/shard-b: refused")),
	"drain pending":                          with(drained(at("shard-a")), wrote("rebalancer", ourDrain, 10*time.Second)),
	"drain pending, since when is not known": with(drained(at("shard-a"))),
	"drain pending, to a shard that is no longer the one": with(drained(at("shard-a")),
		labelled(ourDrain, "shard-c"), wrote("rebalancer", ourDrain, 10*time.Second)),
	"drain late": with(drained(at("shard-a")), wrote("rebalancer", ourDrain, time.Minute),
		fails(v1alpha1.ConditionAssigned, v1alpha1.ReasonDrainsLate, "1 were not given up in time")),
	"drain unwanted": with(drained(at("shard-b"))),
	"misplaced, rebalancer on its way": with(at("shard-a"), fails(v1alpha1.ConditionAssigned, v1alpha1.ReasonMoving,
		"5 at another shard")),
	"misplaced, after the rebalancer has looked": with(at("shard-a"), wrote("kubectl-edit", ourLabel, 10*time.Minute),
		inRing(func(r *Ring) {
			r.Status.Assignment = &v1alpha1.AssignmentStatus{Fingerprint: r.View.Fingerprint()}
		})),
	"at another shard, paused": with(at("shard-a"), inRing(func(r *Ring) { r.Spec.Paused = true }),
		leases(alive("shard-a"), alive("shard-b"))),
	"misplaced, shard expired": with(at("shard-a"), leases(silent("shard-a", 20*time.Second), alive("shard-b"))),
	"misplaced, shard stops":   with(at("shard-a"), leases(stopping("shard-a"), alive("shard-b"))),
	"misplaced, shard stands by": with(at("shard-a"), inRing(func(r *Ring) { r.Spec.ActiveShards = new(int32(1)) }),
		leases(alive("shard-a"), alive("shard-b"))),
	"the only shard stops": with(at("shard-a"), leases(stopping("shard-a"))),
	"namespace not selected": with(nil, blue, namespace(rings.NotCovered,
		map[string]string{"kubernetes.io/metadata.name": "default", "team": "red"})),
	"namespace not selected, by default": with(nil, namespace(rings.NotCovered, byDefault)),
	"ring deleting":                      with(nil, deleted),
	"ring deleting, draining": with(drained(at("shard-a")), deleted,
		wrote("rebalancer", ourDrain, 3*time.Minute)),
	"ring deleting, shard held twice":  with(at("shard-a"), deleted, leases(alive("shard-a"), twice)),
	"ring deleting, drain label alone": with(drained(at("")), deleted),
	"resource left":                    with(at("shard-a"), inRing(func(r *Ring) { r.Leaving = true })),
	"stray label":                      with(at("shard-a"), notListed, wrote("kubectl-label", ourLabel, 10*time.Minute)),
	"stray drain label":                with(drained(at("")), notListed),
	"label of an unknown ring":         with(at("shard-b"), labelled(contract.ShardLabel("old"), "shard-0")),
	"deleting": with(at("shard-b"), inObject(func(o *Object) {
		o.Meta.DeletionTimestamp = new(metav1.NewTime(now.Add(-time.Hour)))
		o.Meta.Finalizers = []string{"example.dev/cleanup", "foregroundDeletion"}
	})),
	"two rings": with(at("shard-b"), func(_ *Ring, _ *Object, f *Facts) {
		f.Rings = append(f.Rings, ringOf("other", alive("shard-z")))
		f.Known = keysOf("example", "other")
	}),
	"keyed by namespace": with(at("shard-a"), inRing(func(r *Ring) {
		r.keyed(v1alpha1.ObjectKey{Type: v1alpha1.KeyNamespace})
	})),
	"keyed by label": with(at("shard-b"), func(r *Ring, o *Object, _ *Facts) {
		r.keyed(byTenant)
		metav1.SetMetaDataLabel(&o.Meta.ObjectMeta, tenant, r.tenantOf("shard-b"))
	}),
	"keyed by a label that it lacks": with(at("shard-b"), inRing(func(r *Ring) { r.keyed(byTenant) })),
	"not selected":                   with(nil, selecting, labelled(tenant, "theirs")),
	"not selected any more":          with(at("shard-a"), selecting),
	"not watched, without a shard": with(nil, unwatched,
		leases(watching("shard-a", "team-a,team-b"), watching("shard-b", "team-b"))),
	"not watched, with a shard": with(at("shard-b"), unwatched,
		leases(watching("shard-a", "team-a"), watching("shard-b", "team-a"))),
	"not watched by its shard": with(at("shard-a"), leases(watching("shard-a", "team-a"), alive("shard-b"))),
	"watched by its shard only": with(at("shard-a"), unwatched,
		leases(watching("shard-a", "default"), watching("shard-b", "team-b"))),
	"not watched, ring in deletion": with(at("shard-a"), leases(watching("shard-a", "team-a")),
		inRing(func(r *Ring) { r.DeletionTimestamp = new(metav1.NewTime(now)) })),
}

// children are the cases of controlled objects; each begins with shard-a and shard-b, and a ConfigMap whose owner
// belongs to, and is at, shard-b.
var children = map[string]example{
	"child assigned":            with(at("shard-b")),
	"child unassigned":          with(nil),
	"child elsewhere":           with(at("shard-a")),
	"child of a draining owner": with(at("shard-a"), ownerAt(drained(at("shard-a")))),
	"child at another shard than its draining owner": with(at("shard-b"), ownerAt(drained(at("shard-a")))),
	"child at the next shard of its draining owner at a dead shard": with(at("shard-b"),
		ownerAt(drained(at("shard-x")))),
	"child of an unassigned owner":              with(at("shard-a"), ownerAt(nil)),
	"child unassigned of an unassigned owner":   with(nil, ownerAt(nil)),
	"child just created of an unassigned owner": with(nil, ownerAt(nil), created(time.Second)),
	"child and owner at a dead shard":           with(at("shard-x"), ownerAt(at("shard-x"))),
	"child at a dead shard": with(at("shard-c"), leases(alive("shard-a"), alive("shard-b"),
		released("shard-c"))),
	"child of a gone owner":     with(at("shard-a"), inRing(func(r *Ring) { r.Owner = nil })),
	"child of a replaced owner": with(at("shard-b"), inRing(func(r *Ring) { r.Owner.UID = "another" })),
	"child of nobody":           with(nil, orphan),
	"child of a Pod":            with(nil, inObject(func(o *Object) { o.controlledBy(pod, "web-0") })),
	"grandchild of a draining owner": with(at("shard-b"), ownerAt(drained(at("shard-b"))),
		inObject(func(o *Object) { o.controlledBy(configMap, "between") })),
	"child of a ConfigMap that follows nobody": with(nil,
		inObject(func(o *Object) { o.controlledBy(configMap, "alone") })),
	"child of nobody, labelled":                       with(at("shard-a"), orphan),
	"child in a deleting ring":                        with(at("shard-b"), deleted),
	"child keyed by the label of its owner":           with(at("shard-b"), inRing(func(r *Ring) { r.keyed(byTenant) })),
	"child of a gone owner in a ring that selects":    with(nil, selecting, inRing(func(r *Ring) { r.Owner = nil })),
	"child of an owner that is not selected":          with(nil, selecting, ownerAt(nil)),
	"child of an owner that is not selected any more": with(at("shard-b"), selecting),
}

// cases returns the facts of each case.
func cases() map[string]*Facts {
	all := map[string]*Facts{}

	for name, e := range mains {
		r := ringOf("example", alive("shard-a"), alive("shard-b"))
		f := about(r, anObject(website, r.named("shard-b"), nil))
		e.facts(f)
		all[name] = f
	}

	for name, e := range children {
		r := ringOf("example", alive("shard-a"), alive("shard-b"))
		r.Subject.Role = resources.Controlled
		r.Owner = metaOf(r.named("shard-b"), at("shard-b"))
		o := anObject(configMap, "settings", nil)
		o.controlledBy(website, r.Owner.Name)
		f := about(r, o)
		e.facts(f)
		all[name] = f
	}

	for _, f := range all {
		for i := range f.Rings {
			f.Rings[i].follow(f.Object)
		}
	}

	all["not listed"] = &Facts{Now: now, Object: anObject(pod, "web", nil), Known: keysOf("example", "other")}
	all["not listed, forbidden"] = &Facts{Now: now, Object: Object{Resource: resourceOf(pod), Namespace: "default",
		Name: "web"}, Known: keysOf("example")}

	return all
}

func TestExplain(t *testing.T) {
	files := map[string]bool{}

	for name, f := range cases() {
		file := strings.ReplaceAll(strings.ReplaceAll(name, ",", ""), " ", "-") + ".txt"
		files[file] = true

		t.Run(name, func(t *testing.T) { golden.Assert(t, text(Explain(f)), file) })
	}

	entries, err := os.ReadDir("testdata")
	require.NoError(t, err)

	for _, e := range entries {
		require.True(t, files[e.Name()], "%s belongs to no case", e.Name())
	}
}

// Properties of every explanation, regardless of the golden files.
func TestExplanations(t *testing.T) {
	for name, f := range cases() {
		e := Explain(f)
		require.NotEmpty(t, e.GetFindings(), name)
		require.Len(t, e.GetRings(), len(f.Rings), name)
		require.True(t, slices.IsSortedFunc(e.GetFindings(),
			func(a, b *pb.Finding) int { return int(b.GetSeverity()) - int(a.GetSeverity()) }), name)

		for _, finding := range e.GetFindings() {
			require.NotEmpty(t, finding.GetMessage(), name)
			require.NotContains(t, finding.GetMessage(), "  ", name)
			require.NotContains(t, finding.GetMessage(), "%!", name)
			require.NotContains(t, finding.GetMessage(), "..", name)
			require.Regexp(t, `[^.?!][.?!]$`, finding.GetMessage(), "%s: one mark ends the text", name)

			if finding.GetSeverity() == Info {
				require.NotContains(t, finding.GetMessage(), " is False (", "%s: a problem is not marked as expected", name)
			}
		}

		for _, r := range e.GetRings() {
			require.Equal(t, r.GetNextActor() == "", r.GetNext() == Nothing, "%s: somebody does what is done", name)
			require.False(t, e.GetHealthy() && r.GetAssignment() != nil && r.GetNext() != Nothing && r.GetNext() != Assign &&
				r.GetNext() != FollowOwner, name)
		}
	}
}
