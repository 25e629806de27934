package admission_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"gotest.tools/v3/golden"
	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/admission"
	"github.com/clusterring/clusterring/services/internal/membership"
	"github.com/clusterring/clusterring/services/internal/resources"
)

const ring = "example"

var (
	shardLabel = contract.ShardLabel(ring)
	drainLabel = contract.DrainLabel(ring)

	websites   = schema.GroupResource{Group: "example.org", Resource: "websites"}
	clusters   = schema.GroupResource{Group: "example.org", Resource: "clusters"}
	configmaps = schema.GroupResource{Resource: "configmaps"}
	pods       = schema.GroupResource{Resource: "pods"}
)

// resolve returns resources as an API server serves them with websites, the cluster-scoped clusters, and configmaps.
func resolve(spec v1alpha1.ClusterRingSpec) *resources.Set {
	mapper := meta.NewDefaultRESTMapper(nil)
	mapper.Add(schema.GroupVersionKind{Group: "example.org", Version: "v1", Kind: "Website"}, meta.RESTScopeNamespace)
	mapper.Add(schema.GroupVersionKind{Group: "example.org", Version: "v1", Kind: "Cluster"}, meta.RESTScopeRoot)
	mapper.AddSpecific(schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"},
		schema.GroupVersionResource{Version: "v1", Resource: "configmaps"},
		schema.GroupVersionResource{Version: "v1", Resource: "configmap"}, meta.RESTScopeNamespace)

	return resources.Resolve(mapper, spec)
}

// sites are websites, which control configmaps.
var sites = v1alpha1.RingResource{Group: "example.org", Resource: "websites",
	ControlledResources: []v1alpha1.ControlledResource{{Resource: "configmaps"}}}

// over is a ring in which nothing moves, over the resources.
func over(spec v1alpha1.ClusterRingSpec, shards ...string) *admission.Ring {
	return changed(state(shards...), func(f *admission.Facts) {
		f.Resources = resolve(spec)

		for _, of := range spec.Resources {
			for i := range f.Ring.Status.Assignment.Resources {
				if is := &f.Ring.Status.Assignment.Resources[i]; is.Group == of.Group && is.Resource == of.Resource {
					is.Key = of.Key
				}
			}
		}
	})
}

// changed is the ring with other facts.
func changed(r *admission.Ring, change func(f *admission.Facts)) *admission.Ring {
	f := r.Facts()
	f.Ring = f.Ring.DeepCopy()
	change(&f)

	return admission.NewRing(f)
}

// view contains a shard for every name. A name of the form "name:holder" is not available, and "namespace/name" is in
// another namespace than the others.
func view(shards ...string) *membership.View { return viewOf(membership.Rules{}, shards...) }

func viewOf(rules membership.Rules, shards ...string) *membership.View {
	var leases []*coordinationv1.Lease

	for _, s := range shards {
		name, holder, other := strings.Cut(s, ":")
		namespace := "default"

		if before, after, found := strings.Cut(name, "/"); found {
			namespace, name = before, after
		}

		if !other {
			holder = name
		}

		leases = append(leases, &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name,
				Labels: map[string]string{contract.LabelClusterRing: ring}},
			Spec: coordinationv1.LeaseSpec{HolderIdentity: new(holder)},
		})
	}

	return rules.View(ring, leases, nil)
}

// state is a ring in which nothing moves.
func state(shards ...string) *admission.Ring {
	v := view(shards...)

	r := &v1alpha1.ClusterRing{ObjectMeta: metav1.ObjectMeta{Name: ring}}
	r.Status.Assignment = &v1alpha1.AssignmentStatus{Fingerprint: v.Fingerprint(),
		Resources: recorded("websites.example.org", "configmaps", "clusters.example.org")}

	return admission.NewRing(admission.Facts{
		Ring: r, View: v, Resources: resolve(v1alpha1.ClusterRingSpec{Resources: []v1alpha1.RingResource{
			sites, {Group: "example.org", Resource: "clusters"}, {Group: "example.org", Resource: "notyet"},
		}}),
	})
}

func recorded(names ...string) (all []v1alpha1.AssignedResource) {
	for _, name := range names {
		gr := schema.ParseGroupResource(name)
		all = append(all, v1alpha1.AssignedResource{Group: gr.Group, Resource: gr.Resource})
	}

	return all
}

