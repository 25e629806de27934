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
	"k8s.io/utils/ptr"
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
	// distinct is how many different objects are asked about.
	distinct = 4000

	noop = "noop-webhook"

	cpuSeries  = "admission-cpu-by-shards"
	http1Row   = "admission-cpu-http1"
	cpuRow     = "admission-cpu-"
	creates    = "admission-creates-"
	matched    = "admission-creates-matched"
	foreignRow = "admission-foreign-calls"
)

// judged are the numbers of shards that have rows of their own.
var judged = []int{3, 50, 500}

// priorArt says what versions 0.8.0 and 0.13.0 of the prior art reach, by number of shards.
var priorArt = map[string]string{
	cpuRow + "3": "1.9 / 2.2", cpuRow + "50": "7.2 / 7.0", creates + "3": "0.97 / 0.90", creates + "50": "0.56", foreignRow: "1 per write",
}

// Measurements returns what this package measures.
func Measurements() []run.Measurement {
	ids := []string{cpuSeries}
	for _, size := range judged {
		ids = append(ids, idsAt(size)[1:]...)
	}

	return []run.Measurement{
		{Name: "admission", IDs: ids, Budget: map[run.Scale]time.Duration{run.Small: 32 * time.Second, run.Full: 270 * time.Second}, Run: webhooks},
		{
			Name: "admission-foreign", IDs: []string{foreignRow}, Budget: map[run.Scale]time.Duration{run.Small: 3 * time.Second, run.Full: 10 * time.Second},
			ClusterToo: true, Run: foreign,
		},
	}
}

// idsAt returns the ids of what is measured at a number of shards.
func idsAt(size int) []string {
	ids := []string{cpuSeries}
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
	bench *run.Bench
	fleet *shards.Fleet
	noop  struct {
		url, namespace string
		ca             []byte
	}
	bodies [][]byte
	series result.Series
	rows   []result.Row
}

// webhooks lets a ring grow, and compares both webhooks at each size.
func webhooks(ctx context.Context, b *run.Bench) (rows []result.Row, series []result.Series, err error) {
	e := &experiment{bench: b, series: result.Series{
		ID: cpuSeries, Title: "Assigner CPU per admission", Over: result.OverShards, Unit: "µs",
	}}
	defer func() { err = errors.Join(err, e.remove(context.WithoutCancel(ctx))) }()

	if err := e.prepare(ctx); err != nil {
		return nil, nil, err
	}

	sizes := slices.DeleteFunc(run.Pick(b, slices.Clone(judged), []int{3, 10, 50, 100, 200, 500, 1000}), func(size int) bool { return !b.Wants(idsAt(size)...) })
	for i, size := range sizes {
		if err := e.grow(ctx, size); err != nil {
			return nil, nil, err
		}

		if err := e.at(ctx, b.Share(len(sizes)-i), size); err != nil {
			return nil, nil, fmt.Errorf("%d shards: %w", size, err)
		}
	}

	return e.rows, []result.Series{e.series}, nil
}

// label is the one that both webhooks give.
func (e *experiment) label() string { return v1alpha1.ShardLabel(e.fleet.Ring.Name) }

func (e *experiment) prepare(ctx context.Context) (err error) {
	s := e.bench.System
	if e.fleet, err = e.bench.Fleet(ctx, shards.Ring{Name: "load-admission", Main: objects.ConfigMaps.GroupResource()}); err != nil {
		return err
	}

	if e.noop.namespace, err = s.Namespace(ctx, "load-noop"); err != nil {
		return err
	}

	if e.bodies, err = reviews(e.fleet.Ring.Namespace, distinct); err != nil {
		return err
	}

	if err := e.fleet.Declare(ctx); err != nil {
		return err
	}

	first, err := e.fleet.Join(ctx, 1)
	if err != nil {
		return err
	}

	return e.launchNoop(ctx, first[0])
}

// launchNoop starts this program once more, as the no-op webhook, and registers it. It gives every object to the same shard, so that
// its objects are as little work for the rebalancer as those of the ring: none.
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

	e.noop.url, e.noop.ca = "https://"+free[0], certificate.CA

	probe, err := newCaller(endpoint{process: noop, url: e.noop.url, ca: e.noop.ca}, true)
	if err != nil {
		return err
	}
	defer probe.close()

	err = s.Launch(ctx, process.Spec{Name: noop, Path: self, Args: []string{
		noop, "--bind-address=" + free[0], "--tls-cert-file=" + certificate.CertFile, "--tls-private-key-file=" + certificate.KeyFile,
		"--label=" + e.label(), "--value=" + shard,
	}}, process.Readiness{URL: e.noop.url + floor.ReadyPath, Client: probe.client})
	if err != nil {
		return err
	}

	return e.register(ctx, noop, e.noop.namespace, nil)
}

// register registers the no-op webhook for a namespace, and otherwise as the assigner registers its own, but for match conditions.
func (e *experiment) register(ctx context.Context, name, namespace string, conditions []admissionregistrationv1.MatchCondition) error {
	all := admissionregistrationv1.AllScopes

	err := e.bench.System.Client.Create(ctx, &admissionregistrationv1.MutatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Webhooks: []admissionregistrationv1.MutatingWebhook{{
			Name:         "noop.load.example.com",
			ClientConfig: admissionregistrationv1.WebhookClientConfig{URL: new(e.noop.url + "/noop"), CABundle: e.noop.ca},
			Rules: []admissionregistrationv1.RuleWithOperations{{
				Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create, admissionregistrationv1.Update},
				Rule:       admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"*"}, Resources: []string{"configmaps"}, Scope: &all},
			}},
			NamespaceSelector:       &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: namespace}},
			MatchConditions:         conditions,
			ObjectSelector:          &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: e.label(), Operator: metav1.LabelSelectorOpDoesNotExist}}},
			FailurePolicy:           ptr.To(admissionregistrationv1.Ignore),
			SideEffects:             ptr.To(admissionregistrationv1.SideEffectClassNone),
			TimeoutSeconds:          ptr.To(int32(callTimeout / time.Second)),
			ReinvocationPolicy:      ptr.To(admissionregistrationv1.IfNeededReinvocationPolicy),
			AdmissionReviewVersions: []string{"v1"},
		}},
	})
	if err != nil {
		return fmt.Errorf("register the no-op webhook: %w", err)
	}

	return nil
}

