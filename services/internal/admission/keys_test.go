package admission_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"gotest.tools/v3/golden"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/admission"
	"github.com/clusterring/clusterring/services/internal/key"
	"github.com/clusterring/clusterring/services/internal/resources"
)

const tenant = "example.org/tenant"

// acme is a tenant that belongs to shard b, and beta one that belongs to shard c.
var acme, beta = tenantOf("b"), tenantOf("c")

func tenantOf(shard string) string {
	for i := 0; ; i++ {
		name := fmt.Sprint("tenant-", i)
		if owner, _ := view("a", "b", "c").Owner(key.OfLabel(tenant, name)); owner == shard {
			return name
		}
	}
}

// owners are the labels of websites, by UID.
var owners = map[types.UID]map[string]string{
	"at its place": labels(tenant, acme, shardLabel, "b"),
	"draining":     labels(tenant, acme, shardLabel, "b", drainLabel, "true"),
	"elsewhere":    labels(tenant, acme, shardLabel, "c"),
	"nowhere":      labels(tenant, acme),
	"bare":         labels(shardLabel, byName("blog")),
}

// byName returns the shard of a website by its name.
func byName(name string) string {
	shard, _ := view("a", "b", "c").Owner(key.Key{Group: "example.org", Kind: "Website", Namespace: "default", Name: name})

	return shard
}

// keyed is a ring whose websites have this key, and control configmaps.
func keyed(k v1alpha1.ObjectKey, change ...func(*admission.Facts)) *admission.Ring {
	of := sites
	of.Key = &k

	r := over(v1alpha1.ClusterRingSpec{Resources: []v1alpha1.RingResource{of}}, "a", "b", "c")
	for _, c := range change {
		r = changed(r, c)
	}

	return r
}

// rekeying lets objects be on their way to the shards of their new keys.
func rekeying(f *admission.Facts) {
	f.Ring.Status.Assignment.Resources = recorded("websites.example.org", "configmaps")
}

// byTenant is the key that is a label.
var byTenant = v1alpha1.ObjectKey{Type: v1alpha1.KeyLabel, Label: tenant}

// flat is a ring whose clusters have a label as key, and nothing follows them.
func flat() *admission.Ring {
	return over(v1alpha1.ClusterRingSpec{Resources: []v1alpha1.RingResource{
		{Group: "example.org", Resource: "clusters", Key: &byTenant},
	}}, "a", "b", "c")
}

func childOf(uid string) *metav1.ObjectMeta {
	o := child(nil)
	o.OwnerReferences[1].UID = types.UID(uid)

	return o
}

// TestDecideByKeys compares the answers to all examples with the reviewed answers in testdata.
func TestDecideByKeys(t *testing.T) {
	label := keyed(byTenant)
	namespace := keyed(v1alpha1.ObjectKey{Type: v1alpha1.KeyNamespace})
	ofAcme, ofBeta := labels(tenant, acme), labels(tenant, beta)
	at := func(shard string, kv ...string) map[string]string { return labels(append(kv, shardLabel, shard)...) }

	named := website(ofAcme)
	named.Name = ""

	unnamed := website(nil)
	unnamed.Name = ""

	var table strings.Builder

	for _, e := range []example{
		{"a new object with the label", label, create(websites, website(ofAcme))},
		{"a new object with the label, whose name is yet to be generated", label, create(websites, named)},
		{"a new object without the label", label, create(websites, website(nil))},
		{"a new object without the label, whose name is yet to be generated", label, create(websites, unnamed)},
		{"a new object in a namespace", namespace, create(websites, website(nil))},
		{"a new object in a namespace, whose name is yet to be generated", namespace, create(websites, unnamed)},

		{"the label changes", label, updating(websites, website(at("b", tenant, acme)), website(at("b", tenant, beta)))},
		{"the label changes, and nothing can follow", flat(),
			updating(clusters, website(at("b", tenant, acme)), website(at("b", tenant, beta)))},
		{"the label is removed", label, updating(websites, website(at("b", tenant, acme)), website(at("b")))},
		{"the label is added", label, updating(websites, website(at("c")), website(at("c", tenant, acme)))},
		{"the label changes, and the shard stays", label,
			updating(websites, website(at("c", tenant, acme)), website(at("c", tenant, beta)))},
		{"the label does not change", label,
			updating(websites, website(at("c", tenant, acme)), website(at("c", tenant, acme)))},
		{"the label changes of an object that drains", label, updating(websites,
			website(at("b", tenant, acme, drainLabel, "true")), website(at("b", tenant, beta, drainLabel, "true")))},
		{"the label changes again of an object that drains for another shard", flat(), updating(clusters,
			website(at("b", tenant, acme, drainLabel, "a")), website(at("b", tenant, beta, drainLabel, "a")))},
		{"the label changes, and the shard label too", label,
			updating(websites, website(at("b", tenant, acme)), website(at("a", tenant, beta)))},
		{"the label changes of an object at a shard that does not work", label,
			updating(websites, website(at("gone", tenant, acme)), website(at("gone", tenant, beta)))},
		{"the label changes, and drops the shard label", label,
			updating(websites, website(at("b", tenant, acme)), website(ofBeta))},
		{"the label changes in a ring with keys by namespace", namespace,
			updating(websites, website(at("b", tenant, acme)), website(at("b", tenant, beta)))},
		{"the label of a controlled object changes", label,
			updating(configmaps, child(at("b", tenant, acme)), child(at("b", tenant, beta)))},

		{"a child of an object at its place", label, create(configmaps, childOf("at its place"))},
		{"a child of an object without the label", label, create(configmaps, childOf("bare"))},
		{"a child of an object that drains", label, create(configmaps, childOf("draining"))},
		{"a child of an object at another shard than its key's", label, create(configmaps, childOf("elsewhere"))},
		{"a child of an object without a shard", label, create(configmaps, childOf("nowhere"))},
		{"a child of an object that is gone", label, create(configmaps, childOf("gone"))},
		{"a child of an object that cannot be read", label, create(configmaps, childOf("4"))},
		{"a child in a namespace", namespace, create(configmaps, childOf("gone"))},
		{"a child in a namespace while objects move to their new keys", keyed(v1alpha1.ObjectKey{Type: v1alpha1.KeyNamespace},
			rekeying), create(configmaps, childOf("gone"))},
	} {
		t.Run(e.what, func(t *testing.T) {
			a := admission.Decide(t.Context(), e.ring, &e.req, people{})
			require.Equal(t, a.Outcome == admission.Rekeyed || a.Outcome == admission.Restored &&
				e.req.Object.Labels[shardLabel] != "", a.Drain != "")

			patch, err := e.ring.Patch(a, e.req.Object)
			require.NoError(t, err)
			fmt.Fprintf(&table, "%s\n  outcome: %s\n", e.what, a.Outcome)

			if patch != nil {
				fmt.Fprintf(&table, "  patch: %s\n", patch)
			}

			if a.Warning != "" {
				fmt.Fprintf(&table, "  warning: %s\n", a.Warning)
			}
		})
	}

	golden.Assert(t, table.String(), "keys.txt")
}

