package clusterring

import (
	"maps"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/membership"
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

// FenceAccounts returns the user names of the service accounts of the ring's shards; none if the ring has no fence, or
// if the fence is off.
func FenceAccounts(ring *v1alpha1.ClusterRing) []string {
	if ring.Spec.FenceMode() == v1alpha1.FenceOff {
		return nil
	}

	accounts := make([]string, 0, len(ring.Spec.Fence.ServiceAccounts))
	for _, a := range ring.Spec.Fence.ServiceAccounts {
		accounts = append(accounts, "system:serviceaccount:"+a.Namespace+":"+a.Name)
	}

	return accounts
}

// ShardHolders returns the shards that work and have another name than their Pod, sorted by name; empty, and not nil,
// if there are none.
func ShardHolders(view *membership.View) []v1alpha1.ShardHolder {
	out := []v1alpha1.ShardHolder{}

	for _, s := range view.Shards() {
		// Of several Leases with one name, that of the shard which works is held, and the others are not.
		if s.Pod != "" && s.Holder == s.Name && view.Works(s.Name) {
			out = append(out, v1alpha1.ShardHolder{Shard: s.Name, Pod: s.Pod})
		}
	}

	return out
}

// FenceParameter returns the parameter of the ring's fence, with the given [ShardHolders]: what the policy that is
// bound to the ring's resources, deploy/base/guard/fence.yaml, knows of the ring. It returns nil if the ring has no
// fence, or if the fence is off. The status of the ring does not matter: who may write it must not decide who may write
// objects.
//
// The lease monitor writes it, because it knows first which Pod runs which shard: the Leases say so. The assigner binds
// it.
func FenceParameter(ring *v1alpha1.ClusterRing, holders []v1alpha1.ShardHolder) *v1alpha1.PolicyParameter {
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
		keyAccounts:  strings.Join(FenceAccounts(ring), "\n"),
		keyResources: strings.Join(resources, "\n"),
	}
	if !ring.DeletionTimestamp.IsZero() {
		data[keyDeleting] = "true"
	}

	for _, h := range holders {
		data[prefixHolder+h.Shard] = h.Pod
	}

	return &v1alpha1.PolicyParameter{
		ObjectMeta: metav1.ObjectMeta{Name: contract.FenceName(ring.Name),
			Labels: map[string]string{contract.LabelClusterRing: ring.Name}},
		Data: data,
	}
}

// CorrectedFence returns the data of a parameter with what the ring's spec says. The holders of shards and whether the
// ring is being deleted stay as they are in the parameter: they change without the spec.
func CorrectedFence(parameter *v1alpha1.PolicyParameter, ring *v1alpha1.ClusterRing) map[string]string {
	passing := func(key, _ string) bool { return key == keyDeleting || strings.HasPrefix(key, prefixHolder) }

	out := map[string]string{}

	if want := FenceParameter(ring, nil); want != nil {
		out = want.Data
		maps.DeleteFunc(out, passing)
	}

	for key, value := range parameter.Data {
		if passing(key, value) {
			out[key] = value
		}
	}

	return out
}
