package auth

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"golang.org/x/sync/singleflight"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/apiserver/pkg/authentication/user"
	authorizationclient "k8s.io/client-go/kubernetes/typed/authorization/v1"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
)

// The required permission, in terms of RBAC.
const (
	verb        = "get"
	resource    = "clusterrings"
	subresource = "diagnostics"
)

// remembered is the maximum number of cached answers. The least recently used answer is evicted first.
const remembered = 4096

// rights finds out whether a user may query a ring. Equal questions at the same time share one request, because all watchers of a ring
// receive a change at the same moment, and many of them are the same user.
type rights struct {
	reviews      authorizationclient.SubjectAccessReviewInterface
	ttl, refusal time.Duration
	answers      *cache.LRUExpireCache
	flights      singleflight.Group
}

// may reports whether the user may query the ring, or all rings if the name is empty. An error means that the result is unknown.
func (r *rights) may(ctx context.Context, who user.Info, ring string) (bool, error) {
	spec := authorizationv1.SubjectAccessReviewSpec{
		User: who.GetName(), UID: who.GetUID(), Groups: who.GetGroups(), Extra: map[string]authorizationv1.ExtraValue{},
		ResourceAttributes: &authorizationv1.ResourceAttributes{
			Verb: verb, Group: v1alpha1.GroupVersion.Group, Version: v1alpha1.GroupVersion.Version,
			Resource: resource, Subresource: subresource, Name: ring,
		},
	}
	for key, values := range who.GetExtra() {
		spec.Extra[key] = values
	}

	key, err := json.Marshal(spec) // sorts the keys of maps
	if err != nil {
		return false, fmt.Errorf("encode the review for user %q: %w", who.GetName(), err)
	}

	if allowed, ok := r.answers.Get(string(key)); ok {
		return allowed == true, nil
	}

	flight := r.flights.DoChan(string(key), func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), reviewTimeout()) // other callers may still wait for it when ctx ends
		defer cancel()

		review, err := r.reviews.Create(ctx, &authorizationv1.SubjectAccessReview{Spec: spec}, metav1.CreateOptions{})
		if err != nil {
			return false, fmt.Errorf("review the permissions of user %q: %w", who.GetName(), err)
		}

		allowed, ttl := review.Status.Allowed && !review.Status.Denied, r.refusal
		if allowed {
			ttl = r.ttl
		}

		if ttl > 0 {
			r.answers.Add(string(key), allowed, ttl)
		}

		return allowed, nil
	})

	select {
	case <-ctx.Done():
		return false, fmt.Errorf("wait for the API server: %w", ctx.Err())
	case result := <-flight:
		return result.Val == true, result.Err
	}
}
