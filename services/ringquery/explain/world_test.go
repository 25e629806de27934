package explain

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	pb "github.com/clusterring/clusterring/proto/clusterring/diagnostics/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/key"
	"github.com/clusterring/clusterring/services/internal/lease"
	"github.com/clusterring/clusterring/services/internal/membership"
	"github.com/clusterring/clusterring/services/internal/plan"
	"github.com/clusterring/clusterring/services/internal/resources"
	"github.com/clusterring/clusterring/services/ringquery/rings"
)

// now is the time of all explanations in the tests.
var now = time.Date(2026, 3, 4, 3, 0, 0, 0, time.UTC)

var (
	website   = schema.GroupVersionKind{Group: "example.dev", Version: "v1", Kind: "Website"}
	configMap = schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"}
	pod       = schema.GroupVersionKind{Version: "v1", Kind: "Pod"}
)

// mapper serves the kinds above.
func mapper() meta.RESTMapper {
	m := meta.NewDefaultRESTMapper(nil)
	for _, kind := range []schema.GroupVersionKind{website, configMap, pod} {
		m.Add(kind, meta.RESTScopeNamespace)
	}

	return m
}

// resourceOf returns the resource of a kind.
func resourceOf(kind schema.GroupVersionKind) resources.Resource {
	plural, _ := meta.UnsafeGuessKindToResource(kind)
	return resources.Resource{GVR: plural, Kind: kind, Namespaced: true}
}

// holding is a Lease in a test: its holder and its state.
type holding struct {
	namespace, name, holder string
	state                   lease.State
	age                     time.Duration
	atLeast                 bool
	stops                   bool
	watches                 string // the namespaces that it watches; empty for all
}

// silent is the Lease of a shard that has not renewed it for some time.
func silent(name string, age time.Duration) holding {
	return holding{namespace: "ctl", name: name, holder: name, state: lease.Ready, age: age}
}

// alive, stopping, and watching are Leases of shards that work: usually, while they stop, and in some namespaces.
func alive(name string) holding { return silent(name, 2*time.Second) }

func stopping(name string) holding {
	h := alive(name)
	h.stops = true

	return h
}

func watching(name, namespaces string) holding {
	h := alive(name)
	h.watches = namespaces

	return h
}

// released and taken are Leases of shards that do not work.
func released(name string) holding {
	return holding{namespace: "ctl", name: name, state: lease.Dead, age: time.Minute}
}

func taken(name string) holding {
	h := released(name)
	h.holder = contract.LeaseControllerIdentity

	return h
}

// ringOf returns a ring of Websites that control ConfigMaps, with these Leases.
func ringOf(name string, leases ...holding) Ring {
	declared := &v1alpha1.ClusterRing{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1alpha1.ClusterRingSpec{Resources: []v1alpha1.RingResource{{
			Group: website.Group, Resource: "websites",
			ControlledResources: []v1alpha1.ControlledResource{{Resource: "configmaps"}},
		}}},
		Status: v1alpha1.ClusterRingStatus{Conditions: []metav1.Condition{
			condition(v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReconciliationSucceeded, ""),
			condition(v1alpha1.ConditionAssigned, metav1.ConditionTrue, v1alpha1.ReasonAllAssigned, ""),
			condition(v1alpha1.ConditionWebhookRegistered, metav1.ConditionTrue, v1alpha1.ReasonRegistered, ""),
		}},
	}

	r := Ring{
		Ring: rings.Ring{ClusterRing: declared, Keys: declared.LabelKeys(),
			Resources: resources.Resolve(mapper(), declared.Spec)},
		Subject: resources.Subject{Role: resources.Main}, Coverage: rings.Covered,
	}
	r.has(leases...)

	return r
}

func condition(kind string, status metav1.ConditionStatus, reason, message string) metav1.Condition {
	return metav1.Condition{
		Type: kind, Status: status, Reason: reason, Message: message, LastTransitionTime: metav1.NewTime(now.Add(-time.Hour)),
	}
}

// says adds a condition.
func (r *Ring) says(c metav1.Condition) {
	meta.SetStatusCondition(&r.Status.Conditions, c)
}

// fails adds a condition that is False.
func (r *Ring) fails(kind, reason, message string) {
	r.says(condition(kind, metav1.ConditionFalse, reason, message))
}

// has replaces the Leases of the ring.
func (r *Ring) has(leases ...holding) {
	all := make([]*coordinationv1.Lease, 0, len(leases))
	for _, h := range leases {
		all = append(all, &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: h.namespace, Name: h.name, Labels: map[string]string{contract.LabelClusterRing: r.Name},
			},
			Spec: coordinationv1.LeaseSpec{HolderIdentity: new(h.holder), LeaseDurationSeconds: new(int32(15)),
				RenewTime: new(metav1.NewMicroTime(now))},
		})
		if h.stops {
			metav1.SetMetaDataAnnotation(&all[len(all)-1].ObjectMeta, contract.AnnotationStopping, contract.OfferValue(now))
		}

		if h.watches != "" {
			metav1.SetMetaDataAnnotation(&all[len(all)-1].ObjectMeta, contract.AnnotationNamespaces,
				h.watches+"/"+contract.OfferValue(now))
		}
	}

	r.View, r.Shards = membership.RulesOf(r.ClusterRing).View(r.Name, all, nil), nil
	for _, s := range r.View.Shards() {
		for _, h := range leases {
			if h.namespace == s.Namespace && h.name == s.Name {
				r.Shards = append(r.Shards, r.Shard(s, h.state, h.age, h.atLeast))
			}
		}
	}
}

