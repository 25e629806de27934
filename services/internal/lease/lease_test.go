package lease_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/services/internal/lease"
)

var (
	monday  = metav1.NewMicroTime(time.Date(2030, 1, 7, 9, 0, 0, 123456000, time.UTC))
	tuesday = metav1.NewMicroTime(monday.Add(24 * time.Hour))
)

func held() *coordinationv1.Lease {
	return &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: shard, ResourceVersion: "7",
			Labels: map[string]string{"a": "b"}},
		Spec: coordinationv1.LeaseSpec{
			HolderIdentity:       new(shard),
			LeaseDurationSeconds: new(int32(20)),
			AcquireTime:          &monday,
			RenewTime:            &tuesday,
			LeaseTransitions:     new(int32(3)),
		},
	}
}

func TestRecordOf(t *testing.T) {
	require.Equal(t, lease.Record{
		Holder: shard, Duration: 20 * time.Second, AcquireTime: monday.Time, RenewTime: tuesday.Time, Transitions: 3,
	}, lease.RecordOf(held()))
	require.Equal(t, lease.Record{Duration: lease.DefaultDuration}, lease.RecordOf(&coordinationv1.Lease{}))

	for seconds, want := range map[int32]time.Duration{
		-1 << 31: lease.DefaultDuration, -1: lease.DefaultDuration, 0: lease.DefaultDuration, 1: time.Second,
		86400: lease.MaxDuration, 86401: lease.MaxDuration, 1<<31 - 1: lease.MaxDuration,
	} {
		l := held()
		l.Spec.LeaseDurationSeconds = &seconds
		require.Equal(t, want, lease.RecordOf(l).Duration, "%d s", seconds)
	}
}

// Everyone who renews the Lease without the annotation makes it void, even under the same name.
func TestPodUID(t *testing.T) {
	l := held()
	require.Empty(t, lease.PodUID(l))

	say := func(uid types.UID, at time.Time) {
		metav1.SetMetaDataAnnotation(&l.ObjectMeta, contract.AnnotationPodUID, contract.PodUIDValue(uid, at))
	}
	say("uid-1", tuesday.Time)
	require.EqualValues(t, "uid-1", lease.PodUID(l))
	require.EqualValues(t, "uid-1", lease.PodUID(lease.Slim(l)))

	renewed := l.DeepCopy()
	renewed.Spec.RenewTime = new(metav1.NewMicroTime(tuesday.Add(time.Microsecond)))
	require.Empty(t, lease.PodUID(renewed))
	renewed.Spec.RenewTime = nil
	require.Empty(t, lease.PodUID(renewed))

	say(types.UID(strings.Repeat("u", 65)), tuesday.Time)
	require.Empty(t, lease.PodUID(l))

	l.Annotations[contract.AnnotationPodUID] = "uid-1"
	require.Empty(t, lease.PodUID(l))
}

func TestShardLabelOfALease(t *testing.T) {
	l := &coordinationv1.Lease{}
	require.Empty(t, lease.ShardLabel(l))

	metav1.SetMetaDataAnnotation(&l.ObjectMeta, contract.AnnotationShardLabel, "example.com/shard")
	require.Equal(t, "example.com/shard", lease.ShardLabel(l))
	require.Equal(t, "example.com/shard", lease.ShardLabel(lease.Slim(l)))

	// No key is longer than this.
	l.Annotations[contract.AnnotationShardLabel] = strings.Repeat("x", 100_000)
	require.Len(t, lease.ShardLabel(l), 253+1+63)
	require.Equal(t, lease.ShardLabel(l), lease.ShardLabel(lease.Slim(l)))
}

// Memory does not grow with what Leases say.
func TestSlimIsSmall(t *testing.T) {
	l := held()
	for _, annotation := range []string{
		contract.AnnotationPod, contract.AnnotationPodUID, contract.AnnotationStopping, contract.AnnotationHoldOff,
		contract.AnnotationShardLabel, contract.AnnotationSlots, contract.AnnotationNamespaces, "another",
	} {
		metav1.SetMetaDataAnnotation(&l.ObjectMeta, annotation, strings.Repeat("x", 100_000))
	}

	l.Spec.HolderIdentity = new(strings.Repeat("x", 100_000))
	require.Less(t, lease.Slim(l).Size(), 1000)
}
