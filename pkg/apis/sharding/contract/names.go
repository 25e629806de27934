// Package contract defines the contract of ClusterRing on the wire, beside the ClusterRing API in package v1alpha1:
// every label, annotation, name, and path that shards and services share.
//
// It makes no decisions. It defines, once, every string that shards, services, and other implementations must spell the
// same way. It imports nothing else of this repository.
package contract

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/util/validation"
)

// Labels, their values, and identities that shards and services share.
const (
	LabelClusterRing = "alpha.sharding.timebertt.dev/clusterring" // the ring, on a shard's Lease and a ring's webhook
	LabelState       = "alpha.sharding.timebertt.dev/state"       // of a Lease, as the lease monitor sees it; informs only
	// AnnotationHoldOff, on a shard's Lease, is how long the shard waits before it works after it has taken its free
	// Lease: a Go duration, such as "2s". The Lease carries it from the write that takes the Lease. Everyone who has seen
	// the Lease free may rely on that time. A shard without the annotation is not known to wait.
	AnnotationHoldOff = "alpha.sharding.timebertt.dev/hold-off"
	// AnnotationPod, on a shard's Lease, is the name of the Pod that runs the shard. Only the Leases of shards that have
	// another name than their Pod carry it, for the fence: a token tells the API server which Pod writes, not which shard.
	AnnotationPod = "alpha.sharding.timebertt.dev/pod"
	// AnnotationPodUID, on a shard's Lease, is the uid of the Pod whose process wrote the present renewTime: a
	// [PodUIDValue]. With it, the lease monitor can believe the kubelet that the process has ended. A renewal that leaves
	// the annotation as it was makes it void, so that no process is taken for its predecessor.
	AnnotationPodUID = "alpha.sharding.timebertt.dev/pod-uid"
	// AnnotationOffered, on the Lease of a slot, offers the slot to another Pod: it contains the renewTime of the Lease,
	// as an [OfferValue]. The Pod that holds the slot writes it after it has stopped to work, and the lease monitor when
	// the kubelet has reported that this Pod has ended. Any renewal of the Lease makes the offer void.
	AnnotationOffered = "alpha.sharding.timebertt.dev/offered"
	// AnnotationStopping, on a shard's Lease, reports that the shard was told to stop: it works on its objects until they
	// are drained, and gets no others. It contains the renewTime of the Lease, as an [OfferValue]: renewals by others make
	// it void.
	AnnotationStopping = "alpha.sharding.timebertt.dev/stopping"
	// AnnotationShardLabel, on a shard's Lease, is the key of the shard label by which the shard selects its objects, if
	// its options contain one. A shard whose Lease says otherwise than spec.shardLabel gets no objects: it would not see
	// them.
	AnnotationShardLabel = "alpha.sharding.timebertt.dev/shard-label"
	// AnnotationNamespaces, on a shard's Lease, reports that the shard watches the ring's kinds in these namespaces only:
	// a [NamespacesValue]. It gets no objects of others. A renewal that leaves the annotation as it was makes it void. A
	// shard without the annotation watches all namespaces.
	AnnotationNamespaces = "alpha.sharding.timebertt.dev/namespaces"
	// LabelStandby contains the name of the ring, on a Lease that is not a shard's: that of a Pod which waits for a slot.
	LabelStandby = "alpha.sharding.timebertt.dev/standby"
	// AnnotationSlots, on such a Lease, says which slots the Pod would take: a [SlotsValue]. Without it, any of the ring.
	AnnotationSlots = "alpha.sharding.timebertt.dev/slots"
	// AnnotationUnboundShards, on a ring with the value "true", lets shards write their Leases with any token that RBAC
	// allows. Without it, an admission policy demands a token that is bound to the Pod with the shard's name.
	AnnotationUnboundShards = "sharding.timebertt.dev/unbound-shards"
	// AnnotationSharder, on a ring, says who shards it: the election Lease of the ring's embedded sharder, as
	// namespace/name, or [SharderNobody]. Without it, the services do, with [FinalizerRebalancer]. Sharders write it.
	AnnotationSharder       = "alpha.sharding.timebertt.dev/sharder"
	SharderNobody           = "nobody"                                  // after a sharder has stopped for another one
	LabelShardPrefix        = "shard.alpha.sharding.timebertt.dev/"     // of the keys that [ShardLabel] returns
	LabelDrainPrefix        = "drain.alpha.sharding.timebertt.dev/"     // of the keys that [DrainLabel] returns
	DrainValue              = "true"                                    // names no next shard; see [NextShard]
	LeaseControllerIdentity = "shardlease-controller"                   // holds a Lease that was taken from a shard
	FinalizerRebalancer     = "alpha.sharding.timebertt.dev/rebalancer" // until no object carries labels of the ring
)