// named returns the name of a Website in namespace default that belongs to the shard.
func (r *Ring) named(shard string) string {
	for i := 0; ; i++ {
		name := fmt.Sprint("web-", i)

		k := key.Key{Group: website.Group, Kind: website.Kind, Namespace: "default", Name: name}
		if owner, _ := r.View.Owner(k); owner == shard {
			return name
		}
	}
}

// anObject returns an object of the kind, an hour old.
func anObject(kind schema.GroupVersionKind, name string, marks map[string]string) Object {
	return Object{Resource: resourceOf(kind), Namespace: "default", Name: name, Meta: metaOf(name, marks)}
}

func metaOf(name string, marks map[string]string) *metav1.PartialObjectMetadata {
	return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
		Namespace: "default", Name: name, UID: "uid-of-object", Labels: marks,
		CreationTimestamp: metav1.NewTime(now.Add(-time.Hour)),
	}}
}

// at returns the labels of an object at the shard, of ring "example".
func at(shard string) map[string]string {
	if shard == "" {
		return map[string]string{}
	}

	return map[string]string{contract.ShardLabel("example"): shard}
}

// drained adds the drain label.
func drained(labels map[string]string) map[string]string {
	labels = maps.Clone(labels)
	labels[contract.DrainLabel("example")] = contract.DrainValue

	return labels
}

// wrote adds a manager that wrote a label some time ago.
func (o *Object) wrote(manager, label string, ago time.Duration) {
	fields := fmt.Sprintf(`{"f:metadata":{"f:labels":{"f:%s":{}}}}`, label)
	o.Meta.ManagedFields = append(o.Meta.ManagedFields, metav1.ManagedFieldsEntry{
		Manager: manager, Operation: metav1.ManagedFieldsOperationUpdate, Time: new(metav1.NewTime(now.Add(-ago))),
		FieldsV1: metav1.NewFieldsV1(fields),
	})
}

// controlledBy sets the controller of an object.
func (o *Object) controlledBy(kind schema.GroupVersionKind, name string) {
	o.Meta.OwnerReferences = []metav1.OwnerReference{{
		APIVersion: kind.GroupVersion().String(), Kind: kind.Kind, Name: name, UID: "uid-of-object", Controller: new(true),
	}}
}

// text renders an explanation for a golden file.
func text(e *pb.ExplainResponse) string {
	var b strings.Builder

	fmt.Fprintf(&b, "healthy: %t\n", e.GetHealthy())

	for _, f := range e.GetFindings() {
		fmt.Fprintf(&b, "\n%s %s", strings.ToUpper(word(f.GetSeverity(), "SEVERITY_")), f.GetReason())

		if f.GetRing() != "" {
			fmt.Fprintf(&b, " (ring %s)", f.GetRing())
		}

		fmt.Fprintf(&b, "\n%s\n", f.GetMessage())

		if f.GetAdvice() != "" {
			fmt.Fprintf(&b, "→ %s\n", f.GetAdvice())
		}
	}

	for _, r := range e.GetRings() {
		b.WriteString("\n" + ringText(r))
	}

	return b.String()
}

// word returns the name of an enum value. Empty: it is unspecified.
func word(value fmt.Stringer, prefix string) string {
	name := strings.ToLower(strings.ReplaceAll(strings.TrimPrefix(value.String(), prefix), "_", " "))
	return strings.TrimPrefix(name, "unspecified")
}

func ringText(r *pb.RingExplanation) string {
	a := r.GetAssignment()
	shard := cmp.Or(a.GetShard(), r.GetActualShard().GetName())

	text := fmt.Sprintf("ring %s: role %q, covered %t, state %q, shard %q, desired %q", r.GetRing(),
		word(r.GetRole(), "ROLE_"), r.GetCovered(), word(a.GetState(), "ASSIGNMENT_STATE_"), shard,
		r.GetLocation().GetShard())
	if a.GetDrainTime() != nil {
		text += ", drain since " + a.GetDrainTime().AsTime().Format(time.TimeOnly)
	}

	if o := r.GetOwner(); o != nil {
		text += fmt.Sprintf("\n  owner %s %s/%s: %s, shard %q, draining %t", o.GetResource(), o.GetNamespace(), o.GetName(),
			map[pb.Found]string{pb.Found_FOUND_YES: "found", pb.Found_FOUND_NO: "missing",
				pb.Found_FOUND_FORBIDDEN: "forbidden"}[o.GetFound()],
			o.GetShard(), o.GetDraining())
	}

	next := word(r.GetNext(), "NEXT_STEP_")
	if r.GetNext() == Nothing {
		next = "nothing"
	}

	return text + fmt.Sprintf("\n  next: %s by %q\n", next, r.GetNextActor())
}

