package membership

import (
	"cmp"

	"k8s.io/apimachinery/pkg/types"
)

// RunBy returns the available shard that the Pod runs: a shard is named like its Pod, or its Lease names the Pod. The Lease is in the namespace of the
// Pod. ok is false if the Pod runs no available shard, or several that work. The first call for a view builds an index.
func (v *View) RunBy(pod types.NamespacedName) (shard string, ok bool) {
	shard = v.byPod()[pod]

	return shard, shard != "" && v.Available(shard)
}

// pods returns the working shards by the Pods that run them.
func (v *View) pods() map[types.NamespacedName]string {
	all := make(map[types.NamespacedName]string, len(v.working))

	for _, s := range v.shards {
		if s.Holder != s.Name || !v.Works(s.Name) { // of several Leases with one name, that of the shard that works is held
			continue
		}

		pod := types.NamespacedName{Namespace: s.Namespace, Name: cmp.Or(s.Pod, s.Name)}

		shard := s.Name
		if _, several := all[pod]; several {
			shard = ""
		}

		all[pod] = shard
	}

	return all
}
