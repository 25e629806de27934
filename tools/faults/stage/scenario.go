package stage

import (
	"context"
	"errors"
	"fmt"
	"syscall"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	examplev1alpha1 "github.com/clusterring/clusterring/tools/example/api/v1alpha1"
	"github.com/clusterring/clusterring/tools/example/checksum"
	"github.com/clusterring/clusterring/tools/faults/record"
)

// Phase is a part of the scenario.
type Phase string

// The phases, in their order. Each ends when all is in place.
const (
	// Begin: services and three shards start, eight Websites are made, two of them with generated names.
	Begin Phase = "begin"
	// Join: a fourth shard joins; a Website is made, one changed, one deleted.
	Join Phase = "join"
	// Fail: a shard is killed for good, and another one stops; a Website is made, one changed.
	Fail Phase = "fail"
	// Delete: the ring is deleted.
	Delete Phase = "delete"
)

type step struct {
	phase Phase
	play  func(*World, context.Context) error
}

// scenario is what happens in a run, but for its fault.
var scenario = []step{
	{Begin, (*World).begin},
	{Join, (*World).join},
	{Fail, (*World).fail},
}

func (w *World) begin(ctx context.Context) error {
	if err := w.client.Create(ctx, newRing()); err != nil {
		return fmt.Errorf("create the ring: %w", err)
	}
	for _, m := range w.order {
		if m.Name != "d" {
			if err := w.Start(m); err != nil {
				return err
			}
		}
	}
	if err := w.awaitRegistered(ctx); err != nil {
		return err
	}
	var errs []error
	for i := range 6 {
		errs = append(errs, w.Create(ctx, fmt.Sprintf("site-%d", i)))
	}
	return errors.Join(append(errs, w.Create(ctx, ""), w.Create(ctx, ""))...)
}

func (w *World) join(ctx context.Context) error {
	err := w.Start(w.members["d"])
	return errors.Join(err, w.Create(ctx, "site-6"), w.Edit(ctx, "site-0"), w.remove(ctx, "site-1"))
}

func (w *World) fail(ctx context.Context) error {
	w.Expect("a", false)
	w.Expect("b", false)
	err := w.members["a"].Process().Retire(syscall.SIGKILL, stopTimeout)
	return errors.Join(err, w.Create(ctx, "site-7"), w.Edit(ctx, "site-2"), w.Edit(ctx, "site-6"),
		w.members["b"].Process().Retire(syscall.SIGTERM, stopTimeout))
}

// delete deletes the ring and waits until nothing of it is left.
func (w *World) delete(ctx context.Context) error {
	if err := w.client.Delete(ctx, newRing()); err != nil {
		return fmt.Errorf("delete the ring: %w", err)
	}
	return w.await(ctx, "nothing is left of the deleted ring", func(ctx context.Context) ([]string, error) {
		var problems []string
		err := w.client.Get(ctx, client.ObjectKey{Name: Ring}, newRing())
		switch {
		case err == nil:
			problems = append(problems, "the ring is still there")
		case !apierrors.IsNotFound(err):
			return nil, fmt.Errorf("read the ring: %w", err)
		}
		for _, v := range w.recorder.Newest() {
			if !v.Deleted && (v.Shard != "" || v.Draining) {
				problems = append(problems, "it still has labels: "+v.String())
			}
		}
		return problems, nil
	})
}

// Create makes a Website; without a name its name is generated.
func (w *World) Create(ctx context.Context, name string) error {
	site := &examplev1alpha1.Website{
		ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: name},
		Spec:       examplev1alpha1.WebsiteSpec{Title: "first"},
	}
	if name == "" {
		site.GenerateName = "generated-"
	}
	if err := w.client.Create(ctx, site); err != nil {
		return fmt.Errorf("a user's request failed (I4): create: %w", err)
	}
	return nil
}

// Edit changes what a Website shall say.
func (w *World) Edit(ctx context.Context, name string) error {
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		site := &examplev1alpha1.Website{}
		if err := w.client.Get(ctx, client.ObjectKey{Namespace: Namespace, Name: name}, site); err != nil {
			return err //nolint:wrapcheck // wrapped below
		}
		site.Spec.Body += "more "
		return w.client.Update(ctx, site)
	})
	if err != nil {
		return fmt.Errorf("a user's request failed (I4): update: %w", err)
	}
	return nil
}

// Touch makes the ConfigMap of a Website look changed.
func (w *World) Touch(ctx context.Context, name string) error {
	configMap := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: name}}
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{"touched":"%d"}}}`, record.Now())
	if err := w.client.Patch(ctx, configMap, client.RawPatch(types.MergePatchType, patch)); err != nil {
		return fmt.Errorf("a user's request failed (I4): patch: %w", err)
	}
	return nil
}

// ClearChecksum has the second controller of the example write into the ConfigMap of a Website, and the first one not.
func (w *World) ClearChecksum(ctx context.Context, name string) error {
	configMap := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: name}}
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:null}}}`, checksum.Annotation)
	if err := w.client.Patch(ctx, configMap, client.RawPatch(types.MergePatchType, patch)); err != nil {
		return fmt.Errorf("a user's request failed (I4): patch: %w", err)
	}
	return nil
}

// remove deletes a Website and what it controls, which nothing else does here.
func (w *World) remove(ctx context.Context, name string) error {
	site := &examplev1alpha1.Website{ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: name}}
	if err := w.client.Delete(ctx, site); err != nil {
		return fmt.Errorf("a user's request failed (I4): delete: %w", err)
	}
	return nil
}

// awaitRegistered waits until the API server knows the webhook.
func (w *World) awaitRegistered(ctx context.Context) error {
	return w.await(ctx, "three shards hold their Leases and the ring is ready", func(ctx context.Context) ([]string, error) {
		ring := newRing()
		if err := w.client.Get(ctx, client.ObjectKeyFromObject(ring), ring); err != nil {
			return nil, fmt.Errorf("read the ring: %w", err)
		}
		problems := ringProblems(ring, w.expected())
		if w.available() != w.expected() {
			problems = append(problems, fmt.Sprintf("shards %q hold their Leases, not %q", w.available(), w.expected()))
		}
		return problems, nil
	})
}
