// Package crew runs the shards of a ring as processes of the example controller, with the identities of Pods, while
// users change the ring's Websites.
package crew

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/tools/lab/continuity"
	"github.com/clusterring/clusterring/tools/lab/must"
	"github.com/clusterring/clusterring/tools/lab/system"
	"github.com/clusterring/clusterring/tools/load/internal/objects"
	"github.com/clusterring/clusterring/tools/load/internal/run"
	"github.com/clusterring/clusterring/tools/load/internal/shards"
	"github.com/clusterring/clusterring/tools/load/internal/target"
	"github.com/clusterring/clusterring/tools/testkit/check"
	"github.com/clusterring/clusterring/tools/testkit/record"
	"github.com/clusterring/clusterring/tools/testkit/services"
)

// calm is how long new shards are left alone.
const calm = time.Second

// Options describe a crew.
type Options struct {
	// Name is part of the names of the ring and of the processes.
	Name string
	// Shards is the number of Pods at first: pod-0, pod-1, and so on. Slots is the number of slots; 0 if shards have the
	// names of their Pods.
	Shards, Slots int
	// Websites is the number of Websites.
	Websites int
	// Args are arguments of all shards.
	Args []string
	// Unrecorded does without a record of the objects, which would become long.
	Unrecorded bool
	// Judged lets the shards record their reconciles, for [Crew.Judge].
	Judged bool
	// Plain runs shards that know nothing but the contract, instead of the example: see tools/faults/cmd/shards.
	Plain bool
	// Embedded makes the shards elect one of themselves as the sharder.
	Embedded bool
	// InPlace waits until so many shards are available, and every object is in place. It is nil if the ring's status says
	// so; otherwise nobody is expected to register a webhook either.
	InPlace func(ctx context.Context, c *Crew, shards int) error
}

// Crew is a ring with its shards. Create it with [Gather]. It is for one goroutine.
type Crew struct {
	Options

	// Fleet is the ring. It has no shards of its own.
	Fleet *shards.Fleet
	// Recorder records what happens to the Websites and ConfigMaps. Sites are the Websites.
	Recorder *record.Recorder
	Sites    objects.Batch

	bench  *run.Bench
	system *system.System
	made   int
}

// Gather starts the shards and creates the Websites, and waits until all are in place. Everything is removed with the
// bench.
func Gather(ctx context.Context, b *run.Bench, o Options) (*Crew, error) {
	fleet, err := b.Fleet(ctx, shards.Ring{
		Name: "load-" + o.Name, Main: objects.Websites.GroupResource(),
		Controlled: []schema.GroupResource{objects.ConfigMaps.GroupResource()}, Pods: true,
		Embedded: o.Embedded, Silent: o.Embedded || o.InPlace != nil,
	}, 0)
	if err != nil {
		return nil, err
	}

	c := &Crew{
		Options: o, bench: b, Fleet: fleet, system: &system.System{Group: b.Local.Group, Dir: b.Local.StateDir()},
		Sites: objects.Batch{Kind: objects.Websites, Namespace: fleet.Ring.Namespace, Prefix: "site", Count: o.Websites},
	}
	b.RemoveAll(fleet.Ring.Namespace, objects.Websites, objects.ConfigMaps)

	// The rights of the example on objects. What shards may do in their namespace comes with their account.
	role := "example-shard"
	if o.Embedded {
		role = "cluster-admin"
	}

	err = b.Make(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: fleet.Ring.Name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
		Subjects: []rbacv1.Subject{{
			Kind: rbacv1.ServiceAccountKind, Namespace: fleet.Ring.Namespace, Name: target.ShardAccount,
		}},
	})
	if err != nil {
		return nil, err
	}

	if !o.Unrecorded {
		if err := c.record(ctx); err != nil {
			return nil, err
		}
	}

	for range o.Shards {
		if err := c.Start(ctx, c.Next()); err != nil {
			return nil, err
		}
	}

	if o.Embedded {
		b.Remove(fleet.Close) // only its shards can end such a ring
	}

	if err := b.Objects.Create(ctx, c.Sites); err != nil {
		return nil, err
	}

	holders := o.Shards
	if o.Slots > 0 {
		holders = min(holders, o.Slots)
	}

	err = errors.Join(c.Complete(ctx, holders), b.Pause(ctx, calm))

	return c, err
}

func (c *Crew) record(ctx context.Context) error {
	ctx, stop := context.WithCancel(context.WithoutCancel(ctx))

	recorder, err := record.Start(ctx, c.bench.Local.Config,
		record.Options{Ring: c.Fleet.Ring.Name, LeaseNamespace: c.Fleet.Ring.Namespace, Labels: record.Labels{
			Shard: contract.ShardLabel(c.Fleet.Ring.Name), Drain: contract.DrainLabel(c.Fleet.Ring.Name),
		}, Objects: []record.Objects{
			{Kind: check.Website, Namespace: c.Fleet.Ring.Namespace}, {Kind: check.ConfigMap, Namespace: c.Fleet.Ring.Namespace},
		}})
	if err != nil {
		stop()
		return fmt.Errorf("begin to record: %w", err)
	}

	c.Recorder = recorder
	c.bench.Cleanup(func(context.Context) error {
		stop()
		recorder.Wait()

		return nil
	})

	return nil
}

