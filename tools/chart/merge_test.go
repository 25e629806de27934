package chart

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestVariantsMustNotChangeTheSameLine(t *testing.T) {
	_, err := merge([]string{"a\n", "b\n"}, []variant{{"x", []string{"a\n"}}, {"y", []string{"a\n", "c\n"}}})
	require.EqualError(t, err, "x and y change the same line: b\n")
}
