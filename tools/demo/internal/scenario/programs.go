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
	"github.com/clusterring/clusterring/tools/lab/must"
	"github.com/clusterring/clusterring/tools/testkit/history"
	"github.com/clusterring/clusterring/tools/testkit/process"
)

// program is a controller of somebody else. Its name is that of its binary, of its ring, and of the namespace of its
// shards.
type program struct {
	name      string
	manifests []string
	// objects is how many objects there are, object returns one.
	objects int
	object  func(name string) *unstructured.Unstructured
	// children are the kinds of which each object controls one at the same shard.
	children []schema.GroupVersionKind
	// done reports whether the program has done its work on an object.
	done func(*unstructured.Unstructured) bool
}

// share runs a program as two shards. A third one joins, one stops, and one is killed.
func (s *Story) share(ctx context.Context, p *program) {
	s.withoutRing(ctx)
	must.Do(s.system.Plane.Install(ctx, p.manifests...))

	shards := []string{p.name + "-a", p.name + "-b", p.name + "-c"}
	s.startProgram(ctx, p, shards[:2]...)
	must.Do(atOnce(ctx, p.objects, func(ctx context.Context, i int) error {
		return s.asUser(ctx, p.object(fmt.Sprintf("object-%d", i)))
	}))
	s.awaitProgram(ctx, p, shards[:2]...)
	s.ok("%d objects of kind %s have a shard, and what they control is at the same shard", p.objects,
		p.object("").GetKind())

	second := s.system.Process(shards[1])

	for _, change := range []struct {
		do    func()
		left  []string // the shards that have all objects afterwards
		shows string
	}{
		{func() { s.startProgram(ctx, p, shards[2]) }, shards, "a third shard has its part %s after its start"},
		{func() { must.Do(s.system.End(shards[0])) }, shards[1:],
			"a shard was told to stop: others have its objects after %s"},
		{func() { must.Do(second.Kill()) }, shards[2:], "a shard was killed: another has its objects after %s"},
	} {
		begin := time.Now()
		change.do()
		s.awaitProgram(ctx, p, change.left...)
		s.ok(change.shows, seconds(begin))
	}

	must.Do(s.system.End(shards[2]))

	ring := &v1alpha1.ClusterRing{ObjectMeta: metav1.ObjectMeta{Name: p.name}}
	must.Do(s.client.Delete(ctx, ring))
	s.awaitGone(ctx, ring, func() string { return "ring " + p.name + " is still there" })
	s.judgeProgram(shards)
}

// startProgram starts shards.
func (s *Story) startProgram(ctx context.Context, p *program, names ...string) {
	probes, err := process.FreePorts(len(names))
	must.Do(err)

	for i, name := range names {
		kubeconfig, err := s.system.Plane.PodKubeconfig(ctx, p.name, "shard", name)
		must.Do(err)

		spec := process.Spec{Name: name, Path: filepath.Join(s.system.BinDir, p.name), Args: []string{
			"--kubeconfig=" + kubeconfig, "--clusterring=" + p.name, "--lease-namespace=" + p.name, "--shard=" + name,
			"--history=" + s.system.History(name), "--lease-duration=" + localsystem.LeaseDuration.String(),
			"--renew-deadline=5s",
			"--retry-period=800ms", "--health-probe-bind-address=" + probes[i],
		}}
		must.Do(s.system.Launch(ctx, spec, process.Readiness{URL: "http://" + probes[i] + "/readyz"}))
	}
}

// awaitProgram waits until exactly these shards have objects, all work is done, and each object has one child of each
// kind at its shard.
func (s *Story) awaitProgram(ctx context.Context, p *program, shards ...string) {
	shardLabel, drainLabel := contract.ShardLabel(p.name), contract.DrainLabel(p.name)

	s.await(ctx, func(ctx context.Context) string {
		children := make([]map[types.UID][]string, len(p.children))
		for i, kind := range p.children {
			children[i] = map[types.UID][]string{}

			of := s.listed(ctx, kind)
			for j := range of {
				if owner := metav1.GetControllerOfNoCopy(&of[j]); owner != nil {
					children[i][owner.UID] = append(children[i][owner.UID], of[j].GetLabels()[shardLabel])
				}
			}
		}

		objects, missing, having := s.listed(ctx, p.object("").GroupVersionKind()), 0, map[string]bool{}

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

		if missing == 0 {
			return unless(len(having) == len(shards), "%d shards have objects, not %d", len(having), len(shards))
		}

		return fmt.Sprintf("%d objects or what they control are not in place", missing)
	})
}

