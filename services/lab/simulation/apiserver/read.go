package apiserver

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strconv"

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

// token is the position at which a list continues.
type token struct {
	Version int64
	After   string
}

func (t token) String() string {
	text, err := json.Marshal(t)
	if err != nil {
		panic(fmt.Sprintf("encode a token: %v", err))
	}

	return base64.RawURLEncoding.EncodeToString(text)
}

func parseToken(text string) (t token, err error) {
	decoded, err := base64.RawURLEncoding.DecodeString(text)
	if err == nil {
		err = json.Unmarshal(decoded, &t)
	}

	if err != nil {
		return token{}, apierrors.NewBadRequest("continue key is not valid: " + err.Error())
	}

	return t, nil
}

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
	from := token{Version: s.version}

	if opts.Continue != "" {
		var err error
		if from, err = parseToken(opts.Continue); err != nil {
			return nil, err
		}

		if from.Version < s.compacted {
			gone := apierrors.NewResourceExpired("The provided continue parameter is too old to display a consistent list result.")
			gone.ErrStatus.Continue = token{Version: s.version, After: from.After}.String()

			return nil, gone
		}
	}

	limit := opts.Limit
	if s.config.Page > 0 && limit > 0 {
		limit = min(limit, int64(s.config.Page))
	}

	list := &metav1.PartialObjectMetadataList{}
	list.ResourceVersion = strconv.FormatInt(from.Version, 10)

	for _, o := range f.selected(s.store(gr).at(from.Version)) {
		if place(o) <= from.After {
			continue
		}

		if limit > 0 && int64(len(list.Items)) == limit {
			list.Continue = token{Version: from.Version, After: place(&list.Items[limit-1])}.String()
			break
		}

		list.Items = append(list.Items, *o)
	}

	return list, nil
}

// place is the position of an object in lists.
func place(o *metav1.PartialObjectMetadata) string { return o.Namespace + "\x00" + o.Name }

func (s *Server) find(id ID) (*metav1.PartialObjectMetadata, error) {
	found, ok := s.store(id.GroupResource).objects[id.key()]
	if !ok {
		return nil, apierrors.NewNotFound(id.GroupResource, id.Name)
	}

	return found, nil
}