// Names and paths that the services use.
const (
	SystemNamespace   = "sharding-system"                // the namespace that the services run in
	WebhookName       = "sharder.sharding.timebertt.dev" // of the webhook that assigns objects without a shard
	LabelsWebhookName = "labels.sharding.timebertt.dev"  // of that for changes of shard labels, and of keys
	ReachWebhookName  = "reach.sharding.timebertt.dev"   // of that by which the assigner finds out whether calls arrive
	ShardsParameter   = "ring-shards"                    // begins the names of PolicyParameters that describe all rings
	FencePolicyName   = "fence.sharding.timebertt.dev"   // the ValidatingAdmissionPolicy that every fence applies
	WebhookPathPrefix = "/webhooks/sharder/clusterring/" // of the paths that [WebhookPath] returns
)

// MaxDepth is the maximum number of levels of objects that follow one another in a ring, including the main object: a
// Deployment, its ReplicaSets, and their Pods are three. Objects on lower levels are not sharded.
const MaxDepth = 4

// Labels of ClusterRoles. A role that carries one of them with the value "true" is aggregated into the permissions of
// that service. This grants permissions on a ring's own resources.
const (
	LabelAggregateToRebalancer = "sharding.timebertt.dev/aggregate-to-rebalancer" // get, list, watch, patch on resources
	LabelAggregateToRingQuery  = "sharding.timebertt.dev/aggregate-to-ringquery"  // get, list, and watch on resources
	LabelAggregateToAssigner   = "sharding.timebertt.dev/aggregate-to-assigner"   // get on what controls others
)

// maxLabelName is the maximum length of the name part of a label key, and therefore of a ring suffix, in bytes.
const maxLabelName = validation.LabelValueMaxLength

// RingSuffix returns the part of label keys and names that identifies one ring: "clusterring-", the first 8 hexadecimal
// digits of the SHA-256 hash of the ring's name, "-", and the name itself. It is cut to 63 bytes, without trailing
// characters that a label key may not end with. Rings whose names differ only after the cut still differ in the digits.
func RingSuffix(ring string) string { return SuffixOf("clusterring", ring) }

// SuffixOf is [RingSuffix] for a ring of any kind, in lower case.
func SuffixOf(kind, ring string) string {
	sum := sha256.Sum256([]byte(ring))

	suffix := kind + "-" + hex.EncodeToString(sum[:4]) + "-" + ring
	if len(suffix) > maxLabelName {
		suffix = suffix[:maxLabelName]
	}

	return strings.TrimRight(suffix, "-_.") // a name has no other characters that are neither letters nor digits
}

// ShardLabel returns the default key of the label that assigns an object to a shard of the ring; its value is the
// shard's name. With spec.shardLabel, it is another one: see [LabelKeysOf].
func ShardLabel(ring string) string { return LabelShardPrefix + RingSuffix(ring) }

// DrainLabel returns the key of the label that asks an object's shard of the ring to stop working on it and to remove
// both labels. Only its presence counts, not its value. Like [ShardLabel], this is the default.
func DrainLabel(ring string) string { return LabelDrainPrefix + RingSuffix(ring) }