// recording is the ring with a status that contains only these resources.
func recording(r *admission.Ring, names ...string) *admission.Ring {
	return changed(r, func(f *admission.Facts) { f.Ring.Status.Assignment.Resources = recorded(names...) })
}

func moving(shards ...string) *admission.Ring { return changed(state(shards...), moves) }

func moves(f *admission.Facts) { f.Ring.Status.Assignment.Fingerprint = view("d").Fingerprint() }

// settledAlone is a ring in which only objects of the resource do not move.
func settledAlone(of schema.GroupResource, shards ...string) *admission.Ring {
	return changed(moving(shards...), func(f *admission.Facts) {
		for i := range f.Ring.Status.Assignment.Resources {
			if is := &f.Ring.Status.Assignment.Resources[i]; is.Group == of.Group && is.Resource == of.Resource {
				is.Fingerprint = f.View.Fingerprint()
			}
		}
	})
}

// paused is a ring in which objects may be elsewhere than their keys say.
func paused(shards ...string) *admission.Ring {
	return changed(state(shards...), func(f *admission.Facts) {
		f.View = viewOf(membership.Rules{Paused: true}, shards...)
		f.Ring.Status.Assignment.Fingerprint = f.View.Fingerprint()
	})
}

// refusedRing is a ring for which no service acts.
func refusedRing(shards ...string) *admission.Ring {
	return changed(state(shards...), func(f *admission.Facts) { f.Refusal = "the reason" })
}

// childless is a ring with only clusters, which nothing follows.
func childless(shards ...string) *admission.Ring {
	return over(v1alpha1.ClusterRingSpec{
		Resources: []v1alpha1.RingResource{{Group: "example.org", Resource: "clusters"}}}, shards...)
}

// people are ancestors: the object with UID 2 follows the website blog, the object with UID 3 follows nothing, the
// controller of the object with UID 4 cannot be determined, and no other objects exist.
type people struct{}

func (people) ControllerOf(
	_ context.Context, of resources.Owner,
) (controller *metav1.OwnerReference, found bool, err error) {
	switch of.UID {
	case "2":
		return &controlledBy("example.org/v1", "Website", "blog")[1], true, nil
	case "3":
		return nil, true, nil
	case "4":
		return nil, false, errors.New("configmaps default/between is forbidden")
	}

	return nil, false, nil
}

// LabelsOf returns the labels of websites by their UIDs in the tests of keys.
func (people) LabelsOf(_ context.Context, of resources.Owner) (labels resources.Labels, found bool, err error) {
	l, found := owners[of.UID]
	if of.UID == "4" {
		return labels, false, errors.New("websites default/blog is forbidden")
	}

	return resources.Labels{All: l, Selected: of.Resource.Selects(l)}, found, nil
}

// grandchild follows the object with this UID, which is itself controlled.
func grandchild(uid string, l map[string]string) *metav1.ObjectMeta {
	refs := controlledBy("v1", "ConfigMap", "between")
	refs[1].UID = types.UID(uid)

	return &metav1.ObjectMeta{Namespace: "default", Name: "blog-1-1", Labels: l, OwnerReferences: refs}
}

func deleting(shards ...string) *admission.Ring {
	return changed(state(shards...), func(f *admission.Facts) { f.Ring.DeletionTimestamp = new(metav1.Now()) })
}

func labels(kv ...string) map[string]string {
	m := map[string]string{}
	for i := 0; i < len(kv); i += 2 {
		m[kv[i]] = kv[i+1]
	}

	return m
}

func controlledBy(apiVersion, kind, name string) []metav1.OwnerReference {
	return []metav1.OwnerReference{
		{APIVersion: "v1", Kind: "Node", Name: "bystander", UID: "1"},
		{APIVersion: apiVersion, Kind: kind, Name: name, UID: "2", Controller: new(true)},
	}
}

func website(l map[string]string) *metav1.ObjectMeta {
	return &metav1.ObjectMeta{Namespace: "default", Name: "blog", Labels: l}
}

func child(l map[string]string) *metav1.ObjectMeta {
	return &metav1.ObjectMeta{Namespace: "default", Name: "blog-1", Labels: l,
		OwnerReferences: controlledBy("example.org/v1beta1", "Website", "blog")}
}

