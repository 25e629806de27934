package contract

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
)

func TestRingSuffixVectors(t *testing.T) {
	for ring, want := range map[string]string{
		"example":                            "clusterring-50d858e0-example",
		"my-clusterring":                     "clusterring-f959313c-my-clusterring",
		"kube-controller-manager-deployment": "clusterring-9b5084f8-kube-controller-manager-deployment",
	} {
		require.Equal(t, want, RingSuffix(ring))
		require.Equal(t, "shard.alpha.sharding.timebertt.dev/"+want, ShardLabel(ring))
		require.Equal(t, "drain.alpha.sharding.timebertt.dev/"+want, DrainLabel(ring))
		require.Equal(t, "sharding-"+want, WebhookConfigurationName(ring))
		require.Equal(t, "/webhooks/sharder/clusterring/"+ring, WebhookPath(ring))
	}
}

func TestRingSuffixIsCutToALabelName(t *testing.T) {
	for _, tc := range []struct{ name, ring, wantEnd string }{
		{"longest name", strings.Repeat("a", 63), "-" + strings.Repeat("a", 42)},
		{"cut at a dash", strings.Repeat("a", 41) + "-" + strings.Repeat("b", 21), "-" + strings.Repeat("a", 41)},
		{"cut at dots", strings.Repeat("a", 40) + ".." + strings.Repeat("b", 21), "-" + strings.Repeat("a", 40)},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := RingSuffix(tc.ring)
			require.LessOrEqual(t, len(got), 63)
			require.Equal(t, "clusterring-", got[:12])
			require.Equal(t, tc.wantEnd, got[20:])
		})
	}
}

// The API stores microseconds, in UTC.
func TestPodUIDValue(t *testing.T) {
	at := time.Date(2030, 1, 7, 10, 0, 0, 123456789, time.FixedZone("elsewhere", 3600))
	require.Equal(t, "uid/2030-01-07T09:00:00.123456Z", PodUIDValue("uid", at))
}

// What was written with another renewTime is that of a predecessor.
func TestAnnotationsOfARenewal(t *testing.T) {
	at := time.Date(2030, 1, 7, 10, 0, 0, 0, time.UTC)
	annotations := map[string]string{AnnotationPodUID: PodUIDValue("uid", at), AnnotationOffered: OfferValue(at)}

	require.Equal(t, types.UID("uid"), PodUID(annotations, at))
	require.True(t, IsOffered(annotations, at))
	require.Empty(t, PodUID(annotations, at.Add(time.Microsecond)))
	require.False(t, IsOffered(annotations, at.Add(time.Microsecond)))
	require.Empty(t, PodUID(map[string]string{AnnotationPodUID: "uid"}, at))
	require.False(t, IsOffered(nil, time.Time{}))
}

// A process that does not know the annotation leaves it as it is when it renews the Lease.
func TestNamespacesOfAShard(t *testing.T) {
	at := time.Date(2030, 1, 7, 10, 0, 0, 0, time.UTC)
	value := NamespacesValue([]string{"b", "a", "b"}, at)
	require.Equal(t, "a,b/2030-01-07T10:00:00.000000Z", value)

	annotations := map[string]string{AnnotationNamespaces: value}
	require.Equal(t, "a,b", Namespaces(annotations, at))
	require.Empty(t, Namespaces(annotations, at.Add(time.Microsecond)))
	require.Empty(t, Namespaces(annotations, time.Time{}))
	require.Empty(t, Namespaces(nil, at))

	require.Empty(t, NamespacesValue(nil, at))
	require.NotEmpty(t, NamespacesValue([]string{strings.Repeat("a", 4096)}, at))
	require.Empty(t, NamespacesValue([]string{strings.Repeat("a", 4097)}, at), "nobody would read it")
	require.Empty(t, Namespaces(map[string]string{AnnotationNamespaces: strings.Repeat("a", 4097) + "/" +
		OfferValue(at)}, at))
}

