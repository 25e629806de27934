package apiserver

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/clusterring/clusterring/services/rebalancer/feed"
)

var _ feed.Server = (*Client)(nil)

// Enter does not wait: only one ring uses the server.
func (c *Client) Enter(context.Context) (leave func(), err error) { return func() {}, nil }

// Get reads one object. The error is NotFound if there is none.
func (c *Client) Get(ctx context.Context, id feed.ID) (*metav1.PartialObjectMetadata, error) {
	r := request{verb: "get", resource: id.GVR.GroupResource(), what: id.GVR.Version + " " + id.Namespace + "/" + id.Name}

	var found *metav1.PartialObjectMetadata

	err := c.do(ctx, r, func() (err error) {
		if err := c.server.refuses(id.GVR, r); err != nil {
			return err
		}

		found, err = c.server.find(idOf(id))

		return err
	})
	if err != nil {
		return nil, err
	}

	return found.DeepCopy(), nil
}

// token is where a list of a version continues: after a place.
func token(version int64, after string) string { return strconv.FormatInt(version, 10) + after }

// List lists the selected objects in pages. All pages have the same version, unless it was compacted meanwhile.
func (c *Client) List(
	ctx context.Context, gvr schema.GroupVersionResource, namespace string, opts metav1.ListOptions,
) (*metav1.PartialObjectMetadataList, error) {
	r := request{
		verb: "list", resource: gvr.GroupResource(),
		what: fmt.Sprintf("%s %q %q %q %t", gvr.Version, namespace, opts.LabelSelector, opts.FieldSelector,
			opts.Continue != ""),
	}

	var list *metav1.PartialObjectMetadataList

	err := c.do(ctx, r, func() (err error) {
		if err := c.server.refuses(gvr, r); err != nil {
			return err
		}

		f, err := newFilter(namespace, opts)
		if err != nil {
			return err
		}

		list, err = c.server.list(gvr.GroupResource(), f, opts)

		return err
	})

	return list, err
}

func (s *Server) list(gr schema.GroupResource, f filter,
	opts metav1.ListOptions) (*metav1.PartialObjectMetadataList, error) {
	version, after := s.version, ""

	if at := strings.Index(opts.Continue, "/"); at >= 0 {
		version, _ = strconv.ParseInt(opts.Continue[:at], 10, 64)
		if after = opts.Continue[at:]; version < s.compacted {
			gone := apierrors.NewResourceExpired("The provided continue parameter is too old to display a consistent list result.")
			gone.ErrStatus.Continue = token(s.version, after)

			return nil, gone
		}
	}

	limit := opts.Limit
	if s.config.Page > 0 && limit > 0 {
		limit = min(limit, int64(s.config.Page))
	}

	list := &metav1.PartialObjectMetadataList{}
	list.ResourceVersion = strconv.FormatInt(version, 10)

	for _, o := range f.selected(s.store(gr).at(version)) {
		if place(o) <= after {
			continue
		}

		if limit > 0 && int64(len(list.Items)) == limit {
			list.Continue = token(version, place(&list.Items[limit-1]))
			break
		}

		list.Items = append(list.Items, *o)
	}

	return list, nil
}

// place is the position of an object in lists.
func place(o *metav1.PartialObjectMetadata) string { return "/" + o.Namespace + "\x00" + o.Name }

func (s *Server) find(id ID) (*metav1.PartialObjectMetadata, error) {
	found, ok := s.store(id.GroupResource).objects[id.key()]
	if !ok {
		return nil, apierrors.NewNotFound(id.GroupResource, id.Name)
	}

	return found, nil
}