// NextShard returns the next shard, as named by the value of a drain label; empty if the value names none. The shard
// that releases the object may write this name into the shard label, in the same write that removes the drain label.
func NextShard(drain string) string {
	if drain == DrainValue {
		return ""
	}

	return drain
}

// PodUIDValue returns the value of [AnnotationPodUID] for a renewal by the Pod with the given uid: the uid, a slash,
// and the renewTime of the Lease in UTC with microseconds, which is all that the API stores of it.
func PodUIDValue(uid types.UID, renewed time.Time) string {
	return string(uid) + "/" + renewed.UTC().Format(metav1.RFC3339Micro)
}

// PodUID returns the uid in [AnnotationPodUID] of a Lease with these annotations and this renewTime; empty if there is
// none, or if it was written with another renewTime.
func PodUID(annotations map[string]string, renewed time.Time) types.UID {
	value := annotations[AnnotationPodUID]

	uid, _, found := strings.Cut(value, "/")
	if !found || value != PodUIDValue(types.UID(uid), renewed) {
		return ""
	}

	return types.UID(uid)
}

// OfferValue returns the value of [AnnotationOffered] and [AnnotationStopping] that is written with the given
// renewTime: that time in UTC with microseconds, which is all that the API stores of it.
func OfferValue(renewed time.Time) string { return renewed.UTC().Format(metav1.RFC3339Micro) }

// IsOffered reports whether the Lease of a slot with these annotations and this renewTime is offered to another Pod.
func IsOffered(annotations map[string]string, renewed time.Time) bool {
	return isOf(renewed, annotations, AnnotationOffered)
}

// isOf reports whether an annotation was written with the given renewTime, as an [OfferValue].
func isOf(renewed time.Time, annotations map[string]string, annotation string) bool {
	value, exists := annotations[annotation] // most Leases have none

	return exists && !renewed.IsZero() && value == OfferValue(renewed)
}

// StandbyDuration is how long a Pod counts as waiting for a slot after the renewTime of its Lease with [LabelStandby].
// Clocks may differ by most of it: only whether a slot is offered before its Lease is released or taken.
const StandbyDuration = time.Minute

// IsWaiting reports whether a Pod whose Lease with [LabelStandby] has this renewTime counts as waiting for a slot. Nil
// is no renewTime. A time far in the future does not count: it would count for as long.
func IsWaiting(renewed *metav1.MicroTime, now time.Time) bool {
	return renewed != nil && now.Sub(renewed.Time).Abs() < StandbyDuration
}

// numbered begins a [SlotsValue] of slots that have numbers. It is in no name of a slot.
const numbered = "0.."

// SlotsValue returns the value of [AnnotationSlots] for the names of slots: the names, separated by commas, or "0..4"
// for the first five slots of the ring, see [SlotName].
func SlotsValue(ring string, names []string) string {
	for number, name := range names {
		if name != SlotName(ring, number) {
			return strings.Join(names, ",")
		}
	}

	if len(names) == 0 {
		return ""
	}

	return numbered + strconv.Itoa(len(names)-1)
}

// WaitsFor reports whether a Pod with these annotations of its Lease would take a slot. If it does not say, it would.
func WaitsFor(annotations map[string]string, ring, slot string) bool {
	value, said := annotations[AnnotationSlots]
	if !said {
		return true
	}

	last, ok := strings.CutPrefix(value, numbered)
	if !ok {
		return slices.Contains(strings.Split(value, ","), slot)
	}

	most, err := strconv.Atoi(last)
	number, other := strconv.Atoi(strings.TrimPrefix(slot, ring+"-"))

	return err != nil || other == nil && number >= 0 && number <= most && slot == SlotName(ring, number)
}

// IsStopping reports whether the shard whose Lease has these annotations and this renewTime was told to stop.
func IsStopping(annotations map[string]string, renewed time.Time) bool {
	return isOf(renewed, annotations, AnnotationStopping)
}

