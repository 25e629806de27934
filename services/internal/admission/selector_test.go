package admission_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/admission"
	"github.com/clusterring/clusterring/services/internal/resources"
)

// selective is a ring over the websites of one operator, which control configmaps.
func selective(shards ...string) *admission.Ring {
	mapper := meta.NewDefaultRESTMapper(nil)
	mapper.Add(schema.GroupVersionKind{Group: "example.org", Version: "v1", Kind: "Website"}, meta.RESTScopeNamespace)
	mapper.Add(schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"}, meta.RESTScopeNamespace)

	f := state(shards...).Facts()
	f.Resources = resources.Resolve(mapper, v1alpha1.ClusterRingSpec{
		Resources:      []v1alpha1.RingResource{{Group: "example.org", Resource: "websites", ControlledResources: []v1alpha1.ControlledResource{{Resource: "configmaps"}}}},
		ObjectSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"operator": "ours"}},
	})

	return admission.NewRing(f)
}

// site are ancestors: a website with these labels, which controls what follows the object with UID 2 too; a nil map is no website.
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
		{"an object that leaves the ring and keeps its shard until it is drained", nil, updating(websites, website(oursAtA), website(labels("operator", "theirs", shardLabel, "a"))), admission.Labelled},
		{"an object that leaves the ring and drops its label", nil, updating(websites, website(oursAtA), website(theirs)), admission.Restored},

		{"a new child", oursAtA, create(configmaps, child(nil)), admission.Assigned},
		{"a new child whose own labels are others", oursAtA, create(configmaps, child(theirs)), admission.Assigned},
		{"a new child of an owner without a shard", ours, create(configmaps, child(nil)), admission.Moving},
		{"a new child of an owner that drains", labels("operator", "ours", shardLabel, "a", drainLabel, "true"), create(configmaps, child(nil)), admission.Moving},
		{"a new child of an owner of another operator", theirs, create(configmaps, child(ours)), admission.ForeignOwner},
		{"a new child of an owner that leaves", labels("operator", "theirs", shardLabel, "a"), create(configmaps, child(nil)), admission.ForeignOwner},
		{"a new child of an owner that does not exist", nil, create(configmaps, child(nil)), admission.ForeignOwner},
		{"a dropped label of a child whose owner leaves", labels("operator", "theirs", shardLabel, "a"), updating(configmaps, child(labels(shardLabel, "a")), child(nil)), admission.Restored},
		{"a new grandchild of another operator", theirs, create(configmaps, grandchild("2", nil)), admission.ForeignOwner},
		{"a new grandchild whose controller is no more", oursAtA, create(configmaps, grandchild("5", nil)), admission.ForeignOwner},
	} {
		t.Run(e.what, func(t *testing.T) {
			require.Equal(t, e.want, admission.Decide(t.Context(), r, &e.req, site{labels: e.owner}).Outcome)
		})
	}

	none := create(websites, website(theirs))
	require.Equal(t, admission.NotSelected, admission.Decide(t.Context(), selective(), &none, nobody{t}).Outcome, "nobody is warned that there is no shard")
}
