package contract

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/util/validation"
)

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
