// Package admission measures what the assigner costs: CPU time per call, creates per second with its webhook in place,
// and calls for objects that are none of its business. The floor is a webhook that adds a constant label.
package admission

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/tools/load/internal/floor"
	"github.com/clusterring/clusterring/tools/load/internal/objects"
	"github.com/clusterring/clusterring/tools/load/internal/result"
	"github.com/clusterring/clusterring/tools/load/internal/run"
	"github.com/clusterring/clusterring/tools/load/internal/shards"
	"github.com/clusterring/clusterring/tools/load/internal/target"
	"github.com/clusterring/clusterring/tools/testkit/process"
	"github.com/clusterring/clusterring/tools/testkit/services"
)

const (
	// distinct is the number of different objects in reviews.
	distinct = 4000

	noop = "noop-webhook"

	cpuRow     = "admission-cpu-50"
	createsRow = "admission-creates-50"
	foreignRow = "admission-foreign-calls"
	fenceRow   = "fence-cpu"
	guardRow   = "guard-cpu"
)

// judged is the number of shards that has rows of its own.
const judged = 50

// priorArt is what versions 0.8.0 and 0.13.0 of the prior art reach, by row.
var priorArt = map[string]string{
	cpuRow: "7.2 / 7.0", createsRow: "0.56", foreignRow: "1 per write",
}

var cpuSeries = result.Series{
	ID: "admission-cpu-by-shards", Title: "Assigner CPU per admission", Over: result.OverShards, Unit: "µs",
}

// Measurements returns what this package measures.
func Measurements() []run.Measurement {
	growing := run.Part{Series: []result.Series{cpuSeries}, Run: webhooks}

	for _, part := range new(experiment).at(judged) {
		growing.Rows = append(growing.Rows, part.Rows...)
	}

	return []run.Measurement{
		{Name: "admission", Small: 32 * time.Second, Full: 270 * time.Second, Parts: []run.Part{growing}},
		{
			Name: "admission-foreign", Small: 3 * time.Second, Full: 10 * time.Second,
			Parts: []run.Part{foreign()},
		},
		{
			Name: "fence", Small: 8 * time.Second, Full: 40 * time.Second,
			Parts: []run.Part{{Rows: []string{fenceRow}, Run: fence}},
		},
		{
			Name: "guard", Small: 30 * time.Second, Full: 60 * time.Second,
			Parts: []run.Part{{Rows: []string{guardRow}, Run: guard}},
		},
	}
}

// experiment is the assigner and the no-op webhook, side by side: the ring's objects are in one namespace, those of the
// no-op webhook in another.
type experiment struct {
	bench     *run.Bench
	fleet     *shards.Fleet
	noop      endpoint
	namespace string // of the no-op webhook
	bodies    [][]byte
}

// webhooks lets a ring grow, and compares both webhooks at each size.
func webhooks(ctx context.Context, b *run.Bench) error {
	fleet, err := b.Fleet(ctx, shards.Ring{Name: "load-admission", Main: objects.ConfigMaps.GroupResource()}, 1)
	if err != nil {
		return err
	}

	e := &experiment{bench: b, fleet: fleet}
	if e.bodies, err = reviews(fleet.Ring.Namespace, distinct); err != nil {
		return err
	}

	if err := e.launchNoop(ctx, fleet.Held()[0]); err != nil {
		return err
	}

	sizes := slices.DeleteFunc(run.Pick(b, []int{3, judged, 500}, []int{3, 10, judged, 100, 200, 500, 1000}),
		func(size int) bool {
			return !slices.ContainsFunc(e.at(size), func(p run.Part) bool { return b.Wants(p.IDs()...) })
		})
	for i, size := range sizes {
		if err := e.grow(ctx, size); err != nil {
			return err
		}

		if err := b.Share(len(sizes)-i).Parts(ctx, e.at(size)...); err != nil {
			return fmt.Errorf("%d shards: %w", size, err)
		}
	}

	return nil
}

// label is the label that both webhooks set.
func (e *experiment) label() string { return contract.ShardLabel(e.fleet.Ring.Name) }

