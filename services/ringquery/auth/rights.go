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

// What it takes the right to, in the words of RBAC.
const (
	verb        = "get"
	resource    = "clusterrings"
	subresource = "diagnostics"
)

// remembered is how many answers about rights are remembered; the least recently used is forgotten first.
const remembered = 4096

// rights finds out whether somebody may ask about a ring. Those who want to know the same at the same time wait for one answer:
// the watchers of a ring hear of a change at the same moment, and many are the same user.
type rights struct {
	reviews      authorizationclient.SubjectAccessReviewInterface
	ttl, refusal time.Duration
	answers      *cache.LRUExpireCache
	flights      singleflight.Group
}

// may reports whether the user may ask about the ring of that name, or about all if it is empty. An error means that this is not
// known.
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
		return false, fmt.Errorf("write down the rights of user %q: %w", who.GetName(), err)
	}

	if allowed, ok := r.answers.Get(string(key)); ok {
		return allowed == true, nil
	}

	flight := r.flights.DoChan(string(key), func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), reviewTimeout) // it goes on for the others when ctx ends
		defer cancel()

		review, err := r.reviews.Create(ctx, &authorizationv1.SubjectAccessReview{Spec: spec}, metav1.CreateOptions{})
		if err != nil {
			return false, fmt.Errorf("review the rights of user %q: %w", who.GetName(), err)
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
