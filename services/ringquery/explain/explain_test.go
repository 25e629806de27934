package explain

import (
	"context"
	"flag"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	pb "github.com/clusterring/clusterring/proto/clusterring/diagnostics/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/lease"
	"github.com/clusterring/clusterring/services/internal/resources"
	"github.com/clusterring/clusterring/services/ringquery/rings"
)

var update = flag.Bool("update", false, "rewrite testdata")

// about returns the facts about an object in the only ring.
func about(r Ring, o Object) *Facts {
	if r.Role == resources.Controlled {
		r.Kin = kinOf(r, o)
	}

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

// LabelsOf returns the tenant of the owner, which belongs to shard-b; the owner bare has none.
func (b between) LabelsOf(_ context.Context, of resources.Owner) (labels resources.Labels, found bool, err error) {
	if of.Name == "bare" {
		return resources.Labels{Selected: of.Resource.Selects(nil)}, true, nil
	}

	r := ringOf("example", alive("shard-a"), alive("shard-b"))
	all := map[string]string{tenant: r.tenantOf("shard-b")}

	return resources.Labels{All: all, Selected: of.Resource.Selects(all)}, true, nil
}

// tenant is the label that is the key in some cases.
const tenant = "example.com/tenant"

// example is a case: the labels of the object, and what is different otherwise.
type example struct {
	labels map[string]string
	change func(r *Ring, o *Object, f *Facts)
}

// facts changes the facts about an object in one ring.
func (e example) facts(f *Facts) {
	f.Object.Meta.Labels = maps.Clone(e.labels)
	if e.change != nil {
		e.change(&f.Rings[0], &f.Object, f)
	}
}

// unwatched is what the rebalancer reports of a namespace that no shard watches.
var unwatched = condition(v1alpha1.ConditionAssigned, metav1.ConditionFalse, v1alpha1.ReasonNamespacesNotWatched,
	"nobody works on objects in the namespaces default")

// mains are the cases of main objects; each begins with shard-a and shard-b, and an object that belongs to shard-b.
var mains = map[string]example{
	"assigned": {at("shard-b"), nil},
	"assigned, while others are on their way": {at("shard-b"), func(r *Ring, _ *Object, _ *Facts) {
		r.fails(v1alpha1.ConditionAssigned, v1alpha1.ReasonMoving,
			"0 objects without a shard, 7 at another shard, 3 asked for")
	}},
	"assigned, while a resource is missing": {at("shard-b"), func(r *Ring, _ *Object, _ *Facts) {
		r.fails(v1alpha1.ConditionAssigned, v1alpha1.ReasonResourcesMissing,
			"the API server does not serve ships; is the CustomResourceDefinition installed?")
	}},
	"namespace not selected, while others are on their way": {nil, func(r *Ring, _ *Object, _ *Facts) {
		r.Coverage = rings.NotCovered
		r.fails(v1alpha1.ConditionAssigned, v1alpha1.ReasonMoving, "7 at another shard")
	}},
	"assigned, after what follows it": {at("shard-b"), func(_ *Ring, o *Object, _ *Facts) {
		o.Meta.Annotations =
			map[string]string{contract.HandoverAnnotation("example"): `{"secrets":"1212","configmaps":"1300"}`}
	}},
	"assigned, in a slot": {at("shard-b"), func(r *Ring, _ *Object, _ *Facts) {
		r.Status.Holders = []v1alpha1.ShardHolder{{Shard: "shard-a", Pod: "operator-8f-1"},
			{Shard: "shard-b", Pod: "operator-8f-2"}}
	}},
	"unassigned": {nil, nil},
	"unassigned, just created": {nil, func(_ *Ring, o *Object, _ *Facts) {
		o.Meta.CreationTimestamp = metav1.NewTime(now.Add(-2 * time.Second))
	}},
	"unassigned, rebalancer and webhook in trouble": {nil, func(r *Ring, _ *Object, _ *Facts) {
		r.fails(v1alpha1.ConditionAssigned, v1alpha1.ReasonAssignmentFailed, "websites.example.dev is forbidden")
		r.fails(v1alpha1.ConditionWebhookRegistered, v1alpha1.ReasonRegistrationFailed, "no such Secret")
		r.fails(v1alpha1.ConditionReady, v1alpha1.ReasonReconciliationFailed, "Assigned is False")
	}},
	"assigned, fenced": {at("shard-b"), func(r *Ring, _ *Object, _ *Facts) {
		r.says(condition(v1alpha1.ConditionFenced, metav1.ConditionTrue, v1alpha1.ReasonFenceEnforced, "refused"))
	}},
	"assigned, audited": {at("shard-b"), func(r *Ring, _ *Object, _ *Facts) {
		r.fails(v1alpha1.ConditionFenced, v1alpha1.ReasonFenceAudited, "writes are reported")
	}},
	"assigned, fence in trouble": {at("shard-b"), func(r *Ring, _ *Object, _ *Facts) {
		r.fails(v1alpha1.ConditionFenced, v1alpha1.ReasonFenceFailed, "the policy does not exist")
		r.fails(v1alpha1.ConditionReady, v1alpha1.ReasonReconciliationFailed, "Fenced is False")
	}},
	"unassigned, rebalancer never seen": {nil, func(r *Ring, _ *Object, _ *Facts) { r.Status.Conditions = nil }},
	"unassigned, ring not ready for another reason": {nil, func(r *Ring, _ *Object, _ *Facts) {
		r.says(condition(v1alpha1.ConditionReady, metav1.ConditionUnknown, "SomethingNew", ""))
	}},
	"no shard": {nil, func(r *Ring, _ *Object, _ *Facts) { r.has() }},
	"no shard available": {at("shard-a"), func(r *Ring, _ *Object, f *Facts) {
		twice := alive("shard-c")
		twice.namespace = "other"
		foreign := taken("shard-d")
		foreign.holder = "somebody"
		r.has(taken("shard-a"), released("shard-b"), alive("shard-c"), twice, foreign, released("shard-e"),
			released("shard-f"))
	}},
	"shard released": {at("shard-a"), func(r *Ring, _ *Object, _ *Facts) { r.has(released("shard-a"), alive("shard-b")) }},
	"shard taken, drain label": {drained(at("shard-a")), func(r *Ring, _ *Object, _ *Facts) {
		r.has(taken("shard-a"), alive("shard-b"))
	}},
	"shard held by somebody else": {at("shard-a"), func(r *Ring, _ *Object, _ *Facts) {
		foreign := taken("shard-a")
		foreign.holder = "somebody"
		r.has(foreign, alive("shard-b"))
	}},
	"shard without a Lease": {at("shard-x"), func(_ *Ring, o *Object, _ *Facts) {
		o.wrote("kubectl-label", contract.ShardLabel("example"), 10*time.Minute)
	}},
	"shard without a Lease, label from the rebalancer": {at("shard-x"), func(_ *Ring, o *Object, _ *Facts) {
		o.wrote("rebalancer", contract.ShardLabel("example"), 10*time.Minute)
	}},
	"shard held twice": {at("shard-a"), func(r *Ring, _ *Object, _ *Facts) {
		twice := alive("shard-a")
		twice.namespace = "other"
		r.has(alive("shard-a"), twice, alive("shard-b"))
	}},
	"shard expired": {at("shard-b"), func(r *Ring, _ *Object, _ *Facts) {
		r.has(alive("shard-a"), silent("shard-b", 18*time.Second))
	}},
	"shard expired, as the lease monitor says": {at("shard-b"), func(r *Ring, _ *Object, _ *Facts) {
		r.has(alive("shard-a"), holding{"ctl", "shard-b", "shard-b", lease.Expired, 3 * time.Second, true, false, ""})
	}},
	"shard expired, as the lease monitor says no more": {at("shard-b"), func(r *Ring, _ *Object, _ *Facts) {
		r.has(alive("shard-a"), holding{"ctl", "shard-b", "shard-b", lease.Expired, 3 * time.Second, false, false, ""})
	}},
	"shard uncertain": {at("shard-b"), func(r *Ring, _ *Object, _ *Facts) {
		r.has(alive("shard-a"), silent("shard-b", 31*time.Second))
	}},
	"shard uncertain, lease monitor cannot take its Lease": {at("shard-b"), func(r *Ring, _ *Object, _ *Facts) {
		r.has(alive("shard-a"), silent("shard-b", 10*time.Minute))
		r.fails(v1alpha1.ConditionShardsAvailable, v1alpha1.ReasonLeasesNotTaken, "shard ctl/shard-b: refused")
		r.fails(v1alpha1.ConditionReady, v1alpha1.ReasonReconciliationFailed,
			"ShardsAvailable is False (LeasesNotTaken): shard ctl/shard-b: refused")
	}},
	"drain pending": {drained(at("shard-a")), func(_ *Ring, o *Object, _ *Facts) {
		o.wrote("rebalancer", contract.DrainLabel("example"), 10*time.Second)
	}},
	"drain pending, since when is not known": {drained(at("shard-a")), nil},
	"drain pending, to a shard that is no longer the one": {drained(at("shard-a")), func(_ *Ring, o *Object, _ *Facts) {
		o.Meta.Labels[contract.DrainLabel("example")] = "shard-c"
		o.wrote("rebalancer", contract.DrainLabel("example"), 10*time.Second)
	}},
	"drain late": {drained(at("shard-a")), func(r *Ring, o *Object, _ *Facts) {
		o.wrote("rebalancer", contract.DrainLabel("example"), time.Minute)
		r.fails(v1alpha1.ConditionAssigned, v1alpha1.ReasonDrainsLate, "1 were not given up in time")
	}},
	"drain unwanted": {drained(at("shard-b")), nil},
	"misplaced, rebalancer on its way": {at("shard-a"), func(r *Ring, _ *Object, _ *Facts) {
		r.fails(v1alpha1.ConditionAssigned, v1alpha1.ReasonMoving, "5 at another shard")
	}},
	"misplaced, after the rebalancer has looked": {at("shard-a"), func(r *Ring, o *Object, _ *Facts) {
		o.wrote("kubectl-edit", contract.ShardLabel("example"), 10*time.Minute)

		r.Status.Assignment = &v1alpha1.AssignmentStatus{Fingerprint: r.View.Fingerprint()}
	}},
	"at another shard, paused": {at("shard-a"), func(r *Ring, _ *Object, _ *Facts) {
		r.Spec.Paused = true
		r.has(alive("shard-a"), alive("shard-b"))
	}},
	"misplaced, shard expired": {at("shard-a"), func(r *Ring, _ *Object, _ *Facts) {
		r.has(silent("shard-a", 20*time.Second), alive("shard-b"))
	}},
	"misplaced, shard stops": {at("shard-a"), func(r *Ring, _ *Object, _ *Facts) {
		r.has(stopping("shard-a"), alive("shard-b"))
	}},
	"misplaced, shard stands by": {at("shard-a"), func(r *Ring, _ *Object, _ *Facts) {
		r.Spec.ActiveShards = new(int32(1))
		r.has(alive("shard-a"), alive("shard-b"))
	}},
	"drain pending, shard stops": {drained(at("shard-a")), func(r *Ring, o *Object, _ *Facts) {
		o.wrote("rebalancer", contract.DrainLabel("example"), time.Second)
		r.has(stopping("shard-a"), alive("shard-b"))
	}},
	"the only shard stops": {at("shard-a"), func(r *Ring, _ *Object, _ *Facts) { r.has(stopping("shard-a")) }},
	"namespace not selected": {nil, func(r *Ring, _ *Object, f *Facts) {
		r.Spec.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"team": "blue"}}
		r.Coverage = rings.NotCovered
		f.NamespaceLabels["team"] = "red"
	}},
	"namespace not selected, by default": {nil, func(r *Ring, _ *Object, f *Facts) {
		r.Coverage, f.NamespaceLabels = rings.NotCovered, nil
	}},
	"namespace not selected any more": {at("shard-a"), func(r *Ring, _ *Object, _ *Facts) {
		r.Coverage = rings.NotCovered
	}},
	"namespace unknown": {at("shard-b"), func(r *Ring, _ *Object, f *Facts) {
		r.Spec.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"team": "blue"}}
		r.Coverage, f.NamespaceLabels = rings.Unknown, nil
	}},
	"ring deleting": {nil, func(r *Ring, _ *Object, _ *Facts) { r.isDeleted() }},
	"ring deleting, draining": {drained(at("shard-a")), func(r *Ring, o *Object, _ *Facts) {
		r.isDeleted()

		o.wrote("rebalancer", contract.DrainLabel("example"), 3*time.Minute)
	}},
	"ring deleting, shard held twice": {at("shard-a"), func(r *Ring, _ *Object, _ *Facts) {
		r.isDeleted()

		twice := alive("shard-a")
		twice.namespace = "other"
		r.has(alive("shard-a"), twice)
	}},
	"ring deleting, drain label alone": {drained(noLabels()), func(r *Ring, _ *Object, _ *Facts) { r.isDeleted() }},
	"resource left":                    {at("shard-a"), func(r *Ring, _ *Object, _ *Facts) { r.Leaving = true }},
	"stray label": {at("shard-a"), func(r *Ring, o *Object, _ *Facts) {
		r.Role = ""
		o.wrote("kubectl-label", contract.ShardLabel("example"), 10*time.Minute)
	}},
	"stray drain label": {drained(noLabels()), func(r *Ring, _ *Object, _ *Facts) { r.Role = "" }},
	"label of an unknown ring": {at("shard-b"), func(_ *Ring, o *Object, _ *Facts) {
		o.Meta.Labels[contract.ShardLabel("old")] = "shard-0"
	}},
	"deleting": {at("shard-b"), func(_ *Ring, o *Object, _ *Facts) {
		o.Meta.DeletionTimestamp = new(metav1.NewTime(now.Add(-time.Hour)))
		o.Meta.Finalizers = []string{"example.dev/cleanup", "foregroundDeletion"}
	}},
	"two rings": {at("shard-b"), func(_ *Ring, _ *Object, f *Facts) {
		f.Rings = append(f.Rings, ringOf("other", alive("shard-z")))
		f.Known = keysOf("example", "other")
	}},
	"keyed by namespace": {at("shard-a"), func(r *Ring, _ *Object, _ *Facts) {
		r.keyed(v1alpha1.ObjectKey{Type: v1alpha1.KeyNamespace})
	}},
	"keyed by label": {at("shard-b"), func(r *Ring, o *Object, _ *Facts) {
		r.keyed(byTenant)

		metav1.SetMetaDataLabel(&o.Meta.ObjectMeta, tenant, r.tenantOf("shard-b"))
	}},
	"keyed by label, draining to the shard of another label": {drained(at("shard-a")), func(r *Ring, o *Object, _ *Facts) {
		r.keyed(byTenant)

		metav1.SetMetaDataLabel(&o.Meta.ObjectMeta, tenant, r.tenantOf("shard-b"))
	}},
	"keyed by a label that it lacks": {at("shard-b"), func(r *Ring, _ *Object, _ *Facts) { r.keyed(byTenant) }},
	"selected": {at("shard-b"), func(r *Ring, o *Object, _ *Facts) {
		r.selecting()

		metav1.SetMetaDataLabel(&o.Meta.ObjectMeta, tenant, "ours")
	}},
	"not selected": {nil, func(r *Ring, o *Object, _ *Facts) {
		r.selecting()
		metav1.SetMetaDataLabel(&o.Meta.ObjectMeta, tenant, "theirs")
	}},
	"not selected any more": {at("shard-a"), func(r *Ring, _ *Object, _ *Facts) { r.selecting() }},
	"not watched, without a shard": {nil, func(r *Ring, _ *Object, _ *Facts) {
		r.has(watching("shard-a", "team-a,team-b"), watching("shard-b", "team-b"))
		r.says(unwatched)
	}},
	"not watched, with a shard": {at("shard-b"), func(r *Ring, _ *Object, _ *Facts) {
		r.has(watching("shard-a", "team-a"), watching("shard-b", "team-a"))
		r.says(unwatched)
	}},
	"not watched by its shard": {at("shard-a"), func(r *Ring, _ *Object, _ *Facts) {
		r.has(watching("shard-a", "team-a"), alive("shard-b"))
	}},
	"watched by its shard only": {at("shard-a"), func(r *Ring, _ *Object, _ *Facts) {
		r.has(watching("shard-a", "default"), watching("shard-b", "team-b"))
		r.says(unwatched)
	}},
	"not watched, ring in deletion": {at("shard-a"), func(r *Ring, _ *Object, _ *Facts) {
		r.has(watching("shard-a", "team-a"))
		r.DeletionTimestamp = new(metav1.NewTime(now))
	}},
}

