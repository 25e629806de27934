package faultrun

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	examplev1alpha1 "github.com/clusterring/clusterring/tools/example/api/v1alpha1"
	"github.com/clusterring/clusterring/tools/example/checksum"
	"github.com/clusterring/clusterring/tools/lab/check"
	"github.com/clusterring/clusterring/tools/lab/record"
)

// Phase is a phase of the scenario.
type Phase string

// The phases in their order. Each ends when all objects are in place.
const (
	// Begin: the services and three shards of each ring start. Eight Websites are created in each namespace, two of them with generated
	// names. Four Themes are created if a ring has them.
	Begin Phase = "begin"
	// Join: a fourth shard joins each ring. In each namespace, a Website is created, one changed, and one deleted.
	Join Phase = "join"
	// Fail: a shard of each ring is killed for good, and another one stops. In each namespace, a Website is created, and some are changed.
	Fail Phase = "fail"
	// Delete: the last ring is deleted. Other rings remain.
	Delete Phase = "delete"
)

type step struct {
	phase Phase
	play  func(*World, context.Context) error
}

// scenario lists the phases of a run, except Delete.
var scenario = []step{
	{Begin, (*World).begin},
	{Join, (*World).join},
	{Fail, (*World).fail},
}

func (w *World) begin(ctx context.Context) error {
	later := map[string]bool{}

	for _, r := range w.rings {
		if err := w.client.Create(ctx, r.manifest()); err != nil {
			return fmt.Errorf("create a ring: %w", err)
		}

		later[r.Shards[len(r.Shards)-1]] = true
	}

	for _, m := range w.order {
		if !later[m.Name] {
			if err := w.Start(m); err != nil {
				return err
			}
		}
	}

	if err := w.await(ctx, "three shards hold their Leases and the rings are ready", w.statusProblems); err != nil {
		return err
	}

	var errs []error

	for _, namespace := range w.namespaces() {
		for i := range 6 {
			errs = append(errs, w.createIn(ctx, namespace, fmt.Sprintf("site-%d", i)))
		}

		errs = append(errs, w.createIn(ctx, namespace, ""), w.createIn(ctx, namespace, ""))
	}

	for i := range 4 {
		errs = append(errs, w.createTheme(ctx, fmt.Sprintf("theme-%d", i)))
	}

	for _, r := range w.rings {
		for _, namespace := range r.Namespaces {
			for i := range r.Fleets {
				errs = append(errs, w.createFleet(ctx, namespace, fleetName(i)))
			}
		}
	}

	return errors.Join(errs...)
}

func (w *World) join(ctx context.Context) error {
	var errs []error
	for _, r := range w.rings {
		errs = append(errs, w.Start(w.members[r.Shards[len(r.Shards)-1]]))
	}

	for _, namespace := range w.namespaces() {
		errs = append(errs, w.createIn(ctx, namespace, "site-6"), w.editIn(ctx, namespace, "site-0"), w.removeIn(ctx, namespace, "site-1"))
	}

	return errors.Join(append(errs, w.createTheme(ctx, "theme-4"))...)
}

func (w *World) fail(ctx context.Context) error {
	var errs []error

	for _, r := range w.rings {
		w.Expect(r.Shards[0], false)
		w.Expect(r.Shards[1], false)
		errs = append(errs, w.members[r.Shards[0]].Process().Destroy())
	}

	for _, namespace := range w.namespaces() {
		errs = append(errs, w.createIn(ctx, namespace, "site-7"), w.editIn(ctx, namespace, "site-2"), w.editIn(ctx, namespace, "site-6"))
	}

	for _, r := range w.rings {
		errs = append(errs, w.members[r.Shards[1]].Process().Stop(stopTimeout))
	}

	return errors.Join(errs...)
}

// delete deletes the last ring and waits until nothing of it is left. Objects of other rings must stay in place.
func (w *World) delete(ctx context.Context) error {
	r := w.rings[len(w.rings)-1]

	r.ended = record.Now()
	if err := w.client.Delete(ctx, r.manifest()); err != nil {
		return fmt.Errorf("delete the ring: %w", err)
	}

	err := w.await(ctx, "nothing is left of the deleted ring (I8)", func(ctx context.Context) ([]string, error) {
		var problems []string

		err := w.client.Get(ctx, client.ObjectKeyFromObject(r.manifest()), r.manifest())
		switch {
		case err == nil:
			problems = append(problems, "the ring is still there")
		case !apierrors.IsNotFound(err):
			return nil, fmt.Errorf("read the ring: %w", err)
		}

		var webhooks admissionregistrationv1.MutatingWebhookConfigurationList
		if err := w.client.List(ctx, &webhooks, client.MatchingLabels{v1alpha1.LabelClusterRing: r.Name}); err != nil {
			return nil, fmt.Errorf("read webhook configurations: %w", err)
		}

		for i := range webhooks.Items {
			problems = append(problems, "the webhook configuration still exists: "+webhooks.Items[i].Name)
		}

		for _, v := range r.recorder.Newest() {
			if !v.Deleted && (v.Shard != "" || v.Draining) {
				problems = append(problems, "it still has labels: "+v.String())
			}
		}

		return problems, nil
	})
	if err != nil || len(w.left()) == 0 {
		return err
	}

	return w.AwaitInPlace(ctx)
}

