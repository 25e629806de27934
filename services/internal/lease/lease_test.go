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

func TestRecordEqual(t *testing.T) {
	record := lease.RecordOf(held())
	elsewhere := record
	elsewhere.RenewTime = record.RenewTime.In(time.FixedZone("elsewhere", 3600))
	require.True(t, record.Equal(elsewhere))

	for field, change := range map[string]func(*lease.Record){
		"holder":      func(r *lease.Record) { r.Holder = "x" },
		"duration":    func(r *lease.Record) { r.Duration++ },
		"acquireTime": func(r *lease.Record) { r.AcquireTime = r.AcquireTime.Add(time.Microsecond) },
		"renewTime":   func(r *lease.Record) { r.RenewTime = r.RenewTime.Add(-time.Microsecond) },
		"transitions": func(r *lease.Record) { r.Transitions++ },
	} {
		changed := record
		change(&changed)
		require.False(t, record.Equal(changed), "%s changed", field)
	}
}

func TestHeldBy(t *testing.T) {
	require.True(t, lease.Record{Holder: "a"}.HeldBy("a"))
	require.False(t, lease.Record{Holder: "a"}.HeldBy("b"))
	require.False(t, lease.Record{}.HeldBy(""), "nobody is no shard")

	taker := contract.LeaseControllerIdentity
	require.False(t, lease.Record{Holder: taker}.HeldBy(taker),
		"a Lease that was taken would look alive if it had the taker's name")
}

func TestAcquired(t *testing.T) {
	before := held()
	now := time.Date(2031, 1, 1, 0, 0, 0, 0, time.UTC)
	taken := lease.Acquired(before, 20*time.Second, now)
	require.Equal(t, held(), before, "the argument was changed")

	at := metav1.NewMicroTime(now)
	want := held()
	want.Spec = coordinationv1.LeaseSpec{
		HolderIdentity:       new("shardlease-controller"),
		LeaseDurationSeconds: new(int32(40)),
		AcquireTime:          &at,
		RenewTime:            &at,
		LeaseTransitions:     new(int32(4)),
	}
	require.Equal(t, want, taken, "everything else stays, above all the resourceVersion")
}

func TestTakenFor(t *testing.T) {
	for _, tc := range []struct {
		holder         string
		d, own, expect time.Duration
	}{
		{shard, 40 * time.Second, 20 * time.Second, 40 * time.Second},
		{"", time.Second, 0, lease.DefaultDuration},
		{"", time.Second, 10 * time.Second, 10 * time.Second},
		{"", time.Second, time.Hour, lease.DefaultDuration},
	} {
		s := lease.Snapshot{Shard: shard, Record: lease.Record{Holder: tc.holder, Duration: tc.d}}
		require.Equal(t, tc.expect, lease.TakenFor(s, tc.own), "%+v", tc)
	}
}

func TestRenewedChangesNothingElse(t *testing.T) {
	before := lease.Acquired(held(), 20*time.Second, monday.Time)
	kept := lease.Renewed(before, monday.Add(time.Minute))
	require.False(t, lease.RecordOf(before).Equal(lease.RecordOf(kept)), "nobody would notice")
	kept.Spec.RenewTime = before.Spec.RenewTime
	require.Equal(t, before, kept)
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
