package objects

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"sync/atomic"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Concurrency is the number of requests that measurements send at a time: as many as the rebalancer sends by default.
const Concurrency = 16

// pageSize is the number of objects per list request.
const pageSize = 5000

// Create creates the objects of a batch.
func (c *Client) Create(ctx context.Context, b Batch) error {
	path := b.Kind.Path(b.Namespace, "")

	return Each(ctx, b.Count, Concurrency, func(ctx context.Context, i int) error {
		body, err := b.Body(i)
		if err != nil {
			return err
		}

		return c.Do(ctx, Request{Method: http.MethodPost, Path: path, Body: body}, nil)
	})
}

// DryRun creates the first object of the batch with a dry run, which calls admission webhooks, and returns its metadata.
func (c *Client) DryRun(ctx context.Context, b Batch) (*metav1.PartialObjectMetadata, error) {
	body, err := b.Body(0)
	if err != nil {
		return nil, err
	}

	var answer bytes.Buffer
	if err := c.Do(ctx, Request{Method: http.MethodPost, Path: b.Kind.Path(b.Namespace, "") + "?dryRun=" + metav1.DryRunAll, Body: body}, &answer); err != nil {
		return nil, err
	}

	object := &metav1.PartialObjectMetadata{}
	if err := json.Unmarshal(answer.Bytes(), object); err != nil {
		return nil, fmt.Errorf("decode the metadata of %s %s: %w", b.Kind.Kind, b.Name(0), err)
	}

	return object, nil
}

// Patch sends the same JSON merge patch for each object of a batch.
func (c *Client) Patch(ctx context.Context, b Batch, patch any) error {
	return Each(ctx, b.Count, Concurrency, func(ctx context.Context, i int) error {
		return c.MergePatch(ctx, b.Kind.Path(b.Namespace, b.Name(i)), patch)
	})
}

// MergePatch sends a JSON merge patch to one path.
func (c *Client) MergePatch(ctx context.Context, path string, patch any) error {
	body, err := json.Marshal(patch)
	if err != nil {
		return fmt.Errorf("encode a patch of %s: %w", path, err)
	}

	return c.Do(ctx, Request{Method: http.MethodPatch, Path: path, ContentType: string(types.MergePatchType), Body: body}, nil)
}

// Delete deletes the objects of a batch. It ignores objects that are already gone.
func (c *Client) Delete(ctx context.Context, b Batch) error {
	return Each(ctx, b.Count, Concurrency, func(ctx context.Context, i int) error {
		return c.Remove(ctx, b.Kind.Path(b.Namespace, b.Name(i)))
	})
}

// Remove deletes the object of one path. It ignores an object that is already gone.
func (c *Client) Remove(ctx context.Context, path string) error {
	err := c.Do(ctx, Request{Method: http.MethodDelete, Path: path}, nil)
	if apierrors.IsNotFound(err) {
		return nil
	}

	return err
}

// Selection selects existing objects.
type Selection struct {
	Kind Kind
	// Namespace is empty for all namespaces.
	Namespace string
	// Labels is a label selector; empty selects all.
	Labels string
}

// DeleteAll deletes the selected objects.
func (c *Client) DeleteAll(ctx context.Context, s Selection) error {
	list, err := c.List(ctx, s)
	if err != nil {
		return err
	}

	return Each(ctx, len(list), Concurrency, func(ctx context.Context, i int) error {
		return c.Remove(ctx, s.Kind.Path(list[i].Namespace, list[i].Name))
	})
}

// List returns the metadata of the selected objects. It lists page by page.
func (c *Client) List(ctx context.Context, s Selection) ([]metav1.PartialObjectMetadata, error) {
	var list []metav1.PartialObjectMetadata

	options := metav1.ListOptions{LabelSelector: s.Labels, Limit: pageSize}
	for {
		page, err := c.of(s).List(ctx, options)
		if err != nil {
			return nil, fmt.Errorf("list %s in %q: %w", s.Kind.Resource, s.Namespace, err)
		}

		list = append(list, page.Items...)
		if options.Continue = page.Continue; options.Continue == "" {
			return list, nil
		}
	}
}

// Each calls do with 0 to n-1, with at most the given concurrency. After the first error, it starts no further calls, and returns the
// error.
func Each(ctx context.Context, n, concurrency int, do func(ctx context.Context, i int) error) error {
	group, ctx := errgroup.WithContext(ctx)

	var next atomic.Int64

	for range min(n, concurrency) {
		group.Go(func() error {
			for ctx.Err() == nil {
				i := int(next.Add(1) - 1)
				if i >= n {
					return nil
				}

				if err := do(ctx, i); err != nil {
					return err
				}
			}

			return context.Cause(ctx)
		})
	}

	return group.Wait() //nolint:wrapcheck // the caller's own error
}