// noLabels returns no labels.
func noLabels() map[string]string { return map[string]string{} }

func (r *Ring) isDeleted() {
	r.DeletionTimestamp = new(metav1.NewTime(now.Add(-5 * time.Minute)))
}

// children are the cases of controlled objects; each begins with shard-a and shard-b, and a ConfigMap whose owner
// belongs to, and is at, shard-b.
var children = map[string]example{
	"child assigned":   {at("shard-b"), nil},
	"child unassigned": {nil, nil},
	"child elsewhere":  {at("shard-a"), nil},
	"child of a draining owner": {at("shard-a"), func(r *Ring, _ *Object, _ *Facts) {
		r.Owner.Labels = drained(at("shard-a"))
	}},
	"child at another shard than its draining owner": {at("shard-b"), func(r *Ring, _ *Object, _ *Facts) {
		r.Owner.Labels = drained(at("shard-a"))
	}},
	"child at the next shard of its draining owner at a dead shard": {at("shard-b"), func(r *Ring, _ *Object, _ *Facts) {
		r.Owner.Labels = drained(at("shard-x"))
	}},
	"child of an unassigned owner": {at("shard-a"),
		func(r *Ring, _ *Object, _ *Facts) { r.Owner.Labels = nil }},
	"child unassigned of an unassigned owner": {nil, func(r *Ring, _ *Object, _ *Facts) { r.Owner.Labels = nil }},
	"child just created of an unassigned owner": {nil, func(r *Ring, o *Object, _ *Facts) {
		r.Owner.Labels = nil
		o.Meta.CreationTimestamp = metav1.NewTime(now.Add(-time.Second))
	}},
	"child and owner at a dead shard": {at("shard-x"), func(r *Ring, _ *Object, _ *Facts) {
		r.Owner.Labels = at("shard-x")
	}},
	"child at a dead shard": {at("shard-c"), func(r *Ring, _ *Object, _ *Facts) {
		r.has(alive("shard-a"), alive("shard-b"), released("shard-c"))
	}},
	"child of a gone owner": {at("shard-a"), func(r *Ring, _ *Object, _ *Facts) { r.Owner = nil }},
	"child of a replaced owner": {at("shard-b"),
		func(r *Ring, _ *Object, _ *Facts) { r.Owner.UID = "another" }},
	"child of nobody": {nil, func(_ *Ring, o *Object, _ *Facts) { o.Meta.OwnerReferences = nil }},
	"child of a Pod":  {nil, func(_ *Ring, o *Object, _ *Facts) { o.controlledBy(pod, "web-0") }},
	"grandchild of a draining owner": {at("shard-b"), func(r *Ring, o *Object, _ *Facts) {
		o.controlledBy(configMap, "between")

		r.Owner.Labels = drained(at("shard-b"))
	}},
	"child of a ConfigMap that follows nobody": {nil, func(_ *Ring, o *Object, _ *Facts) {
		o.controlledBy(configMap, "alone")
	}},
	"child of nobody, labelled": {at("shard-a"), func(_ *Ring, o *Object, _ *Facts) { o.Meta.OwnerReferences = nil }},
	"child in a deleting ring":  {at("shard-b"), func(r *Ring, _ *Object, _ *Facts) { r.isDeleted() }},
	"child keyed by the label of its owner": {at("shard-b"), func(r *Ring, o *Object, _ *Facts) {
		r.keyed(byTenant)

		r.Kin = kinOf(*r, *o)
	}},
	"child of an owner that is not selected": {nil, func(r *Ring, o *Object, _ *Facts) {
		r.selecting()

		r.Owner.Labels = nil
		r.Kin = kinOf(*r, *o)
	}},
	"child of an owner that is not selected any more": {at("shard-b"), func(r *Ring, o *Object, _ *Facts) {
		r.selecting()

		r.Kin = kinOf(*r, *o)
	}},
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
		r.Role = resources.Controlled
		r.Owner = metaOf(r.named("shard-b"), at("shard-b"))
		o := anObject(configMap, "settings", nil)
		o.controlledBy(website, r.Owner.Name)
		f := about(r, o)
		e.facts(f)
		f.Rings[0].Kin = kinOf(f.Rings[0], f.Object)
		all[name] = f
	}

	all["no ring"] = &Facts{Now: now, Object: anObject(pod, "web", nil), Known: keysOf()}
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

		t.Run(name, func(t *testing.T) {
			got, path := text(Explain(f)), filepath.Join("testdata", file)
			if *update {
				require.NoError(t, os.WriteFile(path, []byte(got), 0o600))
			}

			want, err := os.ReadFile(path)
			require.NoError(t, err)
			require.Equal(t, string(want), got)
		})
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