type example struct {
	what string
	ring *admission.Ring
	req  admission.Request
}

func create(gr schema.GroupResource, obj *metav1.ObjectMeta) admission.Request {
	return admission.Request{Ring: ring, Operation: admission.Create, Resource: gr, Object: obj}
}

func updating(gr schema.GroupResource, old, obj *metav1.ObjectMeta) admission.Request {
	return admission.Request{Ring: ring, Operation: admission.Update, Resource: gr, Object: obj, Old: old}
}

func created() []example {
	abc, alone := state("a", "b", "c"), childless("a", "b", "c")
	other, atA := labels("app", "x"), labels(shardLabel, "a")

	foreign := child(nil)
	foreign.OwnerReferences = controlledBy("apps/v1", "ReplicaSet", "blog")

	unowned := child(nil)
	unowned.OwnerReferences[1].Controller = nil

	generated := child(nil)
	generated.Name = ""

	ofCluster := child(nil)
	ofCluster.OwnerReferences = controlledBy("example.org/v1", "Cluster", "blog")

	return []example{
		{"a new main object", abc, create(websites, website(nil))},
		{"a new main object with labels", abc, create(websites, website(other))},
		{"a new main object with an empty map of labels", abc, create(websites, website(labels()))},
		{"a new main object while objects move", moving("a", "b", "c"), create(websites, website(nil))},
		{"a new cluster-scoped main object", abc, create(clusters, &metav1.ObjectMeta{Name: "blog"})},
		{"the same with a namespace, which the request of a Namespace has", abc,
			create(clusters, &metav1.ObjectMeta{Name: "blog", Namespace: "blog"})},
		{"an update of an unassigned object", abc, updating(websites, website(nil), website(other))},
		{"an update of an unassigned object, and nothing follows the object", alone,
			updating(clusters, website(nil), website(other))},
		{"a main object whose name is still to be generated", abc,
			create(websites, &metav1.ObjectMeta{Namespace: "default"})},
		{"a main object that has a shard", abc, create(websites, website(atA))},
		{"a main object with an empty shard label", abc, create(websites, website(labels(shardLabel, "")))},
		{"a left-over drain label", abc, updating(websites, website(other), website(labels(drainLabel, "yes")))},
		{"a left-over drain label, and nothing follows the object", alone,
			updating(clusters, website(other), website(labels(drainLabel, "yes")))},

		{"a new child", abc, create(configmaps, child(nil))},
		{"a new child whose name is still to be generated", abc, create(configmaps, generated)},
		{"a new child of a cluster-scoped owner", abc, create(configmaps, ofCluster)},
		{"a new child in a paused ring", paused("a", "b", "c"), create(configmaps, child(nil))},
		{"a new child while objects move", moving("a", "b", "c"), create(configmaps, child(nil))},
		{"a new child while only objects of other resources move", settledAlone(websites, "a", "b", "c"),
			create(configmaps, child(nil))},
		{"a new child while only objects of its owner's resource move", settledAlone(clusters, "a", "b", "c"),
			create(configmaps, child(nil))},
		{"an object of a controlled resource with a foreign controller", abc, create(configmaps, foreign)},
		{"an object of a controlled resource with an owner that does not control it", abc, create(configmaps, unowned)},

		{"a new grandchild", abc, create(configmaps, grandchild("2", nil))},
		{"a new grandchild while objects move", moving("a", "b", "c"), create(configmaps, grandchild("2", nil))},
		{"a new grandchild while only objects of other resources move", settledAlone(websites, "a", "b", "c"),
			create(configmaps, grandchild("2", nil))},
		{"a new grandchild while only objects of its owner's resource move", settledAlone(clusters, "a", "b", "c"),
			create(configmaps, grandchild("2", nil))},
		{"a new grandchild whose controller is no more while objects of some resource move",
			settledAlone(websites, "a", "b", "c"), create(configmaps, grandchild("5", nil))},
		{"a new grandchild whose controller nobody controls", abc, create(configmaps, grandchild("3", nil))},
		{"a new grandchild whose controller cannot be read", abc, create(configmaps, grandchild("4", nil))},
		{"a new grandchild whose controller is no more", abc, create(configmaps, grandchild("5", nil))},
		{"a dropped label of a grandchild", abc, updating(configmaps, grandchild("2", atA), grandchild("2", nil))},
		{"a dropped label of a grandchild that follows nobody any more", abc,
			updating(configmaps, grandchild("3", atA), grandchild("3", nil))},
		{"a grandchild with a label, whose controller cannot be read", abc,
			updating(configmaps, grandchild("4", atA), grandchild("4", atA))},
	}
}

