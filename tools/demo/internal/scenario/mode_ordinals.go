package scenario

import (
	"context"
	"fmt"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/shard/ordinal"
	"github.com/clusterring/clusterring/tools/demo/internal/localsystem"
	examplev1alpha1 "github.com/clusterring/clusterring/tools/example/api/v1alpha1"
	"github.com/clusterring/clusterring/tools/example/history"
	"github.com/clusterring/clusterring/tools/lab/record"
)

// ordinals scales the StatefulSet of deploy/example-ordinals from two to three replicas while users edit Websites.
func (s *Story) ordinals(ctx context.Context) error {
	const before, after = 2, 3

	if err := s.withoutRing(ctx); err != nil {
		return err
	}

	if err := s.system.Plane.Install(ctx, "deploy/example-ordinals"); err != nil {
		return fmt.Errorf("install the StatefulSet: %w", err)
	}

	pods := []string{localsystem.OrdinalsSet + "-0", localsystem.OrdinalsSet + "-1", localsystem.OrdinalsSet + "-2"}
	since := record.Now()

	scale := func(ctx context.Context, from, to int) error {
		if err := s.replicas(ctx, to); err != nil {
			return err
		}

		return s.system.StartOrdinals(ctx, pods[from:to]...)
	}

	if err := scale(ctx, 0, before); err != nil {
		return err
	}

	if err := inOrder(ctx, s.createAll, s.awaitRendered); err != nil {
		return err
	}
	s.ok("%d Pods render %d Websites; no service, no webhook, no label", before, s.Objects)

	began := time.Now()

	_, err := s.underLoad(ctx, false, func(ctx context.Context, _ *users) error {
		if err := scale(ctx, before, after); err != nil {
			return err
		}

		return s.awaitWork(ctx, pods[before], since)
	})
	if err != nil {
		return err
	}

	took := seconds(began)

	if err := s.awaitRendered(ctx); err != nil {
		return err
	}

	if err := s.system.End(pods...); err != nil {
		return fmt.Errorf("stop the replicas: %w", err)
	}

	spans, err := s.spansSince(since, pods...)
	if err != nil {
		return err
	}

	if err := s.lastWorked(ctx, spans, pods); err != nil {
		return err
	}
	s.ok("a third Pod started, and worked after %s; each Website is with the Pod of its ordinal", took)

	found, spans := map[string]bool{}, history.Close(spans, nil, record.Now())
	for _, overlap := range history.Overlaps(spans, func(span history.Span) string { return span.UID }) {
		found[overlap.First.UID] = true
	}

	s.ok("while the number changed, %d Websites had two processes at once: this mode does not exclude it", len(found))

	return s.tidy(ctx)
}

// replicas sets the number of replicas of the StatefulSet.
func (s *Story) replicas(ctx context.Context, n int) error {
	set := &appsv1.StatefulSet{}
	set.Namespace, set.Name = localsystem.OrdinalsNamespace, localsystem.OrdinalsSet

	if err := s.client.Patch(ctx, set, client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, n))); err != nil {
		return fmt.Errorf("scale the StatefulSet: %w", err)
	}

	return nil
}

// spansSince returns the reconciles that processes have begun and recorded since a point in time.
func (s *Story) spansSince(since time.Duration, processes ...string) ([]history.Span, error) {
	var files []string
	for _, name := range processes {
		files = append(files, s.system.HistoryFile(name))
	}

	reader, err := record.Histories(files...)
	if err != nil {
		return nil, fmt.Errorf("read the histories of %v: %w", processes, err)
	}

	return slices.DeleteFunc(reader.Spans(), func(span history.Span) bool { return span.Start < since }), nil
}

// lastWorked checks that the last reconcile of each Website was that of the Pod of its ordinal.
func (s *Story) lastWorked(ctx context.Context, spans []history.Span, pods []string) error {
	last := map[string]history.Span{}
	for _, span := range spans {
		if span.Start >= last[span.UID].Start {
			last[span.UID] = span
		}
	}

	var sites examplev1alpha1.WebsiteList
	if err := s.client.List(ctx, &sites); err != nil {
		return fmt.Errorf("list the Websites: %w", err)
	}

	var misplaced []string

	for i := range sites.Items {
		site := &sites.Items[i]
		gk := examplev1alpha1.SchemeGroupVersion.WithKind("Website").GroupKind()

		want := pods[ordinal.Key(gk, site)%uint64(len(pods))]
		if span := last[string(site.UID)]; span.Shard != want {
			misplaced = append(misplaced, fmt.Sprintf("%s, but it belongs to %s", span, want))
		}
	}

	return wrong("another Pod than that of the ordinal worked last", misplaced)
}

// awaitWork waits until a Pod has worked since a point in time.
func (s *Story) awaitWork(ctx context.Context, pod string, since time.Duration) error {
	return s.await(ctx, func(context.Context) (string, error) {
		spans, err := s.spansSince(since, pod)

		return unless(len(spans) > 0, pod+" has not worked yet"), err
	})
}
