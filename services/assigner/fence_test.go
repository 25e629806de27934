package assigner_test

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/clusterring"
)

// fenced is a ring with a fence whose shards have an account of the test's namespace.
type fenced struct{ *fixture }

// newFenced returns a ring with shards a and b, of which the assigner may write the fence.
func newFenced(t *testing.T, name string, mode v1alpha1.FenceMode) *fenced {
	t.Helper()

	f := &fenced{newFixture(t, name, "a", "b")}
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		b := &admissionregistrationv1.ValidatingAdmissionPolicyBinding{
			ObjectMeta: metav1.ObjectMeta{Name: contract.FenceName(name)},
		}
		require.NoError(t, client.IgnoreNotFound(f.Client.Delete(ctx, b)))
		require.NoError(t, client.IgnoreNotFound(f.Client.Delete(ctx, f.parameter())))
	})
	f.subresources()
	f.writers(f.namespace)
	f.allow("fence", ofAssigner, rbacv1.PolicyRule{
		APIGroups: []string{"admissionregistration.k8s.io"}, Resources: []string{"validatingadmissionpolicybindings"},
		ResourceNames: []string{contract.FenceName(f.name)}, Verbs: []string{"create", "patch", "update", "delete"},
	})
	f.mode(mode)

	return f
}

// parameter returns the name of what the fence knows about the ring.
func (f *fenced) parameter() *v1alpha1.PolicyParameter {
	return &v1alpha1.PolicyParameter{ObjectMeta: metav1.ObjectMeta{Name: contract.FenceName(f.name)}}
}

// describe tells the fence about the ring as it is, and about the holders, on behalf of the lease monitor.
func (f *fenced) describe(holders ...v1alpha1.ShardHolder) {
	f.t.Helper()

	want := clusterring.FenceParameter(f.ring(), holders)
	if want == nil {
		require.NoError(f.t, client.IgnoreNotFound(f.Client.Delete(f.t.Context(), f.parameter())))
		return
	}

	have := f.parameter()
	_, err := controllerutil.CreateOrUpdate(f.t.Context(), f.Client, have, func() error {
		have.Labels, have.Data = want.Labels, want.Data
		return nil
	})
	require.NoError(f.t, err)
}

// subresources adds the subresources status and scale to websites.
func (f *fenced) subresources() {
	f.t.Helper()

	crd := &apiextensionsv1.CustomResourceDefinition{}
	require.NoError(f.t, f.Client.Get(f.t.Context(), client.ObjectKey{Name: "websites." + f.kind.Group}, crd))
	before := crd.DeepCopy()
	crd.Spec.Versions[0].Subresources = &apiextensionsv1.CustomResourceSubresources{
		Status: &apiextensionsv1.CustomResourceSubresourceStatus{},
		Scale: &apiextensionsv1.CustomResourceSubresourceScale{SpecReplicasPath: ".spec.replicas",
			StatusReplicasPath: ".status.replicas"},
	}
	require.NoError(f.t, f.Client.Patch(f.t.Context(), crd, client.MergeFrom(before)))
}

// mode sets the mode of the fence; "" removes the fence.
func (f *fenced) mode(mode v1alpha1.FenceMode) {
	f.t.Helper()

	defer f.describe()
	f.changeRing(func(r *v1alpha1.ClusterRing) {
		r.Spec.Fence = nil
		if mode != "" {
			r.Spec.Fence = &v1alpha1.Fence{Mode: mode,
				ServiceAccounts: []v1alpha1.ServiceAccountReference{{Namespace: f.namespace, Name: account}}}
		}
	})
}

// of returns a client of a service account of the test's namespace, and its warnings. Unless pod is empty, its token is
// bound to that Pod.
func (f *fenced) of(account, pod string) (client.Client, *warnings) {
	f.t.Helper()

	w := &warnings{}

	return f.clientWith(func(c *rest.Config) {
		c.WarningHandler = w
		c.Impersonate = rest.ImpersonationConfig{
			UserName: "system:serviceaccount:" + f.namespace + ":" + account,
			Groups:   []string{"system:serviceaccounts", "system:serviceaccounts:" + f.namespace, "system:authenticated"},
		}

		if pod != "" {
			c.Impersonate.Extra = map[string][]string{"authentication.kubernetes.io/pod-name": {pod}}
		}
	}), w
}

// pod returns a client of a shard whose token is bound to the Pod.
func (f *fenced) pod(name string) client.Client {
	f.t.Helper()

	c, _ := f.of(account, name)

	return c
}

// fence returns the condition Fenced, as status, reason, and message; "" if there is none.
func (f *fenced) fence() string {
	c := apimeta.FindStatusCondition(f.ring().Status.Conditions, v1alpha1.ConditionFenced)
	if c == nil {
		return ""
	}

	return string(c.Status) + " " + c.Reason + " " + c.Message
}