// maxNamespaces is the maximum length of the names in [AnnotationNamespaces], with their commas.
const maxNamespaces = 4096

// NamespacesValue returns the value of [AnnotationNamespaces] that is written with the given renewTime: the names,
// sorted and separated by commas, a slash, and that time as an [OfferValue]. It is empty without names, and if they are
// longer than 4,096 bytes: then the Lease cannot say so.
func NamespacesValue(namespaces []string, renewed time.Time) string {
	names := strings.Join(slices.Compact(slices.Sorted(slices.Values(namespaces))), ",")
	if names == "" || len(names) > maxNamespaces {
		return ""
	}

	return names + "/" + OfferValue(renewed)
}

// Namespaces returns the names in [AnnotationNamespaces] of a Lease with these annotations and this renewTime,
// separated by commas; empty if there is none, if it was written with another renewTime, or if it is too long.
func Namespaces(annotations map[string]string, renewed time.Time) string {
	value, exists := annotations[AnnotationNamespaces] // most Leases have none
	if !exists || renewed.IsZero() {
		return ""
	}

	names, current := strings.CutSuffix(value, "/"+OfferValue(renewed))
	if !current || len(names) > maxNamespaces {
		return ""
	}

	return names
}

// MaxSlots is the maximum number of slots of a ring.
const MaxSlots = 5000

// SlotName returns the name of a ring's slot: the ring's name, a dash, and the slot's number from 0.
func SlotName(ring string, number int) string { return ring + "-" + strconv.Itoa(number) }

// WebhookConfigurationName returns the name of the ring's MutatingWebhookConfiguration.
func WebhookConfigurationName(ring string) string { return "sharding-" + RingSuffix(ring) }

// SharderLeaseName returns the name of the Lease by which the shards of a ring elect its embedded sharder.
func SharderLeaseName(ring string) string { return "sharder-" + RingSuffix(ring) }

// FenceName returns the name of the ring's ValidatingAdmissionPolicyBinding, which applies the policy [FencePolicyName]
// to the ring's resources, and of the PolicyParameter that describes the ring to the policy.
func FenceName(ring string) string { return "fence-" + RingSuffix(ring) }

// WebhookPath returns the path of the ring's webhook.
func WebhookPath(ring string) string { return WebhookPathPrefix + ring }

// maxHandover limits the resources that a handover names: as many as a ring may have.
const maxHandover = 1024

// HandoverAnnotation returns the default key for the ring's handovers. A ring with spec.shardLabel has another one: see
// [LabelKeysOf].
func HandoverAnnotation(ring string) string { return handoverPrefix + RingSuffix(ring) }

// Handover maps each resource whose objects follow an object to the highest resource version in which one of these
// objects came to the object's shard. It is written together with that shard. A shard that works on the object from a
// cache of these resources waits until the cache has reached that version; otherwise, it would create again what it
// does not see yet. Versions of a resource are comparable since Kubernetes 1.35. Empty: nothing follows the object.
type Handover map[schema.GroupResource]string

var errHandover = errors.New("not a handover")

// String returns the value of the annotation; empty if the handover is empty.
func (h Handover) String() string {
	if len(h) == 0 {
		return ""
	}

	text := make(map[string]string, len(h))
	for gr, version := range h {
		text[gr.String()] = version
	}

	body, err := json.Marshal(text)
	if err != nil {
		return "" // strings can always be encoded
	}

	return string(body)
}

// Reached records that an object of the resource came to its shard in a resource version. It keeps the higher version.
// A version that is not a number replaces the recorded one.
func (h Handover) Reached(gr schema.GroupResource, version string) {
	if order, err := resourceversion.CompareResourceVersion(version, h[gr]); err != nil || order > 0 {
		h[gr] = version
	}
}

