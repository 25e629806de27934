package scenario

import (
	"context"
	"fmt"
	"strings"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/tools/demo/internal/observe"
	"github.com/clusterring/clusterring/tools/demo/internal/process"
	"github.com/clusterring/clusterring/tools/demo/internal/system"
)

// remove deletes the ring, while its shards run.
func (s *Story) remove(ctx context.Context) error {
	mark, begin := s.objects.Mark(), time.Now()
	ring, err := s.ring(ctx)
	if err != nil {
		return err
	}
	if err := s.client.Delete(ctx, ring); err != nil {
		return fmt.Errorf("delete the ClusterRing: %w", err)
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
		return false, fmt.Sprintf("the ring has the finalizers %v; %d of %d objects have no shard any more",
			ring.Finalizers, len(left.At("")), len(left)), err
	})
	if err != nil {
		return err
	}
	s.ok("its finalizer let the ring go after %s", seconds(begin))

	total := 0
	for _, kind := range []schema.GroupVersionKind{websiteGVK, {Version: "v1", Kind: "ConfigMap"}} {
		n, err := s.unlabelled(ctx, kind)
		if err != nil {
			return err
		}
		total += n
	}
	if err := wrong("objects lost their shard without a drain", observe.Undrained(s.objects.Since(mark), s.isAvailable)); err != nil {
		return err
	}
	s.ok("no label is left on any of %d objects; shards gave them up first", total)
	return s.unregistered(ctx)
}

// unlabelled reads all objects of a kind afresh and returns their number, or an error if one has a label of the ring.
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
	name := v1alpha1.WebhookConfigurationName(system.Ring)
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

// review checks what has to hold from the first to the last moment.
func (s *Story) review(ctx context.Context) error {
	for _, err := range s.system.Unhealthy(ctx) {
		return err // one is enough
	}
	s.ok("all services are ready, and no process has ended by itself")
	if err := s.noOverlap(); err != nil {
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
			return &system.FaultError{Process: name, Err: fmt.Errorf("%s has logged: %s", name, found[0])}
		}
	}
	s.ok("no log of %d services and shards says forbidden or panic", len(names))
	return nil
}
