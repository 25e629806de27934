package scenario

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/tools/demo/internal/localsystem"
	"github.com/clusterring/clusterring/tools/testkit/history"
	"github.com/clusterring/clusterring/tools/testkit/process"
	"github.com/clusterring/clusterring/tools/testkit/record"
)

// program is a controller of somebody else. Its name is that of its binary, of its ring, and of the namespace of its shards.
type program struct {
	name      string
	manifests []string
	args      []string
	// objects is how many objects there are, object returns one.
	objects int
	object  func(name string) *unstructured.Unstructured
	// children are the kinds of which each object controls one at the same shard.
	children []schema.GroupVersionKind
	// done reports whether the program has done its work on an object.
	done func(*unstructured.Unstructured) bool
}

// share runs a program as two shards. A third one joins, one stops, and one is killed.
func (s *Story) share(ctx context.Context, p *program) error {
	if err := s.withoutRing(ctx); err != nil {
		return err
	}

	if err := s.system.Plane.Install(ctx, p.manifests...); err != nil {
		return fmt.Errorf("install %s: %w", p.name, err)
	}

	since := record.Now()
	shards := []string{p.name + "-a", p.name + "-b", p.name + "-c"}

	if err := s.startProgram(ctx, p, shards[:2]...); err != nil {
		return err
	}

	err := atOnce(ctx, p.objects, func(ctx context.Context, i int) error {
		object := p.object(fmt.Sprintf("object-%d", i))
		if err := s.client.Create(ctx, object); err != nil {
			return fmt.Errorf("create a %s: %w", object.GetKind(), err)
		}

		return nil
	})
	if err != nil {
		return err
	}

	if err := s.awaitProgram(ctx, p, shards[:2]...); err != nil {
		return err
	}
	s.ok("%d objects of kind %s have a shard, and what they control is at the same shard", p.objects, p.object("").GetKind())

	second := s.system.Process(shards[1])

	for _, change := range []struct {
		do    func() error
		left  []string // the shards that have all objects afterwards
		shows string
	}{
		{func() error { return s.startProgram(ctx, p, shards[2]) }, shards, "a third shard has its part %s after its start"},
		{func() error { return s.system.End(shards[0]) }, shards[1:], "a shard was told to stop: others have its objects after %s"},
		{second.Kill, shards[2:], "a shard was killed: another has its objects after %s"},
	} {
		begin := time.Now()

		if err := change.do(); err != nil {
			return err
		}

		if err := s.awaitProgram(ctx, p, change.left...); err != nil {
			return err
		}
		s.ok(change.shows, seconds(begin))
	}

	if err := s.endProgram(ctx, p, shards[2]); err != nil {
		return err
	}

	return s.judgeProgram(since, second, shards)
}

// startProgram starts shards.
func (s *Story) startProgram(ctx context.Context, p *program, names ...string) error {
	probes, err := process.FreePorts(len(names))
	if err != nil {
		return fmt.Errorf("find ports for the shards: %w", err)
	}

	for i, name := range names {
		kubeconfig, err := s.system.Plane.PodKubeconfig(ctx, p.name, "shard", name)
		if err != nil {
			return fmt.Errorf("make a kubeconfig for %s: %w", name, err)
		}

		spec := process.Spec{Name: name, Path: filepath.Join(s.system.BinDir, p.name), Args: slices.Concat([]string{
			"--kubeconfig=" + kubeconfig, "--clusterring=" + p.name, "--lease-namespace=" + p.name, "--shard=" + name,
			"--history=" + s.system.HistoryFile(name), "--lease-duration=" + localsystem.LeaseDuration.String(), "--renew-deadline=5s",
			"--retry-period=800ms", "--health-probe-bind-address=" + probes[i],
		}, p.args)}
		if err := s.system.Launch(ctx, spec, process.Readiness{URL: "http://" + probes[i] + "/readyz"}); err != nil {
			return err
		}
	}

	return nil
}

