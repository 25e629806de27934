package auth

import (
	"context"
	"fmt"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
)

// What it takes the right to, in the words of RBAC.
const (
	verb        = "get"
	resource    = "clusterrings"
	subresource = "diagnostics"
)

// rights finds out whether somebody may ask about a ring.
type rights struct {
	client  client.Writer
	ttl     time.Duration
	answers *memory[bool]
}

func newRights(c client.Writer, o *Options, clk clock.PassiveClock) *rights {
	return &rights{client: c, ttl: o.TTL, answers: newMemory[bool](clk)}
}

// may reports whether the user may ask about the ring of that name, or about all if it is empty. An error says that it is not
// known.
func (r *rights) may(ctx context.Context, who *identity, ring string) (bool, error) {
	return r.answers.get(ctx, who.key+ring, func(ctx context.Context) (bool, time.Duration, error) {
		allowed, err := r.review(ctx, who.User, ring)
		if !allowed {
			return false, min(r.ttl, refusalTTL), err
		}

		return true, r.ttl, err
	})
}

// review asks the API server.
func (r *rights) review(ctx context.Context, who *User, ring string) (bool, error) {
	review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: who.Name, UID: who.UID, Groups: who.Groups, Extra: who.Extra,
		ResourceAttributes: &authorizationv1.ResourceAttributes{
			Verb: verb, Group: v1alpha1.GroupVersion.Group, Version: v1alpha1.GroupVersion.Version,
			Resource: resource, Subresource: subresource, Name: ring,
		},
	}}
	if err := r.client.Create(ctx, review); err != nil {
		return false, fmt.Errorf("review the rights of user %q: %w", who.Name, err)
	}

	return review.Status.Allowed && !review.Status.Denied, nil
}
