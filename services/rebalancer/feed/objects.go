// Package feed tells what is where: it lists, watches, reads, and labels the metadata of sharded objects of one ring.
//
// It lists objects as a stream or in pages, so that memory does not grow with the number of objects. A [Stream] follows the objects that
// match a selector: it passes what it sees to a [Sink], reports its errors when they occur, and stops trusting a watch that has delivered
// nothing for longer than an API server normally leaves a watch silent. A [Client] writes labels on the condition that the object has not
// changed since it was read. The package stores no objects and decides nothing.
package feed

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
)

const (
	// PageSize is the number of objects in one page of a list. With 2 to 5 KiB of metadata per object, a page has 2 to 5 MiB.
	PageSize = 1000
	// largePage is the size of further pages of a list after smallPages pages. To answer a page, an API server collects
	// everything that is left to list: a million objects in pages of 1,000 cost it 70 s of CPU, and in large pages a fifth of
	// that.
	largePage  = 5 * PageSize
	smallPages = 5
)

// ID identifies an object.
type ID struct {
	GVR       schema.GroupVersionResource
	Namespace string
	Name      string
}

// String returns "resource.group namespace/name", in the notation of kubectl.
func (id ID) String() string {
	name := id.Name
	if id.Namespace != "" {
		name = id.Namespace + "/" + name
	}

	return id.GVR.GroupResource().String() + " " + name
}

// Compare orders IDs by namespace, name and resource, as [cmp.Compare] does.
func Compare(a, b ID) int {
	return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name), strings.Compare(a.GVR.Resource, b.GVR.Resource))
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
	// KeyLabel is the label that was the key of the object's resource when the object was read; empty if it was none. KeyValue is the
	// value of the label; empty if the object lacks it.
	KeyLabel, KeyValue string
	// Selector is the selector of the ring's main objects when the object was read; empty for all. Unselected reports whether it did not select the
	// object.
	Selector   string
	Unselected bool
	// Controller is the owner reference of the object's controller; nil if there is none.
	Controller *metav1.OwnerReference
	// Above are the objects that the controller follows. The object itself does not contain them; they are added when they
	// have been determined.
	Above Above
}

// Above are the UIDs of the objects that an object's controller follows, up to the main object, nearest first. Unused elements
// are empty.
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

// Change is a change of labels. The zero value changes nothing.
type Change struct {
	// Shard is the new value of the shard label. Empty does not change the label.
	Shard string
	// RemoveShard removes the shard label.
	RemoveShard bool
	// Drain is the value of the drain label to add: contract.DrainValue, or the name of the next shard. Empty does not change
	// the label.
	Drain string
	// RemoveDrain removes the drain label.
	RemoveDrain bool
	// Handover is the value of the handover annotation. Empty removes the annotation; nil does not change it.
	Handover *string
	// Kind is the kind of the object in the version of its resource. If it is empty, and mutating admission changes more in the same write, the change
	// may be refused.
	Kind string
}

// Client reads and labels objects of one ring. It is safe for concurrent use.
type Client struct {
	server     Server
	shardLabel string
	drainLabel string
	handover   string
	manager    string
	reads      atomic.Pointer[reads]
}

// reads is what else to read of the labels of objects.
type reads struct {
	// keys are the labels that are the keys of resources.
	keys map[schema.GroupResource]string
	// text is the selector of the ring's main objects; selector is the same, nil if it is empty.
	text     string
	selector labels.Selector
}

// NewClient returns a client for the labels of the ring with these keys.
func NewClient(s Server, ring contract.LabelKeys) *Client {
	return &Client{server: s, shardLabel: ring.Shard, drainLabel: ring.Drain, handover: ring.Handover, manager: manager(ring)}
}

// ShardLabel returns the key of the ring's shard label.
func (c *Client) ShardLabel() string { return c.shardLabel }

// DrainLabel returns the key of the ring's drain label. The key is also a label selector for the presence of the label.
func (c *Client) DrainLabel() string { return c.drainLabel }

// Reads sets the labels that are the keys of resources, and the selector of the ring's main objects, empty for all. Objects that are read from now on
// contain what these decide. A selector that is not valid selects nothing.
func (c *Client) Reads(keys map[schema.GroupResource]string, selector string) {
	next := &reads{keys: keys, text: selector}

	if selector != "" {
		next.selector = labels.Nothing()
		if parsed, err := labels.Parse(selector); err == nil {
			next.selector = parsed
		}
	}

	c.reads.Store(next)
}

// Enter waits until one more object may be read and written, counted over all rings that share the API server; leave ends
// that.
func (c *Client) Enter(ctx context.Context) (leave func(), err error) {
	if leave, err = c.server.Enter(ctx); err != nil {
		return nil, fmt.Errorf("wait for a turn to read and write an object: %w", err)
	}

	return leave, nil
}

