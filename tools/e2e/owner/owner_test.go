package owner_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/clusterring/clusterring/tools/e2e/owner"
)

func TestProblems(t *testing.T) {
	site := owner.Object{Kind: "Website", Name: "x", UID: "1", Shard: "a", Done: true}
	page := owner.Object{Kind: "ConfigMap", Name: "x", UID: "2", Owner: "1", Shard: "a"}
	change := func(o owner.Object, by func(*owner.Object)) owner.Object {
		by(&o)
		return o
	}
	for name, test := range map[string]struct {
		objects []owner.Object
		want    []string
	}{
		"nothing":  {},
		"complete": {objects: []owner.Object{site, page}},
		"no shard": {
			[]owner.Object{change(site, func(o *owner.Object) { o.Shard = "" }), change(page, func(o *owner.Object) { o.Shard = "" })},
			[]string{`Website x is at shard "", which is not available`, `ConfigMap x is at shard "", which is not available`},
		},
		"a shard that is gone": {
			[]owner.Object{change(site, func(o *owner.Object) { o.Shard = "c" }), change(page, func(o *owner.Object) { o.Shard = "c" })},
			[]string{`Website x is at shard "c", which is not available`, `ConfigMap x is at shard "c", which is not available`},
		},
		"draining": {
			[]owner.Object{change(site, func(o *owner.Object) { o.Draining = true }), page},
			[]string{"Website x is still to be given up"},
		},
		"apart": {
			[]owner.Object{site, change(page, func(o *owner.Object) { o.Shard = "b" })},
			[]string{`ConfigMap x is at shard "b", its owner at "a"`},
		},
		"not done": {
			[]owner.Object{change(site, func(o *owner.Object) { o.Done = false }), page},
			[]string{"Website x does not say that the work on it is done"},
		},
		"no child":              {[]owner.Object{site}, []string{"Website x has no child"}},
		"the child comes first": {objects: []owner.Object{page, site}},
		"being collected":       {objects: []owner.Object{page}},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, test.want, owner.Problems(test.objects, []string{"a", "b"}))
		})
	}
}
