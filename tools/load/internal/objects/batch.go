package objects

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// pageSize is the number of objects per list request.
const pageSize = 5000

// Kind is a kind of object.
type Kind struct {
	schema.GroupVersionResource

	Kind string
}

// The kinds that measurements create.
var (
	ConfigMaps = Kind{schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}, "ConfigMap"}
	Websites   = Kind{schema.GroupVersionResource{Group: "example.clusterring.dev", Version: "v1alpha1", Resource: "websites"}, "Website"}
	Leases     = Kind{schema.GroupVersionResource{Group: "coordination.k8s.io", Version: "v1", Resource: "leases"}, "Lease"}
)

// Path returns the path of an object, or of the collection if name is empty. The namespace is empty for all namespaces and for
// cluster-scoped kinds.
func (k Kind) Path(namespace, name string) string {
	var path strings.Builder
	if k.Group == "" {
		path.WriteString("/api/" + k.Version)
	} else {
		path.WriteString("/apis/" + k.Group + "/" + k.Version)
	}

	if namespace != "" {
		path.WriteString("/namespaces/" + namespace)
	}
	path.WriteString("/" + k.Resource)

	if name != "" {
		path.WriteString("/" + name)
	}

	return path.String()
}

// Deployments are main resources of rings without main objects.
var Deployments = schema.GroupResource{Group: "apps", Resource: "deployments"}

// Batch names objects: Prefix-0 to Prefix-(Count-1).
type Batch struct {
	Kind              Kind
	Namespace, Prefix string
	Count             int
	// Concurrency is the number of concurrent requests; 0 means one.
	Concurrency int
	// Labels returns the labels of a new object; nil means none. It is called concurrently.
	Labels func(i int) map[string]string
	// Owner is the controller of all objects; nil for none.
	Owner *metav1.OwnerReference
}

// Name returns the name of one of the objects.
func (b Batch) Name(i int) string { return b.Prefix + "-" + strconv.Itoa(i) }

// Body returns the JSON of one of the objects.
func (b Batch) Body(i int) ([]byte, error) {
	meta := map[string]any{"name": b.Name(i), "namespace": b.Namespace}
	if b.Labels != nil {
		meta["labels"] = b.Labels(i)
	}

	if b.Owner != nil {
		meta["ownerReferences"] = []*metav1.OwnerReference{b.Owner}
	}

	object := map[string]any{"apiVersion": b.Kind.GroupVersion().String(), "kind": b.Kind.Kind, "metadata": meta}
	switch b.Kind {
	case ConfigMaps:
		object["data"] = map[string]string{"made": "to be measured"}
	case Websites:
		object["spec"] = map[string]string{"title": "Made to be measured"}
	}

	body, err := json.Marshal(object)
	if err != nil {
		return nil, fmt.Errorf("encode %s %s: %w", b.Kind.Kind, b.Name(i), err)
	}

	return body, nil
}

// Create creates the objects of a batch.
func (c *Client) Create(ctx context.Context, b Batch) error {
	path := b.Kind.Path(b.Namespace, "")

	return Each(ctx, b.Count, b.Concurrency, func(ctx context.Context, i int) error {
		body, err := b.Body(i)
		if err != nil {
			return err
		}

		return c.Do(ctx, Request{Method: http.MethodPost, Path: path, Body: body}, nil)
	})
}

// Patch sends a JSON merge patch for each object of a batch.
func (c *Client) Patch(ctx context.Context, b Batch, patch func(i int) []byte) error {
	return Each(ctx, b.Count, b.Concurrency, func(ctx context.Context, i int) error {
		return c.MergePatch(ctx, b.Kind.Path(b.Namespace, b.Name(i)), patch(i))
	})
}

// MergePatch sends a JSON merge patch to one path.
func (c *Client) MergePatch(ctx context.Context, path string, patch []byte) error {
	return c.Do(ctx, Request{Method: http.MethodPatch, Path: path, ContentType: string(types.MergePatchType), Body: patch}, nil)
}

// Delete deletes the objects of a batch. Objects that are already gone are ignored.
func (c *Client) Delete(ctx context.Context, b Batch) error {
	return Each(ctx, b.Count, b.Concurrency, func(ctx context.Context, i int) error {
		err := c.Do(ctx, Request{Method: http.MethodDelete, Path: b.Kind.Path(b.Namespace, b.Name(i))}, nil)
		if apierrors.IsNotFound(err) {
			return nil
		}

		return err
	})
}

// Selection selects existing objects.
type Selection struct {
	Kind Kind
	// Namespace is empty for all namespaces.
	Namespace string
	// Labels is a label selector; empty selects all.
	Labels string
}

// DeleteAll deletes the selected objects with the given concurrency, until a list returns none.
func (c *Client) DeleteAll(ctx context.Context, s Selection, concurrency int) error {
	for {
		var paths []string

		err := c.pages(ctx, s, func(o *metav1.PartialObjectMetadata) { paths = append(paths, s.Kind.Path(o.Namespace, o.Name)) })
		if err != nil || len(paths) == 0 {
			return err
		}

		err = Each(ctx, len(paths), concurrency, func(ctx context.Context, i int) error {
			err := c.Do(ctx, Request{Method: http.MethodDelete, Path: paths[i]}, nil)
			if apierrors.IsNotFound(err) {
				return nil
			}

			return err
		})
		if err != nil {
			return err
		}
	}
}

// CountBy counts the selected objects by the value of a label. Objects without the label count under "".
func (c *Client) CountBy(ctx context.Context, s Selection, label string) (map[string]int, error) {
	counts := map[string]int{}
	err := c.pages(ctx, s, func(o *metav1.PartialObjectMetadata) { counts[o.Labels[label]]++ })

	return counts, err
}

// Count counts the selected objects.
func (c *Client) Count(ctx context.Context, s Selection) (int, error) {
	n := 0
	err := c.pages(ctx, s, func(*metav1.PartialObjectMetadata) { n++ })

	return n, err
}

// pages calls show with the metadata of each selected object. It lists page by page.
func (c *Client) pages(ctx context.Context, s Selection, show func(*metav1.PartialObjectMetadata)) error {
	options := metav1.ListOptions{LabelSelector: s.Labels, Limit: pageSize}
	for {
		list, err := c.Metadata.Resource(s.Kind.GroupVersionResource).Namespace(s.Namespace).List(ctx, options)
		if err != nil {
			return fmt.Errorf("list %s in %q: %w", s.Kind.Resource, s.Namespace, err)
		}

		for i := range list.Items {
			show(&list.Items[i])
		}

		if options.Continue = list.Continue; options.Continue == "" {
			return nil
		}
	}
}

// DryRun creates an object of the batch with a dry run, which calls admission webhooks, and returns its metadata.
func (c *Client) DryRun(ctx context.Context, b Batch, i int) (*metav1.PartialObjectMetadata, error) {
	body, err := b.Body(i)
	if err != nil {
		return nil, err
	}

	path := b.Kind.Path(b.Namespace, "") + "?" + url.Values{"dryRun": {metav1.DryRunAll}}.Encode()

	var answer bytes.Buffer
	if err := c.Do(ctx, Request{Method: http.MethodPost, Path: path, Body: body}, &answer); err != nil {
		return nil, err
	}

	object := &metav1.PartialObjectMetadata{}
	if err := json.Unmarshal(answer.Bytes(), object); err != nil {
		return nil, fmt.Errorf("decode the metadata of %s %s: %w", b.Kind.Kind, b.Name(i), err)
	}

	return object, nil
}