// Metadata reads the metadata of one object from the API server's storage, not from a cache. If there is none, the error is NotFound.
func (c *Client) Metadata(ctx context.Context, gvr schema.GroupVersionResource, name types.NamespacedName) (*metav1.PartialObjectMetadata, error) {
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

// pageSize returns the size of the next page of a list that has already returned n objects.
func pageSize(n int) int64 {
	if n < smallPages {
		return PageSize
	}

	return largePage
}

// Pages lists the objects of a scope and passes them to yield page by page. yield may keep the slice. Pages ends with the
// error of yield or of the API server. It returns the resource version from which a watch can continue.
//
// If the API server has compacted the list before the last page, the list continues from the same place at a newer version.
// Pages then returns the version of the first page, so that a watch sees all changes since.
func (c *Client) Pages(ctx context.Context, scope Scope, yield func([]Object) error) (resourceVersion string, err error) {
	opts := scope.options()

	for n := 0; ; n++ {
		opts.Limit = pageSize(n)
		list, err := c.server.List(ctx, scope.GVR, scope.Namespace, opts)

		switch next, expired := continuation(err); {
		case expired && next != opts.Continue && next != "":
			opts.Continue = next
			continue
		case err != nil:
			return "", fmt.Errorf("list %s: %w", scope.GVR.GroupResource(), err)
		}

		if resourceVersion == "" {
			resourceVersion = list.ResourceVersion
		}

		page := make([]Object, 0, len(list.Items))
		for i := range list.Items {
			page = append(page, c.Object(scope.GVR, &list.Items[i]))
		}

		if err := yield(page); err != nil {
			return "", err
		}

		if list.Continue == "" {
			return resourceVersion, nil
		}

		opts.Continue = list.Continue
	}
}

// continuation returns the token that an API server includes in the error for an expired list.
func continuation(err error) (token string, expired bool) {
	if !apierrors.IsResourceExpired(err) {
		return "", false
	}

	var status apierrors.APIStatus
	if errors.As(err, &status) {
		return status.Status().Continue, true
	}

	return "", true
}

// Scope selects what to list or watch.
type Scope struct {
	GVR schema.GroupVersionResource
	// Namespace restricts the scope to one namespace; empty means all namespaces.
	Namespace string
	// Selector is a label selector; empty selects everything.
	Selector string
	// Fields is a field selector; empty selects everything.
	Fields string
}

func (s Scope) options() metav1.ListOptions {
	return metav1.ListOptions{LabelSelector: s.Selector, FieldSelector: s.Fields}
}

// Watch watches from a resource version on, with bookmarks. Stopping the watch waits until the watch has ended.
func (c *Client) Watch(ctx context.Context, scope Scope, resourceVersion string) (watch.Interface, error) {
	opts := scope.options()
	opts.AllowWatchBookmarks = true
	opts.ResourceVersion = resourceVersion

	w, err := c.server.Watch(ctx, scope.GVR, scope.Namespace, opts)
	if err != nil {
		return nil, fmt.Errorf("watch %s: %w", scope.GVR.GroupResource(), err)
	}

	return w, nil
}

// patch is a JSON merge patch of labels; null removes a label.
type patch struct {
	Metadata patchMetadata `json:"metadata"`
}

type patchMetadata struct {
	ResourceVersion string             `json:"resourceVersion"`
	Labels          map[string]*string `json:"labels"`
	Annotations     map[string]*string `json:"annotations,omitempty"`
}

// Label changes the labels of an object in one write, and returns the object afterwards, including what admission has added.
// The write succeeds only if the object has not changed since it was read. The error is Conflict if it has changed, and
// NotFound if it is gone. If the policy about the rebalancer refuses the write because admission changes more in it, the change is applied instead; a label is
// then removed in two writes.
func (c *Client) Label(ctx context.Context, o Object, change Change) (Object, error) {
	changed := map[string]*string{}
	if change.Shard != "" {
		changed[c.shardLabel] = &change.Shard
	}

	if change.RemoveShard {
		changed[c.shardLabel] = nil
	}

	if change.Drain != "" {
		changed[c.drainLabel] = &change.Drain
	}

	if change.RemoveDrain {
		changed[c.drainLabel] = nil
	}

	var annotations map[string]*string

	if change.Handover != nil {
		annotations = map[string]*string{c.handover: change.Handover}
		if *change.Handover == "" {
			annotations[c.handover] = nil
		}
	}

	// A resource version belongs to only one object, even among successive objects with the same name.
	body, err := json.Marshal(patch{patchMetadata{o.ResourceVersion, changed, annotations}})
	if err != nil {
		return Object{}, fmt.Errorf("encode the labels of %s: %w", o.ID, err)
	}

	now, err := c.server.Patch(ctx, o.ID, body)
	if apierrors.IsForbidden(err) && MentionsPolicy(err.Error()) && change.Kind != "" {
		now, err = c.apply(ctx, o, change)
	}

	if err != nil {
		return Object{}, fmt.Errorf("label %s: %w", o.ID, err)
	}

	return c.Object(o.GVR, now), nil
}

// Object returns the part of an object's metadata that is stored.
func (c *Client) Object(gvr schema.GroupVersionResource, m *metav1.PartialObjectMetadata) Object {
	shard, labelled := m.Labels[c.shardLabel]
	_, draining := m.Labels[c.drainLabel]
	o := Object{
		ID:              ID{GVR: gvr, Namespace: m.Namespace, Name: m.Name},
		UID:             m.UID,
		ResourceVersion: m.ResourceVersion,
		Shard:           shard,
		Labelled:        labelled,
		Draining:        draining,
	}

	if r := c.reads.Load(); r != nil {
		if o.KeyLabel = r.keys[gvr.GroupResource()]; o.KeyLabel != "" {
			o.KeyValue = m.Labels[o.KeyLabel]
		}

		if o.Selector = r.text; r.selector != nil {
			o.Unselected = !r.selector.Matches(labels.Set(m.Labels))
		}
	}

	i := slices.IndexFunc(m.OwnerReferences, func(r metav1.OwnerReference) bool { return r.Controller != nil && *r.Controller })
	if i >= 0 {
		ref := m.OwnerReferences[i]
		o.Controller = &ref
	}

	return o
}

// Older reports whether the resource version a of an object precedes b; false if they are not comparable.
func Older(a, b string) bool {
	x, err := strconv.ParseUint(a, 10, 64)
	if err != nil {
		return false
	}

	y, err := strconv.ParseUint(b, 10, 64)

	return err == nil && x < y
}
