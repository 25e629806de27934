// Package v1alpha1 defines the ClusterRing API: its types, their conditions, and the reasons of these. What else shards
// and services share, such as labels and names, is in package contract; a few names are here, too, because programs for
// kubernetes-controller-sharding find them here.
//
// +kubebuilder:object:generate=true
// +groupName=sharding.timebertt.dev
package v1alpha1

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
)

// ClusterRing declares which resources are sharded. Every object of these resources is assigned to exactly one of the
// shards whose Leases carry the ring's name.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:metadata:labels="app.kubernetes.io/part-of=clusterring"
// +kubebuilder:resource:scope=Cluster,path=clusterrings,singular=clusterring
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Available",type=integer,JSONPath=`.status.availableShards`
// +kubebuilder:printcolumn:name="Shards",type=integer,JSONPath=`.status.shards`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Sharder",type=string,JSONPath=`.spec.sharder`,priority=1
// +kubebuilder:printcolumn:name="Active",type=integer,JSONPath=`.spec.activeShards`,priority=1
// +kubebuilder:printcolumn:name="Shard Label",type=string,JSONPath=`.status.shardLabel`,priority=1
// +kubebuilder:printcolumn:name="Webhook",type=string,JSONPath=`.status.conditions[?(@.type=="WebhookRegistered")].reason`,priority=1
// +kubebuilder:printcolumn:name="Fence",type=string,JSONPath=`.status.conditions[?(@.type=="Fenced")].reason`,priority=1
// +kubebuilder:printcolumn:name="Assigned",type=string,JSONPath=`.status.conditions[?(@.type=="Assigned")].reason`,priority=1
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.conditions[?(@.type=="Assigned")].message`,priority=1
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 63",message="the name of a ring must be at most 63 characters: it is used as a label value"
// +kubebuilder:validation:XValidation:rule="self.metadata.name.matches('^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$')",message="the name of a ring must be a valid label value"
type ClusterRing struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec declares what is sharded.
	Spec ClusterRingSpec `json:"spec"`
	// Status reports the progress of the services.
	Status ClusterRingStatus `json:"status,omitempty"`
}

// ClusterRingList is a list of ClusterRings.
//
// +kubebuilder:object:root=true
type ClusterRingList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	// Items are the rings.
	Items []ClusterRing `json:"items"`
}

// ClusterRingSpec declares which resources are sharded, in which namespaces, and which of their objects.
//
// +kubebuilder:validation:XValidation:rule="self.resources.all(r, !has(r.controlledResources) || self.resources.all(m, !(dyn({'group': m.group, 'resource': m.resource}) in r.controlledResources)))",message="a resource must not be listed both as a main and as a controlled resource"
// +kubebuilder:validation:XValidation:rule="has(self.shardLabel) == has(oldSelf.shardLabel) && (!has(self.shardLabel) || self.shardLabel == oldSelf.shardLabel)",message="spec.shardLabel cannot be added, changed, or removed, because objects carry the label: delete the ring, and create it again when it is gone"
// +kubebuilder:validation:XValidation:rule="!has(self.shardLabel) || self.resources.all(r, !has(r.key) || !has(r.key.label) || !(r.key.label in [self.shardLabel, self.shardLabel + '-drain']))",message="the labels of the ring itself are not the key of an object: they change when the object moves"
// +kubebuilder:validation:XValidation:rule="!has(self.shardLabel) || !has(self.objectSelector) || (!has(self.objectSelector.matchLabels) || self.objectSelector.matchLabels.all(k, !(k in [self.shardLabel, self.shardLabel + '-drain']))) && (!has(self.objectSelector.matchExpressions) || self.objectSelector.matchExpressions.all(e, !(e.key in [self.shardLabel, self.shardLabel + '-drain'])))",message="the labels of the ring itself do not select objects: they change when the object moves"
// +kubebuilder:validation:XValidation:rule="!has(self.sharder) || self.sharder != 'Embedded' || (has(self.shardNamespaces) && size(self.shardNamespaces) == 1)",message="with the sharder Embedded, spec.shardNamespaces must name the one namespace of the shards"
// +kubebuilder:validation:XValidation:rule="!has(self.sharder) || self.sharder != 'Embedded' || !has(self.fence) || self.fence.mode == 'Off'",message="with the sharder Embedded, a ring cannot have a fence: the shards themselves write the labels of all objects"
type ClusterRingSpec struct {
	// Resources are the main resources of the ring. Each of their objects is assigned by its own name, unless the resource
	// has another key.
	// +listType=map
	// +listMapKey=group
	// +listMapKey=resource
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=256
	Resources []RingResource `json:"resources"`
	// NamespaceSelector selects the namespaces whose objects are sharded. By default, these are all namespaces except
	// kube-node-lease, kube-public, kube-system and sharding-system. It does not apply to cluster-scoped objects.
	// +kubebuilder:validation:XValidation:rule="!has(self.matchExpressions) || self.matchExpressions.all(e, e.operator == 'In' || e.operator == 'NotIn' ? has(e.values) && size(e.values) > 0 : (e.operator == 'Exists' || e.operator == 'DoesNotExist') && !(has(e.values) && size(e.values) > 0))",message="an expression needs the operator In or NotIn with values, or Exists or DoesNotExist without"
	NamespaceSelector *metav1.LabelSelector `json:"namespaceSelector,omitempty"`
	// ObjectSelector selects the main objects that are sharded, by their labels: for a ring over a part of the objects of
	// a kind. An object of a controlled resource is sharded if the main object that it follows is selected; its own labels
	// do not count. By default, and if the selector is empty, all objects are sharded. What is no longer selected is
	// drained, and then loses the labels of the ring. The selector must not name labels of a ring, because they change
	// when objects move.
	// +kubebuilder:validation:XValidation:rule="!has(self.matchExpressions) || self.matchExpressions.all(e, e.operator == 'In' || e.operator == 'NotIn' ? has(e.values) && size(e.values) > 0 : (e.operator == 'Exists' || e.operator == 'DoesNotExist') && !(has(e.values) && size(e.values) > 0))",message="an expression needs the operator In or NotIn with values, or Exists or DoesNotExist without"
	// +kubebuilder:validation:XValidation:rule="(!has(self.matchLabels) || self.matchLabels.all(k, !k.matches('^([^/]*[.])?sharding[.]timebertt[.]dev/'))) && (!has(self.matchExpressions) || self.matchExpressions.all(e, !e.key.matches('^([^/]*[.])?sharding[.]timebertt[.]dev/')))",message="labels of ClusterRing itself do not select objects: they change when the object moves"
	ObjectSelector *metav1.LabelSelector `json:"objectSelector,omitempty"`
	// ShardNamespaces are the namespaces in which the shards of the ring hold their Leases. Leases in other namespaces do
	// not count, whatever labels they carry. If it is not set, Leases in all namespaces count: then everyone who may
	// create a Lease in any namespace can add a shard, which gets objects of the ring. Stop the shards of a namespace
	// before you remove it: their objects go to other shards after twice the Lease duration, even if the shards still run.
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=63
	// +kubebuilder:validation:items:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	ShardNamespaces []string `json:"shardNamespaces,omitempty"`
	// ActiveShards is how many of the available shards get objects. The others stand by: they hold their Leases and get no
	// object until an active shard is lost or stops. If it is not set, all available shards get objects. 1 is leader
	// election whose hand-over drains object by object. The shards that have held their Leases for longest are active, so
	// a shard that joins changes nothing while enough others are available.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=2000
	ActiveShards *int32 `json:"activeShards,omitempty"`
	// Paused stops planned moves: an object stays at its shard as long as the shard is there, also if it belongs to
	// another one by the ring. New objects, and those of shards that are lost or stop, get a shard as usual. The condition
	// Paused tells.
	Paused bool `json:"paused,omitempty"`

	// ShardLabel is the key of the label that assigns an object of this ring to a shard, such as example.com/shard. By
	// default, the key follows from the name of the ring. The keys of the drain label and of the handover annotation
	// follow from it: example.com/shard-drain and example.com/shard-handover. All shards of the ring must be started with
	// the same key. It needs a prefix that is a domain, so that no label of users or of Kubernetes has the same key. Of
	// two rings with the same key, only the older one works. It cannot be added, changed, or removed.
	// +kubebuilder:validation:MinLength=3
	// +kubebuilder:validation:MaxLength=308
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$`
	// +kubebuilder:validation:XValidation:rule="self.indexOf('/') <= 253 && size(self) - self.indexOf('/') <= 55",message="before the slash, there may be at most 253 characters, and after it at most 54: -handover is added to the key"
	// +kubebuilder:validation:XValidation:rule="!self.matches('^([^/]*[.])?(kubernetes[.]io|k8s[.]io|sharding[.]timebertt[.]dev)/')",message="the domains kubernetes.io, k8s.io, and sharding.timebertt.dev are reserved: use a domain of your own"
	// +kubebuilder:validation:XValidation:rule="!self.endsWith('-drain') && !self.endsWith('-handover')",message="a key that ends with -drain or -handover could be one that follows from the shardLabel of another ring"
	ShardLabel string `json:"shardLabel,omitempty"`
	// ShardNames are names that shards may have instead of the names of their Pods, besides <ring>-0, <ring>-1, and so on:
	// one Pod at a time holds the Lease of such a name. Without an entry here, an admission policy refuses the Lease.
	// +listType=set
	// +kubebuilder:validation:MaxItems=1000
	// +kubebuilder:validation:items:MaxLength=63
	// +kubebuilder:validation:items:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`
	// +kubebuilder:validation:XValidation:rule="!('shardlease-controller' in self)",message="shardlease-controller is how the lease monitor signs Leases that it has taken"
	ShardNames []string `json:"shardNames,omitempty"`
	// Fence makes the API server refuse writes of shards to objects of other shards: those of a process that has lost its
	// Lease and does not know it, of a controller that works with an old cache, or of one that ignores shards.
	Fence *Fence `json:"fence,omitempty"`
	// Sharder says who assigns the objects of the ring to its shards: Services, which is the default, or Embedded, the
	// elected one of the ring's own shards. It may be changed at any time: the new sharder begins when the old one has
	// stopped.
	Sharder SharderMode `json:"sharder,omitempty"`
}

