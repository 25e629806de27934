package continuity

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/tools/lab/continuity"
	"github.com/clusterring/clusterring/tools/load/internal/objects"
	"github.com/clusterring/clusterring/tools/load/internal/run"
	"github.com/clusterring/clusterring/tools/load/internal/shards"
	"github.com/clusterring/clusterring/tools/load/internal/target"
	"github.com/clusterring/clusterring/tools/testkit/check"
	"github.com/clusterring/clusterring/tools/testkit/record"
	"github.com/clusterring/clusterring/tools/testkit/services"
)

const (
	// edits is the number of changes of Websites per second.
	edits = 40
	// work is the time that a reconcile takes in addition.
	work = 20 * time.Millisecond
	// concurrency is how many objects a controller of a shard works on at a time.
	concurrency = 50
	// calm is how long a ring is observed before and after a change of its shards.
	calm = time.Second
)

// crew is a ring with its shards, which are processes.
type crew struct {
	bench    *run.Bench
	fleet    *shards.Fleet // without shards of its own
	scenario scenario
	recorder *record.Recorder
	sites    objects.Batch
	joined   int // Pods that have joined the first one
	// work and workers are those of the shards that start.
	work    time.Duration
	workers int
}

// gather starts the shards of a scenario and creates so many Websites, and waits until all are in place.
func gather(ctx context.Context, b *run.Bench, s scenario, websites int) (*crew, error) {
	fleet, err := b.Fleet(ctx, shards.Ring{
		Name: "load-" + s.id, Main: objects.Websites.GroupResource(),
		Controlled: []schema.GroupResource{objects.ConfigMaps.GroupResource()}, Pods: true,
	}, 0)
	if err != nil {
		return nil, err
	}

	c := &crew{
		bench: b, fleet: fleet, scenario: s, work: work, workers: concurrency,
		sites: objects.Batch{Kind: objects.Websites, Namespace: fleet.Ring.Namespace, Prefix: "site", Count: websites},
	}
	b.RemoveAll(fleet.Ring.Namespace, objects.Websites, objects.ConfigMaps)

	// The rights of the example on objects. What shards may do in their namespace comes with their account.
	err = b.Make(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: fleet.Ring.Name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "example-shard"},
		Subjects: []rbacv1.Subject{{
			Kind: rbacv1.ServiceAccountKind, Namespace: fleet.Ring.Namespace, Name: target.ShardAccount,
		}},
	})
	if err != nil {
		return nil, err
	}

	if err := c.record(ctx); err != nil {
		return nil, err
	}

	for i := range s.shards {
		if err := c.start(ctx, fmt.Sprintf("pod-%d", i)); err != nil {
			return nil, err
		}
	}

	if err := b.Objects.Create(ctx, c.sites); err != nil {
		return nil, err
	}

	holders := s.shards
	if s.slots > 0 {
		holders = min(holders, s.slots)
	}

	err = errors.Join(c.complete(ctx, holders), b.Pause(ctx, calm))

	return c, err
}

// addPod creates a Pod that nothing runs, and returns its uid.
func (c *crew) addPod(ctx context.Context, name string) (types.UID, error) {
	if _, err := c.bench.Local.ShardConfig(ctx, c.fleet.Ring.Namespace, name); err != nil {
		return "", fmt.Errorf("create Pod %s: %w", name, err)
	}

	pod := &corev1.Pod{}
	if err := c.bench.Local.Client.Get(ctx, client.ObjectKey{Namespace: c.fleet.Ring.Namespace, Name: name},
		pod); err != nil {
		return "", fmt.Errorf("read Pod %s: %w", name, err)
	}

	return pod.UID, nil
}

func (c *crew) record(ctx context.Context) error {
	ctx, stop := context.WithCancel(context.WithoutCancel(ctx))

	recorder, err := record.Start(ctx, c.bench.Local.Config,
		record.Options{Labels: record.Labels{
			Shard: contract.ShardLabel(c.fleet.Ring.Name), Drain: contract.DrainLabel(c.fleet.Ring.Name),
		}, Objects: []record.Objects{
			{Kind: check.Website, Namespace: c.fleet.Ring.Namespace}, {Kind: check.ConfigMap, Namespace: c.fleet.Ring.Namespace},
		}})
	if err != nil {
		stop()
		return fmt.Errorf("begin to record: %w", err)
	}

	c.recorder = recorder
	c.bench.Cleanup(func(context.Context) error {
		stop()
		recorder.Wait()

		return nil
	})

	return nil
}