// reports waits until the condition Fenced begins as given.
func (f *fenced) reports(prefix string) {
	f.t.Helper()

	eventually(f.t, func() bool { return strings.HasPrefix(f.fence(), prefix) }, "Fenced is "+prefix)
}

// patch returns a merge patch of an object, or of a subresource.
func (f *fixture) patch(c client.Client, obj client.Object, patch string, subresource ...string) error {
	raw := client.RawPatch(types.MergePatchType, []byte(patch))
	obj, _ = obj.DeepCopyObject().(client.Object)

	if len(subresource) > 0 {
		return c.SubResource(subresource[0]).Patch(f.t.Context(), obj, raw)
	}

	return c.Patch(f.t.Context(), obj, raw)
}

const touch = `{"spec":{"replicas":2}}`

// at returns a website of the shard, which the assigner has assigned.
func (f *fenced) at(shard string) *unstructured.Unstructured {
	f.t.Helper()

	for {
		if name := unique("site"); f.owner(name) == shard {
			w := f.create(f.website(name))
			require.Equal(f.t, shard, w.GetLabels()[f.shardLabel()])

			return w
		}
	}
}

// refused requires that the fence refuses a write, with this message.
func refused(t *testing.T, err error, message string) {
	t.Helper()
	require.True(t, apierrors.IsForbidden(err), "%v", err)
	require.ErrorContains(t, err, message)
}

// up waits until the API server applies the fence, which it learns a little later than everybody else.
func (f *fenced) up() {
	f.t.Helper()

	w := f.at("a")
	eventually(f.t, func() bool { return apierrors.IsForbidden(f.patch(f.pod("b"), w, touch)) }, "the fence is up")
}

func TestFence(t *testing.T) {
	f := newFenced(t, "fence", v1alpha1.FenceEnforce)
	r := start(t, f.Plane)
	f.registered()
	f.settle("a", "b")
	f.reports("True Enforced the API server refuses writes of shards to objects of other shards")
	f.up()

	a, b := f.pod("a"), f.pod("b")
	user, _ := f.of("other", "")
	mine := f.at("a")
	name := "websites " + f.namespace + "/" + mine.GetName()
	notB := "fence of ring fence: shard a owns " + name + "; this write comes from shard b"

	t.Run("only the shard on the label writes", func(t *testing.T) {
		require.NoError(t, f.patch(a, mine, touch))
		refused(t, f.patch(b, mine, touch), notB)
		require.NoError(t, f.patch(a, mine, `{"status":{"replicas":1}}`, "status"))
		refused(t, f.patch(b, mine, `{"status":{"replicas":1}}`, "status"), notB)
		refused(t, b.Delete(t.Context(), mine.DeepCopy()), notB)
		refused(t, f.patch(f.pod(""), mine, touch),
			"the token of system:serviceaccount:"+f.namespace+":controller is bound to no Pod, so the fence cannot tell "+
				"which shard writes")
		require.NoError(t, f.patch(user, mine, touch), "others are not restricted")
	})

	t.Run("scales are not fenced", func(t *testing.T) {
		scale := &autoscalingv1.Scale{Spec: autoscalingv1.ScaleSpec{Replicas: 3}}
		require.NoError(t, b.SubResource("scale").Update(t.Context(), mine.DeepCopy(), client.WithSubResourceBody(scale)))
	})

	t.Run("children", func(t *testing.T) {
		child := f.child(unique("child"), mine)
		require.NoError(t, a.Create(t.Context(), child))
		require.Equal(t, "a", child.GetLabels()[f.shardLabel()])
		refused(t, f.patch(b, child, `{"data":{"x":"y"}}`), "shard a owns configmaps "+f.namespace+"/"+child.GetName())

		// What a shard creates is its own until the rebalancer moves it: the shard knows whether it works on the owner.
		late := f.child(unique("child"), mine)
		require.NoError(t, b.Create(t.Context(), late))
		require.Equal(t, "b", late.GetLabels()[f.shardLabel()])
		refused(t, f.patch(a, late, `{"data":{"x":"y"}}`), "shard b owns configmaps "+f.namespace+"/"+late.GetName())
	})

	t.Run("objects of nobody", func(t *testing.T) {
		foreign := f.child(unique("foreign"), mine)
		foreign.SetOwnerReferences(nil)
		require.NoError(t, b.Create(t.Context(), foreign))
		require.NoError(t, f.patch(b, foreign, `{"data":{"x":"y"}}`), "it does not belong to the ring")

		unassigned := f.at("a")
		require.NoError(t, f.patch(f.Client, unassigned,
			`{"metadata":{"labels":{"`+contract.DrainLabel(f.name)+`":"true"}}}`))
		drop := `{"metadata":{"labels":{"` + f.shardLabel() + `":null,"` + contract.DrainLabel(f.name) + `":null}}}`
		refused(t, f.patch(b, unassigned, drop), "shard a owns")
		require.NoError(t, f.patch(a, unassigned, drop), "the shard acknowledges a drain")
		refused(t, f.patch(a, unassigned, touch),
			"no shard owns websites "+f.namespace+"/"+unassigned.GetName()+" at present")
	})

	t.Run("creations", func(t *testing.T) {
		other := unique("site")
		for f.owner(other) != "b" {
			other = unique("site")
		}

		w := f.website(other)
		require.NoError(t, a.Create(t.Context(), w), "the assigner has chosen the shard")
		require.Equal(t, "b", w.GetLabels()[f.shardLabel()])

		w = f.website(unique("site"))
		w.SetLabels(map[string]string{f.shardLabel(): "b"})
		refused(t, a.Create(t.Context(), w.DeepCopy()), "belongs to shard b; this write comes from shard a")
		require.NoError(t, user.Create(t.Context(), w))
	})

	t.Run("labels are frozen", func(t *testing.T) {
		for _, labels := range []string{`{"` + f.shardLabel() + `":"b"}`, `{"` + f.shardLabel() + `":""}`, `{"` +
			f.shardLabel() + `":null}`} {
			require.NoError(t, f.patch(user, mine, `{"metadata":{"labels":`+labels+`}}`), "the assigner restores it")
			require.Equal(t, "a", f.stored(mine)[f.shardLabel()])
		}

		require.NoError(t, f.patch(user, mine, `{"metadata":{"labels":{"`+f.shardLabel()+`":"a","x":"y"}}}`))

		r.stop()

		move := `{"metadata":{"labels":{"` + f.shardLabel() + `":"b"}}}`
		refused(t, f.patch(user, mine, move), "only that shard and the rebalancer may change the label "+f.shardLabel())
		refused(t, f.patch(user, mine, `{"metadata":{"labels":{"`+f.shardLabel()+`":""}}}`),
			"only that shard and the rebalancer may change the label")
		require.NoError(t, f.patch(f.Client, mine, move), "an administrator has every permission, relabel too")
	})
}

