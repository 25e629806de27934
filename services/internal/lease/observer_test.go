package lease_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"

	"github.com/clusterring/clusterring/services/internal/lease"
)

var (
	here  = types.NamespacedName{Namespace: "a", Name: shard}
	there = types.NamespacedName{Namespace: "b", Name: shard}
)

func TestObserverMeasuresSinceTheRecordChanged(t *testing.T) {
	var o lease.Observer

	now := monday.Time
	record := lease.Record{Holder: shard}
	require.Zero(t, o.Observe(here, record, now))
	require.Equal(t, 5*time.Second, o.Observe(here, record, now.Add(5*time.Second)))
	require.Zero(t, o.Observe(there, record, now.Add(6*time.Second)), "the same name in another namespace is another Lease")
	require.Equal(t, 7*time.Second, o.Observe(here, record, now.Add(7*time.Second)))

	record.Transitions++
	require.Zero(t, o.Observe(here, record, now.Add(8*time.Second)))
	require.Equal(t, time.Second, o.Observe(here, record, now.Add(9*time.Second)))

	o.Forget(here)
	require.Zero(t, o.Observe(here, record, now.Add(10*time.Second)))
	o.Forget(types.NamespacedName{})
}

func TestObserverNeverMeasuresLessThanNothing(t *testing.T) {
	var o lease.Observer

	record := lease.Record{Holder: shard}
	require.Zero(t, o.Observe(here, record, monday.Time))
	require.Zero(t, o.Observe(here, record, monday.Add(-time.Hour)))
	require.Equal(t, time.Second, o.Observe(here, record, monday.Add(time.Second)), "going back must not start the age anew")
}

func TestObserverIsSafeForConcurrentUse(t *testing.T) {
	var (
		o  lease.Observer
		wg sync.WaitGroup
	)
	for i := range 8 {
		wg.Go(func() {
			id := types.NamespacedName{Name: fmt.Sprintf("web-%d", i%2)}
			for n := range int32(100) {
				o.Observe(id, lease.Record{Transitions: n}, monday.Add(time.Duration(n)))
			}
			o.Forget(id)
		})
	}
	wg.Wait()
	require.Zero(t, o.Observe(types.NamespacedName{Name: "web-0"}, lease.Record{}, monday.Time))
}