// selective is a ring over the websites of one operator, which control configmaps.
func selective(shards ...string) *admission.Ring {
	return over(v1alpha1.ClusterRingSpec{
		Resources:      []v1alpha1.RingResource{sites},
		ObjectSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"operator": "ours"}},
	}, shards...)
}

// site are ancestors: a website with these labels, which controls what follows the object with UID 2 too; a nil map is
// no website.
type site struct {
	people

	labels map[string]string
}

func (s site) LabelsOf(_ context.Context, of resources.Owner) (resources.Labels, bool, error) {
	return resources.Labels{All: s.labels, Selected: of.Resource.Selects(s.labels)}, s.labels != nil, nil
}

func TestDecideWithSelector(t *testing.T) {
	r := selective("a")
	ours, theirs := labels("operator", "ours"), labels("operator", "theirs")
	oursAtA := labels("operator", "ours", shardLabel, "a")

	for _, e := range []struct {
		what  string
		owner map[string]string
		req   admission.Request
		want  admission.Outcome
	}{
		{"a new object", nil, create(websites, website(ours)), admission.Assigned},
		{"a new object of another operator", nil, create(websites, website(theirs)), admission.NotSelected},
		{"a new object of none", nil, create(websites, website(nil)), admission.NotSelected},
		{"an object that comes into the ring", nil, updating(websites, website(theirs), website(ours)), admission.Handover},
		{"an object that leaves the ring and keeps its shard until it is drained", nil,
			updating(websites, website(oursAtA), website(labels("operator", "theirs", shardLabel, "a"))), admission.Labelled},
		{"an object that leaves the ring and drops its label", nil, updating(websites, website(oursAtA), website(theirs)),
			admission.Restored},

		{"a new child", oursAtA, create(configmaps, child(nil)), admission.Assigned},
		{"a new child whose own labels are others", oursAtA, create(configmaps, child(theirs)), admission.Assigned},
		{"a new child of an owner without a shard", ours, create(configmaps, child(nil)), admission.Moving},
		{"a new child of an owner that drains", labels("operator", "ours", shardLabel, "a", drainLabel, "true"),
			create(configmaps, child(nil)), admission.Moving},
		{"a new child of an owner of another operator", theirs, create(configmaps, child(ours)), admission.ForeignOwner},
		{"a new child of an owner that leaves", labels("operator", "theirs", shardLabel, "a"), create(configmaps, child(nil)),
			admission.ForeignOwner},
		{"a new child of an owner that does not exist", nil, create(configmaps, child(nil)), admission.ForeignOwner},
		{"a dropped label of a child whose owner leaves", labels("operator", "theirs", shardLabel, "a"),
			updating(configmaps, child(labels(shardLabel, "a")), child(nil)), admission.Restored},
		{"a new grandchild of another operator", theirs, create(configmaps, grandchild("2", nil)), admission.ForeignOwner},
		{"a new grandchild whose controller is no more", oursAtA, create(configmaps, grandchild("5", nil)),
			admission.ForeignOwner},
	} {
		t.Run(e.what, func(t *testing.T) {
			require.Equal(t, e.want, admission.Decide(t.Context(), r, &e.req, site{labels: e.owner}).Outcome)
		})
	}

	none := create(websites, website(theirs))
	require.Equal(t, admission.NotSelected, admission.Decide(t.Context(), selective(), &none, nobody{t}).Outcome,
		"nobody is warned that there is no shard")
}
