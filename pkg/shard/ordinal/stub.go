package ordinal

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/controller-runtime/pkg/manager"
)

// stubMarker marks a stub in the cache. No stub is ever written.
const stubMarker = "ordinals.alpha.sharding.timebertt.dev/stub"

// ConfigureManager sets up the options of a manager for this process. Call it once, right before manager.New. The manager must have no leader
// election: all replicas work.
//
// Of the given kinds, the cache keeps only stubs of the objects of other processes: name, namespace, uid, versions, times, labels, and owner
// references, which is what decides where they belong when the number of replicas changes. The manager's client hides this: it reads a stub from
// the API server, and lists of these kinds contain only objects of this process; in a reconcile, those that were its own when the reconcile began.
// Whatever else reads the cache sees the stubs: predicates, event handlers, and the functions of indexes, which should therefore use only what a
// stub has. Do not name a kind of which the controllers need the objects of other processes. Without kinds, everything is cached as usual.
func (p *Process) ConfigureManager(options *manager.Options, kinds ...client.Object) error {
	if options.LeaderElection || options.LeaderElectionID != "" {
		return fmt.Errorf("configure the manager of %s: remove the leader election: every replica works", p.options.PodName)
	}

	if options.Scheme != nil {
		p.scheme = options.Scheme
	}

	if len(kinds) == 0 {
		return nil
	}

	for _, obj := range kinds {
		gvk, err := apiutil.GVKForObject(obj, p.scheme)
		if err != nil {
			return fmt.Errorf("determine the kind of %T: %w", obj, err)
		}

		p.stubbed.Insert(gvk)
	}

	options.Cache.DefaultTransform = p.transform(options.Cache.DefaultTransform)
	options.Cache.ByObject = maps.Clone(options.Cache.ByObject)

	for obj, of := range options.Cache.ByObject {
		if of.Transform != nil { // else it has the default
			of.Transform = p.transform(of.Transform)
			options.Cache.ByObject[obj] = of
		}
	}

	newClient := options.NewClient
	if newClient == nil {
		newClient = client.New
	}

	options.NewClient = func(config *rest.Config, options client.Options) (client.Client, error) {
		cached, errCached := newClient(config, options)
		options.Cache = nil
		live, errLive := client.New(config, options)

		return &stubClient{Client: cached, live: live, process: p}, errors.Join(errCached, errLive)
	}

	return nil
}

// transform returns a function that replaces objects of other processes by stubs, after the inner function.
func (p *Process) transform(inner toolscache.TransformFunc) toolscache.TransformFunc {
	return func(in any) (any, error) {
		if inner != nil {
			var err error
			if in, err = inner(in); err != nil {
				return nil, err
			}
		}

		obj, ok := in.(client.Object)
		if !ok {
			return in, nil // what is known of a deletion
		}

		gvk, err := apiutil.GVKForObject(obj, p.scheme)
		if err != nil || !p.stubbed.Has(gvk) || p.share().owns(p.options.Hash(gvk.GroupKind(), obj)) {
			return in, nil //nolint:nilerr // it is none of the kinds
		}

		return stubOf(obj), nil
	}
}

// stubOf returns what is kept of an object of another process.
func stubOf(obj client.Object) client.Object {
	stub := emptyLike(obj)
	stub.SetName(obj.GetName())
	stub.SetNamespace(obj.GetNamespace())
	stub.SetUID(obj.GetUID())
	stub.SetResourceVersion(obj.GetResourceVersion())
	stub.SetGeneration(obj.GetGeneration())
	stub.SetCreationTimestamp(obj.GetCreationTimestamp())
	stub.SetDeletionTimestamp(obj.GetDeletionTimestamp())
	stub.SetLabels(obj.GetLabels())
	stub.SetOwnerReferences(obj.GetOwnerReferences())
	stub.SetAnnotations(map[string]string{stubMarker: ""})

	return stub
}

// emptyLike returns an empty object of the same type and kind.
func emptyLike(obj client.Object) client.Object {
	made, _ := reflect.TypeAssert[client.Object](reflect.New(reflect.TypeOf(obj).Elem())) // the type of obj implements it
	made.GetObjectKind().SetGroupVersionKind(obj.GetObjectKind().GroupVersionKind())

	return made
}

func isStub(obj metav1.Object) bool {
	_, marked := obj.GetAnnotations()[stubMarker]

	return marked
}

// stubClient reads from the API server what the cache has only a stub of.
type stubClient struct {
	client.Client

	live    client.Reader
	process *Process
}

// withoutLiveReads returns a client that reads stubs as they are.
func withoutLiveReads(c client.Client) client.Client {
	if hiding, ok := c.(*stubClient); ok {
		return hiding.Client
	}

	return c
}

// Get implements client.Reader.
func (c *stubClient) Get(ctx context.Context, key client.ObjectKey, obj client.Object, options ...client.GetOption) error {
	if err := c.Client.Get(ctx, key, obj, options...); err != nil || !isStub(obj) {
		return err //nolint:wrapcheck // callers ask what it is
	}

	return c.complete(ctx, key, obj)
}

// complete replaces a stub by the object.
func (c *stubClient) complete(ctx context.Context, key client.ObjectKey, stub client.Object) error {
	whole := emptyLike(stub)
	err := c.live.Get(ctx, key, whole)
	reflect.ValueOf(stub).Elem().Set(reflect.ValueOf(whole).Elem())

	return err //nolint:wrapcheck // callers ask what it is
}

// List implements client.Reader.
func (c *stubClient) List(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	if err := c.Client.List(ctx, list, options...); err != nil {
		return err //nolint:wrapcheck // callers ask what it is
	}

	gvk, err := apiutil.GVKForObject(list, c.Scheme())
	if err != nil {
		return fmt.Errorf("determine the kind of %T: %w", list, err)
	}

	gvk.Kind = strings.TrimSuffix(gvk.Kind, "List")
	if !c.process.stubbed.Has(gvk) {
		return nil
	}

	s, reconciles := ctx.Value(began{}).(share)
	if !reconciles {
		s = c.process.share()
	}

	var mine []runtime.Object

	err = meta.EachListItem(list, func(item runtime.Object) error {
		obj, ok := item.(client.Object)
		if !ok || !s.owns(c.process.options.Hash(gvk.GroupKind(), obj)) {
			return nil
		}

		if isStub(obj) {
			if err := c.complete(ctx, client.ObjectKeyFromObject(obj), obj); err != nil {
				return client.IgnoreNotFound(err) // it was deleted
			}
		}

		mine = append(mine, obj)

		return nil
	})

	if err := errors.Join(err, meta.SetList(list, mine)); err != nil {
		return fmt.Errorf("read the objects of this process: %w", err)
	}

	return nil
}
