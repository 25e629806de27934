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
	"k8s.io/utils/ptr"

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
	// judged is the number of shards that has rows of its own.
	judged = 50

	noop = "noop-webhook"

	cpuRow     = "admission-cpu-50"
	createsRow = "admission-creates-50"
	foreignRow = "admission-foreign-calls"
	coveredRow = "foreign-covered"
	guardRow   = "guard-cpu"
	cpuChart   = "admission-cpu-by-shards"
)

// Measurements returns what this package measures.
func Measurements() []run.Measurement {
	return []run.Measurement{
		{Name: "admission", Small: 32 * time.Second, Full: 270 * time.Second, Parts: []run.Part{{
			Rows: []string{cpuRow, createsRow, cpuChart}, Run: webhooks,
		}}},
		{Name: "foreign-writes", Small: 15 * time.Second, Full: 70 * time.Second, Parts: []run.Part{
			{Rows: []string{foreignRow, coveredRow}, Run: foreign},
		}},
		{Name: "guard", Small: 30 * time.Second, Full: 60 * time.Second, Parts: []run.Part{
			{Rows: []string{guardRow}, Run: guard},
		}},
	}
}

// experiment is the assigner and the no-op webhook, side by side: the ring's objects are in one namespace, those of the
// no-op webhook in another.
type experiment struct {
	bench           *run.Bench
	fleet           *shards.Fleet
	assigner, least *caller
	namespace       string // of the no-op webhook
	bodies          [][]byte
}

// open declares a ring of ConfigMaps with so many shards, and registers the no-op webhook beside that of the assigner.
func open(ctx context.Context, b *run.Bench, name string, size int) (*experiment, error) {
	fleet, err := b.Fleet(ctx, shards.Ring{Name: name, Main: objects.ConfigMaps.GroupResource()}, size)
	if err != nil {
		return nil, err
	}

	e := &experiment{bench: b, fleet: fleet}

	webhook, err := registered(ctx, b.Local.Client, name)
	if err != nil {
		return nil, err
	}

	config := &webhook.ClientConfig
	if e.assigner, err = newCaller(b, target.Assigner, ptr.Deref(config.URL, ""), config.CABundle); err != nil {
		return nil, err
	}

	return e, errors.Join(e.launchNoop(ctx, webhook), called(ctx, b.Objects, fleet.Ring.Namespace, e.label()))
}

// webhooks lets a ring grow, and compares both webhooks at each size.
func webhooks(ctx context.Context, b *run.Bench) error {
	e, err := open(ctx, b, "load-admission", 1)
	if err != nil {
		return err
	}

	if e.bodies, err = reviews(e.fleet.Ring.Namespace, distinct); err != nil {
		return err
	}

	sizes := run.Pick(b, []int{3, judged, 500}, []int{3, 10, judged, 100, 200, 500, 1000})
	if !b.Wants(cpuChart) {
		sizes = []int{judged}
	}

	for i, size := range sizes {
		err := e.fleet.Change(ctx, func() error {
			_, err := e.fleet.Join(ctx, size-len(e.fleet.Held()))
			return err
		})
		if err != nil {
			return err
		}

		if err := e.at(ctx, b.Share(len(sizes)-i), size); err != nil {
			return fmt.Errorf("%d shards: %w", size, err)
		}
	}

	return nil
}

// label is the label that both webhooks set.
func (e *experiment) label() string { return contract.ShardLabel(e.fleet.Ring.Name) }

// launchNoop starts this program once more, as the no-op webhook, and registers it for a new namespace, without match
// conditions, and otherwise like the webhook of the ring. It gives every object to the same shard, so that its objects
// cause as little work for the rebalancer as those of the ring: none.
func (e *experiment) launchNoop(ctx context.Context, like *admissionregistrationv1.MutatingWebhook) error {
	s := e.bench.Local

	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}

	free, err := process.FreePorts(1)
	if err != nil {
		return err
	}

	certificate, err := services.NewCertificate(s.StateDir(), noop)
	if err != nil {
		return err
	}

	url := "https://" + free[0] + "/noop"
	if e.least, err = newCaller(e.bench, noop, url, certificate.CA); err != nil {
		return err
	}

	e.bench.Cleanup(func(context.Context) error { return s.End(noop) })

	err = s.Launch(ctx, process.Spec{Name: noop, Path: self, Args: []string{
		noop, "--bind-address=" + free[0], "--tls-cert-file=" + certificate.CertFile,
		"--tls-private-key-file=" + certificate.KeyFile,
		"--label=" + e.label(), "--value=" + e.fleet.Held()[0],
	}}, process.Readiness{URL: "https://" + free[0] + floor.ReadyPath, Client: e.least.client})
	if err != nil {
		return err
	}

	like.ClientConfig = admissionregistrationv1.WebhookClientConfig{URL: &url, CABundle: certificate.CA}

	const name = "load-noop"

	if e.namespace, err = s.Namespace(ctx, name); err != nil {
		return err
	}

	like.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: e.namespace}}
	like.Name, like.MatchConditions = "noop.load.example.com", nil

	err = e.bench.Make(ctx, &admissionregistrationv1.MutatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Webhooks: []admissionregistrationv1.MutatingWebhook{*like},
	})
	if err != nil {
		return err
	}

	return called(ctx, e.bench.Objects, e.namespace, e.label())
}

