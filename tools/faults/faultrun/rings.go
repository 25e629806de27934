package faultrun

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	examplev1alpha1 "github.com/clusterring/clusterring/tools/example/api/v1alpha1"
	"github.com/clusterring/clusterring/tools/lab/must"
	"github.com/clusterring/clusterring/tools/lab/system"
	"github.com/clusterring/clusterring/tools/testkit/check"
	"github.com/clusterring/clusterring/tools/testkit/record"
)

// Ring is the default ring of a run, and Namespace the namespace of its objects.
const (
	Ring      = "faults"
	Namespace = "faults"
)

// RingSpec describes a ring of a run. All rings shard Websites and the ConfigMaps that they control.
type RingSpec struct {
	// Name is the name of the ring, [Ring] by default. It is unique in a run.
	Name string
	// Namespaces are the namespaces that the ring selects, [Namespace] by default. Rings may share namespaces.
	Namespaces []string
	// Shards are the names of the ring's four shards, unique in a run; a to d by default. The last one joins in phase
	// Join. In phase Fail, the first one is killed and the second one leaves.
	Shards []string
	// Fleets adds as many Fleets of three Ships in each of the namespaces.
	Fleets int
	// Careless lets the workers of shards that run the example write after their shard has lost its Lease.
	Careless bool
	// Pods gives the shards Leases of eight seconds that announce their Pods, and lets the lease monitor watch these. The
	// test is the kubelet.
	Pods bool
	// Slots, unless zero, lets the shards take this many slots: the names in Shards are those of their Pods. Their Leases
	// last eight seconds.
	Slots int
	// Embedded lets the shards elect the sharder of the ring among themselves. The ring has no fence. Their Leases last
	// four seconds.
	Embedded bool
	// Plain selects shards that do not use pkg/shard: see tools/faults/cmd/shards.
	Plain bool
}

// ring is a ring of the current run.
type ring struct {
	RingSpec
	watched *system.Ring
	uid     types.UID
	ended   time.Duration // when its deletion began; zero before
}

// manifest returns the ClusterRing.
func (s RingSpec) manifest() *v1alpha1.ClusterRing {
	configMaps := []v1alpha1.ControlledResource{{Resource: "configmaps"}}

	resources := []v1alpha1.RingResource{{
		Group: examplev1alpha1.SchemeGroupVersion.Group, Resource: "websites", ControlledResources: configMaps,
	}}
	if s.Fleets > 0 {
		resources = append(resources, v1alpha1.RingResource{
			Group: examplev1alpha1.SchemeGroupVersion.Group, Resource: "fleets",
			ControlledResources: []v1alpha1.ControlledResource{
				{Group: examplev1alpha1.SchemeGroupVersion.Group, Resource: "ships"},
			},
		})
	}

	ring := &v1alpha1.ClusterRing{
		ObjectMeta: metav1.ObjectMeta{Name: s.Name},
		Spec: v1alpha1.ClusterRingSpec{
			Resources: resources,
			Fence:     s.fence(),
			NamespaceSelector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{
				Key: corev1.LabelMetadataName, Operator: metav1.LabelSelectorOpIn, Values: s.Namespaces,
			}}},
		},
	}
	if s.Pods || s.Slots > 0 || s.Embedded {
		ring.Spec.ShardNamespaces = []string{system.ShardNamespace}
	}

	if s.Embedded {
		ring.Spec.Sharder = v1alpha1.SharderEmbedded
	}

	return ring
}

// fence returns the fence of the ring. Rings that share objects have none: their shards have the same account, and each
// fence would refuse writes of the other ring's shards. Neither has a ring of plain shards, whose faults are what is
// measured.
func (s RingSpec) fence() *v1alpha1.Fence {
	if s.Name != Ring || s.Plain || s.Embedded {
		return nil
	}

	return &v1alpha1.Fence{Mode: v1alpha1.FenceEnforce, ServiceAccounts: []v1alpha1.ServiceAccountReference{
		{Namespace: system.ShardNamespace, Name: system.ShardAccount},
	}}
}

// binary returns the binary of the ring's shards.
func (s RingSpec) binary() string {
	if s.Plain {
		return otherBinary
	}

	return shardBinary
}

