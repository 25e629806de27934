package embedded

import (
	"errors"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/tools/testkit/localplane"
)

func TestOptionsAreValidated(t *testing.T) {
	w := newWorld(t, localplane.Shared(t))
	mgr := w.manager()

	for name, tc := range map[string]struct {
		change func(*Options)
		want   string
	}{
		"no ring":           {func(o *Options) { o.Ring = "" }, "ring: set its name"},
		"another ring":      {func(o *Options) { o.Ring = "other" }, "check the name, and grant get, list, watch, and patch on this ring"},
		"no namespace":      {func(o *Options) { o.Namespace = "" }, "namespace: set it, outside of a Pod it is not known"},
		"bad namespace":     {func(o *Options) { o.Namespace = "a/b" }, `namespace "a/b" is no namespace name`},
		"parts of a second": {func(o *Options) { o.LeaseDuration = 1500 * time.Millisecond }, "lease duration must be whole seconds"},
		"deadline too long": {func(o *Options) { o.RenewDeadline = time.Minute }, "lease duration (4s) must be greater than renew deadline (1m0s)"},
		"negative retry":    {func(o *Options) { o.RetryPeriod = -1 }, "retry period must be greater than 0"},
	} {
		t.Run(name, func(t *testing.T) {
			o := w.options()
			tc.change(&o)
			require.ErrorContains(t, AddTo(mgr, o), tc.want)
		})
	}
}

func TestRingMustExist(t *testing.T) {
	w := newWorld(t, localplane.Shared(t))
	mgr := elsewhere{w.manager(), w.plane.Config}
	o := w.options()
	o.Ring = "missing"
	require.ErrorContains(t, AddTo(mgr, o), "ClusterRing missing does not exist: create it, with spec.sharder Embedded")
}

func TestNamespaceIsThatOfThePod(t *testing.T) {
	o, err := Options{Ring: "r"}.complete(func(string) ([]byte, error) { return []byte("here\n"), nil })
	require.NoError(t, err)
	require.Equal(t, "here", o.Namespace)
	require.Equal(t, []time.Duration{15 * time.Second, 10 * time.Second, 2 * time.Second}, []time.Duration{o.LeaseDuration, o.RenewDeadline, o.RetryPeriod})

	_, err = Options{Ring: "r"}.complete(func(string) ([]byte, error) { return nil, errors.Join(os.ErrNotExist) })
	require.ErrorContains(t, err, "outside of a Pod")
}

func TestOneSharderPerManager(t *testing.T) {
	w := newWorld(t, localplane.Shared(t))
	mgr := w.manager()
	require.NoError(t, AddTo(mgr, w.options()))
	require.EqualError(t, AddTo(mgr, w.options()), `add the embedded sharder of ring "example": the manager already has an embedded sharder: call AddTo once`)
	managers.remove(mgr)
}

// TestUnreachableAPIServer: the error names the address.
func TestUnreachableAPIServer(t *testing.T) {
	w := newWorld(t, localplane.Shared(t))
	mgr := elsewhere{w.manager(), &rest.Config{Host: "http://" + localplane.FreeAddress(t)}}
	require.ErrorContains(t, AddTo(mgr, w.options()), "cannot reach the Kubernetes API server at "+mgr.config.Host)
}

type elsewhere struct {
	manager.Manager
	config *rest.Config
}

func (e elsewhere) GetConfig() *rest.Config { return e.config }

// TestStandsByForServices: the program may be rolled out before spec.sharder changes, and after.
func TestStandsByForServices(t *testing.T) {
	w := newWorld(t, localplane.Shared(t), func(r *v1alpha1.ClusterRing) { r.Spec.Sharder = "" })
	w.join("a")
	w.create("site")
	w.start(w.options())

	elected := func() bool {
		l := leaseObject()
		l.SetNamespace(namespace)
		l.SetName(contract.SharderLeaseName(ringName))

		return w.client.Get(t.Context(), client.ObjectKeyFromObject(l), l) == nil
	}
	require.Eventually(t, elected, patience, interval)
	require.Empty(t, w.ring().Finalizers)
	require.Empty(t, w.shardOf("site"))

	w.setSharder(v1alpha1.SharderEmbedded)

	// The API server demands the namespace of the shards, which is set.
	w.waitAt("site", "a")
}
