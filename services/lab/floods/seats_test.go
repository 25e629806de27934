package floods_test

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/services/lab/house"
	examplev1alpha1 "github.com/clusterring/clusterring/tools/example/api/v1alpha1"
	"github.com/clusterring/clusterring/tools/testkit/services"
)

const (
	// throttled is how many Websites there are.
	throttled = 2000
	// renewed is for how long the shards must renew their Leases: twice their duration.
	renewed = 30 * time.Second
)

// refused matches the metric of the requests that the API server has refused.
var refused = regexp.MustCompile(`rest_client_requests_total\{code="429",[^}]*\} [1-9]`)

// another returns a client of another process with the account of the shards.
func (h *flooded) another() *rest.RESTClient {
	h.T.Helper()

	path, err := h.Plane.PodKubeconfig(h.T.Context(), "example", "example-shard", "another")
	require.NoError(h.T, err)
	config, err := clientcmd.BuildConfigFromFlags("", path)
	require.NoError(h.T, err)

	config.QPS = -1
	config.APIPath, config.GroupVersion = "/apis", &examplev1alpha1.SchemeGroupVersion
	config.NegotiatedSerializer = scheme.Codecs.WithoutConversion()
	another, err := rest.RESTClientFor(config)
	require.NoError(h.T, err)

	return another
}

// TestThrottledShardsKeepTheirLeases gives all requests of three shards one seat, and then 2,000 objects to work on.
func TestThrottledShardsKeepTheirLeases(t *testing.T) {
	h := begin(t)

	c := h.Plane.Client
	require.NoError(t, examplev1alpha1.AddToScheme(c.Scheme()))
	require.NoError(t, h.Plane.Install(t.Context(), "deploy/example"))

	shards := []string{"example-0", "example-1", "example-2"}
	for _, name := range shards {
		require.NoError(t, h.Start(t.Context(), services.Spec{
			Name: name, Binary: house.Example, Namespace: "example", Account: "example-shard",
			Args: []string{
				"--ring=example", "--shard-name=" + name, "--lease-namespace=example", "--concurrency=20", "--kube-api-qps=500",
				"--kube-api-burst=500",
			},
		}))
	}

	require.NoError(t, h.Plane.Install(t.Context(), "services/lab/floods/testdata/one-seat.yaml"))

	leases := func() (all []*coordinationv1.Lease) {
		for _, name := range shards {
			l := &coordinationv1.Lease{}
			require.NoError(t, c.Get(t.Context(), client.ObjectKey{Namespace: "example", Name: name}, l))
			all = append(all, l)
		}

		return all
	}
	before, space := leases(), h.Plane.Namespace(t)

	var g errgroup.Group

	g.SetLimit(20)

	for i := range throttled {
		g.Go(func() error {
			return c.Create(t.Context(), &examplev1alpha1.Website{
				ObjectMeta: metav1.ObjectMeta{Namespace: space, Name: fmt.Sprintf("site-%d", i)},
				Spec:       examplev1alpha1.WebsiteSpec{Title: "a site"},
			})
		})
	}

	require.NoError(t, g.Wait())

	// The seat is taken nearly all the time, as by other controllers with the account.
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()

	another := h.another()

	for range 10 {
		g.Go(func() error {
			for ctx.Err() == nil {
				another.Get().Resource("websites").MaxRetries(0).Do(ctx)
			}

			return nil
		})
	}

	begin := metav1.NowMicro()

	require.NoError(t, wait.PollUntilContextTimeout(t.Context(), interval, patience, true,
		func(context.Context) (bool, error) {
			select {
			case err := <-h.Died():
				return false, err
			default:
			}

			return !slices.ContainsFunc(leases(),
				func(l *coordinationv1.Lease) bool { return l.Spec.RenewTime.Sub(begin.Time) < renewed }), nil
		}))

	cancel()
	require.NoError(t, g.Wait())

	for i, l := range leases() {
		require.Equal(t, before[i].Spec.HolderIdentity, l.Spec.HolderIdentity)
		require.Equal(t, before[i].Spec.LeaseTransitions, l.Spec.LeaseTransitions)
	}

	for _, name := range shards {
		require.Regexp(t, refused, h.metrics(name), "the API server has not refused a request of %s", name)
	}

	h.survived()
}
