// Package feed tells what is where: it lists, watches, reads, and labels the metadata of sharded objects of one ring.
//
// It lists objects as a stream or in pages, so that memory does not grow with the number of objects. A [Stream] follows
// the objects that match a selector: it passes what it sees to a [Sink], reports its errors when they occur, and stops
// trusting a watch that has delivered nothing for longer than an API server normally leaves a watch silent. A [Client]
// writes labels on the condition that the object has not changed since it was read. The package stores no objects and
// decides nothing.
package feed

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"strings"
	"sync/atomic"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/services/internal/resources"
)

// ID identifies an object.
type ID struct {
	GVR       schema.GroupVersionResource
	Namespace string
	Name      string
}

// String returns "resource.group namespace/name", in the notation of kubectl.
func (id ID) String() string {
	return id.GVR.GroupResource().String() + " " + path.Join(id.Namespace, id.Name)
}

// Compare orders IDs by namespace, name and resource, as [cmp.Compare] does.
func Compare(a, b ID) int {
	return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name),
		strings.Compare(a.GVR.Resource, b.GVR.Resource))
}

// Object is the part of an object's metadata that is stored.
type Object struct {
	ID
	UID             types.UID
	ResourceVersion string
	// Shard is the value of the ring's shard label. Labelled reports whether the label is present.
	Shard    string
	Labelled bool
	// Draining reports whether the ring's drain label is present.
	Draining bool
	// KeyLabel is the label that was the key of the object's resource when the object was read; empty if it was none.
	// KeyValue is the value of the label; empty if the object lacks it.
	KeyLabel, KeyValue string
	// Selector is the selector of the object's resource when the object was read; empty for all, and for a resource that
	// was no main resource of the ring. Unselected reports whether it did not select the object.
	Selector   string
	Unselected bool
	// Controller is the owner reference of the object's controller; nil if there is none.
	Controller *metav1.OwnerReference
	// Above are the objects that the controller follows. The object itself does not contain them; they are added when
	// they have been determined.
	Above Above
}

// Above are the UIDs of the objects that an object's controller follows, up to the main object, nearest first. Unused
// elements are empty.
type Above [contract.MaxDepth - 2]types.UID

// Lineage returns the UIDs of the objects that an object follows, controller first. Unused elements are empty.
func (o Object) Lineage() (all Lineage) {
	if o.Controller != nil {
		all[0] = o.Controller.UID
		copy(all[1:], o.Above[:])
	}

	return all
}

// Lineage contains an object's controller, and the objects that the controller follows.
type Lineage [contract.MaxDepth - 1]types.UID

// Client reads and labels objects of one ring. It is safe for concurrent use.
type Client struct {
	server  Server
	keys    contract.LabelKeys
	manager string
	set     atomic.Pointer[selected]
}

// selected are the resources of a ring, and their selector, parsed once for all objects.
type selected struct {
	*resources.Set

	selector labels.Selector
}

// NewClient returns a client for the labels of the ring with these keys.
func NewClient(s Server, keys contract.LabelKeys) *Client {
	c := &Client{server: s, keys: keys, manager: manager(keys)}
	c.Reads(&resources.Set{})

	return c
}

// ShardLabel returns the key of the ring's shard label.
func (c *Client) ShardLabel() string { return c.keys.Shard }

// DrainLabel returns the key of the ring's drain label. The key is also a label selector for the presence of the label.
func (c *Client) DrainLabel() string { return c.keys.Drain }

// Reads makes objects that are read from now on contain what their labels decide in a ring with these resources.
func (c *Client) Reads(set *resources.Set) {
	selector, err := labels.Parse(set.Selector())
	if err != nil {
		selector = labels.Nothing()
	}

	c.set.Store(&selected{set, selector})
}

// Enter waits until one more object may be read and written, counted over all rings that share the API server; leave
// ends that.
func (c *Client) Enter(ctx context.Context) (leave func(), err error) { return c.server.Enter(ctx) }

// Metadata reads the metadata of one object from the API server's storage, not from a cache. If there is none, the
// error is NotFound.
func (c *Client) Metadata(
	ctx context.Context, gvr schema.GroupVersionResource, name types.NamespacedName,
) (*metav1.PartialObjectMetadata, error) {
	return c.server.Get(ctx, ID{GVR: gvr, Namespace: name.Namespace, Name: name.Name})
}

// Get reads one object from the API server's storage, not from a cache. If there is none, the error is NotFound.
func (c *Client) Get(ctx context.Context, id ID) (Object, error) {
	m, err := c.server.Get(ctx, id)
	if err != nil {
		return Object{}, fmt.Errorf("read %s: %w", id, err)
	}

	return c.Object(id.GVR, m), nil
}

// Object returns the part of an object's metadata that is stored.
func (c *Client) Object(gvr schema.GroupVersionResource, m *metav1.PartialObjectMetadata) Object {
	shard, labelled := m.Labels[c.keys.Shard]
	_, draining := m.Labels[c.keys.Drain]
	o := Object{
		ID:              ID{GVR: gvr, Namespace: m.Namespace, Name: m.Name},
		UID:             m.UID,
		ResourceVersion: m.ResourceVersion,
		Shard:           shard,
		Labelled:        labelled,
		Draining:        draining,
		Controller:      metav1.GetControllerOf(m),
	}

	set := c.set.Load()
	if r, role, _ := set.Find(gvr.GroupResource()); role == resources.Main {
		o.KeyLabel, o.KeyValue = r.Key.Label, m.Labels[r.Key.Label]
		o.Selector, o.Unselected = r.Selector, !set.selector.Matches(labels.Set(m.Labels))
	}

	return o
}

