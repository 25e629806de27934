package membership_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/services/internal/membership"
)

// in is the Lease with the Pod in its annotation.
func in(pod string, l *coordinationv1.Lease) *coordinationv1.Lease {
	l.Annotations = map[string]string{contract.AnnotationPod: pod}

	return l
}

func TestRunBy(t *testing.T) {
	v := membership.Rules{Namespaces: membership.Namespaces{"ns", "more"}}.View("r", []*coordinationv1.Lease{
		leaseOf("r", "ns/a", "a"), leaseOf("r", "ns/released", ""), leaseOf("r", "ns/taken", contract.LeaseControllerIdentity),
		leaseOf("r", "elsewhere/x", "x"), leaseOf("other", "ns/y", "y"),
		leaseOf("r", "ns/once", "once"), leaseOf("r", "more/once", ""), leaseOf("r", "ns/twice", "twice"), leaseOf("r", "more/twice", "twice"),
		in("pod-0", leaseOf("r", "ns/slot-0", "slot-0")), in("pod-1", leaseOf("r", "ns/slot-1", "")),
		in("pod-2", leaseOf("r", "ns/slot-2", "slot-2")), in("pod-2", leaseOf("r", "ns/slot-3", "slot-3")),
		stops(leaseOf("r", "ns/stops", "stops"), time.Unix(1_800_000_000, 0)),
	}, nil)

	for pod, want := range map[string]string{
		"ns/a": "a", "more/a": "", "ns/released": "", "ns/taken": "", "elsewhere/x": "", "ns/y": "", "ns/nobody": "", "": "",
		"ns/once": "once", "more/once": "", "ns/twice": "", "more/twice": "",
		"ns/pod-0": "slot-0", "ns/slot-0": "", "more/pod-0": "", "ns/pod-1": "", "ns/pod-2": "", "ns/slot-2": "",
		"ns/stops": "",
	} {
		got, ok := v.RunBy(name(pod))
		require.Equal(t, want != "", ok, pod)

		if ok {
			require.Equal(t, want, got)
		}
	}
}

// The next Pod of a slot is known as soon as the Lease names it.
func TestSlotThatAnotherPodTakes(t *testing.T) {
	x, changes := watched()
	x.Upsert(in("pod-0", leaseOf("r", "ns/slot", "slot")))
	changes()

	before := x.View("r")
	x.Upsert(in("pod-1", leaseOf("r", "ns/slot", "slot")))
	require.Equal(t, []string{"r"}, changes())
	require.Equal(t, before.Fingerprint(), x.View("r").Fingerprint())

	_, was := x.View("r").RunBy(name("ns/pod-0"))
	_, is := x.View("r").RunBy(name("ns/pod-1"))
	require.False(t, was)
	require.True(t, is)
}
