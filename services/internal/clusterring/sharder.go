package clusterring

import (
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
)

// Identity tells sharders apart: the zero value is the services, any other one the sharder that is elected by this
// Lease.
type Identity struct {
	// Lease is the election Lease of an embedded sharder.
	Lease types.NamespacedName
}

// Services is the identity of the services.
var Services = Identity{}

// Embedded returns the identity of the sharder of a ring whose shards hold their Leases in the namespace.
func Embedded(ring, namespace string) Identity {
	return Identity{types.NamespacedName{Namespace: namespace, Name: contract.SharderLeaseName(ring)}}
}

// String returns the identity for people.
func (i Identity) String() string {
	if i == Services {
		return "the services"
	}

	return "the shards in namespace " + i.Lease.Namespace
}

// WantedOf returns who is to shard the ring, according to its spec.
func WantedOf(ring *v1alpha1.ClusterRing) Identity {
	if ring.Spec.Sharder != v1alpha1.SharderEmbedded {
		return Services
	}

	// The API server refuses an embedded sharder without the one namespace of its shards.
	return Embedded(ring.Name, slices.Concat(ring.Spec.ShardNamespaces, []string{""})[0])
}

// HolderOf returns who shards the ring now. It returns false if nobody does.
func HolderOf(ring *v1alpha1.ClusterRing) (Identity, bool) {
	value, said := ring.Annotations[contract.AnnotationSharder]
	namespace, name, named := strings.Cut(value, "/")

	switch {
	case !slices.Contains(ring.Finalizers, contract.FinalizerRebalancer):
		return Identity{}, false
	case !said:
		return Services, true
	case !named || namespace == "" || name == "":
		return Identity{}, false
	}

	return Identity{types.NamespacedName{Namespace: namespace, Name: name}}, true
}

// Wanted reports whether the ring's spec wants this sharder.
func (i Identity) Wanted(ring *v1alpha1.ClusterRing) bool { return WantedOf(ring) == i }

// Step is what a sharder does next about a ring.
type Step string

// The steps.
const (
	// Leave is to do nothing about the ring.
	Leave Step = "Leave"
	// Wait is to do nothing until the ring's present holder gives it up.
	Wait Step = "Wait"
	// Claim is to become the ring's holder.
	Claim Step = "Claim"
	// Work is to shard the ring.
	Work Step = "Work"
	// Release is to stop all work on the ring, and then to give it up.
	Release Step = "Release"
)

// Next returns what this sharder does next about the ring. A ring that is being deleted stays with its holder.
func (i Identity) Next(ring *v1alpha1.ClusterRing) Step {
	holder, held := HolderOf(ring)
	deleting := !ring.DeletionTimestamp.IsZero()

	switch {
	case held && holder == i && (deleting || i.Wanted(ring)):
		return Work
	case held && holder == i:
		return Release
	case !i.Wanted(ring):
		return Leave
	case held:
		return Wait
	case deleting && !slices.Contains(ring.Finalizers, contract.FinalizerRebalancer):
		return Leave // its labels are gone, or there never were any
	}

	return Claim
}

// Take makes the sharder the holder of the ring, in the given copy. Write it on the condition that the ring has not
// changed since it was read.
func (i Identity) Take(ring *v1alpha1.ClusterRing) {
	if !slices.Contains(ring.Finalizers, contract.FinalizerRebalancer) {
		ring.Finalizers = append(slices.Clone(ring.Finalizers), contract.FinalizerRebalancer)
	}

	if i == Services {
		delete(ring.Annotations, contract.AnnotationSharder)
		return
	}

	metav1.SetMetaDataAnnotation(&ring.ObjectMeta, contract.AnnotationSharder, i.Lease.String())
}

// GiveUp leaves the ring without a holder, in the given copy. Write it on the condition that the ring has not changed
// since it was read.
func GiveUp(ring *v1alpha1.ClusterRing) {
	metav1.SetMetaDataAnnotation(&ring.ObjectMeta, contract.AnnotationSharder, contract.SharderNobody)
}
