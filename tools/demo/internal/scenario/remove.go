package scenario

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/tools/demo/internal/localsystem"
	"github.com/clusterring/clusterring/tools/demo/internal/report"
	"github.com/clusterring/clusterring/tools/lab/process"
	"github.com/clusterring/clusterring/tools/lab/services"
)

// afterwardsToo is the number of Websites that users create after the ring is gone.
const afterwardsToo = 20

// remove deletes the ring while its shards work and users edit and create Websites.
func (s *Story) remove(ctx context.Context) error {
	before, err := s.everything()
	if err != nil {
		return err
	}

	mark := s.objects.Mark()
	users := s.editAndCreate(ctx)

	deletion, err := s.deleteRing(ctx, users)
	if err := errors.Join(err, s.end(users)); err != nil {
		return err
	}
	s.ok("the ring was gone after %s; of %d creates and %d edits meanwhile, none failed (slowest %s)",
		report.Seconds(deletion.gone.Sub(deletion.began)), deletion.creates, deletion.edits, report.Seconds(users.slowest))

	if err := s.unregistered(ctx); err != nil {
		return err
	}

	if err := s.leftAlone(ctx, users.creates-deletion.createsBefore); err != nil {
		return err
	}

	if err := s.drained(before, mark); err != nil {
		return err
	}

	reader, err := s.work()
	if err != nil {
		return err
	}

	worked := 0

	for _, span := range reader.Spans() {
		if span.Start < reader.Instant(deletion.gone) && (span.End == 0 || span.End > reader.Instant(deletion.began)) {
			worked++
		}
	}

	if worked == 0 {
		return errors.New("no shard worked while the ring was deleted, so the step proves nothing")
	}
	s.ok("shards released each object first, then its ConfigMap, during %d reconciles", worked)

	return s.noOverlap()
}

// deletion is what happened while the ring was deleted.
type deletion struct {
	began, gone time.Time
	// edits and creates succeeded meanwhile, createsBefore before the deletion.
	edits, creates, createsBefore int
}

// deleteRing deletes the ring when there is work, and waits until it is gone and some more objects were created.
func (s *Story) deleteRing(ctx context.Context, users *load) (deletion, error) {
	d := deletion{}

	err := s.await(ctx, func(context.Context) (bool, string, error) {
		edits, creates := users.count()
		return edits > 0 && creates > 0 || users.over(), "waiting for the first edits and creates", nil
	})
	if err != nil {
		return d, err
	}

	ring, err := s.ring(ctx)
	if err != nil {
		return d, err
	}

	d.began = time.Now()
	editsBefore, createsBefore := users.count()

	if err := s.client.Delete(ctx, ring); err != nil {
		return d, fmt.Errorf("delete the ClusterRing: %w", err)
	}

	err = s.await(ctx, func(ctx context.Context) (bool, string, error) {
		left, err := s.everything()
		if err != nil {
			return false, "", err
		}

		err = s.client.Get(ctx, client.ObjectKeyFromObject(ring), ring)
		if apierrors.IsNotFound(err) {
			return true, "", nil
		}

		return false, fmt.Sprintf("the ring has the finalizers %v; %d of %d objects are unassigned",
			ring.Finalizers, len(left.At("")), len(left)), err
	})
	if err != nil {
		return d, err
	}

	d.gone = time.Now()
	edits, creates := users.count()
	d.edits, d.creates, d.createsBefore = edits-editsBefore, creates-createsBefore, createsBefore

	return d, s.await(ctx, func(context.Context) (bool, string, error) {
		_, now := users.count()
		return now >= creates+afterwardsToo || users.over(), fmt.Sprintf("users have created %d Websites since the ring was gone", now-creates), nil
	})
}

// leftAlone checks that no object has a label of the ring, with a fresh list and with the watches. created is the number of Websites that
// were created since the deletion began.
func (s *Story) leftAlone(ctx context.Context, created int) error {
	total := 0

	for _, kind := range shardedKinds {
		n, err := s.unlabelled(ctx, kind)
		if err != nil {
			return err
		}

		if kind == websiteGVK && n != s.created {
			return fmt.Errorf("%d Websites exist, but %d were created", n, s.created)
		}

		total += n
	}

	err := s.await(ctx, func(context.Context) (bool, string, error) {
		all, err := s.everything()
		return err == nil && len(all.At("")) == len(all), "the watches have not caught up", err
	})
	if err != nil {
		return err
	}
	s.ok("no label is left on any of %d objects, %d of them created since the deletion began", total, created)

	return nil
}

// unlabelled lists all objects of a kind and returns their number, or an error if one has a label of the ring.
func (s *Story) unlabelled(ctx context.Context, kind schema.GroupVersionKind) (int, error) {
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(kind)

	if err := s.client.List(ctx, list); err != nil {
		return 0, fmt.Errorf("list %ss: %w", kind.Kind, err)
	}

	var found []string

	for i := range list.Items {
		for label, value := range list.Items[i].Labels {
			if strings.HasPrefix(label, v1alpha1.LabelShardPrefix) || strings.HasPrefix(label, v1alpha1.LabelDrainPrefix) {
				found = append(found, fmt.Sprintf("%s %s/%s: %s=%s", kind.Kind, list.Items[i].Namespace, list.Items[i].Name, label, value))
			}
		}
	}

	return len(list.Items), wrong("the deleted ring has left labels behind", found)
}

// unregistered waits until the webhook configuration is gone.
func (s *Story) unregistered(ctx context.Context) error {
	name := v1alpha1.WebhookConfigurationName(localsystem.Ring)

	err := s.await(ctx, func(ctx context.Context) (bool, string, error) {
		err := s.client.Get(ctx, client.ObjectKey{Name: name}, &admissionregistrationv1.MutatingWebhookConfiguration{})
		if apierrors.IsNotFound(err) {
			return true, "", nil
		}

		return false, "the webhook configuration " + name + " is still there", err //nolint:wrapcheck // await says what it was
	})
	if err != nil {
		return err
	}
	s.ok("the webhook configuration is gone")

	return nil
}

// review checks what must hold throughout the demo.
func (s *Story) review(ctx context.Context) error {
	if err := s.system.Ready(ctx); err != nil {
		return err
	}
	s.ok("all services are ready; no process exited by itself, except the resumed shard")

	if err := errors.Join(s.noOverlap(), s.noExcess()); err != nil {
		return err
	}

	names := map[string]bool{}
	for _, p := range s.system.Processes() {
		names[p.Name] = true
	}

	for name := range names {
		found, err := process.Find(s.system.LogFile(name), 1, "forbidden", "panic", "data race")
		if err != nil {
			return err
		}

		if len(found) > 0 {
			return &services.FaultError{Process: name, Err: fmt.Errorf("%s has logged: %s", name, found[0])}
		}
	}
	s.ok("no log of %d services and shards contains forbidden or panic", len(names))

	return nil
}
