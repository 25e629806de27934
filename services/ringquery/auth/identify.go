package auth

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	authenticationclient "k8s.io/client-go/kubernetes/typed/authentication/v1"

	"github.com/clusterring/clusterring/services/internal/quota"
)

// answersWithin is how long the API server has for an answer.
const answersWithin = 10 * time.Second

var errInvalidToken = errors.New("the token is not valid: it is unknown, expired, revoked, or for another audience")

// reviewer authenticates tokens with the API server. It implements authenticator.Token.
type reviewer struct {
	// unknown and known review tokens of which nothing is known, and those that were valid before.
	unknown, known authenticationclient.TokenReviewInterface
	acquaintances  acquaintances
	audiences      []string
	timeout        time.Duration
}

// AuthenticateToken returns the user of the token. ok is false if the token is not valid. An error means that the
// result is unknown.
func (r *reviewer) AuthenticateToken(
	ctx context.Context, token string,
) (who *authenticator.Response, ok bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()

	reviews := r.unknown
	if r.acquaintances.has(token) {
		reviews = r.known
	}

	review, err := reviews.Create(ctx, &authenticationv1.TokenReview{
		Spec: authenticationv1.TokenReviewSpec{Token: token, Audiences: r.audiences},
	}, metav1.CreateOptions{})
	if err != nil {
		return nil, false, fmt.Errorf("review a token: %w", err)
	}

	status := &review.Status
	valid := status.Authenticated && status.User.Username != "" && r.meant(status.Audiences)

	if r.acquaintances.learn(token, valid); !valid {
		return nil, false, nil
	}

	extra := make(map[string][]string, len(status.User.Extra))
	for key, values := range status.User.Extra {
		extra[key] = values
	}

	return &authenticator.Response{User: &user.DefaultInfo{
		Name: status.User.Username, UID: status.User.UID, Groups: status.User.Groups, Extra: extra,
	}}, true, nil
}

// meant reports whether a token is valid for one of the requested audiences. An API server that does not support
// audiences returns none, so the token does not count as valid for ours.
func (r *reviewer) meant(audiences []string) bool {
	return len(r.audiences) == 0 || slices.ContainsFunc(audiences,
		func(a string) bool { return slices.Contains(r.audiences, a) })
}

// identify returns the user of a call, by the token. The error is a status.
func (g *Guard) identify(ctx context.Context) (user.Info, error) {
	token, err := bearer(metadata.ValueFromIncomingContext(ctx, "authorization"))
	if err != nil {
		return nil, g.unauthenticated(err)
	}

	found, ok, err := g.tokens.AuthenticateToken(ctx, token)

	switch {
	case err != nil:
		return nil, g.unknown(ctx, err, "who the caller is")
	case !ok:
		return nil, g.unauthenticated(errInvalidToken)
	default:
		return found.User, nil
	}
}

// bearer returns the token of an authorization.
func bearer(authorization []string) (string, error) {
	switch len(authorization) {
	case 0:
		return "", errors.New("the server requires authentication")
	case 1:
	default:
		return "", errors.New("the metadata has more than one authorization: send one")
	}

	scheme, token, _ := strings.Cut(strings.TrimSpace(authorization[0]), " ")
	if token = strings.TrimSpace(token); !strings.EqualFold(scheme, "bearer") || token == "" {
		return "", errors.New(`the authorization does not have the form "Bearer <token>"`)
	}

	return token, nil
}

const (
	// placesPerPeer is how many unknown tokens of one address are reviewed at a time. Others wait.
	placesPerPeer = 8
	// acquainted is how long a token is remembered that was valid.
	acquainted = time.Hour
)

// doorkeeper lets tokens that were valid pass at once, and others only as far as there are places for unknown tokens of
// their address. A flood of wrong tokens thus delays neither callers who are known, nor callers who come from
// elsewhere.
type doorkeeper struct {
	authenticator.Token

	known   acquaintances
	places  *quota.Queues
	timeout time.Duration
}

// AuthenticateToken implements authenticator.Token.
func (d *doorkeeper) AuthenticateToken(ctx context.Context, token string) (*authenticator.Response, bool, error) {
	if !d.known.has(token) {
		waiting, cancel := context.WithTimeout(ctx, d.timeout)
		defer cancel()

		leave, err := d.places.Enter(waiting, address(ctx))
		if err != nil {
			return nil, false, fmt.Errorf("too many unknown tokens from %s are being reviewed: %w", quota.Host(address(ctx)),
				err)
		}
		defer leave()
	}

	return d.Token.AuthenticateToken(ctx, token) //nolint:wrapcheck // it says what it did
}

// acquaintances are the hashes of the tokens that were valid when they were last reviewed.
type acquaintances struct{ *cache.LRUExpireCache }

func newAcquaintances() acquaintances { return acquaintances{cache.NewLRUExpireCache(remembered)} }

func (a acquaintances) has(token string) bool {
	_, ok := a.Get(sha256.Sum256([]byte(token)))
	return ok
}

// learn records the result of a review.
func (a acquaintances) learn(token string, valid bool) {
	if hash := sha256.Sum256([]byte(token)); valid {
		a.Add(hash, true, acquainted)
	} else {
		a.Remove(hash)
	}
}

// address returns the address that a call comes from.
func address(ctx context.Context) string {
	p, ok := peer.FromContext(ctx)
	if !ok || p.Addr == nil {
		return ""
	}

	return p.Addr.String()
}
