package rings

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/resources/resourcestest"
	"github.com/clusterring/clusterring/services/rebalancer/engine"
	"github.com/clusterring/clusterring/services/rebalancer/work"
)

// A new problem is announced once, and discovery is queried, because the resource may be served in another way.
func TestWhatBeginsToFailIsToldOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &resourcestest.Discovery{}
		recorder := events.NewFakeRecorder(100)
		r := &Reconciler{Config: Config{Resources: resourcestest.Resolver(t, d), Recorder: recorder}}
		e, ring := &running{}, &v1alpha1.ClusterRing{}
		asked := d.Asked()

		tell := func(is situation) (told int) {
			t.Helper()

			for range 3 {
				r.announce(e, ring, is, assigned(is))
			}

			<-clock.RealClock{}.After(2 * time.Second)

			for ; len(recorder.Events) > 0; told++ {
				<-recorder.Events
			}

			return told
		}

		late := engine.Report{Summary: work.Summary{Late: 1, LateExample: "one"}}

		require.Zero(t, tell(situation{deleting: true}), "there is no problem yet")
		require.Zero(t, tell(situation{deleting: true, missing: "a typo"}), "it will soon be known to be gone")
		require.Equal(t, asked, d.Asked())
		require.Equal(t, 1, tell(situation{deleting: true, report: engine.Report{Summary: work.Summary{Draining: 3}}}))
		require.Equal(t, 1, tell(situation{deleting: true, report: late}))
		late.LateExample = "another"
		require.Zero(t, tell(situation{deleting: true, report: late}))
		require.Equal(t, 1, tell(situation{deleting: true, missing: "it", unknown: "it"}))
		require.Equal(t, asked, d.Asked())
		require.Equal(t, 1, tell(situation{deleting: true, report: engine.Report{Failures: []string{"gone"}}}))
		require.Equal(t, asked+1, d.Asked(), "the resource may be served in another way")
	})
}
