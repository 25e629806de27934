package chart

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func split(text string) []string { return slices.Collect(strings.Lines(text)) }

// TestMergeIsBaseAndVariants: without its condition, a merged text is the base, and with it, the variant.
func TestMergeIsBaseAndVariants(t *testing.T) {
	merged, err := merge(split("a\nb\nc\n"), []variant{{"x", split("a\nB\nc\nd\n")}, {"y", split("a\nb\n0\nc\ne\n")},
		{"z", split("b\nc\n")}})
	require.NoError(t, err)
	require.Equal(t, `{{- if not z }}
a
{{- end }}
{{- if not x }}
b
{{- end }}
{{- if x }}
B
{{- end }}
{{- if y }}
0
{{- end }}
c
{{- if x }}
d
{{- end }}
{{- if y }}
e
{{- end }}
`, merged)
}

func TestVariantsMustNotChangeTheSameLine(t *testing.T) {
	_, err := merge(split("a\nb\n"), []variant{{"x", split("a\n")}, {"y", split("a\nc\n")}})
	require.EqualError(t, err, "x and y change the same line: b\n")
}
