// Package objects reads and labels the metadata of sharded objects of one ring.
//
// It lists as a stream or page by page, so that memory does not follow the number of objects, watches by label selector, and
// writes labels under the precondition that the object is still the one that was read. It decides nothing.
package objects

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
)

const (
	// PageSize is the number of objects in one page of a list: at 2 to 5 KiB of metadata each 2 to 5 MiB.
	PageSize = 1000
	// largePage is their number in the pages of a list that has had smallPages already. To answer a page, an API server gathers all that
	// is left to list: a million objects in pages of 1,000 cost it 70 s of CPU, and a fifth of that in these.
	largePage  = 5 * PageSize
	smallPages = 5
)

// ID names an object.
type ID struct {
	GVR       schema.GroupVersionResource
	Namespace string
	Name      string
}

// String returns "resource.group namespace/name", as kubectl would name it.
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

// Object is what is kept of an object's metadata.
type Object struct {
	ID
	UID             types.UID
	ResourceVersion string
	// Shard is the value of the ring's shard label; Labelled reports whether it is present.
	Shard    string
	Labelled bool
	// Draining reports whether the ring's drain label is present.
	Draining bool
	// Controller is the owner reference of the object's controller; nil if there is none.
	Controller *metav1.OwnerReference
	// Above are those that the controller follows. The object does not say that itself: it is filled in when it was found out.
	Above Above
}

// Above are the UIDs of those that an object's controller follows, up to the main object, the nearest first; what is left is empty.
type Above [v1alpha1.MaxDepth - 2]types.UID

// Lineage returns the UIDs of whom an object follows, its controller first; what is left is empty.
func (o Object) Lineage() (all Lineage) {
	if o.Controller != nil {
		all[0] = o.Controller.UID
		copy(all[1:], o.Above[:])
	}

	return all
}

// Lineage is an object's controller, and those that it follows.
type Lineage [v1alpha1.MaxDepth - 1]types.UID

// Change is what to do with the two labels. The zero value changes nothing.
type Change struct {
	// Shard is the new value of the shard label. Empty leaves the label alone.
	Shard string
	// RemoveShard removes the shard label.
	RemoveShard bool
	// Drain is the value of the drain label, which is added: v1alpha1.DrainValue, or the shard that comes next. Empty leaves the label alone.
	Drain string
	// RemoveDrain removes the drain label.
	RemoveDrain bool
	// Handover is the value of the handover annotation; an empty one removes it. Nil leaves it alone.
	Handover *string
}

// Client reads and labels objects of one ring. It may be used by several goroutines.
type Client struct {
	server     Server
	shardLabel string
	drainLabel string
	handover   string
}

// NewClient returns a client for the labels of the named ring.
func NewClient(s Server, ring string) *Client {
	return &Client{server: s, shardLabel: v1alpha1.ShardLabel(ring), drainLabel: v1alpha1.DrainLabel(ring), handover: v1alpha1.HandoverAnnotation(ring)}
}

// ShardLabel returns the key of the ring's shard label.
func (c *Client) ShardLabel() string { return c.shardLabel }

// DrainLabel returns the key of the ring's drain label; alone it is the label selector for its presence.
func (c *Client) DrainLabel() string { return c.drainLabel }

// Enter waits until one more object may be read and written, of all rings that share the API server; leave ends that.
func (c *Client) Enter(ctx context.Context) (leave func(), err error) {
	if leave, err = c.server.Enter(ctx); err != nil {
		return nil, fmt.Errorf("wait for a turn to read and write an object: %w", err)
	}

	return leave, nil
}

// Metadata reads the metadata of one object from the API server's storage, not from a cache. Its error is NotFound if there is none.
func (c *Client) Metadata(ctx context.Context, gvr schema.GroupVersionResource, name types.NamespacedName) (*metav1.PartialObjectMetadata, error) {
	return c.server.Get(ctx, ID{GVR: gvr, Namespace: name.Namespace, Name: name.Name})
}

