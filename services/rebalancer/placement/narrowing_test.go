package placement

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestNarrow(t *testing.T) {
	many := map[string]bool{}
	for i := range 100 {
		many[fmt.Sprintf("left-%03d", i)] = false
		many[fmt.Sprintf("covered-%03d", i)] = true
	}

	for name, tc := range map[string]struct {
		before  Narrowing
		covered map[string]bool
		want    Narrowing
		fields  string
	}{
		"nothing is known":        {want: Narrowing{}},
		"all but the system's":    {covered: map[string]bool{"a": true, "b": true, "kube-system": false}, want: Narrowing{Except: []string{"kube-system"}}, fields: "metadata.namespace!=kube-system"},
		"one of many":             {covered: map[string]bool{"a": true, "b": false, "c": false}, want: Narrowing{Single: true, Only: []string{"a"}}},
		"none":                    {covered: map[string]bool{"b": false}, want: Narrowing{Single: true}},
		"another one is left":     {before: Narrowing{Except: []string{"b"}}, covered: map[string]bool{"a": true, "d": true, "b": false, "c": false}, want: Narrowing{Except: []string{"b"}}, fields: "metadata.namespace!=b"},
		"one that was left":       {before: Narrowing{Except: []string{"b"}}, covered: map[string]bool{"a": true, "b": true, "c": false}, want: Narrowing{Except: []string{"c"}}, fields: "metadata.namespace!=c"},
		"one that is no more":     {before: Narrowing{Except: []string{"b", "x"}}, covered: map[string]bool{"a": true, "b": false}, want: Narrowing{Except: []string{"b", "x"}}, fields: "metadata.namespace!=b,metadata.namespace!=x"},
		"one more that it covers": {before: Narrowing{Single: true, Only: []string{"a"}}, covered: map[string]bool{"a": true, "b": true, "c": false, "d": false, "e": false}, want: Narrowing{Single: true, Only: []string{"a", "b"}}},
	} {
		t.Run(name, func(t *testing.T) {
			got := Narrow(tc.before, tc.covered)
			require.True(t, tc.want.Equal(got), "%+v", got)
			require.Equal(t, tc.fields, got.Fields())
		})
	}

	require.Len(t, Narrow(Narrowing{}, many).Except, fewLeftOut, "a selector should stay short")
}