// createTheme creates a Theme if a ring has them.
func (w *World) createTheme(ctx context.Context, name string) error {
	if !slices.ContainsFunc(w.rings, func(r *ring) bool { return r.Themes }) {
		return nil
	}

	theme := &unstructured.Unstructured{}
	theme.SetGroupVersionKind(themes.GroupVersion().WithKind(check.Theme))
	theme.SetName(name)

	if err := w.client.Create(ctx, theme); err != nil {
		return fmt.Errorf("a user's request failed (I4): create: %w", err)
	}

	return nil
}

// shipsOfEach is the size of a Fleet.
const shipsOfEach = 3

func fleetName(i int) string { return fmt.Sprintf("fleet-%d", i) }

func (w *World) createFleet(ctx context.Context, namespace, name string) error {
	fleet := &examplev1alpha1.Fleet{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: examplev1alpha1.FleetSpec{Replicas: shipsOfEach},
	}
	if err := w.client.Create(ctx, fleet); err != nil {
		return fmt.Errorf("a user's request failed (I4): create: %w", err)
	}

	return nil
}

// TouchFleets annotates the ring's Fleets one after the other until ctx ends, so that there is always work on some of them.
func (w *World) TouchFleets(ctx context.Context, ring RingSpec) error {
	for i := 0; ; i++ {
		timer := time.NewTimer(pollInterval)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-timer.C:
		}

		fleet := &examplev1alpha1.Fleet{ObjectMeta: metav1.ObjectMeta{Namespace: ring.Namespaces[0], Name: fleetName(i % ring.Fleets)}}
		if err := w.annotate(context.WithoutCancel(ctx), fleet, touched, record.Now().String()); err != nil {
			return err
		}
	}
}

// Create creates a Website. If name is empty, the name is generated.
func (w *World) Create(ctx context.Context, name string) error {
	return w.createIn(ctx, Namespace, name)
}

// createIn creates a Website, alternately through both versions of its API.
func (w *World) createIn(ctx context.Context, namespace, name string) error {
	site := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"title": "first"}}}
	site.SetGroupVersionKind(websiteKind(w.nextVersion()))
	site.SetNamespace(namespace)
	site.SetName(name)

	if name == "" {
		site.SetGenerateName("generated-")
	}

	if err := w.client.Create(ctx, site); err != nil {
		return fmt.Errorf("a user's request failed (I4): create: %w", err)
	}

	return nil
}

func (w *World) nextVersion() string {
	if w.written.Add(1)%2 == 0 {
		return newVersion
	}

	return examplev1alpha1.SchemeGroupVersion.Version
}

// Edit changes the spec of a Website.
func (w *World) Edit(ctx context.Context, name string) error { return w.editIn(ctx, Namespace, name) }

func (w *World) editIn(ctx context.Context, namespace, name string) error {
	version := w.nextVersion()

	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		site := &unstructured.Unstructured{}
		site.SetGroupVersionKind(websiteKind(version))

		if err := w.client.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, site); err != nil {
			return err //nolint:wrapcheck // wrapped below
		}

		body, _, _ := unstructured.NestedString(site.Object, "spec", "body")
		if err := unstructured.SetNestedField(site.Object, body+"more ", "spec", "body"); err != nil {
			return err //nolint:wrapcheck // wrapped below
		}

		return w.client.Update(ctx, site)
	})
	if err != nil {
		return fmt.Errorf("a user's request failed (I4): update: %w", err)
	}

	return nil
}

// touched is an annotation that no controller reads.
const touched = "touched"

// Touch changes the ConfigMap of a Website without changing its content.
func (w *World) Touch(ctx context.Context, name string) error {
	configMap := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: name}}
	return w.annotate(ctx, configMap, touched, record.Now().String())
}

// ClearChecksum makes the second controller of the example write the ConfigMap of a Website again, without work for the first one.
func (w *World) ClearChecksum(ctx context.Context, name string) error {
	configMap := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: name}}
	return w.annotate(ctx, configMap, checksum.Annotation, nil)
}

// annotate sets an annotation of an object; nil removes it.
func (w *World) annotate(ctx context.Context, object client.Object, key string, value any) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]any{key: value}}})
	if err == nil {
		err = w.client.Patch(ctx, object, client.RawPatch(types.MergePatchType, patch))
	}

	if err != nil {
		return fmt.Errorf("a user's request failed (I4): patch: %w", err)
	}

	return nil
}

// removeIn deletes a Website.
func (w *World) removeIn(ctx context.Context, namespace, name string) error {
	site := &examplev1alpha1.Website{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	if err := w.client.Delete(ctx, site); err != nil {
		return fmt.Errorf("a user's request failed (I4): delete: %w", err)
	}

	return nil
}
