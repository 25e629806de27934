// Package admission measures what the assigner costs: CPU time per call, creates per second with its webhook in place, and calls for
// objects that are none of its business. The floor is a webhook that adds a constant label.
package admission

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/tools/lab/process"
	"github.com/clusterring/clusterring/tools/lab/services"
	"github.com/clusterring/clusterring/tools/load/internal/floor"
	"github.com/clusterring/clusterring/tools/load/internal/objects"
	"github.com/clusterring/clusterring/tools/load/internal/result"
	"github.com/clusterring/clusterring/tools/load/internal/run"
	"github.com/clusterring/clusterring/tools/load/internal/shards"
	"github.com/clusterring/clusterring/tools/load/internal/target"
)

const (
	// distinct is the number of different objects in reviews.
	distinct = 4000

	noop = "noop-webhook"

	cpuSeries  = "admission-cpu-by-shards"
	http1Row   = "admission-cpu-http1"
	cpuRow     = "admission-cpu-"
	creates    = "admission-creates-"
	matched    = "admission-creates-matched"
	foreignRow = "admission-foreign-calls"
	fenceRow   = "fence-cpu"
)

// judged are the numbers of shards that have rows of their own.
var judged = []int{3, 50, 500}

// priorArt is what versions 0.8.0 and 0.13.0 of the prior art reach, by row.
var priorArt = map[string]string{
	cpuRow + "3": "1.9 / 2.2", cpuRow + "50": "7.2 / 7.0", creates + "3": "0.97 / 0.90", creates + "50": "0.56", foreignRow: "1 per write",
}

// Measurements returns what this package measures.
func Measurements() []run.Measurement {
	var ids []string
	for _, size := range judged {
		ids = append(ids, rowsAt(size)...)
	}

	return []run.Measurement{
		{
			Name: "admission", Rows: ids, Series: []result.Series{
				{ID: cpuSeries, Title: "Assigner CPU per admission", Over: result.OverShards, Unit: "µs"},
			},
			Small: 32 * time.Second, Full: 270 * time.Second, Run: webhooks,
		},
		{Name: "admission-foreign", Rows: []string{foreignRow}, Small: 3 * time.Second, Full: 10 * time.Second, ClusterToo: true, Run: foreign},
		{Name: "fence", Rows: []string{fenceRow}, Small: 8 * time.Second, Full: 40 * time.Second, Run: fence},
	}
}

// rowsAt returns the ids of the rows at a number of shards.
func rowsAt(size int) (ids []string) {
	if slices.Contains(judged, size) {
		ids = append(ids, cpuRow+strconv.Itoa(size), creates+strconv.Itoa(size))
	}

	switch size {
	case judged[0]:
		ids = append(ids, matched)
	case judged[1]:
		ids = append(ids, http1Row)
	}

	return ids
}

// experiment is the assigner and the no-op webhook, side by side: the ring's objects are in one namespace, those of the no-op webhook
// in another.
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
	if e.namespace, err = b.System.Namespace(ctx, "load-noop"); err != nil {
		return err
	}

	if e.bodies, err = reviews(fleet.Ring.Namespace, distinct); err != nil {
		return err
	}

	if err := e.launchNoop(ctx, fleet.Held()[0]); err != nil {
		return err
	}

	sizes := run.Pick(b, slices.Clone(judged), []int{3, 10, 50, 100, 200, 500, 1000})
	sizes = slices.DeleteFunc(sizes, func(size int) bool { return !b.Wants(append(rowsAt(size), cpuSeries)...) })

	for i, size := range sizes {
		if err := e.grow(ctx, size); err != nil {
			return err
		}

		if err := e.at(ctx, b.Share(len(sizes)-i), size); err != nil {
			return fmt.Errorf("%d shards: %w", size, err)
		}
	}

	return nil
}

// label is the label that both webhooks set.
func (e *experiment) label() string { return v1alpha1.ShardLabel(e.fleet.Ring.Name) }

// launchNoop starts this program once more, as the no-op webhook, and registers it. It gives every object to the same shard, so that
// its objects cause as little work for the rebalancer as those of the ring: none.
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

	probe, err := newCaller(e.noop, true)
	if err != nil {
		return err
	}
	defer probe.close()

	e.bench.Cleanup(func(context.Context) error { return s.End(noop) })

	err = s.Launch(ctx, process.Spec{Name: noop, Path: self, Args: []string{
		noop, "--bind-address=" + free[0], "--tls-cert-file=" + certificate.CertFile, "--tls-private-key-file=" + certificate.KeyFile,
		"--label=" + e.label(), "--value=" + shard,
	}}, process.Readiness{URL: "https://" + free[0] + floor.ReadyPath, Client: probe.client})
	if err != nil {
		return err
	}

	return e.register(ctx, noop, e.namespace, false)
}

