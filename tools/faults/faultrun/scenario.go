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

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	examplev1alpha1 "github.com/clusterring/clusterring/tools/example/api/v1alpha1"
	"github.com/clusterring/clusterring/tools/example/checksum"
	"github.com/clusterring/clusterring/tools/testkit/check"
	"github.com/clusterring/clusterring/tools/testkit/record"
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

// scenario lists the phases of a run, except Delete.
var scenario = []struct {
	phase Phase
	play  func(context.Context, *Run) error
}{
	{Begin, begin},
	{Join, join},
	{Fail, fail},
}

func begin(ctx context.Context, run *Run) error {
	later := map[string]bool{}

	for _, r := range run.rings {
		created := r.manifest()
		if err := run.client.Create(ctx, created); err != nil {
			return fmt.Errorf("create a ring: %w", err)
		}

		r.uid = created.UID

		later[r.Shards[len(r.Shards)-1]] = true
	}

	for _, m := range run.order {
		if !later[m.Name] {
			if err := run.Start(m); err != nil {
				return err
			}
		}
	}

	if err := run.await(ctx, "three shards hold their Leases and the rings are ready", run.statusProblems); err != nil {
		return err
	}

	var errs []error

	for _, namespace := range run.namespaces() {
		for i := range 6 {
			errs = append(errs, run.createIn(ctx, namespace, fmt.Sprintf("site-%d", i)))
		}

		errs = append(errs, run.createIn(ctx, namespace, ""), run.createIn(ctx, namespace, ""))
	}

	for i := range 4 {
		errs = append(errs, run.createTheme(ctx, fmt.Sprintf("theme-%d", i)))
	}

	for _, r := range run.rings {
		for _, namespace := range r.Namespaces {
			for i := range r.Fleets {
				errs = append(errs, run.createFleet(ctx, namespace, fleetName(i)))
			}
		}
	}

	return errors.Join(errs...)
}

func join(ctx context.Context, run *Run) error {
	var errs []error
	for _, r := range run.rings {
		errs = append(errs, run.Start(run.members[r.Shards[len(r.Shards)-1]]))
	}

	for _, namespace := range run.namespaces() {
		errs = append(errs, run.createIn(ctx, namespace, "site-6"), run.editIn(ctx, namespace, "site-0"), run.removeIn(ctx, namespace, "site-1"))
	}

	return errors.Join(append(errs, run.createTheme(ctx, "theme-4"))...)
}

func fail(ctx context.Context, run *Run) error {
	var errs []error

	for _, r := range run.rings {
		run.Expect(r.Shards[0], false)
		run.Expect(r.Shards[1], false)
		errs = append(errs, run.members[r.Shards[0]].Process().Destroy())
	}

	for _, namespace := range run.namespaces() {
		errs = append(errs, run.createIn(ctx, namespace, "site-7"), run.editIn(ctx, namespace, "site-2"), run.editIn(ctx, namespace, "site-6"))
	}

	for _, r := range run.rings {
		errs = append(errs, run.members[r.Shards[1]].Process().Stop(stopTimeout))
	}

	return errors.Join(errs...)
}

