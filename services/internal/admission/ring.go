// Package admission decides, from the state of a ring and the content of a write, which shard label an object gets in
// that write.
//
// It takes no lock and has no clock: the answer depends on the request and one immutable [Ring]. Only if the controller
// of an object follows another object, or if labels of the controller decide, and no shard creates the object, does it
// ask for an object.
//
// # Invariants
//
//  1. Every request is allowed. What cannot be assigned now is admitted unchanged, and the rebalancer assigns it.
//  2. A shard label is only written with the name of an available shard, or with its previous value.
//  3. An object that carries a shard label after the write keeps its shard. It gets a drain label if the write changes
//     the label that is its key, and the new key belongs to another shard.
//  4. No shard loses an object without a drain label on the object: if a write drops or changes the shard label of an
//     object that was not asked to move, the label is restored, whatever is known about the shard. The rest of the
//     write is stored.
//  5. Equal rings and requests result in equal answers.
//  6. An object gets a label only if the ring's status records that objects of its resource may carry one.
package admission

import (
	"encoding/json"
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/membership"
	"github.com/clusterring/clusterring/services/internal/resources"
)

// Facts are the known state of a ring at one moment.
type Facts struct {
	// Ring is the ring with its status.
	Ring *v1alpha1.ClusterRing
	// Refusal explains why no service acts for the ring; empty if they do.
	Refusal string
	// Resources are the ring's resources as the API server serves them.
	Resources *resources.Set
	// View contains the ring's shards.
	View *membership.View
}

// Ring is what [Decide] knows about a ring. It is immutable and safe for concurrent use; create it with [NewRing].
type Ring struct {
	facts Facts
	keys  contract.LabelKeys
	// recorded are the resources in the status of the ring. Objects of other resources get no label: if the resource left
	// the ring before the rebalancer has looked, the rebalancer would not know that it must remove a label.
	recorded sets.Set[schema.GroupResource]
	// settled are the main resources of which no object is known to be at another shard than its key's.
	settled sets.Set[schema.GroupResource]
	// empty is true if no shard is available.
	empty bool
}

// NewRing prepares facts for decisions. It builds the table, so that no request has to wait for it. The facts must not
// change any more.
func NewRing(f Facts) *Ring {
	return &Ring{
		facts: f, keys: f.Ring.LabelKeys(), recorded: resources.Recorded(f.Ring.Status.Assignment), settled: f.settled(),
		empty: len(f.View.AvailableShards()) == 0,
	}
}

// settled returns the main resources of which no object is known to be at another shard than its key's: the fingerprint
// of the ring or that of the resource is that of the view. While the status does not record the keys of the resources,
// objects are moving to the shards of their new keys. Versions that know only the ring's fingerprint leave the others
// empty.
func (f *Facts) settled() sets.Set[schema.GroupResource] {
	all, status := sets.New[schema.GroupResource](), f.Ring.Status.Assignment
	if status == nil || f.View.Paused() || !f.Resources.KeysRecorded(status) {
		return all
	}

	now, fingerprints := f.View.Fingerprint(), map[schema.GroupResource]string{}
	for _, r := range status.Resources {
		fingerprints[schema.GroupResource{Group: r.Group, Resource: r.Resource}] = r.Fingerprint
	}

	for _, r := range f.Resources.Main() {
		if status.Fingerprint == now || fingerprints[r.GroupResource()] == now {
			all.Insert(r.GroupResource())
		}
	}

	return all
}

// inPlace reports whether the owner is at the shard of its key, as far as is known. An object between others that no
// longer exists may have followed any main object.
func (r *Ring) inPlace(owner *resources.Owner) bool {
	if _, role, _ := r.facts.Resources.Find(owner.Resource.GroupResource()); role == resources.Main {
		return r.settled.Has(owner.Resource.GroupResource())
	}

	return r.settled.Len() == len(r.facts.Resources.Main())
}

// Facts returns what the ring was created from.
func (r *Ring) Facts() Facts { return r.facts }

// warn returns a warning to people about an object of the ring.
func (r *Ring) warn(format string, args ...any) string {
	return fmt.Sprintf("ClusterRing %q", r.facts.Ring.Name) + fmt.Sprintf(format, args...)
}

func (r *Ring) noShard(namespace string) string {
	watching := ""
	if !r.empty {
		watching = " that watches namespace " + namespace
	}

	return r.warn(" has no available shard%s: the object waits unassigned until there is one", watching)
}

func (r *Ring) keyless(of resources.Resource) string {
	return r.warn(": the key of %s is %s, which the object lacks: it is assigned by its name, and not with others",
		of.GroupResource(), of.Key)
}

// operation is one operation of a JSON Patch (RFC 6902).
type operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value,omitempty"`
}

const labelsPath = "/metadata/labels"

var escapePointer = strings.NewReplacer("~", "~0", "/", "~1")

// Patch returns the answer as a JSON Patch for the object of the request, or nil if the answer changes nothing.
func (r *Ring) Patch(a Answer, obj *metav1.ObjectMeta) ([]byte, error) {
	var ops []operation

	switch {
	case a.Shard == "":
	case len(obj.Labels) == 0:
		// The map may be missing, and "add" does not create parents. If the map exists, it is empty, and nothing is lost.
		ops = append(ops, operation{Op: "add", Path: labelsPath, Value: map[string]string{r.keys.Shard: a.Shard}})
	default:
		ops = append(ops, operation{Op: "add", Path: labelPath(r.keys.Shard), Value: a.Shard})
	}

	if a.RemoveDrain {
		ops = append(ops, operation{Op: "remove", Path: labelPath(r.keys.Drain)})
	}

	if a.Drain != "" { // the object has labels: it has a shard
		ops = append(ops, operation{Op: "add", Path: labelPath(r.keys.Drain), Value: a.Drain})
	}

	if len(ops) == 0 {
		return nil, nil
	}

	patch, err := json.Marshal(ops)
	if err != nil {
		return nil, fmt.Errorf("encode the patch for ring %s: %w", r.facts.Ring.Name, err)
	}

	return patch, nil
}

func labelPath(key string) string { return labelsPath + "/" + escapePointer.Replace(key) }
