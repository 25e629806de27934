package scenario

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/tools/demo/internal/localsystem"
	examplev1alpha1 "github.com/clusterring/clusterring/tools/example/api/v1alpha1"
	"github.com/clusterring/clusterring/tools/testkit/check"
)

// Mode is one of the ways to share the objects of a controller, as docs/modes.md lists them, with the step that shows it. The steps do not depend
// on each other.
type Mode struct {
	// Name is what a user selects the mode by.
	Name string
	Step
}

// Modes returns the modes, except the one that [Story.Steps] is about.
func (s *Story) Modes() []Mode {
	sharding := []string{localsystem.LeaseMonitor, localsystem.Rebalancer}

	return []Mode{
		{"slots", Step{"names that outlive Pods: a Pod is replaced, nothing moves", sharding, s.slots}},
		{"named", Step{"named shards, and a label of one's own", sharding, s.named}},
		{"standby", Step{"one shard is active, two stand by", sharding, s.standby}},
		{"keys", Step{"objects of a namespace belong together", sharding, s.keys}},
		{"embedded", Step{"shards shard by themselves, without services", sharding, s.alone}},
		{"guide", Step{"the API of kubernetes-controller-sharding", sharding, s.guide}},
		{"jobset", Step{"JobSet, whose code knows nothing of shards", sharding, s.jobset}},
		{"trust-manager", Step{"trust-manager, whose reconciler is hidden", sharding, s.trustManager}},
		{"client-go", Step{"a controller without controller-runtime", sharding, s.clientGo}},
	}
}

// alone is the step embedded by itself. The ring goes while its sharder runs.
func (s *Story) alone(ctx context.Context) error {
	if err := inOrder(ctx, s.withoutRing, s.embedded); err != nil {
		return err
	}

	return inOrder(ctx, s.withoutRing, s.tidy)
}

// ModeNames returns the names of the modes.
func (s *Story) ModeNames() []string {
	var names []string
	for _, mode := range s.Modes() {
		names = append(names, mode.Name)
	}

	return names
}

// ModesNamed returns the modes with these names in their order, and all modes without names. The error lists the names that exist.
func (s *Story) ModesNamed(names []string) ([]Mode, error) {
	all, known := s.Modes(), s.ModeNames()
	if len(names) == 0 {
		return all, nil
	}

	for _, name := range names {
		if !slices.Contains(known, name) {
			return nil, fmt.Errorf("there is no mode %q: the modes are %s", name, strings.Join(known, ", "))
		}
	}

	return slices.DeleteFunc(all, func(mode Mode) bool { return !slices.Contains(names, mode.Name) }), nil
}

// remake deletes the ring and creates it again, with the spec that deploy/example has and a change.
func (s *Story) remake(ctx context.Context, change func(*v1alpha1.ClusterRingSpec)) error {
	if err := s.withoutRing(ctx); err != nil {
		return err
	}

	ring := &v1alpha1.ClusterRing{ObjectMeta: metav1.ObjectMeta{Name: localsystem.Ring}}
	s.spec.DeepCopyInto(&ring.Spec)
	change(&ring.Spec)

	if err := s.client.Create(ctx, ring); err != nil {
		return fmt.Errorf("create the ClusterRing: %w", err)
	}

	return nil
}

// withoutRing deletes the ring if it exists.
func (s *Story) withoutRing(ctx context.Context) error {
	ring, err := s.ring(ctx)
	if client.IgnoreNotFound(err) != nil {
		return err
	}

	if err == nil {
		if s.spec == nil {
			s.spec = ring.Spec.DeepCopy()
		}

		return s.deleteRing(ctx)
	}

	return nil
}

// createAll creates the Websites of a mode.
func (s *Story) createAll(ctx context.Context) error {
	if err := s.createNamespaces(ctx); err != nil {
		return err
	}

	_, err := s.createWebsites(ctx, s.Objects)

	return err
}

// websites creates the Websites of a mode and waits until each is at an available shard, with its ConfigMap.
func (s *Story) websites(ctx context.Context) error {
	return inOrder(ctx, s.createAll, s.awaitInPlace, s.awaitReady)
}

// tidy deletes the objects of a mode, stops its shards, and checks what they have recorded.
func (s *Story) tidy(ctx context.Context) error {
	all := []string{own}
	for n := range namespaces {
		all = append(all, namespaceOf(n))
	}

	for _, namespace := range all {
		if err := s.client.DeleteAllOf(ctx, &examplev1alpha1.Website{}, client.InNamespace(namespace)); err != nil {
			return fmt.Errorf("delete the Websites: %w", err)
		}
	}

	if err := s.deletePages(ctx); err != nil {
		return err
	}

	err := s.await(ctx, func(context.Context) (string, error) {
		left := s.objects()

		return unless(len(left) == 0, fmt.Sprintf("%d objects are still there", len(left))), nil
	})
	if err != nil {
		return err
	}

	s.created = 0

	var names []string

	for _, shard := range s.running() {
		shard.lost = stopped
		names = append(names, shard.Name)
	}

	if len(names) == 0 {
		return nil
	}

	if err := s.system.End(names...); err != nil {
		return fmt.Errorf("stop the shards: %w", err)
	}

	return s.verify(ctx)
}

// deletePages deletes the ConfigMaps of deleted Websites. The garbage collector looks for new kinds of owners only every 30 s.
func (s *Story) deletePages(ctx context.Context) error {
	var pages corev1.ConfigMapList
	if err := s.client.List(ctx, &pages); err != nil {
		return fmt.Errorf("list the ConfigMaps: %w", err)
	}

	pages.Items = slices.DeleteFunc(pages.Items, func(page corev1.ConfigMap) bool { return metav1.GetControllerOfNoCopy(&page) == nil })

	return atOnce(ctx, len(pages.Items), func(ctx context.Context, i int) error {
		if err := client.IgnoreNotFound(s.client.Delete(ctx, &pages.Items[i])); err != nil {
			return fmt.Errorf("delete a ConfigMap: %w", err)
		}

		return nil
	})
}

// unmoved checks that no label of an object has changed since the step began to count.
func (s *Story) unmoved(since int) error {
	before := map[string]check.Version{}

	var moved []string

	for i, v := range s.versions() {
		last, known := before[v.UID]
		if before[v.UID] = v; i < since || !known || v.Deleted || v.Kind == check.Lease {
			continue
		}

		if last.Shard != v.Shard || last.Draining != v.Draining {
			moved = append(moved, v.String())
		}
	}

	return wrong("labels of objects have changed", moved)
}

// onlyAt returns the shard that has all Websites; an error if there is none.
func (s *Story) onlyAt() (string, error) {
	has := s.objects().Of(check.Website).Count(nil)
	for shard := range has {
		if len(has) == 1 && shard != "" {
			return shard, nil
		}
	}

	return "", fmt.Errorf("not one shard has all Websites, but: %v", has)
}
