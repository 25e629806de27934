// Package fence is the parameter of a ring's fence: what the policy that is bound to the ring's resources knows of the ring.
//
// The lease monitor writes it, because it knows first which Pod runs which shard. The assigner binds it. The policy is
// deploy/base/guard/fence.yaml.
package fence

import (
	"maps"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
)

// The keys of the parameter. Lists have one element per line.
const (
	keyRing      = "ring"      // the name of the ring
	keyLabel     = "label"     // the key of the ring's shard label
	keyAccounts  = "accounts"  // the user names of the service accounts of shards
	keyResources = "resources" // the main resources, as <resource>.<group>
	keyDeleting  = "deleting"  // present if the ring is being deleted
	prefixHolder = "holder."   // the name of a shard follows; the value is the name of its Pod
)

// Accounts returns the user names of the service accounts of the ring's shards; none if the ring has no fence, or if the fence is off.
func Accounts(ring *v1alpha1.ClusterRing) []string {
	if ring.Spec.FenceMode() == v1alpha1.FenceOff {
		return nil
	}

	accounts := make([]string, 0, len(ring.Spec.Fence.ServiceAccounts))
	for _, a := range ring.Spec.Fence.ServiceAccounts {
		accounts = append(accounts, "system:serviceaccount:"+a.Namespace+":"+a.Name)
	}

	return accounts
}

// Parameter returns the parameter of the ring's fence. It returns nil if the ring has no fence, or if the fence is off.
func Parameter(ring *v1alpha1.ClusterRing) *v1alpha1.PolicyParameter {
	if ring.Spec.FenceMode() == v1alpha1.FenceOff {
		return nil
	}

	resources := make([]string, 0, len(ring.Spec.Resources))
	for _, r := range ring.Spec.Resources {
		resources = append(resources, r.Resource+"."+r.Group)
	}

	data := map[string]string{
		keyRing:      ring.Name,
		keyLabel:     ring.LabelKeys().Shard,
		keyAccounts:  strings.Join(Accounts(ring), "\n"),
		keyResources: strings.Join(resources, "\n"),
	}
	if !ring.DeletionTimestamp.IsZero() {
		data[keyDeleting] = "true"
	}

	for _, h := range ring.Status.Holders {
		data[prefixHolder+h.Shard] = h.Pod
	}

	return &v1alpha1.PolicyParameter{
		ObjectMeta: metav1.ObjectMeta{Name: contract.FenceName(ring.Name), Labels: map[string]string{contract.LabelClusterRing: ring.Name}},
		Data:       data,
	}
}

// Describes reports whether the parameter contains the ring's spec. It disregards the holders of shards and whether the ring is being deleted,
// which change without the spec.
func Describes(parameter *v1alpha1.PolicyParameter, ring *v1alpha1.ClusterRing) bool {
	want := Parameter(ring)

	return want != nil && maps.Equal(lasting(parameter.Data), lasting(want.Data))
}

// lasting returns what changes only with the ring's spec.
func lasting(data map[string]string) map[string]string {
	out := maps.Clone(data)
	maps.DeleteFunc(out, func(key, _ string) bool { return key == keyDeleting || strings.HasPrefix(key, prefixHolder) })

	return out
}
