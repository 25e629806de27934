package clusterring

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"gotest.tools/v3/golden"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
)

// tenant is a sharder that records what its tenure makes it do.
type tenant struct {
	*world
	*Tenure
	did   []string
	works bool
}

func newTenant(w *world, self Identity) *tenant {
	t := &tenant{world: w}
	t.Tenure = &Tenure{
		Sharder: self, Client: w.client, Live: w.client, Clock: w.clock, Recorder: events.NewFakeRecorder(100),
		Works: func(*v1alpha1.ClusterRing) bool { return t.works },
		Stop:  func(string) { t.did, t.works = append(t.did, "stop"), false },
		Release: func(context.Context, *v1alpha1.ClusterRing, Identity) error {
			holder, held := HolderOf(w.latest())
			require.True(w, held && holder == self, "the ring is given up before its status changes")

			t.did = append(t.did, "release")

			return nil
		},
	}

	return t
}

func (w *world) latest() *v1alpha1.ClusterRing {
	w.Helper()

	ring, err := Latest(w.Context(), w.client, w.ring)
	require.NoError(w, err)

	return ring
}

// hold calls Hold with the present ring.
func (t *tenant) hold() (holds bool, again time.Duration) {
	t.Helper()

	t.did = nil
	holds, again, err := t.Hold(t.Context(), t.latest())
	require.NoError(t, err)

	t.works = holds

	return holds, again
}

// want makes the spec want another sharder.
func (w *world) want(embedded bool) {
	w.Helper()

	ring := w.latest()
	ring.Spec.Sharder, ring.Spec.ShardNamespaces = v1alpha1.SharderServices, []string{"default"}

	if embedded {
		ring.Spec.Sharder = v1alpha1.SharderEmbedded
	}

	require.NoError(w, w.client.Update(w.Context(), ring))
}

// The services take a ring from an embedded sharder only when its election Lease has run out, and stop before they give
// it up.
func TestServicesTakeTheRingOfASharderThatIsGone(t *testing.T) {
	w := newWorld(t)
	w.want(true)

	embedded := newTenant(w, Embedded(w.ring.Name, "default"))
	holds, _ := embedded.hold()
	require.True(t, holds)

	old := w.latest()

	elected := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: embedded.Sharder.Lease.Namespace, Name: embedded.Sharder.Lease.Name},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: new("pod"), LeaseDurationSeconds: new(int32(15))},
	}
	require.NoError(t, w.client.Create(t.Context(), elected))
	w.want(false)

	services := newTenant(w, Services)
	holds, again := services.hold()
	require.False(t, holds)
	require.Equal(t, 15*time.Second, again)

	w.clock.SetTime(w.clock.Now().Add(again - time.Second))

	_, again = services.hold()
	require.Equal(t, time.Second, again)

	write := func(holder string) {
		t.Helper()

		elected.Spec.HolderIdentity, elected.Spec.RenewTime = &holder, new(metav1.NewMicroTime(w.clock.Now()))
		require.NoError(t, w.client.Update(t.Context(), elected))
	}

	write("pod")

	_, again = services.hold()
	require.Equal(t, 15*time.Second, again, "it was renewed")
	require.NoError(t, w.client.Delete(t.Context(), elected))

	_, again = services.hold()
	require.Equal(t, absentFor, again, "it was deleted")

	elected.ResourceVersion = ""
	require.NoError(t, w.client.Create(t.Context(), elected))
	w.clock.SetTime(w.clock.Now().Add(absentFor))

	_, again = services.hold()
	require.Equal(t, 15*time.Second, again, "there is another one")
	require.Len(t, services.Recorder.(*events.FakeRecorder).Events, 1, "the ring waits for the same holder all the time")

	w.clock.SetTime(w.clock.Now().Add(again))

	holds, _ = services.hold()
	require.False(t, holds, "the ring has just changed")

	holds, _ = services.hold()
	require.True(t, holds)

	embedded.works = false
	holds, again, err := embedded.Hold(t.Context(), old)
	require.NoError(t, err)
	require.False(t, holds, "an old copy of the ring reports that its shards hold it")
	require.Positive(t, again)

	w.want(true)

	holds, _ = services.hold()
	require.False(t, holds)
	require.Equal(t, []string{"stop", "release"}, services.did, "it stops before it gives the ring up")

	holds, _ = embedded.hold()
	require.True(t, holds)
	w.want(false)
	write("")

	_, again = services.hold()
	require.Zero(t, again, "its Lease was released after its last write")

	holds, _ = services.hold()
	require.True(t, holds)

	require.NoError(t, w.client.Delete(t.Context(), w.ring))
	require.NoError(t, services.Finish(t.Context(), w.latest()))
	require.True(t, apierrors.IsNotFound(w.client.Get(t.Context(), client.ObjectKeyFromObject(w.ring), w.ring)))
}

// everything returns all rings that the decision can tell apart, with a description.
func everything() (rings []*v1alpha1.ClusterRing, texts []string) {
	own, elsewhere := Embedded("r", "here").Lease.String(), Embedded("r", "there").Lease.String()

	for _, deleting := range []bool{false, true} {
		for _, wanted := range []string{"", "here", "there"} {
			for _, finalizer := range []bool{true, false} {
				for _, said := range []*string{nil, new(contract.SharderNobody), &own, &elsewhere, new("made-up"), new("/"),
					new("")} {
					ring := &v1alpha1.ClusterRing{ObjectMeta: metav1.ObjectMeta{Name: "r"}}
					text := []string{"wanted " + wanted}

					if wanted != "" {
						ring.Spec.Sharder, ring.Spec.ShardNamespaces = v1alpha1.SharderEmbedded, []string{wanted}
					} else {
						text[0] = "wanted services"
					}

					if finalizer {
						ring.Finalizers = []string{contract.FinalizerRebalancer}

						text = append(text, "finalizer")
					}

					if said != nil {
						ring.Annotations = map[string]string{contract.AnnotationSharder: *said}
						text = append(text, fmt.Sprintf("annotation %q", *said))
					}

					if deleting {
						ring.DeletionTimestamp = new(metav1.NewTime(time.Unix(0, 0)))

						text = append(text, "deleting")
					}

					rings, texts = append(rings, ring), append(texts, strings.Join(text, ", "))
				}
			}
		}
	}

	return rings, texts
}

var sharders = map[string]Identity{"services": Services, "here": Embedded("r", "here"), "there": Embedded("r", "there")}

// TestNext compares the decision for every ring with the table in testdata, which is its specification.
func TestNext(t *testing.T) {
	var out strings.Builder

	rings, texts := everything()
	for i, ring := range rings {
		fmt.Fprintf(&out, "%-100s services: %-8s here: %-8s there: %s\n", texts[i],
			sharders["services"].Next(ring), sharders["here"].Next(ring), sharders["there"].Next(ring))
	}

	golden.Assert(t, out.String(), "next.txt")
}

// TestOneHolder: of all sharders, at most one works on a ring or gives it up, whatever the ring says. Only a ring
// without a holder is claimed, by one.
func TestOneHolder(t *testing.T) {
	rings, texts := everything()
	for i, ring := range rings {
		holders, claims := 0, 0

		for _, self := range sharders {
			switch self.Next(ring) {
			case Work, Release:
				holders++
			case Claim:
				claims++
			case Wait, Leave:
			}
		}

		require.LessOrEqual(t, holders+claims, 1, texts[i])

		_, held := HolderOf(ring)
		require.Equal(t, held, holders == 1, texts[i])
	}
}