// SharderMode is who assigns the objects of a ring to its shards.
//
// +kubebuilder:validation:Enum=Services;Embedded
type SharderMode string

// Who may shard a ring.
const (
	// SharderServices are lease monitor, assigner, and rebalancer, which serve all rings of a cluster. It is the default.
	SharderServices SharderMode = "Services"
	// SharderEmbedded is one of the shards of the ring, which they elect: each of them calls the function AddTo of the Go
	// package services/embedded. There is no webhook.
	SharderEmbedded SharderMode = "Embedded"
)

// FenceMode is what the API server does with a write that the fence does not allow.
//
// +kubebuilder:validation:Enum=Off;Audit;Enforce
type FenceMode string

// Modes of a fence.
const (
	// FenceOff allows all writes.
	FenceOff FenceMode = "Off"
	// FenceAudit allows all writes. It reports those that Enforce refuses in a warning to the client, in the audit log of
	// the API server, and in its metric apiserver_validating_admission_policy_check_total.
	FenceAudit FenceMode = "Audit"
	// FenceEnforce refuses writes.
	FenceEnforce FenceMode = "Enforce"
)

// Fence declares who the shards of a ring are for the API server. With a fence, the API server refuses
//
//   - updates and deletions of an object by a shard whose name is not on the shard label of the stored object;
//   - the creation of an object with the label of another shard by a shard; and
//   - a change of the shard label from one shard to another by anybody but the shards, the rebalancer, and everyone who
//     has the permission "relabel" on the ring.
//
// A shard is told from others by the Pod that its token is bound to.
//
// +kubebuilder:validation:XValidation:rule="self.mode == 'Off' || (has(self.serviceAccounts) && size(self.serviceAccounts) > 0)",message="a fence needs the service accounts of the shards"
type Fence struct {
	// Mode is what happens to writes that the fence does not allow. Use Audit first.
	Mode FenceMode `json:"mode"`
	// ServiceAccounts are the service accounts of the shards. The fence restricts no other account, except for changes of
	// shard labels.
	// +listType=map
	// +listMapKey=namespace
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=16
	ServiceAccounts []ServiceAccountReference `json:"serviceAccounts,omitempty"`
}