// launchNoop starts this program once more, as the no-op webhook, and registers it. It gives every object to the same
// shard, so that its objects cause as little work for the rebalancer as those of the ring: none.
func (e *experiment) launchNoop(ctx context.Context, shard string) error {
	s := e.bench.Local

	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}

	free, err := process.FreePorts(1)
	if err != nil {
		return err
	}

	certificate, err := services.NewCertificate(s.StateDir(), noop, e.bench.Clock.Now())
	if err != nil {
		return err
	}

	e.noop = endpoint{process: noop, url: "https://" + free[0] + "/noop", ca: certificate.CA}

	probe, err := newCaller(e.noop)
	if err != nil {
		return err
	}
	defer probe.close()

	e.bench.Cleanup(func(context.Context) error { return s.End(noop) })

	err = s.Launch(ctx, process.Spec{Name: noop, Path: self, Args: []string{
		noop, "--bind-address=" + free[0], "--tls-cert-file=" + certificate.CertFile,
		"--tls-private-key-file=" + certificate.KeyFile,
		"--label=" + e.label(), "--value=" + shard,
	}}, process.Readiness{URL: "https://" + free[0] + floor.ReadyPath, Client: probe.client})
	if err != nil {
		return err
	}

	return e.register(ctx)
}

// register registers the no-op webhook for a new namespace, without match conditions, and otherwise like that of the
// ring.
func (e *experiment) register(ctx context.Context) (err error) {
	const name = "load-noop"

	if e.namespace, err = e.bench.Local.Namespace(ctx, name); err != nil {
		return err
	}

	webhook, err := registered(ctx, e.bench.Local.Client, e.fleet.Ring.Name)
	if err != nil {
		return err
	}

	webhook.Name = "noop.load.example.com"
	webhook.ClientConfig = admissionregistrationv1.WebhookClientConfig{URL: &e.noop.url, CABundle: e.noop.ca}
	webhook.NamespaceSelector = &metav1.LabelSelector{
		MatchLabels: map[string]string{corev1.LabelMetadataName: e.namespace},
	}
	webhook.MatchConditions = nil

	err = e.bench.Make(ctx, &admissionregistrationv1.MutatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Webhooks: []admissionregistrationv1.MutatingWebhook{*webhook},
	})
	if err != nil {
		return err
	}

	return called(ctx, e.bench.Objects, e.namespace, e.label())
}

// grow lets shards join until there are as many as given, and waits until the assigner assigns objects to nearly all of
// them, and the API server calls it.
func (e *experiment) grow(ctx context.Context, size int) error {
	ring := e.fleet.Ring
	if _, err := e.fleet.Join(ctx, size-len(e.fleet.Held())); err != nil {
		return err
	}

	if err := e.fleet.AwaitShards(ctx); err != nil {
		return err
	}

	c, err := ofRing(ctx, e.bench.Local.Client, ring.Name)
	if err != nil {
		return err
	}
	defer c.close()

	err = target.Until(ctx, fmt.Sprintf("the assigner knows %d shards", size), func(ctx context.Context) (bool, error) {
		seen := map[string]bool{}

		for _, body := range e.bodies {
			shard, err := c.shard(ctx, ring.Name, body)
			if errors.Is(err, errNoPatch) {
				return false, nil
			}

			if err != nil {
				return false, err
			}

			seen[shard] = true
			if len(seen)*10 >= size*9 {
				return true, nil
			}
		}

		return false, nil
	})
	if err != nil {
		return err
	}

	return called(ctx, e.bench.Objects, ring.Namespace, e.label())
}

// called waits until ConfigMaps of a namespace get the label when they are created.
func called(ctx context.Context, c *objects.Client, namespace, label string) error {
	return target.Until(ctx, "the API server calls the webhook that sets the label "+label,
		func(ctx context.Context) (bool, error) {
			object, err := c.DryRun(ctx, objects.Batch{Kind: objects.ConfigMaps, Namespace: namespace, Prefix: "probe"})
			return err == nil && object.Labels[label] != "", err
		})
}

// at returns the experiments at one number of shards.
func (e *experiment) at(size int) []run.Part {
	if size != judged {
		return []run.Part{e.cpu(size, nil)}
	}

	row := func(id, title string) *result.Row {
		return &result.Row{ID: id, Title: fmt.Sprintf(title, size), PriorArt: priorArt[id]}
	}

	return []run.Part{
		e.cpu(size, row(cpuRow, "assigner CPU per admission, %d shards")),
		e.creates(row(createsRow, "create throughput with the webhook, %d shards")),
	}
}

// cpu measures the CPU time per call, for the series and, unless it is nil, for a row.
func (e *experiment) cpu(size int, row *result.Row) run.Part {
	part := run.Part{Series: []result.Series{cpuSeries}}
	if row != nil {
		part.Rows = []string{row.ID}
	}

	part.Run = func(ctx context.Context, b *run.Bench) error {
		values, floors, err := e.perCall(ctx, b)
		if err != nil {
			return err
		}
		b.Point(cpuSeries.ID, size, values, floors)

		if row != nil {
			done := *row
			done.Unit, done.Values, done.Floor = "µs", values, floors
			done.FloorTitle, done.Target = "a no-op TLS webhook in Go that adds a constant label", result.Max(1.3)
			b.Report(done)
		}

		return nil
	}

	return part
}

