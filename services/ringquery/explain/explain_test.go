package explain

import (
	"context"
	"errors"
	"flag"
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

// ownerName is the name of the owner of a case.
func (r *Ring) ownerName() string {
	if r.Owner.Meta == nil {
		return ""
	}

	return r.Owner.Meta.Name
}

// between returns the controllers of ConfigMaps between the object and its owner. One has no controller, and one may not be read.
type between struct{ owner string }

func (b between) ControllerOf(_ context.Context, of resources.Owner) (controller *metav1.OwnerReference, found bool, err error) {
	switch of.Name {
	case "between":
		owner := &Object{Meta: &metav1.PartialObjectMetadata{}}
		owner.controlledBy(website, b.owner)

		return &owner.Meta.OwnerReferences[0], true, nil
	case "alone":
		return nil, true, nil
	}

	return nil, false, errors.New("it is forbidden")
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

// unwatched is what the rebalancer reports of a namespace that no shard watches.
var unwatched = condition(v1alpha1.ConditionAssigned, metav1.ConditionFalse, v1alpha1.ReasonNamespacesNotWatched,
	"nobody works on objects in the namespaces default")

// mains are the cases of main objects; each begins with shard-a and shard-b, and an object that belongs to shard-b.
var mains = map[string]func(r *Ring, o *Object, f *Facts){
	"assigned": func(_ *Ring, o *Object, _ *Facts) { o.Meta.Labels = at("shard-b") },
	"assigned, while others are on their way": func(r *Ring, o *Object, _ *Facts) {
		o.Meta.Labels = at("shard-b")
		r.says(condition(v1alpha1.ConditionAssigned, metav1.ConditionFalse, v1alpha1.ReasonMoving, "0 objects without a shard, 7 at another shard, 3 asked for"))
	},
	"assigned, while a resource is missing": func(r *Ring, o *Object, _ *Facts) {
		o.Meta.Labels = at("shard-b")
		r.says(condition(v1alpha1.ConditionAssigned, metav1.ConditionFalse, v1alpha1.ReasonResourcesMissing, "the API server does not serve ships; is the CustomResourceDefinition installed?"))
	},
	"namespace not selected, while others are on their way": func(r *Ring, _ *Object, _ *Facts) {
		r.Coverage = rings.NotCovered
		r.says(condition(v1alpha1.ConditionAssigned, metav1.ConditionFalse, v1alpha1.ReasonMoving, "7 at another shard"))
	},
	"assigned, after what follows it": func(_ *Ring, o *Object, _ *Facts) {
		o.Meta.Labels = at("shard-b")
		o.Meta.Annotations = map[string]string{contract.HandoverAnnotation("example"): `{"secrets":"1212","configmaps":"1300"}`}
	},
	"assigned, in a slot": func(r *Ring, o *Object, _ *Facts) {
		o.Meta.Labels = at("shard-b")
		r.Status.Holders = []v1alpha1.ShardHolder{{Shard: "shard-a", Pod: "operator-8f-1"}, {Shard: "shard-b", Pod: "operator-8f-2"}}
	},
	"unassigned": func(_ *Ring, _ *Object, _ *Facts) {},
	"unassigned, empty label": func(_ *Ring, o *Object, _ *Facts) {
		o.Meta.Labels = map[string]string{contract.ShardLabel("example"): ""}
	},
	"unassigned, just created": func(_ *Ring, o *Object, _ *Facts) {
		o.Meta.CreationTimestamp = metav1.NewTime(now.Add(-2 * time.Second))
	},
	"unassigned, rebalancer and webhook in trouble": func(r *Ring, _ *Object, _ *Facts) {
		r.says(condition(v1alpha1.ConditionAssigned, metav1.ConditionFalse, v1alpha1.ReasonAssignmentFailed, "websites.example.dev is forbidden"))
		r.says(condition(v1alpha1.ConditionWebhookRegistered, metav1.ConditionFalse, v1alpha1.ReasonRegistrationFailed, "no such Secret"))
		r.says(condition(v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonReconciliationFailed, "Assigned is False"))
	},
	"assigned, fenced": func(r *Ring, o *Object, _ *Facts) {
		o.Meta.Labels = at("shard-b")
		r.says(condition(v1alpha1.ConditionFenced, metav1.ConditionTrue, v1alpha1.ReasonFenceEnforced, "refused"))
	},
	"assigned, audited": func(r *Ring, o *Object, _ *Facts) {
		o.Meta.Labels = at("shard-b")
		r.says(condition(v1alpha1.ConditionFenced, metav1.ConditionFalse, v1alpha1.ReasonFenceAudited, "writes are reported"))
	},
	"assigned, fence in trouble": func(r *Ring, o *Object, _ *Facts) {
		o.Meta.Labels = at("shard-b")
		r.says(condition(v1alpha1.ConditionFenced, metav1.ConditionFalse, v1alpha1.ReasonFenceFailed, "the policy does not exist"))
		r.says(condition(v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonReconciliationFailed, "Fenced is False"))
	},
	"unassigned, rebalancer never seen": func(r *Ring, _ *Object, _ *Facts) { r.Status.Conditions = nil },
	"unassigned, ring not ready for another reason": func(r *Ring, _ *Object, _ *Facts) {
		r.says(condition(v1alpha1.ConditionReady, metav1.ConditionUnknown, "SomethingNew", ""))
	},
	"no shard": func(r *Ring, _ *Object, _ *Facts) { r.has() },
	"no shard available": func(r *Ring, o *Object, _ *Facts) {
		o.Meta.Labels = at("shard-a")
		twice := alive("shard-c")
		twice.namespace = "other"
		foreign := taken("shard-d")
		foreign.holder = "somebody"
		r.has(taken("shard-a"), released("shard-b"), alive("shard-c"), twice, foreign, released("shard-e"), released("shard-f"))
	},
	"shard released": func(r *Ring, o *Object, _ *Facts) {
		o.Meta.Labels = at("shard-a")
		r.has(released("shard-a"), alive("shard-b"))
	},
	"shard taken, drain label": func(r *Ring, o *Object, _ *Facts) {
		o.Meta.Labels = drained(at("shard-a"))
		r.has(taken("shard-a"), alive("shard-b"))
	},
	"shard held by somebody else": func(r *Ring, o *Object, _ *Facts) {
		o.Meta.Labels = at("shard-a")
		foreign := taken("shard-a")
		foreign.holder = "somebody"
		r.has(foreign, alive("shard-b"))
	},
	"shard without a Lease": func(_ *Ring, o *Object, _ *Facts) {
		o.Meta.Labels = at("shard-x")
		o.wrote("kubectl-label", contract.ShardLabel("example"), 10*time.Minute)
	},
	"shard without a Lease, label from the rebalancer": func(_ *Ring, o *Object, _ *Facts) {
		o.Meta.Labels = at("shard-x")
		o.wrote("rebalancer", contract.ShardLabel("example"), 10*time.Minute)
	},
	"shard held twice": func(r *Ring, o *Object, _ *Facts) {
		o.Meta.Labels = at("shard-a")
		twice := alive("shard-a")
		twice.namespace = "other"
		r.has(alive("shard-a"), twice, alive("shard-b"))
	},
	"shard expired": func(r *Ring, o *Object, _ *Facts) {
		o.Meta.Labels = at("shard-b")
		r.has(alive("shard-a"), silent("shard-b", 18*time.Second))
	},
	"shard expired, as the lease monitor says": func(r *Ring, o *Object, _ *Facts) {
		o.Meta.Labels = at("shard-b")
		r.has(alive("shard-a"), holding{"ctl", "shard-b", "shard-b", lease.Expired, 3 * time.Second, true, false, ""})
	},
	"shard expired, as the lease monitor says no more": func(r *Ring, o *Object, _ *Facts) {
		o.Meta.Labels = at("shard-b")
		r.has(alive("shard-a"), holding{"ctl", "shard-b", "shard-b", lease.Expired, 3 * time.Second, false, false, ""})
	},
	"shard uncertain": func(r *Ring, o *Object, _ *Facts) {
		o.Meta.Labels = at("shard-b")
		r.has(alive("shard-a"), silent("shard-b", 31*time.Second))
	},
	"shard uncertain, lease monitor does nothing": func(r *Ring, o *Object, _ *Facts) {
		o.Meta.Labels = at("shard-b")
		r.has(alive("shard-a"), silent("shard-b", 10*time.Minute+5*time.Second))
	},
	"shard uncertain, lease monitor cannot take its Lease": func(r *Ring, o *Object, _ *Facts) {
		o.Meta.Labels = at("shard-b")
		r.has(alive("shard-a"), silent("shard-b", 10*time.Minute))
		r.says(condition(v1alpha1.ConditionShardsAvailable, metav1.ConditionFalse, v1alpha1.ReasonLeasesNotTaken, "shard ctl/shard-b: refused"))
		r.says(condition(v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonReconciliationFailed,
			"ShardsAvailable is False (LeasesNotTaken): shard ctl/shard-b: refused"))
	},
	"drain pending": func(_ *Ring, o *Object, _ *Facts) {
		o.Meta.Labels = drained(at("shard-a"))
		o.wrote("rebalancer", contract.DrainLabel("example"), 10*time.Second)
	},
	"drain pending, since when is not known": func(_ *Ring, o *Object, _ *Facts) { o.Meta.Labels = drained(at("shard-a")) },
	"drain pending, to a shard that is no longer the one": func(_ *Ring, o *Object, _ *Facts) {
		o.Meta.Labels = drained(at("shard-a"))
		o.Meta.Labels[contract.DrainLabel("example")] = "shard-c"
		o.wrote("rebalancer", contract.DrainLabel("example"), 10*time.Second)
	},
	"drain late": func(r *Ring, o *Object, _ *Facts) {
		o.Meta.Labels = drained(at("shard-a"))
		o.wrote("rebalancer", contract.DrainLabel("example"), time.Minute)
		r.says(condition(v1alpha1.ConditionAssigned, metav1.ConditionFalse, v1alpha1.ReasonDrainsLate, "1 were not given up in time"))
	},
	"drain unwanted": func(_ *Ring, o *Object, _ *Facts) { o.Meta.Labels = drained(at("shard-b")) },
	"misplaced, rebalancer on its way": func(r *Ring, o *Object, _ *Facts) {
		o.Meta.Labels = at("shard-a")
		r.says(condition(v1alpha1.ConditionAssigned, metav1.ConditionFalse, v1alpha1.ReasonMoving, "5 at another shard"))
	},
	"misplaced, after the rebalancer has looked": func(r *Ring, o *Object, _ *Facts) {
		o.Meta.Labels = at("shard-a")
		o.wrote("kubectl-edit", contract.ShardLabel("example"), 10*time.Minute)
		r.isSettled()
	},
	"at another shard, paused": func(r *Ring, o *Object, _ *Facts) {
		o.Meta.Labels = at("shard-a")
		r.Spec.Paused = true
		r.has(alive("shard-a"), alive("shard-b"))
	},
	"misplaced, shard expired": func(r *Ring, o *Object, _ *Facts) {
		o.Meta.Labels = at("shard-a")
		r.has(silent("shard-a", 20*time.Second), alive("shard-b"))
	},
	"misplaced, shard stops": func(r *Ring, o *Object, _ *Facts) {
		o.Meta.Labels = at("shard-a")
		r.has(stopping("shard-a"), alive("shard-b"))
	},
	"misplaced, shard stands by": func(r *Ring, o *Object, _ *Facts) {
		o.Meta.Labels = at("shard-a")
		r.Spec.ActiveShards = new(int32(1))
		r.has(alive("shard-a"), alive("shard-b"))
	},
	"drain pending, shard stops": func(r *Ring, o *Object, _ *Facts) {
		o.Meta.Labels = drained(at("shard-a"))
		o.wrote("rebalancer", contract.DrainLabel("example"), time.Second)
		r.has(stopping("shard-a"), alive("shard-b"))
	},
	"the only shard stops": func(r *Ring, o *Object, _ *Facts) {
		o.Meta.Labels = at("shard-a")
		r.has(stopping("shard-a"))
	},
	"namespace not selected": func(r *Ring, _ *Object, f *Facts) {
		r.Spec.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"team": "blue"}}
		r.Coverage = rings.NotCovered
		f.NamespaceLabels["team"] = "red"
	},
	"namespace not selected, by default": func(r *Ring, _ *Object, f *Facts) {
		r.Coverage, f.NamespaceLabels = rings.NotCovered, nil
	},
	"namespace not selected any more": func(r *Ring, o *Object, _ *Facts) {
		o.Meta.Labels = at("shard-a")
		r.Coverage = rings.NotCovered
	},
	"namespace unknown": func(r *Ring, o *Object, f *Facts) {
		o.Meta.Labels = at("shard-b")
		r.Spec.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"team": "blue"}}
		r.Coverage, f.NamespaceLabels = rings.Unknown, nil
	},
	"ring deleting": func(r *Ring, _ *Object, _ *Facts) { r.isDeleted() },
	"ring deleting, draining": func(r *Ring, o *Object, _ *Facts) {
		r.isDeleted()

		o.Meta.Labels = drained(at("shard-a"))
		o.wrote("rebalancer", contract.DrainLabel("example"), 3*time.Minute)
	},
	"ring deleting, shard dead": func(r *Ring, o *Object, _ *Facts) {
		r.isDeleted()

		o.Meta.Labels = at("shard-a")
		r.has(released("shard-a"))
	},
	"ring deleting, shard held twice": func(r *Ring, o *Object, _ *Facts) {
		r.isDeleted()

		o.Meta.Labels = at("shard-a")
		twice := alive("shard-a")
		twice.namespace = "other"
		r.has(alive("shard-a"), twice)
	},
	"ring deleting, drain label alone": func(r *Ring, o *Object, _ *Facts) {
		r.isDeleted()

		o.Meta.Labels = drained(noLabels())
	},
	"resource left": func(r *Ring, o *Object, _ *Facts) {
		r.Leaving = true
		o.Meta.Labels = at("shard-a")
	},
	"stray label": func(r *Ring, o *Object, _ *Facts) {
		r.Role = ""
		o.Meta.Labels = at("shard-a")
		o.wrote("kubectl-label", contract.ShardLabel("example"), 10*time.Minute)
	},
	"stray drain label": func(r *Ring, o *Object, _ *Facts) {
		r.Role = ""
		o.Meta.Labels = drained(noLabels())
	},
	"label of an unknown ring": func(_ *Ring, o *Object, _ *Facts) {
		o.Meta.Labels = at("shard-b")
		o.Meta.Labels[contract.ShardLabel("old")] = "shard-0"
	},
	"deleting": func(_ *Ring, o *Object, _ *Facts) {
		o.Meta.Labels = at("shard-b")
		o.Meta.DeletionTimestamp = new(metav1.NewTime(now.Add(-time.Hour)))
		o.Meta.Finalizers = []string{"example.dev/cleanup", "foregroundDeletion"}
	},
	"forbidden":           func(_ *Ring, o *Object, _ *Facts) { o.Meta = nil },
	"forbidden, no shard": func(r *Ring, o *Object, _ *Facts) { o.Meta = nil; r.has() },
	"forbidden, namespace not selected": func(r *Ring, o *Object, f *Facts) {
		o.Meta, r.Coverage, f.NamespaceLabels = nil, rings.NotCovered, nil
	},
	"two rings": func(_ *Ring, o *Object, f *Facts) {
		o.Meta.Labels = at("shard-b")

		f.Rings = append(f.Rings, ringOf("other", alive("shard-z")))
		f.Known = keysOf("example", "other")
	},
	"keyed by namespace": func(r *Ring, o *Object, _ *Facts) {
		r.keyed(v1alpha1.ObjectKey{Type: v1alpha1.KeyNamespace})

		o.Meta.Labels = at("shard-a")
	},
	"keyed by label": func(r *Ring, o *Object, _ *Facts) {
		r.keyed(byTenant)

		o.Meta.Labels = at("shard-b")
		metav1.SetMetaDataLabel(&o.Meta.ObjectMeta, tenant, r.tenantOf("shard-b"))
	},
	"keyed by label, draining to the shard of another label": func(r *Ring, o *Object, _ *Facts) {
		r.keyed(byTenant)

		o.Meta.Labels = drained(at("shard-a"))
		metav1.SetMetaDataLabel(&o.Meta.ObjectMeta, tenant, r.tenantOf("shard-b"))
	},
	"keyed by a label that it lacks": func(r *Ring, o *Object, _ *Facts) {
		r.keyed(byTenant)

		o.Meta.Labels = at("shard-b")
	},
	"keyed by label, forbidden": func(r *Ring, o *Object, _ *Facts) {
		r.keyed(byTenant)

		o.Meta = nil
	},
	"selected": func(r *Ring, o *Object, _ *Facts) {
		r.selecting()

		o.Meta.Labels = at("shard-b")
		metav1.SetMetaDataLabel(&o.Meta.ObjectMeta, tenant, "ours")
	},
	"not selected": func(r *Ring, o *Object, _ *Facts) {
		r.selecting()
		metav1.SetMetaDataLabel(&o.Meta.ObjectMeta, tenant, "theirs")
	},
	"not selected any more": func(r *Ring, o *Object, _ *Facts) {
		r.selecting()

		o.Meta.Labels = at("shard-a")
	},
	"selected or not, forbidden": func(r *Ring, o *Object, _ *Facts) {
		r.selecting()

		o.Meta = nil
	},
	"not watched, without a shard": func(r *Ring, _ *Object, _ *Facts) {
		r.has(watching("shard-a", "team-a,team-b"), watching("shard-b", "team-b"))
		r.says(unwatched)
	},
	"not watched, with a shard": func(r *Ring, o *Object, _ *Facts) {
		r.has(watching("shard-a", "team-a"), watching("shard-b", "team-a"))
		r.says(unwatched)

		o.Meta.Labels = at("shard-b")
	},
	"not watched by its shard": func(r *Ring, o *Object, _ *Facts) {
		r.has(watching("shard-a", "team-a"), alive("shard-b"))

		o.Meta.Labels = at("shard-a")
	},
	"watched by its shard only": func(r *Ring, o *Object, _ *Facts) {
		r.has(watching("shard-a", "default"), watching("shard-b", "team-b"))
		r.says(unwatched)

		o.Meta.Labels = at("shard-a")
	},
	"not watched, ring in deletion": func(r *Ring, o *Object, _ *Facts) {
		r.has(watching("shard-a", "team-a"))
		r.DeletionTimestamp = new(metav1.NewTime(now))

		o.Meta.Labels = at("shard-a")
	},
}