// ParseHandover parses the value of the annotation. An empty value means that nothing follows the object.
func ParseHandover(value string) (Handover, error) {
	if value == "" {
		return nil, nil
	}

	text := map[string]string{}
	if err := json.Unmarshal([]byte(value), &text); err != nil {
		return nil, fmt.Errorf("%w: %w", errHandover, err)
	}

	if len(text) > maxHandover {
		return nil, fmt.Errorf("%w: it names %d resources, at most %d are allowed", errHandover, len(text), maxHandover)
	}

	h := make(Handover, len(text))
	for name, version := range text {
		gr := schema.ParseGroupResource(name)
		if gr.Resource == "" || version == "" {
			return nil, fmt.Errorf("%w: %q has version %q", errHandover, name, version)
		}

		h[gr] = version
	}

	return h, nil
}

// What begins and ends the keys of [LabelKeys].
const (
	handoverPrefix = "handover.alpha.sharding.timebertt.dev/"
	heldPrefix     = "held.alpha.sharding.timebertt.dev/"
	DrainSuffix    = "-drain" // follows spec.shardLabel of a ring in the key of its drain label
	handoverSuffix = "-handover"
	heldSuffix     = "-held"
)

// ResourceShardLabels is the resource in the group of this API for which the rebalancer needs the verb "write", with
// spec.shardLabel of a ring as the name. It exists only as a permission: to change a label that does not begin as ours.
const ResourceShardLabels = "shardlabels"

// LabelKeys are the keys by which a ring labels and annotates objects: ClusterRing.LabelKeys, or [LabelKeysOf].
type LabelKeys struct {
	// Shard is the key of the label that assigns an object to a shard; the value of the label is the shard's name.
	Shard string
	// Drain is the key of the label that asks an object's shard to release the object; see [NextShard] for its value.
	Drain string
	// Handover is the key of the annotation that contains a [Handover].
	Handover string
	// Held is the key of the annotation by which shards hold an object back whose reconcile ends their processes. It
	// contains a digest of the object, and has no effect when the object has changed.
	Held string
}

// LabelKeysOf returns the keys of a ring by its name and spec.shardLabel, which may be empty and is not validated.
func LabelKeysOf(ring, shardLabel string) LabelKeys {
	if shardLabel == "" {
		return LabelKeys{Shard: ShardLabel(ring), Drain: DrainLabel(ring), Handover: HandoverAnnotation(ring),
			Held: heldPrefix + RingSuffix(ring)}
	}

	return LabelKeys{Shard: shardLabel, Drain: shardLabel + DrainSuffix, Handover: shardLabel + handoverSuffix,
		Held: shardLabel + heldSuffix}
}

// reservedDomains may not contain the label of a ring, nor may domains below them.
var reservedDomains = []string{"kubernetes.io", "k8s.io", "sharding.timebertt.dev"}

// ValidateShardLabel returns what is wrong with a key for spec.shardLabel; nothing if the API server accepts it there.
func ValidateShardLabel(key string) (problems []string) {
	domain, name, found := strings.Cut(key, "/")
	if !found {
		return []string{"it must begin with a domain of yours and a slash, so that no other label has the same key"}
	}

	problems = append(problems, validation.IsQualifiedName(key)...)

	if longest := maxLabelName - len(handoverSuffix); len(name) > longest {
		problems = append(problems,
			fmt.Sprintf("after the slash, there may be at most %d characters: %s is added to the key", longest, handoverSuffix))
	}

	for _, reserved := range reservedDomains {
		if domain == reserved || strings.HasSuffix(domain, "."+reserved) {
			problems = append(problems, "the domain "+reserved+" is reserved: use a domain of your own")
		}
	}

	if strings.HasSuffix(name, DrainSuffix) || strings.HasSuffix(name, handoverSuffix) {
		problems = append(problems,
			"a key that ends with "+DrainSuffix+" or "+handoverSuffix+" could be one that follows from the shardLabel of "+
				"another ring")
	}

	return problems
}
