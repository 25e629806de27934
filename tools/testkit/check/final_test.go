package check_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/clusterring/clusterring/tools/testkit/check"
)

func TestProblems(t *testing.T) {
	site := check.Version{Kind: check.Website, Name: "x", UID: "1", Shard: "a", Complete: true}
	page := check.Version{Kind: check.ConfigMap, Name: "x", UID: "2", Owner: "1", Shard: "a"}

	change := func(v check.Version, by func(*check.Version)) check.Version {
		by(&v)
		return v
	}
	for name, test := range map[string]struct {
		objects []check.Version
		want    []string
	}{
		"nothing":  {},
		"complete": {objects: []check.Version{site, page}},
		"no shard": {
			[]check.Version{change(site, func(v *check.Version) { v.Shard = "" }), change(page, func(v *check.Version) { v.Shard = "" })},
			[]string{`Website x is at shard "", which is not available`, `ConfigMap x is at shard "", which is not available`},
		},
		"a shard that is gone": {
			[]check.Version{change(site, func(v *check.Version) { v.Shard = "c" }), change(page, func(v *check.Version) { v.Shard = "c" })},
			[]string{`Website x is at shard "c", which is not available`, `ConfigMap x is at shard "c", which is not available`},
		},
		"draining": {
			[]check.Version{change(site, func(v *check.Version) { v.Draining = true }), page},
			[]string{"Website x is still draining"},
		},
		"apart": {
			[]check.Version{site, change(page, func(v *check.Version) { v.Shard = "b" })},
			[]string{`ConfigMap x is at b, its owner at a`},
		},
		"not done": {
			[]check.Version{change(site, func(v *check.Version) { v.Complete = false }), page},
			[]string{"Website x does not report that the work on it is done"},
		},
		"no child":              {[]check.Version{site}, []string{"Website x has no ConfigMap"}},
		"the child comes first": {objects: []check.Version{page, site}},
		"being collected":       {objects: []check.Version{page}},
	} {
		t.Run(name, func(t *testing.T) {
			var texts []string
			for _, v := range check.Final(check.State{Versions: test.objects, Available: []string{"a", "b"}}) {
				texts = append(texts, v.Text)
			}
			require.Equal(t, test.want, texts)
		})
	}
}