// full is the name of the Pod's process: Pods of several scenarios have the same names.
func (c *crew) full(pod string) string { return c.scenario.id + "-" + pod }

// start starts Pods, one after the other, and waits until they are ready.
func (c *crew) start(ctx context.Context, pods ...string) error {
	for _, pod := range pods {
		name := c.full(pod)

		args := []string{
			"--ring=" + c.fleet.Ring.Name, "--lease-namespace=" + c.fleet.Ring.Namespace, "--pod-name=" + name,
			"--work-duration=" + c.work.String(), fmt.Sprintf("--concurrency=%d", c.workers),
		}
		if c.scenario.slots > 0 {
			args = append(args, fmt.Sprintf("--slots=%d", c.scenario.slots))
		} else {
			args = append(args, "--shard-name="+name)
		}

		uid, err := c.addPod(ctx, name)
		if err != nil {
			return err
		}

		err = c.bench.Local.Start(ctx, services.Spec{
			Name: name, Binary: "example", Namespace: c.fleet.Ring.Namespace, Account: target.ShardAccount,
			Args: append(args, "--pod-uid="+string(uid)),
		})
		if err != nil {
			return fmt.Errorf("start Pod %s: %w", name, err)
		}

		c.bench.Cleanup(func(context.Context) error {
			if p := c.bench.Local.Process(name); p.Running() {
				return p.Destroy()
			}

			return nil
		})
	}

	return nil
}

// end lets Pods stop, all at once.
func (c *crew) end(pods ...string) error {
	names := make([]string, len(pods))
	for i, pod := range pods {
		names[i] = c.full(pod)
	}

	return c.bench.Local.End(names...)
}

// crash kills Pods. Nobody reports it.
func (c *crew) crash(pods ...string) error {
	var errs []error
	for _, pod := range pods {
		errs = append(errs, c.bench.Local.Process(c.full(pod)).Destroy())
	}

	return errors.Join(errs...)
}

// fail kills a Pod, and the kubelet reports it.
func (c *crew) fail(ctx context.Context, pod string) error {
	if err := c.crash(pod); err != nil {
		return err
	}

	return c.fleet.End(ctx, c.full(pod))
}

// complete waits until so many shards are available, the ring has converged, and the work is done.
func (c *crew) complete(ctx context.Context, shards int) error {
	if err := c.fleet.AwaitConvergedAmong(ctx, shards, ""); err != nil {
		return err
	}

	return c.worked(ctx)
}

// worked waits until the work on all Websites is done, or on all but those that are being changed.
func (c *crew) worked(ctx context.Context) error {
	return objects.Until(ctx, "the work on all Websites is done", func(context.Context) (bool, error) {
		undone := 0

		for _, v := range c.recorder.Newest() {
			if v.Kind == check.Website && !v.Complete {
				undone++
			}
		}

		return undone < edits, nil
	})
}

// observe reports what changes of the shards do to the users of the ring, until it has converged among so many shards.
func (c *crew) observe(ctx context.Context, change func() error, shards int) (continuity.Report, error) {
	editing, stop := context.WithCancel(ctx)
	edited := make(chan error, 1)

	go func() { edited <- c.edit(editing) }()

	from := record.Now()

	pause := func() error { return c.bench.Pause(ctx, calm) }

	var err error

	for _, step := range []func() error{pause, change, func() error { return c.complete(ctx, shards) }, pause} {
		if err == nil {
			err = step()
		}
	}

	stop()

	// What was changed last is being worked on.
	err = errors.Join(err, <-edited, pause())

	versions, incomplete := c.recorder.Versions()

	return continuity.Of(versions, from, record.Now()), errors.Join(err, incomplete)
}

// edit changes one Website after the other until ctx ends.
func (c *crew) edit(ctx context.Context) error {
	ticker := c.bench.Clock.NewTicker(time.Second / edits)
	defer ticker.Stop()

	for i := 0; ; i++ {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C():
		}

		err := c.bench.Objects.MergePatch(context.WithoutCancel(ctx), c.sites.Ref(i%c.sites.Count),
			map[string]any{"spec": map[string]any{"body": fmt.Sprint(i)}})
		if err != nil {
			return fmt.Errorf("a user's write has failed: %w", err)
		}
	}
}
