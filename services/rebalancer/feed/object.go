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
	"fmt"
	"strings"
	"sync/atomic"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

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
	// KeyLabel is the label that was the key of the object's resource when the object was read; empty if it was none.
	// KeyValue is the value of the label; empty if the object lacks it.
	KeyLabel, KeyValue string
	// Selector is the selector of the ring's main objects when the object was read; empty for all. Unselected reports
	// whether it did not select the object.
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
	// text is the selector of the ring's main objects, and selector is the same.
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

// Reads makes objects that are read from now on contain what their labels decide in a ring with these resources.
func (c *Client) Reads(set *resources.Set) {
	next := &reads{keys: map[schema.GroupResource]string{}, text: set.Selector(), selector: labels.Nothing()}
	if parsed, err := labels.Parse(next.text); err == nil {
		next.selector = parsed
	}

	for _, r := range set.Main() {
		next.keys[r.GroupResource()] = r.Key.Label
	}

	c.reads.Store(next)
}

// Enter waits until one more object may be read and written, counted over all rings that share the API server; leave
// ends that.
func (c *Client) Enter(ctx context.Context) (leave func(), err error) { return c.server.Enter(ctx) }

// Metadata reads the metadata of one object from the API server's storage, not from a cache. If there is none, the
// error is NotFound.
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
		Controller:      metav1.GetControllerOf(m),
	}

	if r := c.reads.Load(); r != nil {
		o.KeyLabel, o.Selector = r.keys[gvr.GroupResource()], r.text
		o.KeyValue, o.Unselected = m.Labels[o.KeyLabel], !r.selector.Matches(labels.Set(m.Labels))
	}

	return o
}

// Older is [resources.Older].
func Older(a, b string) bool { return resources.Older(a, b) }
