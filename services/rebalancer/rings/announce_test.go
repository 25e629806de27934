package rings

import (
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/tools/events"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/clusterring"
	"github.com/clusterring/clusterring/services/rebalancer/engine"
	"github.com/clusterring/clusterring/services/rebalancer/work"
)

// A new problem is announced once.
func TestWhatBeginsToFailIsToldOnce(t *testing.T) {
	recorder := events.NewFakeRecorder(100)
	r := &Reconciler{Config: Config{Tenure: &clusterring.Tenure{Recorder: recorder}}}
	e, ring := &running{}, &v1alpha1.ClusterRing{}

	tell := func(is situation) (told int) {
		t.Helper()

		for range 3 {
			r.announce(e, ring, is, assigned(is))
		}

		for ; len(recorder.Events) > 0; told++ {
			<-recorder.Events
		}

		return told
	}

	late := engine.Report{Summary: work.Summary{Late: 1, LateExample: "one"}}

	require.Zero(t, tell(situation{deleting: true}), "there is no problem yet")
	require.Zero(t, tell(situation{deleting: true, missing: "a typo"}), "it will soon be known to be gone")
	require.Zero(t, tell(situation{deleting: true, report: engine.Report{Summary: work.Summary{Draining: 3}}}))
	require.Equal(t, 1, tell(situation{deleting: true, report: late}))
	late.LateExample = "another"
	require.Zero(t, tell(situation{deleting: true, report: late}))
	require.Equal(t, 1, tell(situation{deleting: true, missing: "it", unknown: "it"}))
	require.Equal(t, 1, tell(situation{deleting: true, report: engine.Report{Failures: []string{"gone"}}}))
	require.Zero(t, tell(situation{deleting: true}))

	failing := engine.Report{Summary: work.Summary{Failing: 1, FailingExample: "one"}}
	require.Equal(t, 1, tell(situation{shards: 1, report: failing}))
	require.Zero(t, tell(situation{shards: 1}), "it is solved")
	require.Equal(t, 1, tell(situation{shards: 1, report: failing}))
}
