package scenario

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/tools/testkit/check"
)

// keys keeps the objects of a namespace together while a shard joins.
func (s *Story) keys(ctx context.Context) error {
	err := s.remake(ctx, func(spec *v1alpha1.ClusterRingSpec) {
		for i := range spec.Resources {
			spec.Resources[i].Key = &v1alpha1.ObjectKey{Type: v1alpha1.KeyNamespace}
		}
	})
	if err != nil {
		return err
	}

	if _, err := s.start(ctx, s.Shards); err != nil {
		return err
	}

	if err := s.websites(ctx); err != nil {
		return err
	}

	for _, when := range []string{"", "after another shard has joined, "} {
		if when != "" {
			if _, err := s.start(ctx, 1); err != nil {
				return err
			}

			if err := inOrder(ctx, s.awaitReady, s.awaitInPlace); err != nil {
				return err
			}
		}

		at, err := s.together()
		if err != nil {
			return err
		}
		s.ok("%sthe %d Websites of %d namespaces are at %d shards, those of each namespace at one", when, s.created, namespaces,
			len(slices.Compact(slices.Sorted(maps.Values(at)))))
	}

	return s.tidy(ctx)
}

// together returns the shard of each namespace; an error if its objects are at several.
func (s *Story) together() (map[string]string, error) {
	at := map[string]string{}

	var apart []string

	for _, v := range s.objects().Of(check.Website) {
		if shard, known := at[v.Namespace]; known && shard != v.Shard {
			apart = append(apart, fmt.Sprintf("namespace %s has objects at %s and at %s", v.Namespace, shard, v.Shard))
		}

		at[v.Namespace] = v.Shard
	}

	return at, wrong("objects of one namespace are apart", apart)
}