// awaitProgram waits until exactly these shards have objects, all work is done, and each object has one child of each kind at its shard.
func (s *Story) awaitProgram(ctx context.Context, p *program, shards ...string) error {
	shardLabel, drainLabel := contract.ShardLabel(p.name), contract.DrainLabel(p.name)

	return s.await(ctx, func(ctx context.Context) (string, error) {
		objects, err := s.listed(ctx, p.object("").GroupVersionKind())
		if err != nil {
			return "", err
		}

		children := make([]map[types.UID][]string, len(p.children))
		for i, kind := range p.children {
			children[i] = map[types.UID][]string{}

			of, err := s.listed(ctx, kind)
			if err != nil {
				return "", err
			}

			for j := range of {
				if owner := metav1.GetControllerOfNoCopy(&of[j]); owner != nil {
					children[i][owner.UID] = append(children[i][owner.UID], of[j].GetLabels()[shardLabel])
				}
			}
		}

		missing, having := 0, map[string]bool{}

		for i := range objects {
			o := &objects[i]
			if o.GetNamespace() != p.object("").GetNamespace() || !strings.HasPrefix(o.GetName(), "object-") {
				continue // of another program, or of the cluster
			}

			shard, ready := o.GetLabels()[shardLabel], p.done == nil || p.done(o)
			having[shard] = true

			for _, at := range children {
				ready = ready && slices.Equal(at[o.GetUID()], []string{shard})
			}

			if !ready || o.GetLabels()[drainLabel] != "" || !slices.Contains(shards, shard) {
				missing++
			}
		}

		if missing == 0 && len(having) != len(shards) {
			return fmt.Sprintf("%d shards have objects, not %d", len(having), len(shards)), nil
		}

		return unless(missing == 0, fmt.Sprintf("%d objects or what they control are not in place", missing)), nil
	})
}

// listed returns all objects of a kind.
func (s *Story) listed(ctx context.Context, kind schema.GroupVersionKind) ([]unstructured.Unstructured, error) {
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(kind)

	if err := s.client.List(ctx, list); err != nil && !meta.IsNoMatchError(err) {
		return nil, fmt.Errorf("list objects of kind %s: %w", kind.Kind, err)
	}

	return list.Items, nil
}

// endProgram stops the shards and deletes the ring.
func (s *Story) endProgram(ctx context.Context, p *program, shards ...string) error {
	if err := s.system.End(shards...); err != nil {
		return fmt.Errorf("stop the shards: %w", err)
	}

	ring := &v1alpha1.ClusterRing{ObjectMeta: metav1.ObjectMeta{Name: p.name}}
	if err := s.client.Delete(ctx, ring); err != nil {
		return fmt.Errorf("delete the ring of %s: %w", p.name, err)
	}

	return s.awaitGone(ctx, ring, func() string { return "ring " + p.name + " is still there" })
}

// anyway are parts of errors that a controller also returns without shards: when it is stopped, and when its cache is behind its own writes.
var anyway = []string{"context canceled", "the object has been modified"}

// spansSince returns the reconciles that processes have begun and recorded since a point in time.
func (s *Story) spansSince(since time.Duration, processes ...string) ([]history.Span, error) {
	var files []string
	for _, name := range processes {
		files = append(files, s.system.HistoryFile(name))
	}

	reader, err := record.Histories(files...)
	if err != nil {
		return nil, fmt.Errorf("read the histories of %v: %w", processes, err)
	}

	return slices.DeleteFunc(reader.Spans(), func(span history.Span) bool { return span.Start < since }), nil
}

// judgeProgram judges what the shards have recorded.
func (s *Story) judgeProgram(since time.Duration, killed *process.Process, shards []string) error {
	spans, err := s.spansSince(since, shards...)
	if err != nil {
		return err
	}

	ended := map[int]time.Duration{killed.PID(): record.At(killed.EndedAt())}
	overlaps := history.Overlaps(history.Close(spans, ended, record.Now()), func(span history.Span) string { return span.UID })

	if err := wrong("two shards worked on one object at the same time", overlaps); err != nil {
		return err
	}

	var failed []string

	for _, span := range spans {
		if span.Error != "" && !slices.ContainsFunc(anyway, func(part string) bool { return strings.Contains(span.Error, part) }) {
			failed = append(failed, span.String()+": "+span.Error)
		}
	}

	if err := wrong("reconciles failed that do not without shards", failed); err != nil {
		return err
	}
	s.ok("%d reconciles recorded: no two shards worked on one object at the same time, none failed because of the shards", len(spans))

	return nil
}

// object returns a function that makes objects.
func object(apiVersion, kind, namespace string, spec map[string]any) func(string) *unstructured.Unstructured {
	return func(name string) *unstructured.Unstructured {
		o := &unstructured.Unstructured{Object: map[string]any{}}
		o.SetAPIVersion(apiVersion)
		o.SetKind(kind)
		o.SetNamespace(namespace)
		o.SetName(name)

		if spec != nil {
			o.Object["spec"] = spec
		}

		return o.DeepCopy()
	}
}