func dropped() []example {
	abc, alone := state("a", "b", "c"), childless("a", "b", "c")
	other, atA := labels("app", "x"), labels(shardLabel, "a")
	drained := labels(shardLabel, "a", drainLabel, "true")

	foreign := child(nil)
	foreign.OwnerReferences = controlledBy("apps/v1", "ReplicaSet", "blog")

	return []example{
		{"a dropped label", abc, updating(websites, website(atA), website(nil))},
		{"a dropped label, others stay", abc, updating(websites, website(atA), website(other))},
		{"a dropped label, and a drain label that was not there before", abc,
			updating(websites, website(atA), website(labels(drainLabel, "true")))},
		{"a dropped label of a child", moving("a", "b", "c"), updating(configmaps, child(atA), child(nil))},
		{"a dropped label of a child that now is somebody else's", abc, updating(configmaps, child(atA), foreign)},
		{"a dropped label of a shard that released its Lease", state("a:", "b", "c"),
			updating(websites, website(atA), website(nil))},
		{"a dropped label of a shard whose Lease was taken", state("a:shardlease-controller", "b", "c"),
			updating(websites, website(atA), website(nil))},
		{"a dropped label of a shard whose Lease is gone", state("b", "c"), updating(websites, website(atA), website(nil))},
		{"a dropped label where no shard is left", state(), updating(websites, website(atA), website(nil))},
		{"a dropped label that was empty", abc, updating(websites, website(labels(shardLabel, "")), website(nil))},
		{"a dropped label that was empty, and nothing follows the object", alone,
			updating(clusters, website(labels(shardLabel, "")), website(nil))},
		{"a dropped label of a shard whose name is held twice", state("a", "other/a", "b"),
			updating(websites, website(atA), website(nil))},
		{"a dropped label of a shard whose name is held once", state("a:", "other/a", "b"),
			updating(websites, website(atA), website(nil))},
		{"an acknowledged drain", abc, updating(websites, website(drained), website(other))},
		{"an acknowledged drain, and nothing follows the object", alone,
			updating(clusters, website(drained), website(other))},
		{"half an acknowledged drain", abc, updating(websites, website(drained), website(labels(drainLabel, "true")))},
		{"half an acknowledged drain, and nothing follows the object", alone,
			updating(clusters, website(drained), website(labels(drainLabel, "true")))},
		{"an acknowledged drain after the last shard has gone", state(), updating(websites, website(drained), website(nil))},
	}
}

func refused() []example {
	abc, atA := state("a", "b", "c"), labels(shardLabel, "a")

	remove := create(websites, website(nil))
	remove.Operation = "DELETE"
	unrecorded := recording(state("a"), "configmaps", "clusters.example.org")

	return []example{
		{"no shard", state(), create(websites, website(nil))},
		{"no shard for a child", moving(), create(configmaps, child(nil))},
		{"no shard whose name can be a label", state("-"), create(websites, website(nil))},
		{"no such ring", nil, create(websites, website(nil))},
		{"a ring that is being deleted", deleting("a"), create(websites, website(nil))},
		{"a dropped label in a ring that is being deleted", deleting("a"), updating(websites, website(atA), website(nil))},
		{"a ring whose label another ring uses", refusedRing("a"), create(websites, website(nil))},
		{"a dropped label in a ring whose label another ring uses", refusedRing("a"),
			updating(websites, website(atA), website(nil))},
		{"a resource that the ring's status does not name yet", unrecorded, create(websites, website(nil))},
		{"a child of it, whose own resource it names", unrecorded, create(configmaps, child(nil))},
		{"a dropped label of a resource that the ring's status does not name", unrecorded,
			updating(websites, website(atA), website(nil))},
		{"a resource of another ring", abc, create(pods, website(nil))},
		{"a resource that is not served yet", abc,
			create(schema.GroupResource{Group: "example.org", Resource: "notyet"}, website(nil))},
		{"a resource of the same name in another group", abc,
			create(schema.GroupResource{Resource: "websites"}, website(nil))},
		{"a deletion", abc, remove},
		{"an object that cannot be read", abc, create(websites, nil)},
	}
}