// called waits until ConfigMaps of a namespace get the label when they are created.
func called(ctx context.Context, c *objects.Client, namespace, label string) error {
	probe := objects.Batch{Kind: objects.ConfigMaps, Namespace: namespace, Prefix: "probe"}

	return objects.Until(ctx, "the API server calls the webhook that sets the label "+label,
		func(ctx context.Context) (bool, error) {
			object, err := c.Post(ctx, probe.Ref(0), probe.Object(0), metav1.DryRunAll)
			return err == nil && object.Labels[label] != "", err
		})
}

// at measures with one number of shards: the CPU time per call, and, with as many as the rows have, creates.
func (e *experiment) at(ctx context.Context, b *run.Bench, size int) error {
	cost := func(c *caller) run.Trial[float64] {
		return func(ctx context.Context) (float64, error) {
			return c.cost(ctx, b.Local.Usage(), e.bodies, run.Pick(b, 2500, 5000))
		}
	}

	values, floors, err := run.Rounds(ctx, b, cost(e.assigner), cost(e.least))
	if err != nil {
		return err
	}
	b.Grow(result.Chart{ID: cpuChart, Title: "Assigner CPU per admission", X: "shards", Y: "µs"}, size, values, floors)

	if size != judged {
		return nil
	}
	b.Report(result.Row{
		ID: cpuRow, Title: "assigner CPU per admission, 50 shards", Unit: "µs", Values: values,
		FloorTitle: "a no-op TLS webhook in Go that adds a constant label", Floor: floors,
		Target: result.Max(1.3), PriorArt: "7.2 / 7.0",
	})

	if !b.Wants(createsRow) {
		return nil
	}

	return e.creates(ctx, b)
}

// creates measures creates per second. The floor is the no-op webhook. A round has many short turns, of which the
// median counts, so that other load on the machine affects both sides equally.
func (e *experiment) creates(ctx context.Context, b *run.Bench) error {
	n, times := run.Pick(b, 75, 250), run.Pick(b, 5, 8)
	in := func(namespace string) run.Trial[float64] {
		batch := objects.Batch{Kind: objects.ConfigMaps, Namespace: namespace, Prefix: "created", Count: n}
		return func(ctx context.Context) (float64, error) { return created(ctx, b, batch, e.label()) }
	}

	turns, lowest, err := run.Rounds(ctx, b.Times(times), in(e.fleet.Ring.Namespace), in(e.namespace))
	if err != nil {
		return err
	}
	b.Report(result.Row{
		ID: createsRow, Title: "create throughput with the webhook, 50 shards", Unit: "creates/s",
		Values: together(turns, times), FloorTitle: "with the no-op webhook", Floor: together(lowest, times),
		Target: result.Min(0.98), PriorArt: "0.56",
	})

	return nil
}

// together puts so many turns into a round, and returns the median of each.
func together(turns []float64, times int) (rounds []float64) {
	for round := range slices.Chunk(turns, times) {
		median, _, _ := result.Spread(round)
		rounds = append(rounds, median)
	}

	return rounds
}

// created creates the objects of a batch, checks that all have the label, and deletes them. It returns how many it has
// created per second.
func created(ctx context.Context, b *run.Bench, batch objects.Batch, label string) (rate float64, err error) {
	if err := b.Local.Calm(ctx); err != nil {
		return 0, err
	}

	began := b.Clock.Now()
	if err := b.Objects.Create(ctx, batch); err != nil {
		return 0, err
	}

	rate = float64(batch.Count) / b.Clock.Since(began).Seconds()
	if err := labelled(ctx, b, batch, label); err != nil {
		return 0, err
	}

	return rate, b.Objects.Delete(ctx, batch)
}

// labelled returns an error if an object of a kind in the namespace of a batch has no such label.
func labelled(ctx context.Context, b *run.Bench, batch objects.Batch, label string) error {
	without, err := b.Objects.List(ctx, objects.Selection{
		Kind: batch.Kind, Namespace: batch.Namespace, Labels: "!" + label,
	})
	if err == nil && len(without) > 0 {
		err = fmt.Errorf("%d of %d objects in %s were created without the label: the webhook was not called",
			len(without), batch.Count, batch.Namespace)
	}

	return err
}
