package auth

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"net"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
	"google.golang.org/grpc/peer"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/apiserver/pkg/authentication/authenticator"
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
	places places
}

// AuthenticateToken implements authenticator.Token.
func (d *doorkeeper) AuthenticateToken(ctx context.Context, token string) (*authenticator.Response, bool, error) {
	if !d.known.has(token) {
		leave, err := d.places.enter(ctx, address(ctx))
		if err != nil {
			return nil, false, err
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

// places limits how many unknown tokens of each address are reviewed at a time. The zero value is ready to use.
type places struct {
	mu   sync.Mutex
	from map[string]*queue
}

// queue are the calls from one address, with and without a place.
type queue struct {
	*semaphore.Weighted

	calls int
}

// enter waits for a place, and returns how to leave it. It returns an error if ctx ends before, or if there is none in time.
func (p *places) enter(ctx context.Context, address string) (leave func(), err error) {
	q := p.join(address)

	ctx, cancel := context.WithTimeout(ctx, reviewTimeout())
	defer cancel()

	if err := q.Acquire(ctx, 1); err != nil {
		p.part(address, q)
		return nil, fmt.Errorf("too many unknown tokens from %s are being reviewed: %w", address, err)
	}

	return func() {
		q.Release(1)
		p.part(address, q)
	}, nil
}

func (p *places) join(address string) *queue {
	p.mu.Lock()
	defer p.mu.Unlock()

	q := p.from[address]
	if q == nil {
		q = &queue{Weighted: semaphore.NewWeighted(placesPerPeer)}

		if p.from == nil {
			p.from = map[string]*queue{}
		}

		p.from[address] = q
	}
	q.calls++

	return q
}

func (p *places) part(address string, q *queue) {
	p.mu.Lock()
	defer p.mu.Unlock()

	if q.calls--; q.calls == 0 {
		delete(p.from, address)
	}
}

// address returns the address that a call comes from, without the port.
func address(ctx context.Context) string {
	p, ok := peer.FromContext(ctx)
	if !ok || p.Addr == nil {
		return ""
	}

	host, _, err := net.SplitHostPort(p.Addr.String())
	if err != nil {
		return p.Addr.String()
	}

	return host
}