// register registers the no-op webhook for a namespace, with or without the match conditions of the ring's registration, and otherwise like
// that.
func (e *experiment) register(ctx context.Context, name, namespace string, conditions bool) error {
	webhook, err := registered(ctx, e.bench.System.Client, e.fleet.Ring.Name)
	if err != nil {
		return err
	}

	webhook.Name = "noop.load.example.com"
	webhook.ClientConfig = admissionregistrationv1.WebhookClientConfig{URL: &e.noop.url, CABundle: e.noop.ca}
	webhook.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: namespace}}

	if !conditions {
		webhook.MatchConditions = nil
	}

	registration := &admissionregistrationv1.MutatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Webhooks: []admissionregistrationv1.MutatingWebhook{*webhook},
	}
	if err := e.bench.System.Client.Create(ctx, registration); err != nil {
		return fmt.Errorf("register the no-op webhook: %w", err)
	}
	e.bench.Cleanup(func(ctx context.Context) error {
		return client.IgnoreNotFound(e.bench.System.Client.Delete(ctx, registration))
	})

	return called(ctx, e.bench.Objects, namespace, e.label())
}

// grow lets shards join until there are as many as given, and waits until the assigner assigns objects to nearly all of them, and the API
// server calls it.
func (e *experiment) grow(ctx context.Context, size int) error {
	ring := e.fleet.Ring
	if _, err := e.fleet.Join(ctx, size-len(e.fleet.Held())); err != nil {
		return err
	}

	if err := e.fleet.AwaitShards(ctx); err != nil {
		return err
	}

	c, err := ofRing(ctx, e.bench.System.Client, ring.Name, true)
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
	return target.Until(ctx, "the API server calls the webhook that sets the label "+label, func(ctx context.Context) (bool, error) {
		object, err := c.DryRun(ctx, objects.Batch{Kind: objects.ConfigMaps, Namespace: namespace, Prefix: "probe"})
		return err == nil && object.Labels[label] != "", err
	})
}

// at measures at one number of shards.
func (e *experiment) at(ctx context.Context, b *run.Bench, size int) error {
	row := strconv.Itoa(size)
	isRow := slices.Contains(judged, size)

	const parts = 2
	if b.Wants(cpuSeries) || isRow && b.Wants(cpuRow+row) {
		values, floors, err := e.cpu(ctx, b.Share(parts), true)
		if err != nil {
			return err
		}
		b.Point(cpuSeries, size, values, floors)

		if isRow {
			b.Report(ofCPU(result.Row{ID: cpuRow + row, Title: fmt.Sprintf("assigner CPU per admission, %d shards", size), Values: values, Floor: floors}))
		}
	}

	if size == judged[1] && b.Wants(http1Row) {
		values, floors, err := e.cpu(ctx, b.Share(parts), false)
		if err != nil {
			return err
		}
		b.Report(ofCPU(result.Row{
			ID: http1Row, Title: fmt.Sprintf("assigner CPU per admission by HTTP/1.1, %d shards", size), Values: values, Floor: floors,
			Notes: []string{"An API server calls the webhook of a Service by HTTP/1.1, and one on its own host by HTTP/2 as in the other rows."},
		}))
	}

	if isRow && b.Wants(creates+row) {
		values, floors, err := e.throughput(ctx, b.Share(parts), e.namespace)
		if err != nil {
			return err
		}
		b.Report(createsRow(result.Row{
			ID: creates + row, Title: fmt.Sprintf("create throughput with the webhook, %d shards", size), FloorTitle: "with the no-op webhook",
		}, values, floors))
	}

	if size != judged[0] || !b.Wants(matched) {
		return nil
	}

	// The no-op webhook under the match conditions of the ring's registration.
	namespace, err := b.System.Namespace(ctx, "load-matched")
	if err != nil {
		return err
	}

	if err := e.register(ctx, matched, namespace, true); err != nil {
		return err
	}

	values, floors, err := e.throughput(ctx, b, namespace)
	if err != nil {
		return err
	}
	b.Report(createsRow(result.Row{
		ID: matched, Title: fmt.Sprintf("create throughput with the webhook, %d shards, if the no-op webhook has the same match condition", size),
		FloorTitle: "with the no-op webhook under that condition",
		Notes:      []string{"The condition keeps the rebalancer's own writes from waiting for a webhook that hangs. The API server evaluates it for each write."},
	}, values, floors))

	return nil
}

// ofCPU completes a row about CPU time.
func ofCPU(row result.Row) result.Row {
	row.Unit, row.FloorTitle = "µs", "a no-op TLS webhook in Go that adds a constant label"
	row.PriorArt, row.Target = priorArt[row.ID], result.Max(1.3)

	return row
}

// cpu measures CPU time per call.
func (e *experiment) cpu(ctx context.Context, b *run.Bench, http2 bool) (values, floors []float64, err error) {
	assigner, err := ofRing(ctx, b.System.Client, e.fleet.Ring.Name, http2)
	if err != nil {
		return nil, nil, err
	}
	defer assigner.close()

	least, err := newCaller(e.noop, http2)
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