// ServiceAccountReference names a service account.
type ServiceAccountReference struct {
	// Namespace is the namespace of the service account.
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	Namespace string `json:"namespace"`
	// Name is the name of the service account.
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`
	Name string `json:"name"`
}

// FenceMode returns the mode of the ring's fence: [FenceOff] if it has none.
func (s ClusterRingSpec) FenceMode() FenceMode {
	if s.Fence == nil {
		return FenceOff
	}

	return s.Fence.Mode
}

// CountsShardsIn reports whether Leases in a namespace count as shards of the ring.
func (s ClusterRingSpec) CountsShardsIn(namespace string) bool {
	return len(s.ShardNamespaces) == 0 || slices.Contains(s.ShardNamespaces, namespace)
}

// LabelKeys returns the keys of the ring.
func (r *ClusterRing) LabelKeys() contract.LabelKeys {
	return contract.LabelKeysOf(r.Name, r.Spec.ShardLabel)
}

// RingResource is a main resource of a ring, with the resources that its controller creates from it.
//
// +kubebuilder:validation:XValidation:rule="!(self.group in ['admissionregistration.k8s.io', 'events.k8s.io', 'rbac.authorization.k8s.io', 'sharding.timebertt.dev']) && !(self.group == 'coordination.k8s.io' && self.resource == 'leases') && !(size(self.group) == 0 && self.resource in ['events', 'nodes'])",message="a ring cannot shard Leases, Events, Nodes, ClusterRings, or objects of admission and RBAC: the services and the cluster depend on them"
// +kubebuilder:validation:XValidation:rule="!has(self.key) || !has(self.key.label) || self.key.label.matches('^([a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$') && (!self.key.label.contains('/') || self.key.label.indexOf('/') <= 253)",message="the key of a label is a name of at most 63 letters, digits, '-', '_', and '.', which may follow a DNS name and a slash"
// +kubebuilder:validation:XValidation:rule="!has(self.key) || !has(self.key.label) || !self.key.label.matches('^([^/]*[.])?sharding[.]timebertt[.]dev/')",message="labels of ClusterRing itself are not the key of an object: they change when the object moves"
type RingResource struct {
	// Group is the API group of the resource; empty for the core group.
	// +optional
	// +kubebuilder:default=""
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*)?$`
	Group string `json:"group"`
	// Resource is the plural name of the resource, as in the path of the API.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	Resource string `json:"resource"`
	// ControlledResources are the resources whose objects follow their controller (the controller owner reference), if it
	// is an object of a main resource, or of a controlled resource that follows such an object: a Pod follows the
	// Deployment of its ReplicaSet if both replicasets.apps and pods are listed here. A chain has at most four levels.
	// List higher levels first; otherwise, passes over the objects cost more. Objects with another controller, or with
	// none, are not sharded. A resource that several main resources list is one resource of the ring: its objects follow
	// whichever of them is their controller.
	// +listType=map
	// +listMapKey=group
	// +listMapKey=resource
	// +kubebuilder:validation:MaxItems=32
	ControlledResources []ControlledResource `json:"controlledResources,omitempty"`
	// Key is what objects of the resource have in common if they belong together: they are at one shard, and so are
	// objects of other resources of the ring with the same key. By default, it is the name, so that each object is
	// assigned on its own. A change moves objects, with drains, as a change of the shards does.
	Key *ObjectKey `json:"key,omitempty"`
}