// TestFenceFollowsTheRing shows how a fence comes, changes, is restored, and goes.
func TestFenceFollowsTheRing(t *testing.T) {
	f := newFenced(t, "fence-modes", "")
	start(t, f.Plane)
	f.registered()

	binding := func() *admissionregistrationv1.ValidatingAdmissionPolicyBinding {
		b := &admissionregistrationv1.ValidatingAdmissionPolicyBinding{}
		err := f.Client.Get(t.Context(), client.ObjectKey{Name: contract.FenceName(f.name)}, b)
		require.NoError(t, client.IgnoreNotFound(err))

		return b
	}
	actions := func(want ...admissionregistrationv1.ValidationAction) func() bool {
		return func() bool {
			b := binding()

			return b.Labels[contract.LabelClusterRing] == f.name && len(b.Spec.MatchResources.ResourceRules) == 4 &&
				slices.Equal(b.Spec.ValidationActions, want)
		}
	}
	gone := func() bool { return binding().Name == "" }

	require.Empty(t, f.fence())
	require.True(t, gone())

	f.mode(v1alpha1.FenceAudit)
	f.reports("False Audited the API server reports writes of shards to objects of other shards, and allows them")
	eventually(t, actions("Warn", "Audit"), "writes are reported")

	mine := f.at("a")
	b, warned := f.of(account, "b")
	eventually(t, func() bool {
		require.NoError(t, f.patch(b, mine, touch), "nothing is refused")
		return strings.Contains(warned.take(), "shard a owns websites "+f.namespace+"/"+mine.GetName())
	}, "the client is warned")

	f.mode(v1alpha1.FenceEnforce)
	eventually(t, actions("Deny"), "writes are refused")
	f.reports("True Enforced")

	for what, change := range map[string]func(b *admissionregistrationv1.ValidatingAdmissionPolicyBinding){
		"actions": func(b *admissionregistrationv1.ValidatingAdmissionPolicyBinding) {
			b.Spec.ValidationActions = []admissionregistrationv1.ValidationAction{"Audit"}
		},
		"rules": func(b *admissionregistrationv1.ValidatingAdmissionPolicyBinding) {
			b.Spec.MatchResources.ResourceRules = b.Spec.MatchResources.ResourceRules[1:]
		},
		"label": func(b *admissionregistrationv1.ValidatingAdmissionPolicyBinding) { b.Labels = nil },
	} {
		edited := binding()
		change(edited)
		require.NoError(t, f.Client.Update(t.Context(), edited))
		eventually(t, actions("Deny"), "the fence is restored after an edit of "+what)
	}

	require.NoError(t, f.Client.Delete(t.Context(), binding()))
	eventually(t, actions("Deny"), "the fence is restored after its deletion")

	f.mode(v1alpha1.FenceOff)
	f.reports("False Off")
	eventually(t, gone, "the fence is gone")
	f.mode("")
	eventually(t, func() bool { return f.fence() == "" }, "a ring without a fence does not report one")
}

