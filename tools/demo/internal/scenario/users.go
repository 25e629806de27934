package scenario

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/tools/demo/internal/localsystem"
	examplev1alpha1 "github.com/clusterring/clusterring/tools/example/api/v1alpha1"
	"github.com/clusterring/clusterring/tools/lab/must"
)

const (
	// namespaces is the number of namespaces that the objects are spread over.
	namespaces = 5
	// concurrency is the number of concurrent requests.
	concurrency = 16

	// fleets is the number of Fleets, shipsOfEach the number of Ships of each. The controller counts the Ships in its
	// cache and creates missing Ships with generated names. If it does not see a Ship, it creates another one.
	fleets      = 100
	shipsOfEach = 3

	// editors and creators are the numbers of users under load, interval is the pause of each user between edits or
	// creates.
	editors, creators = 4, 2
	interval          = 50 * time.Millisecond
	// popular is the number of Websites that are edited: few, so that there is nearly always work on each.
	popular = 40
)

func namespaceOf(n int) string { return fmt.Sprintf("web-%d", n%namespaces+1) }

func newWebsite(n int) *examplev1alpha1.Website {
	return &examplev1alpha1.Website{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespaceOf(n), Name: fmt.Sprintf("site-%d", n)},
		Spec:       examplev1alpha1.WebsiteSpec{Title: fmt.Sprintf("Website %d", n), Body: "Hello."},
	}
}

func (s *Story) createNamespaces(ctx context.Context) {
	for n := range namespaces {
		namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespaceOf(n)}}
		must.Do(client.IgnoreAlreadyExists(s.client.Create(ctx, namespace)))
	}
}

func (s *Story) createFleets(ctx context.Context) {
	s.fleets = fleets

	must.Do(atOnce(ctx, fleets, func(ctx context.Context, i int) error {
		return s.asUser(ctx, &examplev1alpha1.Fleet{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespaceOf(i), Name: fmt.Sprintf("fleet-%d", i)},
			Spec:       examplev1alpha1.FleetSpec{Replicas: shipsOfEach},
		})
	}))
}

// asUser creates an object as a user does, whose requests must not fail.
func (s *Story) asUser(ctx context.Context, object client.Object) error {
	if err := s.client.Create(ctx, object); err != nil {
		return fmt.Errorf("a user's create failed: %w", err)
	}

	return nil
}

// atOnce calls do with 0 to n-1, several calls at a time, until one fails.
func atOnce(ctx context.Context, n int, do func(ctx context.Context, i int) error) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(concurrency)

	for i := range n {
		group.Go(func() error { return do(ctx, i) })
	}

	return group.Wait() //nolint:wrapcheck // the caller's own error
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

	must.Do(atOnce(ctx, n, func(ctx context.Context, i int) error {
		s.console.Progress("creating Websites: %d of %d", u.soFar().creates, n)
		return s.createWebsite(ctx, u, first+i)
	}))

	return u.done
}

func (s *Story) createWebsite(ctx context.Context, u *users, n int) error {
	site, sent := newWebsite(n), time.Now()
	if err := s.asUser(ctx, site); err != nil {
		return err
	}

	request := done{creates: 1}
	if slices.Contains(s.available(), site.Labels[contract.ShardLabel(localsystem.Ring)]) {
		request.assigned = 1
	}
	u.add(sent, request)

	return nil
}

func (s *Story) editWebsite(ctx context.Context, u *users) error {
	sent, site := time.Now(), newWebsite(rand.IntN(min(popular, s.sites))) //nolint:gosec // any will do

	patch := fmt.Appendf(nil, `{"spec":{"body":"Edited at %s."}}`, sent.Format(time.RFC3339Nano))
	if err := s.client.Patch(ctx, site, client.RawPatch(types.MergePatchType, patch)); err != nil {
		return fmt.Errorf("a user's edit of %s/%s failed: %w", site.Namespace, site.Name, err)
	}
	u.add(sent, done{edits: 1})

	return nil
}

// underLoad runs an action while users edit popular Websites, and create new ones if create is true. It returns what
// the users have done. The context of the action ends if a request fails. The action must not create Websites.
func (s *Story) underLoad(ctx context.Context, create bool, do func(context.Context, *users)) done {
	unhurried := context.WithoutCancel(ctx) // requests under way are completed
	group, ctx := errgroup.WithContext(ctx)
	u := &users{}

	loaded, over := context.WithCancel(ctx)
	defer over()

	repeat := func(request func() error) {
		group.Go(func() error {
			err := wait.PollUntilContextCancel(loaded, interval, false,
				func(context.Context) (bool, error) { return false, request() })
			if errors.Is(err, context.Canceled) {
				return nil // it is over
			}

			return err //nolint:wrapcheck // it is that of the request
		})
	}

	for range editors {
		repeat(func() error { return s.editWebsite(unhurried, u) })
	}

	if create {
		next := atomic.Int64{}
		next.Store(int64(s.created))

		for range creators {
			repeat(func() error { return s.createWebsite(unhurried, u, int(next.Add(1)-1)) })
		}
	}

	err := must.Attempt(func() { do(ctx, u) })
	over()
	must.Do(group.Wait()) // such a failure has ended the action, too
	must.Do(err)

	s.created += u.creates

	return u.done
}