// Full is the name of the Pod's process: Pods of several scenarios have the same names.
func (c *Crew) Full(pod string) string { return c.Name + "-" + pod }

// Next returns the name of another Pod: pod-0, pod-1, and so on.
func (c *Crew) Next() string {
	c.made++
	return fmt.Sprintf("pod-%d", c.made-1)
}

// Start starts Pods, one after the other, and waits until they are ready.
func (c *Crew) Start(ctx context.Context, pods ...string) error {
	binary := "example"
	if c.Plain {
		binary = "shards"
	}

	for _, pod := range pods {
		name := c.Full(pod)

		args := []string{
			"--ring=" + c.Fleet.Ring.Name, "--lease-namespace=" + c.Fleet.Ring.Namespace, "--pod-name=" + name,
		}
		if c.Slots > 0 {
			args = append(args, fmt.Sprintf("--slots=%d", c.Slots))
		} else {
			args = append(args, "--shard-name="+name)
		}

		if c.Judged {
			args = append(args, "--history-file="+c.system.History(name))
		}

		uid, err := c.bench.Local.Pod(ctx, c.Fleet.Ring.Namespace, name)
		if err != nil {
			return err
		}

		err = c.bench.Local.Start(ctx, services.Spec{
			Name: name, Binary: binary, Namespace: c.Fleet.Ring.Namespace, Account: target.ShardAccount,
			Args: slices.Concat(args, c.Args, []string{"--pod-uid=" + string(uid)}),
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

// Again replaces a Pod by another one of the same name, as a StatefulSet does.
func (c *Crew) Again(ctx context.Context, pod string) error {
	name := c.Full(pod)
	if err := c.End(pod); err != nil {
		return err
	}

	err := c.bench.Objects.Remove(ctx, objects.Ref{Kind: objects.Pods, Namespace: c.Fleet.Ring.Namespace, Name: name})
	if err != nil {
		return err
	}

	uid, err := c.bench.Local.Pod(ctx, c.Fleet.Ring.Namespace, name)
	if err == nil {
		_, err = c.bench.Local.Authenticate(ctx, c.bench.Local.Member(name)) // its token is bound to the Pod
	}

	if err != nil {
		return err
	}

	return c.bench.Local.Restart(ctx, name, "--pod-uid="+string(uid))
}

// End lets Pods stop, all at once.
func (c *Crew) End(pods ...string) error {
	names := make([]string, len(pods))
	for i, pod := range pods {
		names[i] = c.Full(pod)
	}

	return c.bench.Local.End(names...)
}

// Crash kills Pods. Nobody reports it.
func (c *Crew) Crash(pods ...string) error {
	var errs []error
	for _, pod := range pods {
		errs = append(errs, c.bench.Local.Process(c.Full(pod)).Destroy())
	}

	return errors.Join(errs...)
}

// Fail kills a Pod, and the kubelet reports it.
func (c *Crew) Fail(ctx context.Context, pod string) error {
	if err := c.Crash(pod); err != nil {
		return err
	}

	return c.Fleet.End(ctx, c.Full(pod))
}

// Judge returns what has broken I1, I2, I6, or I9 since the beginning, and how many objects have moved. Objects may be
// without a shard for the given time. An object that was asked to leave counts as released by its shard. It is for a
// crew that is judged, and at rest.
func (c *Crew) Judge(bound time.Duration) (found []check.Violation, moves int, err error) {
	versions, err := c.Recorder.Versions()
	if err != nil {
		return nil, 0, err
	}

	err = must.Attempt(func() {
		spans := c.system.Closed(c.system.Spans(c.Full("*")))
		must.Hold(len(spans) > 0, "the shards of %s have recorded no reconcile", c.Name)

		found = check.Check(check.Run{
			Versions: versions, GivenUp: check.Releases(versions), Spans: spans, Bound: bound, End: record.Now(),
		})
	})

	return found, len(continuity.Of(versions, 0, record.Now()).Moves), err
}

// Complete waits until so many shards are available, the ring has converged, and the work is done.
func (c *Crew) Complete(ctx context.Context, shards int) error {
	if c.InPlace != nil {
		return c.InPlace(ctx, c, shards)
	}

	err := c.Fleet.AwaitConvergedAmong(ctx, shards, "")
	if err != nil || c.Unrecorded {
		return err
	}

	return c.worked(ctx)
}

// worked waits until the work on all Websites is done.
func (c *Crew) worked(ctx context.Context) error {
	return objects.Until(ctx, "the work on all Websites is done", func(context.Context) (bool, error) {
		undone := 0

		for _, v := range c.Recorder.Newest() {
			if v.Kind == check.Website && !v.Complete {
				undone++
			}
		}

		return undone == 0, nil
	})
}