// TestDecide compares the answers to all examples with the reviewed answers in testdata.
func TestDecide(t *testing.T) {
	var table strings.Builder

	for _, e := range slices.Concat(created(), dropped(), refused(), byShards(), relabeled()) {
		t.Run(e.what, func(t *testing.T) {
			a := admission.Decide(t.Context(), e.ring, &e.req, people{})
			writes := a.Outcome == admission.Assigned || a.Outcome == admission.ByShard || a.Outcome == admission.Restored
			require.Equal(t, writes, a.Shard != "")

			fmt.Fprintf(&table, "%s\n  outcome: %s\n", e.what, a.Outcome)

			if writes {
				if a.Outcome != admission.Restored {
					require.True(t, e.ring.Facts().View.Available(a.Shard), "shard %q is available", a.Shard)
				}

				patch, err := e.ring.Patch(a, e.req.Object)
				require.NoError(t, err)
				fmt.Fprintf(&table, "  patch: %s\n", patch)
			}

			if a.Warning != "" {
				fmt.Fprintf(&table, "  warning: %s\n", a.Warning)
			}
		})
	}

	golden.Assert(t, table.String(), "decisions.txt")
}

func BenchmarkDecide(b *testing.B) {
	for _, n := range []int{3, 50, 500} {
		shards := make([]string, 0, n)
		for i := range n {
			shards = append(shards, fmt.Sprintf("shard-%d", i))
		}

		r := state(shards...)

		for _, c := range []struct {
			what string
			req  admission.Request
		}{{"main", create(websites, website(nil))}, {"child", create(configmaps, child(nil))}} {
			b.Run(fmt.Sprintf("%s/shards=%d", c.what, n), func(b *testing.B) {
				b.ReportAllocs()

				for b.Loop() {
					if admission.Decide(b.Context(), r, &c.req, people{}).Shard == "" {
						b.Fatal("not assigned")
					}
				}
			})
		}
	}
}

// nobody are ancestors that must not be asked: each question costs a request, and anybody can create an object that
// makes one.
type nobody struct{ *testing.T }

func (n nobody) ControllerOf(
	context.Context, resources.Owner,
) (controller *metav1.OwnerReference, found bool, err error) {
	n.Error("asked for a controller")

	return nil, false, nil
}

func (n nobody) LabelsOf(context.Context, resources.Owner) (labels resources.Labels, found bool, err error) {
	n.Error("asked for labels")

	return labels, false, nil
}

func TestNothingIsReadInVain(t *testing.T) {
	for want, examples := range map[admission.Outcome][]example{
		admission.Moving: {
			{"objects move", moving("a", "b", "c"), create(configmaps, grandchild("2", nil))},
			{"the ring is paused", paused("a", "b"), create(configmaps, grandchild("2", nil))},
		},
		admission.NoShard:    {{"no shard", state(), create(configmaps, grandchild("2", nil))}},
		admission.Unrecorded: {{"not recorded", recording(state("a", "b")), create(configmaps, grandchild("2", nil))}},
		admission.Restored: {
			{"a dropped label", state("a"), updating(configmaps, child(labels(shardLabel, "a")), child(nil))},
		},
		admission.ForeignOwner: {
			{"a foreign controller", state("a"), create(configmaps, &metav1.ObjectMeta{Namespace: "default", Name: "a"})},
		},
		admission.ByShard: {
			{"a shard creates it while nothing moves", keyed(byTenant), by("a", create(configmaps, child(nil)))},
			{"a shard creates it while objects move",
				keyed(byTenant, moves), by("a", create(configmaps, child(nil)))},
			{"a shard creates it in a new key",
				keyed(byTenant, rekeying), by("a", create(configmaps, child(nil)))},
		},
	} {
		for _, e := range examples {
			t.Run(e.what, func(t *testing.T) {
				require.Equal(t, want, admission.Decide(t.Context(), e.ring, &e.req, nobody{t}).Outcome)
			})
		}
	}
}