// noLabels returns no labels.
func noLabels() map[string]string { return map[string]string{} }

func (r *Ring) isDeleted() {
	r.DeletionTimestamp = new(metav1.NewTime(now.Add(-5 * time.Minute)))
}

// children are the cases of controlled objects; each begins with shard-a and shard-b, and a ConfigMap whose owner belongs to, and
// is at, shard-b.
var children = map[string]func(r *Ring, o *Object, f *Facts){
	"child assigned": func(_ *Ring, o *Object, _ *Facts) { o.Meta.Labels = at("shard-b") },
	"child unassigned": func(_ *Ring, _ *Object, _ *Facts) {
	},
	"child elsewhere": func(_ *Ring, o *Object, _ *Facts) { o.Meta.Labels = at("shard-a") },
	"child of a draining owner": func(r *Ring, o *Object, _ *Facts) {
		o.Meta.Labels = at("shard-a")
		r.Owner.Meta.Labels = drained(at("shard-a"))
	},
	"child at another shard than its draining owner": func(r *Ring, o *Object, _ *Facts) {
		o.Meta.Labels = at("shard-b")
		r.Owner.Meta.Labels = drained(at("shard-a"))
	},
	"child at the next shard of its draining owner at a dead shard": func(r *Ring, o *Object, _ *Facts) {
		o.Meta.Labels = at("shard-b")
		r.Owner.Meta.Labels = drained(at("shard-x"))
	},
	"child of an unassigned owner": func(r *Ring, o *Object, _ *Facts) {
		o.Meta.Labels = at("shard-a")
		r.Owner.Meta.Labels = nil
	},
	"child unassigned of an unassigned owner": func(r *Ring, _ *Object, _ *Facts) { r.Owner.Meta.Labels = nil },
	"child just created of an unassigned owner": func(r *Ring, o *Object, _ *Facts) {
		r.Owner.Meta.Labels = nil
		o.Meta.CreationTimestamp = metav1.NewTime(now.Add(-time.Second))
	},
	"child and owner at a dead shard": func(r *Ring, o *Object, _ *Facts) {
		o.Meta.Labels = at("shard-x")
		r.Owner.Meta.Labels = at("shard-x")
	},
	"child at a dead shard": func(r *Ring, o *Object, _ *Facts) {
		o.Meta.Labels = at("shard-c")
		r.has(alive("shard-a"), alive("shard-b"), released("shard-c"))
	},
	"child of a gone owner": func(r *Ring, o *Object, _ *Facts) {
		o.Meta.Labels = at("shard-a")
		r.Owner = Owner{Found: Missing}
	},
	"child unassigned of a gone owner": func(r *Ring, _ *Object, _ *Facts) { r.Owner = Owner{Found: Missing} },
	"child of a replaced owner": func(r *Ring, o *Object, _ *Facts) {
		o.Meta.Labels = at("shard-b")
		r.Owner.Meta.UID = "another"
	},
	"child of a forbidden owner": func(r *Ring, o *Object, _ *Facts) {
		o.Meta.Labels = at("shard-b")
		r.Owner = Owner{Found: Forbidden}
	},
	"child of nobody": func(_ *Ring, o *Object, _ *Facts) { o.Meta.OwnerReferences = nil },
	"child of a Pod":  func(_ *Ring, o *Object, _ *Facts) { o.controlledBy(pod, "web-0") },
	"grandchild": func(_ *Ring, o *Object, _ *Facts) {
		o.Meta.Labels = at("shard-b")
		o.controlledBy(configMap, "between")
	},
	"grandchild of a draining owner": func(r *Ring, o *Object, _ *Facts) {
		o.Meta.Labels = at("shard-b")
		o.controlledBy(configMap, "between")

		r.Owner.Meta.Labels = drained(at("shard-b"))
	},
	"child of a ConfigMap that follows nobody": func(_ *Ring, o *Object, _ *Facts) { o.controlledBy(configMap, "alone") },
	"child of a ConfigMap that may not be read": func(r *Ring, o *Object, _ *Facts) {
		o.controlledBy(configMap, "unread")

		r.Unread = "ConfigMap unread"
	},
	"child of nobody, labelled": func(_ *Ring, o *Object, _ *Facts) {
		o.Meta.OwnerReferences = nil
		o.Meta.Labels = at("shard-a")
	},
	"child in a deleting ring": func(r *Ring, o *Object, _ *Facts) {
		o.Meta.Labels = at("shard-b")
		r.isDeleted()
	},
	"child forbidden": func(_ *Ring, o *Object, _ *Facts) { o.Meta = nil },
	"child keyed by the label of its owner": func(r *Ring, o *Object, _ *Facts) {
		r.keyed(byTenant)

		o.Meta.Labels = at("shard-b")
		r.Kin = kinOf(*r, *o)
	},
	"child of an owner that is not selected": func(r *Ring, o *Object, _ *Facts) {
		r.selecting()

		r.Owner.Meta.Labels = nil
		r.Kin = kinOf(*r, *o)
	},
	"child of an owner that is not selected any more": func(r *Ring, o *Object, _ *Facts) {
		r.selecting()

		o.Meta.Labels = at("shard-b")
		r.Kin = kinOf(*r, *o)
	},
}

