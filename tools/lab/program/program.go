// Package program runs a controller of somebody else as the shards of a ring, which join, stop, and are killed.
package program

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/tools/lab/must"
	"github.com/clusterring/clusterring/tools/lab/system"
	"github.com/clusterring/clusterring/tools/testkit/history"
	"github.com/clusterring/clusterring/tools/testkit/process"
)

// Program is a controller of somebody else. Its name is that of its binary, of its ring, and of the namespace of its
// shards.
type Program struct {
	Name      string
	Manifests []string
	// Objects is how many objects there are, Object is one of them as YAML, without a name.
	Objects int
	Object  string
	// Edit, unless it is empty, is a merge patch that gives the controller work on an object. %s is a new text each time.
	Edit string
	// Children are the kinds of which each object controls one at the same shard.
	Children []schema.GroupVersionKind
	// Done, unless nil, reports whether the program has done its work on an object.
	Done func(*unstructured.Unstructured) bool
}

// Stage is where programs are played.
type Stage struct {
	System *system.System
	// BinDir contains the binaries.
	BinDir string
	// Until repeats a part until it does not fail.
	Until func(ctx context.Context, part func(context.Context))
	// OK reports a check that passed.
	OK func(format string, args ...any)
}

// Play runs a program as two shards. A third one joins, one stops, and one is killed. At the end, the ring is deleted.
func (s Stage) Play(ctx context.Context, p Program) {
	must.Do(s.System.Plane.Install(ctx, p.Manifests...))

	shards := []string{p.Name + "-a", p.Name + "-b", p.Name + "-c"}
	s.start(ctx, p, shards[:2]...)

	// Many at once: an operator that has nothing else to do works on an object again before its cache shows what it made.
	must.AtOnce(ctx, p.Objects, func(ctx context.Context, i int) { must.Do(s.System.Client.Create(ctx, p.object(i))) })
	s.await(ctx, p, shards[:2]...)
	s.OK("%d objects of kind %s have a shard, and what they control is at the same shard", p.Objects,
		p.object(0).GetKind())

	second := s.System.Process(shards[1])

	for _, change := range []struct {
		do    func()
		left  []string // the shards that have all objects afterwards
		shows string
	}{
		{func() { s.start(ctx, p, shards[2]) }, shards, "a third shard has its part %.1f s after its start"},
		{func() { must.Do(s.System.End(shards[0])) }, shards[1:],
			"a shard was told to stop: others have its objects after %.1f s"},
		{func() { must.Do(second.Kill()) }, shards[2:], "a shard was killed: another has its objects after %.1f s"},
	} {
		begin := time.Now()
		s.edit(ctx, p)
		change.do()
		s.edit(ctx, p)
		s.await(ctx, p, change.left...)
		s.OK(change.shows, time.Since(begin).Seconds())
	}

	must.Do(s.System.End(shards[2]))

	ring := &v1alpha1.ClusterRing{ObjectMeta: metav1.ObjectMeta{Name: p.Name}}
	must.Do(s.System.Client.Delete(ctx, ring))
	s.Until(ctx, func(ctx context.Context) {
		err := s.System.Client.Get(ctx, client.ObjectKeyFromObject(ring), ring)
		must.Hold(apierrors.IsNotFound(err), "ring %s is still there: %v", p.Name, err)
	})
	s.judge(shards)
}

// object returns an object of the program.
func (p Program) object(number int) *unstructured.Unstructured {
	o := &unstructured.Unstructured{}
	must.Do(yaml.Unmarshal([]byte(p.Object), &o.Object))
	o.SetName(fmt.Sprintf("object-%d", number))

	return o
}

// start starts shards.
func (s Stage) start(ctx context.Context, p Program, names ...string) {
	probes := must.Get(process.FreePorts(len(names)))

	for i, name := range names {
		spec := process.Spec{Name: name, Path: filepath.Join(s.BinDir, p.Name), Args: []string{
			"--kubeconfig=" + must.Get(s.System.Plane.PodKubeconfig(ctx, p.Name, "shard", name)),
			"--clusterring=" + p.Name, "--lease-namespace=" + p.Name, "--shard=" + name,
			"--history=" + s.System.History(name), "--lease-duration=6s", "--renew-deadline=5s", "--retry-period=800ms",
			"--health-probe-bind-address=" + probes[i],
		}}
		must.Do(s.System.Launch(ctx, spec, process.Readiness{URL: "http://" + probes[i] + "/readyz"}))
	}
}