// TestFenceOfADeletedRing shows that objects stay fenced until they have lost their label.
func TestFenceOfADeletedRing(t *testing.T) {
	f := newFenced(t, "fence-deleted", v1alpha1.FenceEnforce)
	start(t, f.Plane)
	f.registered()
	f.up()

	mine := f.at("a")
	f.changeRing(func(r *v1alpha1.ClusterRing) { r.Finalizers = []string{contract.FinalizerRebalancer} })
	require.NoError(t, f.Client.Delete(t.Context(), f.ring()))
	f.describe()
	eventually(t, func() bool { return f.reason() == "False Deleting" }, "the assigner has seen it")

	b := f.pod("b")
	refused(t, f.patch(b, mine, touch), "shard a owns")
	f.reports("True Enforced")

	require.NoError(t, f.patch(f.Client, mine, `{"metadata":{"labels":{"`+f.shardLabel()+`":null}}}`))
	eventually(t, func() bool { return f.patch(b, mine, touch) == nil },
		"an object without a label is nobody's, and everybody may write it")

	f.changeRing(func(r *v1alpha1.ClusterRing) { r.Finalizers = nil })
	eventually(t, func() bool {
		err := f.Client.Get(t.Context(), client.ObjectKey{Name: contract.FenceName(f.name)},
			&admissionregistrationv1.ValidatingAdmissionPolicyBinding{})

		return apierrors.IsNotFound(err)
	}, "the fence goes with the ring")
}

// TestFenceOfSlots shows that the fence knows which Pod runs a shard of another name.
func TestFenceOfSlots(t *testing.T) {
	f := newFenced(t, "fence-slots", v1alpha1.FenceEnforce)
	start(t, f.Plane)
	f.registered()
	f.up()

	f.describe(v1alpha1.ShardHolder{Shard: "a", Pod: "pod-x"})

	mine := f.at("a")
	eventually(t, func() bool { return f.patch(f.pod("pod-x"), mine, touch) == nil }, "the Pod of the shard writes")
	refused(t, f.patch(f.pod("a"), mine, touch), "Pod a runs no shard: another Pod runs the shard of this name")
	refused(t, f.patch(f.pod("b"), mine, touch), "this write comes from shard b")
	refused(t, f.patch(f.pod("pod-x"), f.at("b"), touch), "shard b owns")
}

// TestFenceNeedsItsParameter shows what the ring reports if nobody tells the fence about the ring.
func TestFenceNeedsItsParameter(t *testing.T) {
	f := newFenced(t, "fence-unknown", v1alpha1.FenceEnforce)
	start(t, f.Plane)
	f.registered()
	f.reports("True Enforced")

	name := f.parameter().Name
	require.NoError(t, f.Client.Delete(t.Context(), f.parameter()))
	f.reports("False FenceFailed PolicyParameter " + name +
		" does not exist, without which the fence allows all writes: check that leasemonitor runs")

	f.describe()
	f.reports("True Enforced")

	stale := f.parameter()
	require.NoError(t, f.Client.Get(t.Context(), client.ObjectKeyFromObject(stale), stale))
	stale.Data["accounts"] = "somebody"
	require.NoError(t, f.Client.Update(t.Context(), stale))
	f.reports("False FenceFailed PolicyParameter " + name +
		", which describes the ring to its fence, differs from the spec")

	f.describe()
	f.up()
}

// TestFenceNeedsPermission shows what the ring reports if nobody has granted the assigner the permission.
func TestFenceNeedsPermission(t *testing.T) {
	f := &fenced{newFixture(t, "fence-alone", "a")}
	start(t, f.Plane).mayLackRights = true
	f.registered()

	f.mode(v1alpha1.FenceEnforce)
	t.Cleanup(func() { require.NoError(t, f.Client.Delete(context.WithoutCancel(t.Context()), f.parameter())) })
	f.reports("False FenceFailed create ValidatingAdmissionPolicyBinding fence-clusterring-")
	require.Contains(t, f.fence(), "create a ClusterRole with the label sharding.timebertt.dev/aggregate-to-assigner=true")
	require.Equal(t, "True Registered", f.reason(), "objects are assigned nevertheless")
}