func TestAProbeIsAnsweredByAReplicaThatDoesNotKnowTheRing(t *testing.T) {
	answer := admission.Decide(t.Context(), nil, &admission.Request{
		Ring: "example", Operation: admission.Update, SubResource: "status",
		Resource: schema.GroupResource{Group: v1alpha1.GroupVersion.Group, Resource: "clusterrings"},
	}, nil)
	require.Equal(t, admission.Answer{Outcome: admission.Probed, Warning: admission.Arrived}, answer)
}

// relabeled returns the examples of updates that change the shard label, and those of subresources.
func relabeled() []example {
	abc := state("a", "b", "c")
	atA, drained := labels(shardLabel, "a"), labels(shardLabel, "a", drainLabel, "true")

	status := func(was, is map[string]string) admission.Request {
		r := updating(websites, website(was), website(is))
		r.SubResource = "status"

		return r
	}

	return []example{
		{"another shard", abc, updating(websites, website(atA), website(labels(shardLabel, "b")))},
		{"no shard's name", abc, updating(websites, website(atA), website(labels(shardLabel, "")))},
		{"another shard, for a child", abc, updating(configmaps, child(atA), child(labels(shardLabel, "b")))},
		{"another shard, from one that is gone", state("b", "c"),
			updating(websites, website(atA), website(labels(shardLabel, "b")))},
		{"another shard during a drain", abc,
			updating(websites, website(drained), website(labels(shardLabel, "b", drainLabel, "true")))},
		{"the shard that the drain names", abc,
			updating(websites, website(labels(shardLabel, "a", drainLabel, "b")), website(labels(shardLabel, "b")))},
		{"another one than the drain names", abc,
			updating(websites, website(labels(shardLabel, "a", drainLabel, "b")), website(labels(shardLabel, "c")))},
		{"a shard for an object without one", abc, updating(websites, website(nil), website(atA))},
		{"a status with another shard", abc, status(atA, labels(shardLabel, "b"))},
		{"a status without the shard", abc, status(atA, nil)},
		{"a status by which an object is released", abc, status(drained, nil)},
		{"a status of an object without a shard", abc, status(nil, nil)},
		{"a status", abc, status(atA, atA)},
		{"a status that cannot be read", abc,
			admission.Request{Ring: ring, Operation: admission.Update, Resource: websites, SubResource: "status"}},
	}
}

// TestOwnShardLabel: a ring with a label of its own assigns by it, and takes no notice of the default label.
func TestOwnShardLabel(t *testing.T) {
	const label = "cloudapi.team-orca.dev/shard"

	own := changed(state("a"), func(f *admission.Facts) { f.Ring.Spec.ShardLabel = label })

	for _, tc := range []struct {
		what string
		req  admission.Request
		want admission.Outcome
	}{
		{"new", create(websites, website(nil)), admission.Assigned},
		{"with the default label", create(websites, website(labels(shardLabel, "a"))), admission.Assigned},
		{"with the label", create(websites, website(labels(label, "a"))), admission.Labelled},
		{"with the label, which is dropped", updating(websites, website(labels(label, "a")), website(nil)),
			admission.Restored},
		{"drained", updating(websites, website(labels(label, "a", label+"-drain", "true")), website(nil)),
			admission.Handover},
		{"drained by the default label", updating(websites, website(labels(label, "a", drainLabel, "true")), website(nil)),
			admission.Restored},
	} {
		t.Run(tc.what, func(t *testing.T) {
			answer := admission.Decide(t.Context(), own, &tc.req, nil)
			require.Equal(t, tc.want, answer.Outcome)

			if answer.Shard == "" {
				return
			}

			patch, err := own.Patch(answer, tc.req.Object)
			require.NoError(t, err)
			require.Contains(t, strings.ReplaceAll(string(patch), "~1", "/"), label) // as in a JSON pointer
			require.NotContains(t, string(patch), "timebertt")
		})
	}
}

// by is a request of the Pod, which is in the namespace of the shards unless its name says "namespace/name".
func by(pod string, req admission.Request) admission.Request {
	namespace, name, found := strings.Cut(pod, "/")
	if !found {
		namespace, name = "default", pod
	}

	req.Writer = types.NamespacedName{Namespace: namespace, Name: name}

	return req
}

