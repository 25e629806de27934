package apiserver

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
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

// Leases returns the current Leases, sorted by name. They must not be changed.
func (s *Server) Leases() []*coordinationv1.Lease {
	s.mu.Lock()
	defer s.mu.Unlock()

	return s.leases.sorted(func(*coordinationv1.Lease) bool { return true })
}

func (ls *leases) sorted(selects func(*coordinationv1.Lease) bool) []*coordinationv1.Lease {
	var all []*coordinationv1.Lease

	for _, l := range ls.objects {
		if selects(l) {
			all = append(all, l)
		}
	}

	slices.SortFunc(all, func(a, b *coordinationv1.Lease) int {
		return strings.Compare(a.Namespace+"/"+a.Name, b.Namespace+"/"+b.Name)
	})

	return all
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

// errLeases is the error for other objects than Leases.
var errLeases = errors.New("the simulated API server has Leases alone")

// Get reads one Lease.
func (l LeaseClient) Get(ctx context.Context, key client.ObjectKey, obj client.Object, _ ...client.GetOption) error {
	into, ok := obj.(*coordinationv1.Lease)
	if !ok {
		return fmt.Errorf("read a %T: %w", obj, errLeases)
	}

	return l.do(ctx, "get", key, func(found *coordinationv1.Lease) error {
		if found == nil {
			return apierrors.NewNotFound(leaseResource, key.Name)
		}

		found.DeepCopyInto(into)

		return nil
	})
}

// List reads the Leases that match labels, namespace and name.
func (l LeaseClient) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	into, ok := list.(*coordinationv1.LeaseList)
	if !ok {
		return fmt.Errorf("list a %T: %w", list, errLeases)
	}

	var o client.ListOptions
	o.ApplyOptions(opts)

	what := o.Namespace
	if o.LabelSelector != nil {
		what += " " + o.LabelSelector.String()
	}

	name := ""
	if o.FieldSelector != nil {
		name, _ = o.FieldSelector.RequiresExactMatch("metadata.name")
		what += " " + o.FieldSelector.String()
	}

	s := l.c.server

	return l.c.do(ctx, request{verb: "list", resource: leaseResource, what: what}, func() error {
		into.ResourceVersion = strconv.FormatInt(s.version, 10)
		into.Items = nil

		for _, found := range s.leases.sorted(func(f *coordinationv1.Lease) bool {
			return (o.Namespace == "" || f.Namespace == o.Namespace) && (name == "" || f.Name == name) &&
				(o.LabelSelector == nil || o.LabelSelector.Matches(labels.Set(f.Labels)))
		}) {
			into.Items = append(into.Items, *found.DeepCopy())
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