// Get reads one object from the API server's storage, not from a cache. Its error is NotFound if there is none.
func (c *Client) Get(ctx context.Context, id ID) (Object, error) {
	m, err := c.server.Get(ctx, id)
	if err != nil {
		return Object{}, fmt.Errorf("read %s: %w", id, err)
	}

	return c.Object(id.GVR, m), nil
}

// pageSize returns how many objects the next page of a list is to have that has had n already.
func pageSize(n int) int64 {
	if n < smallPages {
		return PageSize
	}

	return largePage
}

// Pages lists the objects that match a label selector, in one namespace or with "" in all, and hands them to yield page by
// page. The slice is yield's to keep. Pages ends with yield's error, or the API server's. It returns the resource version of
// the list, from which a watch can go on.
//
// Where the API server has compacted a list away before its last page, the list goes on from the same place at a newer
// version; the version of the first page is returned then, so that a watch sees all that has changed meanwhile.
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

// continuation returns the token that an API server offers with the error that a list has expired.
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

// Scope is what to list or watch.
type Scope struct {
	GVR schema.GroupVersionResource
	// Namespace restricts to one namespace; empty is all.
	Namespace string
	// Selector is a label selector; empty selects everything.
	Selector string
	// Fields is a field selector; empty selects everything.
	Fields string
}

func (s Scope) options() metav1.ListOptions {
	return metav1.ListOptions{LabelSelector: s.Selector, FieldSelector: s.Fields}
}

// Watch watches from a resource version on; the API server is asked for bookmarks. Whoever stops the watch waits until it has ended.
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

// patch is a JSON merge patch of labels; a label that is null is removed.
type patch struct {
	Metadata patchMetadata `json:"metadata"`
}

type patchMetadata struct {
	ResourceVersion string             `json:"resourceVersion"`
	Labels          map[string]*string `json:"labels"`
	Annotations     map[string]*string `json:"annotations,omitempty"`
}

// Label changes the labels of an object in one write, which succeeds only if the object is still as it was read, and returns it as
// it is then, with what admission has added. Conflict says that it has changed, NotFound that it is gone.
func (c *Client) Label(ctx context.Context, o Object, change Change) (Object, error) {
	labels := map[string]*string{}
	if change.Shard != "" {
		labels[c.shardLabel] = &change.Shard
	}

	if change.RemoveShard {
		labels[c.shardLabel] = nil
	}

	if change.Drain != "" {
		labels[c.drainLabel] = &change.Drain
	}

	if change.RemoveDrain {
		labels[c.drainLabel] = nil
	}

	var annotations map[string]*string

	if change.Handover != nil {
		annotations = map[string]*string{c.handover: change.Handover}
		if *change.Handover == "" {
			annotations[c.handover] = nil
		}
	}

	// A resource version belongs to one object alone, also among those that bear one name after another.
	body, err := json.Marshal(patch{patchMetadata{o.ResourceVersion, labels, annotations}})
	if err != nil {
		return Object{}, fmt.Errorf("encode the labels of %s: %w", o.ID, err)
	}

	now, err := c.server.Patch(ctx, o.ID, body)
	if err != nil {
		return Object{}, fmt.Errorf("label %s: %w", o.ID, err)
	}

	return c.Object(o.GVR, now), nil
}

// Object returns what is kept of an object's metadata.
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

	i := slices.IndexFunc(m.OwnerReferences, func(r metav1.OwnerReference) bool { return r.Controller != nil && *r.Controller })
	if i >= 0 {
		ref := m.OwnerReferences[i]
		o.Controller = &ref
	}

	return o
}

// Older reports whether one resource version of an object comes before another; false if they cannot be compared.
func Older(a, b string) bool {
	x, err := strconv.ParseUint(a, 10, 64)
	if err != nil {
		return false
	}

	y, err := strconv.ParseUint(b, 10, 64)

	return err == nil && x < y
}
