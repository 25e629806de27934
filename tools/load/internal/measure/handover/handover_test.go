package handover

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/clusterring/clusterring/tools/load/internal/objects"
)

// An owner is nobody's from the event without its label to the one with the next; what controls nothing never is.
func TestHistory(t *testing.T) {
	began := time.Unix(1e9, 0)
	clk := clocktesting.NewFakePassiveClock(began)
	h := newHistory(clk, "shard")
	see := func(after time.Duration, kind objects.Kind, name, version, shard string) {
		clk.SetTime(began.Add(after))

		o := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
			Name: name, ResourceVersion: version, Labels: map[string]string{"shard": shard},
		}}
		h.see(watch.Modified, kind, o)
	}
	see(time.Second, objects.Websites, "a", "1", "old") // asked for
	see(2*time.Second, objects.Websites, "a", "2", "")
	see(3*time.Second, objects.ConfigMaps, "of-a", "3", "new")
	see(4*time.Second, objects.Websites, "b", "4", "new")

	listed := func(name, version string) metav1.PartialObjectMetadata {
		return metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: name, ResourceVersion: version}}
	}
	theirs := []metav1.PartialObjectMetadata{listed("a", "5"), listed("b", "4")}

	_, all := h.moved(theirs)
	require.False(t, all, "the watch has not shown a yet")

	see(5*time.Second, objects.Websites, "a", "5", "new")

	m, all := h.moved(theirs)
	require.True(t, all)
	require.Equal(t, moved{owners: 2, nobodys: 3, writes: 2.5}, m)
}