// byShards are examples of what shards, and other Pods, write.
func byShards() []example {
	abc, abcMove := state("a", "b", "c"), moving("a", "b", "c")
	other := labels("app", "x")

	foreign := child(nil)
	foreign.OwnerReferences = controlledBy("apps/v1", "ReplicaSet", "blog")

	return []example{
		{"a new child by a shard while objects move", abcMove, by("a", create(configmaps, child(nil)))},
		{"the same by another shard", abcMove, by("c", create(configmaps, child(other)))},
		{"the same with a left-over drain label", abcMove, by("a", create(configmaps, child(labels(drainLabel, "true"))))},
		{"a new child by a shard in a paused ring", paused("a", "b", "c"), by("a", create(configmaps, child(nil)))},
		{"a new grandchild by a shard, whose controller cannot be read", abcMove,
			by("a", create(configmaps, grandchild("4", nil)))},
		{"a new child by a shard while nothing moves", abc, by("a", create(configmaps, child(nil)))},
		{"a new grandchild by a shard while nothing moves", abc, by("a", create(configmaps, grandchild("4", nil)))},
		{"a new child by a Pod that is no shard", abcMove, by("d", create(configmaps, child(nil)))},
		{"a new child by a Pod with the name of a shard in another namespace", abcMove,
			by("other/a", create(configmaps, child(nil)))},
		{"a new child by a shard that released its Lease", moving("a:", "b", "c"), by("a", create(configmaps, child(nil)))},
		{"a new child by a shard whose Lease was taken", moving("a:shardlease-controller", "b", "c"),
			by("a", create(configmaps, child(nil)))},
		{"a new child by a shard whose name is held twice", moving("a", "other/a", "b"),
			by("a", create(configmaps, child(nil)))},
		{"an update of a child by a shard", abcMove, by("a", updating(configmaps, child(nil), child(other)))},
		{"a new child of a resource that the ring's status does not name yet, by a shard",
			recording(abcMove, "websites.example.org"), by("a", create(configmaps, child(nil)))},
		{"a new object with a foreign controller, by a shard", abcMove, by("a", create(configmaps, foreign))},
		{"a new main object by a shard", abcMove, by("a", create(websites, website(nil)))},
	}
}

// watching is a ring of shards that watch one namespace each.
func watching(namespaces map[string]string, moves bool) *admission.Ring {
	at := metav1.NowMicro()

	var leases []*coordinationv1.Lease
	for name, namespace := range namespaces {
		leases = append(leases, &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "default", Name: name, Labels: map[string]string{contract.LabelClusterRing: ring},
				Annotations: map[string]string{contract.AnnotationNamespaces: contract.NamespacesValue([]string{namespace},
					at.Time)},
			},
			Spec: coordinationv1.LeaseSpec{HolderIdentity: new(name), RenewTime: &at},
		})
	}

	return changed(state(), func(f *admission.Facts) {
		if f.View = membership.NewView(ring, leases, nil); !moves {
			f.Ring.Status.Assignment.Fingerprint = f.View.Fingerprint()
		}
	})
}

// An object gets no shard that does not see it.
func TestShardThatDoesNotWatchTheNamespace(t *testing.T) {
	r := watching(map[string]string{"a": "default", "b": "other"}, false)

	for i := range 20 {
		site := create(websites, &metav1.ObjectMeta{Namespace: "default", Name: string(rune('a' + i))})
		require.Equal(t, "a", admission.Decide(t.Context(), r, &site, people{}).Shard)
	}

	site := create(websites, &metav1.ObjectMeta{Namespace: "third", Name: "a"})
	answer := admission.Decide(t.Context(), r, &site, people{})
	require.Equal(t, admission.NoShard, answer.Outcome)
	require.Empty(t, answer.Shard)
	require.Contains(t, answer.Warning, "no available shard that watches namespace third")
}

// A shard gets no object that it does not see, even if it creates the object.
func TestChildBeyondTheNamespacesOfTheShard(t *testing.T) {
	r := watching(map[string]string{"a": "default"}, true)

	for namespace, want := range map[string]admission.Outcome{"default": admission.ByShard, "other": admission.Moving} {
		object := child(nil)
		object.Namespace = namespace
		req := by("a", create(configmaps, object))
		require.Equal(t, want, admission.Decide(t.Context(), r, &req, people{}).Outcome, namespace)
	}
}
