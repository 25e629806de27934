package auth

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// errInvalidToken is what a token fails with that the API server does not take.
var errInvalidToken = errors.New("the token is not valid: it is unknown, expired, revoked, or for another audience")

// tokens finds out whose a bearer token is.
type tokens struct {
	client    client.Writer
	audiences []string
	ttl       time.Duration
	answers   *memory[*identity] // nil for a token that is not valid
}

func newTokens(c client.Writer, o *Options, clk clock.PassiveClock) *tokens {
	return &tokens{client: c, audiences: o.Audiences, ttl: o.TTL, answers: newMemory[*identity](clk)}
}

// user returns whose the token is. The error is errInvalidToken, or a failure to find out.
func (t *tokens) user(ctx context.Context, token, key string) (*identity, error) {
	found, err := t.answers.get(ctx, key, func(ctx context.Context) (*identity, time.Duration, error) {
		found, err := t.review(ctx, token)
		if found == nil {
			return nil, min(t.ttl, refusalTTL), err
		}

		return found, t.ttl, err
	})
	if err == nil && found == nil {
		return nil, errInvalidToken
	}

	return found, err
}

// review asks the API server. Nobody is behind a token that is not valid.
func (t *tokens) review(ctx context.Context, token string) (*identity, error) {
	review := &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token, Audiences: t.audiences}}
	if err := t.client.Create(ctx, review); err != nil {
		return nil, fmt.Errorf("review a token: %w", err)
	}

	status := &review.Status
	if !status.Authenticated || status.User.Username == "" || !t.meant(status.Audiences) {
		return nil, nil //nolint:nilnil // documented
	}

	return identify(reviewed(&status.User))
}

// meant reports whether a token is for one of the audiences that were asked for. A server that does not know of audiences
// answers without any, and so knows nothing of ours.
func (t *tokens) meant(audiences []string) bool {
	return len(t.audiences) == 0 || slices.ContainsFunc(audiences, func(a string) bool { return slices.Contains(t.audiences, a) })
}