// cases returns the facts of each case.
func cases() map[string]*Facts {
	all := map[string]*Facts{}

	for name, change := range mains {
		r := ringOf("example", alive("shard-a"), alive("shard-b"))
		f := about(r, anObject(website, r.named("shard-b"), nil))
		change(&f.Rings[0], &f.Object, f)
		all[name] = f
	}

	for name, change := range children {
		r := ringOf("example", alive("shard-a"), alive("shard-b"))
		r.Role = resources.Controlled
		r.Owner = Owner{Found: Read, Meta: metaOf(r.named("shard-b"), at("shard-b"))}
		o := anObject(configMap, "settings", nil)
		o.controlledBy(website, r.Owner.Meta.Name)
		f := about(r, o)
		change(&f.Rings[0], &f.Object, f)
		f.Rings[0].Kin = kinOf(f.Rings[0], f.Object)
		all[name] = f
	}

	all["no ring"] = &Facts{Now: now, Object: anObject(pod, "web", nil), Known: keysOf()}
	all["not listed"] = &Facts{Now: now, Object: anObject(pod, "web", nil), Known: keysOf("example", "other")}
	controlled := anObject(pod, "web", nil)
	controlled.controlledBy(website, "web-0")
	all["not listed, but its controller is"] = &Facts{Now: now, Object: controlled, Known: keysOf("example"), Controlling: []string{"example"}}
	all["not listed, forbidden"] = &Facts{Now: now, Object: Object{Resource: resourceOf(pod), Namespace: "default", Name: "web"}, Known: keysOf("example")}

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
		require.True(t, slices.IsSortedFunc(e.GetFindings(), func(a, b *pb.Finding) int { return int(b.GetSeverity()) - int(a.GetSeverity()) }), name)

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
			require.False(t, e.GetHealthy() && r.GetAssignment() != nil && r.GetNext() != Nothing && r.GetNext() != Assign && r.GetNext() != FollowOwner, name)
		}
	}
}