// delete deletes the last ring and waits until nothing of it is left. Objects of other rings must stay in place.
func (run *Run) delete(ctx context.Context) error {
	r := run.rings[len(run.rings)-1]

	r.ended = record.Now()
	if err := run.client.Delete(ctx, r.manifest()); err != nil {
		return fmt.Errorf("delete the ring: %w", err)
	}

	err := run.await(ctx, "nothing is left of the deleted ring (I8)", func(ctx context.Context) ([]string, error) {
		var problems []string

		err := run.client.Get(ctx, client.ObjectKeyFromObject(r.manifest()), r.manifest())
		switch {
		case err == nil:
			problems = append(problems, "the ring is still there")
		case !apierrors.IsNotFound(err):
			return nil, fmt.Errorf("read the ring: %w", err)
		}

		var webhooks admissionregistrationv1.MutatingWebhookConfigurationList
		if err := run.client.List(ctx, &webhooks, client.MatchingLabels{contract.LabelClusterRing: r.Name}); err != nil {
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
	if err != nil || len(run.left()) == 0 {
		return err
	}

	return run.AwaitInPlace(ctx)
}

// createTheme creates a Theme if a ring has them.
func (run *Run) createTheme(ctx context.Context, name string) error {
	if !slices.ContainsFunc(run.rings, func(r *ring) bool { return r.Themes }) {
		return nil
	}

	theme := emptyObject(themes.GroupVersion().WithKind(check.Theme))
	theme.SetName(name)

	return asked("create", run.client.Create(ctx, theme))
}

// shipsOfEach is the size of a Fleet.
const shipsOfEach = 3

func fleetName(i int) string { return fmt.Sprintf("fleet-%d", i) }

func (run *Run) createFleet(ctx context.Context, namespace, name string) error {
	fleet := &examplev1alpha1.Fleet{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: examplev1alpha1.FleetSpec{Replicas: shipsOfEach},
	}

	return asked("create", run.client.Create(ctx, fleet))
}

// TouchFleets annotates the ring's Fleets one after the other until ctx ends, so that there is always work on some of them.
func (run *Run) TouchFleets(ctx context.Context, ring RingSpec) error {
	for i := 0; ; i++ {
		timer := time.NewTimer(pollInterval)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-timer.C:
		}

		fleet := &examplev1alpha1.Fleet{ObjectMeta: metav1.ObjectMeta{Namespace: ring.Namespaces[0], Name: fleetName(i % ring.Fleets)}}
		if err := run.annotate(context.WithoutCancel(ctx), fleet, touched, record.Now().String()); err != nil {
			return err
		}
	}
}

// Create creates a Website. If name is empty, the name is generated.
func (run *Run) Create(ctx context.Context, name string) error {
	return run.createIn(ctx, Namespace, name)
}

// createIn creates a Website, alternately through both versions of its API.
func (run *Run) createIn(ctx context.Context, namespace, name string) error {
	site := emptyObject(websiteKind(run.nextVersion()))
	site.Object["spec"] = map[string]any{"title": "first"}
	site.SetNamespace(namespace)
	site.SetName(name)

	if name == "" {
		site.SetGenerateName("generated-")
	}

	return asked("create", run.client.Create(ctx, site))
}

func (run *Run) nextVersion() string {
	if run.written.Add(1)%2 == 0 {
		return newVersion
	}

	return examplev1alpha1.SchemeGroupVersion.Version
}

// Edit changes the spec of a Website.
func (run *Run) Edit(ctx context.Context, name string) error { return run.editIn(ctx, Namespace, name) }

func (run *Run) editIn(ctx context.Context, namespace, name string) error {
	version := run.nextVersion()

	return asked("update", retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		site := emptyObject(websiteKind(version))
		if err := run.client.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, site); err != nil {
			return err //nolint:wrapcheck // wrapped below
		}

		body, _, _ := unstructured.NestedString(site.Object, "spec", "body")
		if err := unstructured.SetNestedField(site.Object, body+"more ", "spec", "body"); err != nil {
			return err //nolint:wrapcheck // wrapped below
		}

		return run.client.Update(ctx, site)
	}))
}

// touched is an annotation that no controller reads.
const touched = "touched"

// Touch changes the ConfigMap of a Website without changing its content.
func (run *Run) Touch(ctx context.Context, name string) error {
	configMap := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: name}}
	return run.annotate(ctx, configMap, touched, record.Now().String())
}

// ClearChecksum makes the second controller of the example write the ConfigMap of a Website again, without work for the first one.
func (run *Run) ClearChecksum(ctx context.Context, name string) error {
	configMap := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: name}}
	return run.annotate(ctx, configMap, checksum.Annotation, nil)
}

// annotate sets an annotation of an object; nil removes it.
func (run *Run) annotate(ctx context.Context, object client.Object, key string, value any) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]any{key: value}}})
	if err == nil {
		err = run.client.Patch(ctx, object, client.RawPatch(types.MergePatchType, patch))
	}

	return asked("patch", err)
}

// removeIn deletes a Website.
func (run *Run) removeIn(ctx context.Context, namespace, name string) error {
	site := &examplev1alpha1.Website{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	return asked("delete", run.client.Delete(ctx, site))
}

// asked returns the error of a user's request, which no fault may cause.
func asked(verb string, err error) error {
	if err != nil {
		return fmt.Errorf("a user's request failed (I4): %s: %w", verb, err)
	}

	return nil
}