// listed returns all objects of a kind.
func (s *Story) listed(ctx context.Context, kind schema.GroupVersionKind) []unstructured.Unstructured {
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(kind)

	if err := s.client.List(ctx, list); !meta.IsNoMatchError(err) {
		must.Do(err)
	}

	return list.Items
}

// anyway are parts of errors that a controller also returns without shards: when it is stopped, and when its cache is
// behind its own writes.
var anyway = []string{"context canceled", "the object has been modified"}

// judgeProgram judges what the shards have recorded.
func (s *Story) judgeProgram(shards []string) {
	spans := slices.DeleteFunc(s.system.Spans("*"), func(span history.Span) bool { return !slices.Contains(shards, span.Shard) })
	overlaps := history.Overlaps(s.system.Closed(spans), func(span history.Span) string { return span.UID })
	must.Do(wrong("two shards worked on one object at the same time", overlaps))

	var failed []string

	for _, span := range spans {
		if span.Error != "" &&
			!slices.ContainsFunc(anyway, func(part string) bool { return strings.Contains(span.Error, part) }) {
			failed = append(failed, span.String()+": "+span.Error)
		}
	}

	must.Do(wrong("reconciles failed that do not without shards", failed))
	s.ok("%d reconciles recorded: no two shards worked on one object at the same time, none failed because of the shards",
		len(spans))
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

// jobset runs the controllers of JobSet.
func (s *Story) jobset(ctx context.Context) {
	s.share(ctx, &program{
		name:      "jobset",
		manifests: []string{filepath.Join(s.system.BinDir, "jobset.crd.yaml"), "tools/operators/deploy/jobset.yaml"},
		objects:   operatorObjects, object: object("jobset.x-k8s.io/v1alpha2", "JobSet", "jobset", map[string]any{
			"suspend": true, "network": map[string]any{"enableDNSHostnames": true},
			"replicatedJobs": []any{map[string]any{"name": "main", "replicas": int64(1), "template": map[string]any{
				"spec": map[string]any{"template": map[string]any{"spec": map[string]any{
					"restartPolicy": "Never", "containers": []any{map[string]any{"name": "main", "image": "none.example.com/main"}},
				}}},
			}}},
		}),
		children: []schema.GroupVersionKind{{Group: "batch", Version: "v1", Kind: "Job"}, {Version: "v1", Kind: "Service"}},
	})
}

// clientGo runs a controller that consists of an informer, a queue, and workers.
func (s *Story) clientGo(ctx context.Context) {
	s.share(ctx, &program{
		name: "client-go", manifests: []string{"tools/operators/deploy/client-go.yaml"},
		objects: operatorObjects, object: object("v1", "ConfigMap", "client-go", nil),
		children: []schema.GroupVersionKind{{Version: "v1", Kind: "Secret"}},
	})
}

// operatorObjects is how many objects an operator has.
const operatorObjects = 200

// trustManager runs the controller of trust-manager.
func (s *Story) trustManager(ctx context.Context) {
	s.share(ctx, &program{
		name: "trust-manager",
		manifests: []string{
			filepath.Join(s.system.BinDir, "trust-manager.crd.yaml"), "tools/operators/deploy/trust-manager.yaml",
		},
		objects: operatorObjects, object: object("trust.cert-manager.io/v1alpha1", "Bundle", "", map[string]any{
			"sources": []any{map[string]any{"inLine": string(s.system.Plane.Config.CAData)}},
			"target": map[string]any{
				"configMap":         map[string]any{"key": "ca.pem"},
				"namespaceSelector": map[string]any{"matchLabels": map[string]any{"kubernetes.io/metadata.name": "trust-manager"}},
			},
		}),
		done: func(o *unstructured.Unstructured) bool {
			conditions, _, _ := unstructured.NestedSlice(o.Object, "status", "conditions")
			for _, c := range conditions {
				if c, ok := c.(map[string]any); ok && c["type"] == "Synced" {
					return c["status"] == "True"
				}
			}

			return false
		},
	})
}