// KeyType is what the key of an object is.
//
// +kubebuilder:validation:Enum=Name;Namespace;Label
type KeyType string

// Types of keys.
const (
	// KeyName makes every object belong to itself.
	KeyName KeyType = "Name"
	// KeyNamespace makes all objects of a namespace belong together, with the Namespace object itself if the ring shards
	// it. It needs a namespaced resource: cluster-scoped objects are assigned by their names.
	KeyNamespace KeyType = "Namespace"
	// KeyLabel makes all objects with the same value of a label belong together, in whatever namespace they are. Objects
	// that lack the label are assigned by their names.
	KeyLabel KeyType = "Label"
)

// ObjectKey declares which objects belong together.
//
// +kubebuilder:validation:XValidation:rule="self.type == 'Label' ? has(self.label) : !has(self.label)",message="a key of type Label needs the key of the label, and no other key has one"
type ObjectKey struct {
	// Type is Name, Namespace, or Label.
	Type KeyType `json:"type"`
	// Label is the key of the label whose value objects have in common, such as example.com/tenant, if the type is Label.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=317
	Label string `json:"label,omitempty"`
}

// ControlledResource names a controlled resource.
//
// +kubebuilder:validation:XValidation:rule="!(self.group in ['admissionregistration.k8s.io', 'events.k8s.io', 'rbac.authorization.k8s.io', 'sharding.timebertt.dev']) && !(self.group == 'coordination.k8s.io' && self.resource == 'leases') && !(size(self.group) == 0 && self.resource in ['events', 'nodes'])",message="a ring cannot shard Leases, Events, Nodes, ClusterRings, or objects of admission and RBAC: the services and the cluster depend on them"
type ControlledResource struct {
	// Group is the API group of the resource; empty for the core group.
	// +optional
	// +kubebuilder:default=""
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*)?$`
	Group string `json:"group"`
	// Resource is the plural name of the resource, as in the path of the API.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	Resource string `json:"resource"`
}

// ClusterRingStatus reports the progress of the services. Each field and each condition has one writer.
type ClusterRingStatus struct {
	// ObservedGeneration is the generation of the spec that the lease monitor last saw.
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Shards is the number of Leases that carry the ring's name.
	// +optional
	Shards int32 `json:"shards"`
	// AvailableShards is the number of shards that can get objects.
	// +optional
	AvailableShards int32 `json:"availableShards"`
	// Holders are the shards that have another name than their Pod. All other shards have the name of their Pod. At most
	// 256 are listed.
	// +listType=map
	// +listMapKey=shard
	// +kubebuilder:validation:MaxItems=5000
	Holders []ShardHolder `json:"holders,omitempty"`
	// ShardLabel is the key of the label that assigns an object of this ring to a shard.
	ShardLabel string `json:"shardLabel,omitempty"`
	// Assignment is what the rebalancer knows about the ring's objects; absent until the rebalancer has looked at them.
	Assignment *AssignmentStatus `json:"assignment,omitempty"`
	// Conditions are Ready, ShardsAvailable, WebhookRegistered, Assigned, and, if the ring has a fence, Fenced, and, if a
	// resource has a key other than the name, KeysFound.
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// ShardHolder is a shard, and the Pod that runs it.
type ShardHolder struct {
	// Shard is the name of the shard, and of its Lease.
	Shard string `json:"shard"`
	// Pod is the name of the Pod, in the namespace of the Lease.
	Pod string `json:"pod"`
}

// MaxLostShards is how many [AssignmentStatus.LostShards] the rebalancer reports at a time, so that the status stays
// small.
const MaxLostShards = 256

// AssignmentStatus is what the rebalancer knows about the ring's objects.
type AssignmentStatus struct {
	// Fingerprint identifies the set of available shards for which every object was last found in its place. While it
	// differs from the fingerprint of the currently available shards, moves may be in progress. Empty until the first pass
	// has ended.
	Fingerprint string `json:"fingerprint,omitempty"`
	// Unassigned is the number of objects that wait for a shard.
	// +optional
	Unassigned int32 `json:"unassigned"`
	// Misplaced is the number of objects that have a shard other than the one they belong to.
	// +optional
	Misplaced int32 `json:"misplaced"`
	// Draining is the number of objects whose shard was asked to release them and has not yet done so.
	// +optional
	Draining int32 `json:"draining"`
	// LostShards are shards that do not hold their Leases, and from which objects must still be taken without asking them.
	// Until then, the lease monitor keeps the Leases from these shards. Names that have no Lease are not listed.
	// +listType=set
	// +kubebuilder:validation:MaxItems=5000
	// +kubebuilder:validation:items:MaxLength=63
	LostShards []string `json:"lostShards,omitempty"`
	// Resources are the resources whose objects may carry labels of the ring: resources of its spec that are or were
	// served, and resources that have left the spec and whose labels have not all been removed yet.
	// +listType=map
	// +listMapKey=group
	// +listMapKey=resource
	Resources []AssignedResource `json:"resources,omitempty"`
}

// AssignedResource is a main resource whose objects may carry labels of the ring. It may have more controlled resources
// than any single spec: those of several successive specs. There are never more than the API server serves.
type AssignedResource struct {
	// Group is the API group of the resource; empty for the core group.
	// +optional
	// +kubebuilder:default=""
	Group string `json:"group"`
	// Resource is the plural name of the resource, as in the path of the API.
	Resource string `json:"resource"`
	// ControlledResources are the resources whose objects may carry labels of the ring because they followed an object of
	// the main resource.
	// +listType=map
	// +listMapKey=group
	// +listMapKey=resource
	ControlledResources []ControlledResource `json:"controlledResources,omitempty"`
	// Key is the key by which objects of the main resource are assigned, or are moving to; absent for the name. While it
	// differs from the key in the spec, objects are about to move.
	Key *ObjectKey `json:"key,omitempty"`
	// Fingerprint identifies the set of available shards for which every object of the main resource was last found in its
	// place, as the fingerprint of the assignment does for all resources. While it differs from that of the currently
	// available shards, objects that others follow may be moving.
	Fingerprint string `json:"fingerprint,omitempty"`
}

// GroupName is the API group of the types of this package.
const GroupName = "sharding.timebertt.dev"

// GroupVersion is the group and version that this package declares.
var GroupVersion = schema.GroupVersion{Group: GroupName, Version: "v1alpha1"}

// AddToScheme adds the types of this package to a scheme. It returns an error if the scheme already contains another
// type under one of their kinds.
func AddToScheme(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(GroupVersion, &ClusterRing{}, &ClusterRingList{}, &PolicyParameter{}, &PolicyParameterList{})
	metav1.AddToGroupVersion(scheme, GroupVersion)

	return nil
}

// EffectiveNamespaceSelector returns the selector of the namespaces that the ring covers: a copy of the spec's
// selector, or the default, which selects every namespace except Kubernetes' own and [contract.SystemNamespace]. It is
// never nil. It applies only to namespaced objects.
func (s ClusterRingSpec) EffectiveNamespaceSelector() *metav1.LabelSelector {
	if s.NamespaceSelector != nil {
		return s.NamespaceSelector.DeepCopy()
	}

	return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{
		Key:      corev1.LabelMetadataName,
		Operator: metav1.LabelSelectorOpNotIn,
		Values: []string{corev1.NamespaceNodeLease, metav1.NamespacePublic, metav1.NamespaceSystem,
			contract.SystemNamespace},
	}}}
}

// maxRequirements limits the labels, and the expressions, of an object selector, as the CustomResourceDefinition does.
const maxRequirements = 16

// ObjectRequirements returns what the labels of a main object must meet so that the ring shards it: all of them, in an
// order that depends only on what they require. It returns none if the ring shards all objects. It returns an error if
// spec.objectSelector is not valid, or names a label of a ring.
func (s ClusterRingSpec) ObjectRequirements() (labels.Requirements, error) {
	if s.ObjectSelector == nil {
		return nil, nil
	}

	if len(s.ObjectSelector.MatchLabels) > maxRequirements || len(s.ObjectSelector.MatchExpressions) > maxRequirements {
		return nil, fmt.Errorf("spec.objectSelector: at most %d labels and %d expressions are allowed", maxRequirements,
			maxRequirements)
	}

	selector, err := metav1.LabelSelectorAsSelector(s.ObjectSelector)
	if err != nil {
		return nil, fmt.Errorf("spec.objectSelector: %w", err)
	}

	requirements, _ := selector.Requirements()

	for _, r := range requirements {
		domain, _, _ := strings.Cut(r.Key(), "/")
		if domain == GroupVersion.Group || strings.HasSuffix(domain, "."+GroupVersion.Group) ||
			s.ShardLabel != "" && (r.Key() == s.ShardLabel || r.Key() == s.ShardLabel+contract.DrainSuffix) {
			return nil, fmt.Errorf("spec.objectSelector: %s is a label of a ring, which changes when objects move", r.Key())
		}
	}

	slices.SortFunc(requirements, func(a, b labels.Requirement) int { return cmp.Compare(a.String(), b.String()) })

	return requirements, nil
}

// PolicyParameter tells an admission policy what it must know of rings. The lease monitor writes it, and undoes changes
// by others. It is not an API for users: its keys may change with the policies in deploy/base/guard.
//
// ClusterRings are not parameters of these policies, because the API server decodes the whole parameter several times
// per request, and it evaluates a policy once for each of its parameters.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster
// +kubebuilder:metadata:labels="app.kubernetes.io/part-of=clusterring"
type PolicyParameter struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Data is what the policy must know.
	// +optional
	Data map[string]string `json:"data,omitempty"`
}

// PolicyParameterList is a list of PolicyParameters.
//
// +kubebuilder:object:root=true
type PolicyParameterList struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []PolicyParameter `json:"items"`
}