// keysOf returns the keys of rings with these names.
func keysOf(names ...string) []contract.LabelKeys {
	keys := []contract.LabelKeys{}
	for _, name := range names {
		keys = append(keys, contract.LabelKeysOf(name, ""))
	}

	return keys
}

// follow records the object, and what it follows.
func (r *Ring) follow(o Object) {
	name := ""
	if r.Owner != nil {
		name = r.Owner.Name
	}

	r.Subject.Resource, _, _ = r.Resources.Find(o.Resource.GroupResource())
	r.Subject.Object, r.Kin = o.Meta, nil

	if kin, ok, err := r.Resources.KinOf(context.Background(), r.Subject, between{name}); ok && err == nil {
		r.Kin = &kin
	}
}

// verbs maps the verbs of the plan to the possible next steps.
var verbs = map[plan.Verb][]pb.NextStep{
	plan.None:                 {Nothing, TakeOver, FollowOwner},
	plan.Assign:               {Assign, TakeOver},
	plan.Drain:                {Drain},
	plan.Withdraw:             {Withdraw},
	plan.Release:              {Release},
	plan.AwaitAcknowledgement: {Acknowledge, FollowOwner},
	plan.AwaitShard:           {AwaitShard},
}

// TestNextIsWhatTheRebalancerDoes compares the next step with the plan for every state of labels, shards, ring, and
// owner.
func TestNextIsWhatTheRebalancerDoes(t *testing.T) {
	shards := []string{"", "shard-a", "shard-b", "shard-dead", "shard-gone"}
	leases := []holding{alive("shard-a"), alive("shard-b"), released("shard-dead")}
	seen := map[plan.Verb]bool{}

	for _, available := range []bool{true, false} {
		for _, covered := range []bool{true, false} {
			for _, shard := range shards {
				for _, drain := range []bool{false, true} {
					for _, ownerAt := range append(shards, "absent", "none") {
						for _, ownerDrains := range []bool{false, true} {
							r := ringOf("example", leases...)

							name := r.named("shard-b")
							if !available {
								r.has(released("shard-a"), released("shard-b"))
							}

							if !covered {
								r.Coverage = rings.NotCovered
							}

							marks := at(shard)
							if drain {
								marks = drained(marks)
							}

							o := anObject(website, name, marks)

							in := plan.Object{Shard: shard, Labelled: shard != "", Draining: drain, Belongs: covered}
							if covered && available {
								in.Desired = "shard-b"
							}

							if ownerAt != "none" {
								o = anObject(configMap, "settings", marks)
								o.controlledBy(website, name)

								r.Subject.Role, in.Controlled = resources.Controlled, true
								if ownerAt != "absent" {
									r.Owner = metaOf(name, at(ownerAt))

									in.Owner = plan.Owner{Exists: true, Shard: ownerAt, Draining: ownerDrains, Belongs: covered}
									if ownerDrains {
										r.Owner.Labels = drained(at(ownerAt))
									}
								}
							}

							want := plan.Decide(r.View, in)
							seen[want.Verb] = true
							e := Explain(about(r, o))
							got := e.GetRings()[0]
							require.Contains(t, verbs[want.Verb], got.GetNext(), "%+v", in)
							require.Equal(t, want.Verb == plan.Assign && want.TakenFrom != "", got.GetNext() == TakeOver, "%+v", in)
							require.NotEmpty(t, e.GetFindings())

							if covered && shard != "shard-a" && shard != "shard-b" {
								require.Equal(t, Error, e.GetFindings()[0].GetSeverity(), "nobody works on it: %+v", in)
							}

							if want.Verb == plan.Assign && covered {
								require.Contains(t, text(e), want.To, "%+v", in)
							}
						}
					}
				}
			}
		}
	}

	require.Len(t, seen, len(verbs), "every verb was met")
}

// keyed gives the Websites of the ring a key.
func (r *Ring) keyed(k v1alpha1.ObjectKey) {
	r.Spec.Resources[0].Key = &k
	r.Resources = resources.Resolve(mapper(), r.Spec)
}

// tenantOf returns a tenant that belongs to the shard.
func (r *Ring) tenantOf(shard string) string {
	for i := 0; ; i++ {
		name := fmt.Sprint("tenant-", i)
		if owner, _ := r.View.Owner(key.OfLabel(tenant, name)); owner == shard {
			return name
		}
	}
}

// byTenant is the key of objects with a tenant.
var byTenant = v1alpha1.ObjectKey{Type: v1alpha1.KeyLabel, Label: tenant}

// selecting lets the ring shard only the Websites of one tenant.
func (r *Ring) selecting() {
	r.Spec.ObjectSelector = &metav1.LabelSelector{MatchLabels: map[string]string{tenant: "ours"}}
	r.Resources = resources.Resolve(mapper(), r.Spec)
}