// perCall measures CPU time per call.
func (e *experiment) perCall(ctx context.Context, b *run.Bench) (values, floors []float64, err error) {
	assigner, err := ofRing(ctx, b.Local.Client, e.fleet.Ring.Name)
	if err != nil {
		return nil, nil, err
	}
	defer assigner.close()

	least, err := newCaller(e.noop)
	if err != nil {
		return nil, nil, err
	}
	defer least.close()

	cost := func(c *caller) run.Trial[float64] {
		return func(ctx context.Context) (float64, error) {
			return c.cost(ctx, b.Local.Usage(), e.bodies, run.Pick(b, 2500, 5000))
		}
	}

	return run.Rounds(ctx, b, cost(assigner), cost(least))
}

// creation is what creating objects came to.
type creation struct {
	objects int
	// took is how long it took, server the CPU time of the API server in milliseconds.
	took   time.Duration
	server float64
}

// String shows it in progress.
func (c creation) String() string { return fmt.Sprintf("%.0f creates/s", c.perSecond()) }

func (c creation) perSecond() float64 { return float64(c.objects) / c.took.Seconds() }

// creates measures creates per second. The floor is the no-op webhook. A round has many short turns, of which the
// median counts, so that other load on the machine affects both sides equally.
func (e *experiment) creates(row *result.Row) run.Part {
	return run.Part{Rows: []string{row.ID}, Run: func(ctx context.Context, b *run.Bench) error {
		n, times := run.Pick(b, 75, 250), run.Pick(b, 5, 8)
		in := func(namespace string) run.Trial[creation] {
			batch := objects.Batch{Kind: objects.ConfigMaps, Namespace: namespace, Prefix: "created", Count: n}
			return func(ctx context.Context) (creation, error) { return created(ctx, b, batch, e.label()) }
		}

		turns, lowest, err := run.Rounds(ctx, b.Times(times), in(e.fleet.Ring.Namespace), in(e.namespace))
		if err != nil {
			return err
		}

		values, floors := together(turns, times), together(lowest, times)
		ratio, _, _ := result.Spread(result.Ratios(serverCPU(values), serverCPU(floors)))

		done := *row
		done.Unit, done.Values, done.Floor, done.FloorTitle, done.Target = "creates/s", rates(values), rates(floors),
			"with the no-op webhook", result.Min(0.98)

		done.Notes = []string{fmt.Sprintf("The API server uses %.2f times as much CPU per create as with the no-op webhook.",
			ratio)}
		b.Report(done)

		return nil
	}}
}

// together puts so many turns into a round. Turns that are left over belong to the last.
func together(turns []creation, times int) [][]creation {
	var rounds [][]creation

	for i, turn := range turns {
		if i%times == 0 && (i == 0 || len(turns)-i >= times) {
			rounds = append(rounds, nil)
		}

		last := len(rounds) - 1
		rounds[last] = append(rounds[last], turn)
	}

	return rounds
}

// rates returns the creates per second of each round: the median of its turns.
func rates(rounds [][]creation) []float64 {
	return result.Column(rounds, func(turns []creation) float64 {
		median, _, _ := result.Spread(result.Column(turns, creation.perSecond))
		return median
	})
}

// serverCPU returns the CPU time of the API server per object, of each round, in microseconds. The system accounts for
// it too coarsely for single turns.
func serverCPU(rounds [][]creation) []float64 {
	return result.Column(rounds, func(turns []creation) float64 {
		var sum creation
		for _, turn := range turns {
			sum.objects += turn.objects
			sum.server += turn.server
		}

		return sum.server * 1000 / float64(sum.objects)
	})
}

// created creates the objects of a batch, checks that all have the label, and deletes them.
func created(ctx context.Context, b *run.Bench, batch objects.Batch, label string) (c creation, err error) {
	if err := b.Local.Calm(ctx); err != nil {
		return c, err
	}

	c.server, err = b.Local.Usage().CPU(target.APIServer, func() error {
		began := b.Clock.Now()
		defer func() { c.took = b.Clock.Since(began) }()

		return b.Objects.Create(ctx, batch)
	})
	if err != nil {
		return c, err
	}

	without, err := b.Objects.List(ctx, objects.Selection{
		Kind: batch.Kind, Namespace: batch.Namespace, Labels: "!" + label,
	})
	if err != nil {
		return c, err
	}

	if len(without) > 0 {
		return c, fmt.Errorf("%d of %d objects in %s were created without the label: the webhook was not called",
			len(without), batch.Count, batch.Namespace)
	}

	c.objects = batch.Count

	return c, b.Objects.Delete(ctx, batch)
}