// A time far from now counts for nothing, no matter whose clock is wrong.
func TestWaitingForASlot(t *testing.T) {
	now := time.Date(2030, 1, 7, 10, 0, 0, 0, time.UTC)

	for ago, want := range map[time.Duration]bool{
		0: true, StandbyDuration - 1: true, StandbyDuration: false, 1 - StandbyDuration: true, -StandbyDuration: false,
		-time.Hour: false,
	} {
		require.Equal(t, want, IsWaiting(new(metav1.NewMicroTime(now.Add(-ago))), now), ago)
	}

	require.False(t, IsWaiting(nil, now))
}

func TestSlotsThatAPodWaitsFor(t *testing.T) {
	for value, slots := range map[string][]string{"0..2": {"r-0", "r-1", "r-2"}, "blue,green": {"blue", "green"},
		"r-1": {"r-1"}, "": nil} {
		require.Equal(t, value, SlotsValue("r", slots))

		annotations := map[string]string{AnnotationSlots: value}
		for _, slot := range []string{"r-0", "r-1", "r-2", "r-3", "r-02", "r--1", "r-", "0", "blue", "green", "other"} {
			require.Equal(t, slices.Contains(slots, slot), WaitsFor(annotations, "r", slot), "%q, %q", value, slot)
		}
	}

	require.True(t, WaitsFor(nil, "r", "r-7"), "a process that does not say it")
	require.True(t, WaitsFor(map[string]string{AnnotationSlots: "0..x"}, "r", "r-7"))
}

func TestHandover(t *testing.T) {
	pods, jobs := schema.GroupResource{Resource: "pods"}, schema.GroupResource{Group: "batch", Resource: "jobs"}

	h := Handover{}
	require.Empty(t, h.String())

	h.Reached(pods, "9")
	h.Reached(pods, "10")
	h.Reached(pods, "8")
	h.Reached(jobs, "opaque")
	h.Reached(jobs, "other")
	require.Equal(t, Handover{pods: "10", jobs: "other"}, h)
	require.JSONEq(t, `{"pods":"10","jobs.batch":"other"}`, h.String())

	again, err := ParseHandover(h.String())
	require.NoError(t, err)
	require.Equal(t, h, again)

	none, err := ParseHandover("")
	require.NoError(t, err)
	require.Empty(t, none)

	for _, wrong := range []string{"x", "[]", `{"pods":1}`, `{"pods":""}`, `{"":"1"}`} {
		_, err := ParseHandover(wrong)
		require.ErrorIs(t, err, errHandover, wrong)
	}
}

// For any name of a ring, the API server accepts its labels and names, and they identify the ring.
func FuzzNamesOfARing(f *testing.F) {
	for _, ring := range []string{
		"example", "my-clusterring", "", "a", "a.b.c", "Ring_1", "r\x00ng", "\xff\xfe",
		strings.Repeat("a", 41) + "-" + strings.Repeat("b", 21), strings.Repeat("a", 40) + "-.-.-" + strings.Repeat("b", 18),
		strings.Repeat("x", 300),
	} {
		f.Add([]byte(ring))
	}
	f.Fuzz(func(t *testing.T, seed []byte) {
		ring, ok := ringName(seed)
		if !ok {
			t.Skip("no name of a ring")
		}

		suffix := RingSuffix(ring)

		for _, label := range []string{ShardLabel(ring), DrainLabel(ring)} {
			require.Empty(t, validation.IsQualifiedName(label), label)
			require.True(t, strings.HasSuffix(label, "/"+suffix))
		}
		require.Empty(t, validation.IsValidLabelValue(ring))
		require.Empty(t, validation.IsDNS1123Subdomain(WebhookConfigurationName(ring)))
		require.True(t, strings.HasSuffix(WebhookPath(ring), "/"+ring))

		// The digits distinguish names that were cut.
		require.NotEqual(t, suffix, RingSuffix(ring+"-2"))
	})
}

// ringName derives a valid ring name from most seeds, with separators where the suffix may be cut.
func ringName(seed []byte) (string, bool) {
	const alphabet = "abcdefghijklmnopqrstuvwxyz0123456789--..."

	name := make([]byte, min(len(seed), validation.LabelValueMaxLength))
	for i := range name {
		name[i] = alphabet[int(seed[i])%len(alphabet)]
	}

	ring := strings.Trim(strings.NewReplacer("..", ".", "-.", "-", ".-", ".").Replace(string(name)), "-.")

	return ring, len(validation.IsDNS1123Subdomain(ring)) == 0
}
