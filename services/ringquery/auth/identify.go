package auth

import (
	"context"
	"crypto/sha256"
	"fmt"
	"strings"
	"time"

	grpcauth "github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/auth"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/clusterring/clusterring/services/internal/quota"
)

// answersWithin is how long the API server has for an answer.
const answersWithin = 10 * time.Second

// review authenticates a token with the API server. ok is false if the token is not valid. An error means that the
// result is unknown.
func (g *Guard) review(ctx context.Context, token string) (who *authenticator.Response, ok bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, g.Timeout)
	defer cancel()

	reviews, hash := g.reviewsOfUnknown, sha256.Sum256([]byte(token))
	if _, known := g.known.Get(hash); known {
		reviews = g.reviewsOfKnown
	}

	review, err := reviews.Create(ctx, &authenticationv1.TokenReview{
		Spec: authenticationv1.TokenReviewSpec{Token: token, Audiences: g.Options.Audiences},
	}, metav1.CreateOptions{})
	if err != nil {
		return nil, false, fmt.Errorf("review a token: %w", err)
	}

	status := &review.Status
	// An API server that does not support audiences returns none, so the token does not count as valid for ours.
	meant := authenticator.Audiences(g.Options.Audiences)
	if !status.Authenticated || status.User.Username == "" ||
		len(meant) > 0 && len(meant.Intersect(status.Audiences)) == 0 {
		g.known.Remove(hash)
		return nil, false, nil
	}

	g.known.Add(hash, true, acquainted)

	extra := make(map[string][]string, len(status.User.Extra))
	for key, values := range status.User.Extra {
		extra[key] = values
	}

	return &authenticator.Response{User: &user.DefaultInfo{
		Name: status.User.Username, UID: status.User.UID, Groups: status.User.Groups, Extra: extra,
	}}, true, nil
}

// identify returns the user of a call, by the token. The error is a status. A token that was valid passes at once, and
// others only as far as there are places for unknown tokens of their address. A flood of wrong tokens thus delays
// neither callers who are known, nor callers who come from elsewhere.
func (g *Guard) identify(ctx context.Context) (user.Info, error) {
	token, err := grpcauth.AuthFromMD(ctx, "bearer")
	if token = strings.TrimSpace(token); err != nil || token == "" {
		return nil, g.unauthenticated("the server requires authentication")
	}

	if len(metadata.ValueFromIncomingContext(ctx, "authorization")) > 1 {
		return nil, g.unauthenticated("the metadata has more than one authorization: send one")
	}

	if _, known := g.known.Get(sha256.Sum256([]byte(token))); !known {
		waiting, cancel := context.WithTimeout(ctx, g.Timeout)
		defer cancel()

		from := ""
		if p, ok := peer.FromContext(ctx); ok {
			from = p.Addr.String()
		}

		leave, err := g.places.Wait(waiting, from)
		if err != nil {
			return nil, g.unknown(ctx, fmt.Errorf("too many unknown tokens from %s are being reviewed: %w",
				quota.Host(from), err), "who the caller is")
		}
		defer leave()
	}

	found, ok, err := g.tokens.AuthenticateToken(ctx, token)

	switch {
	case err != nil:
		return nil, g.unknown(ctx, err, "who the caller is")
	case !ok:
		return nil, g.unauthenticated("the token is not valid: it is unknown, expired, revoked, or for another audience")
	default:
		return found.User, nil
	}
}

const (
	// placesPerPeer is how many unknown tokens of one address are reviewed at a time. Others wait.
	placesPerPeer = 8
	// acquainted is how long a token is remembered that was valid when it was last reviewed.
	acquainted = time.Hour
)
