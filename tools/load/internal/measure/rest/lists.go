package rest

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/metadata"

	"github.com/clusterring/clusterring/tools/load/internal/objects"
	"github.com/clusterring/clusterring/tools/load/internal/run"
	"github.com/clusterring/clusterring/tools/load/internal/target"
)

// lists returns what the API server takes to list the metadata of all objects, in microseconds per object: as a stream, and in pages if they
// are not too many.
func (m *multitude) lists(ctx context.Context) (streamed, paged []float64, err error) {
	if !m.bench.Wants(manyStreamed) {
		return nil, nil, nil
	}

	for range run.Pick(m.bench, 1, 3) {
		if streamed, err = m.list(ctx, streamed, m.stream); err != nil {
			return nil, nil, err
		}

		if m.most > pagesUpTo {
			continue
		}

		if paged, err = m.list(ctx, paged, m.pages); err != nil {
			return nil, nil, err
		}
	}
	m.bench.Progress("%d objects, a list: %.3g µs per object as a stream, %.3g in pages", m.most, streamed, paged)

	return streamed, paged, nil
}

// list appends what a list takes to values. The list returns the number of objects that it has seen.
func (m *multitude) list(ctx context.Context, values []float64, list func(context.Context) (int, error)) ([]float64, error) {
	if err := m.bench.Local.Calm(ctx); err != nil {
		return nil, err
	}

	seen := 0

	ms, err := m.bench.Local.Usage().CPU(target.APIServer, func() (err error) {
		seen, err = list(ctx)
		return err
	})
	if err != nil {
		return nil, err
	}

	if seen < m.most {
		return nil, fmt.Errorf("a list has %d of %d objects", seen, m.most)
	}

	return append(values, ms*1000/float64(seen)), nil
}

func (m *multitude) objects() metadata.ResourceInterface {
	return m.bench.Objects.Metadata.Resource(objects.ConfigMaps.GroupVersionResource).Namespace(m.Fleet.Ring.Namespace)
}

// stream lists all objects as a stream.
func (m *multitude) stream(ctx context.Context) (seen int, err error) {
	w, err := m.objects().Watch(ctx, metav1.ListOptions{
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
		page, err := m.objects().List(ctx, options)
		if err != nil {
			return 0, fmt.Errorf("list objects in pages: %w", err)
		}

		seen += len(page.Items)
		if options.Continue = page.Continue; options.Continue == "" {
			return seen, nil
		}
	}
}
