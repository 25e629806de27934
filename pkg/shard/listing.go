package shard

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/metadata"
)

const (
	// listPage is how many objects one request lists.
	listPage = 500
	// liveTimeout limits one request to the API server; a worker waits for it.
	liveTimeout = 30 * time.Second
)

// listing is the API server's answer about the shard's objects of one kind at one moment of the term, and the versions that one
// cache of them has been seen to reach since. It is not safe for concurrent use.
//
// It keeps a name and a version per object as long as the term lasts: about a tenth of what the cache keeps.
type listing struct {
	// revisions are the resource versions of the lists by namespace, where "" stands for all.
	revisions map[string]string
	// objects are the versions of the listed objects, or the value reached.
	objects map[types.NamespacedName]string
	// noted is true if something was noted.
	noted bool
}

// reached replaces the version of an object that the cache shows as it was at a moment of the term, or later.
const reached = ""

// freshness tells whether the cache shows an object as it was at some moment of the term, or later.
type freshness int

const (
	fresh  freshness = iota
	behind           // not yet
	unsaid           // the listing alone cannot tell: read the object itself
)

// judge returns how fresh the cache's view of an object is. Of two versions of a resource, the greater one is the later one (the
// API server has promised this since Kubernetes 1.35, and it was true before). Versions that are not numbers are only compared
// for equality.
func (l *listing) judge(name types.NamespacedName, v view) freshness {
	version, listed := l.objects[name]
	switch {
	case listed && version == reached:
		return fresh
	case v.version == "" && listed:
		return unsaid // gone since, or not there yet
	case v.version == "":
		return fresh
	case listed:
		return notOlder(v.version, version)
	}

	revision, ok := l.revisions[name.Namespace]
	if !ok {
		revision, ok = l.revisions[metav1.NamespaceAll]
	}

	if !ok {
		return unsaid // the cache has more namespaces than declared
	}
	// The list does not contain the object, so it did not belong to this shard then. Either it does since, or the cache is older.
	if v.version == revision {
		return behind
	}

	return notOlder(v.version, revision)
}

// compare returns how fresh the cache's view is, given a live read after it: fresh or behind.
func compare(cached, live view) freshness {
	exists := cached.version != ""
	if exists == live.owned && (!exists || notOlder(cached.version, live.version) == fresh) {
		return fresh
	}

	return behind
}

// notOlder reports whether version a of an object was written with or after version b of the same resource. It is unsaid for versions that are not numbers.
func notOlder(a, b string) freshness {
	if a == b {
		return fresh
	}

	switch order, err := resourceversion.CompareResourceVersion(a, b); {
	case err != nil:
		return unsaid
	case order < 0:
		return behind
	default:
		return fresh
	}
}

// note records that a view of the cache was fresh. It keeps only what the versions do not tell, and only as long as the cache
// contains the object: a cache never goes back.
func (l *listing) note(name types.NamespacedName, v view) {
	l.noted = true
	if v.version == "" {
		delete(l.objects, name)
	} else {
		l.objects[name] = reached
	}
}

// listed lists the shard's objects of the kind on the API server. All pages of a namespace show the same moment, which is not before the request.
func (s *Shard) listed(ctx context.Context, k *kind) (*listing, error) {
	namespaces, err := k.namespaces()
	if err != nil {
		return nil, err
	}

	l := &listing{revisions: map[string]string{}, objects: map[types.NamespacedName]string{}}

	for _, namespace := range namespaces {
		for o := (metav1.ListOptions{LabelSelector: s.Selector().String(), Limit: listPage}); ; {
			page, err := k.page(ctx, namespace, o)
			if err != nil {
				return nil, fmt.Errorf("list this shard's objects of kind %s: %w", k.gvk.Kind, err)
			}

			l.revisions[namespace] = cmp.Or(l.revisions[namespace], page.ResourceVersion)

			for i := range page.Items {
				item := &page.Items[i]
				l.objects[types.NamespacedName{Namespace: item.Namespace, Name: item.Name}] = item.ResourceVersion
			}

			if o.Continue = page.Continue; o.Continue == "" {
				break
			}
		}
	}

	return l, nil
}

// endpoint is how to reach the API server about one resource. It returns nil before the shard knows how.
type endpoint func() (metadata.Getter, error)

// page lists one page, within the timeout of a request.
func (e endpoint) page(ctx context.Context, namespace string, o metav1.ListOptions) (*metav1.PartialObjectMetadataList, error) {
	ctx, cancel := context.WithTimeout(ctx, liveTimeout)
	defer cancel()

	r, err := e()
	if err != nil {
		return nil, err
	}

	if r == nil {
		return nil, errNoEndpoint
	}

	return r.Namespace(namespace).List(ctx, o) //nolint:wrapcheck // the caller says what for
}

var errNoEndpoint = errors.New("the shard does not know the API server yet")
