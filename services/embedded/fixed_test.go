package embedded

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/tools/lab/localplane"
)

// TestRingInTheProgram runs where the API server knows no ClusterRing.
func TestRingInTheProgram(t *testing.T) {
	plane, err := localplane.Start(localplane.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, plane.Stop()) })

	w := newBareWorld(t, plane)
	w.join("a")
	w.shard("b", time.Second) // it never renews its Lease

	o := w.options()
	o.Spec = new(ringSpec())
	first := w.start(o)

	for i := range 20 {
		w.create(fmt.Sprintf("site-%d", i))
	}

	for i := range 20 {
		w.waitAt(fmt.Sprintf("site-%d", i), "a")
	}

	// Another process brings the same ring along, and is elected.
	w.start(o)
	first.stop()
	w.create("after")
	w.waitAt("after", "a")

	_, err = plane.Client.RESTMapper().RESTMapping(v1alpha1.GroupVersion.WithKind("ClusterRing").GroupKind())
	require.True(t, meta.IsNoMatchError(err), "the API server knows ClusterRings")

	// Without the value, the error says what is missing.
	require.ErrorContains(t, AddTo(w.manager(), w.options()), "does not serve clusterrings.sharding.timebertt.dev/v1alpha1; apply deploy/base/crd first")
}

// newBareWorld is newWorld without the kind ClusterRing, and without rights on rings.
func newBareWorld(t *testing.T, plane *localplane.Plane) *world {
	t.Helper()
	require.NoError(t, plane.Install(t.Context(), "deploy/example/crd", "deploy/example/namespace.yaml", "deploy/example/rbac.yaml", "deploy/example-embedded/rbac.yaml"))

	return &world{TB: t, plane: plane, client: plane.Client, objects: plane.Namespace(t)}
}
