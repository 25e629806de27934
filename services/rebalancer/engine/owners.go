package engine

import (
	"context"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/clusterring/clusterring/services/internal/resources"
	"github.com/clusterring/clusterring/services/rebalancer/objects"
)

// manyNamespaces is the number of namespaces from which one list over all is cheaper than a list for each.
const manyNamespaces = 8

// ownerMoves is where owners were handed over, and by which shards.
type ownerMoves struct {
	namespaces sets.Set[string]
	shards     sets.Set[string]
}

func (m *ownerMoves) add(o ownerMoves) {
	m.namespaces = m.namespaces.Union(o.namespaces)
	m.shards = m.shards.Union(o.shards)
}

// scopes are the lists in which the objects of these owners are found.
func (m *ownerMoves) scopes(e *Engine, r resources.Resource) []objects.Scope {
	in := selector(e.Objects.ShardLabel(), "in", sets.List(m.shards))

	// The objects of a cluster-scoped owner may be in any namespace.
	if !r.Namespaced || m.namespaces.Has("") || m.namespaces.Len() > manyNamespaces {
		return []objects.Scope{{GVR: r.GVR, Selector: in}}
	}

	scopes := make([]objects.Scope, 0, m.namespaces.Len())
	for _, ns := range sets.List(m.namespaces) {
		scopes = append(scopes, objects.Scope{GVR: r.GVR, Namespace: ns, Selector: in})
	}

	return slices.Clip(scopes)
}

// ownerNews collects where owners were handed over until somebody takes the news.
type ownerNews struct {
	mu    sync.Mutex
	moves ownerMoves
	wake  chan struct{}
}

func newOwnerNews() *ownerNews {
	return &ownerNews{wake: make(chan struct{}, 1)}
}

func (n *ownerNews) moved(namespace, shard string) {
	n.mu.Lock()
	defer n.mu.Unlock()

	n.moves.add(ownerMoves{namespaces: sets.New(namespace), shards: sets.New(shard)})

	select {
	case n.wake <- struct{}{}:
	default:
	}
}

func (n *ownerNews) take() ownerMoves {
	n.mu.Lock()
	defer n.mu.Unlock()

	moves := n.moves
	n.moves = ownerMoves{}

	return moves
}

// next waits for news; false if ctx ended.
func (n *ownerNews) next(ctx context.Context) (ownerMoves, bool) {
	for {
		select {
		case <-ctx.Done():
			return ownerMoves{}, false
		case <-n.wake:
			if moves := n.take(); moves.namespaces.Len() > 0 {
				return moves, true
			}
		}
	}
}