// edit gives the shards work.
func (s Stage) edit(ctx context.Context, p Program) {
	if p.Edit == "" {
		return
	}

	for i := range p.Objects {
		patch := client.RawPatch(types.MergePatchType, fmt.Appendf(nil, p.Edit, time.Now()))
		must.Do(s.System.Client.Patch(ctx, p.object(i), patch))
	}
}

// await waits until exactly these shards have objects, all work is done, each object was worked on at its shard, and
// each has one child of each kind there.
func (s Stage) await(ctx context.Context, p Program, shards ...string) {
	shardLabel, drainLabel := contract.ShardLabel(p.Name), contract.DrainLabel(p.Name)

	s.Until(ctx, func(ctx context.Context) {
		children := make([]map[types.UID][]string, len(p.Children))
		for i, kind := range p.Children {
			children[i] = map[types.UID][]string{}

			of := s.list(ctx, kind)
			for j := range of {
				if owner := metav1.GetControllerOfNoCopy(&of[j]); owner != nil {
					children[i][owner.UID] = append(children[i][owner.UID], of[j].GetLabels()[shardLabel])
				}
			}
		}

		worked := map[string]bool{}
		for _, span := range s.System.Spans("*") {
			worked[span.Shard+" "+span.UID] = true
		}

		objects, missing, having := s.list(ctx, p.object(0).GroupVersionKind()), 0, map[string]bool{}

		for i := range objects {
			o := &objects[i]
			if o.GetNamespace() != p.object(0).GetNamespace() || !strings.HasPrefix(o.GetName(), "object-") {
				continue // of another program, or of the cluster
			}

			shard := o.GetLabels()[shardLabel]
			ready := worked[shard+" "+string(o.GetUID())] && (p.Done == nil || p.Done(o))
			having[shard] = true

			for _, at := range children {
				ready = ready && slices.Equal(at[o.GetUID()], []string{shard})
			}

			if !ready || o.GetLabels()[drainLabel] != "" || !slices.Contains(shards, shard) {
				missing++
			}
		}

		must.Hold(missing == 0, "%d objects or what they control are not in place", missing)
		must.Hold(len(having) == len(shards), "%d shards have objects, not %d", len(having), len(shards))

		ring := &v1alpha1.ClusterRing{}
		must.Do(s.System.Client.Get(ctx, client.ObjectKey{Name: p.Name}, ring))
		must.None("ring "+p.Name, system.StatusProblems(ring, len(shards)))
	})
}

// list returns all objects of a kind.
func (s Stage) list(ctx context.Context, kind schema.GroupVersionKind) []unstructured.Unstructured {
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(kind)

	if err := s.System.Client.List(ctx, list); !meta.IsNoMatchError(err) {
		must.Do(err)
	}

	return list.Items
}

// anyway are parts of errors that a controller also returns without shards: when it is stopped, and when its cache is
// behind its own writes.
var anyway = []string{"context canceled", "the object has been modified"}

// judge judges what the shards have recorded.
func (s Stage) judge(shards []string) {
	spans := slices.DeleteFunc(s.System.Spans("*"),
		func(span history.Span) bool { return !slices.Contains(shards, span.Shard) })
	must.None("two shards worked on one object at the same time",
		history.Overlaps(s.System.Closed(spans), func(span history.Span) string { return span.UID }))

	var failed []string

	for _, span := range spans {
		if span.Error != "" &&
			!slices.ContainsFunc(anyway, func(part string) bool { return strings.Contains(span.Error, part) }) {
			failed = append(failed, span.String()+": "+span.Error)
		}
	}

	must.None("reconciles failed that do not without shards", failed)
	s.OK("%d reconciles recorded: no two shards worked on one object at the same time, none failed because of the shards",
		len(spans))
}
