package apiserver

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// leaseResource is the resource of Leases.
var leaseResource = schema.GroupResource{Group: "coordination.k8s.io", Resource: "leases"}

// leases contains all Leases. Stored Leases never change.
type leases struct {
	objects   map[types.NamespacedName]*coordinationv1.Lease
	followers []follower
}

// follower receives changes.
type follower struct {
	client string
	seen   func(id types.NamespacedName, l *coordinationv1.Lease, delay time.Duration)
}

func newLeases() *leases { return &leases{objects: map[types.NamespacedName]*coordinationv1.Lease{}} }

// FollowLeases calls seen for every existing Lease and for every later change, with the lock held; l is nil if the
// Lease was deleted. delay is the time after which the client's watch would deliver the event.
func (s *Server) FollowLeases(client string,
	seen func(id types.NamespacedName, l *coordinationv1.Lease, delay time.Duration)) {
	s.mu.Lock()
	defer s.mu.Unlock()

	s.leases.followers = append(s.leases.followers, follower{client, seen})

	for id, l := range s.leases.objects {
		seen(id, l, s.lag(client, leaseResource, id.String()))
	}
}

func (ls *leases) sorted() []*coordinationv1.Lease {
	return slices.SortedFunc(maps.Values(ls.objects), func(a, b *coordinationv1.Lease) int {
		return strings.Compare(a.Namespace+"/"+a.Name, b.Namespace+"/"+b.Name)
	})
}

func (s *Server) putLease(id types.NamespacedName, l *coordinationv1.Lease) {
	s.version++

	if l == nil {
		delete(s.leases.objects, id)
	} else {
		l.ResourceVersion = strconv.FormatInt(s.version, 10)
		s.leases.objects[id] = l
	}

	for _, f := range s.leases.followers {
		f.seen(id, l, s.lag(f.client, leaseResource, id.String()))
	}
}

// LeaseClient reads and writes Leases. It implements client.Reader, but only for Leases.
type LeaseClient struct{ c *Client }

var _ client.Reader = LeaseClient{}

// Leases returns a client for Leases.
func (c *Client) Leases() LeaseClient { return LeaseClient{c} }

// Get reads one Lease.
func (l LeaseClient) Get(ctx context.Context, key client.ObjectKey, obj client.Object, _ ...client.GetOption) error {
	return l.do(ctx, "get", key, func(found *coordinationv1.Lease) error {
		if found == nil {
			return apierrors.NewNotFound(leaseResource, key.Name)
		}

		found.DeepCopyInto(obj.(*coordinationv1.Lease)) //nolint:forcetypeassert // there are no other objects

		return nil
	})
}

// List reads the Leases that match labels, namespace and name.
func (l LeaseClient) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	into := list.(*coordinationv1.LeaseList) //nolint:forcetypeassert // there are no other objects
	o := (&client.ListOptions{}).ApplyOptions(opts)
	raw := o.AsListOptions()
	what := strings.TrimRight(o.Namespace+" "+raw.LabelSelector+" "+raw.FieldSelector, " ")

	selects, err := newFilter(o.Namespace, *raw)
	if err != nil {
		return err
	}

	return l.c.do(ctx, request{verb: "list", resource: leaseResource, what: what}, func() error {
		into.ResourceVersion = strconv.FormatInt(l.c.server.version, 10)
		into.Items = nil

		for _, found := range l.c.server.leases.sorted() {
			if selects.matches(&metav1.PartialObjectMetadata{ObjectMeta: found.ObjectMeta}) {
				into.Items = append(into.Items, *found.DeepCopy())
			}
		}

		return nil
	})
}

// Create creates a Lease.
func (l LeaseClient) Create(ctx context.Context, lease *coordinationv1.Lease) error {
	key := client.ObjectKeyFromObject(lease)

	return l.do(ctx, "create", key, func(found *coordinationv1.Lease) error {
		if found != nil {
			return apierrors.NewAlreadyExists(leaseResource, key.Name)
		}

		created := lease.DeepCopy()
		l.c.server.nth["uid "+key.String()]++
		created.UID = types.UID(fmt.Sprintf("lease-%s-%d", key, l.c.server.nth["uid "+key.String()]))
		l.c.server.putLease(key, created)

		return nil
	})
}

// Update writes a Lease if it has not changed since it was read. The error is Invalid if the number of transitions is
// negative.
func (l LeaseClient) Update(ctx context.Context, lease *coordinationv1.Lease) error {
	if n := lease.Spec.LeaseTransitions; n != nil && *n < 0 {
		return apierrors.NewInvalid(coordinationv1.SchemeGroupVersion.WithKind("Lease").GroupKind(), lease.Name,
			field.ErrorList{field.Invalid(field.NewPath("spec", "leaseTransitions"), *n, "must be greater than or equal to 0")})
	}

	return l.unchanged(ctx, "update", lease, lease.DeepCopy())
}

// Delete deletes a Lease if it has not changed since it was read. A Lease with a finalizer stays, and is being deleted.
func (l LeaseClient) Delete(ctx context.Context, lease *coordinationv1.Lease) error {
	if len(lease.Finalizers) == 0 {
		return l.unchanged(ctx, "delete", lease, nil)
	}

	kept := lease.DeepCopy()
	if kept.DeletionTimestamp == nil {
		kept.DeletionTimestamp = new(metav1.NewTime(l.c.server.clock.Now()))
	}

	return l.unchanged(ctx, "delete", lease, kept)
}

func (l LeaseClient) unchanged(ctx context.Context, verb string, read, becomes *coordinationv1.Lease) error {
	key := client.ObjectKeyFromObject(read)

	return l.do(ctx, verb, key, func(found *coordinationv1.Lease) error {
		switch {
		case found == nil:
			return apierrors.NewNotFound(leaseResource, key.Name)
		case found.UID != read.UID || found.ResourceVersion != read.ResourceVersion:
			return apierrors.NewConflict(leaseResource, key.Name, errModified)
		}

		l.c.server.putLease(key, becomes)

		return nil
	})
}

// do executes a request for one Lease; found is nil if there is none.
func (l LeaseClient) do(ctx context.Context, verb string, key client.ObjectKey,
	apply func(found *coordinationv1.Lease) error) error {
	return l.c.do(ctx, request{verb: verb, resource: leaseResource, what: key.String()}, func() error {
		return apply(l.c.server.leases.objects[key])
	})
}
