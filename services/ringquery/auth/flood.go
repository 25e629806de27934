package auth

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"time"

	"google.golang.org/grpc/peer"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/apiserver/pkg/authentication/authenticator"

	"github.com/clusterring/clusterring/services/internal/quota"
)

const (
	// placesPerPeer is how many unknown tokens of one address are reviewed at a time. Others wait.
	placesPerPeer = 8
	// acquainted is how long a token is remembered that was valid.
	acquainted = time.Hour
)

// doorkeeper lets tokens that were valid pass at once, and others only as far as there are places for unknown tokens of their address.
// A flood of wrong tokens thus delays neither callers who are known, nor callers who come from elsewhere.
type doorkeeper struct {
	authenticator.Token

	known  *acquaintances
	places *quota.Queues
}

// AuthenticateToken implements authenticator.Token.
func (d *doorkeeper) AuthenticateToken(ctx context.Context, token string) (*authenticator.Response, bool, error) {
	if !d.known.has(token) {
		waiting, cancel := context.WithTimeout(ctx, reviewTimeout())
		defer cancel()

		leave, err := d.places.Enter(waiting, address(ctx))
		if err != nil {
			return nil, false, fmt.Errorf("too many unknown tokens from %s are being reviewed: %w", quota.Host(address(ctx)), err)
		}
		defer leave()
	}

	return d.Token.AuthenticateToken(ctx, token) //nolint:wrapcheck // it says what it did
}

// acquaintances are the tokens that were valid when they were last reviewed. Only their hashes are kept, with a key of this process.
type acquaintances struct {
	key    [sha256.Size]byte
	tokens *cache.LRUExpireCache
}

func newAcquaintances() *acquaintances {
	a := &acquaintances{tokens: cache.NewLRUExpireCache(remembered)}
	_, _ = rand.Read(a.key[:]) // never fails

	return a
}

func (a *acquaintances) hash(token string) [sha256.Size]byte {
	return sha256.Sum256(append(a.key[:len(a.key):len(a.key)], token...))
}

func (a *acquaintances) has(token string) bool {
	_, ok := a.tokens.Get(a.hash(token))
	return ok
}

// learn records the result of a review.
func (a *acquaintances) learn(token string, valid bool) {
	if valid {
		a.tokens.Add(a.hash(token), true, acquainted)
	} else {
		a.tokens.Remove(a.hash(token))
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
