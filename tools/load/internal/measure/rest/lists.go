package rest

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/clusterring/clusterring/tools/load/internal/objects"
	"github.com/clusterring/clusterring/tools/load/internal/run"
	"github.com/clusterring/clusterring/tools/load/internal/target"
)

// list compares the two ways to list the metadata of all objects of the ring: as a stream, and in pages where they are not too many.
func (m *multitude) list(ctx context.Context, size int) error {
	if !m.bench.Wants(manyStreamed) {
		return nil
	}

	for range run.Pick(m.bench, 1, 3) {
		streamed, err := m.listed(ctx, size, m.stream)
		if err != nil {
			return err
		}

		m.lists.streamed = append(m.lists.streamed, streamed)

		if size > pagesUpTo {
			continue
		}

		paged, err := m.listed(ctx, size, m.pages)
		if err != nil {
			return err
		}

		m.lists.paged = append(m.lists.paged, paged)
	}
	m.bench.Progress("%d objects, a list: %.3g µs per object as a stream, %.3g in pages", size, m.lists.streamed, m.lists.paged)

	return nil
}

// listed returns the API server's CPU time per object, in microseconds, of a list, which returns how many objects it has seen.
func (m *multitude) listed(ctx context.Context, size int, list func(context.Context) (int, error)) (float64, error) {
	if err := m.bench.Local.Calm(ctx); err != nil {
		return 0, err
	}

	seen := 0

	used, err := m.bench.Local.Usage().During(func() (err error) {
		seen, err = list(ctx)
		return err
	})
	if err != nil {
		return 0, err
	}

	if seen < size {
		return 0, fmt.Errorf("a list has %d of %d objects", seen, size)
	}

	return float64(used[target.APIServer].CPU) / float64(time.Microsecond) / float64(seen), nil
}

// stream lists all objects as a stream.
func (m *multitude) stream(ctx context.Context) (seen int, err error) {
	w, err := m.bench.Objects.Metadata.Resource(objects.ConfigMaps.GroupVersionResource).Namespace(m.world.Ring.Namespace).Watch(ctx, metav1.ListOptions{
		SendInitialEvents: new(true), AllowWatchBookmarks: true, ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan,
	})
	if err != nil {
		return 0, fmt.Errorf("list objects as a stream: %w", err)
	}
	defer func() {
		w.Stop()

		for range w.ResultChan() { // else whoever fills it waits for ever
		}
	}()

	for event := range w.ResultChan() {
		o, ok := event.Object.(*metav1.PartialObjectMetadata)
		switch {
		case event.Type == watch.Error:
			return 0, fmt.Errorf("list objects as a stream: %w", apierrors.FromObject(event.Object))
		case event.Type == watch.Added:
			seen++
		case event.Type == watch.Bookmark && ok && o.Annotations[metav1.InitialEventsAnnotationKey] == "true":
			return seen, nil
		}
	}

	return 0, errors.New("list objects as a stream: the API server has ended it")
}

// pages lists all objects in pages, as large as those of the rebalancer.
func (m *multitude) pages(ctx context.Context) (seen int, err error) {
	const size = 1000

	options := metav1.ListOptions{Limit: size}
	for {
		page, err := m.bench.Objects.Metadata.Resource(objects.ConfigMaps.GroupVersionResource).Namespace(m.world.Ring.Namespace).List(ctx, options)
		if err != nil {
			return 0, fmt.Errorf("list objects in pages: %w", err)
		}

		seen += len(page.Items)
		if options.Continue = page.Continue; options.Continue == "" {
			return seen, nil
		}
	}
}