// shardArgs returns the arguments of one of the ring's shards.
func (s RingSpec) shardArgs(name string, c Case) []string {
	args := []string{
		"--ring=" + s.Name, "--lease-namespace=" + system.ShardNamespace,
		"--lease-duration=1s", "--lease-renew-deadline=900ms", "--lease-retry-period=200ms",
		"--work-duration=" + c.WorkDuration.String(),
	}
	if s.Slots > 0 {
		args = append(args, "--slots="+strconv.Itoa(s.Slots), "--pod-name="+name)
	} else {
		args = append(args, "--shard-name="+name)
	}

	switch {
	case s.Embedded:
		args = append(args, "--embedded", "--lease-duration=4s", "--lease-renew-deadline=3s", "--lease-retry-period=400ms")
	case s.Pods || s.Slots > 0:
		args = append(args, "--lease-duration=8s", "--lease-renew-deadline=5s")
	}

	if s.Careless {
		args = append(args, "--careless-file="+os.DevNull) // the proxy sees what becomes of the writes
	}

	return args
}

// account returns the service account of the ring's shards.
func (s RingSpec) account() string {
	if s.Embedded {
		return sharderAccount
	}

	return system.ShardAccount
}

// names returns the names that the ring's shards can have.
func (s RingSpec) names() []string {
	if s.Slots == 0 {
		return s.Shards
	}

	var names []string
	for number := range s.Slots {
		names = append(names, contract.SlotName(s.Name, number))
	}

	return names
}

// recorded returns which objects of the ring are recorded.
func (s RingSpec) recorded() []record.Objects {
	var all []record.Objects
	for _, namespace := range s.Namespaces {
		all = append(all, system.Objects(namespace)...)
	}

	return slices.DeleteFunc(all, func(o record.Objects) bool {
		return s.Fleets == 0 && (o.Kind == check.Fleet || o.Kind == check.Ship) // of another ring
	})
}

// left returns the rings that are not being deleted.
func (run *Run) left() []*ring {
	return slices.DeleteFunc(slices.Clone(run.rings), func(r *ring) bool { return r.ended != 0 })
}

// namespaces returns the namespaces of all rings, each once.
func (run *Run) namespaces() []string {
	var all []string
	for _, r := range run.rings {
		all = append(all, r.Namespaces...)
	}
	slices.Sort(all)

	return slices.Compact(all)
}

// expected returns the sorted names of the shards that are expected to hold their Leases. With slots, these are the
// slots that are held, if there are as many as there can be.
func (run *Run) expected(r *ring) string {
	run.mu.Lock()
	defer run.mu.Unlock()

	var names []string

	for _, name := range r.Shards {
		if run.shards[name] {
			names = append(names, name)
		}
	}
	slices.Sort(names)

	if r.Slots > 0 {
		want := min(r.Slots, len(names))

		names = r.watched.Holders()
		if len(names) != want {
			return fmt.Sprintf("%d slots", want)
		}
	}

	return strings.Join(names, " ")
}

// ready demands that the expected shards of the remaining rings hold their Leases, and that the status of each says so.
func (run *Run) ready(ctx context.Context) {
	for _, r := range run.left() {
		expected, available := run.expected(r), strings.Join(r.watched.Holders(), " ")
		must.Hold(available == expected, "%s: shards %q hold their Leases, not %q", r.Name, available, expected)
		must.None(r.Name, system.StatusProblems(r.watched.Stored(ctx), len(strings.Fields(expected))))
	}
}

// judge checks the records of each ring, and returns how many versions there are. Objects of a ring that was not
// deleted must have a shard until the end.
func (run *Run) judge(all check.Run, end time.Duration) (found []check.Violation, versions int) {
	for _, r := range run.rings {
		records := all
		records.Versions, records.End = r.watched.All(), cmp.Or(r.ended, end)
		records.Spans = slices.DeleteFunc(slices.Clone(all.Spans), func(s check.Span) bool {
			return !slices.Contains(r.names(), s.Shard)
		})
		records.GivenUp = map[uint64]string{}

		for _, m := range run.members {
			if r.Slots == 0 && slices.Contains(r.Shards, m.Name) {
				givenUp(records.GivenUp, m)
			}
		}

		if r.Slots > 0 {
			// Who has sent a write says only which Pod it was; the fence refuses it unless that Pod holds the slot.
			records.GivenUp = check.Releases(records.Versions)
		}

		found = append(found, check.Check(records)...)
		versions += len(records.Versions)
	}

	return found, versions
}