// Older is [resources.Older].
func Older(a, b string) bool { return resources.Older(a, b) }

// Mutating admission may change more of an object in the same write. The admission policy about the rebalancer then
// refuses a patch, because it cannot tell who changed what. In server-side apply, the managed fields show what was
// sent, so the policy allows it. Patches come first: they cost the API server less, and also remove labels of other
// field managers.

// policy is the name of that policy.
const policy = "rebalancer.sharding.timebertt.dev"

// managerPrefix begins the names by which that policy recognizes the rebalancer in managed fields.
const managerPrefix = "rebalancer-"

// MentionsPolicy reports whether the text of an error reports that the policy about the rebalancer has refused a write.
func MentionsPolicy(text string) bool { return strings.Contains(text, "'"+policy+"'") }

// manager returns the name by which the API server records what the ring applies. What a manager does not apply again
// is removed, so each ring has one.
func manager(keys contract.LabelKeys) string {
	if name := managerPrefix + keys.Shard; len(name) <= validation.FieldManagerMaxLength {
		return name
	}

	return fmt.Sprintf("%s%x", managerPrefix, sha256.Sum256([]byte(keys.Shard)))
}

// Labels are the ring's labels of an object, and its handover annotation, as they are after a write.
type Labels struct {
	// Shard is the value of the shard label, and Drain that of the drain label: contract.DrainValue, or the name of the
	// next shard. Empty removes the label.
	Shard, Drain string
	// Handover is the value of the handover annotation. Empty removes the annotation; nil does not change it.
	Handover *string
	// Kind is the kind of the object in the version of its resource. If it is empty, and mutating admission changes
	// more in the same write, the write may be refused.
	Kind string
}

// Label gives an object these labels in one write, and returns the object afterwards, including what admission has
// added. The write succeeds only if the object has not changed since it was read. The error is Conflict if it has
// changed, and NotFound if it is gone. If the policy about the rebalancer refuses the write because admission changes
// more in it, the labels are applied instead; a label is then removed in two writes.
func (c *Client) Label(ctx context.Context, o Object, to Labels) (Object, error) {
	// A resource version belongs to only one object, even among successive objects with the same name.
	w := write{
		version:     o.ResourceVersion,
		labels:      map[string]*string{c.keys.Shard: orNull(to.Shard), c.keys.Drain: orNull(to.Drain)},
		annotations: map[string]*string{},
	}
	if to.Handover != nil {
		w.annotations[c.keys.Handover] = orNull(*to.Handover)
	}

	now, err := c.send(ctx, o.ID, w)
	if apierrors.IsForbidden(err) && MentionsPolicy(err.Error()) && to.Kind != "" {
		w.kind = to.Kind
		now, err = c.apply(ctx, o.ID, w)
	}

	if err != nil {
		return Object{}, fmt.Errorf("label %s: %w", o.ID, err)
	}

	return c.Object(o.GVR, now), nil
}

// write is one write of labels and annotations; nil removes one. It succeeds only for this version of the object.
// Without a kind, it is a JSON merge patch, otherwise an apply.
type write struct {
	kind, version       string
	labels, annotations map[string]*string
}

func orNull(value string) *string {
	if value == "" {
		return nil
	}

	return &value
}

// apply writes with server-side apply. Labels are removed that the same manager has applied before and does not apply
// again, unless they have other managers. So, to remove labels, it first changes only their values, which makes it
// their only manager.
func (c *Client) apply(ctx context.Context, id ID, w write) (*metav1.PartialObjectMetadata, error) {
	now, err := c.server.Get(ctx, id)
	if err != nil {
		return nil, err
	}

	mine, removes := write{kind: w.kind, version: w.version, labels: map[string]*string{}}, false

	for key, value := range w.labels {
		if was, present := now.Labels[key]; present && value == nil {
			mine.labels[key], removes = new(""), true
		} else if present {
			mine.labels[key] = &was
		}
	}

	if removes {
		if now, err = c.applyOnce(ctx, id, mine, now.Annotations[c.keys.Handover]); err != nil {
			return nil, err
		}

		w.version = now.ResourceVersion
	}

	maps.DeleteFunc(w.labels, func(_ string, value *string) bool { return value == nil })

	return c.applyOnce(ctx, id, w, now.Annotations[c.keys.Handover])
}

// applyOnce writes with one apply, which changes the handover annotation from what it was: the policy recognizes an
// apply by that. If the value is to stay the same, only the text of its JSON changes.
func (c *Client) applyOnce(ctx context.Context, id ID, w write, was string) (*metav1.PartialObjectMetadata, error) {
	value, changes := w.annotations[c.keys.Handover]
	if !changes {
		value = &was
	}

	handover := strings.TrimSpace(cmp.Or(ptr.Deref(value, ""), "{}")) // nothing follows the object
	if handover == was {
		handover += " "
	}

	w.annotations = map[string]*string{c.keys.Handover: &handover}

	return c.send(ctx, id, w)
}

func (c *Client) send(ctx context.Context, id ID, w write) (*metav1.PartialObjectMetadata, error) {
	metadata := map[string]any{"resourceVersion": w.version, "labels": w.labels, "annotations": w.annotations}
	sent, manager := map[string]any{"metadata": metadata}, ""

	if w.kind != "" {
		sent["apiVersion"], sent["kind"], manager = id.GVR.GroupVersion().String(), w.kind, c.manager
		metadata["name"], metadata["namespace"] = id.Name, id.Namespace
	}

	body, err := json.Marshal(sent)
	if err != nil {
		return nil, fmt.Errorf("encode the labels of %s: %w", id, err)
	}

	return c.server.Patch(ctx, id, body, manager)
}