// remove takes away all that prepare has made.
func (e *experiment) remove(ctx context.Context) error {
	s := e.bench.Local

	errs := []error{e.deregister(ctx, noop)}
	if _, runs := s.Processes()[noop]; runs {
		errs = append(errs, s.End(noop))
	}

	if e.fleet != nil {
		errs = append(errs, e.fleet.Close(ctx))
	}

	return errors.Join(errs...)
}

func (e *experiment) deregister(ctx context.Context, name string) error {
	registration := &admissionregistrationv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: name}}
	return client.IgnoreNotFound(e.bench.System.Client.Delete(ctx, registration))
}

// grow lets shards join until there are as many as given, and waits until the assigner gives objects to nearly all of them.
func (e *experiment) grow(ctx context.Context, size int) error {
	ring := e.fleet.Ring.Name
	if _, err := e.fleet.Join(ctx, size-len(e.fleet.Held())); err != nil {
		return err
	}

	if err := e.fleet.AwaitShards(ctx); err != nil {
		return err
	}

	c, err := ofRing(ctx, e.bench.System.Client, ring, true)
	if err != nil {
		return err
	}
	defer c.close()

	err = target.Until(ctx, fmt.Sprintf("the assigner knows %d shards", size), func(ctx context.Context) (bool, error) {
		seen := map[string]bool{}

		for _, body := range e.bodies {
			shard, err := c.shard(ctx, ring, body)
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

	return e.inPlace(ctx)
}

// inPlace waits until the API server calls both webhooks.
func (e *experiment) inPlace(ctx context.Context) error {
	for _, namespace := range []string{e.fleet.Ring.Namespace, e.noop.namespace} {
		if err := called(ctx, e.bench.Objects, objects.Batch{Kind: objects.ConfigMaps, Namespace: namespace, Prefix: "probe"}, e.label()); err != nil {
			return err
		}
	}

	return nil
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

		e.series.Points = append(e.series.Points, result.Point{X: float64(size), Values: values, Floor: floors})
		if isRow && b.Wants(cpuRow+row) {
			e.rows = append(e.rows, e.cpuRow(cpuRow+row, fmt.Sprintf("assigner CPU per admission, %d shards", size), values, floors))
		}
	}

	if size == judged[1] && b.Wants(http1Row) {
		values, floors, err := e.cpu(ctx, b.Share(parts), false)
		if err != nil {
			return err
		}

		r := e.cpuRow(http1Row, fmt.Sprintf("assigner CPU per admission by HTTP/1.1, %d shards", size), values, floors)
		r.Notes = []string{"an API server calls the webhook of a Service by HTTP/1.1, and one on its own host by HTTP/2 as in the other rows"}
		e.rows = append(e.rows, r)
	}

	if isRow && b.Wants(creates+row) {
		values, floors, err := e.throughput(ctx, b.Share(parts), e.noop.namespace)
		if err != nil {
			return err
		}

		e.rows = append(e.rows, e.createsRow(size, values, floors))
	}

	if size != judged[0] || !b.Wants(matched) {
		return nil
	}

	return e.matched(ctx, b, size)
}

func (e *experiment) cpuRow(id, title string, values, floors []float64) result.Row {
	return result.Row{
		ID: id, Title: title, Unit: "µs", Values: values, FloorTitle: "a no-op TLS webhook in Go that adds a constant label", Floor: floors,
		Judge: result.JudgeRatio, PriorArt: priorArt[id], Target: result.Target{Bound: result.AtMost, Value: 1.3, Unit: "×"},
	}
}

// cpu measures CPU time per call.
func (e *experiment) cpu(ctx context.Context, b *run.Bench, http2 bool) (values, floors []float64, err error) {
	reader := b.Local.Usage()

	assigner, err := ofRing(ctx, b.System.Client, e.fleet.Ring.Name, http2)
	if err != nil {
		return nil, nil, err
	}
	defer assigner.close()

	least, err := newCaller(endpoint{process: noop, url: e.noop.url + "/noop", ca: e.noop.ca}, http2)
	if err != nil {
		return nil, nil, err
	}
	defer least.close()

	calls := run.Pick(b, 2500, 5000)

	return run.Rounds(ctx, b, func(ctx context.Context) (float64, error) {
		return assigner.cost(ctx, reader, e.bodies, calls)
	}, func(ctx context.Context) (float64, error) {
		return least.cost(ctx, reader, e.bodies, calls)
	})
}

// called waits until an object of the batch gets the label when it is created.
func called(ctx context.Context, c *objects.Client, batch objects.Batch, label string) error {
	return target.Until(ctx, "the API server calls the webhook that gives label "+label, func(ctx context.Context) (bool, error) {
		object, err := c.DryRun(ctx, batch, 0)
		return err == nil && object.Labels[label] != "", err
	})
}
