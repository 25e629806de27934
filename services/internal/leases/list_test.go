package leases_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/leases"
	"github.com/clusterring/clusterring/tools/testkit/localplane"
)

func TestMain(m *testing.M) { os.Exit(localplane.Main(m, v1alpha1.AddToScheme)) }

const (
	ring = "pages"
	// large is how many Leases have nearly 1 MiB, in the middle of small ones.
	large, small = 16, 40
	// most limits the bytes of a page: 8 MiB, and what has been read at once beyond.
	most = 9 << 20
)

// pages records what is read from the API server.
type pages struct {
	next http.RoundTripper

	mu     sync.Mutex
	limits []int
	bytes  []int
}

// RoundTrip implements http.RoundTripper.
func (p *pages) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := p.next.RoundTrip(r)
	if err != nil || r.Method != http.MethodGet || !strings.HasSuffix(r.URL.Path, "/leases") {
		return response, err
	}

	limit, _ := strconv.Atoi(r.URL.Query().Get("limit"))

	p.mu.Lock()
	defer p.mu.Unlock()

	p.limits, p.bytes = append(p.limits, limit), append(p.bytes, 0)
	response.Body = &counted{response.Body, p, len(p.bytes) - 1}

	return response, nil
}

type counted struct {
	io.ReadCloser

	pages *pages
	page  int
}

func (c *counted) Read(into []byte) (int, error) {
	n, err := c.ReadCloser.Read(into)
	c.pages.mu.Lock()
	defer c.pages.mu.Unlock()

	c.pages.bytes[c.page] += n

	return n, err
}

// bounded returns a client whose pages are bounded and recorded, and the Leases that there are.
func bounded(t *testing.T) (client.WithWatch, *pages) {
	t.Helper()

	plane := localplane.Shared(t)
	read := &pages{}
	config := rest.CopyConfig(plane.Config)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		read.next = next
		return read
	})
	config.Wrap(leases.Bound)

	c, err := client.NewWithWatch(config, client.Options{Scheme: plane.Client.Scheme()})
	require.NoError(t, err)

	return c, read
}

// flood creates Leases in a new namespace, and returns their names.
func flood(t *testing.T) (namespace string, names []string) {
	t.Helper()

	plane := localplane.Shared(t)
	namespace = plane.Namespace(t)

	for i := range large + small {
		l := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: fmt.Sprintf("lease-%02d", i), Labels: map[string]string{contract.LabelClusterRing: ring},
		}}
		if i >= small/2 && i < small/2+large {
			l.Spec.HolderIdentity = new(strings.Repeat("x", 1<<20))
		}

		require.NoError(t, plane.Client.Create(t.Context(), l))
		names = append(names, l.Name)
	}

	return namespace, names
}

// check requires that the Leases are those, without what makes them large, and were read in pages of bounded size.
func (p *pages) check(t *testing.T, list []coordinationv1.Lease, want []string) {
	t.Helper()

	names := make([]string, 0, len(list))
	for i := range list {
		names = append(names, list[i].Name)
		require.Less(t, list[i].Size(), 1000)
	}

	require.Equal(t, want, names)
	require.Less(t, slices.Max(p.bytes), most)
	require.Equal(t, 1000, p.limits[0], "small Leases cost one request")
	require.Less(t, slices.Min(p.limits), 8)
	require.Greater(t, p.limits[len(p.limits)-1], slices.Min(p.limits), "pages grow again")
}

// TestLargeLeasesAreReadInParts: without the bound, the first page would have all Leases, in 16 MiB.
func TestLargeLeasesAreReadInParts(t *testing.T) {
	namespace, names := flood(t)

	c, read := bounded(t)
	all, err := leases.Read(t.Context(), c, client.InNamespace(namespace),
		client.MatchingLabels{contract.LabelClusterRing: ring})
	require.NoError(t, err)
	read.check(t, all, names)

	// A reflector that cannot stream gets the same, also if it would take a list from the cache of the API server.
	c, read = bounded(t)
	source := leases.Source(&toolscache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
			var list coordinationv1.LeaseList

			return &list, c.List(ctx, &list, &client.ListOptions{Namespace: namespace, Limit: opts.Limit,
				Continue: opts.Continue, Raw: &opts})
		},
		WatchFuncWithContext: func(context.Context, metav1.ListOptions) (watch.Interface,
			error) {
			return watch.NewEmptyWatch(), nil
		},
	})
	list, err := toolscache.ToListerWithContext(source).ListWithContext(t.Context(),
		metav1.ListOptions{ResourceVersion: "0"})
	require.NoError(t, err)
	read.check(t, list.(*coordinationv1.LeaseList).Items, names)

	_, err = toolscache.ToWatcherWithContext(source).WatchWithContext(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
}

// endless is a page that does not fit, however few Leases it has.
type endless struct{ client.Reader }

func (endless) List(context.Context, client.ObjectList, ...client.ListOption) error {
	return leases.ErrTooLarge
}

func TestLeaseThatIsTooLargeIsAnError(t *testing.T) {
	_, err := leases.Read(t.Context(), endless{})
	require.ErrorContains(t, err, "the page has more than 8 MiB")
}
