package feed

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"github.com/clusterring/clusterring/services/internal/resources"
	"github.com/clusterring/clusterring/tools/testkit/localplane"
)

// The number of requests per second is limited, except for a burst at the beginning.
func TestRequestsPerSecondAreBounded(t *testing.T) {
	plane := localplane.Shared(t)

	httpClient, err := rest.HTTPClientFor(plane.Config)
	require.NoError(t, err)
	api, err := Connect(plane.Config, httpClient, Bounds{PerSecond: 50, AtOnce: 20})
	require.NoError(t, err)

	wall := clock.RealClock{}
	began := wall.Now()

	var all errgroup.Group
	for range 150 {
		all.Go(func() error {
			_, err := api.Get(t.Context(), ID{GVR: configMaps, Namespace: "default", Name: "kube-root-ca.crt"})
			if resources.IsGone(err) {
				err = nil
			}

			return err
		})
	}

	require.NoError(t, all.Wait())
	require.GreaterOrEqual(t, wall.Since(began), 900*time.Millisecond)
}
