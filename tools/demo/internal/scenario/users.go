package scenario

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/tools/demo/internal/localsystem"
	examplev1alpha1 "github.com/clusterring/clusterring/tools/example/api/v1alpha1"
	"github.com/clusterring/clusterring/tools/lab/must"
	"github.com/clusterring/clusterring/tools/lab/system"
)

const (
	// namespaces is the number of namespaces that the objects are spread over.
	namespaces = 5
	// fleets is the number of Fleets.
	fleets = 100

	// editors and creators are the numbers of users under load, interval is the pause of each user between edits or
	// creates.
	editors, creators = 4, 2
	interval          = 50 * time.Millisecond
	// popular is the number of Websites that are edited: few, so that there is nearly always work on each.
	popular = 40
)

func namespaceOf(n int) string { return fmt.Sprintf("web-%d", n%namespaces+1) }

func newWebsite(n int) *examplev1alpha1.Website {
	return system.Website(namespaceOf(n), system.Site(n))
}

func (s *Story) createNamespaces(ctx context.Context) {
	for n := range namespaces {
		namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespaceOf(n)}}
		must.Do(client.IgnoreAlreadyExists(s.client.Create(ctx, namespace)))
	}
}

func (s *Story) createFleets(ctx context.Context) {
	s.fleets = fleets

	must.AtOnce(ctx, fleets, func(ctx context.Context, i int) {
		system.Asked(s.client.Create(ctx, system.Fleet(namespaceOf(i), i)))
	})
}

// users create and edit Websites. Every request must succeed.
type users struct {
	mu sync.Mutex
	done
}

// done is what users have done.
type done struct {
	edits, creates int
	assigned       int // created Websites with the label of an available shard in the response
	slowest        time.Duration
}

// soFar returns what the users have done so far.
func (u *users) soFar() done {
	u.mu.Lock()
	defer u.mu.Unlock()

	return u.done
}

// add adds a request that was sent at the given time.
func (u *users) add(sent time.Time, request done) {
	u.mu.Lock()
	defer u.mu.Unlock()

	u.edits, u.creates, u.assigned = u.edits+request.edits, u.creates+request.creates, u.assigned+request.assigned
	u.slowest = max(u.slowest, time.Since(sent))
}

// createWebsites creates n more Websites concurrently.
func (s *Story) createWebsites(ctx context.Context, n int) done {
	u, first := &users{}, s.created
	s.created += n

	must.AtOnce(ctx, n, func(ctx context.Context, i int) {
		s.console.Progress("creating Websites: %d of %d", u.soFar().creates, n)
		s.createWebsite(ctx, u, first+i)
	})

	return u.done
}

func (s *Story) createWebsite(ctx context.Context, u *users, n int) {
	site, sent := newWebsite(n), time.Now()
	system.Asked(s.client.Create(ctx, site))

	request := done{creates: 1}
	if slices.Contains(s.available(), site.Labels[contract.ShardLabel(localsystem.Ring)]) {
		request.assigned = 1
	}
	u.add(sent, request)
}

func (s *Story) editWebsite(ctx context.Context, u *users) {
	sent, n := time.Now(), rand.IntN(min(popular, s.sites)) //nolint:gosec // any will do
	system.Edit(ctx, s.client, namespaceOf(n), system.Site(n))
	u.add(sent, done{edits: 1})
}

// underLoad runs an action while users edit popular Websites, and create new ones if create is true. It returns what
// the users have done. The context of the action ends if a request fails. The action must not create Websites.
func (s *Story) underLoad(ctx context.Context, create bool, do func(context.Context, *users)) done {
	u, next := &users{}, atomic.Int64{}
	next.Store(int64(s.created))

	edit := func(ctx context.Context) { s.editWebsite(ctx, u) }
	others := slices.Repeat([]func(context.Context){edit}, editors)

	if create {
		creates := func(ctx context.Context) { s.createWebsite(ctx, u, int(next.Add(1)-1)) }
		others = append(others, slices.Repeat([]func(context.Context){creates}, creators)...)
	}

	must.Meanwhile(ctx, interval, func(ctx context.Context) { do(ctx, u) }, others...)

	s.created += u.creates

	return u.done
}
