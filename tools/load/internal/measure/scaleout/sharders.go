package scaleout

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/tools/load/internal/crew"
	"github.com/clusterring/clusterring/tools/load/internal/objects"
	"github.com/clusterring/clusterring/tools/load/internal/shards"
	"github.com/clusterring/clusterring/tools/load/internal/target"
)

// Names of sharders: what assigns the objects to the shards.
const (
	Services = "services"
	// Static is this tool, which deals the objects in equal shares.
	Static   = "static"
	Embedded = "embedded"
	None     = "none"
	External = "external"
	// Plain is the services, with shards like those of an external sharder: only the sharder differs.
	Plain = "plain"
)

// Sharders are the arguments of the shards for each sharder.
var Sharders = map[string][]string{
	Services: nil,
	Static:   nil,
	// The shards elect one of themselves.
	Embedded: {"--embedded"},
	// There are no shards, but one process with as many workers as they have.
	None: {"--unsharded"},
	// Another program assigns them that speaks the contract of ClusterRing. The user starts it when the tool says so.
	External: nil,
	Plain:    nil,
}

// served reports whether the services run: with Static, they do until the objects are dealt.
func (f *fleet) served() bool { return slices.Contains([]string{Services, Static, Plain}, f.sharder) }

// form makes a ring with shards, each of which has so many workers that need so long for a change, and watches the work
// on its Websites. Of the options, name, numbers, and more arguments are those of the caller.
func (f *fleet) form(ctx context.Context, workers int, work time.Duration, o crew.Options) (err error) {
	o.Args = slices.Concat([]string{
		fmt.Sprintf("--concurrency=%d", workers), "--change-duration=" + work.String(), "--controllers=website",
		"--kube-api-qps=-1", // nothing waits in its client
	}, Sharders[f.sharder], o.Args)
	o.Embedded = f.sharder == Embedded
	o.Plain = f.sharder == External || f.sharder == Plain

	if !f.served() {
		if err := f.bench.Local.End(target.Services...); err != nil {
			return err
		}
	}

	if f.sharder == External {
		f.bench.Progress("start the sharder within five minutes, for ring load-%s, with KUBECONFIG=%s", o.Name,
			filepath.Join(f.bench.Local.StateDir(), "kubeconfig", "admin.yaml"))
	}

	if f.sharder == External || f.sharder == None {
		o.InPlace = f.inPlace
	}

	f.Crew, err = crew.Gather(ctx, f.bench, o)
	if !f.served() {
		f.bench.Cleanup(func(ctx context.Context) error { return f.bench.Local.Resume(ctx, target.Services...) })
	}

	if err != nil {
		return err
	}

	for i := range o.Shards {
		f.pods = append(f.pods, pod(i))
	}

	ctx, stop := context.WithCancel(context.WithoutCancel(ctx))

	f.Load.Sites = f.Crew.Sites

	wait, err := f.Follow(ctx, f.bench.Local.Config, func(err error) { f.bench.Progress("watch Websites: %s", err) })
	if err != nil {
		stop()
		return err
	}

	f.bench.Cleanup(func(context.Context) error {
		stop()
		wait()

		return nil
	})

	return nil
}

func pod(i int) string { return fmt.Sprintf("pod-%d", i) }

// inPlace waits until all objects are with as many shards as there are, where no status says so.
func (f *fleet) inPlace(ctx context.Context, c *crew.Crew, n int) error {
	return objects.Until(ctx, "all objects have a shard", func(ctx context.Context) (bool, error) {
		has, err := f.shares(ctx, c)

		return f.sharder == None || len(has) == n && has[""] == 0, err
	})
}

// shares returns how many Websites each shard has.
func (f *fleet) shares(ctx context.Context, c *crew.Crew) (map[string]int, error) {
	sites, err := f.sites(ctx, c)
	has := map[string]int{}

	for i := range sites {
		has[sites[i].Labels[contract.ShardLabel(c.Fleet.Ring.Name)]]++
	}

	return has, err
}

// sites returns the metadata of all Websites.
func (f *fleet) sites(ctx context.Context, c *crew.Crew) ([]metav1.PartialObjectMetadata, error) {
	return f.bench.Objects.List(ctx, objects.Selection{Kind: objects.Websites, Namespace: c.Fleet.Ring.Namespace})
}

// enter makes the ring have n shards, and the sharder assign the objects, or deals them.
func (f *scaling) enter(ctx context.Context, deal bool, n int) error {
	if f.dealt != nil && (!deal || n != f.shards) {
		if err := f.collect(ctx); err != nil {
			return err
		}
	}

	if f.sharder == None && n != f.shards {
		f.shards = n

		return f.bench.Local.Restart(ctx, f.Full(pod(0)), fmt.Sprintf("--concurrency=%d", workers*n))
	}

	before, err := f.Fleet.Read(ctx)
	if err != nil {
		return err
	}

	grows := f.shards < n && f.InPlace == nil
	for ; f.shards < n; f.shards++ {
		f.pods = append(f.pods, f.Next())
		if err := f.Start(ctx, f.pods[f.shards]); err != nil {
			return err
		}
	}

	if grows {
		if err := f.Fleet.AwaitConvergedAmong(ctx, n, shards.Fingerprint(before)); err != nil {
			return err
		}
	}

	if f.dealt != nil {
		return nil
	}

	if err := f.Complete(ctx, n); err != nil || !deal {
		return err
	}

	return f.deal(ctx)
}

// deal gives the objects to the shards in equal shares, without services.
func (f *scaling) deal(ctx context.Context) (err error) {
	sites, err := f.sites(ctx, f.Crew)
	if err != nil {
		return err
	}

	if err := f.bench.Local.End(target.Services...); err != nil {
		return err
	}

	f.dealt = sites

	return f.give(ctx, func(i int) string { return f.Full(f.pods[i%f.shards]) })
}

// collect puts the objects where they were before they were dealt, and lets the services run again.
func (f *scaling) collect(ctx context.Context) error {
	if f.dealt == nil {
		return nil
	}

	label := contract.ShardLabel(f.Fleet.Ring.Name)
	err := f.give(ctx, func(i int) string { return f.dealt[i].Labels[label] })
	f.dealt = nil

	return errors.Join(err, f.bench.Local.Resume(ctx, target.Services...))
}

// give gives the Websites that were dealt, and their ConfigMaps, to shards.
func (f *scaling) give(ctx context.Context, to func(i int) string) error {
	return objects.Each(ctx, len(f.dealt), objects.Concurrency, func(ctx context.Context, i int) error {
		patch := map[string]any{"metadata": map[string]any{
			"labels": map[string]any{contract.ShardLabel(f.Fleet.Ring.Name): to(i)},
		}}

		var errs []error

		for _, kind := range []objects.Kind{objects.Websites, objects.ConfigMaps} {
			errs = append(errs, f.bench.Objects.MergePatch(ctx,
				objects.Ref{Kind: kind, Namespace: f.dealt[i].Namespace, Name: f.dealt[i].Name}, patch))
		}

		return errors.Join(errs...)
	})
}
